#!/bin/sh
# sleep before|after [MOUNTPOINT]: what becomes of the memory of each residentfs (or of that one) at suspend, as
# its option on_suspend says.
#
#   ignore  nothing        refuse  "before" fails, so that the machine stays awake
#   warn    a line         save    the files go to $STATE_DIRECTORY; "after" restarts the unit and puts them back
#
# A device whose driver keeps VRAM (NVIDIA: NVreg_PreserveVideoMemoryAllocations=1) is left alone, and so is the
# emulated one, unless RESIDENTFS_SLEEP_PRETEND is set (tests).
set -u
umask 077
state=${STATE_DIRECTORY:-/var/lib/residentfs}
only=${2:-}
failed=0

# say PRIORITY TEXT: as the journal takes it.
say() {
    printf '<%s>residentfs: %s\n' "$1" "$2"
}

keeps_memory() {
    case $1 in
    emulated*) [ -z "${RESIDENTFS_SLEEP_PRETEND:-}" ] ;;
    *) grep -qsE '^PreserveVideoMemoryAllocations: *1' /proc/driver/nvidia/params ;;
    esac
}

unit_of() {
    systemd-escape --path --template=residentfs@.service "$1"
}

# save MOUNTPOINT: all of it or nothing.
save() {
    if ! systemctl --quiet is-active "$(unit_of "$1")"; then
        say 3 "$1: on_suspend=save is for mounts of residentfs@.service only: nothing was saved"
        return 1
    fi
    archive=$state/$(systemd-escape --path "$1").tar
    say 6 "$1: saving its files to $archive"
    if tar --create --file "$archive.part" --directory "$1" --one-file-system --sparse --numeric-owner \
        --xattrs --xattrs-include='*' --acls . && sync "$archive.part"; then
        mv "$archive.part" "$archive"
    else
        rm -f "$archive.part"
        say 3 "$1: its files could not be saved; the machine stays awake"
        return 1
    fi
}

before() {
    mkdir -p "$state"
    while read -r device mountpoint type _; do
        [ "$type" = fuse.residentfs ] || continue
        mountpoint=$(printf '%b' "$mountpoint")
        [ -z "$only" ] || [ "$mountpoint" = "$only" ] || continue
        ! keeps_memory "$device" || continue
        setting=$(timeout 10 sed -n 's/^on_suspend = //p' "$mountpoint/.resident/config" 2>/dev/null)
        resident=$(timeout 10 sed -n 's/^resident //p' "$mountpoint/.resident/budget" 2>/dev/null)
        case $setting in
        ignore) ;;
        refuse)
            say 3 "$mountpoint: on_suspend=refuse: unmount it first, for suspend would lose its files"
            failed=1
            ;;
        save) save "$mountpoint" || failed=1 ;;
        *)
            [ "${resident:-0}" -eq 0 ] ||
                say 4 "$mountpoint: this suspend may lose its files ($resident bytes of VRAM); see on_suspend="
            ;;
        esac
    done </proc/self/mounts
    [ $failed -eq 0 ] || rm -f "$state"/*.tar
}

after() {
    for archive in "$state"/*.tar; do
        [ -e "$archive" ] || continue
        mountpoint=$(systemd-escape --unescape --path "$(basename "$archive" .tar)")
        [ -z "$only" ] || [ "$mountpoint" = "$only" ] || continue
        say 6 "$mountpoint: starting anew, with the files that were saved"
        # Starts before do not count against it.
        systemctl reset-failed "$(unit_of "$mountpoint")" || true
        if systemctl restart "$(unit_of "$mountpoint")" &&
            tar --extract --file "$archive" --directory "$mountpoint" --preserve-permissions --same-owner \
                --numeric-owner --xattrs --xattrs-include='*' --acls; then
            rm -f "$archive"
        else
            say 3 "$mountpoint: not all files could be put back; they are in $archive"
            mv "$archive" "$archive.kept"
            failed=1
        fi
    done
}

case ${1:-} in
before) before ;;
after) after ;;
*)
    echo "usage: $0 before|after [MOUNTPOINT]" >&2
    exit 2
    ;;
esac
exit $failed
