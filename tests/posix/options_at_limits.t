#!/bin/bash
# every option at its least and at its most: it mounts, works, and .resident/config shows it
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_emulated
[ "$(id -u)" -eq 0 ] || skip_all "needs root"
MOUNT_OPTIONS=
options=$("$RESIDENTFS" --help | sed -nE 's/^  ([a-z_]+)=.*/\1/p' | sort)

# shown: the options of .resident/config, one "name=value" a line
shown() { sed -nE 's/^([a-z_]+) *= */\1=/p' "$mnt/.resident/config" | sort; }

# mounted NAME LIST: mounts with the options of LIST, one a line.
mounted() {
    local list
    list=$(sed '/^$/d; s/^ *//' <<<"$2" | sort)
    is "$1: no option is left out" "$(cut -d= -f1 <<<"$list")" "$options"
    must_mount -o "$(paste -sd, <<<"$list")"
    is "$1: .resident/config shows all of them" "$(shown)" "$list"
}

head -c 3000000 /dev/urandom >"$work/bytes"
written_and_read() {
    ok "$1: a file is written and read" sh -c "cp '$work/bytes' '$mnt/file' && cmp '$work/bytes' '$mnt/file'"
}

least='
    allow_other=off
    attr_timeout=0
    budget=1
    busy_poll=0
    cache=off
    direct_threshold=4KiB
    readahead=0
    emulated_memory=16MiB
    entry_timeout=0
    flush_interval=0
    gid=0
    io_uring=off
    log=stderr
    log_level=error
    max_background=1
    max_files=1
    max_write=64KiB
    on_device_lost=stay
    on_suspend=warn
    root_mode=0000
    scrub=off
    share=off
    staging=8MiB
    streams=1
    uid=0
    workers=1'
mounted least "$least"
expect_errno "least: with max_files=1 there is the root directory and nothing else" ENOSPC mkdir "$mnt/d" 0755
unmount_fs
mounted "least, but of files" "${least/max_files=1/max_files=2}"
ok "… one may be made" touch "$mnt/f"
expect_errno "… with budget=1 it can have no memory" ENOSPC open "$mnt/f" O_WRONLY : write 0 x
unmount_fs
mounted "least, but of files and memory" "$(sed 's/max_files=1/max_files=2/; s/budget=1/budget=14MiB/' <<<"$least")"
written_and_read "… with it"
unmount_fs
mounted most '
    allow_other=on
    attr_timeout=1000000000
    budget=100%
    busy_poll=10000
    cache=on
    direct_threshold=64MiB
    readahead=64MiB
    emulated_memory=1TiB
    entry_timeout=1000000000
    flush_interval=60000
    gid=4294967294
    io_uring=auto
    log=journal
    log_level=debug
    max_background=65535
    max_files=4294967295
    max_write=32MiB
    on_device_lost=exit
    on_suspend=ignore
    root_mode=7777
    scrub=on
    share=on
    staging=16GiB
    streams=64
    uid=4294967294
    workers=256'
written_and_read most
unmount_fs
done_testing
