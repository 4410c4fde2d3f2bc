#!/bin/bash
# mmap: shared and private, coherent with read and write
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount

fsop open a O_CREAT,O_RDWR 0644 : fill 0 0 10000 0x41
if [ "$(fsop open a O_RDWR : mmapread 0 0 1)" = ENODEV ] && [ "$FS_UNDER_TEST" = residentfs ]; then
    # Where libfuse cannot combine mmap with direct I/O, cache= offers it.
    unmount_fs
    enter_mount -o cache=on
    fsop open a O_CREAT,O_RDWR 0644 : fill 0 0 10000 0x41
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
cp /bin/true prog && chmod 755 prog
ok "a program runs from the mount" ./prog
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
