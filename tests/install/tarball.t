#!/bin/bash
# the tarball mounts from wherever it is unpacked, with libraries of its own
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_emulated
need meson ninja

nice "$repository/packaging/tarball.sh" "$work/tarball" >"$work/out" 2>&1
is "packaging/tarball.sh makes a tarball" $? 0
mkdir "$work/some where"
tar -C "$work/some where" -xzf "$work"/tarball/residentfs-*.tar.gz
RESIDENTFS=$(echo "$work/some where"/residentfs-*/bin/residentfs)
must_mount
is "it mounts, with its own libraries" \
    "$(sed -nE "s,.* $work/some where/[^/]*/(lib/.*),\1,p" "/proc/$daemon_pid/maps" | sort -u | tr '\n' ' ')" \
    "lib/libfuse3.so.3 lib/libinih.so.1 lib/residentfs/libresidentfs-emulated.so "
ok "… and works" sh -c "echo x >'$mnt/f' && test \"\$(cat '$mnt/f')\" = x"
like "it has the manual" "$(find "$work/some where" -name residentfs.8)" man8/residentfs.8
unmount_fs
done_testing
