#!/bin/bash
# open_by_handle_at: what NFS servers and backup programs keep instead of a path
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount
handles=$work/handles
mkdir "$handles" && chmod 755 "$work" "$handles"

# The kernel forgets as much as it can of the files.
forget_all() {
    cd "$work" && forget_names && echo 2 >/proc/sys/vm/drop_caches && cd "$mnt" || exit 1
}

mkdir -p a/b
printf bytes >a/b/file
printf "soon gone" >gone
printf again >linked
works "handles of a file, a directory and the root" \
    savehandle a/b/file "$handles/file" : savehandle a/b "$handles/directory" : savehandle . "$handles/root" : \
    savehandle gone "$handles/gone" : savehandle linked "$handles/linked"
sees "the file is opened by its handle" "bytes" openhandle "$handles/file" O_RDONLY : pread 0 0 9
forget_all
sees "also when the kernel has forgotten it" "bytes" openhandle "$handles/file" O_RDONLY : pread 0 0 9
forget_all
sees "to write, too" "bytes!" openhandle "$handles/file" O_RDWR : pwrite 0 5 ! : pread 0 0 9
forget_all
sees "a directory" "dir" openhandle "$handles/directory" O_RDONLY : fstat 0 type
forget_all
sees "the root" "dir $(stat -c %i .)" openhandle "$handles/root" O_RDONLY : fstat 0 type ino
mv a c && mv c/b/file c/named && ln linked other && rm linked
forget_all
sees "a file that has moved" "bytes!" openhandle "$handles/file" O_RDONLY : pread 0 0 9
sees "a directory that has moved" "dir $(stat -c %i c/b)" openhandle "$handles/directory" O_RDONLY : fstat 0 type ino
sees "a file by another of its names" "again"$'\n'"1" openhandle "$handles/linked" O_RDONLY : pread 0 0 9 : fstat 0 nlink
rm gone
chmod 644 "$handles"/*
forget_all
expect_errno "the handle of a deleted file finds nothing" ESTALE openhandle "$handles/gone" O_RDONLY
printf "another file" >new
expect_errno "also when there are new ones" ESTALE openhandle "$handles/gone" O_RDONLY
expect_errno "only who may pass all directories may" EPERM -u $nobody -g $nobody openhandle "$handles/file" O_RDONLY

unmount_fs
enter_mount
mkdir -p a/b
printf secret >a/b/file
forget_all
expect_errno "a handle of an earlier mount finds nothing in a new one" ESTALE openhandle "$handles/file" O_RDONLY
unmount_fs
done_testing
