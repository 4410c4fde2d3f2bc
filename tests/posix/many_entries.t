#!/bin/bash
# timeout: 2400
# many entries in one directory, and deep trees; LARGE=1: 1 000 000 entries
TEST_LIMIT=${TEST_LIMIT:-2400}
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount -m 4GiB

count=100000
[ "$LARGE" = 1 ] && count=1000000
# Of the time per entry, of 4n entries to n. Quadratic time would be 4; other work on the machine is noise.
most=250

# ratio NAME TIME-OF-N TIME-OF-4N
ratio() {
    between "$1: the time per entry of $count is like that of $((count / 4)) (in percent)" \
        $(($3 * 100 / $2 / 4)) 0 $most
    diag "$(($2 * 4000 / count)) and $(($3 * 1000 / count)) ns an entry"
}

# measure COUNT: times of creating, listing, listing with attributes, deleting (as listed; the last first).
measure() {
    local seen="seen $1 repeated 0 missing 0"
    mkdir many
    times=()
    run() {
        local expected=$1 output
        shift
        output=$(fsop timed "$@")
        times+=("${output##*$'\n'}")
        [ "${output%"${output##*$'\n'}"}" = "${expected:+$expected$'\n'}" ] || fail "$*" "$output"
    }
    run "" createmany many "$1"
    run "$seen" listmany many "$1"
    run "$seen" listmany many "$1" stat
    run "$seen" unlinkwhilelisting many "$1"
    rmdir many || fail "$1 entries are gone"
    mkdir many
    fsop createmany many "$1"
    run "" unlinkmany many "$1"
    rmdir many || fail "$1 entries are gone"
}

names=("create" "list" "list with attributes" "delete while listing" "delete the last first")
few=() many=()

# least ARRAY: keeps the least of each time; what else the machine does only adds to one.
least() {
    local -n kept=$1
    local i
    for i in "${!times[@]}"; do
        [ -n "${kept[i]:-}" ] && [ "${kept[i]}" -le "${times[i]}" ] || kept[i]=${times[i]}
    done
}

linear() {
    local i
    for i in "${!names[@]}"; do
        [ $((many[i] * 100 / few[i] / 4)) -le $most ] || return 1
    done
}

measure 1000
for _ in 1 2 3 4 5 6; do
    measure $((count / 4))
    least few
    measure $count
    least many
    linear && break
done
for i in "${!names[@]}"; do
    ratio "${names[i]}" "${few[i]}" "${many[i]}"
done

mkdir many && fsop createmany many $count
is "find sees each" "$(find many -type f | wc -l)" $count
ok "rm -r" rm -r many
ok "no inode is left behind" test "$(df --output=iused . | tail -n 1)" -lt 100

# Each of 10 bytes and a slash: past PATH_MAX (4096), which no single path can name.
for depth in 380 3000; do
    works "a tree $depth deep" mkdir deep : deep deep $depth
    ok "rm -r of it" rm -r deep
done
works "a tree whose path is as long as can be" mkdir deep : deep deep 300
ok "find goes through it" test "$(find deep | wc -l)" -eq 301
ok "a path of 3300 bytes is opened" test -d "deep$(printf '/dddddddddd%.0s' {1..300})"
mkdir other
ok "it moves" mv deep other/deep
ok "rm -r of it, too" rm -r other
is "nothing is left" "$(ls -A)" ""

unmount_fs
done_testing
