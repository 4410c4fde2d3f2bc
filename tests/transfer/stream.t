#!/bin/bash
# streams: what goes in comes out
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
bytes=$((256 << 20)) memory=1GiB
[ "$LARGE" = 1 ] && bytes=$((2 << 30)) memory=6GiB
enter_mount -m $memory -e 'fill=off'
start=$(resident_bytes)
random_file "$work/random" $bytes 11
expected=$(sum "$work/random")

ok "dd bs=1M" dd if="$work/random" of=dd bs=1M status=none
is "… comes back" "$(sum dd)" "$expected"
ok "cat" bash -c "cat '$work/random' >cat"
is "… comes back" "$(sum cat)" "$expected"
ok "both are the same, read side by side" cmp dd cat
rm cat
ok "dd over the same file, without truncating, and fsync" dd if="$work/random" of=dd bs=3M conv=notrunc,fsync status=none
is "… is the same" "$(sum dd)" "$expected"
rm dd
ok "resident bytes are what they were" back_to "$start"

head -c 8000000 "$work/random" >"$work/part"
expected=$(sum "$work/part")
for block in 511 4095 4096 4097 65537 1048577; do
    ok "dd bs=$block" dd if="$work/part" of=odd bs=$block status=none
    is "… comes back whole" "$(sum odd)" "$expected"
    is "… and read with bs=$block" "$(dd if=odd bs=$block status=none | sha256sum | cut -d' ' -f1)" "$expected"
done
head -c 50000 "$work/part" >"$work/bytes"
ok "dd bs=1" dd if="$work/bytes" of=bytes bs=1 status=none
is "… read with bs=1" "$(dd if=bytes bs=1 status=none | sha256sum)" "$(sha256sum <"$work/bytes")"
ok "dd backwards: the last block first" bash -c "
    for i in \$(seq 121 -1 0); do dd if='$work/part' of=back bs=65536 skip=\$i seek=\$i count=1 conv=notrunc status=none || exit 1; done"
is "… comes back whole" "$(head -c $((122 * 65536)) back | sha256sum)" "$(head -c $((122 * 65536)) "$work/part" | sha256sum)"

unmount_fs
done_testing
