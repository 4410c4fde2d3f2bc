#!/bin/bash
# ro and remount: what is refused, and that nothing breaks
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

refuses_changes() {
    local about=$1
    expect_errno "$about: create" EROFS open "$mnt/new" O_CREAT,O_WRONLY 0644
    expect_errno "$about: mkdir" EROFS mkdir "$mnt/newdir"
    expect_errno "$about: symlink" EROFS symlink x "$mnt/newlink"
    expect_errno "$about: mknod" EROFS mknod "$mnt/newfifo" fifo 0644
    expect_errno "$about: O_TMPFILE" EROFS open "$mnt" O_TMPFILE,O_RDWR 0644
    expect_errno "$about: chmod of the root" EROFS chmod "$mnt" 0700
    expect_errno "$about: chown of it" EROFS chown "$mnt" 1 1
    expect_errno "$about: its times" EROFS utimens "$mnt" 1 1
    expect_errno "$about: an attribute of it" EROFS setxattr "$mnt" user.a b
}

must_mount -o ro
refuses_changes "ro"
ok "the root is listed" ls -la "$mnt"
like "the kernel shows it as read-only" "$(findmnt -no OPTIONS "$mnt")" '(^|,)ro(,|$)'
if [ "$FS_UNDER_TEST" = residentfs ]; then
    like ".resident is read" "$(cat "$mnt/.resident/budget")" '^limit [1-9]'
    ok "all of it" sh -c "for f in '$mnt'/.resident/[!f]*; do cat \"\$f\" >/dev/null || exit 1; done"
    expect_errno "its budget is not written" EROFS open "$mnt/.resident/budget" O_WRONLY
    expect_errno "nor is it flushed" EROFS open "$mnt/.resident/flush" O_WRONLY
fi
unmount_fs

# -i: the system call alone. mount(8) without it runs the helper of FUSE, which cannot remount.
enter_mount
echo old >f && mkdir d && touch d/x && ln -s f l && fsop setxattr f user.a b
exec 8>held
not_ok "remount,ro is refused while a file is open for writing" mount -i -o remount,ro "$mnt"
ok "which is written still" sh -c 'echo bytes >&8'
exec 8>&-
if ! output=$(mount -i -o remount,ro "$mnt" 2>&1); then
    skip "no remount of this file system here: ${output##*$'\n'}" 1
else
    pass "remount,ro when none is"
    refuses_changes "remounted"
    expect_errno "remounted: open for writing" EROFS open f O_WRONLY
    expect_errno "remounted: truncate" EROFS truncate f 0
    expect_errno "remounted: unlink" EROFS unlink f
    expect_errno "remounted: rename" EROFS rename f g
    expect_errno "remounted: link" EROFS link f g
    expect_errno "remounted: rmdir" EROFS rmdir d
    expect_errno "remounted: removexattr" EROFS removexattr f user.a
    is "it is read" "$(cat f l held)" "old
old
bytes"
    is "and listed" "$(ls d)" x
    ok "remount,rw" mount -i -o remount,rw "$mnt"
    echo new >f
    is "it is written again" "$(cat f)" new
fi
if [ "$FS_UNDER_TEST" = residentfs ]; then
    if [ -x /sbin/mount.fuse.residentfs ] || [ -x /sbin/mount.fuse ] || [ -x /usr/sbin/mount.fuse ]; then
        ok "remount by the helper of FUSE, which would start a daemon, is refused" sh -c "! mount -o remount,ro '$mnt'"
    else
        skip "no helper of FUSE on this machine: mount asks the kernel"
    fi
    output=$("$RESIDENTFS" "$DEVICE" "$mnt" -o remount,ro 2>&1)
    is "so it is by residentfs" $? 2
    like "which says what to do" "$output" 'unmount and mount again'
    is "the mount works on" "$(echo more >>f && cat f)" "new
more"
    mkdir "$work/bound"
    ok "a second view of it may be read-only" sh -c "mount --bind '$mnt' '$work/bound' && mount -o remount,bind,ro '$work/bound'"
    expect_errno "there changes are refused" EROFS open "$work/bound/f" O_WRONLY
    works "and not here" open f O_WRONLY
    ok "it goes" umount "$work/bound"
fi
unmount_fs
done_testing
