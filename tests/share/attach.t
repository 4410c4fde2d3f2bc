#!/bin/bash
# a program's own memory as a file
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=clients.sh
. "$(dirname "$0")/clients.sh"
only_residentfs
enter_mount -m 256MiB
empty=$(resident_bytes)
free() { stat -f -c '%f %a' .; }

for kind in "" vmm; do
    client a
    say a "alloc 4M $kind : fill d0 0 4M 1"
    : >other
    before=$(free)
    ls -l >/dev/null # names and attributes are known
    said "attached${kind:+ ($kind)}" a "" "attach f 0 4M"
    is "… stat has size and blocks at once" "$(stat -c '%s %b' f)" "4194304 8192"
    is "… read through the file it is the program's memory" "$(sharer open f O_RDONLY : fcheck 0 0 4M 1)" same
    said "… what the program writes then is in the file" a "" "write d0 1000000 program"
    is "… at once" "$(dd if=f bs=1 skip=1000000 count=7 status=none)" program
    printf shell | dd of=f bs=1 seek=2000000 conv=notrunc,fsync status=none
    said "… what is written into the file is the program's" a shell "read d0 2000000 5"
    sharer open f O_RDWR : ffill 0 0 4M 2
    said "… all of it" a same "check d0 0 4M 2"
    is "no budget is used" "$(resident_bytes)" "$empty"
    is "… nor is space" "$(free)" "$before"
    is "the state says so" "$(fsop getxattr f user.resident.state)" attached
    is "… resident_bytes are 0" "$(fsop getxattr f user.resident.resident_bytes)" 0
    like "… .resident/buffers has it" "$(grep '/\?f$' .resident/buffers)" " attached +${client_pid[a]}:sharer "
    like "… status too" "$(grep '^shared' .resident/status)" '1 buffers of theirs, 4(\.0)? ?MiB'

    # What its size and memory are is the program's.
    for call in "truncate f 0" "truncate f 4194303" "truncate f 4194305" "truncate f 1G" "open f O_RDWR,O_TRUNC" \
        "open f O_RDWR : fallocate 0 0 0 5M" "open f O_RDWR : fallocate 0 KEEP_SIZE 4M 4K" \
        "open f O_RDWR : fallocate 0 PUNCH_HOLE 0 1M" "open f O_RDWR : pwrite 0 4M x" "open f O_RDWR : pwrite 0 5M x" \
        "open f O_WRONLY,O_APPEND : write 0 x"; do
        # shellcheck disable=SC2086 # words
        expect_errno "$call" EPERM $call
    done
    is "… cp onto it" "$(cp other f 2>&1 | grep -c 'not permitted')" 1
    fsop open f O_RDWR : -fallocate 0 ZERO_RANGE 0 1M : -fallocate 0 ZERO_RANGE 0 9M >"$work/zero"
    isnt "ZERO_RANGE past the end" "$(tail -n 1 "$work/zero")" 0
    [ "$(head -n 1 "$work/zero")" = 0 ] && sharer open f O_RDWR : ffill 0 0 1M 2
    sees "a write over the end stops there" "100" open f O_RDWR : writeonce 0 4194204 200 5
    is "… size and bytes before it are as they were" "$(stat -c %s f) $(sharer open f O_RDONLY : fcheck 0 0 4194204 2)" "4194304 same"
    works "truncate to its own size" truncate f 4M
    is "lseek: data everywhere" "$(fsop open f O_RDONLY : lseek 0 0 data : lseek 0 0 hole)" $'0\n4194304'

    # Copies.
    sharer open g O_CREAT,O_RDWR : ffill 0 0 3M 3
    sees "copied from: all of it" 4194304 open f O_RDONLY : open copy O_CREAT,O_RDWR 0644 : copy_file_range 0 0 1 0 4M
    ok "…" cmp f copy
    sees "copied into" 1048576 open g O_RDONLY : open f O_RDWR : copy_file_range 0 0 1 1M 1M
    ok "…" cmp <(head -c 1M g) <(dd if=f bs=1M skip=1 count=1 status=none)
    sees "… over the end: up to it" 1048576 open g O_RDONLY : open f O_RDWR : copy_file_range 0 0 1 3M 2M
    truncate -s 3M holes
    fsop open holes O_RDONLY : open f O_RDWR : -copy_file_range 0 0 1 0 1M >"$work/hole"
    like "… of a hole: zeros, or it is refused" "$(tail -n 1 "$work/hole") $(sharer open f O_RDONLY : fcheck 0 0 1M zero)" \
        '^(0 same|EPERM differs)'
    ok "cp --reflink=auto from it" cp f copy2
    ok "…" cmp f copy2
    rm -f copy copy2 g holes other

    # Its names are anybody's.
    mv f moved
    ln moved linked
    is "renamed and linked it is the same" "$(cmp moved linked && stat -c %h moved)" 2
    rm linked
    said "detached" a "" "detach 0"
    expect_errno "… reads give EIO" EIO open moved O_RDONLY : preadcount 0 0 100
    expect_errno "… and writes" EIO open moved O_RDWR : pwrite 0 0 x
    is "… stat works" "$(stat -c %s moved)" 4194304
    is "… the state says so" "$(fsop getxattr moved user.resident.state)" detached
    said "… the memory is the program's as before" a "" "fill d0 0 4M 1 : free 0"
    ok "… the file can be removed" rm moved
    client_end a
done
is "nothing is left" "$(resident_bytes)" "$empty"

# Ranges.
client a
say a "alloc 3000000 : fill d0 0 3000000 1 : alloc 4M vmm : fill d1 0 4M 2 : alloc 2M unexportable"
said "a range within an allocation" a "" "write d0 777776 [range] : attach part 0 1000 777777"
is "… begins where it begins" "$(head -c 6 part)" "range]"
printf RANGE | dd of=part conv=notrunc status=none
said "… in both directions" a "[RANGE]" "read d0 777776 7"
said "two ranges that overlap, of one allocation" a "" "attach one 0 2000000 : attach two 0 2000000 1000000"
printf both | dd of=one bs=1 seek=1500000 conv=notrunc status=none
is "… are one memory" "$(dd if=two bs=1 skip=500000 count=4 status=none)" both
said "… one detached" a "" "detach 1"
is "… the other goes on" "$(dd if=two bs=1 skip=500000 count=4 status=none)" both
expect_errno "…" EIO open one O_RDONLY : preadcount 0 0 1
said "two ranges of memory of cuMemCreate" a "" "attach three 1 1M : attach four 1 1M 512K"
printf vmm | dd of=three bs=1 seek=600000 conv=notrunc status=none
is "… are one memory" "$(dd if=four bs=1 skip=75712 count=3 status=none)" vmm
is "the sizes are those asked for" "$(stat -c %s part one two three four | tr '\n' ' ')" "1000 2000000 2000000 1048576 1048576 "
is "a byte is enough" "$(say a attach byte 0 1 2999999; stat -c %s byte)" 1

# What cannot be attached leaves no file.
refused "0 bytes" a EINVAL attach bad 0 0
refused "more than the allocation has" a EINVAL attach bad 0 3000001
refused "… from an offset on" a EINVAL attach bad 0 2000000 1000001
refused "… of cuMemCreate" a EINVAL attach bad 1 4194305
refused "… beside it" a EINVAL attach bad 0 1 4000000000
refused "memory of the host" a EINVAL attachnear bad 1000
refused "memory that cannot be exported" a EOPNOTSUPP attach bad 2 2M
ok "… no file is there" test ! -e bad
: >there
refused "a file that exists" a EEXIST attach there 0 1000
refused "a folder that does not" a ENOENT attach none/f 0 1000
refused "another file system" a EOPNOTSUPP "attach $work/f 0 1000"
ok "… nothing is left there" test ! -e "$work/f"
refused ".resident" a EPERM attach .resident/f 0 1000

# Mapping what is attached, attaching what is mapped.
refused "an attached file cannot be mapped" a EPERM map two
client b
refused "… nor by another" b EPERM map two
is "files of two programs" "$(say b "alloc 1M : fill d0 0 1M 9 : attach hers 0 1M"; sharer open hers O_RDONLY : fcheck 0 0 1M 9)" same
cp -a two "$work/two"
client_kill a
expect_errno "the owner killed: EIO at once" EIO open two O_RDONLY : preadcount 0 0 1
for name in part two three four byte; do
    # shellcheck disable=SC2016
    wait_for '[ "$(fsop getxattr $name user.resident.state)" = detached ]' 10 || fail "$name is detached"
done
is "… another's goes on" "$(sharer open hers O_RDONLY : fcheck 0 0 1M 9)" same
expect_errno "… truncating does not revive it" EPERM truncate two 0
rm two
cp "$work/two" two
ok "… a new file in its place is like any other" cmp two "$work/two"
rm -f part one two three four byte there

# Reads and writes while it goes.
say b "alloc 8M : fill d1 0 8M 3 : attach big 1 8M"
users=()
for _ in 1 2 3; do
    (while dd if=big of=/dev/null bs=1M status=none 2>/dev/null; do :; done) &
    users+=($!)
    (while fsop open big O_RDWR : fill 0 0 8M 3 >/dev/null; do :; done) &
    users+=($!)
done
sleep 0.3
client_kill b
ok "the owner dies under readers and writers: they all end" timeout 30 tail --pid="${users[0]}" --pid="${users[1]}" --pid="${users[2]}" --pid="${users[3]}" --pid="${users[4]}" --pid="${users[5]}" -f /dev/null
expect_errno "… with EIO" EIO open big O_RDONLY : preadcount 0 0 1
rm -f big hers
ok "nothing is left in the end" back_to "$empty"
unmount_fs
done_testing
