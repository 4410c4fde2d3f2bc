#!/bin/bash
# Measures residentfs side by side with what it is compared with; see tests/bench/run.sh --help.
#
#   tests/bench/run.sh [--device DEVICE] [--quick|--short] [--peer NAME=DIR]… [--json FILE] [--plot FILE.svg]
#
# Builds into build/ first, unless --build DIR names a folder that has residentfs, null_fuse, io_load and
# bus_load, side by side or as a build leaves them.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
case " $* " in
*" --build"* | *" --list "* | *" --help "* | *" -h "*) ;;
*)
    [ -f "$root/build/build.ninja" ] || meson setup "$root/build" "$root" >&2
    ninja -C "$root/build" >&2
    set -- --build "$root/build" "$@"
    ;;
esac
exec python3 -B "$root/tests/bench/bench.py" "$@"
