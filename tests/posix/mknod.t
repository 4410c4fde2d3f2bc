#!/bin/bash
# fifos, sockets and devices are nodes that work
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount

sees "a fifo" "fifo 0640" umask 027 : mknod fifo fifo 0666 : lstat fifo type mode
(echo through >fifo) &
writer=$!
is "carries bytes" "$(timeout 10 cat fifo)" through
wait $writer
cd "$mnt" || exit 1
sees "a socket is bound, connected and carries a word" "word" socket sock
sees "it is a socket" "socket" lstat sock type
expect_errno "bound twice" EADDRINUSE socket sock
works "mknod of a socket" mknod sock2 socket 0600
sees "mknod of a character device keeps its number" "char 1:3" mknod null char 0666 1 3 : lstat null type rdev
sees "mknod of a block device" "block 259:70000" mknod blk block 0600 259 70000 : lstat blk type rdev
sees "mknod of a plain file" "file 0 0600" mknod plain file 0600 : lstat plain type size mode
expect_errno "over a name that exists" EEXIST mknod plain fifo 0600
expect_errno "opening a socket" ENXIO open sock O_RDONLY
sees "nodes have no size or blocks" "0 0" lstat fifo size blocks
works "they are renamed, linked and removed" rename fifo f2 : link f2 f3 : unlink f2 : unlink f3 : unlink sock : unlink null
chmod 777 .
expect_errno "a user may not make devices" EPERM -u $nobody -g $nobody mknod dev char 0666 1 3
works "but fifos" -u $nobody -g $nobody mknod userfifo fifo 0666

unmount_fs
done_testing
