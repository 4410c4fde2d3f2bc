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
mkfifo twoway && chmod 666 twoway
(
    as_nobody cat "$mnt/twoway" >"$work/read" &
    as_nobody head -c 3M /dev/zero >"$mnt/twoway"
    wait
)
is "3 MB go through a fifo between two processes of another user" "$(stat -c %s "$work/read")" 3145728
"$FSOP" listen between >"$work/heard" &
listener=$!
ok "one process binds a socket" wait_for '[ -S between ]' 10
# shellcheck disable=SC2016 # evaluated by wait_for
ok "another sends a word to it" wait_for '"$FSOP" connect between word 2>/dev/null' 10
wait $listener
is "which arrives" "$(cat "$work/heard")" word
rm between
expect_errno "an unlinked socket is not found" ENOENT connect between word
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

# As root mounts: FUSE says nodev and nosuid unless it is asked not to.
must_mount -o dev,suid
cd "$mnt" || exit 1
fsop mknod zero char 0666 1 5 : mknod null char 0666 1 3
sees "a device node opens its device, with -o dev" '\x00\x00\x00' open zero O_RDONLY : read 0 3
works "also for writing" open null O_WRONLY : write 0 gone
expect_errno "a device that there is not" ENXIO mknod nosuch char 0666 511 99 : open nosuch O_RDONLY
cp "$(command -v id)" id && chown $nobody:$nobody id && chmod 6755 id
is "a set-user-ID program runs as its owner, with -o suid" "$(./id -u; ./id -g)" "$nobody
$nobody"
cd "$work" || exit 1
unmount_fs
must_mount -o nodev,nosuid
cd "$mnt" || exit 1
fsop mknod zero char 0666 1 5
expect_errno "a device node is no device with nodev" EACCES open zero O_RDONLY
cp "$(command -v id)" id && chown $nobody:$nobody id && chmod 6755 id
is "nor a set-user-ID program one with nosuid" "$(./id -u)" "$(id -u)"
unmount_fs
done_testing
