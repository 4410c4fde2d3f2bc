#!/bin/bash
# files that are being written or read show in .resident/status: how far, how fast, how long it will take
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_emulated
[ "$(id -u)" -eq 0 ] || skip_all "needs root"
need python3
MOUNT_OPTIONS= # with cache=on, what the page cache has is not read from the daemon
must_mount -e "bandwidth=30000000"
chmod 1777 "$mnt"
busy() { sed -n '/^busy/,/^[a-z]/{ s/^busy *//p; s/^   *//p; }' "$mnt/.resident/status"; }
# shows PATTERN LIMIT: leaves the line in $work/line when there is such a one
# shellcheck disable=SC2016
shows() { wait_for 'busy | grep -E -- '"'$1'"' >"$work/line"' "$2"; }
is "nothing is going on" "$(busy)" ""

# 120 MiB take four seconds.
truncate -s 120M "$mnt/model"
dd if=/dev/zero of="$mnt/model" bs=1M count=120 conv=notrunc,fsync status=none &
writer=$!
ok "its length was set before: how far, how fast, how long still" \
    shows '^[3-9][0-9]\.0 MiB of 120\.0 MiB written, [0-9.]+ MiB/s, [0-9]+ s left: /model$' 20
# "NN.0 MiB of 120.0 MiB written, RR.R MiB/s, S s left"
read -r position _ _ _ _ _ rate _ left _ <"$work/line"
between "… at the speed of the device (MiB/s)" "${rate%.*}" 10 60
expected=$(awk -v p="$position" -v r="$rate" 'BEGIN { print int((120 - p) / r) + 1 }')
between "… and the time left is what is left at that rate" "$left" $((expected - 1)) $((expected + 1))
wait $writer
# shellcheck disable=SC2016
ok "afterwards there is no such line" wait_for '[ -z "$(busy)" ]' 10

cat "$mnt/model" >/dev/null &
reader=$!
ok "read from the start on: how much of it" shows '^[2-9][0-9]\.[0-9] MiB of 120\.0 MiB read, [0-9.]+ MiB/s, [0-9]+ s left: /model$' 20
wait $reader

dd if=/dev/zero of="$mnt/stream" bs=1M count=90 status=none &
writer=$!
ok "nobody knows where it ends: how much so far" shows '^[3-9][0-9]\.0 MiB written so far, [0-9.]+ MiB/s: /stream$' 20
unlike "… and no more" "$(cat "$work/line")" 'left| of '
wait $writer

# Every second MiB from the end to the start, twice: much is written, in no order.
python3 - "$mnt/model" <<'PYTHON' &
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY)
for number in list(range(118, 0, -2)) * 2:
    os.pwrite(fd, bytes(1 << 20), number << 20)
PYTHON
writer=$!
ok "out of order: how much so far" shows '^[2-9][0-9]\.0 MiB written so far, [0-9.]+ MiB/s: /model$' 20
unlike "… but no end is foretold" "$(busy)" ' of '
wait $writer

mkdir -m 700 "$mnt/closed"
truncate -s 90M "$mnt/closed/mine"
chown $nobody "$mnt/closed/mine"
dd if=/dev/zero of="$mnt/closed/mine" bs=1M count=90 conv=notrunc status=none &
writer=$!
ok "root is told of a file in a closed directory" shows ': /closed/mine$' 20
like "its owner is told its name, not where" "$(as_nobody cat "$mnt/.resident/status")" ' of 90\.0 MiB written, .*: mine$'
another=$(setpriv --reuid=$other --regid=$other --clear-groups cat "$mnt/.resident/status")
unlike "another user is not" "$another" '^busy|mine'
like "… though he can read the rest" "$another" '^health'
wait $writer

# Seven at once; the length is what counts.
python3 - "$mnt" >"$work/lines" <<'PYTHON'
import os, sys, time
mount = sys.argv[1]
fds = [os.open(f"{mount}/part{i}", os.O_WRONLY | os.O_CREAT) for i in range(1, 8)]
for i, fd in enumerate(fds, 1):
    os.ftruncate(fd, (100 + i) << 20)
for round in range(2):
    for fd in fds:
        os.write(fd, bytes(1 << 20))
status = lambda: open(f"{mount}/.resident/status").read()
print(status())
until = time.monotonic() + 10
while "busy" in status() and time.monotonic() < until:
    time.sleep(0.1)
print("open and idle" if "busy" not in status() else "busy for good")
PYTHON
is "of many, the biggest five show, and how many more there are" \
    "$(sed -n '/^busy/,/^[a-z]/s/^.* of .*: //p; s/^  *and/and/p' "$work/lines" | paste -sd' ')" \
    "/part7 /part6 /part5 /part4 /part3 and 2 more"
is "… and files that are open, but left alone, do not" "$(tail -n 1 "$work/lines")" "open and idle"
unmount_fs
done_testing
