#!/bin/bash
# the daemon's host memory is bounded, whatever the length of the file
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
# What counts is RssAnon: heap, stacks, staging. The emulated device's memory is shared memory (RssShmem) and
# does not; page-locked sizes (VmLck) would count it too where the daemon locks all its memory. The bound is
# 256 MiB more than at the start (when a GPU's driver has taken what it wants): staging and tables, which may
# not grow with what streams through.
only_residentfs
size=1 memory=1280MiB
[ "$LARGE" = 1 ] && size=8 memory=9800MiB
enter_mount -m $memory -e 'fill=off;order=eager'

own_memory() { awk '/^RssAnon:/ { print $2 }' "/proc/$daemon_pid/status"; }

start=$(own_memory)
bound=$((start + (256 << 10))) # KiB
diag "at the start: RssAnon $start KiB; $(grep -E '^Vm(Lck|Pin|RSS)' "/proc/$daemon_pid/status" | tr -s '\t \n' ' ')"
peak=0
watch_while() { # PID: the greatest own memory while the process runs
    local now
    while kill -0 "$1" 2>/dev/null; do
        now=$(own_memory)
        [ "${now:-0}" -le "$peak" ] || peak=$now
        sleep 0.02
    done
}
dd if=/dev/zero of=big bs=1M count=$((size << 10)) status=none 2>"$work/dd.err" &
writer=$!
watch_while $writer
wait $writer
is "a file of $size GiB streams in" "$?$(cat "$work/dd.err")" 0
between "writing: own memory stays under $bound KiB" "$peak" 1 $bound
peak=0
cat big >/dev/null &
reader=$!
watch_while $reader
wait $reader
is "and out" $? 0
between "reading: own memory stays under $bound KiB" "$peak" 1 $bound
between "device memory is where the bytes are" "$(resident_bytes)" $((size << 30)) $((size * 9 << 27))
rm big
ok "resident bytes are none" back_to 0
[[ $DEVICE != emulated* ]] || ok "and shared memory has gone back" wait_for "[ \"\$(awk '/^RssShmem/ { print \$2 }' /proc/$daemon_pid/status)\" -lt 300000 ]" 10
if grep -q libasan "/proc/$daemon_pid/maps"; then
    skip "AddressSanitizer keeps freed memory for a while"
else
    mkdir many
    fsop createmany many 20000
    grown=$(own_memory)
    rm -r many
    fsop createmany . 20000
    between "names that were deleted do not add up" "$(($(own_memory) - grown))" -1000000 20000
fi
unmount_fs
done_testing
