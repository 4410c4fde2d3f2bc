#!/bin/bash
# a mapped file that grows, shrinks, is punched, deleted or renamed
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=clients.sh
. "$(dirname "$0")/clients.sh"
only_residentfs
enter_mount -m 256MiB
empty=$(resident_bytes)

# Growth.
sharer open f O_CREAT,O_RDWR : ffill 0 0 3M 1
client a
say a map f
address=$(say a address 0)
sharer open f O_RDWR : ffill 0 3145728 10M 2
said "a file that grew: the mapping is as long as before" a 3145728 length 0
said "… and has what it had" a same check m0 0 3M 1
said "… remapped it has the rest" a $'13631488\nsame\nsame' "remap 0 : length 0 : check m0 0 3M 1 : check m0 3145728 10M 2"
sharer open f O_RDWR : ffill 0 3145728 10M 3
said "… which is the file's" a same "sync 0 : check m0 3145728 10M 3"
is "… at the same address" "$(say a address 0)" "$address"
fsop truncate f 30000000
said "grown by truncate: zeros after remap" a $'30000000\nsame' "remap 0 : length 0 : check m0 13631488 16368512 zero"
sharer open f O_RDWR : ffill 0 0 100M 4
said "a file that outgrows the addresses set aside" a same "remap 0 : check m0 0 100M 4"
isnt "… is at another address" "$(say a address 0)" "$address"
said "… and works both ways" a "" "write m0 104857000 end : write m0 0 start"
is "… at the start" "$(head -c 5 f)" start
is "… and the end" "$(tail -c 600 f | head -c 3)" end
said "remap without a change" a same "remap 0 : remap 0 : check m0 5 1000000 4"
fsop truncate f 1G
refused "growth that there is no memory for" a ENOSPC "remap 0"
said "… leaves the mapping as it was" a $'104857600\nsame' "length 0 : check m0 5 1000000 4"
is "… and the file" "$(stat -c %s f)" 1073741824
fsop truncate f 100M
said "… and both go on" a same "remap 0 : check m0 5 1000000 4"
say a unmap 0
client_end a
unshared f
rm f
ok "all memory is given back" back_to "$empty"

# Shrinking: the memory stays where it is and becomes zeros.
for size in 300000 5M; do
    sharer open f O_CREAT,O_RDWR : ffill 0 0 $size 1
    is "a file of $size" "$(stat -c %s f)" "$(fsop stat f size)"
    bytes=$(stat -c %s f)
    client b
    say b map f
    before=$(resident_bytes)
    fsop truncate f 100000
    said "truncated: what is left is left, the rest is zeros" b $'same\nsame' \
        "sync 0 : check m0 0 100000 1 : check m0 100000 $((bytes - 100000)) zero"
    is "… and the memory is there" "$(resident_bytes)" "$before"
    said "… the mapping is as long as it was" b "$bytes" length 0
    say b write m0 150000 ghost
    is "what the program writes past the end is not the file's" "$(fsop open f O_RDONLY : preadcount 0 0 1M)" 100000
    fsop truncate f $size
    said "regrown, mapping and file are one" b same "remap 0 : write m0 200000 regrown : check m0 0 100000 1"
    is "…" "$(dd if=f bs=1 skip=200000 count=7 status=none)" regrown
    sharer open f O_RDWR : ffill 0 0 $size 2
    said "… and the other way round" b same "sync 0 : check m0 0 $size 2"
    fsop truncate f 0
    said "truncated to nothing: zeros" b same "sync 0 : check m0 0 $size zero"
    refused "… remap finds nothing" b ENODATA remap 0
    said "… and the mapping stays" b "$bytes" length 0
    sharer open f O_RDWR : ffill 0 0 $size 3
    said "… written anew it is the same memory" b same "sync 0 : check m0 0 $size 3"
    fsop open f O_RDWR,O_TRUNC : fsync 0
    said "O_TRUNC likewise" b same "check m0 0 $size zero"
    sharer open f O_RDWR : ffill 0 0 $size 4
    said "… and back" b same "sync 0 : check m0 0 $size 4"
    is "nothing was taken anew" "$(resident_bytes)" "$before"
    fsop truncate f 1000
    client_end b
    unshared f
    ok "the program gone, the rest is given back" back_to $((empty + 2097152))
    is "… and the beginning stays" "$(sharer open f O_RDONLY : fcheck 0 0 1000 4)" same
    rm f
    ok "all memory is given back" back_to "$empty"
done

# Old bytes never come back.
sharer open f O_CREAT,O_RDWR : ffill 0 0 9M 1
client a
say a map f
fsop truncate f 1000
say a fill m0 1000 2M 7
fsop truncate f 9M
said "bytes that a program wrote past the end and the file then took in" a same "sync 0 : check m0 3M 6M zero"
fsop truncate f 1000
client_end a
unshared f
fsop truncate f 9M
is "unmapped, shrunk and grown: zeros" "$(sharer open f O_RDONLY : fcheck 0 1000 9436184 zero)" same
rm f

# Punching and zeroing.
sharer open f O_CREAT,O_RDWR : ffill 0 0 9M 1
client a
say a map f
before=$(resident_bytes)
fsop open f O_RDWR : fallocate 0 PUNCH_HOLE,KEEP_SIZE 1000 8M
said "a hole is zeros" a $'same\nsame\nsame' "check m0 0 1000 1 : check m0 1000 8M zero : check m0 8389608 1047576 1"
is "… that have memory" "$(resident_bytes)" "$before"
said "… which is the file's still" a "" "write m0 4M hole"
is "…" "$(dd if=f bs=1M skip=4 count=1 status=none | head -c 4)" hole
fsop open f O_RDWR : -fallocate 0 ZERO_RANGE,KEEP_SIZE 0 1000 >"$work/zeroed"
[ "$(cat "$work/zeroed")" = 0 ] && zero=zero || zero=1
said "a zeroed range" a same "check m0 0 1000 $zero"
is "COLLAPSE_RANGE and INSERT_RANGE are not there" "$(fsop open f O_RDWR : -fallocate 0 COLLAPSE_RANGE 0 1M : -fallocate 0 INSERT_RANGE 0 1M)" $'EOPNOTSUPP\nEOPNOTSUPP'
fsop open f O_RDWR : fallocate 0 KEEP_SIZE 0 20M
said "memory past the end" a same "remap 0 : check m0 8389608 1047576 1"
sharer open f O_RDWR : ffill 0 0 20M 5
said "… is mapped when the file has grown" a same "remap 0 : check m0 0 20M 5"
sharer open g O_CREAT,O_RDWR : ffill 0 0 4M 6
fsop open g O_RDONLY : open f O_RDWR : copy_file_range 0 0 1 1M 3M >"$work/copied"
is "a copy on the device into a mapped file" "$(cat "$work/copied")" 3145728
is "… shows" "$(say a sync 0; say a read m0 1M 16)" "$(say a open g O_RDONLY,O_DIRECT : map g : read m1 0 16)"
fsop truncate g 4M : open f O_RDONLY : open g O_RDWR : copy_file_range 0 8M 1 0 4M >/dev/null
say a fill m0 8M 4M 9
fsop open f O_RDONLY : open g O_RDWR : copy_file_range 0 8M 1 0 4M >/dev/null
cmp -s <(dd if=f bs=1M skip=8 count=4 status=none) g
is "a copy out of one takes what the program wrote" $? 0

# Deleted and renamed.
mv f h
said "renamed, it is mapped still" a "" "write m0 0 renamed"
is "…" "$(head -c 7 h)" renamed
like "… under its new name" "$(grep '/\?h$' .resident/buffers)" "${client_pid[a]}:sharer"
mv g h
# No name, no opener: only the program keeps it.
used=$(resident_bytes)
said "replaced by another, it lives on with the program" a renamed "read m0 0 7"
between "… and its memory" "$used" $((empty + 20000000)) 200000000
said "… can be looked at anew" a 20971520 "remap 0 : length 0"
client_kill a
ok "killed: its memory is given back" back_to $((used - 20000000))
rm h
ok "all memory is given back" back_to "$empty"
unmount_fs
done_testing
