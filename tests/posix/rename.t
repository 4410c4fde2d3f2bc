#!/bin/bash
# rename: over files and directories, across directories, what must be refused
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount

echo one >a
echo two >b
inode=$(fsop stat a ino)
works "rename over a file" rename a b
is "the bytes are those of the renamed" "$(cat b)" one
is "it is the same inode" "$(fsop stat b ino)" "$inode"
expect_errno "the old name is gone" ENOENT lstat a type
works "rename to itself" rename b b
is "… changes nothing" "$(cat b)" one

mkdir d1 d2 full && touch full/x
works "a directory over an empty one" rename d1 d2
expect_errno "over one that is not empty" ENOTEMPTY rename d2 full
expect_errno "a file over a directory" EISDIR rename b d2
expect_errno "a directory over a file" ENOTDIR rename d2 b
expect_errno "a directory into itself" EINVAL rename d2 d2/x
mkdir -p d2/in/side
expect_errno "… or below itself" EINVAL rename d2 d2/in/side/x
expect_errno "a directory over its parent" ENOTEMPTY rename d2/in/side d2
expect_errno "a missing name" ENOENT rename none x
expect_errno "into a missing directory" ENOENT rename b none/x
expect_errno "below a file" ENOTDIR rename full b/x
expect_errno "a name of 256 bytes" ENAMETOOLONG rename b "$(printf 'x%.0s' {1..256})"

mkdir p q && mkdir p/sub
sees "links before: p has a subdirectory, q none" "3"$'\n'"2" stat p nlink : stat q nlink
works "a directory moves to another" rename p/sub q/sub
sees "links follow it" "2"$'\n'"3" stat p nlink : stat q nlink
is "its .. is the new parent" "$(fsop stat q/sub/.. ino)" "$(fsop stat q ino)"
mkdir q/sub2 p/over
works "a directory moves over one in another directory" rename p/over q/sub2
sees "links: p lost one, q kept its two" "2"$'\n'"4" stat p nlink : stat q nlink

ln b hard
works "rename of one hard link over another of the same file" rename b hard
sees "… does nothing: both stay" "2"$'\n'"2" stat b nlink : stat hard nlink
rm hard
sees "rename of an open file: it stays usable" "one\x0a"$'\n'"two" \
    open b O_RDWR : rename b c : read 0 10 : pwrite 0 0 two : pread 0 0 3
sees "rename over an open file: the old bytes stay readable there" "old"$'\n'"0" \
    open victim O_CREAT,O_RDWR 0644 : write 0 old : rename c victim : pread 0 0 10 : fstat 0 nlink
ln -s victim link
works "a symlink is renamed itself" rename link link2
sees "… and is one still" "link" lstat link2 type

echo x >x && echo y >y
expect_errno "RENAME_NOREPLACE refuses" EEXIST renameat2 x y NOREPLACE
works "RENAME_NOREPLACE to a free name" renameat2 x z NOREPLACE
works "RENAME_EXCHANGE" renameat2 z y EXCHANGE
is "… swaps" "$(cat z y)" "y
x"
works "RENAME_EXCHANGE of a file and a directory" renameat2 z q/sub EXCHANGE
sees "… swaps them, and the links" "dir"$'\n'"file"$'\n'"3" lstat z type : lstat q/sub type : stat q nlink
expect_errno "RENAME_EXCHANGE with a missing name" ENOENT renameat2 y none EXCHANGE

expect_errno "RENAME_NOREPLACE of a name to itself" EEXIST renameat2 y y NOREPLACE
works "RENAME_EXCHANGE of a name with itself" renameat2 y y EXCHANGE
expect_errno "NOREPLACE and EXCHANGE together" EINVAL renameat2 y z NOREPLACE,EXCHANGE
mkdir q/below
expect_errno "RENAME_EXCHANGE of a directory with one below it" EINVAL renameat2 q q/below EXCHANGE
rmdir q/below
if [ "$FS_UNDER_TEST" = residentfs ]; then
    expect_errno "RENAME_WHITEOUT is refused" EINVAL renameat2 y elsewhere WHITEOUT
    works "… and nothing has moved" stat y ino
else
    skip "RENAME_WHITEOUT is there" 2
fi

start=$(resident_bytes)
head -c 8388608 /dev/zero | tr '\0' x >big1
head -c 8388608 /dev/zero | tr '\0' y >big2
works "rename over a large file" rename big1 big2
between "frees what was there" "$(resident_bytes)" "$start" $((start + (10 << 20)))
rm big2
ok "and the rest at unlink" back_to "$start"

utime=1000000000
fsop utimens p $utime $utime : utimens q $utime $utime : utimens y $utime $utime
works "rename across directories" rename y p/y
unlike "both directories have a new mtime" "$(fsop stat p mtime : stat q mtime | head -n 1)" "^1000000000"
sees "the file keeps its own" "1000000000.000000000" stat p/y mtime
works "… and back" rename p/y q/y
unlike "the other directory too" "$(fsop stat q mtime)" "^1000000000"

unmount_fs
done_testing
