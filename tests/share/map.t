#!/bin/bash
# a mapped file: its bytes are the program's, both ways, whatever its size
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=clients.sh
. "$(dirname "$0")/clients.sh"
only_residentfs
enter_mount -m 512MiB
empty=$(resident_bytes)

for size in 1 100 4096 70000 1M 2M 2097153 5M 40000001; do
    rm -f f
    sharer open f O_CREAT,O_RDWR : ffill 0 0 $size 1
    is "$size bytes: mapped, they are there" "$(sharer map f : check m0 0 $size 1)" same
    is "… at length" "$(sharer map f : length 0)" "$(stat -c %s f)"
    is "… what the program writes is in the file" "$(sharer open f O_RDWR,O_DIRECT : map f : fill m0 0 $size 2 : fcheck 0 0 $size 2)" same
    is "… also for another that opens it then" "$(sharer open f O_RDONLY : fcheck 0 0 $size 2)" same
    is "… what is written then is the program's after fsync" "$(sharer open f O_RDWR,O_DIRECT : map f : ffill 0 0 $size 3 : sync 0 : check m0 0 $size 3)" same
done

# Many chunks: more than one reply holds. Each hole in turn makes the next piece a chunk of its own.
rm -f f
descriptors=$(daemon_descriptors)
client a
say a open f O_CREAT,O_RDWR,O_DIRECT >/dev/null
for ((i = 80; i >= 0; i--)); do
    echo "ffill 0 $((i * 2097152 + 1000)) 3000 $((i + 1))"
done | while read -r line; do say a "$line"; done
[ "$DEVICE" != emulated ] || between "a file of more chunks than a reply has" "$(($(daemon_descriptors) - descriptors))" 65 100
wrong=
say a map f
for ((i = 0; i <= 80; i++)); do
    [ "$(say a check m0 $((i * 2097152 + 1000)) 3000 $((i + 1)))" = same ] || wrong+=" $i"
done
is "… each where it belongs" "$wrong" ""
said "… and zeros between them" a $'same\nsame\nsame' \
    "check m0 4000 2094152 zero : check m0 2101152 2094152 zero : check m0 165679008 2094152 zero"
client_end a
rm f

# Holes.
fsop open f O_CREAT,O_RDWR 0644 : ftruncate 0 7M : pwrite 0 3000000 x
before=$(resident_bytes)
client a
said "a file with holes is mapped, and they are zeros" a $'same\nx\nsame' \
    "map f : check m0 0 3000000 zero : read m0 3000000 1 : check m0 3000001 4339999 zero"
between "… and take memory now" "$(resident_bytes)" $((before + 4194304)) $((before + 8388608))
is "… which stat says at once" "$(($(stat -c %b f) * 512))" "$(fsop getxattr f user.resident.resident_bytes)"
said "… that can be written" a "" "write m0 1000000 hello"
is "… and read from the file" "$(dd if=f bs=1 skip=1000000 count=5 status=none)" hello
client_end a
rm f

# What is in the file when write has returned may still be on its way; after fsync, or map, it is not.
for round in 1 2 3; do
    fsop open f O_CREAT,O_RDWR 0644 : fill 0 0 3M 1 : pwrite 0 100 "round$round"
    is "what was written before map is there ($round)" "$(sharer map f : read m0 100 6)" "round$round"
    client a
    say a map f
    fsop open f O_RDWR 0644 : fill 0 0 3M 2 : pwrite 0 200 "fsync$round" : fsync 0
    said "what fsync has seen is there" a "fsync$round" read m0 200 6
    fsop open f O_RDWR 0644 : pwrite 0 300 "close$round" >/dev/null
    said "what was written before close" a "close$round" read m0 300 6
    # The writer has neither closed nor synchronised it.
    client b
    say b "open f O_RDWR : ffill 0 1000 2000000 3"
    said "what was written before resident_sync" a same "sync 0 : check m0 1000 2000000 3"
    client_end b
    client_end a
done

# Memory-mapped: dirty pages are written at map and sync, and clean ones dropped.
client a
client b
got=$(say b open f O_RDWR,O_DIRECT : mmapwrite 0 40000 dirty)
case $got in
ENODEV*) skip "no shared mappings of files here" 5 ;;
*)
    said "a dirty page of a memory-mapped file, at map" a dirty map f : read m0 40000 5
    for round in 1 2 3; do
        say b mmapwrite 0 40000 "sync$round"
        said "… at sync ($round)" a "sync$round" sync 0 : read m0 40000 5
    done
    say a write m0 40000 kernel : sync 0
    said "… after sync it is what the program wrote" b kernel mmapread 0 40000 6
    ;;
esac
client_end b
client_end a

# Two programs.
client a
client b
say a map f
say b map f
say a write m0 500000 from-a
said "what one program writes another sees" b from-a read m0 500000 6
say b write m0 500000 from-b
said "… and the other way round" a from-b read m0 500000 6
is "both are counted" "$(shares f)" 2
client_end a
# shellcheck disable=SC2016
ok "one leaves" wait_for '[ "$(shares f)" = 1 ]' 10
said "… and the other has the memory still" b from-b read m0 500000 6
is "… and the file" "$(dd if=f bs=1 skip=500000 count=6 status=none)" from-b
say b unmap 0
is "unmap has been noticed when it returns" "$(shares f)" 0
said "one program maps it twice" b $'same\nsame' "map f : map f : check m1 50000 400000 3 : check m2 50000 400000 3"
said "… the same memory" b twice "write m1 100 twice : read m2 100 5"
client_end b
unshared f

# Reading only.
client a
said "a mapping for reading" a $'from-b\n1' "map f ro : read m0 500000 6 : isreadonly 0"
got=$(say a write m0 0 x)
like "… cannot be written" "$got" 'cuMemcpyHtoDAsync|ended'
client_gone a
client a
said "a file that is open for reading only is mapped so too" a $'1\nfrom-b' \
    "open f O_RDONLY,O_DIRECT : mapfile 0 : isreadonly 0 : read m0 500000 6"
said "… also when it is named only" a $'1\nfrom-b' \
    "open f O_PATH : mapfile 1 : isreadonly 1 : read m1 500000 6"
client_end a
rm f
ok "all memory is given back" back_to "$empty"
unmount_fs

# Through the page cache, or shared: not both.
enter_mount -m 64MiB -o cache=on
sharer open f O_CREAT,O_RDWR : ffill 0 0 3M 1
client a
client b
say a open f O_RDWR
refused "open through the page cache" b EBUSY map f
refused "… by the program itself" a EBUSY mapfile 0
is "… it is what it was" "$(sharer open f O_RDONLY : fcheck 0 0 3M 1)" same
say a close 0
# shellcheck disable=SC2016
ok "closed: mapped" wait_for '[ "$(sharer map f : check m0 0 3M 1)" = same ]' 10
cat f >"$work/cached"
say b map f : fill m0 0 3M 2
said "what was in the page cache is not read any more" a same open f O_RDONLY : fcheck 1 0 3M 2
say b fill m0 0 3M 3
said "… nor what was read since" a same fcheck 1 0 3M 3
client_end b
unshared f
is "… nor later" "$(sharer open f O_RDONLY : fcheck 0 0 3M 3)" same
client_end a
unmount_fs
done_testing
