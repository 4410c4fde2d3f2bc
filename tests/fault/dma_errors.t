#!/bin/bash
# errors of the device: reported once each, named in the log, nothing else harmed
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_emulated
# The faults are CUDA_ERROR_OPERATING_SYSTEM (304) and, where it might be taken for the caller's mistake,
# CUDA_ERROR_INVALID_VALUE (1): errors of one call, after which the device works on.
on=$work/faults-on

log() { cat "$mnt/.resident/log"; }

# An upload that fails after the write has returned.
enter_mount -e "batch=off;fault=cuMemcpyHtoDAsync:1+:304:late:when=$on"
fsop open good O_CREAT,O_RDWR 0644 : fill 0 0 3M 1 : fsync 0
touch "$on"
sees "a late error: fsync reports it once for each open file description" "EIO"$'\n'"0"$'\n'"EIO"$'\n'"0" \
    open f O_CREAT,O_RDWR 0644 : open f O_RDWR : pwrite 0 5000 "$(printf 'x%.0s' {1..100})" : -fsync 0 : -fsync 0 : -fsync 1 : -fsync 1
like "the log names the range that was lost" "$(log)" '5000'
like "… and the CUDA error" "$(log)" 'CUDA_ERROR|cuMemcpy|CUDA'
sees "a description opened after the error does not get it" "0" open f O_RDWR : -fsync 0
sees "close reports it if no fsync did" "0"$'\n'"EIO" open g O_CREAT,O_RDWR 0644 : -pwrite 0 0 abc : -close 0
sees "fdatasync reports it too" "EIO" open h O_CREAT,O_RDWR 0644 : pwrite 0 0 abc : -fdatasync 0
sees "so does a dsync write" "EIO" open i O_CREAT,O_RDWR,O_DSYNC 0644 : -pwrite 0 0 abc
rm "$on"
sees "another file is unharmed" "0"$'\n'"same" open good O_RDWR : -fsync 0 : check 0 0 3M 1
sees "once the fault is gone the file works" "again" open f O_RDWR : pwrite 0 0 again : fsync 0 : pread 0 0 5
rm f g h i good
ok "nothing is left behind" back_to 0
unmount_fs

# An upload that is refused at once.
for result in 304 1; do
    for size in 100 3000000; do
        enter_mount -e "batch=off;fault=cuMemcpyHtoDAsync:1:$result:when=$on"
        touch "$on"
        got=$(fsop open f O_CREAT,O_RDWR 0644 : -fill 0 0 $size 1 : -fsync 0 : -close 0 | sort | uniq -c | tr -s ' \n' ' ')
        like "one upload of $size bytes refused with $result gives one EIO and no crash" "$got" '^ ?2 0 1 EIO ?$'
        rm -f "$on" f
        sees "… and the next file works" "same" open f O_CREAT,O_RDWR 0644 : fill 0 0 $size 2 : fsync 0 : check 0 0 $size 2
        unmount_fs
    done
done

# The kernel cuts a large write into requests; told to one after the first, its caller would not hear of it.
enter_mount -o flush_interval=1000 -e "fault=cuMemcpyHtoDAsync:1:304:when=$on"
fsop open f O_CREAT,O_RDWR 0644 : fill 0 0 5M 2 : fsync 0
touch "$on"
is "an upload that fails in the middle of a large write is reported, once" \
    "$(fsop open f O_RDWR : pwrite 0 0 abc : -writeonce 0 1M 3000000 1 : -fsync 0 : -fsync 0 | tail -n 2 | paste -sd' ')" "EIO 0"
rm -f "$on"
sees "… and the large write is whole" "3000000"$'\n'"same" open f O_RDONLY : preadcount 0 1M 3000000 : check 0 1M 3000000 1
unmount_fs

# A readback that fails.
enter_mount -e "fault=cuMemcpyDtoHAsync:1:304:when=$on"
fsop open f O_CREAT,O_RDWR 0644 : fill 0 0 1M 5 : fsync 0
touch "$on"
expect_errno "a readback that fails: EIO, never other bytes" EIO open f O_RDONLY : preadcount 0 0 1000
sees "the next read is right" "same" open f O_RDONLY : check 0 0 1M 5
like "the log says so" "$(log)" 'f\b|read|DtoH'
rm "$on"
unmount_fs

# A readback that fails, with DMA that may still be running.
enter_mount -e "fault=cuMemcpyDtoHAsync:1:304:unproven:when=$on"
fsop open f O_CREAT,O_RDWR 0644 : fill 0 0 1M 5 : fsync 0 : open g O_CREAT,O_RDWR 0644 : fill 1 0 1M 6 : fsync 1
touch "$on"
expect_errno "completion unproven: EIO" EIO open f O_RDONLY : preadcount 0 0 1000
sees "another file is read well" "same" open g O_RDONLY : check 0 0 1M 6
between "what may still be touched is quarantined, and counted" \
    "$(awk '/^residentfs_[a-z_]*quarantine[a-z_]*/ { s += $2 } END { printf "%d", s }' .resident/metrics)" 1 1000000000000
rm "$on"
unmount_fs

# The device runs out of memory though the budget says there is some.
enter_mount -e "fault=cuMemCreate:1+:2:when=$on"
fsop open keep O_CREAT,O_RDWR 0644 : fill 0 0 3M 1 : fsync 0
touch "$on"
expect_errno "no memory on the device: ENOSPC" ENOSPC open f O_CREAT,O_RDWR 0644 : fill 0 0 100M 1
sees "what was there is intact" "same" open keep O_RDONLY : check 0 0 3M 1
rm "$on" f
works "when there is some again, writes work" open f O_CREAT,O_RDWR 0644 : fill 0 0 100M 1 : fsync 0
rm f keep
ok "the budget has no leak from the refusal" back_to 0
unmount_fs

# Growth that fails half-way: the mapping, the access.
for entry in cuMemMap cuMemSetAccess cuMemAddressReserve cuMemsetD8Async; do
    enter_mount -e "fault=$entry:2:2:when=$on"
    fsop open keep O_CREAT,O_RDWR 0644 : fill 0 0 3M 1 : fsync 0
    touch "$on"
    got=$(fsop open f O_CREAT,O_RDWR 0644 : fill 0 0 100M 9 : -fsync 0)
    size=$(fsop stat f size)
    like "$entry fails the second time: at most one error, ENOSPC, ENOMEM or EIO" "$got" '^(0|ENOSPC|ENOMEM|EIO)$'
    sees "… what the size claims is there" "same" open f O_RDONLY : check 0 0 "$size" 9
    sees "… and other files are intact" "same" open keep O_RDONLY : check 0 0 3M 1
    rm -f "$on" f keep
    ok "… and all is given back" back_to 0
    unmount_fs
done

done_testing
