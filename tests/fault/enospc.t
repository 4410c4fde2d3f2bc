#!/bin/bash
# past the budget: ENOSPC, a short write first, earlier bytes intact
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount -m 64MiB
start=$(resident_bytes)

fsop open keep O_CREAT,O_RDWR 0644 : fill 0 0 4M 0x4b
wrote=$(fsop open big O_CREAT,O_RDWR 0644 : writeonce 0 0 200M 0x42)
between "a write larger than the space is short" "$wrote" $((20 << 20)) $((64 << 20))
is "the size is what was written" "$(fsop stat big size)" "$wrote"
sees "those bytes are right" "same" open big O_RDONLY : check 0 0 "$wrote" 0x42
expect_errno "the next write: ENOSPC" ENOSPC open big O_RDWR : fill 0 "$wrote" 64M 1
size=$(fsop stat big size)
expect_errno "and again" ENOSPC open big O_RDWR : fill 0 "$size" 64M 1
is "the size is what it was" "$(fsop stat big size)" "$size"
sees "earlier bytes are intact" "same"$'\n'"same" open keep O_RDONLY : open big O_RDONLY : check 0 0 4M 0x4b : check 1 0 "$wrote" 0x42
works "bytes that are there can be overwritten" open keep O_RDWR : fill 0 0 4M 0x4c : fsync 0
sees "… and are" "same" open keep O_RDONLY : check 0 0 4M 0x4c
works "an empty file, a directory, a symlink need no space" open empty O_CREAT,O_WRONLY 0644 : mkdir d : symlink x l
works "truncate up needs none" open up O_CREAT,O_RDWR 0644 : ftruncate 0 1G
sees "reading its hole needs none" "same" open up O_RDONLY : check 0 512M 1M 0
expect_errno "writing into it does" ENOSPC open up O_RDWR : fill 0 0 64M 1
sees "a write that got no space does not change what is read there" "same" open up O_RDONLY : check 0 512M 1M 0
rm up
between "df shows it full" "$(df --output=pcent . | tail -n 1 | tr -dc 0-9)" 85 100
output=$(dd if=/dev/zero of=more bs=1M count=64 2>&1)
like "dd says No space left on device" "$output" "No space left on device"
rm -f more
rm big
ok "deleting makes room" back_to $((start + (8 << 20)))
works "at once" open again O_CREAT,O_RDWR 0644 : fill 0 0 20M 7 : check 0 0 20M 7
for i in 1 2 3 4 5; do
    fsop open fill.$i O_CREAT,O_RDWR 0644 : fill 0 0 64M "$i" >/dev/null
    rm -f fill.$i
done
# The kernel tells of a close after it: what is given back then comes a moment later.
ok "filling up and deleting five times leaves nothing" back_to $((start + (30 << 20)))
# Many small files until there is no more room.
(set +e; for i in $(seq 200); do head -c 700000 /dev/zero >"small.$i" || exit; done) 2>"$work/err"
like "small files: the last one gets No space left" "$(cat "$work/err")" "No space left"
sees "keep is intact after all" "same" open keep O_RDONLY : check 0 0 4M 0x4c
rm -r ./*
ok "all is given back" back_to "$start"
if [ "$FS_UNDER_TEST" = residentfs ]; then
    is "none resident" "$(budget_value resident)" 0
    between "never more than the limit was taken" "$(budget_value limit)" 1 $((64 << 20))
else
    skip "about residentfs" 2
fi

unmount_fs
done_testing
