#!/bin/bash
# truncate: down, up, old bytes never return, memory comes back
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount
start=$(resident_bytes)

sees "truncate up fills with zeros" 'ab\x00\x00\x00' open a O_CREAT,O_RDWR 0644 : write 0 ab : ftruncate 0 5 : pread 0 0 10
sees "truncate down cuts" "a" open a O_RDWR : ftruncate 0 1 : pread 0 0 10
sees "truncate to the same size" "1" truncate a 1 : stat a size
expect_errno "truncate of a directory" EISDIR truncate . 0
expect_errno "truncate of nothing" ENOENT truncate none 0
expect_errno "truncate below a file" ENOTDIR truncate a/b 0

# Every size class: old bytes must never be seen after a shrink and an extend.
for size in 100 5000 70000 1000000 3000000 70000000; do
    half=$((size / 2 + 1))
    sees "shrink $size to $half and extend: the tail is zeros, the rest is kept" "same"$'\n'"same" \
        open s.$size O_CREAT,O_RDWR 0644 : fill 0 0 $size 0x5a : ftruncate 0 $half : ftruncate 0 $size \
        : check 0 0 $half 0x5a : check 0 $half $((size - half)) 0
    sees "… also by a write past the new end" "same" \
        open s.$size O_RDWR : fill 0 0 $size 0x5a : ftruncate 0 $half : pwrite 0 $((size - 1)) x : check 0 $half $((size - half - 1)) 0
    sees "… and to nothing and back" "same" \
        open s.$size O_RDWR : fill 0 0 $size 0x5a : ftruncate 0 0 : ftruncate 0 $size : check 0 0 $size 0
    rm s.$size
done
sees "new files never show bytes of deleted ones" "same" \
    open old O_CREAT,O_RDWR 0644 : fill 0 0 20M 0x77 : fsync 0 : close 0 : unlink old \
    : open new O_CREAT,O_RDWR 0644 : pwrite 1 20M x : check 1 0 20M 0
rm new

rm a
works "64 MiB" open large O_CREAT,O_RDWR 0644 : fill 0 0 64M 1 : fsync 0
full=0
# Slack goes back at close, of which the kernel tells a moment later.
# shellcheck disable=SC2016 # evaluated by wait_for
wait_for 'full=$(fsop stat large blocks); [ "$full" -ge $((64 << 11)) ] && [ "$full" -le $((68 << 11)) ]' 5
between "64 MiB take 64 MiB and at most an eighth more" "$full" $((64 << 11)) $((72 << 11))
truncate -s 8M large
between "after a shrink to 8 MiB st_blocks says so" "$(fsop stat large blocks)" $((8 << 11)) $((16 << 11))
ok "and its memory is free again" back_to $((start + (16 << 20)))
sees "what is kept is unharmed" "same" open large O_RDONLY : check 0 0 8M 1
truncate -s 0 large
sees "an empty file takes nothing" "0" stat large blocks
ok "resident bytes are what they were" back_to "$start"
truncate -s 512M large
between "truncate up takes no memory" "$(fsop stat large blocks)" 0 $((2 << 11))
sees "use after truncate up" '\x00x\x00' open large O_RDWR : pwrite 0 300M x : pread 0 314572799 3
rm large
ok "all is given back" back_to "$start"

unmount_fs
done_testing
