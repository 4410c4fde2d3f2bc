#!/bin/bash
# symlink and readlink
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount

sees "readlink gives the target as it was given" "../some/where else" symlink "../some/where else" a : readlink a
sees "size is the length of the target, mode 0777" "link 18 0777 1" lstat a type size mode nlink
long=$(printf 'x%.0s' {1..4095})
works "a target of 4095 bytes" symlink "$long" long
is "… comes back whole" "$(readlink long)" "$long"
expect_errno "a target of 4096 bytes" ENAMETOOLONG symlink "${long}x" longer
expect_errno "an empty target" ENOENT symlink "" empty
expect_errno "over a name that exists" EEXIST symlink x a
expect_errno "readlink of a file" EINVAL open f O_CREAT,O_WRONLY 0644 : readlink f
sees "following one" "content" symlink f to-f : open f O_WRONLY : write 0 content : open to-f O_RDONLY : read 1 10
ln -s loop2 loop1
ln -s loop1 loop2
expect_errno "a loop" ELOOP stat loop1 type
expect_errno "to itself" ELOOP symlink self self : open self O_RDONLY
odd=$'t\xff\n\xc3\xa4'
sees "odd bytes in a target" 't\xff\x0a\xc3\xa4' symlink "$odd" odd : readlink odd
works "unlink removes the symlink" unlink to-f
sees "… not the file" "file" lstat f type
sees "lchown changes the symlink only" "65534"$'\n'"0" symlink f l : lchown l $nobody $nobody : lstat l uid : stat f uid
sees "times of a symlink" "7.000000001" lutimens l 7.000000001 7.000000001 : lstat l mtime
mkdir dir && ln -s dir dirlink
expect_errno "rmdir of a symlink to a directory" ENOTDIR rmdir dirlink
for i in {1..39}; do ln -s "$([ "$i" = 1 ] && echo f || echo "chain$((i - 1))")" "chain$i"; done
sees "a chain of 39 symlinks is followed" "file" stat chain39 type

unmount_fs
done_testing
