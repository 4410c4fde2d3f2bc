#!/bin/bash
# too little of everything: page-locked memory, staging, descriptors; stopped and killed processes
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_residentfs
only_emulated

# anonymous: kB of host memory of the daemon that are its own.
anonymous() {
    awk '$1 == "RssAnon:" { print $2 }' "/proc/$daemon_pid/status"
}

# -- page-locked memory refused, and limited --
for pinned in 0 3MiB; do
    must_mount -e "pinned=$pinned"
    random_file "$work/random" $((9 << 20)) 3
    cp "$work/random" "$mnt/f"
    is "pinned=$pinned: what is written is read" "$(sum "$mnt/f")" "$(sum "$work/random")"
    like "… and the log says that copies are slower, and why" "$(cat "$mnt/.resident/log")" "page-locked memory refused.*ulimit -l"
    like "… and so does status" "$(cat "$mnt/.resident/status")" "degraded"
    unmount_fs
done

# -- 64 writers and 8 MiB of staging, on a slow bus --
must_mount -o staging=8MiB,max_write=64KiB -e "bandwidth=400MiB;latency=200000"
before=$(anonymous)
writers=()
for ((i = 0; i < 64; i++)); do
    "$FSOP" open "$mnt/w$i" O_CREAT,O_RDWR 0644 : fill 0 0 512K $((i + 1)) : fsync 0 : check 0 0 512K $((i + 1)) >"$work/w$i" 2>&1 &
    writers+=($!)
done
bad=0
for pid in "${writers[@]}"; do wait "$pid" || bad=$((bad + 1)); done
is "64 writers wait for staging, and all are served" "$bad $(sort "$work"/w[0-9]* | uniq -c)" "0      64 same"
between "… and host memory stays flat (kB more)" $(($(anonymous) - before)) -100000 32768
own=$(sed -n 's/^workers //p' "$mnt/.resident/version")
grep -q '^clone_fd yes' "$mnt/.resident/version" || own=0
is "FUSE descriptors: the mount's, and one for each worker if libfuse lets it have one" \
    "$(find "/proc/$daemon_pid/fd" -lname /dev/fuse | wc -l)" $((own + 1))
peak=$(jq .staging_peak_bytes "$mnt/.resident/telemetry.json")
between "… staging within its cap and the receive buffers" "$peak" 1 $((64 << 20))
unmount_fs

# -- no descriptors left --
for limit in 6 9 11 13 16 40; do
    mkdir -p "$work/limited"
    (
        ulimit -n $limit
        RESIDENTFS_EMULATED="memory=64MiB" exec timeout 20 "$RESIDENTFS" emulated "$work/limited" -f
    ) >"$work/limited.out" 2>&1 &
    pid=$!
    echo $pid >>"$work/daemons"
    wait_for "is_mounted '$work/limited' || ! alive $pid" 15
    if wait_for "is_mounted '$work/limited' && [ -e '$work/limited/.resident/version' ]" 2; then
        ok "$limit descriptors: it works" bash -c "echo x >'$work/limited/f' && grep -q x '$work/limited/f'"
        like "… with one FUSE descriptor for all workers, as status says" \
            "$(cat "$work/limited/.resident/status")" 'share one FUSE descriptor'
        umount "$work/limited"
        wait $pid
        is "… and ends well" $? 0
    else
        wait $pid
        isnt "$limit descriptors: it does not start" $? 0
        like "… and says why" "$(cat "$work/limited.out")" "[Tt]oo many open files|cannot"
        not_ok "… and leaves no mount behind" is_mounted "$work/limited"
    fi
done

# -- very many open files --
hostile=$(dirname "$FSOP")/hostile
many=20000
[ "$LARGE" = 0 ] || many=100000
enter_mount
"$FSOP" open f O_CREAT,O_RDWR 0644 : fill 0 0 8M 1 : fsync 0
empty=$(anonymous)
mkfifo "$work/hold"
HOLD=1 "$hostile" open f $many <"$work/hold" >"$work/opened" &
client=$!
exec 8>"$work/hold"
wait_for "[ -s '$work/opened' ]" 120
is "$many open files at once" "$(cat "$work/opened")" $many
# An allocation of glibc's for each; ASan's take more, and are kept.
if grep -q __asan_init "$RESIDENTFS"; then
    skip "host memory with a sanitizer"
else
    each=$((($(anonymous) - empty) * 1024 / many))
    between "… take host memory of the daemon, in bytes each" $each 1 256
    diag "$each bytes each"
fi
is "a process that may open no more is told, and has the rest" \
    "$(ulimit -n 100; "$hostile" open f 200 | sed 's/^9[0-9] /about 95 /')" "about 95 EMFILE"
rm f
works "the daemon opens others meanwhile" open g O_CREAT,O_RDWR 0644 : fill 0 0 1M 1 : check 0 0 1M 1
between "… and what is open keeps its memory" "$(resident_bytes)" $((8 << 20)) $((20 << 20))
exec 8>&-
wait $client
ok "when they are closed all are released: the file's memory is given back" back_to $((2 << 20))
unmount_fs

# -- the daemon stopped for a while --
enter_mount -e "latency=100000"
"$FSOP" open f O_CREAT,O_RDWR 0644 : fill 0 0 8M 1 : fsync 0
kill -STOP "$daemon_pid"
"$FSOP" open f O_RDWR : fill 0 1M 4M 2 : fsync 0 : check 0 1M 4M 2 >"$work/stopped" 2>&1 &
client=$!
sleep 0.5
ok "while the daemon is stopped, a client waits" kill -0 $client
kill -CONT "$daemon_pid"
wait $client
is "… and goes on when it goes on" "$?$(cat "$work/stopped")" 0same
works "… and the bytes are right" open f O_RDONLY : check 0 0 1M 1

# -- a client killed in the middle of a write --
for ((i = 0; i < 12; i++)); do
    dd if=/dev/zero of=killed bs=4M count=64 status=none 2>/dev/null &
    client=$!
    sleep 0.0$((RANDOM % 9 + 1))
    kill -9 $client
    wait $client 2>/dev/null
done
ok "after 12 clients were killed in the middle, the file can be read" bash -c "cat killed >/dev/null"
ok "… deleted" rm killed
ok "… and all but the other is given back" back_to $((8 << 20))
works "… whose bytes are what they were" open f O_RDONLY : check 0 0 1M 1 : check 0 5M 3M 1

# -- unmounted lazily with files open --
exec 7<f
cd "$work" || exit 1
umount -l "$mnt"
works "a file that is open when the mount goes lazily can be read on" open "/proc/$$/fd/7" O_RDONLY : check 0 0 1M 1
ok "… the daemon lives as long" alive "$daemon_pid"
exec 7<&-
ok "… and ends with it" wait_for "! alive $daemon_pid" 20
wait "$daemon_pid"
is "… well" $? 0
mounts=()

# -- killed --
enter_mount
"$FSOP" open f O_CREAT,O_RDWR 0644 : fill 0 0 8M 1
exec 7<f
kill -9 "$daemon_pid"
wait "$daemon_pid" 2>/dev/null
expect_errno "after kill -9: reads of open files give ENOTCONN" ENOTCONN open "/proc/$$/fd/7" O_RDONLY : read 0 4
exec 7<&-
cd "$work" || exit 1
umount -l "$mnt"
mounts=()
enter_mount
is "… the next mount on the same folder is fresh" "$(ls -A)" ""
works "… and works" open f O_CREAT,O_RDWR 0644 : fill 0 0 8M 1 : fsync 0 : check 0 0 8M 1
unmount_fs
done_testing
