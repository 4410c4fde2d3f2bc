#!/bin/bash
# sharing when the driver fails, memory is short, or the device is lost
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=clients.sh
. "$(dirname "$0")/clients.sh"
only_emulated
on=$work/on

# Memory is short.
enter_mount -m 64MiB -o budget=32MiB
fsop open f O_CREAT,O_RDWR 0644 : ftruncate 0 200M : pwrite 0 100M x
sharer open small O_CREAT,O_RDWR : ffill 0 0 1000 1
before=$(resident_bytes)
blocks=$(stat -c %b f)
like "a sparse file that is larger than the budget" "$(sharer map f)" "^ENOSPC: .*holes.*bytes"
is "… takes nothing" "$(resident_bytes) $(stat -c %b f)" "$before $blocks"
is "… and is what it was" "$(stat -c %s f) $(sharer open f O_RDONLY : fcheck 0 0 1M zero)" "209715200 same"
is "… nobody shares it" "$(shares f)" 0
sharer open full O_CREAT,O_RDWR : ffill 0 0 100M 2 >"$work/full"
between "the budget is full" "$(resident_bytes)" 31457280 33554432
like "a small file has no room for a chunk of its own" "$(sharer map small)" "^ENOSPC: ."
is "… and is what it was" "$(sharer open small O_RDONLY : fcheck 0 0 1000 1)" same
rm full
is "… with room it is mapped" "$(sharer map small : check m0 0 1000 1)" same
unmount_fs

# Each call of the daemon fails once.
for call in cuMemExportToShareableHandle cuMemCreate cuMemMap cuMemSetAccess cuMemAddressReserve cuMemcpyDtoDAsync cuMemsetD8Async \
    cuEventRecord cuStreamSynchronize cuEventSynchronize; do
    must_mount -m 64MiB -e "batch=off;fault=$call:1:2:when=$on"
    cd "$mnt" || exit 1
    sharer open f O_CREAT,O_RDWR : ffill 0 0 3000 1
    fsop open f O_RDWR : fsync 0
    touch "$on"
    got=$(sharer map f : check m0 0 3000 1)
    rm "$on"
    like "$call fails once: mapped, or an error" "$got" "^(same|E[A-Z]+: .+)$"
    is "… nobody shares it if not" "$(shares f)" 0
    like "… then it works, or the file says that it has failed" "$(fsop getxattr f user.resident.state) $(sharer map f : check m0 0 3000 1)" "^(ok same|failed EIO: .*)$"
    unmount_fs "… unmounts"
done
for call in cuIpcOpenMemHandle cuMemGetAddressRange cuPointerGetAttribute cuMemImportFromShareableHandle \
    cuMemGetAllocationPropertiesFromHandle cuMemAddressReserve cuMemMap cuMemSetAccess; do
    must_mount -m 64MiB -e "fault=$call:1:2:when=$on"
    cd "$mnt" || exit 1
    case $call in cuIpc* | cuMemGetAddressRange | cuPointer*) kind='' ;; *) kind=vmm ;; esac
    touch "$on"
    # shellcheck disable=SC2086
    got=$(sharer alloc 2M $kind : attach f 0 2M)
    rm -f "$on"
    like "$call fails once: the buffer is not attached" "$got" "^E[A-Z]+: .*($call|mapping|asking for the size)"
    ok "… no file is left" test ! -e f
    # shellcheck disable=SC2086
    is "… then it works" "$(sharer alloc 2M $kind : fill d0 0 2M 1 : attach f 0 2M : open f O_RDONLY,O_DIRECT : fcheck 0 0 2M 1 : detach 0)" same
    unmount_fs "… unmounts"
done

# No exporting at all.
enter_mount -m 64MiB -e export=off
sharer open f O_CREAT,O_RDWR : ffill 0 0 3M 1
like "a device that cannot export" "$(sharer map f)" "^EOPNOTSUPP: ."
is "… the file is what it was" "$(sharer open f O_RDONLY : fcheck 0 0 3M 1)" same
is "… a buffer can be attached all the same" "$(sharer alloc 2M : fill d0 0 2M 1 : attach g 0 2M : open g O_RDONLY,O_DIRECT : fcheck 0 0 2M 1 : detach 0)" same
unmount_fs

# The device is lost.
enter_mount -m 64MiB -e "batch=off;fault=cuMemcpyHtoDAsync:1+:700:sticky:when=$on"
sharer open f O_CREAT,O_RDWR : ffill 0 0 3M 1
client a
client b
say a map f
say b "alloc 2M : fill d0 0 2M 2 : attach g 0 2M"
touch "$on"
fsop open h O_CREAT,O_RDWR 0644 : -fill 0 0 1M 1 : -fsync 0 >/dev/null
started=$SECONDS
refused "the device is lost: sync" a EIO sync 0
refused "… remap" a EIO remap 0
refused "… another mapping" a EIO map f
said "… the program has its own context still" a same check m0 0 3M 1
expect_errno "… the attached file" EIO open g O_RDONLY : preadcount 0 0 100
refused "… another attached" b EIO attach i 0 1M
ok "… no file is left" test ! -e i
said "… detach" b "" detach 0
said "… unmap" a "" unmap 0
client_kill b
client_end a
ok "… rm" rm f g
between "… nothing hung (s)" $((SECONDS - started)) 0 8
rm "$on"
unmount_fs
done_testing
