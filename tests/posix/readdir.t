#!/bin/bash
# readdir: complete, under change, telldir and seekdir
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount

mkdir many
works "100 000 files in one directory" createmany many 100000
sees "a listing has each once" "seen 100000 repeated 0 missing 0" listmany many 100000
is "ls and find agree" "$(find many -type f | wc -l) $(find many | LC_ALL=C sort | uniq -d | wc -l)" "100000 0"
sees "deleting while listing misses none" "seen 100000 repeated 0 missing 0" unlinkwhilelisting many 100000
works "then the directory is empty" rmdir many

mkdir some
works "1000 files" createmany some 1000
sees "telldir and seekdir find every place again, rewinddir all of them" "same 1002" seekdir some
sees "a place whose entry is gone gives the next one" "same 500" mkdir half : createmany half 1000 : seekdeleted half 1000
for look in "" stat; do
    # shellcheck disable=SC2086 # none or one
    sees "five listings ${look:+with attributes }while others create, rename and delete: what is there throughout is seen once" \
        "$(for _ in 1 2 3 4 5; do echo "seen 1000 repeated 0 missing 0"; done)" churn some 1000 $look
done
mkdir renamed
works "2000 files" createmany renamed 2000
works "renaming each while listing comes to an end" renamewhilelisting renamed 2000
sees "and leaves them all" "seen 2000 repeated 0 missing 0" listmany renamed 2000
mkdir types && cd types || exit 1
touch file && mkdir dir && ln -s x link && mkfifo fifo
is "entries carry their type" "$(find . -mindepth 1 -printf '%f %y\n' | sort)" "dir d
fifo p
file f
link l"
# shellcheck disable=SC2012 # ls is what is tested
is ". and .. come too" "$(ls -a | head -n 2 | tr "\n" " ")" ". .. "
cd .. || exit 1
sees "a name created after rewinddir is listed" "same 5" mkdir fresh : open fresh/1 O_CREAT,O_WRONLY 0644 : open fresh/2 O_CREAT,O_WRONLY 0644 : open fresh/3 O_CREAT,O_WRONLY 0644 : seekdir fresh
expect_errno "fsync of a directory works, writing does not" EBADF open some O_RDONLY,O_DIRECTORY : fsync 0 : write 0 x
ok "rm -r of it all" rm -r some half renamed types fresh
is "nothing is left" "$(ls -A)" ""

unmount_fs
done_testing
