#!/bin/bash
# who shares what, for people and for programs
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=clients.sh
. "$(dirname "$0")/clients.sh"
only_residentfs
enter_mount -m 256MiB
metric() { awk -v name="residentfs_$1" '$1 ~ "^" name "([{]|$)" { print $NF }' .resident/metrics; }
column() { awk -v path="$1" '$NF == path || $NF == "/" path { print $(NF - '"$2"') }' .resident/buffers; }

sharer open f O_CREAT,O_RDWR : ffill 0 0 3000000 1 : open g O_CREAT,O_RDWR : ffill 1 0 100 1
is "nobody shares" "$(column f 1) $(column g 1)" "- -"
is "the attribute says so" "$(shares f)" 0
is "the state is ok" "$(column f 2) $(fsop getxattr f user.resident.state)" "ok ok"
like "status: the socket is open" "$(grep '^shared' .resident/status)" '0 mappings.*0 buffers'
is "the metrics" "$(metric mappings) $(metric mapped_bytes) $(metric attachments) $(metric attached_bytes)" "0 0 0 0"
client a
client b
say a "map f : map g"
say b "map f : alloc 3M : attach shown 0 1M : attach shown2 0 1M 1M"
pid_a=${client_pid[a]} pid_b=${client_pid[b]}
is "two share a file" "$(shares f) $(shares g)" "2 1"
like "… by process and name" "$(column f 1)" "^($pid_a:sharer,$pid_b:sharer|$pid_b:sharer,$pid_a:sharer)$"
is "… each where it is" "$(column g 1) $(column shown 1)" "$pid_a:sharer $pid_b:sharer"
is "… the states" "$(column f 2) $(column shown 2)" "ok attached"
is "the metrics count them" "$(metric mappings) $(metric attachments) $(metric attached_bytes)" "3 2 2097152"
between "… with their bytes" "$(metric mapped_bytes)" 6000100 16777216
like "status too" "$(grep '^shared' .resident/status)" '3 mappings of .*; 2 buffers of theirs, 2(\.0)? ?MiB'
ok "each file has a line" test "$(wc -l <.resident/buffers)" -eq 5
if command -v promtool >/dev/null; then ok "promtool takes the metrics" promtool check metrics <.resident/metrics; fi
like "the log tells who came" "$(cat .resident/log)" "/f is mapped by process $pid_a \\(sharer\\) of user 0"
say b detach 0
is "detached" "$(column shown 2) $(column shown 1) $(column shown2 2)" "detached - attached"
like "… the log tells" "$(cat .resident/log)" "/shown gives EIO .*$pid_b"
client_end b
# shellcheck disable=SC2016
ok "one has gone" wait_for '[ "$(shares f)" = 1 ]' 10
is "… the other is left" "$(column f 1)" "$pid_a:sharer"
# shellcheck disable=SC2016
ok "… and the attachments are" wait_for '[ "$(metric attachments)" = 0 ]' 10
expect_errno "the attributes cannot be set" EPERM setxattr f user.resident.shares 7
sees "… and are not listed" "" listxattr f
# A name that a program gives itself.
cp "$SHARER" "$work/a:b,c d"
library=$(dirname "$RESIDENTFS")/core
LD_LIBRARY_PATH=$library/share:$(dirname "$FSOP")/../../core/share \
    RESIDENTFS_EMULATED_LIBRARY=${RESIDENTFS_EMULATED_LIBRARY:-$library/driver/libresidentfs-emulated.so} \
    "$work/a:b,c d" map g : sleep 1 >"$work/named" 2>&1 &
named=$!
# shellcheck disable=SC2016
wait_for '[ "$(shares g)" = 2 ]' 10
like "a program with an odd name is in one word" "$(column g 1)" ':a\?b\?c\?d,?'
wait $named
client_end a
unmount_fs
done_testing
