#!/bin/bash
# create: mode, umask, owner, what a new file looks like
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount

sees "a new file has its mode less the umask" "file 0640 0 0" \
    umask 027 : open a O_CREAT,O_WRONLY 0666 : stat a type mode size blocks
sees "umask 0 leaves every permission bit" "0777" umask 0 : open b O_CREAT,O_WRONLY 0777 : stat b mode
sees "a file can be created with no permissions and still be written through its descriptor" "0000 5" \
    umask 0 : open c O_CREAT,O_RDWR 0 : write 0 hello : fstat 0 mode size
sees "sticky and set-id bits of create are kept" "6711" umask 0 : open d O_CREAT,O_WRONLY 06711 : stat d mode
sees "one link" "1" stat a nlink
sees "mkdir follows the umask" "dir 0750" umask 027 : mkdir dir 0777 : stat dir type mode
sees "mkdir keeps the sticky bit" "1777" umask 0 : mkdir sticky 01777 : stat sticky mode

chmod 777 .
sees "the owner is the user who creates" "65534 65533" -u $nobody -g $other open e O_CREAT,O_WRONLY 0644 : stat e uid gid
sees "so it is for directories" "65534 65533" -u $nobody -g $other mkdir edir : stat edir uid gid
sees "and for symlinks" "65534 65533" -u $nobody -g $other symlink x elink : lstat elink uid gid
mkdir setgid && chown 0:$other setgid && chmod 2777 setgid
sees "in a setgid directory the group is the directory's" "65534 65533" \
    -u $nobody -g $nobody open setgid/f O_CREAT,O_WRONLY 0644 : stat setgid/f uid gid
sees "a directory made there is setgid too" "65533 2755" -u $nobody -g $nobody mkdir setgid/d 0755 : stat setgid/d gid mode

isnt "inode numbers differ" "$(fsop stat a ino)" "$(fsop stat b ino)"
is "the inode number in the listing is that of stat" "$(find . -maxdepth 1 -name a -printf %i)" "$(fsop stat a ino)"
expect_errno "create below a missing directory" ENOENT open none/f O_CREAT,O_WRONLY 0644
expect_errno "create below a file" ENOTDIR open a/f O_CREAT,O_WRONLY 0644
expect_errno "an empty name" ENOENT open "" O_CREAT,O_WRONLY 0644
expect_errno "a name with a slash at its end is no file" EISDIR open new/ O_CREAT,O_WRONLY 0644

unmount_fs
done_testing
