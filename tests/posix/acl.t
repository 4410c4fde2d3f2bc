#!/bin/bash
# POSIX ACLs: set, kept, checked by the kernel, inherited, and how they and the mode follow each other
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
need setfacl getfacl setfattr getfattr
enter_mount
chmod 755 .

u=(-u "$nobody" -g "$nobody")
third=1234

# acl_of PATH: its entries in one line, by numbers.
acl_of() {
    getfacl -cnpE "$1" 2>&1 | sed '/^$/d' | tr '\n' ' ' | sed 's/ $//'
}

# has NAME PATH ENTRIES
has() {
    is "$1" "$(acl_of "$2")" "$3"
}

# names PATH: its attributes as listed.
names() {
    getfattr -h -m - "$1" 2>&1 | sed '/^#/d; /^$/d' | tr '\n' ' ' | sed 's/ $//'
}

# raw PATH NAME HEX: sets the attribute to those bytes; prints what was wrong.
raw() {
    setfattr -h -n "$2" -v "0x$3" "$1" 2>&1 | sed 's/.*: //'
}

# as USER GROUPS COMMAND…
as() {
    local user=$1 groups=$2
    shift 2
    setpriv --reuid="$user" --regid="$user" --groups "$groups" "$@"
}

# ---- an access ACL ----

echo text >a && chmod 600 a
expect_errno "before: another user may not read" EACCES "${u[@]}" open a O_RDONLY
if ! setfacl -m u:$nobody:r a 2>"$work/err" && [ "$FS_UNDER_TEST" = tmpfs ]; then
    skip_all "no ACLs here"
fi
has "getfacl shows what setfacl set" a "user::rw- user:$nobody:r-- group::--- mask::r-- other::---"
works "that user may read" "${u[@]}" open a O_RDONLY
expect_errno "but not write" EACCES "${u[@]}" open a O_WRONLY
expect_errno "nor a third read" EACCES -u $other -g $other open a O_RDONLY
sees "the mask shows as group bits" "0640" stat a mode
like "ls shows a plus" "$(ls -l a)" '^-rw-r-----\+ '
is "it is listed" "$(names a)" "system.posix_acl_access"
ln a a2
has "each name of the file has it" a2 "$(acl_of a)"
mv a2 a3
has "and keeps it through a rename" a3 "$(acl_of a)"

setfacl -m u:$nobody:rw a
works "after a change that user may write" "${u[@]}" open a O_WRONLY
setfacl -m u:$nobody:- a
expect_errno "after another one not even read" EACCES "${u[@]}" open a O_RDONLY
setfacl -b a
has "removing them all" a "user::rw- group::--- other::---"
is "… leaves nothing listed" "$(names a)" ""
expect_errno "… nor to get" ENODATA getxattr a system.posix_acl_access

# ---- who gets what ----

echo x >shared && chmod 644 shared && setfacl -m u:$nobody:- shared
expect_errno "a named user may be given less than others" EACCES "${u[@]}" open shared O_RDONLY
works "… and others are not meant" -u $other -g $other open shared O_RDONLY
setfacl -b shared && chmod 640 shared && setfacl -m g:$other:rw shared
not_ok "who is in no named group gets nothing" as_nobody cat "$mnt/shared"
ok "a member of a named group may read" as $nobody $other cat "$mnt/shared"
ok "… and write" as $nobody $other sh -c "echo y >>'$mnt/shared'"
ok "one group of many is enough" as $nobody 1,2,3,$other,4 cat "$mnt/shared"
setfacl -m g:$third:- shared
ok "… also when another one gets nothing" as $nobody $third,$other cat "$mnt/shared"
not_ok "… but one must be" as $nobody $third cat "$mnt/shared"
setfacl -m o:rw shared
not_ok "a member of a named group does not count among others" as $nobody $third cat "$mnt/shared"
setfacl -m u:$nobody:r,m::w shared
not_ok "the mask limits a named user" as_nobody cat "$mnt/shared"
not_ok "and a named group" as $third $other cat "$mnt/shared"
ok "but not others" as 1235 1 cat "$mnt/shared"
chown $nobody shared && setfacl -m u::-,u:$nobody:rwx,m::rwx shared
not_ok "for the owner the owner's entry counts, not the one with their name" as_nobody cat "$mnt/shared"

mkdir closed && chmod 700 closed && echo in >closed/file
setfacl -m u:$nobody:x closed
works "a named user may pass a directory" "${u[@]}" stat closed/file size
expect_errno "… not list it" EACCES "${u[@]}" open closed O_RDONLY,O_DIRECTORY
expect_errno "… nor create in it" EACCES "${u[@]}" open closed/new O_CREAT,O_WRONLY 0644
setfacl -m u:$nobody:rwx closed
works "… until they may" "${u[@]}" open closed/new O_CREAT,O_WRONLY 0644 : rename closed/new closed/newer : unlink closed/newer
expect_errno "a third may not even pass" EACCES -u $other -g $other stat closed/file size
printf '#!/bin/sh\necho ran\n' >run && chmod 700 run && setfacl -m u:$nobody:rx run
is "a named user runs a program" "$(as_nobody "$mnt/run" 2>&1)" ran

# ---- who may change them ----

touch own && chown $nobody:$nobody own && chmod 640 own
ok "the owner may set one" as_nobody setfacl -m u:$other:rw "$mnt/own"
not_ok "a named user with all rights may not" as $other $other setfacl -m u:$other:rwx "$mnt/own"
not_ok "nor remove it" as $other $other setfattr -x system.posix_acl_access "$mnt/own"
ok "anyone may look" as $third $third getfacl "$mnt/own"
has "it is as the owner left it" own "user::rw- user:$other:rw- group::r-- mask::rw- other::---"

# ---- the mode ----

touch m && chmod 664 m && setfacl -m u:$nobody:rw,g:$other:r m
# Linux does not look at an ACL whose mask is empty, so others must not have more than it.
fsop chmod m 0600
has "chmod sets the mask, not the group" m "user::rw- user:$nobody:rw- group::rw- group:$other:r-- mask::--- other::---"
expect_errno "… which takes the named user's rights" EACCES "${u[@]}" open m O_RDONLY
fsop chmod m 0660
works "… and gives them back" "${u[@]}" open m O_RDWR
has "… with the entries as they were" m "user::rw- user:$nobody:rw- group::rw- group:$other:r-- mask::rw- other::---"
setfacl -m m::r m
sees "the mask set is the group's bits" "0640" stat m mode
setfacl -n -m u::rwx,g::-,o::x m
sees "so are owner and others; with a mask not the group" "0741" stat m mode
setfacl -k -b m && chmod 640 m
setfacl --set u::rwx,g::x,o::w m
sees "an ACL that a mode can say sets the mode" "0712" stat m mode
is "… and is not kept" "$(names m)" ""
setfacl --set u::rw,g::r,m::r,o::- m
has "one with a mask and nothing named is kept" m "user::rw- group::r-- mask::r-- other::---"
setfattr -x system.posix_acl_access m
has "removing the attribute leaves the mode" m "user::rw- group::r-- other::---"
works "removing it where there is none is no error" removexattr m system.posix_acl_access
fsop chmod m 01640
setfacl -m u:$nobody:r m
sees "the sticky bit stays" "1640" stat m mode

# changes_ctime NAME PATH COMMAND…
changes_ctime() {
    local name=$1 path=$2 before
    shift 2
    before=$(fsop stat "$path" ctime)
    fsop tick
    "$@" || diag "failed: $*"
    isnt "$name" "$(fsop stat "$path" ctime)" "$before"
}
mkdir times
changes_ctime "setting one changes ctime" m setfacl -m u:$nobody:rw m
changes_ctime "so does removing it" m setfattr -x system.posix_acl_access m
changes_ctime "and a default one" times setfacl -d -m u:$nobody:rw times
changes_ctime "and removing that" times setfacl -k times

# ---- sgid ----

touch s && chown $nobody:$other s
# sgid_after NAME EXPECTED-MODE COMMAND…
sgid_after() {
    local name=$1 expected=$2
    shift 2
    fsop chmod s 02750
    "$@" || diag "failed: $*"
    sees "$name" "$expected" stat s mode
}
sgid_after "root keeps sgid" 2750 setfacl -m u:$third:r s
sgid_after "an owner outside the group loses it" 0750 as_nobody setfacl -m u:$third:rx "$mnt/s"
sgid_after "one in the group keeps it" 2750 as $nobody 1,$other setfacl -m u:$third:r "$mnt/s"
sgid_after "… also by the group that is their own" 2750 setpriv --reuid=$nobody --regid=$other --clear-groups setfacl -m u:$third:rx "$mnt/s"
sgid_after "an owner outside loses it by a removal, too" 0750 as_nobody setfattr -x system.posix_acl_access "$mnt/s"
sgid_after "… one in the group does not" 2750 as $nobody $other setfattr -x system.posix_acl_access "$mnt/s"
mkdir sd && chown $nobody:$other sd && chmod 2755 sd
as_nobody setfacl -d -m u:$third:r "$mnt/sd"
sees "a default ACL does not touch sgid" "2755" stat sd mode
as_nobody setfacl -m u:$third:rx "$mnt/sd"
sees "an access ACL of a directory does" "0755" stat sd mode
fsop chmod s 0755 : chown s 0 0
setfacl -b s && setfacl -m u:$third:rwx s
for call in "open s O_WRONLY : write 0 x" "truncate s 0"; do
    fsop chmod s 06775
    # shellcheck disable=SC2086 # several calls
    sees "a named user's ${call%% *} clears suid and sgid" "0775" -u $third -g $third $call : stat s mode
    has "… and leaves the ACL" s "user::rwx user:$third:rwx group::r-x mask::rwx other::r-x"
done
fsop chmod s 06775 : chown s $nobody $other
sees "so does a chown" "0775" stat s mode
has "… which leaves the ACL, too" s "user::rwx user:$third:rwx group::r-x mask::rwx other::r-x"

# ---- default ACLs ----

mkdir d && setfacl -d -m u:$nobody:rw,g:$other:rx d
entries="user::rwx user:$nobody:rw- group::r-x group:$other:r-x mask::rwx other::r-x"
defaults=$(for entry in $entries; do printf 'default:%s ' "$entry"; done)
defaults=${defaults% }
has "a default ACL is beside the access ACL" d "user::rwx group::r-x other::r-x $defaults"
is "it is listed" "$(names d)" "system.posix_acl_default"
sees "and leaves the mode" "0755" stat d mode
fsop umask 077 : open d/f O_CREAT,O_WRONLY 0666
has "a new file inherits it, less what create did not ask for, whatever the umask" d/f \
    "user::rw- user:$nobody:rw- group::r-x group:$other:r-x mask::rw- other::r--"
sees "… as its mode says" "0664" stat d/f mode
works "the kernel heeds it" "${u[@]}" open d/f O_RDWR
fsop umask 077 : open d/private O_CREAT,O_WRONLY 0600
has "a file created private is private" d/private \
    "user::rw- user:$nobody:rw- group::r-x group:$other:r-x mask::--- other::---"
expect_errno "… to the named user, too" EACCES "${u[@]}" open d/private O_RDONLY
fsop umask 077 : mkdir d/sub 0777
has "a directory inherits it as both" d/sub "$entries $defaults"
is "… both are listed" "$(names d/sub)" "system.posix_acl_access system.posix_acl_default"
fsop umask 077 : mkdir d/sub/closed 0700 : mkdir d/sub/closed/deep 0777
has "a nested one loses what mkdir did not ask for" d/sub/closed "user::rwx user:$nobody:rw- group::r-x group:$other:r-x mask::--- other::--- $defaults"
has "… and the one in it has all of it again" d/sub/closed/deep "$entries $defaults"
fsop umask 077 : open d/sub/closed/deep/f O_CREAT,O_WRONLY 0666
has "a file in that inherits, too" d/sub/closed/deep/f "$(acl_of d/f)"
fsop umask 077 : mknod d/fifo fifo 0666
has "a fifo inherits" d/fifo "$(acl_of d/f)"
fsop umask 077 : mknod d/socket socket 0666
has "a socket inherits" d/socket "$(acl_of d/f)"
if [ "$(fsop open d O_RDWR,O_TMPFILE 0600)" = EOPNOTSUPP ]; then
    skip "no O_TMPFILE here (libfuse before 3.17)" 2
else
    fsop umask 077 : open d O_RDWR,O_TMPFILE 0666 : linkfile 0 d/named
    has "a file of O_TMPFILE inherits" d/named "$(acl_of d/f)"
    sees "… or obeys the umask" "0600" umask 077 : open closed O_RDWR,O_TMPFILE 0666 : fstat 0 mode
fi
fsop umask 077 : symlink f d/link
sees "a symlink does not" "0777" lstat d/link mode
is "… and lists none" "$(names d/link)" ""
touch outside && ln outside d/hard && mv outside d/moved
has "a link into it does not" d/hard "user::rw- group::r-- other::r--"
has "nor does what is moved there" d/moved "user::rw- group::r-- other::r--"
chmod 2755 d
fsop umask 077 : mkdir d/sgid 0777
sees "sgid is inherited beside it" "2775" stat d/sgid mode
setfacl -d --set u::rwx,g::rx,o::- d
fsop umask 077 : open d/plain O_CREAT,O_WRONLY 0666 : mkdir d/plaindir 0777
has "a default ACL that a mode can say gives a mode" d/plain "user::rw- group::r-- other::---"
has "… and is handed down" d/plaindir "user::rwx group::r-x other::--- default:user::rwx default:group::r-x default:other::---"
is "… as the default only" "$(names d/plaindir)" "system.posix_acl_default"
setfacl -k d
fsop umask 027 : open d/again O_CREAT,O_WRONLY 0666 : mkdir d/againdir 0777 : mknod d/againfifo fifo 0666
sees "without one the umask counts again" "0640"$'\n'"2750"$'\n'"0640" \
    stat d/again mode : stat d/againdir mode : stat d/againfifo mode
setfacl -d -m u:$nobody:rw .
echo x >rooted
has "the root has one, too" rooted "user::rw- user:$nobody:rw- group::r-x mask::rw- other::r--"
setfacl -k .

# ---- programs that carry them ----

setfacl -d -m u:$nobody:rwx d
mkdir -p d/tree/sub
echo 1 >d/tree/sub/file && setfacl -m g:$other:r d/tree/sub/file
echo 2 >d/tree/plain && setfacl -b d/tree/plain && chmod 604 d/tree/plain
# all_of DIRECTORY: the ACL and mode of everything in it.
all_of() {
    (cd "$1" && find . | sort | while read -r path; do echo "$path $(stat -c %a "$path") $(acl_of "$path")"; done)
}
want=$(all_of d/tree)
cp -a d/tree copied
is "cp -a keeps them" "$(all_of copied)" "$want"
cp -a d/tree d/copied
is "… also where there is a default ACL" "$(all_of d/copied)" "$want"
getfacl -R d/tree >"$work/saved" && setfacl -R -b -k copied
unlike "setfacl -R -b -k takes all away" "$(all_of copied)" "$nobody"
(mkdir restored && cd restored && cp -r ../copied tree && mkdir d && mv tree d/ && setfacl --restore="$work/saved")
is "setfacl --restore brings them back" "$(all_of restored/d/tree)" "$want"
if tar --help | grep -q -- --acls; then
    tar --acls -cf "$work/tar" -C d/tree . && mkdir untarred && tar --acls -xpf "$work/tar" -C untarred
    is "tar --acls keeps them" "$(all_of untarred)" "$want"
else
    skip "tar without ACLs"
fi
if command -v rsync >/dev/null && rsync --version | grep -q ' ACLs'; then
    rsync -aA d/tree/ synced/
    is "rsync -A keeps them" "$(all_of synced)" "$want"
    fsop chmod synced/sub/file 0600
    rsync -aA d/tree/ synced/
    is "… and sets right what was changed" "$(all_of synced)" "$want"
else
    skip "no rsync with ACLs" 2
fi
for ((i = 1; i <= 500; i++)); do echo "user:$((100000 + i)):r"; done >"$work/many"
touch many && ok "an ACL of 500 users" setfacl -M "$work/many" many
is "… is there" "$(getfacl -cnp many | grep -c '^user:1')" 500
works "… and counts" -u 100500 -g 100500 open many O_RDONLY
expect_errno "… for them" EACCES -u 100501 -g 100501 open many O_WRONLY

# ---- what is refused ----

touch r && mkdir rd && ln -s r link
access=system.posix_acl_access default=system.posix_acl_default
good=02000000010006000000000004000400000000002000040000000000
is "bytes in the right form are taken" "$(raw r $access $good)" ""
sees "… and set the mode" "0644" stat r mode
is "a default ACL of a file is refused" "$(raw r $default $good)" "Permission denied"
works "… but removing it is none" removexattr r $default
is "an ACL of a symlink is refused" "$(raw link $access $good)" "Operation not supported"
like "… and cannot be read" "$(getfattr -h -n $access link 2>&1)" "not supported"
is "another version" "$(raw r $access 01${good:2})" "Operation not supported"
# Without others, without owner, cut short, with a permission and a tag that there are not, out of order.
for bad in 0200000001000600000000000400040000000000 0200000004000400000000002000040000000000 \
    ${good:0:-2} 0200 02000000010008000000000004000400000000002000040000000000 \
    02000000400006000000000004000400000000002000040000000000 \
    02000000040004000000000001000600000000002000040000000000 \
    020000000100060000000000020006000100000004000400000000002000040000000000; do
    is "invalid: ${bad:0:64}" "$(raw r $access "$bad")" "Invalid argument"
    is "… as a default, too" "$(raw rd $default "$bad")" "Invalid argument"
done
sees "none of them changed anything" "0644" stat r mode
setfacl -m u:$nobody:r r
is "an ACL without entries removes it" "$(raw r $access 02000000)" ""
is "… so that none is listed" "$(names r)" ""
expect_errno "another system attribute" EOPNOTSUPP setxattr r system.other v

unmount_fs
done_testing
