#!/bin/bash
# cache=on: pages are kept while they are right, and never longer
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_residentfs
# With attributes asked for anew each time whatever depends on them happens at once.
enter_mount -o cache=on,attr_timeout=0

need jq
readback() {
    jq .counters.readback_bytes .resident/telemetry.json
}

fsop open a O_CREAT,O_RDWR 0644 : fill 0 0 4M 1
cat a >"$work/1"
before=$(readback)
cat a >"$work/1"
is "what was read once is not read from the device again" "$(readback)" "$before"
fsop tick : open a O_RDWR : pwrite 0 100 xyz : fstat 0 mtime >/dev/null
cat a >"$work/2"
is "nor are the other pages after a write" "$(readback)" "$before"
is "… which shows" "$(cmp -l "$work/1" "$work/2" | wc -l)" 3

# shows_change NAME CALLS…: a descriptor that has read all of a file full of ones sees zeros from 1001 on after
# the calls, which have it as file 0, and so does a mapping that is made then.
shows_change() {
    local name=$1 got
    shift
    fsop open a O_CREAT,O_RDWR,O_TRUNC 0644 : fill 0 0 1M 1
    got=$(fsop open a O_RDWR : check 0 0 1M 1 : mmapread 0 500000 1 : "$@" : check 0 1001 1000000 0 : mmapread 0 500000 1 2>&1)
    is "$name" "$(head -n 2 <<<"$got") $(tail -n 2 <<<"$got")" $'same\n\\x01 same\n\\x00'
}
shows_change "truncate by name" truncate a 1000 : truncate a 1M
shows_change "ftruncate of another descriptor" open a O_RDWR : ftruncate 1 1000 : ftruncate 1 1M
shows_change "a hole" open a O_RDWR : fallocate 1 PUNCH_HOLE 1000 1M
shows_change "a range of zeros" open a O_RDWR : fallocate 1 ZERO_RANGE 1000 1M
shows_change "a copy on the device" open zeros O_CREAT,O_RDWR 0644 : ftruncate 1 2M : open a O_RDWR : copy_file_range 1 0 2 1000 1M
shows_change "another's write" open a O_RDWR : fill 1 1000 1M 0
shows_change "another's write with O_DIRECT" open a O_RDWR,O_DIRECT : fill 1 1000 1M 0
shows_change "O_TRUNC and a write at the end" open a O_RDWR,O_TRUNC : pwrite 1 1M x
shows_change "another process" fork fill 0 1000 1M 0

# Sizes and times of now, in the file that changed and in others' stat.
sees "size after a write, a truncate and fallocate" $'5\n5\n3\n3\n4096\n4096' open s O_CREAT,O_RDWR 0644 : open s O_RDONLY \
    : write 0 12345 : fstat 1 size : stat s size : ftruncate 0 3 : fstat 1 size : stat s size : fallocate 0 0 0 4096 : fstat 1 size : stat s size
for call in "pwrite 0 0 x" "ftruncate 0 2" "fallocate 0 0 0 9999" "fallocate 0 PUNCH_HOLE 0 1"; do
    # shellcheck disable=SC2086 # words
    isnt "$call changes mtime" "$(fsop open s O_RDWR : utimens s 5 5 : $call : stat s mtime)" 5.000000000
done
isnt "a read changes atime" "$(fsop open s O_RDWR : utimens s 5 5 : pread 0 1 1 : stat s atime | tail -n 1)" 5.000000000

unmount_fs
done_testing
