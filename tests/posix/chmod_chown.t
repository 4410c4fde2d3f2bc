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
sees "chown of an executable clears them" "0755" -u $nobody -g $nobody chown prog -1 $nobody : stat prog mode
for ids in "0 0" "$nobody $nobody"; do
    fsop chmod prog 06755
    before=$(fsop stat prog ctime)
    sees "chown to nobody else by ${ids% *} clears them too" "0755" -u "${ids% *}" -g "${ids#* }" tick : chown prog -1 -1 : stat prog mode
    isnt "… and changes ctime" "$(fsop stat prog ctime)" "$before"
done
fsop chmod own 02666
sees "sgid without group execute stays at a write by its owner's group" "2666" -u $nobody -g $nobody open own O_WRONLY : write 0 x : stat own mode
touch g && chown $nobody:$other g
sees "chmod by an owner outside the group drops sgid" "0755" -u $nobody -g $nobody chmod g 02755 : stat g mode
before=$(fsop stat own ctime mtime)
fsop tick : chmod own 0644
after=$(fsop stat own ctime mtime)
isnt "chmod changes ctime" "${after% *}" "${before% *}"
is "but not mtime" "${after#* }" "${before#* }"

unmount_fs
done_testing
