#!/bin/bash
# .resident: who may read and write what
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_residentfs
enter_mount
chmod 755 .

for name in status budget metrics telemetry.json version; do
    ok "everyone may read $name" as_nobody cat "$mnt/.resident/$name"
done
for name in buffers log config; do
    expect_errno "only the owner may read $name" EACCES -u $nobody -g $nobody open .resident/$name O_RDONLY
    ok "the owner may" cat .resident/$name
done
for name in budget flush; do
    expect_errno "only the owner may write $name" EACCES -u $nobody -g $nobody open .resident/$name O_WRONLY
done
for name in status metrics telemetry.json buffers config log version; do
    before=$(fsop stat .resident/$name mode)
    not_ok "writing $name fails" fsop open .resident/$name O_WRONLY : write 0 x
    not_ok "truncating $name fails" fsop truncate .resident/$name 0
    is "its mode has no write bit" "$((8#$before & 8#222))" 0
done
fsop open f O_CREAT,O_RDWR 0644 : fill 0 0 1M 1
works "flush accepts a write" open .resident/flush O_WRONLY : write 0 1
ok "also by echo" bash -c 'echo now >.resident/flush'
is "after it nothing is dirty" "$(fsop getxattr f user.resident.dirty_bytes)" 0

unmount_fs
done_testing
