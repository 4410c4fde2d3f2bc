#!/bin/bash
# .resident/budget: set at run time, refuses what makes no sense
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_emulated
must_mount -m 1000MiB -o budget=100%
budget=$mnt/.resident/budget
total=$(budget_value total)
nine=$((total * 9 / 10))

set_budget() { "$FSOP" open "$budget" O_WRONLY : write 0 "$1"; }

between "the limit is at most nine tenths of what is free" "$(budget_value limit)" $((total * 7 / 10)) "$nine"
for value in 50% 600MiB auto 30% 400MiB; do
    is "write $value" "$(set_budget "$value")" ""
    is "… the setting says so" "$(budget_value setting)" "$value"
done
is "400 MiB is the limit then" "$(budget_value limit)" $((400 << 20))
set_budget 30%
is "30 % of the total" "$(budget_value limit)" $((total * 30 / 100))
ok "echo with its newline works" bash -c "echo 40% >'$budget'"
is "… 40 %" "$(budget_value limit)" $((total * 40 / 100))

before=$(grep -E '^(limit|setting|total)' "$budget")
for value in -1 -5% 101% 0x10 12XiB garbage '' 99999999999999999999 18446744073709551616GiB '80 % x' 1e9 '%' GiB $'50%\n60%' "$(printf '9%.0s' {1..5000})"; do
    printf -v shown %q "${value:0:40}"
    lines=$(wc -l <"$mnt/.resident/log")
    if [ -z "$value" ]; then
        # A write of nothing does not reach the daemon: a line without a value does.
        value=$'\n'
    fi
    expect_errno "writing $shown" EINVAL open "$budget" O_WRONLY : write 0 "$value"
    is "… changes nothing" "$(grep -E '^(limit|setting|total)' "$budget")" "$before"
    ok "… and the log has a line about it" test "$(wc -l <"$mnt/.resident/log")" -gt "$lines"
done
like "that line says what was expected" "$(tail -n 1 "$mnt/.resident/log")" '80%|auto|GiB|percent'

set_budget auto
fsop open "$mnt/a" O_CREAT,O_RDWR 0644 : fill 0 0 200M 1 : fsync 0
is "a budget below what is resident" "$(set_budget 100MiB)" ""
# One snapshot: slack may still be on its way back after the close.
is "… makes the limit what is resident, nothing is available" \
    "$(awk '{ value[$1] = $2 } END { print (value["limit"] == value["resident"]), value["available"] }' "$budget")" "1 0"
expect_errno "… and a write needs more: ENOSPC" ENOSPC open "$mnt/b" O_CREAT,O_RDWR 0644 : fill 0 0 20M 1
sees "what is there stays" "same" open "$mnt/a" O_RDONLY : check 0 0 200M 1
truncate -s 20M "$mnt/a"
ok "after a shrink there is room up to the budget" wait_for "[ \"\$(budget_value available)\" -gt 0 ]" 10
is "the limit is the budget again" "$(budget_value limit)" $((100 << 20))
works "… a write fits" open "$mnt/b" O_CREAT,O_RDWR 0644 : fill 0 0 20M 1
rm "$mnt/a" "$mnt/b"
ok "all is given back" back_to 0
unmount_fs

# Another process takes memory of the device.
echo 0 >"$work/other"
must_mount -m 1000MiB -e "other_file=$work/other"
budget=$mnt/.resident/budget
alone=$(budget_value free)
echo $((700 << 20)) >"$work/other"
ok "what others take is seen in free" wait_for "[ \"\$(budget_value free)\" -le $((alone - (600 << 20))) ]" 15
between "and in the limit: nine tenths of what is free" "$(budget_value limit)" 1 $(($(budget_value total) * 27 / 100))
expect_errno "a write past that: ENOSPC" ENOSPC open "$mnt/c" O_CREAT,O_RDWR 0644 : fill 0 0 400M 1
rm "$mnt/c"
echo 0 >"$work/other"
ok "when they leave, it is free again" wait_for "[ \"\$(budget_value free)\" -ge $((alone - (32 << 20))) ]" 15
works "… and can be used" open "$mnt/c" O_CREAT,O_RDWR 0644 : fill 0 0 400M 1
unmount_fs

done_testing
