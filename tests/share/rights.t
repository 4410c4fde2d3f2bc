#!/bin/bash
# who may map what: an open descriptor of a file on this mount, for reading and writing, and nothing else
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=clients.sh
. "$(dirname "$0")/clients.sh"
only_residentfs
# Other users may not get to where these were built.
mkdir "$work/bin"
cp -L "$SHARER" "$RAWSHARE" "$(dirname "$FSOP")/../../core/share/libresident.so.1" "$work/bin"
cp -L "${RESIDENTFS_EMULATED_LIBRARY:-$(dirname "$RESIDENTFS")/core/driver/libresidentfs-emulated.so}" "$work/bin"
export LD_LIBRARY_PATH=$work/bin RESIDENTFS_EMULATED_LIBRARY=$work/bin/libresidentfs-emulated.so
SHARER=$work/bin/sharer RAWSHARE=$work/bin/rawshare
must_mount -m 64MiB "$work/second"
second=$mnt
second_socket=$(cat "$second/.resident/socket")
sharer open "$second/f" O_CREAT,O_RDWR : ffill 0 0 3M 2
enter_mount -m 256MiB
sharer open f O_CREAT,O_RDWR : ffill 0 0 3M 1
mkdir dir
ln -s f link
: >empty
: >"$work/elsewhere"

# Wrong descriptors. What libresident itself notices, and what the daemon must.
client a
refused "no descriptor" a EBADF mapfile bad
refused "a closed one" a EBADF "open f O_RDWR,O_DIRECT : close 0 : mapfile 0"
refused "a file of another file system" a EOPNOTSUPP "open $work/elsewhere O_RDWR : mapfile 1"
refused "a directory" a EISDIR "open dir O_RDONLY,O_DIRECTORY : mapfile 2"
refused "an empty file" a ENODATA "open empty O_RDWR,O_DIRECT : mapfile 3"
refused "a pipe" a EOPNOTSUPP "pipe : mapfile 5"
refused "a socket" a EOPNOTSUPP "socket : mapfile 6"
refused "a device" a EOPNOTSUPP "open /dev/null O_RDWR : mapfile 7"
refused "a file of .resident" a EACCES "open .resident/status O_RDONLY : mapfile 8"
refused "a path that does not exist" a ENOENT map nothing
refused "a directory by path" a EISDIR map dir
said "a symbolic link by path is its file" a same "map link : check m0 0 3M 1 : unmap 0"
said "after all that it works" a same "map f : check m1 0 3M 1"
client_end a
for file in "$work/elsewhere" "$second/f" /dev/null "$work" "$second"; do
    is "sent to the daemon all the same: ${file#"$work/"}" "$("$RAWSHARE" foreign "$file" f)" "as expected"
done
is "… a directory" "$("$RAWSHARE" gives dir f)" -13
is "… a file of .resident" "$("$RAWSHARE" gives .resident/status f)" -22
is "… .resident itself" "$("$RAWSHARE" gives .resident f)" -22

# Users.
chmod 755 .
install -m 600 -o $nobody -g $nobody /dev/null private
install -m 644 -o $nobody -g $nobody /dev/null readable
install -m 666 -o $nobody -g $nobody /dev/null public
for name in private readable public; do sharer open $name O_RDWR : ffill 0 0 100000 3; done
# tries USER FILE [ro]
tries() {
    local user=$1 file=$2
    shift 2
    setpriv --reuid="$user" --regid="$user" --clear-groups timeout 60 "$SHARER" map "$file" "$@" : check m0 0 100000 3 2>&1 |
        cut -d: -f1
}
for file in private readable public; do
    is "the owner maps $file" "$(tries $nobody $file)" same
done
is "another user does not map private" "$(tries $other private)" EACCES
is "… readable neither" "$(tries $other readable)" EACCES
is "… not even for reading, since memory can be written" "$(tries $other readable ro)" EACCES
is "… nor by a descriptor that he may have" "$(setpriv --reuid=$other --regid=$other --clear-groups "$SHARER" open readable O_RDONLY,O_DIRECT : mapfile 0 | cut -d: -f1)" EACCES
is "… public he does" "$(tries $other public)" same
# By hand: what libresident would not send.
like "a descriptor that is open for reading only is not enough" \
    "$(setpriv --reuid=$other --regid=$other --clear-groups "$RAWSHARE" readonly readable readable)" "as expected"
is "what the third user, root, writes all see" "$(sharer map public : write m0 5 root; tries $nobody public)" "differs at 5"
socket=$(cat .resident/socket)
is "the socket is there for all" "$(stat -c '%F %a' "$socket")" "socket 666"
not_ok "its folder is not" as_nobody touch "$(dirname "$socket")/x"
is "the attribute names it" "$(fsop getxattr f user.resident.socket)" "$socket"
is "… also to others" "$(as_nobody "$FSOP" getxattr readable user.resident.socket)" "$socket"
isnt "each mount has its own" "$socket" "$second_socket"

# Where the socket is not found.
rm -f "$work/moved"
ln "$socket" "$work/moved" 2>/dev/null || ln -s "$socket" "$work/moved"
is "RESIDENT_SOCKET names another way to it" "$(RESIDENT_SOCKET=$work/moved sharer map f : check m0 0 3M 1)" same
like "… one that is not there" "$(RESIDENT_SOCKET=$work/none sharer map f)" "^ENOENT: .*$work/none.*RESIDENT_SOCKET"
like "… one that is too long" "$(RESIDENT_SOCKET=$(printf '%0200d' 0) sharer map f)" "^ENAMETOOLONG: ."
like "… that of another mount" "$(RESIDENT_SOCKET=$second_socket sharer map f)" "^EOPNOTSUPP: .*$second"
is "… empty: as without" "$(RESIDENT_SOCKET='' sharer map f : check m0 0 3M 1)" same

# Another mount namespace, with a part of the mount only, under another path.
mkdir dir/below "$work/part"
cp f dir/below/g
if unshare -m true 2>/dev/null; then
    # shellcheck disable=SC2016
    got=$(cd "$work" && timeout 60 unshare -m sh -c 'mount --bind "$1/dir/below" "$2" && umount -l "$1" && exec "$3" map "$2/g" : check m0 0 3M 1 : write m0 0 inside' \
        sh "$mnt" "$work/part" "$SHARER" 2>&1)
    is "a program that sees a bind mount of a folder only" "$got" same
    is "… maps the same file" "$(head -c 6 dir/below/g)" inside
    # shellcheck disable=SC2016
    got=$(cd "$work" && timeout 60 unshare -m sh -c 'mount --bind "$1/dir/below" "$2" && mount -o remount,bind,ro "$2" && exec "$3" map "$2/g"' \
        sh "$mnt" "$work/part" "$SHARER" 2>&1)
    like "… not where that is read-only" "$got" "^EROFS: ."
else
    skip "no mount namespaces here" 3
fi
if unshare -p -f true 2>/dev/null; then
    is "a program in another pid namespace" "$(timeout 60 unshare -p -f --mount-proc=/proc "$SHARER" map f : check m0 0 3M 1 2>&1)" same
else
    skip "no pid namespaces here"
fi

# share=off
must_mount -m 64MiB -o share=off "$work/closed"
sharer open "$mnt/f" O_CREAT,O_RDWR : ffill 0 0 3M 1
like "share=off: nothing is mapped" "$(sharer map "$mnt/f")" "^EOPNOTSUPP: .*share=off"
like "… or attached" "$(sharer alloc 1M : attach "$mnt/g" 0 1M)" "^EOPNOTSUPP: .*share=off"
ok "… and no file is left behind" test ! -e "$mnt/g"
is "… there is no socket" "$(cat "$mnt/.resident/socket")" ""
expect_errno "… nor the attribute" ENODATA getxattr "$mnt/f" user.resident.socket
like "… which status says" "$(grep -i '^shared' "$mnt/.resident/status")" off
unmount_fs "share=off unmounts"
mnt=$work/mnt
cd "$work" || exit 1
unmount_fs
unmount_fs "the other one unmounts"
done_testing
