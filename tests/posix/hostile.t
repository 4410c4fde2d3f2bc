#!/bin/bash
# what users without rights do to harm: loops, names, depth, great numbers, storms; and what they may not
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
hostile=$(dirname "$FSOP")/hostile
descriptors=20000
[ "$LARGE" = 0 ] || descriptors=100000
enter_mount
mkdir public && chmod 1777 public

# Host memory of the daemon in KiB; 0 of a tmpfs, whose is the kernel's, and under ASan, which keeps what is freed.
memory() {
    if [ -n "$daemon_pid" ] && ! grep -q __asan_init "$RESIDENTFS"; then
        awk '/^RssAnon/ { print $2 }' "/proc/$daemon_pid/status"
    else
        echo 0
    fi
}
inodes() { df --output=iused "$mnt" | tail -n 1 | tr -d ' '; }
as_user() { "$hostile" -u "$nobody" "$@"; }
start=$(inodes)

# Symlinks.
ln -s b public/a && ln -s a public/b && ln -s self public/self && ln -s . public/dot
expect_errno "a loop of two symlinks" ELOOP stat public/a size
expect_errno "a symlink to itself" ELOOP open public/self O_RDONLY
for i in {1..45}; do ln -s "chain.$((i + 1))" "public/chain.$i"; done
expect_errno "a chain of 45" ELOOP stat public/chain.1 size
is "find -L comes to an end" "$(timeout 20 find -L public -type d 2>/dev/null)" public
expect_errno "a path through more of them than the kernel goes" ELOOP stat "public/$(printf 'dot/%.0s' {1..45})" size
rm -f public/{a,b,self,dot,chain.*}

# Names.
long=$(printf '\377%.0s' {1..255})
names=($'new\nline' $'\e[2Jescape\a' $'\001\002\177' "$long" '--help' '%s%n%x' ' ' "a'b\"c\\d" $'tab\there' '.resident2')
for name in "${names[@]}"; do printf x >"public/$name"; done
found=0
for name in "${names[@]}"; do [ "$(cat "public/$name")" = x ] && found=$((found + 1)); done
is "strange names name files" "$found" ${#names[@]}
expect_errno "256 bytes do not" ENAMETOOLONG open "public/${long}x" O_CREAT,O_WRONLY 0644
if [ "$FS_UNDER_TEST" = residentfs ]; then
    fsop open "public/$long" O_RDWR : pwrite 0 0 x : fsync 0
    is "each is one line of .resident/buffers" "$(tail -n +2 .resident/buffers | wc -l)" ${#names[@]}
    is "in which nothing is to be obeyed by a terminal" "$(tr -d '\n\t' <.resident/buffers | grep -cP '[\x00-\x1f\x7f]')" 0
    not_ok "none of them becomes .resident" fsop rename "public/$long" .resident
    for name in buffers log config; do
        expect_errno "others do not read $name" EACCES -u $other -g $other open .resident/$name O_RDONLY
    done
    for name in budget flush; do
        expect_errno "nor write $name" EACCES -u $other -g $other open .resident/$name O_WRONLY
    done
    is "the log has no line by a name" "$(grep -c 'line$' .resident/log)" 0
else
    skip "about residentfs" 9
fi
rm -f public/*new* public/*escape* public/$'\001'* public/"$long" public/--help public/%* public/' ' public/a* public/tab* public/.resident2

# Three users.
u=(-u "$nobody" -g "$nobody")
o=(-u "$other" -g "$other")
works "a user's file, and his folder" "${u[@]}" open public/his O_CREAT,O_WRONLY 0600 : write 0 secret : mkdir public/folder 0700
expect_errno "another one does not read it" EACCES "${o[@]}" open public/his O_RDONLY
expect_errno "nor write it" EACCES "${o[@]}" open public/his O_WRONLY
expect_errno "nor truncate it" EACCES "${o[@]}" truncate public/his 0
expect_errno "nor rename it out of a sticky directory" EPERM "${o[@]}" rename public/his public/mine
works "but has one of his own" "${o[@]}" open public/mine O_CREAT,O_WRONLY 0666
expect_errno "nor put his own over it" EPERM "${o[@]}" rename public/mine public/his
expect_errno "nor link it elsewhere" EACCES "${o[@]}" link public/his public/folder/his
expect_errno "nor change its mode" EPERM "${o[@]}" chmod public/his 0777
expect_errno "nor its owner" EPERM "${o[@]}" chown public/his $other $other
expect_errno "nor give his own away" EPERM "${o[@]}" chown public/mine $nobody $nobody
expect_errno "nor set an attribute" EACCES "${o[@]}" setxattr public/his user.x y
not_ok "nor an ACL" setpriv --reuid="$other" --regid="$other" --clear-groups setfacl -m "u:$other:rw" public/his
is "… of which there is none" "$(fsop -getxattr public/his system.posix_acl_access)" ENODATA
expect_errno "nor attributes for security on his own" EPERM "${o[@]}" setxattr public/mine security.x y
expect_errno "nor trusted attributes" EPERM "${o[@]}" setxattr public/mine trusted.x y
expect_errno "nor make a device" EPERM "${o[@]}" mknod public/device char 0666 1 3
mkdir public/group && chgrp $other public/group && chmod 2777 public/group
works "in a setgid directory" "${u[@]}" open public/group/file O_CREAT,O_WRONLY 02755 : mkdir public/group/sub
is "files are of its group, and not sgid by who is not in it" "$(stat -c '%g %a' public/group/file)" "$other 755"
is "directories are, and hand it on" "$(stat -c '%g %a' public/group/sub)" "$other 2755"
is "who is not in the group does not make a file sgid" "$(fsop "${u[@]}" -chmod public/group/file 02755 >/dev/null; stat -c %a public/group/file)" 755
rm -r public/*

# Depth.
works "2000 directories in each other, far past PATH_MAX" deep public 2000
is "… are there" "$(find public -mindepth 1 | wc -l)" 2000
[ "$FS_UNDER_TEST" = tmpfs ] || ok "… with .resident/buffers readable meanwhile" cat .resident/buffers
ok "… and removed again" rm -r public/dddddddddd
is "nothing is left of it" "$(inodes)" "$start"

# Great numbers.
echo x >public/file && mkdir public/folder
before=$(memory)
for path in public/file public/folder; do
    is "$descriptors open descriptors of $path" "$("$hostile" open $path "$descriptors")" "$descriptors"
done
between "… cost the daemon so many bytes each" "$((($(memory) - before) * 1024 / descriptors))" -1000000 2048
if [ "$FS_UNDER_TEST" = residentfs ]; then
    before=$(memory)
    mkfifo "$work/hold"
    HOLD=1 "$hostile" -u "$nobody" open .resident/metrics 10000 <"$work/hold" >"$work/opened" &
    exec 9>"$work/hold"
    ok "a user opens .resident/metrics again and again" wait_for "[ -s '$work/opened' ]" 60
    like "… until there are too many snapshots" "$(cat "$work/opened")" '^[0-9]+ ENFILE$'
    between "… all of which take so much (KiB)" $(($(memory) - before)) -1000000 32768
    ok "root opens it all the same" cat .resident/metrics
    exec 9>&-
    wait $!
    ok "when they are closed, the user may again" wait_for "as_nobody cat '$mnt/.resident/metrics' >/dev/null" 10
fi
is "names that are not there" "$(as_user missing public 50000)" 50000
before=$(memory)
is "… again and again" "$(as_user missing public 50000)" 50000
between "… take no memory (KiB)" $(($(memory) - before)) -1000000 2048
for round in 1 2 3; do
    is "20000 files, by a user ($round)" "$(mkdir -m 777 public/many && as_user create public/many 20000)" 20000
    forget_names
    is "… are all found after the kernel forgot them" "$(find public/many -type f -links 1 | wc -l)" 20000
    rm -r public/many
    [ $round -gt 1 ] || { forget_names; before=$(memory); }
done
forget_names
ok "… and gone when they are deleted" wait_for "[ \"\$(inodes)\" -eq $((start + 2)) ]" 10
between "… and so is their memory (KiB), whatever the round" $(($(memory) - before)) -1000000 4096

# Attributes.
before=$(memory)
touch public/attributes && chown $nobody public/attributes
got=$(as_user xattrs public/attributes 60000)
like "a user's attributes on one file come to an end" "$got" '^[0-9]+ (ENOSPC|E2BIG|EDQUOT)$|^[0-9]+ ENOMEM$'
[ -z "$daemon_pid" ] || between "… at a MiB (bytes)" $((${got%% *} * 60000)) 60000 $((1 << 20))
like "… also of empty ones" "$(touch public/empties && chown $nobody public/empties && as_user xattrs public/empties 0)" '^[0-9]+ (ENOSPC|E2BIG)$'
between "… and of the daemon's memory (KiB)" $(($(memory) - before)) -1000000 4096
rm public/attributes public/empties

# Storms.
mkdir -m 777 public/storm
is "four processes rename, swap, link and unlink the same names" "$(timeout 100 "$hostile" -u "$nobody" storm public/storm 3000)" 3000
rm -r public/storm
ok "nothing is left of it" wait_for "[ \"\$(inodes)\" -eq $((start + 2)) ]" 10
unmount_fs

# What all users together can take.
if [ "$FS_UNDER_TEST" = residentfs ]; then
    enter_mount -o max_files=1000
    chmod 777 .
    is "max_files: df -i shows it" "$(df --output=itotal,iused . | tail -n 1 | tr -s ' ' | sed 's/^ //')" "1000 1"
    is "as many files as may be, with the root" "$(as_user create . 2000)" "999 ENOSPC"
    is "none is free" "$(df --output=iavail . | tail -n 1 | tr -d ' ')" 0
    expect_errno "no directory" ENOSPC mkdir d
    expect_errno "no further name either" ENOSPC link file.1 again
    expect_errno "nor an attribute" ENOSPC setxattr file.1 user.x y
    expect_errno "nor a symlink" ENOSPC symlink x s
    works "what is there can be used" open file.1 O_RDWR : fill 0 0 1M 1 : fsync 0 : check 0 0 1M 1
    works "and renamed, over another too" rename file.1 new : rename new file.2
    works "deleting makes room for a link, which takes a file's" link file.2 again
    expect_errno "… and no more" ENOSPC link file.2 twice
    works "it is given back" unlink again : link file.3 again : unlink file.3 : rename again file.3
    rm file.*
    ok "all of it" wait_for "[ \"\$(inodes)\" -eq 1 ]" 10
    touch a
    is "attributes count by their size" "$(fsop setxattrsize a user.big 60000 && inodes)" $((2 + 60000 / 1024 + 1))
    works "… and no more when they are set anew" setxattrsize a user.big 60000 : setxattrsize a user.big 50000 : removexattr a user.big
    is "… nor when they are gone" "$(inodes)" 2
    is "so do the targets of symlinks" "$(fsop symlink "$(printf 'x%.0s' {1..3072})" s && inodes)" 6
    rm a s
    is "and all is back" "$(inodes)" 1
    for i in {1..5}; do
        touch "f.$i" && chown "$nobody" "f.$i" && as_user xattrs "f.$i" 50000 | tr '\n' ' '
    done >"$work/out"
    like "many files with large attributes: it ends" "$(cat "$work/out")" ' 0 ENOSPC|ENOSPC $'
    unmount_fs
fi
done_testing
