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
memory() { awk '/^RssAnon/ { print $2 }' "/proc/$daemon_pid/status"; }
before=$(memory)
for _ in {1..100}; do fsop open new O_RDWR : -writeonce 0 0 1M 1 : -fsync 0 : -preadcount 0 0 1M; done >"$work/out"
is "a hundred more of each: nothing but EIO" "$(sort "$work/out" | uniq -c | tr -s ' ')" " 300 EIO"
between "… and the daemon does not grow by them (KiB)" $(($(memory) - before)) -1000000 16384
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

enter_mount -e "batch=off;fault=cuMemcpyDtoHAsync:1+:700:sticky:when=$on"
fsop open f O_CREAT,O_RDWR 0644 : fill 0 0 3M 1 : fsync 0
touch "$on"
expect_errno "the read that meets it fails with EIO" EIO open f O_RDONLY : preadcount 0 0 100
expect_errno "so do those after it" EIO open f O_RDONLY : preadcount 0 0 100
rm "$on"
unmount_fs

# Every worker's memory for requests is lost with it.
enter_mount -o workers=1 -e "order=sync;batch=off;fault=cuEventQuery:1:700:sticky:when=$on"
fsop open f O_CREAT,O_RDWR 0644 : fill 0 0 4M 1 : fsync 0
touch "$on"
timeout 20 "$FSOP" open f O_RDWR : -writeonce 0 0 4M 2 : -fsync 0 >"$work/out"
rm -f "$on"
like "lost with all memory for requests in use: EIO" "$(cat "$work/out")" '^EIO$'
like "… and it is answered" "$(timeout 10 cat .resident/status)" 'LOST'
is "… also of names" "$(timeout 10 "$FSOP" stat f size)" 4194304
unmount_fs "… and unmounts"

must_mount
works "the next mount works" open "$mnt/f" O_CREAT,O_RDWR 0644 : fill 0 0 1M 1 : fsync 0
unmount_fs
done_testing
