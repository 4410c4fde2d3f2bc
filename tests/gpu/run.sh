#!/bin/bash
# The suites and the most important rows of the benchmark on a GPU, in one call.
#
#   tests/gpu/run.sh BUILD [DEVICE]
#
# BUILD is a build folder (or a folder with the same programs side by side): residentfs, fsop, fsmodel,
# io_load, bus_load, null_fuse, core_bench, test_buffer; for share, libresident.so.1. PARTS chooses: core suites
# figures share (default: all; figures are tests/bench/run.sh --quick); SUITES names the suites. Ends with
# `N passed, N failed`; logs are in $LOGS (default: a temporary folder, named at the end).
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

if [[ " $parts " == *" figures "* ]]; then
    "$here/bench/run.sh" --device "$DEVICE" --build "$build" --quick --json "$logs/bench.json" --plot "$logs/bench.svg"
    count "figures" $?
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
