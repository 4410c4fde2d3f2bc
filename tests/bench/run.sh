#!/bin/bash
# Measures residentfs side by side with what it is compared with; see tests/bench/run.sh --help.
#
#   tests/bench/run.sh [--device DEVICE] [--quick|--short] [--peer NAME=DIR]… [--json FILE] [--plot FILE.svg]
#
# Installs what is missing and builds into build/ first, unless --build DIR names a folder that has residentfs,
# null_fuse, io_load and bus_load, side by side or as a build leaves them.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
case " $* " in
*" --build"* | *" --list "* | *" --help "* | *" -h "*) ;;
*)
    # shellcheck source=packaging/packages.sh
    . "$root/packaging/packages.sh"
    install_packages "$packages_to_build" "python3 runs the benchmark" >&2
    [ -f "$root/build/build.ninja" ] || meson setup "$root/build" "$root" -Dtests=false -Dbench=true >&2
    ninja -C "$root/build" >&2
    # As it was built to be tried, for instance.
    [ -x "$root/build/tests/bench/null_fuse" ] || {
        meson configure "$root/build" -Dbench=true >&2
        ninja -C "$root/build" >&2
    }
    set -- --build "$root/build" "$@"
    ;;
esac
exec python3 -B "$root/tests/bench/bench.py" "$@"
