#!/bin/bash
# flock and record locks
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount
touch a
expect_errno "flock: exclusive keeps out another" EAGAIN open a O_RDWR : open a O_RDWR : flock 0 ex : flock 1 ex
works "… until it is released" open a O_RDWR : open a O_RDWR : flock 0 ex : flock 0 un : flock 1 ex
works "flock: two may share" open a O_RDWR : open a O_RDWR : flock 0 sh : flock 1 sh
works "closing releases" open a O_RDWR : open a O_RDWR : flock 0 ex : close 0 : flock 1 ex
expect_errno "open-file-description locks: overlapping ranges" EAGAIN open a O_RDWR : open a O_RDWR : ofdlock 0 wr 0 10 : ofdlock 1 wr 9 1
works "ranges that only touch" open a O_RDWR : open a O_RDWR : ofdlock 0 wr 0 10 : ofdlock 1 wr 10 10
works "readers share" open a O_RDWR : open a O_RDWR : ofdlock 0 rd 0 10 : ofdlock 1 rd 5 10
need flock
exec 8>b
flock 8
not_ok "a lock keeps out another process" flock -n b true
exec 8>&-
ok "and lets it in after" flock -n b true
unmount_fs
done_testing
