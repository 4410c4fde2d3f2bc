#!/bin/bash
# programs that do not keep to the protocol: they are refused, and nobody else is disturbed
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=clients.sh
. "$(dirname "$0")/clients.sh"
only_residentfs
enter_mount -m 256MiB
chmod 1777 .
for name in f g; do sharer open $name O_CREAT,O_RDWR : ffill 0 0 5M 1; done
chmod 666 f
empty=$(resident_bytes)
client a
say a map g
threads() { find /proc/"$daemon_pid"/task -mindepth 1 -maxdepth 1 | wc -l; }
descriptors=$(daemon_descriptors)
as_nobody "$RAWSHARE" sizes f >/dev/null
like "the log names who does it" "$(cat .resident/log)" "process [0-9]+ \\(rawshare\\) of user $nobody: a message"

for subject in sizes fields descriptors nothing garbage order ranges leaves quick attach; do
    is "$subject" "$(timeout 60 "$RAWSHARE" $subject f attached 2>&1)" "as expected"
    ok "… no descriptor is left in the daemon" wait_for "[ \$(daemon_descriptors) -le $descriptors ]" 10
    is "… others go on" "$(sharer map f : check m0 0 5M 1)" same
    said "… also those who were there" a same "sync 0 : check m0 0 5M 1"
done
ok "nothing is shared by them" unshared f
rm -f attached
ok "no memory is lost" back_to "$empty"
is "chunks of the file are all that is given out" "$(as_nobody "$RAWSHARE" ranges f)" "as expected"

# Several at once.
pids=()
for subject in sizes garbage leaves quick garbage leaves; do
    "$RAWSHARE" $subject f >"$work/said.$subject.${#pids[@]}" 2>&1 &
    pids+=($!)
done
for _ in 1 2 3; do
    is "meanwhile others map" "$(sharer map f : check m0 0 5M 1)" same
done
for pid in "${pids[@]}"; do wait "$pid"; done
is "… all as expected" "$(cat "$work"/said.* | sort | uniq -c | tr -s ' ')" " 6 as expected"

# One that reads no answers.
"$RAWSHARE" deaf f 3 >"$work/deaf" &
deaf=$!
sleep 0.3
is "one reads no answers: others go on" "$(sharer map f : check m0 0 5M 1)" same
ok "… the file grows" fsop truncate f 6M : truncate f 5M
wait $deaf
ok "… it is gone when it is" unshared f

# As many as there may be of one user.
as_nobody "$RAWSHARE" crowd f >"$work/crowd" 2>&1
like "a user has 256 connections" "$(cat "$work/crowd")" "^256: .*256"
for _ in 1 2; do as_nobody "$RAWSHARE" crowd f >>"$work/crowd" 2>&1 & done
wait $!
is "… meanwhile others go on" "$(sharer map f : check m0 0 5M 1)" same
wait_for "[ \$(daemon_descriptors) -le $descriptors ]" 10
"$RAWSHARE" crowd f >"$work/crowd.root" 2>&1
like "root has 1024 less those of others" "$(cat "$work/crowd.root")" "^10[0-9][0-9]: .*1024"
ok "they have gone" unshared f
is "… and others go on" "$(sharer map f : check m0 0 5M 1)" same
ok "… no descriptor is left" wait_for "[ \$(daemon_descriptors) -le $descriptors ]" 10
# shellcheck disable=SC2016
ok "… no thread" wait_for '[ $(threads) -le 20 ]' 10
is "the files are as they were" "$(sharer open f O_RDONLY : fcheck 0 0 5M 1 : open g O_RDONLY : fcheck 1 0 5M 1)" $'same\nsame'
client_end a
unmount_fs
done_testing
