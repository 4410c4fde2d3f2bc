#!/bin/bash
# The suites and a first set of figures on a GPU, in one call, with a short table last.
#
#   tests/gpu/run.sh BUILD [DEVICE]
#
# BUILD is a build folder (or a folder with the same programs side by side): residentfs, fsop, fsmodel,
# io_load, core_bench, test_buffer; for share, libresident.so.1. PARTS chooses: core suites figures share
# (default: all); SUITES names the suites. Ends with `N passed, N failed`; logs are in $LOGS (default: a temporary folder, named at
# the end).
set -u
build=$(realpath "${1:?usage: tests/gpu/run.sh BUILD [DEVICE]}")
export DEVICE=${2:-cuda:0}
here=$(realpath "$(dirname "$0")/..")
logs=${LOGS:-$(mktemp -d /tmp/residentfs-gpu.XXXXXX)}
parts=${PARTS:-core suites figures share}
mkdir -p "$logs"
passed=0 failed=0
table=()

program() {
    local at
    for at in "$build/$1" "$build/tests/$2/$1"; do
        if [ -x "$at" ]; then
            echo "$at"
            return
        fi
    done
    echo "no program $1 in $build" >&2
    exit 2
}

RESIDENTFS=$(program residentfs .) || exit 2
FSOP=$(program fsop helper) || exit 2
FSMODEL=$(program fsmodel helper) || exit 2
load=$(program io_load bench) || exit 2
export RESIDENTFS FSOP FSMODEL
export LARGE=${LARGE:-1}

count() { # NAME RESULT
    if [ "$2" = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        table+=("FAILED: $1")
    fi
}

free_on_device() {
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null | head -1
}

before=$(free_on_device)

if [[ " $parts " == *" core "* ]]; then
    "$(program test_buffer unit)" >"$logs/core" 2>&1
    count "core: buffers against a model" $?
    "$(program core_bench bench)" "$DEVICE" 8 >"$logs/core_bench" 2>&1
    count "core: bench" $?
    cat "$logs/core_bench"
fi

if [[ " $parts " == *" suites "* ]]; then
    for suite in ${SUITES:-posix transfer fault}; do
        timeout "${SUITE_SECONDS:-400}" prove -v --timer -j"${JOBS:-4}" "$here/$suite" >"$logs/$suite" 2>&1
        count "suite $suite" $?
        grep -A7 '^not ok' "$logs/$suite" | head -40
        tail -4 "$logs/$suite"
    done
fi

measure() { # NAME PATH LOAD…
    local name=$1 path=$2 result
    shift 2
    result=$("$load" "$path" "$@" 2>&1) || { count "$name: $result" 1; return; }
    table+=("$(printf '%-12s %-34s %s' "$(basename "$(dirname "$path")")" "$name" "$result")")
}

figures() { # DIR
    local file=$1/file g=$((1 << 30)) m=$((1 << 20))
    measure "1 stream 1 MiB write, new" "$file" write seq $m 1 $((4 * g)) $((4 * g))
    measure "1 stream 1 MiB write, again" "$file" write seq $m 1 $((4 * g)) $((4 * g))
    measure "1 stream 1 MiB read" "$file" read seq $m 1 $((4 * g)) $((4 * g))
    measure "8 streams 1 MiB write, again" "$file" write seq $m 8 $((4 * g)) $((16 * g))
    measure "8 streams 1 MiB read" "$file" read seq $m 8 $((4 * g)) $((16 * g))
    measure "1 stream 4 KiB write" "$file" write seq 4096 1 $((4 * g)) $((g / 4))
    measure "1 stream 4 KiB read" "$file" read seq 4096 1 $((4 * g)) $((g / 4))
    measure "8 streams 4 KiB random write" "$file" write random 4096 8 $((4 * g)) $((g / 2))
    measure "8 streams 4 KiB random read" "$file" read random 4096 8 $((4 * g)) $((g / 2))
    rm -f "$file"
}

if [[ " $parts " == *" figures "* ]]; then
    work=$(mktemp -d /tmp/residentfs-gpu-mnt.XXXXXX)
    mkdir "$work/residentfs" "$work/tmpfs"
    if "$RESIDENTFS" "$DEVICE" "$work/residentfs" -o log=syslog; then
        figures "$work/residentfs"
        cat "$work/residentfs/.resident/version" >"$logs/version"
        cat "$work/residentfs/.resident/status"
        cat "$work/residentfs/.resident/log" >"$logs/log"
        if grep -q ' error: ' "$logs/log"; then
            count "no error in the log" 1
            grep ' error: ' "$logs/log" | head -5
        else
            count "no error in the log" 0
        fi
        umount "$work/residentfs"
    else
        count "mount" 1
    fi
    mount -t tmpfs -o size=12G tmpfs "$work/tmpfs" && figures "$work/tmpfs"
    umount "$work/tmpfs"
    rmdir "$work/residentfs" "$work/tmpfs" "$work"
fi

if [[ " $parts " == *" share "* ]]; then
    timeout "${SUITE_SECONDS:-400}" python3 "$here/gpu/share.py" --build "$build" --device "$DEVICE" \
        --logs "$logs" 2>&1 | tee "$logs/share"
    if [[ $(tail -n 1 "$logs/share") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
        passed=$((passed + BASH_REMATCH[1]))
        failed=$((failed + BASH_REMATCH[2]))
        while read -r line; do table+=("$line"); done < <(grep '^FAILED: ' "$logs/share")
    else
        count "share: ran to its end" 1
    fi
fi

for _ in 1 2 3 4 5 6 7 8 9 10; do
    [ "$(free_on_device)" = "$before" ] && break
    sleep 0.5
done
[ "$(free_on_device)" = "$before" ]
count "device memory in use at the end: $(free_on_device) MiB, at the start $before MiB" $?
printf '%s\n' "${table[@]}"
echo "logs: $logs"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
