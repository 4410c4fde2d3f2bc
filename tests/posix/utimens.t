#!/bin/bash
# utimens: nanoseconds, UTIME_NOW, UTIME_OMIT, who may
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount
chmod 777 .
touch a

sees "nanoseconds are kept" "1234567890.123456789 987654321.000000001" \
    utimens a 1234567890.123456789 987654321.000000001 : stat a atime mtime
sees "UTIME_OMIT leaves one" "1234567890.123456789 5.000000000" utimens a omit 5 : stat a atime mtime
sees "… and the other" "6.000000000 5.000000000" utimens a 6 omit : stat a atime mtime
sees "omitting both changes nothing" "6.000000000 5.000000000" utimens a omit omit : stat a atime mtime
now=$(date +%s)
fsop utimens a now omit
between "UTIME_NOW sets the time of now" "$(fsop stat a atime | cut -d. -f1)" $((now - 1)) $((now + 60))
sees "before 1970" "-5.000000000" utimens a omit -5 : stat a mtime
sees "after 2106" "5000000000.000000000" utimens a omit 5000000000 : stat a mtime
sees "of a directory" "3.000000004" mkdir dir : utimens dir 3.000000004 3.000000004 : stat dir mtime
before=$(fsop stat a ctime)
fsop tick : utimens a 1 1
isnt "it changes ctime" "$(fsop stat a ctime)" "$before"
chmod 644 a
expect_errno "another user may not set times" EPERM -u $nobody -g $nobody utimens a 1 1
expect_errno "nor touch without write permission" EACCES -u $nobody -g $nobody utimens a now now
chmod 666 a
works "with write permission they may touch" -u $nobody -g $nobody utimens a now now
expect_errno "but set no other time" EPERM -u $nobody -g $nobody utimens a 1 1
expect_errno "of nothing" ENOENT utimens none 1 1
sees "through a descriptor" "8.000000009" open a O_RDWR : futimens 0 8.000000009 8.000000009 : fstat 0 mtime
touch -d '2001-02-03 04:05:06.789012345 UTC' a
is "touch -d" "$(TZ=UTC stat -c %y a)" "2001-02-03 04:05:06.789012345 +0000"
sees "a write through an open descriptor sets mtime anew even after that" "1" open a O_RDWR : futimens 0 1 1 : pwrite 0 0 x : fstat 0 size

unmount_fs
done_testing
