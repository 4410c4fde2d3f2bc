#!/bin/bash
# what a service manager sees: readiness, signs of life, exit codes, priorities; and the sleep hook
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_emulated
need perl systemd-escape

# A service manager's ear: datagrams, newlines as blanks, each on a line of $work/notified.
perl -MIO::Socket::UNIX -e '
    my $ear = IO::Socket::UNIX->new(Type => SOCK_DGRAM, Local => $ARGV[0]) or die "$ARGV[0]: $!";
    $| = 1;
    while (defined $ear->recv(my $text, 4096)) { $text =~ tr/\n/ /; print "$text\n" }' \
    "$work/notify" >"$work/notified" &
ear=$!
trap 'kill $ear; cleanup' EXIT
wait_for "[ -S '$work/notify' ]" 10
heard() { grep -c -- "$1" "$work/notified"; }
# heard_soon PATTERN TEST: within ten seconds the number of lines is such.
heard_soon() { wait_for "[ \$(heard '$1') $2 ]" 10; }
on=$work/on

export NOTIFY_SOCKET=$work/notify WATCHDOG_USEC=2000000
must_mount -e "fault=cuMemcpyDtoHAsync:1+:0:delay=6000000:when=$on" -o workers=1
unset NOTIFY_SOCKET WATCHDOG_USEC
ok "READY=1 comes once it is mounted" heard_soon "^READY=1 STATUS=Mounted" '= 1'
like "before that, what is being done" "$(head -n 2 "$work/notified")" '^STATUS=opening emulated'
ok "WATCHDOG=1 comes again and again" heard_soon "^WATCHDOG=1" '-ge 2'
head -c 1M /dev/urandom >"$mnt/f"
sync "$mnt/f"
touch "$on"
cat "$mnt/f" >/dev/null &
reader=$!
sleep 0.3
stat "$mnt/other" >/dev/null 2>&1 &
other_reader=$!
sleep 1.5 # what is under way
before=$(heard WATCHDOG)
sleep 2.5
is "while nobody is answered, no sign of life is given" "$(heard WATCHDOG)" "$before"
rm "$on"
wait $reader $other_reader
ok "… afterwards it is given again" wait_for "[ \"\$(heard WATCHDOG)\" -gt $before ]" 10
unmount_fs
ok "STOPPING=1 comes at the end" heard_soon "^STOPPING=1" '= 1'

: >"$work/notified"
NOTIFY_SOCKET=$work/notify "$RESIDENTFS" emulated "$work/none" -f >"$work/out" 2>&1
is "what cannot start ends with 1" $? 1
is "… and is never ready" "$(heard READY)" 0

must_mount -o on_device_lost=exit -e "fault=cuMemGetInfo:1+:700:sticky:when=$on"
touch "$on"
ok "on_device_lost=exit: a loss ends the daemon, though nobody reads or writes" wait_for "! alive $daemon_pid" 15
wait "$daemon_pid"
is "… with 69" $? 69
not_ok "… and the mount is gone" is_mounted "$mnt"
rm -f "$on"
mounts=()
must_mount -e "fault=cuMemGetInfo:1+:700:sticky:when=$on"
touch "$on"
df "$mnt" >/dev/null
like "without it, the daemon stays and says so" "$(cat "$mnt/.resident/status")" LOST
rm -f "$on"
unmount_fs

must_mount -o log=journal
like "log=journal: lines begin with their priority" "$(head -n 1 "$daemon_stderr")" '^<6>residentfs '
like "… warnings with theirs" "$(cat "$daemon_stderr")" '^<4>the device is emulated'
unmount_fs
# As systemd does it: the name of the file that stderr is.
JOURNAL_STREAM=0:0 mount_fs
unlike "log=auto: plain lines where stderr is another file than the journal" "$(cat "$daemon_stderr")" '^<'
unmount_fs
: >"$work/stderr.0"
JOURNAL_STREAM=$(stat -c '%d:%i' "$work/stderr.0") mount_fs
like "… and priorities where it is the journal" "$(cat "$daemon_stderr")" '^<6>residentfs '
unmount_fs

RESIDENTFS_EMULATED="fault=cuInit:1:0:delay=1500000" "$RESIDENTFS" emulated "$mnt" >"$work/out" 2>&1
is "a start of more than a second says what it does" "$? $(head -n 1 "$work/out")" "0 residentfs: opening emulated ..."
mounts=("$mnt" "$(daemons_of "$mnt" | head -n 1)")
unmount_fs

# The sleep hook, with a stand-in for systemctl that restarts as the unit would.
hook=$repository/packaging/systemd/sleep.sh
mkdir "$work/bin"
cat >"$work/bin/systemctl" <<SCRIPT
#!/bin/sh
case "\$*" in
*is-active*) [ ! -e "$work/inactive" ] ;;
restart*) umount "$mnt" && "$RESIDENTFS" emulated "$mnt" ;;
esac
SCRIPT
chmod +x "$work/bin/systemctl"
# sleeps before|after: \$status, and what it said.
sleeps() {
    said=$(RESIDENTFS_SLEEP_PRETEND=1 STATE_DIRECTORY=$work/state PATH=$work/bin:$PATH "$hook" "$1" "$mnt" 2>&1)
    status=$?
}
mount_fs -o on_suspend=refuse
sleeps before
is "sleep, refuse: the machine stays awake" $status 1
like "… and is told why" "$said" "^<3>.*$mnt: on_suspend=refuse"
unmount_fs
mount_fs
sleeps before
is "warn, and no files: nothing is said" "$status$said" 0
echo x >"$mnt/f"
sleeps before
is "warn: it may sleep" $status 0
like "… with a warning" "$said" "^<4>.*$mnt: this suspend may lose its files"
said=$(STATE_DIRECTORY=$work/state "$hook" before "$mnt")
is "a device whose memory is kept is left alone" "$said" ""
unmount_fs
mount_fs -o on_suspend=save
mkdir -m 750 "$mnt/d"
random_file "$mnt/d/f" 3000000 7
truncate -s 100M "$mnt/sparse"
setfattr -n user.a -v b "$mnt/d/f"
touch -d 2001-02-03 "$mnt/d/f"
before=$(cd "$mnt" && find . -printf '%p %M %s %TY\n' | sort && sum d/f)
touch "$work/inactive"
sleeps before
is "save: not without the unit" $status 1
rm "$work/inactive"
sleeps before
is "save: it may sleep" $status 0
sleeps after
is "after it: the files are put back" $status 0
daemon_pid=$(daemons_of "$mnt" | head -n 1)
mounts=("$mnt" "$daemon_pid")
is "… all of them" "$(cd "$mnt" && find . -printf '%p %M %s %TY\n' | sort && sum d/f)" "$before"
is "… with attributes" "$(getfattr --only-values --absolute-names -n user.a "$mnt/d/f")" b
is "… and nothing is left of them on disk" "$(ls "$work/state")" ""
unmount_fs
done_testing
