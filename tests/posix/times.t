#!/bin/bash
# which call changes which of atime, mtime and ctime
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount

# times_of PATH CALLS…: sets atime and mtime long ago, runs the calls, prints which of the three changed.
changed() {
    local path=$1 before after names=(atime mtime ctime) i text=
    shift
    fsop lutimens "$path" 1000000000 1000000000
    read -r -a before <<<"$(fsop lstat "$path" atime mtime ctime)"
    fsop tick : "$@" >/dev/null || { echo "failed: $*"; return; }
    read -r -a after <<<"$(fsop lstat "$path" atime mtime ctime)"
    for i in 0 1 2; do
        [ "${before[i]}" = "${after[i]}" ] || text+="${names[i]} "
    done
    echo "${text% }"
}

printf 'some bytes' >f
mkdir d
is "write changes mtime and ctime" "$(changed f open f O_WRONLY : write 0 x)" "mtime ctime"
is "a write of nothing changes nothing" "$(changed f open f O_WRONLY : write 0 "")" ""
is "read changes atime (it is older than a day)" "$(changed f open f O_RDONLY : read 0 4)" "atime"
is "opening and closing changes nothing" "$(changed f open f O_RDWR : close 0)" ""
is "O_NOATIME leaves atime" "$(changed f open f O_RDONLY,O_NOATIME : read 0 4)" ""
is "stat changes nothing" "$(changed f stat f size)" ""
is "ftruncate to another size changes mtime and ctime" "$(changed f open f O_RDWR : ftruncate 0 3)" "mtime ctime"
is "truncate by name too" "$(changed f truncate f 5)" "mtime ctime"
is "O_TRUNC of a file with bytes" "$(changed f open f O_WRONLY,O_TRUNC)" "mtime ctime"
is "O_TRUNC of an empty file" "$(changed f open f O_WRONLY,O_TRUNC)" "mtime ctime"
is "chmod changes ctime" "$(changed f chmod f 0600)" "ctime"
is "chown changes ctime" "$(changed f chown f 1 1)" "ctime"
is "link changes ctime of the file" "$(changed f link f g)" "ctime"
is "unlink of another name too" "$(changed f unlink g)" "ctime"
is "rename changes ctime at most" "$(changed f rename f f2 : rename f2 f | sed 's/ctime//')" ""
is "setxattr changes ctime" "$(changed f setxattr f user.a b)" "ctime"
is "removexattr too" "$(changed f removexattr f user.a)" "ctime"
is "fsync changes nothing" "$(changed f open f O_RDWR : fsync 0)" ""

is "creating a file changes the directory's mtime and ctime" "$(changed d open d/f O_CREAT,O_WRONLY 0644)" "mtime ctime"
is "opening it with O_CREAT again does not" "$(changed d open d/f O_CREAT,O_WRONLY 0644)" ""
is "unlink does" "$(changed d unlink d/f)" "mtime ctime"
is "mkdir does" "$(changed d mkdir d/sub)" "mtime ctime"
is "rmdir does" "$(changed d rmdir d/sub)" "mtime ctime"
is "symlink does" "$(changed d symlink x d/l)" "mtime ctime"
is "link does" "$(changed d link f d/h)" "mtime ctime"
is "mknod does" "$(changed d mknod d/fifo fifo 0644)" "mtime ctime"
is "rename within does" "$(changed d rename d/h d/i)" "mtime ctime"
is "writing to a file in it does not" "$(changed d open d/i O_WRONLY : write 0 x)" ""
is "a refused create does not" "$(fsop utimens d 1 1 : -open d/i O_CREAT,O_EXCL,O_WRONLY 0644 : stat d mtime | tail -n 1)" "1.000000000"

now=$(date +%s)
touch new
read -r atime mtime ctime <<<"$(fsop stat new atime mtime ctime)"
for time in "$atime" "$mtime" "$ctime"; do
    between "a new file has the time of now" "${time%.*}" $((now - 1)) $((now + 60))
done
sees "times are seen through a hard link and after a new lookup" "77.000000000" link new new2 : utimens new 77 77 : stat new2 mtime

unmount_fs
done_testing
