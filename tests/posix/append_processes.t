#!/bin/bash
# O_APPEND from several processes loses nothing
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount

sees "four processes, 2000 records of 40 bytes each: all there, each process in order" "whole 8000 size 320000" appenders log 4 2000
sees "eight processes onto a second file" "whole 8000 size 320000" appenders log2 8 1000
truncate -s 0 log
sees "after a truncate to nothing appends begin at 0" "whole 1000 size 40000" appenders log 2 500
pids=()
for i in 1 2 3 4; do
    (for j in {1..200}; do echo "$i $j" >>shell; done) &
    pids+=($!)
done
wait "${pids[@]}"
is "echo >> from four shells" "$(sort -u shell | wc -l) $(wc -l <shell)" "800 800"

unmount_fs
done_testing
