#!/bin/bash
# read and write: offsets, holes, end of file, short reads
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount

sees "a write past the end leaves a hole that reads as zeros" '\x00\x00\x00abc' \
    open a O_CREAT,O_RDWR 0644 : pwrite 0 3 abc : pread 0 0 100
sees "a read at the end gives nothing" "" open a O_RDONLY : pread 0 6 10
sees "a read past the end gives nothing" "0" open a O_RDONLY : preadcount 0 1000000 10
sees "a read across the end is short" "bc" open a O_RDONLY : pread 0 4 4096
sees "an overwrite keeps the size" '\x00Zbabc'$'\n6' open a O_RDWR : pwrite 0 1 Zb : pread 0 0 100 : fstat 0 size
sees "reads move the offset by what they gave" '\x00Z'$'\n'2$'\n'babc$'\n'6 \
    open a O_RDONLY : read 0 2 : lseek 0 0 cur : read 0 100 : lseek 0 0 cur
sees "a write of nothing past the end does not grow the file" "0 0" \
    open z O_CREAT,O_RDWR 0644 : pwrite 0 100 "" : fstat 0 size blocks
sees "a read of nothing" "0" open a O_RDONLY : preadcount 0 0 0
sees "pwrite does not move the offset" "0" open a O_RDWR : pwrite 0 3 q : lseek 0 0 cur
sees "an empty file reads as nothing" "0" open z O_RDONLY : preadcount 0 0 4096

for length in 1 511 4095 4096 4097 65535 65537 1048575 1048577 2097152 3000001; do
    works "write $length bytes" open len.$length O_CREAT,O_RDWR 0644 : fill 0 0 $length 0xa5
    sees "… read back, and no more" "same"$'\n'"1"$'\n'"0" \
        open len.$length O_RDONLY : check 0 0 $length 0xa5 : preadcount 0 $((length - 1)) 100 : preadcount 0 $length 100
done

# Writes that straddle boundaries of pages, small-buffer classes and chunks.
works "a file of 5 MiB of one byte" open b O_CREAT,O_RDWR 0644 : fill 0 0 5M 1
for at in 4095 65535 1048575 2097151 4194303; do
    sees "two bytes across $at, and their neighbours" "same"$'\n'"same"$'\n'"same" \
        open b O_RDWR : fill 0 0 5M 1 : fill 0 $at 2 2 : check 0 $((at - 100)) 100 1 : check 0 $at 2 2 : check 0 $((at + 2)) 100 1
done

sees "a hole of 64 MiB reads as zeros" "same" \
    open hole O_CREAT,O_RDWR 0644 : pwrite 0 64M x : check 0 0 64M 0
sees "a read sees a write made through another descriptor at once" "new" \
    open c O_CREAT,O_WRONLY 0644 : open c O_RDONLY : write 0 new : read 1 10
sees "… and one of another process" "child" open d O_CREAT,O_RDWR 0644 : fork write 0 child : pread 0 0 10
sees "pwritev2 with RWF_APPEND appends" "childtail" open d O_RDWR : pwritev2 0 0 RWF_APPEND tail : pread 0 0 20
sees "pwritev2 with RWF_DSYNC writes in place" "CHildtail" open d O_RDWR : pwritev2 0 0 RWF_DSYNC CH : pread 0 0 20
sees "sendfile from the mount into the mount" "9"$'\n'"CHildtail" \
    open d O_RDONLY : open e O_CREAT,O_RDWR 0644 : sendfile 0 0 1 100 : pread 1 0 20
yes 0123456789 | head -c 3000000 >pattern
# shellcheck disable=SC2002 # cat is what is tested
is "cat into, cat out" "$(cat pattern | sha256sum)" "$(yes 0123456789 | head -c 3000000 | sha256sum)"
is "dd with skip and seek" "$(dd if=pattern bs=7 skip=100001 count=3 2>/dev/null)" "$(yes 0123456789 | head -c 3000000 | tail -c +700008 | head -c 21)"

unmount_fs
done_testing
