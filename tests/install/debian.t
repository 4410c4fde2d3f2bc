#!/bin/bash
# LARGE=1: Debian packages are built, checked, installed, used, removed and purged in clean chroots
# timeout: 1800
#
# RELEASES (default: bookworm trixie) of MIRROR (default: http://deb.debian.org/debian); as root.
# shellcheck disable=SC2016 # commands for the chroots
TEST_LIMIT=1800
# In a mount namespace of its own.
[ -n "${DEBIAN_NAMESPACE:-}" ] || [ "${LARGE:-0}" != 1 ] || DEBIAN_NAMESPACE=1 exec unshare --mount "$0" "$@"
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
[ "$LARGE" = 1 ] || skip_all "takes minutes and the network; LARGE=1 runs it"
only_emulated
[ "$(id -u)" -eq 0 ] || skip_all "needs root"
need mmdebstrap

log=$work/log
packages=$work/packages
# A folder that chroots are made in: device nodes and programs must work there.
chroots=$work/chroots
mkdir "$chroots" && mount -t tmpfs -o mode=755 tmpfs "$chroots"

# inside RELEASE COMMAND: in its chroot, with what it says in the log.
inside() {
    chroot "$chroots/$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive \
        bash -euc "$2" >"$log" 2>&1 </dev/null
}
export -f inside

# make_chroot RELEASE NAME
make_chroot() {
    mmdebstrap --quiet --variant=minbase --include=ca-certificates "$1" "$chroots/$2" \
        "${MIRROR:-http://deb.debian.org/debian}" >"$log" 2>&1 &&
        mount -t proc proc "$chroots/$2/proc" && { [ -e "$chroots/$2/dev/fuse" ] || mknod -m 666 "$chroots/$2/dev/fuse" c 10 229; } &&
        printf '#!/bin/sh\nexit 101\n' >"$chroots/$2/usr/sbin/policy-rc.d" && chmod +x "$chroots/$2/usr/sbin/policy-rc.d" &&
        inside "$2" 'apt-get -qq update'
}
remove_chroot() {
    umount "$chroots/$1/proc"
    rm -rf --one-file-system "${chroots:?}/$1"
}

# Files of a chroot, but for what apt and dpkg keep for themselves, and /run.
files_of() {
    find "$chroots/$1" -xdev -path "$chroots/$1/proc" -prune -o -path "$chroots/$1/var/lib/dpkg" -prune -o \
        -path "$chroots/$1/var/lib/apt" -prune -o -path "$chroots/$1/var/cache" -prune -o \
        -path "$chroots/$1/var/log" -prune -o -path "$chroots/$1/run" -prune -o -path "$chroots/$1/tmp/*" -prune -o -printf '%P\n' | sort
}

logged() {
    local name=$1
    shift
    if "$@"; then pass "$name"; else fail "$name" "$(tail -n 30 "$log")"; fi
}

# A service of the chroot that, once it has booted, tries the units, and says what it saw.
write_service() {
    rm "$chroots/build/usr/sbin/policy-rc.d"
    cat >"$chroots/build/check" <<'SCRIPT'
#!/bin/bash
exec >/checked 2>&1
unit=residentfs@mnt-vram.service
check() { if eval "$2"; then echo "ok $1"; else echo "not ok $1"; systemctl status --no-pager $unit; fi; }
soon() { for i in {1..150}; do eval "$1" && return; sleep 0.1; done; false; }
pid() { systemctl show -P MainPID $unit; }
# A start is refused after some in a row.
restart() { systemctl reset-failed; systemctl restart $unit; }
options() { printf 'DEVICE=emulated\nOPTIONS=emulated_memory=64MiB%s\n' "$1" >/etc/default/residentfs; }
soon 'systemctl -q is-active multi-user.target'
options ''
systemctl start $unit
check "the unit mounts, and is ready when it has" 'systemctl -q is-active $unit && echo x >/mnt/vram/f'
check "… the journal has its lines, with their priorities" \
    'journalctl --sync; journalctl -q -u $unit -p warning | grep "device is emulated"'
first=$(pid)
kill -9 "$first"
check "killed, it is restarted and mounts again" \
    'soon "[ \$(pid) != $first ] && systemctl -q is-active $unit" && mountpoint -q /mnt/vram && [ ! -e /mnt/vram/f ]'
first=$(pid)
kill -STOP "$first"
check "… likewise when it gives no sign of life" \
    'for i in {1..9}; do soon "[ \$(pid) != $first ] && systemctl -q is-active $unit" && break; done'
options ,on_suspend=refuse
restart
check "suspend, refused: sleep.target is not reached" '! systemctl start fake-suspend.service'
options ,on_suspend=save
restart
echo precious >/mnt/vram/f
cp /bin/true /mnt/vram/suid && chown 1000:1000 /mnt/vram/suid && chmod 6751 /mnt/vram/suid
mknod /mnt/vram/node c 1 3 && chmod 640 /mnt/vram/node
saved() { stat -c '%n %u:%g %A %t' /mnt/vram/*; }
before=$(saved)
first=$(pid)
check "suspend, saved: it is reached" 'systemctl start fake-suspend.service'
check "… and afterwards the files are there, of another daemon" \
    'soon "[ \$(pid) != $first ] && [ -s /mnt/vram/f ]" && [ "$(cat /mnt/vram/f)" = precious ]'
check "… with owners, suid bits and nodes" '[ "$(saved)" = "$before" ]'
options ,nonsense=1
restart
check "a wrong configuration is not tried again" \
    'sleep 7; [ "$(systemctl show -P Result,NRestarts,ExecMainStatus $unit | paste -sd" ")" = "exit-code 0 2" ]'
options ''
restart
apt-get -qq -y remove residentfs
check "removing the package ends it" '! mountpoint -q /mnt/vram'
echo all tried
systemctl poweroff
SCRIPT
    chmod +x "$chroots/build/check"
    printf '[Service]\nExecStart=/check\n[Install]\nWantedBy=multi-user.target\n' >"$chroots/build/etc/systemd/system/check.service"
    printf '[Unit]\nRequires=sleep.target\nAfter=sleep.target\n[Service]\nType=oneshot\nExecStart=true\n' \
        >"$chroots/build/etc/systemd/system/fake-suspend.service"
    for drop_in in residentfs-sleep.service:Environment=RESIDENTFS_SLEEP_PRETEND=1 residentfs@.service:WatchdogSec=5; do
        mkdir "$chroots/build/etc/systemd/system/${drop_in%%:*}.d"
        printf '[Service]\n%s\n' "${drop_in#*:}" >"$chroots/build/etc/systemd/system/${drop_in%%:*}.d/test.conf"
    done
    inside build 'systemctl enable check.service residentfs-sleep.service'
}

boot_and_check() {
    command -v systemd-nspawn >/dev/null || { skip "no systemd-nspawn on this machine"; return; }
    write_service
    umount "$chroots/build/proc"
    timeout --kill-after=10 240 systemd-nspawn -q -D "$chroots/build" --register=no --keep-unit --capability=all \
        --bind=/dev/fuse --private-network -b >"$log" 2>&1 </dev/null
    mount -t proc proc "$chroots/build/proc"
    [ -s "$chroots/build/checked" ] || { skip "systemd of $release does not boot in a container here"; return; }
    checked=$(cat "$chroots/build/checked")
    while read -r line; do
        case $line in
        'ok '*) pass "${line#ok }" ;;
        'not ok '*) fail "${line#not ok }" "$checked" ;;
        esac
    done <<<"$checked"
    is "… all of it was tried" "${checked##*$'\n'}" "all tried"
}

for release in ${RELEASES:-bookworm trixie}; do
    mkdir -p "$packages"
    logged "$release: a chroot to build in" make_chroot "$release" build
    logged "… with what it takes" inside build 'apt-get -qq -y --no-install-recommends install build-essential debhelper meson \
        pkgconf libfuse3-dev libinih-dev libcmocka-dev dh-python lintian'
    mkdir "$chroots/build/src"
    git -C "$repository" ls-files -z | tar -C "$repository" --null -T - -cf - | tar -C "$chroots/build/src" -xf -
    logged "packaging/deb.sh builds the packages" inside build '/src/packaging/deb.sh /out'
    diag "$(cd "$chroots/build/out" && ls)"
    logged "lintian has nothing to say" inside build 'said=$(lintian --allow-root --fail-on error,warning /out/*.changes) && echo "$said" && test -z "$said"'
    cp "$chroots/build/out"/*.deb "$packages/"
    logged "the units are right" inside build 'apt-get -qq -y --no-install-recommends install systemd-sysv dbus \
            /out/residentfs_*.deb /out/residentfs-emulated_*.deb
        systemd-analyze verify --man=no residentfs@mnt-vram.service residentfs-sleep.service 2>&1 | tee /tmp/verify
        test ! -s /tmp/verify'
    boot_and_check
    remove_chroot build

    logged "$release: a clean chroot" make_chroot "$release" clean
    # What the packages depend on is not theirs to remove.
    logged "… with what the packages depend on" inside clean 'apt-get -qq -y --no-install-recommends install fuse3 libinih1 python3 gcc libc6-dev pkgconf'
    files_of clean >"$work/before"
    mkdir "$chroots/clean/tmp/packages"
    cp "$packages"/{residentfs,residentfs-emulated,libresident1,libresident-dev,python3-resident}_*.deb "$chroots/clean/tmp/packages/"
    logged "the packages are installed" inside clean 'apt-get -qq -y --no-install-recommends install /tmp/packages/*.deb'
    logged "mount -t residentfs, write, read, umount" inside clean 'mkdir /tmp/mnt
        mount -t residentfs emulated /tmp/mnt -o emulated_memory=256MiB,budget=50%
        head -c 30M /dev/urandom >/tmp/mnt/f
        cp --reflink=auto /tmp/mnt/f /tmp/mnt/g
        cmp /tmp/mnt/f /tmp/mnt/g
        grep "^setting 50%" /tmp/mnt/.resident/budget
        umount /tmp/mnt
        for i in {1..100}; do readlink /proc/[0-9]*/exe | grep -qx /usr/bin/residentfs || exit 0; sleep 0.1; done
        exit 1'
    logged "a program is built with the library, and finds it" inside clean 'cd /tmp/mnt
        printf "#include <resident.h>\n#include <stdio.h>\nint main(void) { struct resident_mapping *m; return resident_map_path(__FILE__, 0, &m) != -95 || puts(resident_error()) < 0; }\n" >/tmp/p.c
        gcc -o /tmp/p /tmp/p.c $(pkg-config --cflags --libs libresident)
        /tmp/p'
    logged "the Python module finds it, too" inside clean 'python3 -c "import resident._library; print(resident._library.library())"'
    logged "residentfs --check-config with the file of the package" inside clean 'residentfs --check-config | grep /etc/residentfs.conf'
    logged "a changed configuration is in force" inside clean 'echo "[budget]
budget = 40%" >>/etc/residentfs.conf
        residentfs emulated /tmp/mnt -o emulated_memory=256MiB
        grep "^setting 40%" /tmp/mnt/.resident/budget
        umount /tmp/mnt'
    logged "… and kept when the package is installed again" inside clean 'apt-get -qq -y --reinstall install /tmp/packages/residentfs_*.deb
        grep "budget = 40%" /etc/residentfs.conf'
    logged "removing leaves the configuration" inside clean 'apt-get -qq -y remove residentfs residentfs-emulated libresident1 libresident-dev python3-resident
        test -e /etc/residentfs.conf && ! command -v residentfs'
    logged "purging works" inside clean 'dpkg --purge residentfs residentfs-emulated libresident1 libresident-dev python3-resident'
    files_of clean >"$work/after"
    is "… and leaves nothing behind" "$(diff "$work/before" "$work/after")" ""
    remove_chroot clean
    rm -rf "$packages"
done
umount "$chroots"
done_testing
