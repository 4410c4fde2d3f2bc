#!/bin/bash
# mkdir and rmdir: link counts, refusals, deep trees
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount

root=$(fsop stat . nlink)
sees "an empty directory has two links" "dir 2" mkdir a : stat a type nlink
is "its parent one more" "$(fsop stat . nlink)" $((root + 1))
sees "a subdirectory adds one, a file none" "3" mkdir a/b : open a/f O_CREAT,O_WRONLY 0644 : stat a nlink
is ". and .." "$(fsop stat a/b/. ino) $(fsop stat a/b/.. ino)" "$(fsop stat a/b ino) $(fsop stat a ino)"
expect_errno "mkdir over a directory" EEXIST mkdir a
expect_errno "mkdir over a file" EEXIST mkdir a/f
expect_errno "mkdir below a file" ENOTDIR mkdir a/f/x
expect_errno "mkdir below nothing" ENOENT mkdir none/x
expect_errno "rmdir of one that is not empty" ENOTEMPTY rmdir a
expect_errno "rmdir of a file" ENOTDIR rmdir a/f
expect_errno "rmdir of nothing" ENOENT rmdir none
expect_errno "rmdir of ." EINVAL rmdir a/.
expect_errno "rmdir of .." ENOTEMPTY rmdir a/b/..
works "rmdir" rmdir a/b
sees "… takes the link away" "2" stat a nlink
sees "rmdir of an open directory: no links, nothing can be made in it" "0"$'\n'"ENOENT" \
    mkdir open : open open O_RDONLY,O_DIRECTORY : chdir open : rmdir ../open : fstat 0 nlink : open x O_CREAT,O_WRONLY 0644
works "the name can be used again" mkdir open
works "a tree 1000 deep (11 kB of path)" mkdir deep : deep deep 1000
ok "rm -r removes it" rm -r deep
expect_errno "it is gone" ENOENT stat deep type
rm -r a open
is "the root has as many links as at first" "$(fsop stat . nlink)" "$root"

unmount_fs
done_testing
