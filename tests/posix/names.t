#!/bin/bash
# names: length, odd bytes, case, what is refused
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount

n255=$(printf 'n%.0s' {1..255})
works "255 bytes" open "$n255" O_CREAT,O_WRONLY 0644
is "… are listed whole" "$(ls)" "$n255"
for call in "open ${n255}x O_CREAT,O_WRONLY 0644" "mkdir ${n255}x" "symlink x ${n255}x" "mknod ${n255}x fifo 0644" \
    "link $n255 ${n255}x" "rename $n255 ${n255}x" "stat ${n255}x size" "unlink ${n255}x" "rmdir ${n255}x"; do
    # shellcheck disable=SC2086 # words
    expect_errno "256 bytes: ${call%% *}" ENAMETOOLONG $call
done
rm "$n255"
utf8=$(printf 'ä%.0s' {1..127})
works "127 letters of two bytes" open "$utf8" O_CREAT,O_WRONLY 0644
rm "$utf8"

for name in $'new\nline' $'\xff\xfe' 'ünïcödé' ' ' '-rf' $'\x01' 'a\b' '"quoted"' '*' '...' '.hidden' $'tab\t' '%s%n' '; rm' '日本語'; do
    printf -v shown %q "$name"
    works "create $shown" open "./$name" O_CREAT,O_EXCL,O_WRONLY 0644 : write 0 x
    is "… it is listed just so" "$(find . -mindepth 1 -printf '%f\n')" "$name"
    works "… renamed and removed" rename "./$name" "./$name+" : unlink "./$name+"
done
sees "case matters" "1"$'\n'"2" open A O_CREAT,O_RDWR 0644 : open a O_CREAT,O_RDWR 0644 : write 0 1 : write 1 2 : pread 0 0 5 : pread 1 0 5
touch 'ä' && touch $'a\xcc\x88'
is "no normalisation: two spellings are two names" "$(find . -name '*[^ -~]*' | wc -l)" 2
expect_errno ". cannot be created" EEXIST mkdir .
expect_errno ".. cannot be removed" ENOTEMPTY mkdir d : mkdir d/e : rmdir d/e/..

path=$(printf 'x/%.0s' {1..2047})
expect_errno "a path of more than 4095 bytes" ENAMETOOLONG stat "${path}xx" size

unmount_fs
done_testing
