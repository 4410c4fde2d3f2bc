#!/bin/bash
# copy_file_range within and between files
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount

fsop open a O_CREAT,O_RDWR 0644 : write 0 0123456789
if [[ $(fsop open a O_RDWR : copy_file_range 0 0 0 20 5) =~ EOPNOTSUPP|ENOSYS|EXDEV ]] && [ "$FS_UNDER_TEST" = tmpfs ]; then
    skip_all "no copy_file_range here"
fi
truncate -s 10 a
sees "between two files" "4"$'\n''\x00\x003456' open a O_RDONLY : open b O_CREAT,O_RDWR 0644 : copy_file_range 0 3 1 2 4 : pread 1 0 100
sees "within one, apart" "3"$'\n'"0120126789" open a O_RDWR : copy_file_range 0 0 0 3 3 : pread 0 0 100
expect_errno "within one, overlapping" EINVAL open a O_RDWR : copy_file_range 0 0 0 2 5
sees "it ends at the end of the source" "2" open a O_RDONLY : open b O_RDWR : copy_file_range 0 8 1 0 100
sees "past the end of the source: nothing" "0" open a O_RDONLY : open b O_RDWR : copy_file_range 0 10 1 0 5
expect_errno "a destination that is read-only" EBADF open a O_RDONLY : open b O_RDONLY : copy_file_range 0 0 1 0 5
expect_errno "a destination in append mode" EBADF open a O_RDONLY : open b O_WRONLY,O_APPEND : copy_file_range 0 0 1 0 5
expect_errno "a destination that is a directory" EISDIR open a O_RDONLY : open . O_RDONLY : copy_file_range 0 0 1 0 5

random_file "$work/random" 20000003 4
cp "$work/random" r
for range in 0:0:20000003 1:4095:10000001 4097:1:65537 123457:2097151:3000001; do
    IFS=: read -r from to length <<<"$range"
    rm -f copy
    got=$(python3 - "$from" "$to" "$length" <<'PY'
import os, sys
start, to, left = map(int, sys.argv[1:])
source, target = os.open("r", os.O_RDONLY), os.open("copy", os.O_RDWR | os.O_CREAT)
while left:
    done = os.copy_file_range(source, target, left, start, to)
    assert done > 0
    start, to, left = start + done, to + done, left - done
PY
)
    is "$length bytes from $from to $to" \
        "$got$(tail -c +$((to + 1)) copy | sha256sum)" "$(tail -c +$((from + 1)) "$work/random" | head -c "$length" | sha256sum)"
done
ok "cp --reflink=auto" cp --reflink=auto r r2
ok "… is the same" cmp r2 "$work/random"
sees "uploads still pending at the source are copied" "1048576"$'\n'"same" \
    open p O_CREAT,O_RDWR 0644 : open q O_CREAT,O_RDWR 0644 : fill 0 0 1M 1 : fill 0 0 1M 2 : copy_file_range 0 0 1 0 1M : fill 0 0 1M 3 : check 1 0 1M 2
sees "uploads still pending at the target do not come after the copy" "1048576"$'\n'"same" \
    open p O_RDWR : open q O_RDWR : fill 0 0 1M 5 : fill 1 0 1M 6 : copy_file_range 0 0 1 0 1M : check 1 0 1M 5
fsop open sparse O_CREAT,O_RDWR 0644 : ftruncate 0 64M : fill 0 0 1M 7
sees "from a hole come zeros" "4194304"$'\n'"same" open sparse O_RDONLY : open over O_CREAT,O_RDWR 0644 : fill 1 0 4M 9 : copy_file_range 0 32M 1 0 4M : check 1 0 4M 0
fsop utimens over 1 1 : open a O_RDONLY : open over O_RDWR : copy_file_range 0 0 1 0 5 >/dev/null
unlike "the target's mtime changes" "$(fsop stat over mtime)" "^1\.000000000"

unmount_fs
done_testing
