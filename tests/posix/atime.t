#!/bin/bash
# atime as the mount options ask: relatime, noatime, strictatime, nodiratime
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

now=$(date +%s)
# What the page cache answers, the file system does not see.
case ,$MOUNT_OPTIONS, in *,cache=on,*) cached=yes ;; *) cached= ;; esac
# read_times SECONDS: gives everything that atime, no changes since, reads it, prints whether atime changed.
read_times() {
    local text='' name
    dd of=f oflag=nocache conv=notrunc count=0 status=none # drops its pages
    fsop utimens f "$1" 5 : utimens d "$1" 5 : lutimens l "$1" 5
    fsop open f O_RDONLY : read 0 4 : open d O_RDONLY,O_DIRECTORY : listfile 1 : readlink l >/dev/null
    for name in f d l; do
        [ "$(fsop lstat $name atime)" = "$1.000000000" ] || text+="$name "
    done
    echo "${text% }"
}

prepare() {
    must_mount ${1:+-o "$1"}
    cd "$mnt" || exit 1
    mkdir d && touch d/x && printf bytes >f && touch t && ln -s f l
}

later=$((now + 3600)) # later than any change, within a day
old=$((now - 100000)) # more than a day ago

prepare ""
is "by default (relatime) reading changes an atime that is older than a change" "$(read_times $((now - 60)))" "f d l"
is "or older than a day" "$(read_times $old)" "f d l"
is "and no other" "$(read_times $later)" ""
fsop utimens f $old 5 : utimens d $old 5
sees "O_NOATIME leaves it, for files and directories" "byte"$'\n'"$old.000000000"$'\n'"$old.000000000" \
    open f O_RDONLY,O_NOATIME : read 0 4 : open d O_RDONLY,O_DIRECTORY,O_NOATIME : listfile 1 : \
    stat f atime : stat d atime
touch empty && fsop utimens empty $old 5
if [ "$cached" ]; then
    skip "reading at the end of the file: the page cache answers it"
else
    unlike "reading at the end of the file counts" "$(fsop open empty O_RDONLY : read 0 4 : stat empty atime)" "^$old"
fi
unmount_fs

# FUSE does not ask anew for the attributes of what was copied from.
prepare attr_timeout=0
fsop utimens f $old 5
unlike "copy_file_range counts as reading" "$(fsop open f O_RDONLY : open t O_WRONLY : copy_file_range 0 0 1 0 4 : stat f atime | tail -n 1)" "^$old"
sees "but with O_NOATIME" "4"$'\n'"$old.000000000" utimens f $old 5 : open f O_RDONLY,O_NOATIME : open t O_WRONLY : copy_file_range 0 0 1 0 4 : stat f atime
unmount_fs

prepare noatime
is "noatime: nothing does" "$(read_times $old)" ""
before=$(fsop stat f atime)
isnt "touch -a still does" "$(touch -a f; fsop stat f atime)" "$before"
unmount_fs

prepare strictatime
is "strictatime: every read does" "$(read_times $later)" "f d l"
sees "but with O_NOATIME" "byte"$'\n'"$later.000000000" utimens f $later 5 : open f O_RDONLY,O_NOATIME : read 0 4 : stat f atime
unmount_fs

prepare nodiratime
is "nodiratime: not of directories" "$(read_times $old)" "f l"
unmount_fs

prepare strictatime,nodiratime
is "both: every read but of directories" "$(read_times $later)" "f l"
unmount_fs

if [ "$FS_UNDER_TEST" = residentfs ]; then
    prepare noatime,strictatime
    is "the later word counts" "$(read_times $later)" "f d l"
    unmount_fs
fi
done_testing
