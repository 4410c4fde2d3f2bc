#!/bin/bash
# long work shows in .resident/status, while it lasts
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_emulated
must_mount -e "bandwidth=30000000"
now() { sed -n 's/^now *//p' "$mnt/.resident/status"; }
is "nothing is going on" "$(now)" "0 bytes/s up, 0 bytes/s back, 0 bytes/s on the device"
dd if=/dev/zero of="$mnt/f" bs=1M count=100 conv=fsync status=none &
writer=$!
ok "a long write shows as a rate" wait_for 'now | grep -qE "^[0-9.]+ MiB/s up, 0 bytes/s back"' 15
# What the emulated device does in a second, and half as much again.
rate=$(now | sed -E 's/^([0-9]+).*/\1/')
between "… that is the device's (MiB/s)" "$rate" 5 45
wait $writer
ok "afterwards it is 0 again" wait_for 'now | grep -q "^0 bytes/s up"' 15
cat "$mnt/f" >/dev/null &
reader=$!
ok "a long read shows" wait_for 'now | grep -qE "MiB/s back"' 15
wait $reader
unmount_fs
done_testing
