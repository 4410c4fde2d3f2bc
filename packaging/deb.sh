#!/bin/bash
# packaging/deb.sh [FOLDER [OPTION OF dpkg-buildpackage…]]
#
# Builds Debian packages of this tree into FOLDER (default: build-deb), with the distribution's tools, on the
# release that it runs on. The tree itself is left alone: debian/ is put to the top of a copy. To install what
# is needed for it: apt-get install build-essential debhelper meson pkgconf libfuse3-dev libinih-dev libcmocka-dev
# dh-python
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
out=${1:-$root/build-deb}
shift $(($# > 0))

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
version=$(sed -nE 's/^residentfs \(([^)]*)\).*/\1/p;1q' "$root/packaging/debian/changelog")
tree=$scratch/residentfs-$version
mkdir "$tree"
tar -C "$root" --exclude='./build*' --exclude=./.git --exclude=./packaging/debian -cf - . | tar -C "$tree" -xf -
cp -r "$root/packaging/debian" "$tree/debian"
(cd "$tree" && dpkg-buildpackage --no-sign "$@" </dev/null)
mkdir -p "$out"
for file in "$scratch"/*; do
    [ ! -f "$file" ] || mv "$file" "$out/"
done
ls "$out"
