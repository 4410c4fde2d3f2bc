#!/bin/bash
# a start that cannot work says why in one line, and what to do
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_residentfs
mnt=$work/mnt
mkdir -p "$mnt"
unset RESIDENTFS_EMULATED

# refuses NAME PATTERN ARGUMENTS…: ends with an error, mounts nothing, and says one line that matches.
refuses() {
    local name=$1 pattern=$2 status text
    shift 2
    timeout 30 "$RESIDENTFS" "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    text=$(cat "$work/err")
    if is_mounted "$mnt"; then
        umount "$mnt"
        fail "$name" "residentfs $* mounted"
    elif [ $status -eq 0 ] || [ $status -ge 124 ]; then
        fail "$name" "residentfs $* ended with $status: $text"
    elif [ "$(wc -l <"$work/err")" -ne 1 ]; then
        fail "$name" "residentfs $*: not one line on standard error: $text"
    elif [ -s "$work/out" ]; then
        fail "$name" "residentfs $*: text on standard output: $(cat "$work/out")"
    else
        like "$name" "$text" "$pattern"
    fi
}

refuses "an unknown kind of device" 'opencl:0.*(cuda|emulated)' opencl:0 "$mnt"
refuses "a count of emulated devices that is none" 'emulated:x|number|count' emulated:x "$mnt"
refuses "a negative device" '-1' cuda:-1 "$mnt"
refuses "an empty device" '[Dd]evice|DEVICE' "" "$mnt"
if ldconfig -p | grep -q libcuda.so.1; then
    refuses "a GPU that is not there" '99' cuda:99 "$mnt"
    refuses "a UUID that no GPU has" 'GPU-00000000-0000-0000-0000-000000000000' cuda:GPU-00000000-0000-0000-0000-000000000000 "$mnt"
    skip "this machine has a CUDA driver"
else
    refuses "no CUDA driver: says so, and the way to try without a GPU" 'CUDA.*emulated' cuda:0 "$mnt"
    refuses "the same for a GPU by number" 'CUDA.*emulated' cuda:99 "$mnt"
    refuses "and by UUID" 'CUDA.*emulated' cuda:GPU-00000000-0000-0000-0000-000000000000 "$mnt"
fi
refuses "a malformed UUID" 'GPU-nonsense' cuda:GPU-nonsense "$mnt"
refuses "a malformed PCI id" 'zz:00|zz' cuda:zz:00.0 "$mnt"
refuses "a mount point that is missing" "$work/none.*(mkdir|create|not exist|missing|No such)" emulated "$work/none"
touch "$work/file"
refuses "a mount point that is a file" "$work/file.*([Nn]ot a directory)" emulated "$work/file"
refuses "no mount point" '[Mm]ount ?point|MOUNTPOINT' emulated
refuses "three arguments" 'extra|unexpected|too many|argument' emulated "$mnt" extra
refuses "an unknown option: the nearest name" 'budgt.*budget' emulated "$mnt" -o budgt=80%
refuses "an unknown option beside good ones" 'cahce.*cache' emulated "$mnt" -o budget=50%,cahce=on
refuses "an unknown option like no other" 'qqqqqqqq' emulated "$mnt" -o qqqqqqqq
refuses "an unknown long option" 'no-such' emulated "$mnt" --no-such
for value in -5 0x -1% 101% 12XiB garbage 99999999999999999999GiB '' '10 GiB x'; do
    refuses "budget=$value" 'budget' emulated "$mnt" -o "budget=$value"
done

# The configuration that a mount shows, with one key misspelt.
must_mount
cp "$mnt/.resident/config" "$work/good.conf"
unmount_fs
sed -E 's/^#? ?budget *=.*/budgt = 80%/' "$work/good.conf" >"$work/key.conf"
line=$(grep -n '^budgt' "$work/key.conf" | cut -d: -f1)
help=$("$RESIDENTFS" --help 2>&1)
refuses "an unknown key in the file: file, line, key, the nearest name" "key\\.conf:$line\\b.*budgt.*budget" emulated "$mnt" --config "$work/key.conf"
printf 'this is no ini\n' >"$work/syntax.conf"
printf '\n[nosuch]\n' >"$work/section.conf"
refuses "an unknown section: file and line" 'section\.conf:2.*nosuch' emulated "$mnt" --config "$work/section.conf"
sed -E 's/^#? ?budget *=.*/budget = plenty/' "$work/good.conf" >"$work/value.conf"
refuses "a wrong value in the file: file, line, value" "value\\.conf:$line\\b.*plenty" emulated "$mnt" --config "$work/value.conf"
refuses "no INI: file and line" 'syntax\.conf:1' emulated "$mnt" --config "$work/syntax.conf"
refuses "a configuration file that is missing" 'none\.conf' emulated "$mnt" --config "$work/none.conf"
for setting in memery=1GiB memory=garbage; do
    # The driver library, a thing of tests, says more than one line.
    got=$(RESIDENTFS_EMULATED=$setting "$RESIDENTFS" emulated "$mnt" 2>&1) && got="it started"
    like "a setting of the emulated driver that is wrong: $setting" "$got" "$setting"
done

like "--help names every form" "$help" 'residentfs.*DEVICE.*MOUNTPOINT'
for option in budget cache allow_other; do
    like "--help has $option" "$help" "$option"
done
ok "--help ends with 0" "$RESIDENTFS" --help
ok "--version ends with 0" "$RESIDENTFS" --version
like "--version says a version" "$("$RESIDENTFS" --version 2>&1)" 'residentfs.*[0-9]+\.[0-9]+'
RESIDENTFS_EMULATED='devices=3' "$RESIDENTFS" --list-devices >"$work/list" 2>&1
is "--list-devices ends with 0" $? 0
like "--list-devices names emulated devices as such" "$(cat "$work/list")" '[Ee]mulated'
like "… with a UUID" "$(cat "$work/list")" 'GPU-[0-9a-f]{8}-'
like "… a PCI id" "$(cat "$work/list")" '[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9]'
like "… and memory" "$(cat "$work/list")" '[0-9.]+ ?[MG]iB'

done_testing
