#!/bin/bash
# timeout: 300
# The benchmark itself works: every row of the short form has its figures, a bad call is refused, an interrupted one
# leaves nothing behind. How large the figures are is not looked at.
# shellcheck disable=SC2016 # for eval, wait_for and fio
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
only_residentfs
need python3

bench=$tests_folder/bench/run.sh
build=$(dirname "$RESIDENTFS")

# What it leaves would be in there.
mkdir "$work/tmp"
run() {
    TMPDIR=$work/tmp "$bench" --device "$DEVICE" --build "$build" "$@" </dev/null
}

# check FILE.json: every row that --list promises is there, whole, and with figures above 0.
check() {
    python3 -B - "$1" "$work/list" <<'END'
import json, sys

data = json.load(open(sys.argv[1]))
promised = open(sys.argv[2]).read().splitlines()
wrong = []
if [row["name"] for row in data["rows"]] != promised:
    wrong.append(f"rows {[row['name'] for row in data['rows']]} instead of {promised}")
for key in ("date", "command", "device"):
    if not data[key]:
        wrong.append(f"no {key}")
for key in ("processor", "processors", "kernel", "memory_bytes"):
    if not data["machine"][key]:
        wrong.append(f"no machine.{key}")
for key in ("driver_version", "libfuse", "device_name"):
    if not data["versions"][key]:
        wrong.append(f"no versions.{key}")
for row in data["rows"]:
    names = set(row["results"])
    expected = {"memory": {"residentfs"}, "copy": {"residentfs", "tmpfs", "plain"}}
    for name in expected.get(row["load"], {"tmpfs", "plain"}) - names:
        wrong.append(f"{row['name']}: no {name}")
    if not any(name.startswith("residentfs") for name in names):
        wrong.append(f"{row['name']}: no residentfs")
    for name, result in row["results"].items():
        if not result.get("value", 0) > 0:
            wrong.append(f"{row['name']}: {name}: {result}")
        elif row["load"] != "memory":
            ordered = [result[key] for key in ("p50_us", "p99_us", "p999_us", "max_us")]
            if ordered != sorted(ordered) or not ordered[-1] > 0 or not result["cpu_seconds"] > 0:
                wrong.append(f"{row['name']}: {name}: {result}")
        if name.startswith("residentfs") and row["load"] != "memory":
            if abs(result["ratios"]["tmpfs"] * row["results"]["tmpfs"]["value"] / result["value"] - 1) > 1e-6:
                wrong.append(f"{row['name']}: {name}: ratio {result['ratios']}")
for name in ("null", "bus"):
    if sum(name in row["results"] for row in data["rows"]) < 10:
        wrong.append(f"{name} has been measured in few rows")
print("\n".join(wrong) or "whole")
END
}

for module in report rows bench; do
    ok "arithmetic of $module.py" env -C "$tests_folder/bench" python3 -B -m doctest $module.py
done

ok "lists its rows" eval 'run --short --list >"$work/list"'
between "which are many" "$(wc -l <"$work/list")" 30 200
is "no row twice" "$(sort "$work/list" | uniq -d)" ""

mkdir "$work/plain"
ok "short form" eval \
    'run --short --peer plain="$work/plain" --json "$work/short.json" --plot "$work/short.svg" >"$work/table" 2>&1'
grep -vE '^ ' "$work/table" | grep -E 'status|[Tt]raceback|did not' | head -n 5 | sed 's/^/# /'
is "every row has figures" "$(check "$work/short.json")" whole
is "the table has a line for each row" \
    "$(while read -r row; do grep -qF "$row " "$work/table" || echo "no $row"; done <"$work/list")" ""
is "the plot is well-formed and labelled" "$(python3 -B - "$work/short.svg" <<'END'
import sys
from xml.etree import ElementTree

root = ElementTree.parse(sys.argv[1]).getroot()
space = "{http://www.w3.org/2000/svg}"
texts = [element.text for element in root.iter(space + "text")]
wanted = ["residentfs", "tmpfs", "null", "bus", "plain", "GB/s", "k/s", "sequential write 1 MiB, 1 client"]
print([text for text in wanted if text not in texts] or "labelled", len(list(root.iter(space + "rect"))) > 50)
END
)" "labelled True"
is "the table can be printed again" \
    "$("$tests_folder/bench/report.py" "$work/short.json" | grep -cE '^(sequential|random) ')" \
    "$(grep -cE '^(sequential|random) ' "$work/list")"
is "nothing is left in the peer" "$(ls -A "$work/plain")" ""
is "nothing is left in TMPDIR" "$(ls -A "$work/tmp")" ""

status_of() {
    "$@" >"$work/output" 2>&1
    echo $?
}
is "an unknown row" "$(status_of run --short --rows 'no such row')" 2
is "a peer that is not there" "$(status_of run --short --peer "a=$work/nowhere")" 2
is "a peer with a name that is taken" "$(status_of run --short --peer "tmpfs=$work/plain")" 2
is "a folder without programs" "$(status_of run --short --build "$work/plain")" 2
is "an option that residentfs does not know" "$(status_of run --short --rows 1\ MiB --options nonsense=1)" 1
like "and its message" "$(cat "$work/output")" 'nonsense'
is "nothing is left of those" "$(ls -A "$work/tmp")" ""

# A peer that cannot be written to is told of, and fails nothing but itself.
mkdir -m 0755 "$work/full"
if mount -t tmpfs -o size=1M full "$work/full" 2>/dev/null; then
    is "a peer without room" "$(status_of run --short --rows '^sequential write 4 KiB, 1 client$' --peer "full=$work/full")" 0
    like "is told of" "$(cat "$work/output")" 'full: .*No space left'
    umount "$work/full"
else
    skip "cannot mount a tmpfs" 2
fi

# Interrupted after its first rows.
TMPDIR=$work/tmp "$bench" --device "$DEVICE" --build "$build" --seconds 0.02 --rounds 1 --json "$work/cut.json" \
    >"$work/output" 2>&1 </dev/null &
cut=$!
wait_for '[ "$(grep -c "GB/s" "$work/output")" -ge 2 ]' 60
kill -TERM $cut
wait $cut
is "an interrupted one says so by its status" $? 143
is "its rows until then are in the file" "$(python3 -B - "$work/cut.json" <<'END'
import json, sys
print(all(row["results"]["residentfs"]["value"] > 0 for row in json.load(open(sys.argv[1]))["rows"][:2]))
END
)" True
is "and nothing is left" "$(ls -A "$work/tmp")" ""

# A daemon that dies on the way.
run --seconds 0.3 --rounds 1 --rows 4\ KiB,\ 1 --json "$work/dead.json" >"$work/output" 2>&1 &
dying=$!
wait_for 'grep -q "k/s" "$work/output"' 60
kill -9 "$(daemons_of "$work/tmp/.*/residentfs")"
wait $dying
is "a daemon that dies makes it fail" $? 1
like "and is told of" "$(cat "$work/output")" 'residentfs( has ended|:.*(not connected|abort|Input/output error))'
is "the others go on" "$(python3 -B - "$work/dead.json" <<'END'
import json, sys
print(all(row["results"]["tmpfs"]["value"] > 0 for row in json.load(open(sys.argv[1]))["rows"]))
END
)" True
is "and nothing is left of a dead one" "$(ls -A "$work/tmp")" ""

# The same loads for fio.
if command -v fio >/dev/null; then
    enter_mount -m 512MiB
    export DIRECTORY=$mnt SIZE=8m CLIENTS=2 RUNTIME=20ms FILES=50
    for job in sequential random scattered-fsync names; do
        for names in 0 '$jobnum'; do
            case $job:$names in
            sequential:0) export NAMES=0 FILE=16m STEP=8m ;;
            sequential:* | random:*) export NAMES=$names FILE=8m STEP=0 ;;
            *:0) ;;
            *) continue ;;
            esac
            fio --output="$work/fio.json" --output-format=json "$tests_folder/bench/fio/$job.fio" >"$work/fio.log" 2>&1
            is "fio $job, NAMES=$names" "$? $(python3 -B - "$work/fio.json" <<'END'
import json, sys
jobs = json.load(open(sys.argv[1]))["jobs"]
print([(job["jobname"], job["error"]) for job in jobs if job["error"] or not job["read"]["total_ios"] + job["write"]["total_ios"]])
END
)" "0 []"
            rm -rf "${mnt:?}"/*
        done
    done
    unmount_fs
else
    skip "no fio on this machine" 7
fi

done_testing
