#!/bin/bash
# programs, the daemon and the mount end in any order, and suddenly
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=clients.sh
. "$(dirname "$0")/clients.sh"
only_residentfs
enter_mount -m 256MiB
sharer open f O_CREAT,O_RDWR : ffill 0 0 5M 1
descriptors=$(daemon_descriptors)

# The program is killed.
for step in "open f O_RDWR,O_DIRECT" "map f" "map f : map f : remap 0" "map f : unmap 0" "map f : write m0 0 x : sync 0" \
    "alloc 3M : attach killed 0 3M" "alloc 4M vmm : attach killed 0 4M"; do
    client a
    say a "$step"
    client_kill a
    ok "killed after \"$step\": its share is counted down" unshared f
    if [ -e killed ]; then
        # shellcheck disable=SC2016
        ok "… its buffer is detached" wait_for '[ "$(fsop getxattr killed user.resident.state)" = detached ]' 10
        expect_errno "… reads give EIO" EIO open killed O_RDONLY : preadcount 0 0 100
        expect_errno "… and writes" EIO open killed O_RDWR : pwrite 0 0 x
        like "… the log says so" "$(cat .resident/log)" "/killed .*EIO.*${client_pid[a]} \\(sharer\\)"
        ok "… the file can be removed" rm killed
    fi
done
is "killed at any point of the conversation, 300 times" "$("$RAWSHARE" leaves f)" "as expected"
ok "… nothing is shared" unshared f
ok "no descriptor is left in the daemon" wait_for "[ \$(daemon_descriptors) -le $descriptors ]" 10
is "the file is as it was" "$(sharer map f : check m0 100 5242780 1)" same

# Killed while it asks, by chance at any point.
for i in {1..25}; do
    "$SHARER" cycle f 1000 >/dev/null 2>&1 &
    pid=$!
    sleep "0.0$((i % 10))"
    kill -9 $pid
    wait $pid 2>/dev/null
done
ok "killed between two steps: nothing is shared" unshared f
ok "… no descriptor is left" wait_for "[ \$(daemon_descriptors) -le $descriptors ]" 10

# A thousand times.
client a
say a cycle f 5
said "5 times, to begin with" a "" "cycle f 5"
before=$(say a counts)
resident=$(resident_bytes)
said "mapped and unmapped a thousand times" a "" "cycle f 1000"
read -r fds_before maps_before <<<"$before"
read -r fds maps <<<"$(say a counts)"
between "… the program has no more descriptors" "$fds" 0 "$fds_before"
between "… nor address ranges" "$maps" 0 $((maps_before + 5))
ok "… the daemon neither" wait_for "[ \$(daemon_descriptors) -le $descriptors ]" 10
is "… nor memory" "$(resident_bytes)" "$resident"
between "… nor threads" "$(find /proc/"$daemon_pid"/task -mindepth 1 -maxdepth 1 | wc -l)" 1 40
client_end a

# The mount goes.
socket=$(cat .resident/socket)
ok "the socket is there" test -S "$socket"
cd "$work" || exit 1
client a
say a "map $mnt/f : fill m0 0 5M 2"
# No file is open: the sharing does not keep the mount.
unmount_fs "unmounts while a program maps a file"
said "… the program keeps the memory" a same "check m0 0 5M 2"
refused "… and learns that the file is gone" a EPIPE sync 0
refused "… also from remap" a EPIPE remap 0
said "… the memory is there still" a same "check m0 0 5M 2 : unmap 0"
ok "… its socket is gone" test ! -e "$socket"
client_end a

# The daemon is told to end, or killed.
for signal in TERM KILL; do
    must_mount -m 256MiB
    sharer open "$mnt/f" O_CREAT,O_RDWR : ffill 0 0 5M 3
    client a
    say a "map $mnt/f : open $mnt/f O_RDWR,O_DIRECT"
    kill -s $signal "$daemon_pid"
    ok "SIG$signal: the daemon ends" wait_for "! alive $daemon_pid" 20
    said "… the program keeps the memory" a same "check m0 0 5M 3"
    refused "… sync fails at once" a EPIPE sync 0
    say a unmap 0
    refused "… a new mapping too" a ENOTCONN "mapfile 0"
    client_end a
    umount -l "$mnt" 2>/dev/null
    wait "$daemon_pid" 2>/dev/null
    mounts=("${mounts[@]:0:${#mounts[@]}-2}")
done

# Another daemon in its place.
must_mount -m 256MiB
cd "$mnt" || exit 1
sharer open f O_CREAT,O_RDWR : ffill 0 0 5M 4
is "a new daemon on the same mount point, after a kill" "$(sharer map f : check m0 0 5M 4)" same
client a
say a map f
client b
say b "alloc 3M : fill d0 0 3M 5 : attach shown 0 3M"
cd "$work" || exit 1
kill -9 "$daemon_pid"
wait "$daemon_pid" 2>/dev/null
said "a buffer whose daemon was killed is the program's as before" b same "check d0 0 3M 5"
said "… it can detach" b "" "detach 0 : free 0"
client_kill a
client_end b
umount -l "$mnt"
mounts=("${mounts[@]:0:${#mounts[@]}-2}")

# A program that does not answer holds nobody up.
enter_mount -m 256MiB
sharer open f O_CREAT,O_RDWR : ffill 0 0 5M 6
cd "$work" || exit 1
client a
say a "map $mnt/f"
cd "$mnt" || exit 1
kill -STOP "${client_pid[a]}"
is "a program that is stopped: others go on" "$(sharer map f : check m0 0 5M 6)" same
ok "… the file grows and shrinks" fsop truncate f 10M : truncate f 3M
cd "$work" || exit 1
unmount_fs "… it unmounts"
kill -KILL "${client_pid[a]}"
client_gone a

# A descriptor of a file system that does not answer.
must_mount -m 64MiB "$work/stuck"
stuck=$mnt
stuck_pid=$daemon_pid
sharer open "$stuck/f" O_CREAT,O_RDWR : ffill 0 0 100000 1
enter_mount -m 64MiB
sharer open f O_CREAT,O_RDWR : ffill 0 0 5M 7
cd "$work" || exit 1
mkfifo "$work/go"
# Somebody has it open: what hangs is the close by the daemon, not the program's.
fsop open "$stuck/f" O_RDWR : waitline <"$work/go" >/dev/null &
exec {go}>"$work/go"
timeout 20 "$RAWSHARE" stuck "$stuck/f" "$mnt/f" "$stuck_pid" >"$work/said" &
sent=$!
wait_for "grep -q sent '$work/said'" 10
wait_for "grep -q request_wait /proc/$daemon_pid/task/*/wchan" 3
is "a descriptor of a file system that hangs: others go on" "$(timeout 20 "$SHARER" map "$mnt/f" : check m0 0 5M 7)" same
kill -TERM "$daemon_pid"
ok "… told to end, the daemon gives that one up" wait_for "grep -qE 'ending without it|info: ended' '$daemon_stderr'" 20
kill -CONT "$stuck_pid"
wait $sent
ok "… and ends once it can" wait_for "! alive $daemon_pid" 20
wait "$daemon_pid" 2>/dev/null
is_mounted "$mnt" && fail "… it is unmounted"
mounts=("${mounts[@]:0:${#mounts[@]}-2}")
exec {go}>&-
unmount_fs "the one that hung unmounts"
done_testing
