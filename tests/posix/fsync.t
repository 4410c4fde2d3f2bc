#!/bin/bash
# fsync, fdatasync, syncfs: on anything, at any time
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount

works "fsync of a file never written" open a O_CREAT,O_RDWR 0644 : fsync 0 : fdatasync 0
works "fsync of a read-only descriptor" open a O_RDONLY : fsync 0
works "fsync after a write, twice" open a O_RDWR : write 0 x : fsync 0 : fsync 0
works "fsync of a directory" open . O_RDONLY,O_DIRECTORY : fsync 0 : fdatasync 0
works "fsync of an unlinked file" open u O_CREAT,O_RDWR 0644 : write 0 x : unlink u : fsync 0
works "fsync of a truncated-up file" open t O_CREAT,O_RDWR 0644 : ftruncate 0 100M : fsync 0
works "fsync after a shrink with writes pending" open s O_CREAT,O_RDWR 0644 : fill 0 0 5M 1 : ftruncate 0 10 : fsync 0
works "syncfs" open a O_RDWR : pwrite 0 5 y : syncfs 0
ok "sync of the mount from a shell" sync -f a
ok "dd conv=fsync" dd if=/dev/zero of=z bs=4096 count=100 conv=fsync status=none
ok "dd oflag=dsync" dd if=/dev/zero of=z bs=4096 count=20 oflag=dsync status=none
sees "bytes after all that" "same" open s O_RDONLY : check 0 0 10 1

unmount_fs
done_testing
