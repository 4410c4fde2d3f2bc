#!/bin/bash
# .resident/config: can be fed back
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_emulated # on a GPU the tests give a budget of their own with each mount
must_mount -o budget=50%
cp "$mnt/.resident/config" "$work/first.conf"
like "it shows what was set" "$(cat "$work/first.conf")" '^ *budget *= *50%'
setting=$(budget_value setting)
is "the setting is in force" "$setting" "50%"
unmount_fs
MOUNT_OPTIONS=
must_mount -c "$work/first.conf"
is "a mount with that file has the same setting" "$(budget_value setting)" "50%"
is "and the same configuration" "$(cat "$mnt/.resident/config")" "$(cat "$work/first.conf")"
unmount_fs
must_mount -c "$work/first.conf" -o budget=40%
is "-o comes on top of the file" "$(budget_value setting)" "40%"
unmount_fs
done_testing
