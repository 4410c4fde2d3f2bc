# shellcheck shell=bash
# TAP and mounts for the shell tests. Source it first:
#   . "$(dirname "$0")/../lib.sh"
#
# Environment:
#   RESIDENTFS           the daemon's program (default: build/residentfs of this repository)
#   FSOP                 the helper for calls (default: tests/helper/fsop beside the daemon)
#   DEVICE               device to mount (default: emulated)
#   RESIDENTFS_EMULATED  settings of the emulated driver: "key=value;key=value"; a test's own come on top
#   MOUNT_OPTIONS        further -o options for every mount
#   FS_UNDER_TEST        tmpfs: mount a tmpfs instead, to try the tests themselves
#   LARGE                1: also the large variants (files of 2 and 8 GiB)
#   KEEP                 1: keep the test's folder
#   TEST_LIMIT           seconds that one test may take (default: 300); then its daemons are killed
#
# mount_fs leaves the mount point in $mnt, the daemon's process in $daemon_pid, its messages in
# $daemon_stderr. Whatever a test does, its mounts are gone and its daemons have ended when it exits; one that
# had to be forced counts as a failure.

set -u
umask 022
export LC_ALL=C

tests_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(dirname "$tests_folder")
RESIDENTFS=${RESIDENTFS:-$repository/build/residentfs}
FSOP=${FSOP:-$(dirname "$RESIDENTFS")/tests/helper/fsop}
[ -x "$FSOP" ] || FSOP=$repository/build/tests/helper/fsop
FSMODEL=${FSMODEL:-$(dirname "$FSOP")/fsmodel}
DEVICE=${DEVICE:-emulated}
MOUNT_OPTIONS=${MOUNT_OPTIONS:-}
FS_UNDER_TEST=${FS_UNDER_TEST:-residentfs}
LARGE=${LARGE:-0}
KEEP=${KEEP:-0}
RESIDENTFS=$(realpath -m "$RESIDENTFS")
FSOP=$(realpath -m "$FSOP")
FSMODEL=$(realpath -m "$FSMODEL")
[ -x "$FSOP" ] || { echo "Bail out! no fsop at $FSOP (set FSOP)"; exit 1; }

# Users of no account: nobody, and a second one.
nobody=65534
other=65533
# shellcheck disable=SC2034 # used by the tests
users="$nobody $other"

tap_count=0
tap_failed=0
tap_planned=
mnt=
daemon_pid=
daemon_stderr=
mounts=()       # mount point and process, alternating
work=$(mktemp -d "${TMPDIR:-/tmp}/residentfs-test.XXXXXX") || exit 1
chmod 755 "$work"

diag() {
    printf '%s\n' "$*" | sed 's/^/# /'
}

plan() {
    tap_planned=$1
    echo "1..$1"
}

done_testing() {
    tap_planned=$tap_count
    echo "1..$tap_count"
}

skip_all() {
    echo "1..0 # SKIP $1"
    tap_planned=0
    exit 0
}

# skip REASON [COUNT]
skip() {
    local i
    for ((i = 0; i < ${2:-1}; i++)); do
        tap_count=$((tap_count + 1))
        echo "ok $tap_count # SKIP $1"
    done
}

pass() {
    tap_count=$((tap_count + 1))
    echo "ok $tap_count - $1"
}

# fail NAME [WHAT WAS SEEN]
fail() {
    tap_count=$((tap_count + 1))
    tap_failed=$((tap_failed + 1))
    echo "not ok $tap_count - $1"
    [ -z "${2:-}" ] || diag "$2"
    diag "at ${BASH_SOURCE[-1]}:${BASH_LINENO[-2]}"
    return 0
}

# ok NAME COMMAND…: the command succeeds.
ok() {
    local name=$1 output status
    shift
    output=$("$@" 2>&1)
    status=$?
    if [ $status -eq 0 ]; then
        pass "$name"
    else
        fail "$name" "$* ended with $status: ${output:0:2000}"
    fi
}

# not_ok NAME COMMAND…: the command ends with an error (but does not crash, and is found).
not_ok() {
    local name=$1 output status
    shift
    output=$("$@" 2>&1)
    status=$?
    if [ $status -gt 0 ] && [ $status -lt 126 ]; then
        pass "$name"
    else
        fail "$name" "$* ended with $status: ${output:0:2000}"
    fi
}

# is NAME GOT EXPECTED
is() {
    if [ "$2" = "$3" ]; then
        pass "$1"
    else
        fail "$1" "saw:      ${2:0:2000}
expected: ${3:0:2000}"
    fi
}

# isnt NAME GOT UNEXPECTED
isnt() {
    if [ "$2" != "$3" ]; then
        pass "$1"
    else
        fail "$1" "saw what must not be: ${2:0:2000}"
    fi
}

# like NAME TEXT EXTENDED-REGULAR-EXPRESSION
like() {
    if printf '%s\n' "$2" | grep -qE -- "$3"; then
        pass "$1"
    else
        fail "$1" "saw:            ${2:0:2000}
does not match: $3"
    fi
}

# unlike NAME TEXT EXTENDED-REGULAR-EXPRESSION
unlike() {
    if printf '%s\n' "$2" | grep -qE -- "$3"; then
        fail "$1" "saw:     ${2:0:2000}
matches: $3"
    else
        pass "$1"
    fi
}

# between NAME NUMBER LEAST MOST
between() {
    if [[ $2 =~ ^-?[0-9]+$ ]] && [ "$2" -ge "$3" ] && [ "$2" -le "$4" ]; then
        pass "$1"
    else
        fail "$1" "saw: $2, expected $3 to $4"
    fi
}

fsop() {
    "$FSOP" "$@"
}

# holds NAME HELPER SUBJECT FILE…: a subject of mappings, iomodes or asyncio, the helpers beside fsop, is as
# expected. A skip where the kernel or libfuse has no such thing.
holds() {
    local name=$1 helper=$2 got
    shift 2
    got=$("$(dirname "$FSOP")/$helper" "$@" 2>&1)
    case $got in
    'as expected') pass "$name" ;;
    'not here: '*) skip "$name: ${got#not here: }" ;;
    *) fail "$name" "$helper $*: ${got:0:2000}" ;;
    esac
}

# sees NAME EXPECTED CALLS…: fsop prints exactly that.
sees() {
    local name=$1 expected=$2 got
    shift 2
    got=$("$FSOP" "$@" 2>&1)
    if [ "$got" = "$expected" ]; then
        pass "$name"
    else
        fail "$name" "fsop $*
saw:      ${got:0:2000}
expected: ${expected:0:2000}"
    fi
}

# expect_errno NAME ERRNO CALLS…: the last thing that fsop prints is that errno, and it fails.
expect_errno() {
    local name=$1 expected=$2 got status words
    shift 2
    words=$*
    got=$("$FSOP" "$@" 2>&1)
    status=$?
    if [ $status -eq 1 ] && [ "${got##*$'\n'}" = "$expected" ]; then
        pass "$name"
    else
        fail "$name" "fsop ${words:0:300}
saw:      ${got:0:1000} (status $status)
expected: $expected"
    fi
}

# works NAME CALLS…: fsop succeeds.
works() {
    local name=$1
    shift
    ok "$name" "$FSOP" "$@"
}

# wait_for CONDITION LIMIT: evaluates the condition until it holds; 1 if it did not within LIMIT seconds.
wait_for() {
    local end=$((SECONDS + $2))
    until eval "$1"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.05
    done
}

is_mounted() {
    awk -v path="$1" '$5 == path { found = 1 } END { exit !found }' /proc/self/mountinfo
}

alive() {
    [ -e "/proc/$1" ] && [ "$(awk '{ sub(/.*\) /, ""); print $1 }' "/proc/$1/stat" 2>/dev/null)" != Z ]
}

only_residentfs() {
    [ "$FS_UNDER_TEST" = residentfs ] || skip_all "about residentfs itself"
    need_daemon
}

only_emulated() {
    only_residentfs
    case $DEVICE in
    emulated*) ;;
    *) skip_all "needs the emulated driver" ;;
    esac
}

need_daemon() {
    [ -x "$RESIDENTFS" ] || { echo "Bail out! no residentfs at $RESIDENTFS (set RESIDENTFS)"; exit 1; }
}

# need PROGRAM…: skips the whole test if one is missing.
need() {
    local program
    for program; do
        command -v "$program" >/dev/null || skip_all "no $program on this machine"
    done
}

# emulated_settings "key=value;key=value"…: later ones replace earlier ones of the same key, fault= adds up.
emulated_settings() {
    local joined
    joined=$(printf '%s;' "$@")
    printf '%s' "$joined" | awk -v RS=';' -F= '
        NF < 2 { next }
        { key = $1; if (key == "fault") key = key NR }
        !(key in value) { order[++count] = key }
        { value[key] = $0 }
        END { for (i = 1; i <= count; i++) printf "%s%s", (i > 1 ? ";" : ""), value[order[i]] }'
}

# vfs_options OPTIONS: those of them that any file system takes.
vfs_options() {
    echo "rw,$1" | tr , '\n' | grep -xE 'rw|ro|(no)?(suid|dev|exec|atime|diratime)|relatime|strictatime' | paste -sd,
}

# mount_fs [-m MEMORY] [-e EMULATED] [-o OPTIONS] [-c CONFIG] [DIRECTORY]
# MEMORY is the size of the device (emulated, tmpfs) or else the budget. Returns 1, with a message on
# $daemon_stderr, if the mount did not come to be.
mount_fs() {
    local memory=1GiB settings='' options=$MOUNT_OPTIONS config='' OPTIND=1 flag
    while getopts m:e:o:c: flag; do
        case $flag in
        m) memory=$OPTARG ;;
        e) settings=$OPTARG ;;
        o) options=${options:+$options,}$OPTARG ;;
        c) config=$OPTARG ;;
        *) return 2 ;;
        esac
    done
    shift $((OPTIND - 1))
    mnt=${1:-$work/mnt}
    mkdir -p "$mnt"
    if [ "$FS_UNDER_TEST" = tmpfs ]; then
        daemon_pid=
        mount -t tmpfs -o "size=$(echo "$memory" | sed -E 's/([KMG])iB$/\1/'),mode=755,nr_inodes=1300000" \
            -o "$(vfs_options "$options")" tmpfs "$mnt" || return 1
        mounts+=("$mnt" 0)
        return 0
    fi
    need_daemon
    case $DEVICE in
    emulated*)
        settings=$(emulated_settings "seed=7;order=random" "${RESIDENTFS_EMULATED:-}" "memory=$memory" "$settings")
        ;;
    *) options=budget=$memory${options:+,$options} ;;
    esac
    daemon_stderr=$work/stderr.${#mounts[@]}
    RESIDENTFS_EMULATED=$settings "$RESIDENTFS" "$DEVICE" "$mnt" -f ${options:+-o "$options"} \
        ${config:+--config "$config"} >"$daemon_stderr" 2>&1 </dev/null &
    daemon_pid=$!
    mounts+=("$mnt" "$daemon_pid")
    echo "$daemon_pid" >>"$work/daemons"
    # shellcheck disable=SC2016 # evaluated by wait_for
    if ! wait_for '! alive $daemon_pid || { is_mounted "$mnt" && [ -e "$mnt/.resident/version" ]; }' 30 ||
        ! alive "$daemon_pid"; then
        diag "residentfs $DEVICE did not mount: $(tail -n 5 "$daemon_stderr")"
        return 1
    fi
}

must_mount() {
    mount_fs "$@" || { fail "mounts"; exit 1; }
}

# enter_mount [OPTIONS OF mount_fs]: mounts and goes there.
enter_mount() {
    must_mount "$@"
    cd "$mnt" || exit 1
}

# end_mount DIRECTORY PID: unmounts, waits for the daemon's end. Returns 1 if force was needed or the daemon
# ended badly; says why.
end_mount() {
    local directory=$1 pid=$2 result=0 status
    if is_mounted "$directory"; then
        if ! umount "$directory" 2>/dev/null; then
            # A client that has only just ended may still hold it.
            # shellcheck disable=SC2016
            wait_for "umount '$directory' 2>/dev/null || ! is_mounted '$directory'" 15 || {
                diag "$directory is busy: $(umount "$directory" 2>&1); unmounting lazily"
                umount -l "$directory"
                result=1
            }
        fi
    fi
    if [ "$pid" != 0 ]; then
        # A mount namespace that somebody made meanwhile has the mount, too, until its mount point is removed.
        wait_for "! alive $pid" 3 || { rmdir "$directory" && mkdir "$directory"; } || true
        if ! wait_for "! alive $pid" 60; then
            diag "daemon $pid did not end within 60 s after the unmount: killed"
            kill -9 "$pid"
            result=1
        fi
        wait "$pid" 2>/dev/null
        status=$?
        # 127: not a child of this shell (it went into the background itself).
        if [ $status -ne 0 ] && [ $status -ne 127 ]; then
            diag "daemon $pid ended with status $status"
            result=1
        fi
    fi
    while is_mounted "$directory" && umount -l "$directory"; do
        diag "$directory was still mounted"
        result=1
    done
    return $result
}

# unmount_fs [NAME]: ends the last mount; a test of its own.
unmount_fs() {
    local count=${#mounts[@]} output
    cd "$work" || exit 1
    [ "$count" -gt 0 ] || { fail "${1:-unmounts cleanly}" "nothing is mounted"; return; }
    # Not in a subshell: only the daemon's parent can wait for it.
    end_mount "${mounts[count - 2]}" "${mounts[count - 1]}" >"$work/unmount.output"
    local result=$?
    output=$(cat "$work/unmount.output")
    mounts=("${mounts[@]:0:count-2}")
    if [ $result -eq 0 ] && output=$(sanitizer_reports); then
        pass "${1:-unmounts cleanly}"
    else
        fail "${1:-unmounts cleanly}" "$output
$(tail -n 20 "${daemon_stderr:-/dev/null}" 2>/dev/null)"
    fi
}

# Prints what sanitizers or assertions left in the daemons' messages; fails if there is any.
sanitizer_reports() {
    ! grep -hE 'Sanitizer|runtime error:|Assertion .* failed|BUG:' "$work"/stderr.* 2>/dev/null
}

# A test that hangs: with its daemon dead, every call that waits for it ends with an error.
watchdog() {
    local pid self=$BASHPID
    # First: a test that ends at once must not leave the sleep, which holds its output open.
    trap '[ -z "$!" ] || kill $! 2>/dev/null; exit' TERM
    sleep "$TEST_LIMIT" &
    wait $!
    echo "# $0: not done after $TEST_LIMIT s; killing its daemons"
    while read -r pid; do
        [ "$(readlink "/proc/$pid/exe")" != "$RESIDENTFS" ] || kill -9 "$pid"
    done <"$work/daemons"
    kill -TERM $$
    # shellcheck disable=SC2046 # numbers
    kill -KILL $(descendants $$ "$self") 2>/dev/null
}

# descendants PID BUT: the processes that it started and those they started, but for one.
descendants() {
    local child
    for child in $(ps -o pid= --ppid "$1"); do
        [ "$child" != "$2" ] || continue
        descendants "$child" "$2"
        echo "$child"
    done
}

cleanup() {
    local status=$? i
    trap - EXIT
    kill "$watchdog_pid" 2>/dev/null
    trap '' INT TERM
    cd / || true
    local bad=0
    for ((i = ${#mounts[@]} - 2; i >= 0; i -= 2)); do
        end_mount "${mounts[i]}" "${mounts[i + 1]}" || bad=1
    done
    sanitizer_reports | sed 's/^/# /'
    sanitizer_reports >/dev/null || bad=1
    while grep -qF " $work/" /proc/self/mountinfo; do
        local leaked
        leaked=$(awk -v prefix="$work/" 'index($5, prefix) == 1 { print $5; exit }' /proc/self/mountinfo)
        echo "# leaked mount: $leaked"
        umount -l "$leaked" || break
        bad=1
    done
    if [ "$KEEP" = 1 ]; then
        echo "# kept $work"
    else
        rm -rf --one-file-system "$work"
    fi
    [ -n "$tap_planned" ] || bad=1
    [ "$tap_failed" -eq 0 ] || bad=1
    if [ "$status" -eq 0 ] && [ $bad -ne 0 ]; then
        status=1
    fi
    exit "$status"
}
TEST_LIMIT=${TEST_LIMIT:-300}
: >"$work/daemons"
watchdog >&2 &
watchdog_pid=$!
disown
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# ---- figures of the mount ----

# budget_value KEY: from .resident/budget.
budget_value() {
    awk -v key="$1" '$1 == key { print $2 }' "$mnt/.resident/budget"
}

# Bytes that files take: resident bytes, or what a tmpfs uses.
resident_bytes() {
    if [ "$FS_UNDER_TEST" = tmpfs ]; then
        df -B1 --output=used "$mnt" | tail -n 1 | tr -d ' '
    else
        budget_value resident
    fi
}

# back_to BYTES: waits until resident bytes are that again.
back_to() {
    # shellcheck disable=SC2016
    wait_for '[ "$(resident_bytes)" -le '"$1"' ]' 10 || {
        echo "resident bytes are $(resident_bytes), were $1"
        return 1
    }
}

# forget_names: the kernel forgets what it knows of the mount's files, as far as nobody uses them: a remount
# drops its names; where that does not go, those of all mounts go.
forget_names() {
    mount -i -o remount,rw "$mnt" 2>/dev/null || echo 2 >/proc/sys/vm/drop_caches
}

# as_nobody COMMAND…: as an unprivileged user without groups.
as_nobody() {
    setpriv --reuid=$nobody --regid=$nobody --clear-groups "$@"
}

random_file() {
    # random_file PATH BYTES SEED: reproducible random bytes, fast.
    openssl enc -aes-128-ctr -nosalt -pass "pass:$3" -in /dev/zero 2>/dev/null | head -c "$2" >"$1"
}

# daemons_of DIRECTORY: processes of residentfs that were started with that mount point.
daemons_of() {
    pgrep -f -- "^[^ ]*residentfs .*$1( |\$)"
}

sum() {
    sha256sum <"$1" | cut -d' ' -f1
}
