#!/bin/bash
# a source tree: cp -a, tar, diff, modes, times, edit, delete
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount
start=$(resident_bytes)

tree=$work/tree
mkdir -p "$tree"
i=0
for a in core fs tests docs build tools; do
    for b in {1..10}; do
        mkdir -p "$tree/$a/$b"
        for c in {1..50}; do
            i=$((i + 1))
            printf '%s\n' "$i" "$a/$b/$c" "$((i * 7919))" >"$tree/$a/$b/file$c.c"
        done
    done
done
seq 1 30000 >"$tree/docs/large.txt"
random_file "$tree/docs/binary" 3333333 5
chmod 755 "$tree"/tools/*/file1.c
chmod 600 "$tree"/core/*/file2.c
chmod 444 "$tree"/core/*/file3.c
chmod 4755 "$tree/tools/1/file4.c"
ln -s ../core/1/file1.c "$tree/docs/link"
ln "$tree/core/1/file1.c" "$tree/docs/hard"
mkfifo "$tree/docs/fifo"
: >"$tree/docs/empty"
touch -d '2020-02-02 02:02:02.020202020' "$tree"/*/2/*
chown -R $nobody:$other "$tree/docs/3"
# What must be equal: type, mode, owner, size, links of files, mtime to the nanosecond, target.
listing() {
    (cd "$1" && find . -mindepth 1 \( -type d -printf '%P %y %m %U %G %T@\n' -o -printf '%P %y %m %U %G %s %n %T@ %l\n' \) | sort)
}

ok "cp -a of 3000 files" cp -a "$tree" copy
ok "diff -r sees no difference" diff -r --exclude fifo "$tree" copy
is "modes, owners, sizes, links and times are equal" "$(listing copy | diff - <(listing "$tree") | head -n 5)" ""
ok "tar in" bash -c "mkdir tarred && tar -C '$tree' --format=posix -cf - . | tar -C tarred -xpf -"
is "… is equal" "$(listing tarred | diff - <(listing "$tree") | head -n 5)" ""
ok "diff -r" diff -r --exclude fifo "$tree" tarred
ok "tar out" bash -c "mkdir '$work/out' && tar -C copy --format=posix -cf - . | tar -C '$work/out' -xpf -"
is "… is equal" "$(listing "$work/out" | diff - <(listing "$tree") | head -n 5)" ""
ok "cp -a within the mount" cp -a copy copy2
is "… is equal" "$(listing copy2 | diff - <(listing "$tree") | head -n 5)" ""
rm -r copy2 tarred

sed -i 's/core/CORE/' copy/core/*/*.c "$tree"/core/*/*.c
for f in copy "$tree"; do
    echo more >>"$f/docs/large.txt"
    mv "$f/fs" "$f/filesystem"
    rm -r "$f/build"
done
ok "after sed -i, append, mv and rm -r: diff -r" diff -r --exclude fifo "$tree" copy
is "grep -r finds what was edited" "$(grep -rl CORE copy | wc -l)" 500
if command -v rsync >/dev/null; then
    ok "rsync -aHX in" rsync -aHX "$tree/" synced/
    # rsync -H may make hard links after it has set the times of directories.
    is "… is equal" "$(diff <(listing synced | grep -v ' d ') <(listing "$tree" | grep -v ' d ') | head -n 5)" ""
    is "a second rsync copies nothing" "$(rsync -aHXi "$tree/" synced/)" ""
    rm -r synced
else
    skip "no rsync" 3
fi
ok "rm -r" rm -r copy
ok "resident bytes are what they were" back_to "$start"
is "nothing is left" "$(ls -A)" ""

unmount_fs
done_testing
