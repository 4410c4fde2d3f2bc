#!/bin/bash
# copy_file_range: no byte through the host, holes stay holes, pending uploads on both sides
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_residentfs
enter_mount

counter() {
    jq ".counters.$1" .resident/telemetry.json
}

# no_traffic NAME COMMAND…: it succeeds and moves no byte between host and device.
no_traffic() {
    local name=$1 before
    shift
    before="$(counter upload_bytes) $(counter readback_bytes)"
    "$@" >"$work/output" 2>&1 || { fail "$name" "$* ended with $?: $(cat "$work/output")"; return; }
    is "$name" "$(counter upload_bytes) $(counter readback_bytes)" "$before"
}

need jq
random_file "$work/random" 9000001 31
cp "$work/random" a
fsop open a O_RDWR : fsync 0
copied=$(counter device_copy_bytes)
no_traffic "a copy of 9 MB moves no byte through the host" fsop open a O_RDONLY : open b O_CREAT,O_RDWR 0644 : copy_file_range 0 0 1 0 9000001
between "… but on the device" $(($(counter device_copy_bytes) - copied)) 9000001 40000000
is "… and is right" "$(sum b)" "$(sum "$work/random")"
no_traffic "cp --reflink=auto" cp --reflink=auto a c
is "… is right" "$(sum c)" "$(sum "$work/random")"
no_traffic "Python's os.copy_file_range" python3 -c '
import os
source, target = os.open("a", os.O_RDONLY), os.open("d", os.O_RDWR | os.O_CREAT)
left = os.fstat(source).st_size
while left:
    done = os.copy_file_range(source, target, left)
    assert done > 0
    left -= done
'
is "… is right" "$(sum d)" "$(sum "$work/random")"
no_traffic "7 bytes at odd offsets" fsop open a O_RDONLY : open b O_RDWR : copy_file_range 0 13 1 4095 7
no_traffic "within a file" fsop open a O_RDWR : copy_file_range 0 1 0 5000003 3000000
cmp <(tail -c +2 "$work/random" | head -c 3000000) <(tail -c +5000004 a | head -c 3000000) >"$work/cmp" 2>&1
is "… is right" "$?$(cat "$work/cmp")" 0
rm b c d

fsop open sparse O_CREAT,O_RDWR 0644 : ftruncate 0 200M : fill 0 64M 1M 7 : fsync 0
# cp reads and writes the data of a file with holes by itself.
no_traffic "a sparse file" fsop open sparse O_RDONLY : open copy O_CREAT,O_RDWR 0644 : copy_file_range 0 0 1 0 200M
is "… has its length" "$(fsop stat copy size)" 209715200
between "… and its holes take no memory" "$(fsop stat copy blocks)" 1 $((32 << 11))
sees "… and its bytes" "same"$'\n'"same"$'\n'"same" open copy O_RDONLY : check 0 0 64M 0 : check 0 64M 1M 7 : check 0 65M 135M 0
fsop open over O_CREAT,O_RDWR 0644 : fill 0 0 40M 9 : fsync 0
full=$(fsop stat over blocks)
no_traffic "a hole over bytes" fsop open sparse O_RDONLY : open over O_RDWR : copy_file_range 0 0 1 0 40M
sees "… leaves zeros" "same" open over O_RDONLY : check 0 0 40M 0
between "… and gives memory back" "$(fsop stat over blocks)" 0 $((full - (30 << 11)))
rm over copy sparse

# Writes that are on their way on either side, small ones that are gathered and large ones that are not.
for size in 10 4000 60000 1M 5M; do
    sees "$size: a write before the copy is in it, one after it is not, in the source and the target" \
        "$(numfmt --from=iec "$size")"$'\n'"same"$'\n'"same"$'\n'"same" \
        open p O_CREAT,O_RDWR,O_TRUNC 0644 : open q O_CREAT,O_RDWR,O_TRUNC 0644 \
        : fill 0 0 "$size" 1 : fill 0 0 "$size" 2 : fill 1 0 "$size" 3 : fill 1 5 "$size" 4 \
        : copy_file_range 0 0 1 0 "$size" : fill 0 0 "$size" 5 : fill 1 "$size" 5 6 \
        : check 1 0 "$size" 2 : check 1 "$size" 5 6 : check 0 0 "$size" 5
done
sees "chained: each copy sees the one before" "1048576"$'\n'"1048576"$'\n'"1048576"$'\n'"same" \
    open p O_RDWR,O_TRUNC : open q O_RDWR,O_TRUNC : fill 0 0 1M 8 : copy_file_range 0 0 1 0 1M \
    : copy_file_range 1 0 1 1M 1M : copy_file_range 1 512K 0 3M 1M : check 0 3M 1M 8
expect_errno "an overlap within one file" EINVAL open p O_RDWR : copy_file_range 0 0 0 1 100
expect_errno "the same place" EINVAL open p O_RDWR : copy_file_range 0 0 0 0 100
unmount_fs
done_testing
