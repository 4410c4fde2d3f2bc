#!/bin/bash
# timeout: 600
# every call of the driver that a workload on the mount makes fails once, in each way
TEST_LIMIT=550
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_emulated
fsfault=$(dirname "$FSOP")/fsfault
# The first calls of each entry point and some later ones; LARGE: all of them.
positions=4
[ "$LARGE" = 0 ] || positions=0
export MOUNT_OPTIONS

total=0
# inject KIND LEAST NAME: at least that many failures came about, and nothing that must not be came of them.
inject() {
    local count
    mkdir -p "$work/$1"
    "$fsfault" "$RESIDENTFS" "$work/$1" "$positions" "$1" >"$work/$1.output" 2>&1
    is "$3" "$? $(grep '^bad: ' "$work/$1.output" | head -n 40)" "0 "
    count=$(awk '/^cu/ { sum += $2 } END { print sum + 0 }' "$work/$1.output")
    between "… $1: failures that came about" "$count" "$2" 1000000
    diag "$1: $count failures, in $(grep -c '^cu' "$work/$1.output") entry points"
    diag "$(grep '^cu' "$work/$1.output" | paste -sd,)"
    total=$((total + count))
}
inject refused 40 "a call that is refused: an error for who asked or each open file, all else right"
inject late 10 "a copy that fails later: each open file is told once, all else right"
inject unproven 10 "completion unproven: quarantined and counted, never reused; other files right"
inject lost 40 "the device is lost: EIO, names and unmount go on, and it is said"
inject ending 10 "a call that is refused while files are deleted and at the end: the end comes all the same"
diag "$total failures injected"
done_testing
