#!/bin/bash
# io_uring=on: the same bytes by the other transport, at any size and end; and what is said where it is impossible
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_emulated
MOUNT_OPTIONS=
kernel=/sys/module/fuse/parameters/enable_uring
pages=/proc/sys/fs/fuse/max_pages_limit

# Settings of the kernel are put back as they were.
declare -A settings_before=()
set_kernel() {
    [ "$(cat "$1")" != "$2" ] || return 0
    settings_before[$1]=${settings_before[$1]:-$(cat "$1")}
    echo "$2" >"$1"
}
restore_kernel() {
    local status=$? file
    for file in "${!settings_before[@]}"; do echo "${settings_before[$file]}" >"$file"; done
    return $status
}
trap 'restore_kernel; cleanup' EXIT

version() { awk -v key="$1" '$1 == key { $1 = ""; print substr($0, 2) }' "$mnt/.resident/version"; }

# refused WHY: io_uring=on does not start and says why; with auto it starts, and .resident says the same.
refused() {
    local output status
    output=$(timeout 30 "$RESIDENTFS" "$DEVICE" "$mnt" -o io_uring=on 2>&1 </dev/null)
    status=$?
    is "io_uring=on where it is impossible: refused" "$status" 1
    like "… with the reason and the way out, in one line" "$(wc -l <<<"$output") $output" "^1 residentfs: io_uring=on .*$1"
    must_mount -o io_uring=auto
    is "io_uring=auto starts without it" "$(version transport)" descriptor
    like "… and version says what it needs" "$(version io_uring_needs)" "$1"
    like "… status does" "$(cat "$mnt/.resident/status")" "$1"
    unmount_fs
    must_mount -o io_uring=off
    is "io_uring=off does not ask for it" "$(version transport),$(version io_uring_needs)" descriptor,
    unmount_fs
}

mnt=$work/mnt
mkdir -p "$mnt"
if [ ! -e "$kernel" ]; then
    refused '6\.14|libfuse 3\.18'
    skip "Linux $(uname -r) has no FUSE over io_uring"
    done_testing
    exit
fi
if [ ! -w "$kernel" ] && [ "$(cat "$kernel")" = N ]; then
    refused 'enable_uring|libfuse 3\.18'
    skip "$kernel is N and cannot be written"
    done_testing
    exit
fi
must_mount -o io_uring=off
library=$(version libfuse_build)
unmount_fs
if [ "${library#3.}" -lt 18 ]; then
    refused 'libfuse 3\.18'
    skip "built with libfuse $library"
    done_testing
    exit
fi
if [ -w "$kernel" ]; then
    set_kernel "$kernel" N
    refused enable_uring
    set_kernel "$kernel" Y
fi
if ! mount_fs -o io_uring=on; then
    skip "io_uring does not start here: $(tail -n 1 "$daemon_stderr")"
    done_testing
    exit
fi
unmount_fs
must_mount -o io_uring=auto
is "io_uring=auto does without, large requests being faster so" "$(version transport)" descriptor
like "… and version says how to have it" "$(version io_uring_needs)" io_uring=on
unmount_fs
mount_fs -o io_uring=on
is "io_uring=on: that is the transport" "$(version transport)" io_uring
is "… and it needs nothing" "$(version io_uring_needs)" ""
like "… status says so" "$(cat "$mnt/.resident/status")" 'io_uring, [0-9]+ queues'
unmount_fs

random_file "$work/random" $((64 << 20)) 11

# each PROCESSOR COMMAND…: there, so that each queue has its turn.
mapfile -t processors < <(taskset -cp $$ | sed 's/.*: //' | tr , '\n' | awk -F- '{ for (i = $1; i <= $NF; i++) print i }')
on_each() {
    local processor
    for processor in "${processors[@]}"; do taskset -c "$processor" "$@" "$processor" || return 1; done
}
# shellcheck disable=SC2317 # called by on_each
export random=$work/random

# The same with copies that are late, in any order, and only when something waits for them.
for order in random sync eager; do
    enter_mount -e "order=$order" -o io_uring=on
    for block in 4096 65536 1048576; do
        # shellcheck disable=SC2016 # expanded by that shell
        ok "order=$order: blocks of $block bytes written and read on each processor" on_each bash -c '
            dd if="$random" of="f$1" bs=$0 count=$((16777216 / $0)) status=none conv=notrunc &&
            cmp -n 16777216 <(dd if="f$1" bs=$0 status=none) "$random" &&
            dd if="$random" of="f$1" bs=$0 count=$((16777216 / $0)) skip=$((16777216 / $0)) status=none conv=notrunc &&
            cmp -n 16777216 -i 0:16777216 <(dd if="f$1" bs=$0 status=none) "$random"' $block
    done
    sees "order=$order: what was read is what was there when it was asked" "same"$'\n'"same" \
        open g O_CREAT,O_RDWR 0644 : fill 0 0 3M 1 : check 0 0 3M 1 : fill 0 100 1M 2 : check 0 100 1M 2
    ok "order=$order: odd offsets and lengths" cmp <(tail -c +12346 "$random" | head -c 5000001) \
        <(dd if="$random" bs=1M count=16 status=none | dd of=odd bs=777777 iflag=fullblock status=none &&
          dd if=odd bs=333333 skip=12345 count=5000001 iflag=skip_bytes,count_bytes status=none)
    unmount_fs
done

enter_mount -e 'fill=off' -o io_uring=on
jobs=()
for i in 0 1 2 3 4 5 6 7; do
    (dd if="$random" of=shared bs=1M skip=$((i * 8)) seek=$((i * 8)) count=8 conv=notrunc,fsync status=none &&
        head -c 3000001 "$random" >"own.$i" && cmp -s -n 3000001 "own.$i" "$random" && rm "own.$i") &
    jobs+=($!)
done
status=0
for job in "${jobs[@]}"; do wait "$job" || status=1; done
is "eight clients at once: all end well" $status 0
is "… the file that they wrote together is whole" "$(sum shared)" "$(sum "$random")"
rm shared
ok "… and all is given back" back_to 0

# A client that is killed while it writes and reads.
for _ in 1 2 3 4 5; do
    (while :; do dd if=/dev/zero of=killed bs=1M count=64 conv=notrunc; dd if=killed of=/dev/null bs=4k; done >/dev/null 2>&1) &
    client=$!
    wait_for '[ -s killed ]' 10
    sleep 0.1
    # shellcheck disable=SC2046 # numbers
    kill -9 $client $(descendants $client 0) 2>/dev/null
    wait $client 2>/dev/null
done
cp "$random" after
is "clients that are killed harm nobody" "$(sum after)" "$(sum "$random")"
unmount_fs

if [ -w "$pages" ]; then
    set_kernel "$pages" 2048
    # Of the buffers of all processors only one has room in staging: the others go the way without.
    for staging in 64MiB 8MiB; do
        enter_mount -o io_uring=on,max_write=8MiB,staging=$staging
        is "staging=$staging: requests of 8 MiB" "$(version max_write)" 8388608
        # shellcheck disable=SC2016
        ok "… hold what was written, on each processor" on_each bash -c '
            dd if="$random" of="f$0" bs=8M status=none && cmp "f$0" "$random" &&
            cmp <(dd if="f$0" bs=8M iflag=direct status=none) "$random"'
        between "… with no more memory for payloads than staging=" "$(version receive_buffers)" 1 $((${staging%MiB} / 8))
        unmount_fs
    done
else
    skip "$pages cannot be written: no requests of 8 MiB"
fi

# DMA that may still be running after its request was answered.
on=$work/faults-on
enter_mount -e "fault=cuMemcpyDtoHAsync:1:304:unproven:when=$on" -o io_uring=on
fsop open f O_CREAT,O_RDWR 0644 : fill 0 0 1M 5 : fsync 0 : open g O_CREAT,O_RDWR 0644 : fill 1 0 1M 6 : fsync 1
touch "$on"
expect_errno "a readback whose end is unproven: EIO" EIO open f O_RDONLY : preadcount 0 0 1000
rm "$on"
# shellcheck disable=SC2317
again() { fsop open g O_RDWR : check 0 0 1M 6 : fill 0 0 1M 6 : fsync 0 : check 0 0 1M 6; }
is "… and the next requests have memory that it cannot touch" "$(again; again; again)" \
    "$(for _ in 1 2 3 4 5 6; do echo same; done)"
between "… quarantined is its buffer" "$(awk '/^residentfs_quarantined_bytes/ { print $2 }' .resident/metrics)" 1048576 16777216
unmount_fs
enter_mount -e "batch=off;fault=cuMemcpyHtoDAsync:1:304:unproven:when=$on" -o io_uring=on
fsop open g O_CREAT,O_RDWR 0644 : fill 0 0 1M 6 : fsync 0
touch "$on"
like "an upload whose end is unproven is told" "$(fsop open f O_CREAT,O_RDWR 0644 : -fill 0 0 1M 5 : -fsync 0)" EIO
rm "$on"
is "… and other files are right" "$(again; again)" "$(for _ in 1 2 3 4; do echo same; done)"
unmount_fs
enter_mount -e "batch=off;fault=cuMemcpyHtoDAsync:1+:700:sticky:when=$on" -o io_uring=on
touch "$on"
like "a device that is lost is told" "$(fsop open f O_CREAT,O_RDWR 0644 : -fill 0 0 1M 5 : -fsync 0)" EIO
rm "$on"
ok "… and names work" mkdir d
unmount_fs "… and the unmount"

# The end while requests are under way.
load() {
    for i in 0 1 2 3; do
        (while dd if=/dev/zero of="load.$i" bs=1M count=16 && cat "load.$i" >/dev/null && rm "load.$i"; do :; done >/dev/null 2>&1) &
    done
    wait_for '[ -e load.0 ] || [ -e load.3 ]' 10
    sleep 0.3
}
# shellcheck disable=SC2016 # for eval
for end in 'kill -TERM $daemon_pid' 'umount -l "$mnt"' 'echo 1 >"/sys/fs/fuse/connections/$connection/abort"'; do
    enter_mount -o io_uring=on
    connection=$(stat -c %d .)
    load
    case $end in
    *abort*)
        mountpoint -q /sys/fs/fuse/connections || mount -t fusectl none /sys/fs/fuse/connections 2>/dev/null
        [ -e "/sys/fs/fuse/connections/$connection/abort" ] || end='umount -l "$mnt"'
        ;;
    esac
    cd "$work" || exit 1
    eval "$end"
    # A lazily unmounted file system ends when its last user does.
    # shellcheck disable=SC2046 # numbers
    case $end in umount*) kill $(jobs -p | grep -v "^$daemon_pid$") ;; esac
    ok "under load, $end ends it" wait_for "! alive $daemon_pid" 30
    wait "$daemon_pid"
    is "… with 0" $? 0
    # shellcheck disable=SC2046
    kill $(jobs -p) 2>/dev/null
    wait
    while is_mounted "$mnt"; do umount -l "$mnt"; done
    mounts=()
done

done_testing
