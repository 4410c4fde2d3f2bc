#!/bin/bash
# eight writers on parts of one file, eight readers
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
part=$((16 << 20)) memory=1GiB
[ "$LARGE" = 1 ] && part=$((256 << 20)) memory=4GiB
enter_mount -m $memory -e 'fill=off'
random_file "$work/random" $((8 * part)) 12

all_well() {
    local job status=0
    for job; do wait "$job" || status=1; done
    return $status
}

for block in 65536 1048576; do
    rm -f file
    jobs=()
    for i in 0 1 2 3 4 5 6 7; do
        dd if="$work/random" of=file bs=$block skip=$((i * part / block)) seek=$((i * part / block)) \
            count=$((part / block)) conv=notrunc,fsync status=none &
        jobs+=($!)
    done
    all_well "${jobs[@]}"
    is "eight writers of $block bytes end well" $? 0
    is "the file is whole" "$(sum file)" "$(sum "$work/random")"
    jobs=()
    for i in 0 1 2 3 4 5 6 7; do
        cmp <(dd if=file bs=$block skip=$((i * part / block)) count=$((part / block)) status=none) \
            <(dd if="$work/random" bs=$block skip=$((i * part / block)) count=$((part / block)) status=none) >"$work/cmp.$i" &
        jobs+=($!)
    done
    all_well "${jobs[@]}"
    is "eight readers see their parts" "$?$(cat "$work"/cmp.*)" 0
done
jobs=()
for i in 0 1 2 3; do
    dd if="$work/random" of=file bs=1M count=$((part >> 20)) seek=$((i * part >> 20)) skip=$((i * part >> 20)) conv=notrunc status=none &
    jobs+=($!)
    cat file >/dev/null &
    jobs+=($!)
done
all_well "${jobs[@]}"
is "writers and readers at once end well" $? 0
is "rewriting the same bytes changed nothing" "$(sum file)" "$(sum "$work/random")"
jobs=()
for i in 0 1 2 3 4 5 6 7; do
    (head -c $((4 << 20)) "$work/random" >"own.$i" && cmp -s <(head -c $((4 << 20)) "$work/random") "own.$i" && rm "own.$i") &
    jobs+=($!)
done
all_well "${jobs[@]}"
is "eight processes each with a file of its own" $? 0
rm -f file own.*
ok "all is given back" back_to 4194304

unmount_fs
done_testing
