# shellcheck shell=bash
# The Debian packages that residentfs needs, and installing those that are missing. To be sourced.

# Lines of PACKAGE REASON.
# shellcheck disable=SC2034 # for those who source this
packages_to_build='
gcc             the compiler
libc6-dev       its headers and start files
meson           the build description
ninja-build     runs the build
pkg-config      finds libraries
libfuse3-dev    the FUSE protocol
libinih-dev     the configuration file
fuse3           fusermount3: mounting and unmounting by users, mount -t fuse.residentfs
'

# shellcheck disable=SC2034
packages_to_test='
libcmocka-dev     unit tests
perl              prove, which runs the shell tests
clang             the second compiler
libclang-rt-14-dev  its sanitizers and fuzzer
clang-format      lint: C
shellcheck        lint: shell
git               which files are the projects own, and a program to try on the file system
jq                reads results of tests, and checks telemetry.json
attr              getfattr, setfattr
acl               getfacl, setfacl
xxd               looks at bytes, as the README does
openssl           reproducible random files, fast
liburing-dev      io_uring, in the newest libfuse
libnuma-dev       which needs this for it
sqlite3           a program that locks and syncs
fio               verifies what asynchronous clients write
ripgrep           a program that maps files
rsync             a program that renames, and carries attributes
python3           tests that a shell cannot write
python3-numpy     arrays over mapped buffers
procps            ps, for what hangs
mount             mount, umount
mandoc            checks the man pages
systemd           systemd-analyze checks the units, systemd-escape for the sleep hook
util-linux        setpriv, flock, setarch
'

# package_names LIST
package_names() {
    awk 'NF { print $1 }' <<<"$1"
}

# Prints those of the named packages that are not installed.
missing_packages() {
    local name
    for name; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || echo "$name"
    done
}

# install_packages LIST…: apt-get is called only if something is missing. 1 if something still is.
install_packages() {
    local list name as_root=()
    local -a wanted=() missing=()
    for list; do
        while read -r name; do
            wanted+=("$name")
        done < <(package_names "$list")
    done
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        echo "Not a Debian system. Please see to it that there is what these packages hold: ${wanted[*]}"
        return 0
    fi
    mapfile -t missing < <(missing_packages "${wanted[@]}")
    [ ${#missing[@]} -gt 0 ] || return 0
    echo "Installing: ${missing[*]}"
    if [ "$(id -u)" -ne 0 ]; then
        as_root=(sudo)
        if ! command -v sudo >/dev/null; then
            echo "Only root can install packages. As root: apt-get install --no-install-recommends ${missing[*]}"
            return 1
        fi
    fi
    if ! "${as_root[@]}" apt-get -qq update </dev/null ||
        ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 \
            install "${missing[@]}" </dev/null; then
        mapfile -t missing < <(missing_packages "${missing[@]}")
        [ ${#missing[@]} -gt 0 ] || return 0
        echo "Could not install: ${missing[*]}"
        return 1
    fi
}

# promtool checks .resident/metrics. Its package is that of the Prometheus server, which would be started,
# so only the one program is taken out of it. fetch_promtool DIRECTORY; 1 if that was not possible.
fetch_promtool() {
    local directory=$1 scratch
    command -v promtool >/dev/null && return 0
    [ ! -x "$directory/promtool" ] || return 0
    command -v apt-get >/dev/null || return 1
    scratch=$(mktemp -d) || return 1
    # apt hands the download to a user of its own.
    chmod 777 "$scratch"
    if (cd "$scratch" && apt-get -qq download prometheus && dpkg-deb -x prometheus_*.deb .) </dev/null; then
        mkdir -p "$directory"
        cp "$scratch/usr/bin/promtool" "$directory/"
    fi
    rm -rf "$scratch"
    [ -x "$directory/promtool" ]
}
