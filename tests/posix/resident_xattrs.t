#!/bin/bash
# user.resident.*: readable, not listed, not settable
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_residentfs
enter_mount

fsop open a O_CREAT,O_RDWR 0644 : fill 0 0 5M 1 : fsync 0
for name in device resident_bytes dirty_bytes state; do
    ok "user.resident.$name is there" test -n "$(getfattr --only-values -n user.resident.$name a 2>&1)"
done
is "resident_bytes is what st_blocks says" "$(fsop getxattr a user.resident.resident_bytes)" $(($(fsop stat a blocks) * 512))
is "nothing is dirty after fsync" "$(fsop getxattr a user.resident.dirty_bytes)" 0
like "the device is the mount's" "$(fsop getxattr a user.resident.device)" "^(${DEVICE%%:*}|GPU|[0-9])"
sees "they are not listed" "" listxattr a
sees "a user's own is listed alone" "user.mine" setxattr a user.mine v : listxattr a
before=$(fsop getxattr a user.resident.state)
not_ok "they cannot be set" fsop setxattr a user.resident.state x
not_ok "nor others of that prefix" fsop setxattr a user.resident.new x
not_ok "nor removed" fsop removexattr a user.resident.state
is "the value is as before" "$(fsop getxattr a user.resident.state)" "$before"
expect_errno "an unknown one of that prefix" ENODATA getxattr a user.resident.nonsense
expect_errno "a short buffer" ERANGE getxattr a user.resident.resident_bytes 1
between "size by a zero-length get" "$(fsop getxattr a user.resident.device 0)" 1 100
cp -a a "$work/copy" 2>"$work/cp.err"
is "cp -a to elsewhere says nothing" "$(cat "$work/cp.err")" ""
sees "… and carries the user's own only" "user.mine" listxattr "$work/copy"
ok "cp -a within the mount" cp -a a b
sees "… likewise" "user.mine" listxattr b
sees "an empty file has none resident" "0" open e O_CREAT,O_RDWR 0644 : getxattr e user.resident.resident_bytes

unmount_fs
done_testing
