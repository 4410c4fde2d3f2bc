#!/bin/bash
# what root's daemon may still do once it serves, in each of its threads, and that it is enough
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=../share/clients.sh
. "$(dirname "$0")/../share/clients.sh"
only_residentfs
only_emulated
[ "$(id -u)" = 0 ] || skip_all "needs root"
need setpriv
# Other users may not get to where these were built.
mkdir "$work/bin"
cp -L "$RESIDENTFS" "$SHARER" "$(dirname "$FSOP")/../../core/share/libresident.so.1" "$work/bin"
cp -L "${RESIDENTFS_EMULATED_LIBRARY:-$(dirname "$RESIDENTFS")/core/driver/libresidentfs-emulated.so}" "$work/bin"
export LD_LIBRARY_PATH=$work/bin RESIDENTFS_EMULATED_LIBRARY=$work/bin/libresidentfs-emulated.so
SHARER=$work/bin/sharer RESIDENTFS=$work/bin/residentfs

ipc_lock=14 admin=21 search=2 setpcap=8
# Page-locking takes a capability only where it is limited, and that limit could not be raised.
"$(command -v prlimit)" --memlock=unlimited true 2>/dev/null && locking=0 || locking=$((1 << ipc_lock))
unmounting=$((locking | 1 << admin | 1 << search))
# status_of NAME THREAD: a line of its /proc status, as a number.
status_of() { echo $((0x$(sed -n "s/^$1:\t//p" "/proc/$2/status"))); }
count_threads() { find "/proc/$daemon_pid/task" -mindepth 1 -maxdepth 1 | wc -l; }
# mount_and_start: not only mounted, but past its start.
mount_and_start() {
    must_mount -o log_level=debug "$@"
    wait_for "grep -q 'debug: capabilities: ' '$daemon_stderr'" 10
}
# wrong: the threads of the daemon that have other privileges than they should.
wrong() {
    local path thread name expected got
    for path in "/proc/$daemon_pid/task"/*; do
        thread=${path##*/}
        for name in CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs; do
            case $name in
            CapInh | CapAmb) expected=0 ;;
            CapEff) expected=$locking ;;
            NoNewPrivs) expected=1 ;;
            *) [ "$thread" = "$daemon_pid" ] && expected=$unmounting || expected=$locking ;;
            esac
            got=$(status_of $name "$daemon_pid/task/$thread")
            [ "$got" = "$expected" ] || echo "$(cat "$path/comm") $thread: $name $got, not $expected"
        done
    done
}

mount_and_start
like "the log says what is kept" "$(cat "$mnt/.resident/log")" 'debug: capabilities: .*kept for unmounting: CAP_SYS_ADMIN'
unlike "… and of nothing that could not be dropped" "$(cat "$mnt/.resident/log")" 'could not drop'
is "in the foreground: the main thread can unmount, the others nothing" "$(wrong)" ""
before=$(count_threads)
between "… of several" "$before" 4 99
mkdir -m 1777 "$mnt/d"
client a setpriv --reuid=$nobody --regid=$nobody --clear-groups
say a open "$mnt/d/f" O_CREAT,O_RDWR : ffill 0 0 5M 1 : map "$mnt/d/f" >/dev/null
is "a user maps a file" "$(say a check m0 0 5M 1)" same
like "… and is named" "$(cat "$mnt/.resident/buffers")" "${client_pid[a]}:sharer"
between "a thread that started later" "$(count_threads)" $((before + 1)) 99
is "… has no more" "$(wrong)" ""
client_end a
socket=$(cat "$mnt/.resident/socket")
unmount_fs "it ends when somebody unmounts"
not_ok "… and removes its socket" test -e "$socket"

# Threads of a driver, which block signals.
mount_and_start -e order=eager
"$FSOP" open "$mnt/f" O_CREAT,O_RDWR 0644 : fill 0 0 8M 1 : fsync 0
like "there are threads that are the driver's" "$(cat "/proc/$daemon_pid/task"/*/comm)" emulated-gpu
is "… which have no more either" "$(wrong)" ""
unmount_fs

# The way to the mount point is open to its owner only, who is not root.
install -d -m 700 -o $nobody "$work/closed"
mount_and_start "$work/closed/mnt"
kill "$daemon_pid"
wait "$daemon_pid"
is "SIGTERM: it ends well" $? 0
not_ok "… and unmounts, below a folder that is closed to others too" is_mounted "$work/closed/mnt"
mounts=()

mnt=$work/mnt
RESIDENTFS_EMULATED=memory=64MiB "$RESIDENTFS" emulated "$mnt"
daemon_pid=$(daemons_of "$mnt" | head -n 1)
mounts=("$mnt" "$daemon_pid")
echo "$daemon_pid" >>"$work/daemons"
is "in the background: the same" "$(wrong)" ""
kill "$daemon_pid"
ok "SIGTERM: it unmounts, and ends" wait_for "! alive $daemon_pid && ! is_mounted '$mnt'" 15
mounts=()

must_mount -o on_device_lost=exit -e "fault=cuMemGetInfo:1+:700:sticky:when=$work/lost"
touch "$work/lost"
wait "$daemon_pid"
is "a lost device ends it" $? 69
not_ok "… and it unmounts" is_mounted "$mnt"
mounts=()

# What it may not drop it says, and goes on: without CAP_SETPCAP the bounding set stays.
if (($(status_of CapBnd self) >> setpcap & 1)); then
    mkdir "$work/limited"
    cat >"$work/limited/residentfs" <<SCRIPT
#!/bin/sh
exec setpriv --bounding-set=-setpcap "$RESIDENTFS" "\$@"
SCRIPT
    chmod +x "$work/limited/residentfs"
    RESIDENTFS=$work/limited/residentfs mount_and_start
    like "what cannot be dropped is told" "$(cat "$mnt/.resident/log")" \
        'warning: [0-9]+ of [0-9]+ threads could not drop .*: Operation not permitted'
    is "… the rest is" "$(status_of CapPrm "$daemon_pid")" $unmounting
    ok "… and it serves" bash -c "echo x >'$mnt/f' && grep -q x '$mnt/f'"
    unmount_fs
else
    skip "no CAP_SETPCAP here" 4
fi
done_testing
