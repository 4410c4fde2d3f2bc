#!/bin/bash
# random calls against a model in memory
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
seed=${SEED:-$(date +%s)}
calls=1500
[ "$LARGE" = 1 ] && calls=20000
enter_mount
diag "seed $seed (repeat with SEED=$seed)"

model() {
    local name=$1
    shift
    rm -f own* common
    ok "$name" timeout 120 "$FSMODEL" -s "$seed" "$@" .
}
model "four processes on files of up to 100 kB" -n $calls -l 100000 -p 4
model "four processes on files of up to 3 MB, across the step from small to large" -n $calls -l 3000000 -p 4
model "one process on a file of up to 40 MB" -n $((calls / 10)) -l 40000000
model "one file, locked ranges, six processes" -n $calls -l 300000 -p 6 -c
model "one file of 8 MB, locked ranges, four processes" -n $((calls / 3)) -l 8000000 -p 4 -c
model "with fallocate, punch hole, zero range and copy_file_range, small" -n $calls -l 200000 -p 4 -f
model "… and large" -n $((calls / 2)) -l 9000000 -p 2 -f
rm -f own* common
ok "all is given back" back_to 4194304
if [ "$FS_UNDER_TEST" = residentfs ]; then
    is "no error in the log" "$(grep -ciE 'error|failed|lost' .resident/log)" 0
else
    skip "about residentfs"
fi

unmount_fs
done_testing
