#!/bin/bash
# permissions: what other users may do
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount
chmod 755 .
echo secret >private && chmod 600 private
echo shared >public && chmod 644 public
echo both >writable && chmod 666 writable
mkdir closed open sticky && chmod 700 closed && chmod 777 open && chmod 1777 sticky
echo in >closed/file

ok "another user sees the mount" as_nobody ls -l "$mnt"
unlike "… with all attributes" "$(as_nobody ls -l "$mnt" 2>&1)" '\?'
is "reads what is readable" "$(as_nobody cat "$mnt/public")" shared
u=(-u "$nobody" -g "$nobody")
expect_errno "not what is not" EACCES "${u[@]}" open private O_RDONLY
expect_errno "may not write either" EACCES "${u[@]}" open public O_WRONLY
expect_errno "nor truncate" EACCES "${u[@]}" truncate public 0
expect_errno "nor create where they may not write" EACCES "${u[@]}" open new O_CREAT,O_WRONLY 0644
expect_errno "nor unlink there" EACCES "${u[@]}" unlink public
expect_errno "nor rename there" EACCES "${u[@]}" rename public open/public
expect_errno "nor mkdir there" EACCES "${u[@]}" mkdir dir
expect_errno "nor symlink there" EACCES "${u[@]}" symlink x y
expect_errno "nor link there" EACCES "${u[@]}" link writable hard
expect_errno "nor pass a closed directory" EACCES "${u[@]}" stat closed/file size
expect_errno "nor list it" EACCES "${u[@]}" open closed O_RDONLY,O_DIRECTORY
works "may create where everyone may" "${u[@]}" open open/mine O_CREAT,O_WRONLY 0600
expect_errno "a third user may not read it" EACCES -u $other -g $other open open/mine O_RDONLY
works "but remove it, in a directory without the sticky bit" -u $other -g $other unlink open/mine
works "in a sticky directory" "${u[@]}" open sticky/mine O_CREAT,O_WRONLY 0666
expect_errno "a third user may not remove it" EPERM -u $other -g $other unlink sticky/mine
expect_errno "nor rename it" EPERM -u $other -g $other rename sticky/mine sticky/theirs
works "its owner may" "${u[@]}" unlink sticky/mine
sees "access tells the same" "EACCES" "${u[@]}" access private r
works "root may read all" open private O_RDONLY : access closed rwx
chmod 000 public
works "also what has no permission bits" open public O_RDWR
chmod 111 open && touch open/known && chmod 644 open/known
works "execute only: names can be used" "${u[@]}" stat open/known size
expect_errno "but not listed" EACCES "${u[@]}" open open O_RDONLY,O_DIRECTORY
touch grouped && chown 0:$nobody grouped && chmod 060 grouped
works "the group's bits count for its members" "${u[@]}" open grouped O_RDWR
expect_errno "not for others" EACCES -u $other -g $other open grouped O_RDONLY
touch denied && chown $nobody:$nobody denied && chmod 077 denied
expect_errno "the owner's bits are what counts for the owner" EACCES "${u[@]}" open denied O_RDONLY

unmount_fs
done_testing
