#!/bin/bash
# fallocate, punch hole, SEEK_HOLE and SEEK_DATA
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount
start=$(resident_bytes)

sees "mode 0 grows the file with zeros" "10000"$'\n'"same" open a O_CREAT,O_RDWR 0644 : fallocate 0 0 0 10000 : fstat 0 size : check 0 0 10000 0
sees "KEEP_SIZE keeps the size" "10000" open a O_RDWR : fallocate 0 KEEP_SIZE 0 20000 : fstat 0 size
sees "mode 0 leaves bytes that are there" "same" open b O_CREAT,O_RDWR 0644 : fill 0 0 50000 7 : fallocate 0 0 0 100000 : check 0 0 50000 7
fsop open big O_CREAT,O_RDWR 0644 : fallocate 0 0 0 32M
between "fallocated memory is resident" "$(fsop stat big blocks)" $((32 << 11)) $((36 << 11))
rm big

for size in 9000 200000 16777216; do
    from=$((size / 3)) length=$((size / 3))
    sees "punch a hole in $size bytes: zeros there, the rest unharmed, the size kept" "same"$'\n'"same"$'\n'"same"$'\n'"$size" \
        open p O_CREAT,O_RDWR,O_TRUNC 0644 : fill 0 0 $size 0x33 : fallocate 0 PUNCH_HOLE $from $length \
        : check 0 0 $from 0x33 : check 0 $from $length 0 : check 0 $((from + length)) $((size - from - length)) 0x33 : fstat 0 size
done
fsop open p O_RDWR : fill 0 0 64M 1 : fsync 0
full=$(fsop stat p blocks)
fsop open p O_RDWR : fallocate 0 PUNCH_HOLE 0 48M
between "a large hole gives memory back" "$(fsop stat p blocks)" $((16 << 11)) $((full - (30 << 11)))
sees "a hole past the end changes nothing" "67108864" open p O_RDWR : fallocate 0 PUNCH_HOLE 64M 1M : fstat 0 size
sees "a hole punched twice, then written" "xyz" open p O_RDWR : fallocate 0 PUNCH_HOLE 0 48M : pwrite 0 1M xyz : pread 0 1M 3
sees "punch over everything, read all" "same"$'\n'"0" open p O_RDWR : fallocate 0 PUNCH_HOLE 0 64M : check 0 0 64M 0 : fstat 0 blocks
expect_errno "punch hole without keep size" EOPNOTSUPP open p O_RDWR : fallocate 0 PUNCH_ALONE 0 1
expect_errno "a read-only descriptor" EBADF open p O_RDONLY : fallocate 0 0 0 1
expect_errno "collapse" EOPNOTSUPP open p O_RDWR : fallocate 0 COLLAPSE_RANGE 0 4096
expect_errno "insert" EOPNOTSUPP open p O_RDWR : fallocate 0 INSERT_RANGE 0 4096
if [ "$(fsop open p O_RDWR : fallocate 0 ZERO_RANGE 0 1)" = EOPNOTSUPP ] && [ "$FS_UNDER_TEST" = tmpfs ]; then
    skip "tmpfs has no ZERO_RANGE" 2
else
    sees "zero range grows and zeroes" "100"$'\n'"same" open z O_CREAT,O_RDWR 0644 : fill 0 0 50 1 : fallocate 0 ZERO_RANGE 10 90 : fstat 0 size : check 0 10 90 0
    sees "… and leaves what is outside" "same" open z O_RDONLY : check 0 0 10 1
fi
before=$(fsop tick : utimens p 1 1 : stat p mtime)
fsop open p O_RDWR : fallocate 0 PUNCH_HOLE 0 4096
isnt "punching changes mtime" "$(fsop stat p mtime)" "$before"
rm -f a b p z

fsop open d O_CREAT,O_RDWR 0644 : ftruncate 0 512M : fill 0 256M 1M 1
at=$(fsop open d O_RDONLY : lseek 0 0 data)
between "SEEK_DATA finds the data behind a hole (within a chunk)" "$at" $((192 << 20)) $((256 << 20))
sees "SEEK_DATA within data is where it is" "$((256 << 20))" open d O_RDONLY : lseek 0 256M data
sees "SEEK_HOLE at a hole is where it is" "0" open d O_RDONLY : lseek 0 0 hole
between "SEEK_HOLE behind the data (within a chunk)" "$(fsop open d O_RDONLY : lseek 0 256M hole)" $((257 << 20)) $((321 << 20))
expect_errno "SEEK_DATA in the hole at the end" ENXIO open d O_RDONLY : lseek 0 400M data
expect_errno "SEEK_DATA past the end" ENXIO open d O_RDONLY : lseek 0 512M data
expect_errno "SEEK_HOLE past the end" ENXIO open d O_RDONLY : lseek 0 513M hole
sees "a full file has its hole at the end" "5"$'\n'"0" open full O_CREAT,O_RDWR 0644 : write 0 12345 : lseek 0 0 hole : lseek 0 0 data
expect_errno "an empty file has no data" ENXIO open none O_CREAT,O_RDWR 0644 : lseek 0 0 data
cp --sparse=always d copy
is "cp --sparse keeps bytes" "$(cmp d copy && echo same)" same
between "… and holes" "$(fsop stat copy blocks)" 1 $((80 << 11))
tar -cSf "$work/d.tar" d && mkdir out && tar -xSf "$work/d.tar" -C out
is "tar -S keeps bytes" "$(cmp d out/d && echo same)" same
between "… and holes" "$(fsop stat out/d blocks)" 1 $((80 << 11))
head -c 33554432 /dev/zero >zeros
ok "fallocate -d digs holes" fallocate -d zeros
between "… that hold no memory" "$(fsop stat zeros blocks)" 0 $((2 << 11))
rm -r d copy out zeros full none
ok "all is given back" back_to "$start"
expect_errno "fallocate past the space there is" ENOSPC open toobig O_CREAT,O_RDWR 0644 : fallocate 0 0 0 100G
rm toobig
ok "… takes nothing" back_to "$start"

unmount_fs
done_testing
