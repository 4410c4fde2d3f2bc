#!/bin/bash
# start and stop: usable when it says so, gone when told to
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_emulated
mnt=$work/mnt
mkdir -p "$mnt"
settings=$(emulated_settings "${RESIDENTFS_EMULATED:-}" "memory=256MiB;seed=3")

# background: starts the daemon as a user does; leaves its pid in $daemon_pid.
background() {
    RESIDENTFS_EMULATED=$settings timeout 30 "$RESIDENTFS" "$DEVICE" "$mnt" "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    daemon_pid=$(daemons_of "$mnt" | head -n 1)
    if [ -n "$daemon_pid" ]; then
        mounts=("$mnt" "$daemon_pid")
        echo "$daemon_pid" >>"$work/daemons"
    fi
}

background
is "in the background: the program returns 0" $status 0
is "… and says nothing" "$(cat "$work/out" "$work/err")" ""
ok "… and at once the mount is usable" bash -c "echo x >'$mnt/f' && test \"\$(cat '$mnt/f')\" = x"
isnt "one daemon is there" "$daemon_pid" ""
is "it is in the root directory" "$(readlink "/proc/$daemon_pid/cwd")" /
is "and a session of its own" "$(ps -o sid= -p "$daemon_pid" | tr -d ' ')" "$daemon_pid"
unlike "its standard output is not the caller's" "$(readlink "/proc/$daemon_pid/fd/1")" "$work"
unmount_fs "umount ends it"
is "no daemon is left" "$(daemons_of "$mnt")" ""

output=$(RESIDENTFS_EMULATED=$settings timeout 30 "$RESIDENTFS" "$DEVICE" "$mnt" 2>&1 </dev/null)
is "a caller that reads its output is not held up" "$?$output" 0
daemon_pid=$(daemons_of "$mnt" | head -n 1)
mounts=("$mnt" "${daemon_pid:-0}")
unmount_fs

background -o budget=50%
is "with -o: usable, with the option" "$status $(budget_value setting)" "0 50%"
unmount_fs

for signal in TERM INT; do
    must_mount
    fsop open "$mnt/f" O_CREAT,O_RDWR 0644 : fill 0 0 20M 1
    kill -$signal "$daemon_pid"
    ok "SIG$signal ends the foreground daemon" wait_for "! alive $daemon_pid" 15
    wait "$daemon_pid"
    is "… with 0" $? 0
    not_ok "… and the mount is gone" is_mounted "$mnt"
    is "… the mount point is an empty directory again" "$(ls -A "$mnt")" ""
    mounts=()
done

background
kill -TERM "$daemon_pid"
ok "SIGTERM ends the background daemon" wait_for "! alive $daemon_pid" 15
not_ok "… and the mount is gone" is_mounted "$mnt"
mounts=()

must_mount
mkdir "$mnt/d"
exec 7<"$mnt/d"
kill -TERM "$daemon_pid"
ok "SIGTERM ends it even if a client has a directory open" wait_for "! alive $daemon_pid" 15
exec 7<&-
wait "$daemon_pid"
is "… with 0" $? 0
ok "… and the mount goes" wait_for "! is_mounted '$mnt'" 5
mounts=()

must_mount
echo x >"$mnt/f"
kill -9 "$daemon_pid"
wait "$daemon_pid" 2>/dev/null
mounts=()
not_ok "after kill -9 the mount answers with an error, it does not hang" timeout 10 ls "$mnt/f"
background
is "the next start on the same mount point works" "$status" 0
like "… and says that it removed the dead mount" "$(cat "$work/err")" "lost its daemon"
ok "… and is usable" bash -c "echo y >'$mnt/g' && test \"\$(cat '$mnt/g')\" = y"
is "… and empty but for that: nothing outlives the daemon" "$(ls -A "$mnt")" g
umount "$mnt"
ok "… and ends at umount" wait_for "! alive ${daemon_pid:-1}" 15
while is_mounted "$mnt"; do umount -l "$mnt"; done
mounts=()

must_mount
first=$daemon_pid
must_mount "$work/second"
echo 2 >"$mnt/f"
isnt "two mounts are two daemons" "$daemon_pid" "$first"
mnt=$work/mnt
is "and two file systems" "$(ls -A "$mnt")" ""
unmount_fs "the second unmounts"
ok "the first is usable still" touch "$mnt/f"
unmount_fs "the first unmounts"

must_mount -o ro
not_ok "ro: nothing can be created" touch "$mnt/f"
expect_errno "… EROFS" EROFS open "$mnt/f" O_CREAT,O_WRONLY 0644
ok ".resident can be read" cat "$mnt/.resident/status"
unmount_fs

must_mount
exec 7>"$mnt/busy"
not_ok "umount of a busy mount is refused" umount "$mnt"
ok "… and harms nothing" bash -c "echo more >'$mnt/busy2'"
exec 7>&-
unmount_fs "then it unmounts"

done_testing
