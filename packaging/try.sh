#!/bin/bash
# packaging/try.sh [DEVICE [MOUNTPOINT]]
#
# Installs what is missing (Debian 12), builds into build/, mounts DEVICE (default: emulated, which needs no
# GPU) on MOUNTPOINT (default: a new folder), and starts a shell in it. When the shell ends, it unmounts. Without
# a terminal it leaves the file system mounted and prints where.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build
device=${1:-emulated}
mountpoint=${2:-}
made=''

case $device in
-h | --help)
    sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac

fail() {
    echo "try.sh: $*" >&2
    exit 1
}

# shellcheck source=packaging/packages.sh
. "$root/packaging/packages.sh"
install_packages "$packages_to_build" || fail "what is missing must be installed first"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "Building in $build"
if [ ! -f "$build/build.ninja" ]; then
    meson setup "$build" "$root" -Dtests=false >"$log" 2>&1 || { cat "$log" >&2; fail "the build could not be set up"; }
fi
ninja -C "$build" >"$log" 2>&1 || { cat "$log" >&2; fail "the build failed"; }

[ -e /dev/fuse ] || modprobe -q fuse 2>/dev/null || true
[ -e /dev/fuse ] || fail "there is no /dev/fuse: load the module fuse; in a container: --device /dev/fuse --cap-add SYS_ADMIN"

if [ -z "$mountpoint" ]; then
    mountpoint=$(mktemp -d "${TMPDIR:-/tmp}/vram.XXXXXX")
    made=$mountpoint
fi
mkdir -p "$mountpoint"
mountpoint=$(realpath "$mountpoint")

unmount() {
    if [ "$(id -u)" -eq 0 ]; then
        umount "$mountpoint"
    else
        fusermount3 -u "$mountpoint"
    fi
}

# The daemon says in one line why it cannot mount.
if ! "$build/residentfs" "$device" "$mountpoint" </dev/null; then
    [ -z "$made" ] || rmdir "$made"
    exit 1
fi

case $device in
emulated*) where='host RAM: the device is EMULATED, no byte of this is in a GPU' ;;
*) where="the memory of $device" ;;
esac
unmount_command="fusermount3 -u '$mountpoint'"
[ "$(id -u)" -ne 0 ] || unmount_command="umount '$mountpoint'"
cat <<TEXT

residentfs is mounted on $mountpoint
Its files are in $where.

Try, in that folder:
  cat .resident/status                      how full, how healthy, how fast
  head -c 100M /dev/urandom > a             write a buffer
  od -A x -t x1z a | head                   look at its bytes
  cp --reflink=auto a b && cmp a b          copy on the device, compare
  df -h .                                   the budget
  echo 50% > .resident/budget               change it
  cat .resident/log                         what happened, and what to do about it
Unmount, which frees the buffers: $unmount_command

TEXT

if [ ! -t 0 ] || [ ! -t 1 ]; then
    echo "$mountpoint"
    exit 0
fi

echo "This shell is in $mountpoint; leaving it unmounts."
(cd "$mountpoint" && exec "${SHELL:-/bin/bash}") || true
if unmount; then
    [ -z "$made" ] || rmdir "$made"
    echo "Unmounted."
else
    echo "Still mounted, for something uses it. Later: $unmount_command"
fi
