#!/bin/bash
# unlink: data stays usable while open, space comes back at close
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount
start=$(resident_bytes)

sees "an unlinked open file is read and written" "same"$'\n'"0 8388611"$'\n'"abc" \
    open a O_CREAT,O_RDWR 0644 : fill 0 0 8M 9 : unlink a : check 0 0 8M 9 : pwrite 0 8M abc : fstat 0 nlink size : pread 0 8M 10
expect_errno "its name is gone" ENOENT stat a size
ok "and its memory after the close" back_to "$start"

mkfifo "$work/go"
"$FSOP" open b O_CREAT,O_RDWR 0644 : fill 0 0 32M 3 : unlink b : say held : waitline : check 0 0 32M 3 \
    <"$work/go" >"$work/said" &
holder=$!
exec 7>"$work/go"
ok "another process holds an unlinked file of 32 MiB" wait_for "grep -q held '$work/said'" 10
between "it still takes its memory" "$(resident_bytes)" $((start + (32 << 20))) $((start + (40 << 20)))
open=b
works "a new file of the same name is another file" open $open O_CREAT,O_EXCL,O_WRONLY 0644 : write 0 new
echo >&7
wait $holder
is "the holder ends well" $? 0
exec 7>&-
is "it read its own bytes" "$(tail -n 1 "$work/said")" same
is "the new file has its own" "$(cat b)" new
rm b
ok "the memory is given back" back_to "$start"

sees "a file that is held by O_PATH only keeps its bytes" "0 3145728"$'\n'"same" \
    open p O_CREAT,O_RDWR 0644 : fill 0 0 3M 4 : close 0 : open p O_PATH : unlink p : tick : fstat 1 nlink size : \
    open /proc/self/fd/3 O_RDONLY : check 2 0 3M 4
ok "and gives its memory back when it is let go" back_to "$start"

expect_errno "unlink of a missing name" ENOENT unlink none
mkdir dir
expect_errno "unlink of a directory" EISDIR unlink dir
touch file
expect_errno "unlink below a file" ENOTDIR unlink file/x
expect_errno "a hard link to an unlinked open file" ENOENT open gone O_CREAT,O_RDWR 0644 : unlink gone : linkfile 0 back
sees "truncate of an unlinked open file" "same" \
    open t O_CREAT,O_RDWR 0644 : fill 0 0 3M 1 : unlink t : ftruncate 0 10 : ftruncate 0 3M : check 0 10 3000000 0
sees "chmod and times of an unlinked open file" "0600 5.000000007" \
    open m O_CREAT,O_RDWR 0644 : unlink m : fchmod 0 0600 : futimens 0 5.000000007 5.000000007 : fstat 0 mode mtime
ok "nothing is left" back_to "$start"

unmount_fs
done_testing
