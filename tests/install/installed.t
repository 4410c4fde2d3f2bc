#!/bin/bash
# what is installed: whole, found, and in step with the table of options and with the metrics
# timeout: 120
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_emulated
need meson jq

build=$(dirname "$RESIDENTFS")
[ -f "$build/build.ninja" ] || skip_all "$RESIDENTFS is not in its build folder"
root=$work/root
DESTDIR=$root meson install -C "$build" --no-rebuild >"$work/out" 2>&1
is "meson install works" $? 0
prefix=$root$(meson introspect "$build" --buildoptions | jq -r '.[] | select(.name == "prefix").value')
for path in bin/residentfs sbin/mount.residentfs sbin/mount.fuse.residentfs share/man/man8/residentfs.8 \
    share/man/man8/mount.residentfs.8 share/man/man5/residentfs.conf.5 share/man/man7/residentfs-files.7 share/man/man3/libresident.3 \
    share/bash-completion/completions/residentfs lib/systemd/system/residentfs@.service \
    lib/systemd/system/residentfs-sleep.service libexec/residentfs/sleep share/residentfs/dashboard/residentfs.json; do
    ok "$path is there" test -L "$prefix/$path" -o -s "$prefix/$path"
done
daemon=$prefix/bin/residentfs
RESIDENTFS=$daemon

# The emulated driver of an installation elsewhere is at its absolute path.
RESIDENTFS_EMULATED_LIBRARY=$(find "$root" -name libresidentfs-emulated.so)
export RESIDENTFS_EMULATED_LIBRARY
must_mount
cp "$mnt/.resident/config" "$work/config"
cp "$mnt/.resident/metrics" "$work/metrics"

# -- options: --help, the manual, .resident/config and the sample have the same

"$daemon" --help | sed -nE 's/^  ([a-z_]+)=.*/\1/p' | sort >"$work/options"
count=$(wc -l <"$work/options")
between "--help has options" "$count" 18 200
manual=$prefix/share/man/man5/residentfs.conf.5
is "residentfs.conf(5) has the same" "$(sed -nE 's/^\.It Cm ([a-z_]+) Ns = .*/\1/p' "$manual" | sort)" "$(cat "$work/options")"
is ".resident/config has the same" "$(sed -nE 's/^([a-z_]+) =.*/\1/p' "$work/config" | sort)" "$(cat "$work/options")"
is "the sample has the same" "$(sed -nE 's/^#([a-z_]+) =.*/\1/p' "$repository/packaging/residentfs.conf" | sort)" "$(cat "$work/options")"
missing=$(while read -r name; do grep -qE "^\| .*\`$name(=|\`)" "$repository/README.md" || echo "$name"; done <"$work/options")
is "README's table has all of them" "$missing" ""
# Text over some lines is one option's.
text=$(awk '/^\.It Cm /{ print "" } { printf "%s ", $0 }' "$manual")
like "… with range and default" "$text" 'Cm workers Ns = Ns Ar N .*Allowed: 0\.\.256\. Default: 0 '
like "… or choices" "$text" 'Cm cache Ns = Ns Cm off\|on .*Default: off\.'

# -- the manual

if command -v mandoc >/dev/null; then
    for page in "$prefix"/share/man/man*/*resident*.[3578]; do
        # A manual that mandoc has no index of is not found.
        is "mandoc has nothing against ${page##*/}" "$(mandoc -Tlint "$page" 2>/dev/null | grep -v 'referenced manual not found')" ""
    done
else
    skip "no mandoc on this machine" 4
fi
sed -nE 's/^[a-z].*[ *](resident_[a-z_]+)\(.*/\1/p' "$prefix/include/resident.h" | sort -u >"$work/functions"
between "resident.h has functions" "$(wc -l <"$work/functions")" 15 100
is "libresident(3) has the same" "$(sed -nE 's/^\.Nm (resident_[a-z_]+).*/\1/p' "$prefix/share/man/man3/libresident.3" | sort -u)" \
    "$(cat "$work/functions")"
names=$(cd "$mnt/.resident" && ls)
for name in $names; do
    ok "residentfs-files(7) has $name" grep -q "^\.It Pa $name\$" "$prefix/share/man/man7/residentfs-files.7"
done
is "… and no others" "$(grep -c '^\.It Pa ' "$prefix/share/man/man7/residentfs-files.7")" "$(wc -w <<<"$names")"

# -- --check-config

like "--check-config says that all is right, and of which file" "$("$daemon" --check-config --config "$work/config")" "right.*$work/config"
echo '[mount]
log = nowhere' >"$work/wrong.conf"
"$daemon" --check-config --config "$work/wrong.conf" >"$work/out" 2>&1
is "… and of a wrong one where" "$? $(cat "$work/out")" "2 residentfs: $work/wrong.conf:2: log = nowhere: not one of auto|stderr|syslog|journal"

# -- completion

# shellcheck source=/dev/null
. "$prefix/share/bash-completion/completions/residentfs"
# completes LINE: the candidates.
completes() {
    COMP_LINE=$1
    COMP_POINT=${#1}
    COMPREPLY=()
    _residentfs "$daemon" 2>/dev/null
    echo "${COMPREPLY[*]}"
}
COMP_WORDBREAKS=$' \t\n' # the words as they are
like "completion: devices" "$(completes 'residentfs ')" '(^| )emulated( |$)'
is "… a directory" "$(completes "residentfs emulated $root/us")" "$root/usr"
is "… every option" "$(completes 'residentfs emulated /mnt -o ' | tr ' ' '\n' | sed -n 's/=$//p' | sort)" "$(cat "$work/options")"
is "… the last of several" "$(completes 'residentfs emulated /mnt -o ro,bud')" "ro,budget="
is "… values" "$(completes 'residentfs emulated /mnt -o cache=')" "cache=off cache=on"
is "… arguments" "$(completes 'residentfs --che')" "--check-config"

# -- units

if command -v systemd-analyze >/dev/null; then
    mkdir "$work/units"
    for unit in residentfs@.service residentfs-sleep.service; do
        # With programs where they are here.
        sed "s,${prefix#"$root"}/,$prefix/,g" "$prefix/lib/systemd/system/$unit" >"$work/units/$unit"
        is "systemd-analyze has nothing against $unit" "$(systemd-analyze verify --man=no "$work/units/$unit" 2>&1 | grep -F residentfs)" ""
    done
    for unit in residentfs@.service residentfs-sleep.service; do
        exposure=$(systemd-analyze security --offline=yes "$work/units/$unit" 2>/dev/null | tail -n 1 | sed -E 's/.*: ([0-9]+)\.([0-9]).*/\1\2/')
        between "… and rates the exposure of $unit (tenths)" "$exposure" 10 55
    done
else
    skip "no systemd-analyze on this machine" 4
fi
unlike "the unit makes no mount namespace, which would hide the mount" "$(cat "$prefix/lib/systemd/system/residentfs@.service")" \
    '^(Protect(System|Home|KernelTunables|KernelModules|KernelLogs|ControlGroups|Proc|Clock|Hostname)|Private|ReadOnlyPaths|ReadWritePaths|InaccessiblePaths|TemporaryFileSystem|BindPaths|MountFlags)'

# -- the dashboard asks for metrics that there are

dashboard=$prefix/share/residentfs/dashboard/residentfs.json
jq -r '.panels[].targets[].expr, .templating.list[].query | (.query? // .)' "$dashboard" >"$work/queries"
grep -oE 'residentfs_[a-z_0-9]+' "$work/queries" | sort -u >"$work/asked"
sed -nE 's/^(residentfs_[a-z_0-9]+).*/\1/p' "$work/metrics" | sort -u >"$work/given"
between "the dashboard asks for metrics" "$(wc -l <"$work/asked")" 15 100
is "… all of which there are" "$(comm -23 "$work/asked" "$work/given")" ""
is "… and each panel has a place and a unit" "$(jq '[.panels[] | select((.gridPos.w // 0) == 0 or (.fieldConfig.defaults.unit // "") == "")] | length' "$dashboard")" 0
if command -v promtool >/dev/null; then
    # Prometheus itself reads them as the rules of alerts that they could be.
    jq '{groups: [{name: "dashboard", rules: [.panels[].targets[].expr | gsub("\\$__rate_interval"; "1m") | gsub("\\$(instance|device)"; ".*") | {alert: "x", expr: .}] | unique}]}' \
        "$dashboard" >"$work/rules.json"
    ok "… and Prometheus takes its queries" promtool check rules "$work/rules.json"
else
    skip "no promtool on this machine"
fi
unmount_fs

done_testing
