#!/bin/bash
# programs: git, sqlite3, numpy
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount

if command -v git >/dev/null; then
    export HOME=$work GIT_CONFIG_NOSYSTEM=1
    git config --global user.name tester
    git config --global user.email tester@example.org
    git config --global init.defaultBranch main
    # shellcheck disable=SC2016 # for the inner shell
    ok "git init and commit" bash -c '
        git init -q repo && cd repo && for i in $(seq 300); do mkdir -p d$((i % 10)); seq $i >d$((i % 10))/f$i; done &&
        git add . && git commit -qm first && seq 1000 >d1/f1 && git commit -qam second'
    ok "git clone" git clone -q --no-local repo clone
    ok "git clone with hard links" git clone -q repo clone2
    ok "the clone is the same" diff -r --exclude .git repo clone
    ok "git fsck" git -C clone fsck --strict
    is "git status is clean" "$(git -C clone status --porcelain; git -C repo status --porcelain)" ""
    ok "git gc" git -C repo gc -q
    is "the log has both commits" "$(git -C repo log --oneline | wc -l)" 2
    rm -rf repo clone clone2
else
    skip "no git" 8
fi

if command -v sqlite3 >/dev/null; then
    sql() { sqlite3 db "$@" 2>&1; }
    is "sqlite3: create and insert 20000 rows" "$(sql 'create table t(a integer primary key, b text); with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000) insert into t select i, hex(i * 7919) from n;')" ""
    is "sum over them" "$(sql 'select count(*), sum(a) from t')" "20000|200010000"
    is "update, delete, vacuum" "$(sql 'create index i on t(b); update t set b = b || b where a % 3 = 0; delete from t where a % 7 = 0; vacuum;')" ""
    is "integrity_check" "$(sql 'pragma integrity_check')" ok
    pids=()
    for i in 1 2 3; do
        for j in {1..10}; do sqlite3 -cmd '.timeout 20000' db "insert into t(b) values('writer $i $j')"; done 2>>"$work/sql.err" &
        pids+=($!)
    done
    wait "${pids[@]}"
    is "three writers at once" "$(cat "$work/sql.err")$(sql "select count(*) from t where b like 'writer%'")" 30
    is "integrity_check again" "$(sql 'pragma integrity_check')" ok
    is "a rolled back transaction leaves nothing" "$(sql "begin; delete from t; rollback; select count(*) > 17000 from t")" 1
    rm db
else
    skip "no sqlite3" 7
fi

# Debian's python3 has python3-numpy, another one in PATH may not.
numpy=
for python in python3 /usr/bin/python3; do
    [ -n "$numpy" ] || ! $python -c 'import numpy' 2>/dev/null || numpy=$python
done
if [ -n "$numpy" ]; then
    ok "numpy save and load" "$numpy" -c '
import numpy
a = numpy.random.default_rng(1).standard_normal((1000, 1000))
numpy.save("a.npy", a)
numpy.savez("a.npz", a=a, b=a.T)
assert (numpy.load("a.npy") == a).all()
with numpy.load("a.npz") as z:
    assert (z["b"] == a.T).all()
'
    ok "numpy tofile and fromfile" "$numpy" -c '
import numpy
a = numpy.arange(3000001, dtype="u4")
a.tofile("raw")
assert (numpy.fromfile("raw", dtype="u4") == a).all()
'
else
    skip "no numpy for this python3" 2
fi
ok "python3 writes, seeks, reads and truncates" python3 -c '
import os, random
r = random.Random(5)
data = bytearray(r.randbytes(1 << 20))
with open("py", "w+b") as f:
    f.write(data)
    for _ in range(500):
        at, piece = r.randrange(1 << 20), r.randbytes(r.randrange(1, 5000))
        f.seek(at); f.write(piece)
        data[at:at + len(piece)] = piece
    f.flush(); os.fsync(f.fileno())
    f.seek(0)
    assert f.read() == data
    f.truncate(1000)
assert open("py", "rb").read() == data[:1000]
'
unmount_fs
done_testing
