#!/bin/bash
# offsets near 2^63: EFBIG and EINVAL, never an overflow
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount
max=9223372036854775807

sees "a file can be very long and sparse" "1099511627777" open big O_CREAT,O_RDWR 0644 : pwrite 0 1T x : fstat 0 size
sees "its last byte is there, those before are zero" '\x00x' open big O_RDONLY : pread 0 1099511627775 10
between "and takes little memory (st_blocks)" "$(fsop stat big blocks)" 1 $((64 << 11))
sees "8 EiB - 1 long" "$max" open huge O_CREAT,O_RDWR 0644 : ftruncate 0 $max : fstat 0 size
sees "a read at its end" "0"$'\n''\x00' open huge O_RDONLY : preadcount 0 $max 0 : pread 0 $((max - 1)) 1
sees "a byte at its end" "z" open huge O_RDWR : pwrite 0 $((max - 1)) z : pread 0 $((max - 1)) 1
expect_errno "a byte past the greatest offset" EINVAL open huge O_RDWR : pwrite 0 $max z
expect_errno "a write whose end would pass it" EINVAL open huge O_RDWR : writeonce 0 $((max - 1)) 100 1
expect_errno "a read whose end would pass it" EINVAL open huge O_RDWR : preadcount 0 $((max - 1)) 100
expect_errno "a negative offset to pwrite" EINVAL open huge O_RDWR : pwrite 0 -1 z
expect_errno "a negative offset to pread" EINVAL open huge O_RDWR : preadcount 0 -1 1
expect_errno "a negative length to ftruncate" EINVAL open huge O_RDWR : ftruncate 0 -1
expect_errno "a negative length to truncate" EINVAL truncate huge -1
expect_errno "seeking below zero" EINVAL open huge O_RDWR : lseek 0 -1 set
expect_errno "an append at the greatest length" EFBIG open huge O_RDWR,O_APPEND : write 0 z
expect_errno "fallocate past the greatest offset" EFBIG open f O_CREAT,O_RDWR 0644 : fallocate 0 0 $max $max
expect_errno "fallocate of nothing" EINVAL open f O_CREAT,O_RDWR 0644 : fallocate 0 0 0 0
expect_errno "fallocate at a negative offset" EINVAL open f O_CREAT,O_RDWR 0644 : fallocate 0 0 -1 1
sees "none of these changed the file" "$max" stat huge size
sees "shrinking it works" "3 0" truncate huge 3 : stat huge size blocks
rm big huge f
ok "its memory is given back" back_to 4194304

unmount_fs
done_testing
