#!/bin/bash
# extended attributes of users
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount
chmod 777 .
touch a

sees "set and get" "value" setxattr a user.name value : getxattr a user.name
sees "an empty value" "" setxattr a user.empty "" : getxattr a user.empty
sees "size by a zero-length get" "5" getxattr a user.name 0
expect_errno "too small a buffer" ERANGE getxattr a user.name 2
expect_errno "an absent name" ENODATA getxattr a user.none
sees "the list" "user.empty,user.name" listxattr a
expect_errno "XATTR_CREATE refuses one that is there" EEXIST setxattr a user.name x CREATE
expect_errno "XATTR_REPLACE refuses one that is not" ENODATA setxattr a user.none x REPLACE
sees "XATTR_REPLACE replaces" "new" setxattr a user.name new REPLACE : getxattr a user.name
works "remove" removexattr a user.name
expect_errno "removed twice" ENODATA removexattr a user.name
sees "the list without it" "user.empty" listxattr a
works "a value of 60000 bytes" setxattrsize a user.big 60000
sees "… has that size" "60000" getxattr a user.big 0
expect_errno "a value over 65536 bytes" E2BIG setxattrsize a user.big 65537
sees "a name of 255 bytes" "v" setxattr a "user.$(printf 'n%.0s' {1..250})" v : getxattr a "user.$(printf 'n%.0s' {1..250})"
expect_errno "a name of 256 bytes" ERANGE setxattr a "user.$(printf 'n%.0s' {1..251})" v
expect_errno "no name space" EOPNOTSUPP setxattr a noprefix v
expect_errno "user. alone" EINVAL setxattr a user. v
works "on a directory" mkdir dir : setxattr dir user.d v
symlink=l
expect_errno "through a symlink to nothing" ENOENT symlink none $symlink : setxattr $symlink user.x v
works "a new name of the file has them too" link a b
sees "… of course" "user.empty" removexattr a user.big : removexattr a "user.$(printf 'n%.0s' {1..250})" : listxattr b
chmod 644 a
expect_errno "another user may not set them" EACCES -u $nobody -g $nobody setxattr a user.x v
sees "but read them" "" -u $nobody -g $nobody getxattr a user.empty
chmod 600 a
expect_errno "without read permission not" EACCES -u $nobody -g $nobody getxattr a user.empty
cp --preserve=xattr a copy
sees "cp --preserve=xattr carries them" "user.empty" listxattr copy
for i in {1..100}; do printf 'setxattr\na\nuser.n%s\nv%s\n:\n' "$i" "$i"; done | head -n -1 | xargs -d '\n' "$FSOP" >"$work/out"
is "a hundred of them" "$(fsop listxattr a | tr ',' '\n' | grep -c 'user.n')" 100
sees "the last has its value" "v100" getxattr a user.n100
mkfifo fifo
expect_errno "user.* on a fifo" EPERM setxattr fifo user.x v
works "security.* and trusted.* for root" setxattr a security.test s : setxattr a trusted.test t
sees "… are kept" "s"$'\n'"t" getxattr a security.test : getxattr a trusted.test

unmount_fs
done_testing
