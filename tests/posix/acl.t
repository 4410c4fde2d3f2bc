#!/bin/bash
# POSIX ACLs: kept, checked, inherited
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
need setfacl getfacl
enter_mount
chmod 755 .
echo text >a && chmod 600 a
expect_errno "before: another user may not read" EACCES -u $nobody -g $nobody open a O_RDONLY
if ! setfacl -m u:$nobody:r a 2>"$work/err" && [ "$FS_UNDER_TEST" = tmpfs ]; then
    skip_all "no ACLs here"
fi
is "getfacl shows what setfacl set" "$(getfacl -cn a 2>&1 | grep "$nobody")" "user:$nobody:r--"
works "that user may read" -u $nobody -g $nobody open a O_RDONLY
expect_errno "but not write" EACCES -u $nobody -g $nobody open a O_WRONLY
expect_errno "nor a third read" EACCES -u $other -g $other open a O_RDONLY
sees "the mask shows as group bits" "0640" stat a mode
fsop chmod a 0600
expect_errno "chmod takes the mask away" EACCES -u $nobody -g $nobody open a O_RDONLY
mkdir d && setfacl -d -m u:$nobody:rw d
touch d/f
is "a default ACL is inherited" "$(getfacl -cn d/f 2>&1 | grep -c "user:$nobody:rw")" 1
mkdir d/sub
is "also as a default by directories" "$(getfacl -cn d/sub 2>&1 | grep -c "default:user:$nobody:rw")" 1
setfacl -b a
is "removing them" "$(getfacl -cn a | grep -c "$nobody")" 0
unmount_fs
done_testing
