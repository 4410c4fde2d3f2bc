# shellcheck shell=bash
# Tests in Python of the module resident. To be sourced after lib.sh, from which these are.
: "${repository:?}" "${tests_folder:?}"

need python3
build_folder=$(dirname "$RESIDENTFS")
export RESIDENT_LIBRARY=${RESIDENT_LIBRARY:-$build_folder/core/share/libresident.so.1}
export RESIDENTFS_EMULATED_LIBRARY=${RESIDENTFS_EMULATED_LIBRARY:-$build_folder/core/driver/libresidentfs-emulated.so}
export PYTHONPATH=$repository/core/share/python PYTHONDONTWRITEBYTECODE=1

# python_cases FILE: each function of tests/share/FILE that is a @case is a test; the mount is $mnt.
python_cases() {
    local line said='' ended=0 runtime
    # With a sanitizer: its runtime must come first, and an interpreter leaks.
    runtime=$(ldd "$RESIDENT_LIBRARY" | awk '$1 ~ /^lib(a|t|ub)san\./ { print $3 }' | paste -sd:)
    while IFS= read -r line; do
        case $line in
        'ok - '*) pass "${line#ok - }" ;;
        'not ok - '*) fail "${line#not ok - }" "$said" ;;
        'end of cases') ended=1 ;;
        *)
            said+=$line$'\n'
            continue
            ;;
        esac
        said=''
    done < <(LD_PRELOAD=$runtime ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 python3 -X faulthandler "$tests_folder/share/$1" "${mnt:?}" 2>&1)
    [ $ended = 1 ] || fail "$1 runs to its end" "$said"
}
