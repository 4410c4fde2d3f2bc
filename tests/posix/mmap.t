#!/bin/bash
# mmap: shared and private, coherent with read and write
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount

maps() {
    holds "$1" mappings "$2" "f.$2"
    rm -f "f.$2"
}

fsop open a O_CREAT,O_RDWR 0644 : fill 0 0 10000 0x41
maps "a private mapping reads the file of now, and its stores stay private" private
if [ "$(fsop open a O_RDWR : mmapread 0 0 1)" = ENODEV ] && [ "$FS_UNDER_TEST" = residentfs ]; then
    # Where libfuse cannot combine mmap with direct I/O, cache= offers it.
    expect_errno "a shared mapping is refused, not wrong (libfuse before 3.17, cache=off)" ENODEV \
        open a O_RDWR : mmapwrite 0 0 x
    sees "… and the file is as it was" "same" open a O_RDONLY : check 0 0 10000 0x41
    unmount_fs
    enter_mount -o cache=on
    fsop open a O_CREAT,O_RDWR 0644 : fill 0 0 10000 0x41
    maps "a private mapping with cache=on" private
fi
sees "a mapping reads the file" "AAAA" open a O_RDONLY : mmapread 0 5000 4
sees "a shared mapping's write is read by pread" "AhelloA" open a O_RDWR : mmapwrite 0 4094 hello : pread 0 4093 7
sees "… through another descriptor and after close" "AhelloA" open a O_RDONLY : pread 0 4093 7
sees "a write is seen by a later mapping of the same open file" "A"$'\n'"world" \
    open a O_RDWR : mmapread 0 100 1 : pwrite 0 100 world : mmapread 0 100 5
sees "a private mapping's write stays private" "world" open a O_RDWR : mmapprivate 0 100 WORLD : pread 0 100 5
sees "past the end of the last page: SIGBUS" "SIGBUS" open a O_RDONLY : mmapread 0 12288 1
sees "within the last page behind the end: zeros" '\x00' open a O_RDONLY : mmapread 0 10000 1
sees "after a truncate down and up the tail is zeros" '\x00\x00' open a O_RDWR : ftruncate 0 50 : ftruncate 0 10000 : mmapread 0 60 2
expect_errno "a shared writable mapping of a read-only descriptor" EACCES open a O_RDONLY : mmapwrite 0 0 x

maps "stores and calls see each other at once, also of another open file" coherent
maps "punch, zero range, copy_file_range and truncate under a mapping show in it" changed-below
maps "a truncate takes pages away (SIGBUS), growing gives zeros" truncated
maps "fork: shared stores are shared, private ones are not" forked
maps "a mapping outlives close and unlink" outlives
maps "msync changes mtime and keeps the bytes" synced
maps "pread and pwrite between a file and its own mapping" own-pages
maps "a mapping at 1 TiB" far
maps "four processes store, write and read at once" several
maps "a mapping shows a write that has returned, while others look all the time" watched
if [ "$FS_UNDER_TEST" = tmpfs ]; then
    skip "tmpfs shows bytes stored behind the end"
else
    maps "bytes stored behind the end are not part of the file" behind-end
fi
if [ "$FS_UNDER_TEST" = tmpfs ] || grep -q '^cache *= *on' .resident/config; then
    maps "stores and writes of several processes to one page" same-pages
else
    skip "with direct I/O the kernel writes whole pages back: stores and writes to one page need cache=on"
fi

need python3
ok "Python's mmap writes, flushes and reads" python3 -c '
import mmap
with open("m", "wb") as f: f.truncate(1 << 20)
with open("m", "r+b") as f:
    m = mmap.mmap(f.fileno(), 0)
    m[70000:70004] = b"data"
    m.flush()
    assert m[70000:70004] == b"data"
    m.close()
with open("m", "rb") as f:
    f.seek(70000)
    assert f.read(4) == b"data"
'
unmount_fs
done_testing
