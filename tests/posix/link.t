#!/bin/bash
# link: counts, refusals, one file under several names
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount

echo data >a
works "a second name" link a b
sees "two links, one inode" "2"$'\n'"2" stat a nlink : stat b nlink
is "the same inode" "$(fsop stat a ino)" "$(fsop stat b ino)"
sees "a write through one is seen through the other" "DATA\x0a" open a O_WRONLY : pwrite 0 0 DATA : open b O_RDONLY : read 1 10
sees "chmod too" "0600" chmod a 0600 : stat b mode
before=$(fsop stat a ctime)
fsop tick : link a c
isnt "a link changes ctime" "$(fsop stat a ctime)" "$before"
rm c
sees "unlink of one leaves the other" "1"$'\n'"DATA\x0a" unlink a : stat b nlink : open b O_RDONLY : read 0 10
expect_errno "over a name that exists" EEXIST link b b
expect_errno "of a missing file" ENOENT link none x
mkdir dir
expect_errno "of a directory" EPERM link dir dir2
expect_errno "into a missing directory" ENOENT link b none/x
expect_errno "a name of 256 bytes" ENAMETOOLONG link b "$(printf 'x%.0s' {1..256})"
ln -s b sym
works "of a symlink links the symlink" link sym sym2
sees "… itself" "link 2" lstat sym2 type nlink
for i in {1..200}; do ln b "dir/l$i" || break; done
sees "200 more links" "201" stat b nlink
rm -r dir
sees "removed again" "1" stat b nlink

unmount_fs
done_testing
