#!/bin/bash
# st_blocks and du: what is resident
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount
start=$(resident_bytes)

sees "an empty file takes nothing" "0" open e O_CREAT,O_RDWR 0644 : fstat 0 blocks
fsop open s O_CREAT,O_RDWR 0644 : fill 0 0 1 1
between "one byte takes little: not 2 MiB" "$(fsop stat s blocks)" 1 128
fsop open m O_CREAT,O_RDWR 0644 : fill 0 0 100K 1
between "100 KiB" "$(fsop stat m blocks)" 200 512
fsop open l O_CREAT,O_RDWR 0644 : fill 0 0 40M 1
between "40 MiB, with slack of at most an eighth" "$(fsop stat l blocks)" $((40 << 11)) $((45 << 11))
fsop open h O_CREAT,O_RDWR 0644 : pwrite 0 256M x
between "a byte behind a hole of 256 MiB takes a chunk, not the hole" "$(fsop stat h blocks)" 1 $((64 << 11))
is "du agrees with stat" "$(du -B512 l | cut -f1)" "$(fsop stat l blocks)"
is "du --apparent-size is the size" "$(du -b h | cut -f1)" $(((256 << 20) + 1))
mkdir small
for i in {1..200}; do echo "$i" >"small/$i"; done
between "200 files of a few bytes share memory" "$(($(resident_bytes) - start))" 1 $((120 << 20))
rm -r small e s m l h
ok "all is given back" back_to "$start"

unmount_fs
done_testing
