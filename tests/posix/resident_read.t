#!/bin/bash
# .resident: every file reads whole with any block size, formats are valid
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_residentfs
enter_mount
fsop open data O_CREAT,O_RDWR 0644 : fill 0 0 3M 1 : fsync 0 : check 0 0 3M 1 >/dev/null

for name in version config buffers status budget metrics telemetry.json log; do
    mapfile -t lines < <("$FSOP" open .resident/$name O_RDONLY : preadcount 0 0 1M)
    between "$name is not empty" "${lines[0]}" 1 1048576
    # One open, one snapshot: the whole at once and byte by byte.
    # shellcheck disable=SC2016 # for the inner shell
    ok "$name byte by byte is the same as at once" bash -c '
        exec 9<".resident/$1"
        by_byte=$(dd bs=1 status=none <&9 | sha256sum)
        # The same open, so the same snapshot, from its start.
        at_once=$(python3 -c "import os, sys; sys.stdout.buffer.write(os.pread(9, 1 << 20, 0))" | sha256sum)
        [ "$by_byte" = "$at_once" ]' - "$name"
done
is "two reads of one open give the same, though the mount changed between" "$(
    exec 9<.resident/budget
    first=$(dd bs=1M status=none <&9)
    fsop open more O_CREAT,O_RDWR 0644 : fill 0 0 8M 1
    # /dev/fd would open anew: read the same description again from 0.
    second=$(python3 -c 'import os; print(os.pread(9, 1 << 20, 0).decode(), end="")')
    [ "$first" = "$second" ] && echo same || printf '%s\n--\n%s\n' "$first" "$second"
)" same
isnt "a new open sees the change" "$(budget_value resident)" 0
rm more
# shellcheck disable=SC2002 # cat is what is tested
is "cat works" "$(cat .resident/version | wc -l)" "$(wc -l <.resident/version)"
ok "tail -c works" test -n "$(tail -c 20 .resident/metrics)"
sees "a read past the end gives nothing" "0" open .resident/status O_RDONLY : preadcount 0 100M 10

like "version names residentfs and a number" "$(cat .resident/version)" '[0-9]+\.[0-9]+'
like "version names libfuse" "$(cat .resident/version)" '[Ff][Uu][Ss][Ee].*3\.[0-9]+'
is "budget has its six lines, in order" "$(awk '{ print $1 }' .resident/budget | tr '\n' ' ')" "total free limit resident available setting "
is "… each with a value" "$(awk 'NF != 2' .resident/budget)" ""
is "… in bytes" "$(awk '$1 != "setting" && $2 !~ /^[0-9]+$/' .resident/budget)" ""
total=$(budget_value total)
between "the limit is at most nine tenths of the total" "$(budget_value limit)" 1 $((total * 9 / 10))
between "resident is at least what was written" "$(budget_value resident)" $((3 << 20)) $((8 << 20))
is "available is the limit less resident" "$(budget_value available)" $(($(budget_value limit) - $(budget_value resident)))

if command -v jq >/dev/null; then
    ok "telemetry.json is JSON" jq -e type .resident/telemetry.json
    is "… an object" "$(jq -r type .resident/telemetry.json)" object
else
    skip "no jq" 2
fi
if command -v promtool >/dev/null; then
    ok "promtool accepts the metrics" bash -c 'promtool check metrics <.resident/metrics'
else
    skip "no promtool"
fi
is "every metric has the prefix" "$(grep -vE '^(#|residentfs_|$)' .resident/metrics)" ""
is "every metric has HELP and TYPE" "$(
    sed -nE 's/^(residentfs_[a-z0-9_]+).*/\1/p' .resident/metrics | sed -E 's/_(bucket|sum|count)$//' | sort -u | while read -r name; do
        grep -q "^# HELP $name " .resident/metrics && grep -q "^# TYPE $name " .resident/metrics || echo "$name"
    done
)" ""
before=$(grep -v '^#' .resident/metrics)
fsop open data O_RDWR : fill 0 0 3M 2 : fsync 0
isnt "writing moves the metrics" "$(grep -v '^#' .resident/metrics)" "$before"
like "status names the device" "$(cat .resident/status)" "${DEVICE%%:*}|NVIDIA"
like "status says what is resident" "$(cat .resident/status)" '[0-9.]+ ?[KMG]iB'

unmount_fs
done_testing
