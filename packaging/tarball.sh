#!/bin/bash
# packaging/tarball.sh [FOLDER]
#
# Builds residentfs-VERSION-MACHINE.tar.gz into FOLDER (default: build-tarball): the program with the libraries
# that it needs, but for the C library's, which it finds relative to itself wherever it is unpacked. It runs on
# machines whose C library is as new as that of this one. Mounting as a user takes the machine's fusermount3.
set -euo pipefail
export LC_ALL=C
umask 022

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case ${1:-} in
-h | --help)
    sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed '$d'
    exit 0
    ;;
esac
out=${1:-$root/build-tarball}
mkdir -p "$out"
out=$(cd "$out" && pwd)

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# shellcheck disable=SC2016 # the dynamic linker's $ORIGIN
meson setup "$scratch/build" "$root" -Dtests=false -Dpython=false -Dbuildtype=release -Dprefix=/ -Dlibdir=lib -Dsbindir=bin \
    '-Dc_link_args=-Wl,-rpath,$ORIGIN/../lib,--disable-new-dtags' >"$scratch/log" ||
    { cat "$scratch/log" >&2; exit 1; }
ninja -C "$scratch/build" >"$scratch/log" || { cat "$scratch/log" >&2; exit 1; }
version=$(meson introspect "$scratch/build" --projectinfo | sed -E 's/.*"version": "([^"]*)".*/\1/')
name=residentfs-$version-$(uname -m)
tree=$scratch/$name
DESTDIR=$tree meson install -C "$scratch/build" --no-rebuild --strip >"$scratch/log"

# Units and helpers have absolute paths in them: they are for packages.
rm -rf "$tree/lib/systemd" "$tree/lib/pkgconfig" "$tree/libexec" "$tree"/bin/mount.*
cp "$root/README.md" "$root/LICENSE" "$tree/"

ldd "$tree/bin/residentfs" | sed -nE 's/.*=> ([^ ]+) .*/\1/p' | while read -r library; do
    case ${library##*/} in
    libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | ld-linux*) ;;
    *)
        cp -L "$library" "$tree/lib/"
        # With its licence, where a package says it.
        package=$(dpkg-query -S "*/${library##*/}" 2>/dev/null | head -n 1 | cut -d: -f1 || true)
        [ ! -e "/usr/share/doc/${package:-none}/copyright" ] ||
            cp -L "/usr/share/doc/$package/copyright" "$tree/share/doc/residentfs/${library##*/}.copyright"
        ;;
    esac
done

tar -C "$scratch" --owner=0 --group=0 --numeric-owner --sort=name -czf "$out/$name.tar.gz" "$name"
echo "$out/$name.tar.gz"
