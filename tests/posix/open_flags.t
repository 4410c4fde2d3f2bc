#!/bin/bash
# open: O_EXCL, O_TRUNC, O_APPEND, O_DIRECTORY, O_NOFOLLOW, O_TMPFILE
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount

echo hello >a
mkdir dir
ln -s a link
ln -s nowhere dangling
expect_errno "O_EXCL refuses a file that exists" EEXIST open a O_CREAT,O_EXCL,O_WRONLY 0644
expect_errno "O_EXCL refuses a symlink, even to nothing" EEXIST open dangling O_CREAT,O_EXCL,O_WRONLY 0644
works "O_EXCL creates" open fresh O_CREAT,O_EXCL,O_WRONLY 0644
sees "O_CREAT on an existing file leaves its bytes and mode" 'hello\x0a'$'\n'0644 \
    open a O_CREAT,O_RDWR 0600 : read 0 100 : fstat 0 mode
works "O_CREAT through a dangling symlink creates the target" open dangling O_CREAT,O_WRONLY 0644
sees "… and there it is" "file" lstat nowhere type

sees "O_TRUNC empties" "0 0" open a O_WRONLY,O_TRUNC : fstat 0 size blocks
echo again >a
works "O_TRUNC of a file that another has open" \
    open a O_RDWR : open a O_WRONLY,O_TRUNC : pwrite 1 2 xy : close 1
sees "… leaves only the new bytes" '\x00\x00xy' open a O_RDONLY : read 0 100

printf '12345' >b
sees "O_APPEND writes at the end whatever the offset was" "0"$'\n'"12345ab" \
    open b O_RDWR,O_APPEND : lseek 0 0 set : write 0 ab : pread 0 0 100
sees "after an append the offset is the new end" "9" open b O_RDWR,O_APPEND : write 0 cd : lseek 0 0 cur

expect_errno "O_DIRECTORY refuses a file" ENOTDIR open a O_RDONLY,O_DIRECTORY
works "O_DIRECTORY opens a directory" open dir O_RDONLY,O_DIRECTORY
expect_errno "O_NOFOLLOW refuses a symlink" ELOOP open link O_RDONLY,O_NOFOLLOW
works "O_NOFOLLOW opens a file" open a O_RDONLY,O_NOFOLLOW
expect_errno "a directory cannot be opened for writing" EISDIR open dir O_WRONLY
expect_errno "O_CREAT on a directory" EISDIR open dir O_CREAT,O_RDONLY 0644
expect_errno "a missing file" ENOENT open missing O_RDONLY
expect_errno "a symlink to nothing" ENOENT open missing/ O_RDONLY
expect_errno "reading a write-only descriptor" EBADF open a O_WRONLY : read 0 1
expect_errno "writing a read-only descriptor" EBADF open a O_RDONLY : write 0 x
expect_errno "truncating a read-only descriptor" EINVAL open a O_RDONLY : ftruncate 0 0
expect_errno "reading a directory" EISDIR open dir O_RDONLY : read 0 1
sees "dup shares the offset" "3"$'\n'"3" open b O_RDONLY : dup 0 : lseek 0 3 set : lseek 1 0 cur
sees "two opens have offsets of their own" "3"$'\n'"0" open b O_RDONLY : open b O_RDONLY : lseek 0 3 set : lseek 1 0 cur
works "O_SYNC and O_DSYNC writes" open sync O_CREAT,O_RDWR,O_SYNC 0644 : write 0 a : open sync O_RDWR,O_DSYNC : pwrite 1 1 b
sees "… are there" "ab" open sync O_RDONLY : read 0 9

if [ "$(fsop open . O_RDWR,O_TMPFILE 0600)" = EOPNOTSUPP ]; then
    skip "no O_TMPFILE here (libfuse before 3.17)" 3
else
    sees "O_TMPFILE makes a file without a name" "0 3" open . O_RDWR,O_TMPFILE 0600 : write 0 abc : fstat 0 nlink size
    works "linkat gives it one" open . O_RDWR,O_TMPFILE 0600 : write 0 abc : linkfile 0 named
    sees "… with its bytes" "abc" open named O_RDONLY : read 0 9
fi

unmount_fs
done_testing
