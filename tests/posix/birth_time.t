#!/bin/bash
# birth time through statx
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount
if [ "$FS_UNDER_TEST" = residentfs ] && ! grep -q '^birth_times yes' .resident/version; then
    is "unknown, where libfuse or the kernel cannot tell" "$(touch f; stat -c %w f)" "-"
    unmount_fs
    done_testing
    exit 0
fi

before=$(date +%s)
fsop open f O_CREAT,O_WRONLY 0640 : mkdir d : symlink f l : mknod p fifo 0600 : mknod c char 0600 1 3
for name in f d l p c .; do
    between "$name was born now" "$(stat -c %W $name)" $((before - 5)) $((before + 60))
done
birth=$(stat -c %.9W f)
like "with nanoseconds" "$birth" '\.[0-9]{9}$'
like "that are not zero" "$(stat -c %.9W f d l p c)" '\.[0-9]*[1-9]'
is "it is the first of its times" "$birth" "$(stat -c %.9Y f)"
fsop tick : open f O_WRONLY : write 0 bytes : chmod f 0600 : utimens f 5.000000001 6.000000002 : link f g : rename f h
is "no change moves it" "$(stat -c %.9W h)" "$birth"
is "nor does another name" "$(stat -c %.9W g)" "$birth"
cd "$work" && forget_names && cd "$mnt" || exit 1
is "nor was it only the kernel that knew" "$(stat -c %.9W h)" "$birth"
fsop tick : open f O_CREAT,O_WRONLY 0600
isnt "a new file of the old name has its own" "$(stat -c %.9W f)" "$birth"

# %w asks for it all by statx, the other formats by another way.
for name in h d l p c; do
    is "what comes with the birth time of $name is what comes without" \
        "$(stat -c '%w %a %u %g %h %s %b %i %t %T %F %x %y %z' $name | cut -d' ' -f4-)" \
        "$(stat -c '%a %u %g %h %s %b %i %t %T %F %x %y %z' $name)"
done
is "asked first, before anything else is known" "$(fsop open new O_CREAT,O_WRONLY 0604 : write 0 abc; stat -c '%w %a %s' new | cut -d' ' -f4-)" "604 3"
fsop open new O_WRONLY : write 0 abcdef
is "and again after a change" "$(stat -c '%w %s' new | cut -d' ' -f4-)" "6"
[ "$FS_UNDER_TEST" = tmpfs ] || between ".resident was born with the mount" "$(stat -c %W .resident/status)" $((before - 60)) $((before + 5))

unmount_fs
done_testing
