#!/bin/bash
# tests/run.sh [--device DEVICE] [--no-install] [SUITE…]
#
# Installs what is missing (Debian 12), builds into build/, runs the suites, and ends with a line
# "N passed, N failed"; exits 0 only if none failed.
#
#   unit posix posix-cached posix-second transfer fault share share-cached fuzz install   run when none is named
#   bench soak gpu                                                           only when named
#   lint build bench-short asan tsan                                         only when named, as .ci/run does
#
# unit is `meson test`. lint: clang-format and shellcheck. build: gcc and clang, no warnings. asan: unit, posix,
# transfer and share under ASan and UBSan. tsan: unit under TSan. posix-cached, share-cached: posix and share with
# cache=on. posix-second: posix, share and io_uring with a daemon built with the libfuse of packaging/subprojects, or with the one
# in RESIDENTFS_SECOND_BUILD. fuzz: each of tests/fuzz for FUZZ_SECONDS (5). bench: tests/bench/run.sh, which prints its
# table and takes about twenty minutes; bench-short: tests/bench/*.t, whether it works at all. Every other SUITE is
# tests/SUITE/*.t: TAP on stdout, run by prove with RESIDENTFS (path of the daemon), FSOP (path of the tests' helper),
# DEVICE, and TMPDIR, a folder of the suite's own. A line "# timeout: SECONDS" among the first ten sets a test's limit
# (300 otherwise).
#
# After each suite, processes that it left running and mounts that it left under its TMPDIR are failures, and
# are ended. Logs are in build/test-logs.

set -euo pipefail
exec </dev/null
export LC_ALL=C
umask 022

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
default_timeout=300
# From the limit to SIGKILL: time for a test to unmount.
kill_after=60
# For processes that are just ending.
leak_grace=5

# ---- one test: run.sh --one FILE, as prove's interpreter ----

if [ "${1:-}" = --one ]; then
    shift
    limit=$(sed -n '1,10s/^# timeout: \([0-9]\+\)$/\1/p' "$1" | head -n 1)
    limit=$((${limit:-$default_timeout} * ${TIMEOUT_FACTOR:-1}))
    status=0
    timeout --kill-after=$kill_after "$limit" "$@" || status=$?
    # 137: it had to be killed.
    if [ $status -eq 124 ] || [ $status -eq 137 ]; then
        echo "Bail out! timed out after $limit s"
    fi
    exit $status
fi

# ---- arguments ----

device=${DEVICE:-emulated}
install=1
suites=()
while [ $# -gt 0 ]; do
    case $1 in
    --device)
        [ $# -ge 2 ] || { echo "--device needs a DEVICE" >&2; exit 2; }
        device=$2
        shift
        ;;
    --device=*) device=${1#*=} ;;
    --no-install) install=0 ;;
    -h | --help)
        sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit 0
        ;;
    -*)
        echo "unknown option $1; see tests/run.sh --help" >&2
        exit 2
        ;;
    *)
        case $1 in
        unit | posix | posix-cached | posix-second | transfer | fault | share | share-cached | fuzz | install | bench | bench-short | soak | gpu | lint | build | asan | tsan) ;;
        *)
            echo "unknown suite $1; see tests/run.sh --help" >&2
            exit 2
            ;;
        esac
        suites+=("$1")
        ;;
    esac
    shift
done
[ ${#suites[@]} -gt 0 ] || suites=(unit posix posix-cached posix-second transfer fault share share-cached fuzz install)

# ---- counts ----

passed=0
failed=0
suite_passed=0
suite_failed=0
suite_skipped=0
finished=0

# Every way out ends with the line that callers read.
conclude() {
    local status=$?
    # A second signal, to the process group, must not keep the rest from being cleaned up.
    trap '' HUP INT TERM
    trap - EXIT
    # A signal may come while a function's output goes to a log.
    exec >&3 2>&1
    if [ $finished -eq 0 ]; then
        echo "tests/run.sh was cut short (status $status)"
        passed=$((passed + suite_passed))
        failed=$((failed + suite_failed + 1))
        [ -z "${suite_name:-}" ] || find_leaks >/dev/null || true
    fi
    rm -rf --one-file-system "$scratch"
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ] || exit 1
    exit 0
}

begin_suite() {
    suite_name=$1
    suite_passed=0
    suite_failed=0
    suite_skipped=0
    suite_start=$SECONDS
    suite_tmp=$scratch/$1
    suite_logs=$logs/$1
    rm -rf "$suite_logs"
    mkdir -p "$suite_tmp" "$suite_logs"
    echo "== $1"
}

end_suite() {
    find_leaks
    local skipped=''
    [ $suite_skipped -eq 0 ] || skipped=", $suite_skipped skipped"
    echo "== $suite_name: $suite_passed passed, $suite_failed failed$skipped ($((SECONDS - suite_start)) s)"
    passed=$((passed + suite_passed))
    failed=$((failed + suite_failed))
    suite_passed=0
    suite_failed=0
    suite_name=
}

# result STATUS NAME [LOG]
result() {
    if [ "$1" -eq 0 ]; then
        suite_passed=$((suite_passed + 1))
        echo "ok      $2"
    else
        suite_failed=$((suite_failed + 1))
        echo "FAILED  $2"
        [ -z "${3:-}" ] || tail -n 60 "$3" | sed 's/^/        /'
    fi
}

# ---- what a suite leaves behind ----

# What the suite started carries this in its environment, daemons in sessions of their own included.
suite_mark() {
    echo "RESIDENTFS_TEST_RUN=$scratch/$suite_name"
}

# Processes of the suite that are still there, zombies left out.
suite_processes() {
    # Some end while they are being looked at.
    { grep -lzxF -- "$(suite_mark)" /proc/[0-9]*/environ 2>/dev/null || true; } |
        sed -E 's,^/proc/([0-9]+)/.*,\1,'
}

suite_mounts() {
    awk -v prefix="$scratch/$suite_name/" 'index($5, prefix) == 1 { print $5 }' /proc/self/mountinfo | tac
}

find_leaks() {
    local pid path end
    local -a pids paths
    end=$((SECONDS + leak_grace))
    while mapfile -t pids < <(suite_processes) && [ ${#pids[@]} -gt 0 ] && [ $SECONDS -lt $end ]; do
        sleep 0.1
    done
    for pid in "${pids[@]}"; do
        result 1 "left running: process $pid: $(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | head -c 200)"
        # Where each of its threads waits.
        grep -H . "/proc/$pid/task/"*/{wchan,syscall} 2>/dev/null | sed 's/^/        /' | head -n 40 || true
    done
    mapfile -t paths < <(suite_mounts)
    for path in "${paths[@]}"; do
        result 1 "left mounted: $path"
    done
    if [ ${#pids[@]} -gt 0 ]; then
        kill -TERM "${pids[@]}" 2>/dev/null || true
        end=$((SECONDS + leak_grace))
        while mapfile -t pids < <(suite_processes) && [ ${#pids[@]} -gt 0 ] && [ $SECONDS -lt $end ]; do
            sleep 0.1
        done
        [ ${#pids[@]} -eq 0 ] || kill -KILL "${pids[@]}" 2>/dev/null || true
    fi
    for path in "${paths[@]}"; do
        umount -l "$path" 2>/dev/null || true
    done
    # A suite may be run twice, once under a sanitizer: what it left must not count again.
    rm -rf --one-file-system "${scratch:?}/${suite_name:?}" 2>/dev/null || true
}

# in_suite COMMAND…: with the environment of tests.
in_suite() {
    # prove parts its --exec at blanks, so paths are from the root, which may have some.
    env -C "$root" "$(suite_mark)" TMPDIR="$suite_tmp" DEVICE="$device" \
        RESIDENTFS="$daemon_build/residentfs" FSOP="$build/tests/helper/fsop" \
        FSMODEL="$build/tests/helper/fsmodel" TIMEOUT_FACTOR="$timeout_factor" "$@" 3>&-
}

# ---- building ----

build=$root/build
# Where the daemon under test is.
daemon_build=$build
timeout_factor=1

# build_into DIRECTORY LOG [MESON OPTION…]: with $CC, if set.
build_into() {
    local directory=$1 log=$2
    shift 2
    if [ -f "$directory/build.ninja" ]; then
        meson setup --reconfigure "$directory" "$root" -Dtests=true "$@" >"$log" 2>&1 || return 1
    else
        meson setup "$directory" "$root" -Dtests=true "$@" >"$log" 2>&1 || return 1
    fi
    ninja -C "$directory" >>"$log" 2>&1
}

# ---- suites ----

# Counts what each program of `meson test` says on stdout: cases of cmocka as TAP; a program that lists no
# cases counts as one, and so does one that ends badly although every case of it passed.
run_unit() {
    local log=$suite_logs/unit.log results prefix=() name ok not_ok skipped status
    if [ "${1:-}" = tsan ] && setarch "$(uname -m)" -R true 2>/dev/null; then
        # TSan of gcc 12 does not know the address layouts of newer kernels.
        prefix=(setarch "$(uname -m)" -R)
    fi
    results=$build/meson-logs/testlog.json
    rm -f "$results"
    in_suite CMOCKA_MESSAGE_OUTPUT=TAP "${prefix[@]}" \
        meson test -C "$build" --no-rebuild --timeout-multiplier "$timeout_factor" >"$log" 2>&1 || true
    if [ ! -f "$results" ]; then
        ! grep -q '^No tests defined' "$log" || return 0
        result 1 "meson test" "$log"
        return 0
    fi
    while IFS=$'\t' read -r name status ok not_ok skipped; do
        case $status in
        SKIP)
            suite_skipped=$((suite_skipped + 1))
            echo "skipped $name"
            continue
            ;;
        OK | EXPECTEDFAIL)
            [ "$((ok + not_ok + skipped))" -gt 0 ] || ok=1
            ;;
        *)
            [ "$not_ok" -gt 0 ] || not_ok=1
            ;;
        esac
        suite_passed=$((suite_passed + ok))
        suite_failed=$((suite_failed + not_ok))
        suite_skipped=$((suite_skipped + skipped))
        if [ "$not_ok" -eq 0 ]; then
            echo "ok      $name: $ok$([ "$skipped" -eq 0 ] || echo ", skipped $skipped")"
        else
            echo "FAILED  $name: $not_ok, passed $ok ($status)"
            jq -r --arg name "$name" 'select(.name == $name) | (.stdout // "") + "\n" + (.stderr // "")' "$results" |
                grep -v '^ok ' | tail -n 60 | sed 's/^/        /' || true
        fi
    done < <(jq -r '((.stdout // "") / "\n") as $lines |
        [.name, .result,
         ([$lines[] | select(test("^ok ") and (test("# *skip"; "i") | not))] | length),
         ([$lines[] | select(test("^not ok ") and (test("# *skip"; "i") | not))] | length),
         ([$lines[] | select(test("^(not )?ok .*# *skip"; "i"))] | length)] | @tsv' "$results")
}

# run_shell SUITE [NAME]: tests/SUITE/*.t, or that one. A test that ends badly although no case failed counts as one failure.
run_shell() {
    local test name log ok not_ok skipped status
    for test in "$root/tests/$1"/${2:-*}.t; do
        [ -e "$test" ] || return 0
        name=${test#"$root"/tests/}
        log=$suite_logs/$(basename "$test" .t).log
        if [ ! -x "$test" ]; then
            result 1 "$name: not executable"
            continue
        fi
        status=0
        in_suite prove -v --exec "tests/run.sh --one" "tests/$name" >"$log" 2>&1 || status=$?
        not_ok=$(grep -E '^not ok\b' "$log" | grep -civE '# *(TODO|SKIP)\b' || true)
        skipped=$(grep -ciE '^ok\b.*# *SKIP\b|^1\.\.0 # *SKIP\b' "$log" || true)
        # prove's own verdict is an "ok" alone on its line.
        ok=$(grep -E '^ok [0-9-]' "$log" | grep -civE '# *SKIP\b' || true)
        [ "$status" -eq 0 ] || [ "$not_ok" -gt 0 ] || not_ok=1
        suite_passed=$((suite_passed + ok))
        suite_failed=$((suite_failed + not_ok))
        suite_skipped=$((suite_skipped + skipped))
        if [ "$not_ok" -eq 0 ]; then
            echo "ok      $name: $ok"
            grep -iE '^(ok\b.*|1\.\.0 )# *SKIP' "$log" | sed -E 's/.*# *SKIP */        skipped: /I' | sort | uniq || true
        else
            echo "FAILED  $name: $not_ok, passed $ok"
            # Failed cases, remarks and the summary, without what went well.
            grep -vE '^(ok\b|$)' "$log" | tail -n 60 | sed 's/^/        /' || true
        fi
    done
}

# Paths of the project's files of which the command line's patterns hold; without git, all there are.
own_files() {
    if git -C "$root" rev-parse --git-dir >/dev/null 2>&1; then
        git -C "$root" ls-files -- "$@"
    else
        (cd "$root" && find . \( -path './build*' -o -path './packaging/subprojects' \) -prune -o -type f -print | sed 's,^\./,,' | sort) |
            while read -r file; do
                for pattern; do
                    # shellcheck disable=SC2053,SC2254 # a pattern
                    case $file in $pattern) echo "$file" && break ;; esac
                done
            done
    fi
}

run_lint() {
    local file log=$suite_logs/lint.log status
    while read -r file; do
        status=0
        (cd "$root" && clang-format --dry-run -Werror "$file") >"$log" 2>&1 || status=$?
        result $status "clang-format $file" "$log"
    done < <(own_files '*.c' '*.h')
    while read -r file; do
        status=0
        (cd "$root" && shellcheck -x "$file") >"$log" 2>&1 || status=$?
        result $status "shellcheck $file" "$log"
    done < <(own_files '*.sh' '*.bash' '*.t' '.ci/run')
}

run_build() {
    local compiler status
    for compiler in gcc clang; do
        status=0
        CC=$compiler build_into "$root/build-$compiler" "$suite_logs/$compiler.log" -Dwerror=true || status=$?
        result $status "builds with $compiler without warnings" "$suite_logs/$compiler.log"
    done
}

run_asan() {
    local build=$root/build-asan daemon_build=$root/build-asan timeout_factor=3 status=0
    local -x ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1
    local -x UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
    build_into "$build" "$suite_logs/build.log" -Db_sanitize=address,undefined || status=$?
    result $status "builds with ASan and UBSan" "$suite_logs/build.log"
    [ $status -eq 0 ] || return 0
    run_unit
    run_shell posix
    run_shell transfer
    run_shell share
}

# run_fuzz: each target of tests/fuzz for FUZZ_SECONDS.
run_fuzz() {
    local target name log status=0
    if ! command -v clang >/dev/null ||
        ! echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | clang -fsanitize=fuzzer -x c -o "$suite_tmp/probe" - 2>/dev/null; then
        echo "skipped: clang has no libFuzzer here"
        return 0
    fi
    CC=clang build_into "$root/build-fuzz" "$suite_logs/build.log" -Dfuzz=true || status=$?
    result $status "builds with libFuzzer" "$suite_logs/build.log"
    [ $status -eq 0 ] || return 0
    for target in "$root"/tests/fuzz/fuzz_*.c; do
        name=$(basename "$target" .c)
        log=$suite_logs/$name.log
        status=0
        mkdir -p "$suite_tmp/$name"
        in_suite ASAN_OPTIONS=detect_leaks=1 "$root/build-fuzz/tests/fuzz/$name" -max_total_time="${FUZZ_SECONDS:-5}" -timeout=10 \
            -max_len=4096 -artifact_prefix="$suite_logs/$name-" "$suite_tmp/$name" "$root/tests/fuzz/seeds/$name" \
            >"$log" 2>&1 || status=$?
        result $status "$name: $(grep -c '^#' "$log") lines of progress, $(sed -nE 's/^Done ([0-9]+) runs.*/\1/p' "$log") runs" "$log"
    done
}

run_share_cached() {
    local -x MOUNT_OPTIONS=${MOUNT_OPTIONS:+$MOUNT_OPTIONS,}cache=on
    run_shell share
}

run_posix_cached() {
    local -x MOUNT_OPTIONS=${MOUNT_OPTIONS:+$MOUNT_OPTIONS,}cache=on
    run_shell posix
}

# Whether one of the places that the newest libfuse is downloaded from is known here.
libfuse_in_reach() {
    local host
    while read -r host; do
        ! getent hosts "$host" >/dev/null || return 0
    done < <(sed -nE 's,^source(_fallback)?_url = [a-z]+://([^/]+)/.*,\2,p' "$root/packaging/subprojects/fuse3.wrap")
    return 1
}

run_posix_second() {
    local daemon_build=${RESIDENTFS_SECOND_BUILD:-} status=0
    if [ -n "$daemon_build" ]; then
        daemon_build=$(realpath -m "$daemon_build")
    else
        daemon_build=$root/build-second
        build_into "$daemon_build" "$suite_logs/build.log" --force-fallback-for=fuse3 -Dtests=false || status=$?
        if [ $status -ne 0 ] && grep -q 'is the internet available' "$suite_logs/build.log" && ! libfuse_in_reach; then
            suite_skipped=$((suite_skipped + 1))
            echo "skipped: no network to download libfuse from"
            return 0
        fi
        result $status "builds with the libfuse of packaging/subprojects/fuse3.wrap" "$suite_logs/build.log"
        [ $status -eq 0 ] || return 0
    fi
    if ! "$daemon_build/residentfs" --version >"$suite_logs/version.log" 2>&1; then
        result 1 "$daemon_build/residentfs runs" "$suite_logs/version.log"
        return 0
    fi
    grep libfuse "$suite_logs/version.log"
    run_shell posix
    run_shell share
    run_shell transfer io_uring
}

run_bench() {
    local status=0 json=$suite_logs/bench.json plot=$suite_logs/bench.svg
    in_suite tests/bench/run.sh --device "$device" --build "$daemon_build" --json "$json" --plot "$plot" || status=$?
    result $status "benchmark: $json and $plot"
}

run_tsan() {
    local build=$root/build-tsan timeout_factor=3 status=0
    local -x TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
    build_into "$build" "$suite_logs/build.log" -Db_sanitize=thread || status=$?
    result $status "builds with TSan" "$suite_logs/build.log"
    [ $status -eq 0 ] || return 0
    run_unit tsan
}

# ---- all of it ----

scratch=$(mktemp -d /tmp/residentfs-run.XXXXXX)
# Tests act as other users, too.
chmod 755 "$scratch"
exec 3>&1
trap conclude EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
logs=$build/test-logs
suite_name=

# shellcheck source=packaging/packages.sh
. "$root/packaging/packages.sh"
if [ $install -eq 1 ]; then
    # Without a package of the second list, the tests that need it are skipped or fail by themselves.
    install_packages "$packages_to_build"
    install_packages "$packages_to_test" || echo "Going on without."
    fetch_promtool "$root/build/tools" || echo "No promtool: .resident/metrics is not checked by it."
fi
export PATH=$root/build/tools:$PATH
[ -e /dev/fuse ] || modprobe -q fuse 2>/dev/null || true
[ -e /dev/fuse ] || echo "There is no /dev/fuse here: nothing can be mounted."

mkdir -p "$build"
needs_daemon=0
for suite in "${suites[@]}"; do
    case $suite in
    lint | build | asan | tsan) ;;
    *) needs_daemon=1 ;;
    esac
done
if [ $needs_daemon -eq 1 ]; then
    echo "== building"
    if ! build_into "$build" "$scratch/build.log"; then
        tail -n 80 "$scratch/build.log"
        echo "FAILED  the build"
        failed=1
        finished=1
        exit 1
    fi
fi

for suite in "${suites[@]}"; do
    begin_suite "$suite"
    case $suite in
    unit) run_unit ;;
    lint) run_lint ;;
    build) run_build ;;
    asan) run_asan ;;
    posix-cached) run_posix_cached ;;
    posix-second) run_posix_second ;;
    bench) run_bench ;;
    bench-short) run_shell bench ;;
    share-cached) run_share_cached ;;
    fuzz) run_fuzz ;;
    tsan) run_tsan ;;
    *) run_shell "$suite" ;;
    esac
    end_suite
done
finished=1
