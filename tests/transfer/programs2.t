#!/bin/bash
# timeout: 400
# programs that map, copy and dig holes: sqlite in WAL mode, git, grep, numpy.memmap, tar -S, rsync
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount

is_mappable() {
    fsop open probe O_CREAT,O_RDWR 0644 : ftruncate 0 4096
    [ "$(fsop open probe O_RDWR : mmapread 0 0 1)" != ENODEV ]
}
mappable=1
is_mappable || mappable=0
refused="shared mappings are refused here (libfuse before 3.17 with cache=off)"

if ! command -v sqlite3 >/dev/null; then
    skip "no sqlite3" 5
elif [ $mappable -eq 0 ]; then
    not_ok "sqlite3 in WAL mode says so where shared mappings are refused" \
        sqlite3 refused 'pragma journal_mode=wal; create table t(a)'
    rm -f refused*
    skip "sqlite3 in WAL mode: $refused" 4
else
    is "sqlite3: WAL mode" "$(sqlite3 db 'pragma journal_mode=wal; create table t(p, i, b); pragma mmap_size=100000000' | head -n 1)" wal
    jobs=()
    for p in 1 2 3 4; do
        for i in {1..25}; do
            echo "begin immediate; insert into t values($p, $i, randomblob(3000)); commit;"
        done | sqlite3 -cmd '.timeout 60000' db >>"$work/sql" 2>&1 &
        jobs+=($!)
    done
    for p in 1 2; do
        for _ in {1..15}; do
            echo 'select count(*) - count(distinct p || "." || i) from t; pragma quick_check;'
        done | sqlite3 -cmd '.timeout 60000' -cmd 'pragma mmap_size=100000000' db >>"$work/reads" 2>&1 &
        jobs+=($!)
    done
    wait "${jobs[@]}"
    is "four writers say nothing" "$(cat "$work/sql")" ""
    is "two readers saw a whole database all along" "$(sort -u "$work/reads" | tr '\n' ' ')" "0 100000000 ok "
    is "all rows are there" "$(sqlite3 db 'select count(*), sum(length(b)) from t; pragma integrity_check' | tr '\n' ' ')" "100|300000 ok "
    is "a checkpoint empties the log" "$(sqlite3 db 'pragma wal_checkpoint(truncate)')" "0|0|0"
    rm -f db*
fi

if command -v git >/dev/null; then
    export HOME=$work GIT_CONFIG_NOSYSTEM=1
    git config --global user.name tester
    git config --global user.email tester@example.org
    git config --global init.defaultBranch main
    mkdir -p tree/{a,b,c}
    for i in {1..60}; do seq "$i" $((i + 300)) >"tree/$(printf 'a\nb\nc\n' | sed -n $((i % 3 + 1))p)/$i"; done
    random_file tree/large 3000000 8
    ok "git: commit" bash -c 'cd tree && git init -q && git add . && git commit -qm one && seq 9999 >>a/3 && git commit -qam two'
    ok "clone" git clone -q --no-local tree clone
    ok "gc --aggressive --prune=now" git -C clone gc -q --aggressive --prune=now
    ok "fsck of what gc packed" git -C clone fsck --full --strict
    is "reset after rm" "$(rm -r clone/a && git -C clone reset -q --hard && diff -r --exclude .git tree clone)" ""
    ok "worktree, switch back and forth" bash -c 'cd clone && git worktree add -q ../wt HEAD~ && cd ../wt && git switch -q --detach main && git diff --exit-code main'
    for program in grep rg; do
        if command -v $program >/dev/null; then
            list=(-lx)
            [ $program = rg ] || list=(-rlx)
            is "$program over a tree" "$($program "${list[@]}" 301 tree/a tree/b tree/c 2>/dev/null | wc -l)" "$(command grep -rlx 301 tree/a tree/b tree/c | wc -l)"
            is "$program in one file" "$($program -c '^9998$' tree/a/3)" 1
        else
            skip "no $program" 2
        fi
    done
    if command -v rg >/dev/null; then
        is "rg --mmap" "$(rg --mmap -c '^9998$' tree/a/3)" 1
    else
        skip "no rg"
    fi
else
    skip "no git" 11
fi
rm -rf tree clone wt

numpy=
for python in python3 /usr/bin/python3; do
    [ -n "$numpy" ] || ! $python -c 'import numpy' 2>/dev/null || numpy=$python
done
if [ -z "$numpy" ]; then
    skip "no numpy" 2
else
    ok "numpy.memmap to read, and copy-on-write" "$numpy" -c '
import numpy
a = numpy.arange(1 << 18, dtype="f4").reshape(512, 512)
a.tofile("raw")
m = numpy.memmap("raw", dtype="f4", mode="r" if '$mappable' else "c", shape=(512, 512))
assert (m == a).all() and m[511, 511] == (1 << 18) - 1
c = numpy.memmap("raw", dtype="f4", mode="c", shape=(512, 512))
c[0] = 7
assert (numpy.fromfile("raw", dtype="f4")[:512] == a[0]).all()
numpy.save("x.npy", a)
assert (numpy.load("x.npy", mmap_mode="c") == a).all()
'
    if [ $mappable -eq 1 ]; then
        ok "numpy.memmap to write" "$numpy" -c '
import numpy
m = numpy.memmap("map", dtype="i8", mode="w+", shape=(100000,))
m[:] = numpy.arange(100000)
m.flush()
m2 = numpy.memmap("map", dtype="i8", mode="r+")
m2[::2] *= -1
del m2
b = numpy.fromfile("map", dtype="i8")
assert (b[1::2] == numpy.arange(100000)[1::2]).all() and (b[::2] == -numpy.arange(100000)[::2]).all()
'
    else
        skip "numpy.memmap to write: $refused"
    fi
fi
ok "a safetensors file: header and tensors written, mapped, read" python3 -c '
import json, mmap, os, struct, random
data = random.Random(3).randbytes(3000000)
header = json.dumps({"a": {"dtype": "F32", "shape": [500000], "data_offsets": [0, 2000000]},
                     "b": {"dtype": "U8", "shape": [1000000], "data_offsets": [2000000, 3000000]}}).encode()
header += b" " * (-len(header) % 8)
with open("m.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(header)) + header + data)
with open("m.safetensors", "rb") as f:
    # As safetensors maps: to read only; private where a shared one is refused.
    flags = mmap.MAP_SHARED if '$mappable' else mmap.MAP_PRIVATE
    m = mmap.mmap(f.fileno(), 0, flags=flags, prot=mmap.PROT_READ)
n = struct.unpack_from("<Q", m)[0]
for name, t in json.loads(m[8:8 + n]).items():
    start, end = t["data_offsets"]
    assert m[8 + n + start:8 + n + end] == data[start:end], name
floats = memoryview(m)[8 + n:8 + n + 2000000].cast("f")
assert struct.pack("<f", floats[499999]) == data[1999996:2000000]
'

# Holes.
fsop open sparse O_CREAT,O_RDWR 0644 : ftruncate 0 100M : fill 0 40M 1M 5
tar -cSf sparse.tar sparse
between "tar -S leaves holes out" "$(fsop stat sparse.tar size)" 1048576 70000000
mkdir out
tar -xSf sparse.tar -C out
is "… and puts them back" "$(cmp sparse out/sparse && echo same)" same
between "… without memory" "$(fsop stat out/sparse blocks)" 1 $((70 << 11))
head -c 40M /dev/zero >zeros
ok "cp --sparse=always" cp --sparse=always zeros holes
between "… digs holes" "$(fsop stat holes blocks)" 0 $((2 << 11))
is "… and the bytes are the same" "$(cmp zeros holes && echo same)" same
ok "fallocate -d" fallocate -d zeros
between "… digs holes" "$(fsop stat zeros blocks)" 0 $((4 << 11))
is "… and the bytes are the same" "$(cmp zeros holes && echo same)" same
ok "cp --reflink=auto of a sparse file" cp --reflink=auto sparse copy
is "… is the same" "$(cmp sparse copy && echo same)" same
between "… and sparse" "$(fsop stat copy blocks)" 1 $((70 << 11))
not_ok "cp --reflink=always: nothing is shared, so it is refused" cp --reflink=always sparse copy2
rm -rf out ./*.tar zeros holes sparse copy copy2

if command -v rsync >/dev/null; then
    random_file "$work/r" 5000000 77
    cp "$work/r" target
    inode=$(fsop stat target ino)
    printf 'changed' | dd of="$work/r" bs=1 seek=3000000 conv=notrunc status=none
    head -c 100000 "$work/r" >>"$work/r2" && cat "$work/r2" >>"$work/r"
    ok "rsync --inplace" rsync --inplace --no-whole-file --checksum "$work/r" target
    is "… is the same" "$(sum target)" "$(sum "$work/r")"
    is "… and the same file" "$(fsop stat target ino)" "$inode"
    ok "rsync --inplace --sparse" rsync --inplace --sparse "$work/r" target2
    is "… is the same" "$(sum target2)" "$(sum "$work/r")"
    ok "rsync --append-verify" bash -c "head -c 1000000 '$work/r' >part && rsync --append-verify '$work/r' part && cmp part '$work/r'"
    rm -f target target2 part
else
    skip "no rsync" 6
fi
unmount_fs
done_testing
