#!/bin/bash
# O_TMPFILE: files without a name, that may get one
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount
chmod 777 .
if [ "$FS_UNDER_TEST" = residentfs ] && ! grep -q '^o_tmpfile yes' .resident/version; then
    expect_errno "refused as file systems do that do not have it" EOPNOTSUPP open . O_TMPFILE,O_RDWR 0644
    unmount_fs
    done_testing
    exit 0
fi
start=$(resident_bytes)

sees "a file without a name: no links, its mode less the umask" "file 0640 0 0" \
    umask 027 : open . O_TMPFILE,O_RDWR 0666 : fstat 0 type mode nlink size
is "nothing shows in the directory" "$(ls -A)" ""
sees "it is written and read" "same"$'\n'"8388608" open . O_TMPFILE,O_RDWR 0600 : fill 0 0 8M 5 : check 0 0 8M 5 : fstat 0 size
ok "its memory is given back at the last close" back_to "$start"
expect_errno "it must be open for writing" EINVAL open . O_TMPFILE,O_RDONLY 0600
expect_errno "in a directory that there is not" ENOENT open none O_TMPFILE,O_RDWR 0600
touch file
expect_errno "below a file" ENOTDIR open file O_TMPFILE,O_RDWR 0600
sees "it belongs to who makes it" "65534 65533" -u $nobody -g $other open . O_TMPFILE,O_RDWR 0600 : fstat 0 uid gid
mkdir closed setgid && chmod 755 closed && chown 0:$other setgid && chmod 2777 setgid
expect_errno "who may not write to the directory may not make one there" EACCES -u $nobody -g $nobody open closed O_TMPFILE,O_RDWR 0600
sees "in a setgid directory it has the directory's group" "65534 65533" -u $nobody -g $nobody open setgid O_TMPFILE,O_RDWR 0600 : fstat 0 uid gid

sees "a link through /proc gives it a name" "1"$'\n'"1 5"$'\n'"bytes" \
    open . O_TMPFILE,O_RDWR 0644 : write 0 bytes : linkfile 0 named : fstat 0 nlink : stat named nlink size : pread 0 0 9
is "the bytes are there after the close" "$(cat named)" bytes
cd "$work" && forget_names && cd "$mnt" || exit 1
is "also when the kernel has forgotten it" "$(cat named)" bytes
sees "so does a link with AT_EMPTY_PATH" "1" open . O_TMPFILE,O_RDWR 0644 : write 0 bytes : linkempty 0 named2 : stat named2 nlink
is "with the same bytes" "$(cat named2)" bytes
sees "an unprivileged user may, too" "1 65534" -u $nobody -g $nobody open . O_TMPFILE,O_WRONLY 0600 : linkfile 0 theirs : stat theirs nlink uid
sees "with a name it is a file like others: more names" "3" open . O_TMPFILE,O_RDWR 0644 : linkfile 0 x1 : linkfile 0 x2 : link x1 x3 : fstat 0 nlink
expect_errno "over a name that exists" EEXIST open . O_TMPFILE,O_RDWR 0644 : linkfile 0 named
sees "… and then to another" "EEXIST"$'\n'"1" open . O_TMPFILE,O_RDWR 0644 : -linkfile 0 named : linkfile 0 after : fstat 0 nlink
expect_errno "once its name is gone again it gets no other" ENOENT open . O_TMPFILE,O_RDWR 0644 : linkfile 0 y : unlink y : linkfile 0 y
expect_errno "with O_EXCL it never gets a name" ENOENT open . O_TMPFILE,O_RDWR,O_EXCL 0644 : linkfile 0 y
expect_errno "nor by AT_EMPTY_PATH" ENOENT open . O_TMPFILE,O_RDWR,O_EXCL 0644 : linkempty 0 y
expect_errno "a named file that was unlinked gets none either" ENOENT open gone O_CREAT,O_RDWR 0644 : unlink gone : linkfile 0 back
sees "it is opened a second time through /proc, and both see the same" "xbc" \
    open . O_TMPFILE,O_RDWR 0600 : write 0 abc : reopen 0 O_RDWR : pwrite 1 0 x : pread 0 0 9
sees "an O_PATH descriptor keeps it, and names it after the last other close" "3"$'\n'"abc" \
    open . O_TMPFILE,O_RDWR 0600 : write 0 abc : reopen 0 O_PATH : close 0 : fstat 1 size : linkfile 1 late : open late O_RDONLY : read 2 9
sees "and is opened again" "abc" open . O_TMPFILE,O_RDWR 0600 : write 0 abc : reopen 0 O_PATH : close 0 : reopen 1 O_RDONLY : read 2 9
sees "attributes of a file without a name" "0751 7 8 5.000000001" open . O_TMPFILE,O_RDWR 0600 : fchmod 0 0751 : fchown 0 7 8 : futimens 0 5.000000001 5.000000001 : fstat 0 mode uid gid mtime
before=$(fsop utimens closed 1 1 : open closed O_TMPFILE,O_RDWR 0600 : stat closed mtime)
is "making one does not change the directory" "$before" "1.000000000"
isnt "naming it does" "$(fsop utimens closed 1 1 : open closed O_TMPFILE,O_RDWR 0600 : linkfile 0 closed/x : stat closed mtime)" "1.000000000"
expect_errno "a directory with such a file is not empty once it is named" ENOTEMPTY rmdir closed
mkdir empty
works "one without does not count" open empty O_TMPFILE,O_RDWR 0600 : rmdir empty

sees "a large one that was named keeps its memory" "same" open . O_TMPFILE,O_RDWR 0600 : fill 0 0 8M 5 : linkfile 0 large : close 0 : open large O_RDONLY : check 1 0 8M 5
between "also for other processes" "$(resident_bytes)" $((start + (8 << 20))) $((start + (12 << 20)))
calls=()
for i in {0..99}; do
    calls+=(open . "O_TMPFILE,O_RDWR" 0600 : fill "$i" 0 64K 1 :)
done
works "many at once" "${calls[@]}" close 0
find . -mindepth 1 -delete
ok "at the end all memory is back" back_to "$start"

unmount_fs
done_testing
