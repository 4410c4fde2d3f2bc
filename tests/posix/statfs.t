#!/bin/bash
# statfs and df: size, use, free, after writing and deleting
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount -m 512MiB

total() { df -B1 --output=size . | tail -n 1 | tr -d ' '; }
used() { df -B1 --output=used . | tail -n 1 | tr -d ' '; }
avail() { df -B1 --output=avail . | tail -n 1 | tr -d ' '; }

between "the size is at most the device's, and most of it" "$(total)" $((400 << 20)) $((512 << 20))
between "an empty mount uses little" "$(used)" 0 $((32 << 20))
start=$(used)
start_avail=$(avail)
fsop open a O_CREAT,O_WRONLY 0644 : fill 0 0 100M 1
between "100 MiB more are used" "$(($(used) - start))" $((100 << 20)) $((116 << 20))
between "and are no longer available" "$((start_avail - $(avail)))" $((89 << 20)) $((116 << 20))
rm a
ok "after deleting: as before" wait_for "[ \"\$(used)\" -le $start ]" 10
is "names may be 255 bytes" "$(stat -f -c %l .)" 255
isnt "there is a block size" "$(stat -f -c %S .)" 0
inodes=$(df --output=iused . | tail -n 1 | tr -d ' ')
touch {1..20}
is "df -i counts files" "$(df --output=iused . | tail -n 1 | tr -d ' ')" $((inodes + 20))
if [ "$FS_UNDER_TEST" = residentfs ]; then
    is "df shows the device as source" "$(df --output=source . | tail -n 1)" "$DEVICE"
    is "its type is fuse.residentfs" "$(findmnt -n -o FSTYPE "$mnt")" fuse.residentfs
else
    skip "about residentfs" 2
fi

unmount_fs
done_testing
