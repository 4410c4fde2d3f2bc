#!/bin/bash
# .resident/buffers: one line a file, whatever its name
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_residentfs
enter_mount

lines() { wc -l <.resident/buffers; }
empty=$(lines)
mkdir dir
fsop open dir/a O_CREAT,O_RDWR 0644 : fill 0 0 3M 1 : fsync 0
is "a file adds a line" "$(lines)" $((empty + 1))
ino=$(fsop stat dir/a ino)
line=$(grep -w "$ino" .resident/buffers)
like "the line has inode and path" "$line" '/?dir/a( |	|$)'
like "and the size" "$line" '3145728|3(\.0+)? ?MiB'
fsop open $'new\nline \xff' O_CREAT,O_RDWR 0644 : write 0 x : fsync 0
is "a name with a newline is still one line" "$(lines)" $((empty + 2))
like "… escaped" "$(grep -w "$(fsop stat $'new\nline \xff' ino)" .resident/buffers)" 'new(\\n|\\012|\\x0a)line'
mv dir/a moved
like "a rename shows" "$(grep -w "$ino" .resident/buffers)" '/?moved( |	|$)'
rm moved $'new\nline \xff'
ok "deleted files leave the table" wait_for "[ \"\$(wc -l <.resident/buffers)\" -eq $empty ]" 10
like "the table has a heading" "$(head -n 1 .resident/buffers)" 'inode.*path|path.*inode|size'

unmount_fs
done_testing
