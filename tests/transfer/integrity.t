#!/bin/bash
# many processes on the same files, each byte verified. INTEGRITY_SECONDS is how long each case runs.
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
seconds=${INTEGRITY_SECONDS:-4}
[ "$LARGE" != 1 ] || seconds=${INTEGRITY_SECONDS:-60}
fscheck=$(dirname "$FSOP")/fscheck
# What maps files loads the emulated driver by itself.
library=$(dirname "$RESIDENTFS")/core/driver/libresidentfs-emulated.so
[ ! -e "$library" ] || export RESIDENTFS_EMULATED_LIBRARY=$library

check() {
    local name=$1 status
    shift
    "$fscheck" -t "$seconds" "$@" "$mnt" >"$work/fscheck" 2>&1
    status=$?
    diag "$(tail -n 1 "$work/fscheck")"
    is "$name" "$status $([ $status -eq 0 ] || cat "$work/fscheck")" "0 "
    rm -f "$mnt"/fscheck.*
}

for order in random eager; do
    must_mount -m 2GiB -e "order=$order"
    check "files of 3 MB, odd cells" -p 6 -c 3000 -b 1009
    check "files of 40 MB" -p 4 -n 2 -c 600 -b 70001
    check "small files: blocks that grow and shrink" -p 4 -n 8 -c 90 -b 701
    if [ "$FS_UNDER_TEST" = residentfs ]; then
        check "with CUDA programs" -g -p 6 -c 3000 -b 1009
        check "with CUDA programs, large" -g -p 4 -n 2 -c 600 -b 70001
        ok "all is given back" back_to 4194304
        is "no error in the log" "$(grep -ciE 'error|failed|lost' "$mnt/.resident/log")" 0
    fi
    unmount_fs
    [ "$FS_UNDER_TEST" = residentfs ] || break
    case $DEVICE in emulated*) ;; *) break ;; esac # the order is the emulated driver's
done
done_testing
