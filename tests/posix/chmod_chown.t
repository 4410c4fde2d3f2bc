#!/bin/bash
# chmod and chown: bits, owners, who may, when set-id bits go
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount
chmod 777 .

touch a
for mode in 0000 0111 0644 0777 4755 2755 1777 7777; do
    sees "chmod $mode" "$mode" chmod a $mode : stat a mode
done
sees "fchmod" "0640" open a O_RDONLY : fchmod 0 0640 : stat a mode
sees "chown both" "1 2" chown a 1 2 : stat a uid gid
sees "chown group only" "1 3" chown a -1 3 : stat a uid gid
sees "chown user only" "4 3" chown a 4 -1 : stat a uid gid
sees "large ids" "4000000000 3999999999" chown a 4000000000 3999999999 : stat a uid gid
expect_errno "chmod of nothing" ENOENT chmod none 0644
expect_errno "chown of nothing" ENOENT chown none 0 0

fsop open own O_CREAT,O_WRONLY 0644 : chown own $nobody $nobody
expect_errno "another user may not chmod" EPERM -u $other -g $other chmod own 0777
expect_errno "another user may not chown" EPERM -u $other -g $other chown own $other $other
expect_errno "the owner may not give the file away" EPERM -u $nobody -g $nobody chown own $other -1
expect_errno "nor to a group that is not theirs" EPERM -u $nobody -g $nobody chown own -1 $other
sees "the owner may chmod" "0600" -u $nobody -g $nobody chmod own 0600 : stat own mode

fsop chmod own 06777
sees "a write by another user clears suid and sgid" "0777" -u $other -g $other open own O_WRONLY : write 0 x : stat own mode
fsop chmod own 06777
sees "truncate by another user too" "0777" -u $other -g $other truncate own 0 : stat own mode
fsop chmod own 06777
sees "a write by root leaves them" "6777" open own O_WRONLY : write 0 x : stat own mode
touch prog && chown $nobody:$nobody prog && chmod 6755 prog
touch held && chown $nobody:$nobody held && chmod 6644 held
works "a write by the owner" -u $nobody -g $nobody open held O_WRONLY : write 0 x
is "clears suid, and a stat at once says so, though the kernel knew the mode before" "$(stat -c %a held)" 2644
rm held
sees "chown of an executable clears them" "0755" -u $nobody -g $nobody chown prog -1 $nobody : stat prog mode
for ids in "0 0" "$nobody $nobody"; do
    fsop chmod prog 06755
    before=$(fsop stat prog ctime)
    sees "chown to nobody else by ${ids% *} clears them too" "0755" -u "${ids% *}" -g "${ids#* }" tick : chown prog -1 -1 : stat prog mode
    isnt "… and changes ctime" "$(fsop stat prog ctime)" "$before"
done
fsop chmod own 02666
sees "sgid without group execute stays at a write by its owner's group" "2666" -u $nobody -g $nobody open own O_WRONLY : write 0 x : stat own mode
chown $nobody:0 own
for calls in "write 0 x" "pwrite 0 5 x" "fallocate 0 0 0 4096" "fallocate 0 PUNCH_HOLE 0 1" "ftruncate 0 3" "ftruncate 0 3"; do
    fsop chmod own 06777
    # shellcheck disable=SC2086 # words
    sees "by another user clears suid and sgid: $calls" "0777" -u $other -g $other open own O_RDWR : $calls : stat own mode
done
for size in 3 0; do
    fsop truncate own $size : chmod own 06777
    sees "so does O_TRUNC of $size bytes" "0777" -u $other -g $other open own O_WRONLY,O_TRUNC : stat own mode
done
fsop open source O_CREAT,O_WRONLY 0644 : write 0 bytes : chmod own 06777
sees "and copy_file_range" "5"$'\n'"0777" -u $other -g $other open source O_RDONLY : open own O_WRONLY : copy_file_range 0 0 1 0 5 : stat own mode
fsop chmod own 06777
sees "times, reading and fsync leave them" "1"$'\n'"6777" -u $nobody -g $nobody open own O_RDWR : futimens 0 now now : preadcount 0 0 1 : fsync 0 : stat own mode
# Linux 6.2 and newer.
fsop chown own $nobody 0 : chmod own 02666
sees "sgid without group execute goes when someone outside the group writes" "0666" -u $nobody -g $nobody open own O_WRONLY : write 0 x : stat own mode
fsop chmod own 02666
sees "… or gives the file to another group" "0666" -u $nobody -g $nobody chown own -1 $nobody : stat own mode
fsop chown own $nobody $other : chmod own 02666
is "it stays for who has the group besides the first" \
    "$(setpriv --reuid=$nobody --regid=$nobody --groups=$other "$FSOP" open own O_WRONLY : write 0 x : stat own mode)" "2666"
mkdir dir && chmod 6777 dir
sees "chown of a directory leaves its bits" "6777" chown dir $nobody $nobody : stat dir mode
if command -v setcap >/dev/null && setcap cap_net_raw+ep source; then
    for calls in "open source O_WRONLY : write 0 x" "open source O_WRONLY,O_TRUNC" "truncate source 5" "open source O_WRONLY : fallocate 0 0 0 10" "chown source 0 0"; do
        setcap cap_net_raw+ep source
        # shellcheck disable=SC2086 # words
        fsop $calls
        is "a file's capabilities go, also when root does it: $calls" "$(getcap source)" ""
    done
    setcap cap_net_raw+ep source
    fsop chmod source 0700
    like "chmod leaves them" "$(getcap source)" cap_net_raw
else
    skip "no setcap" 6
fi
touch g && chown $nobody:$other g
sees "chmod by an owner outside the group drops sgid" "0755" -u $nobody -g $nobody chmod g 02755 : stat g mode
before=$(fsop stat own ctime mtime)
fsop tick : chmod own 0644
after=$(fsop stat own ctime mtime)
isnt "chmod changes ctime" "${after% *}" "${before% *}"
is "but not mtime" "${after#* }" "${before#* }"

unmount_fs
done_testing
