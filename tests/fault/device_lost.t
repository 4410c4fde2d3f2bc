#!/bin/bash
# a device that is lost: EIO at once, metadata and unmount go on, and it is said
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_emulated
on=$work/lost
enter_mount -e "batch=off;fault=cuMemcpyHtoDAsync:1+:700:sticky:when=$on"
mkdir d
fsop open d/f O_CREAT,O_RDWR 0644 : fill 0 0 3M 1 : fsync 0
unlike "before: status does not say lost" "$(cat .resident/status)" '[Ll]ost|LOST'
touch "$on"
like "the write that meets it is reported, by write or fsync" "$(fsop open g O_CREAT,O_RDWR 0644 : -fill 0 0 1M 1 : -fsync 0)" EIO
rm -f "$on"
started=$SECONDS
expect_errno "then reads fail" EIO open d/f O_RDONLY : preadcount 0 0 100
expect_errno "and writes" EIO open d/f O_RDWR : pwrite 0 0 x : fsync 0
expect_errno "of any file" EIO open new O_CREAT,O_RDWR 0644 : pwrite 0 0 x : fsync 0
between "fast" $((SECONDS - started)) 0 5
sees "stat works" "3145728" stat d/f size
is "ls works" "$(find d -type f)" d/f
works "chmod and times" chmod d/f 0600 : utimens d/f 1 1
works "rename, link and symlink" rename d/f d/h : link d/h i : symlink x l
works "mkdir and rmdir" mkdir e : rmdir e
works "truncate to nothing" truncate i 0
works "unlink" unlink i : unlink d/h
like "status says that the device is lost" "$(cat .resident/status)" '[Ll]ost|LOST'
like "and what to do" "$(cat .resident/status)" 'umount|unmount|mount again|restart|remount'
like "the log says so" "$(cat .resident/log)" '[Ll]ost|LOST'
like "with the CUDA error" "$(cat .resident/log)" 'CUDA_ERROR_ILLEGAL_ADDRESS'
for name in budget metrics telemetry.json buffers version config; do
    ok "$name can be read" test -n "$(timeout 10 cat .resident/$name)"
done
unmount_fs "it unmounts, and the daemon ends"

must_mount
works "the next mount works" open "$mnt/f" O_CREAT,O_RDWR 0644 : fill 0 0 1M 1 : fsync 0
unmount_fs
done_testing
