#!/bin/bash
# mount(8), fstab and umount(8): as root, and as a user through fusermount3
# timeout: 90
# In a mount namespace of its own, for the helpers must be in /sbin and the lines in /etc/fstab.
[ -n "${MOUNT_HELPER_NAMESPACE:-}" ] || MOUNT_HELPER_NAMESPACE=1 exec unshare --mount "$0" "$@"
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_emulated
[ "$(id -u)" -eq 0 ] || skip_all "needs root"
need mount fusermount3 setpriv

scratch=$work/scratch
mkdir "$scratch"
mount -t tmpfs -o mode=755 tmpfs "$scratch" || skip_all "no mounts in a namespace here"
mkdir "$scratch"/{upper,work}
mount -t overlay -o "lowerdir=/usr/sbin,upperdir=$scratch/upper,workdir=$scratch/work" overlay /usr/sbin ||
    skip_all "no overlay mounts here"
mkdir "$scratch/bin"
# A copy, which the other users can reach; the emulated driver is found beside it.
cp "$RESIDENTFS" "$(dirname "$RESIDENTFS")/core/driver/libresidentfs-emulated.so" "$scratch/bin/"
ln -s "$scratch/bin/residentfs" /usr/sbin/mount.residentfs
ln -s "$scratch/bin/residentfs" /usr/sbin/mount.fuse.residentfs
# Every user may open it, as udev has it.
mknod -m 666 "$scratch/fuse" c 10 229 && mount --bind "$scratch/fuse" /dev/fuse
finish() {
    # Those of the test's folder, the last first, so that it can be removed.
    umount /etc/fstab 2>/dev/null
    umount /usr/sbin /dev/fuse
    umount -l "$scratch"
}
trap 'finish; cleanup' EXIT

small=emulated_memory=256MiB
mnt=$work/mnt
mkdir "$mnt"

# mounted NAME: adopts what mount(8) has mounted.
mounted() {
    wait_for "is_mounted '$mnt'" 10 || { fail "$1" "not mounted: $(cat "$work/out")"; return 1; }
    daemon_pid=$(pgrep -f -- "^[^ ]*mount.*residentfs .*$mnt( |\$)" | head -n 1)
    mounts=("$mnt" "${daemon_pid:-0}")
    pass "$1"
}

for type in residentfs fuse.residentfs; do
    mount -t $type emulated "$mnt" -o "$small,budget=50%,nofail,_netdev,x-systemd.automount,x-any=thing" >"$work/out" 2>&1
    is "mount -t $type ends with 0, in silence" "$?$(cat "$work/out")" 0
    mounted "… and has mounted"
    is "… it is shown with its type and source" "$(findmnt -no FSTYPE,SOURCE "$mnt" | tr -s ' ')" "fuse.residentfs emulated"
    is "… the option is in force" "$(budget_value setting)" "50%"
    ok "… a file can be written" sh -c "echo x >'$mnt/f'"
    ok "umount works" umount "$mnt"
    ok "… and the daemon ends" wait_for "! alive ${daemon_pid:-1}" 15
    mounts=()
done

mount -t residentfs emulated "$mnt" -o budgt=50% >"$work/out" 2>&1
isnt "a wrong option: mount fails" $? 0
like "… and says which" "$(cat "$work/out")" 'budgt.*budget'
mount -f -t residentfs emulated "$mnt" -o "$small" >"$work/out" 2>&1
is "mount -f only looks" "$? $(is_mounted "$mnt" && echo mounted)" "0 "
mount -t residentfs cuda:all "$mnt" >"$work/out" 2>&1
isnt "a device that cannot be: mount fails" $? 0

mkdir "$work/home"
mkdir "$work/home/user"
chown $nobody "$work/home/user"
cat >"$scratch/fstab" <<LINES
emulated $work/mnt residentfs $small,ro,nofail,noauto,x-systemd.automount 0 0
emulated $work/home/user fuse.residentfs $small,user,noauto,nofail 0 0
LINES
mount --bind "$scratch/fstab" /etc/fstab

mount "$mnt" >"$work/out" 2>&1
mounted "a line of fstab: mount DIRECTORY works"
like "… ro is in force" "$(findmnt -no OPTIONS "$mnt")" '(^|,)ro(,|$)'
umount "$mnt"
ok "… and it ends" wait_for "! alive ${daemon_pid:-1}" 15
mounts=()
ok "findmnt --verify has nothing against the lines" sh -c 'findmnt --verify --tab-file /etc/fstab 2>&1 | grep -q "0 parse errors, 0 errors"'

mnt=$work/home/user
as_nobody mount "$mnt" >"$work/out" 2>&1
if mounted "a user mounts what fstab lets him"; then
    like "… through fusermount3, as himself" "$(findmnt -no OPTIONS "$mnt")" "nosuid,nodev,noexec.*user_id=$nobody"
    ok "… and writes" as_nobody sh -c "echo mine >'$mnt/f' && test \"\$(cat '$mnt/f')\" = mine"
    not_ok "another user cannot look in" setpriv --reuid=$other --regid=$other --clear-groups ls "$mnt"
    not_ok "nor unmount" setpriv --reuid=$other --regid=$other --clear-groups umount "$mnt"
    is "his daemon may start what gains privileges, for unmounting" \
        "$(sed -n 's/^NoNewPrivs:\t//p' "/proc/$daemon_pid/status")" 0
    ok "the user unmounts with umount" as_nobody umount "$mnt"
    ok "… and the daemon ends" wait_for "! alive ${daemon_pid:-1}" 15
fi
mounts=()
as_nobody mount -t residentfs emulated "$work/mnt" -o $small >"$work/out" 2>&1
isnt "a user cannot mount over what is another's" $? 0
like "… and is told why" "$(cat "$work/out")" "$work/mnt.*$nobody may not write"
done_testing
