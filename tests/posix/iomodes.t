#!/bin/bash
# I/O modes: O_DIRECT, O_APPEND, O_SYNC, RWF_*, pipes, asynchronous clients, locks, copies on the device
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount

# tries NAME SUBJECT [ARGUMENT…]: of the helper iomodes.
tries() {
    local name=$1 subject=$2
    shift 2
    holds "$name" iomodes "$subject" "f.$subject" "$@"
    rm -f "f.$subject"
}

tries "O_DIRECT, aligned and not" direct
tries "preadv2 and pwritev2 with several pieces" vectors
tries "RWF_NOWAIT: the bytes, or a refusal, never wrong" nowait
tries "eight processes append with O_APPEND, 1 to 20000 bytes at a time: nothing is lost or torn" append o_append 8 100 20000
tries "… small records" append o_append 8 500 60
tries "… with RWF_APPEND on descriptors without O_APPEND" append rwf_append 8 100 20000
tries "… up to 1 MB at a time" append o_append 4 30 1000000
sees "RWF_APPEND leaves the offset and ignores the one given" "0"$'\n'"0"$'\n'"abcd" \
    open ap O_CREAT,O_RDWR 0644 : write 0 ab : lseek 0 0 set : pwritev2 0 0 RWF_APPEND cd : lseek 0 0 cur : pread 0 0 9
tries "while a file grows, a read sees every write that returned, and no zeros" growing returned
if [ "$FS_UNDER_TEST" = residentfs ] && grep -q '^cache *= *on' .resident/config; then
    skip "with cache=on the kernel may tell of a write under way in stat before it shows in reads"
else
    tries "… and never stops before the size that stat gave" growing stat
fi

# After a synchronous write nothing is on its way any more.
for mode in o_sync o_dsync rwf_dsync rwf_sync fsync fdatasync msync; do
    got=$("$(dirname "$FSOP")/iomodes" sync f "$mode" 2>&1)
    case $got in
    'not here: '*) skip "$mode: ${got#not here: }" ;;
    *) is "$mode: 0 bytes are dirty when it returns" "$got" 0 ;;
    esac
done
if [ "$FS_UNDER_TEST" = residentfs ] && [[ $DEVICE = emulated* ]]; then
    isnt "without any of these some are (or the figure says nothing)" "$("$(dirname "$FSOP")/iomodes" sync f none)" 0
else
    skip "no dirty bytes to see"
fi
works "fsync of a directory" mkdir d : open d O_RDONLY,O_DIRECTORY : fsync 0
works "syncfs" open f O_RDWR : pwrite 0 0 x : syncfs 0

tries "vmsplice, tee, splice into the file; out of it, after each kind of change" splice
tries "sendfile to a pipe and a file, after each kind of change" sendfile
tries "posix_fadvise and readahead are taken and change nothing" advise
holds "libaio: 32 writes and reads at once" asyncio aio f
holds "… with O_DIRECT" asyncio aio f direct
holds "io_uring: write, read, writev, readv, registered buffers, fsync" asyncio uring f
holds "… with O_DIRECT" asyncio uring f direct
if command -v fio >/dev/null; then
    for engine in psync pvsync2 libaio io_uring mmap; do
        case $engine in
        mmap) [ "$(fsop open f O_RDWR : mmapread 0 0 1)" != ENODEV ] || { skip "fio mmap: shared mappings are refused"; continue; } ;;
        libaio | io_uring) fio --enghelp 2>/dev/null | grep -qw "$engine" || { skip "fio has no $engine"; continue; } ;;
        esac
        if fio --name=verify --filename="$mnt/fio" --ioengine=$engine --rw=randrw --bs=4k-64k --size=8M --iodepth=16 \
            --verify=crc32c --verify_fatal=1 --numjobs=1 --fallocate=none >"$work/fio" 2>&1; then
            pass "fio verifies random writes through $engine"
        elif grep -qiE 'operation not permitted|engine.*not (found|loadable)' "$work/fio"; then
            skip "fio $engine: $(grep -iE -m 1 'not' "$work/fio")"
        else
            fail "fio verifies random writes through $engine" "$(tail -n 20 "$work/fio")"
        fi
        rm -f fio
    done
else
    skip "no fio" 5
fi

tries "record locks and OFD locks between processes" locks
tries "a lease is kept and broken, or refused" leases
exec 8>l
flock 8
not_ok "flock keeps out another process" flock -n l true
expect_errno "… also from one that shares" EAGAIN open l O_RDWR : flock 0 sh
flock -s 8
works "when it shares, another may share" open l O_RDWR : flock 0 sh
exec 8>&-
works "closing lets go" open l O_RDWR : flock 0 ex

# Sparse and far.
max=9223372036854775807
sees "1 TiB, one byte at the end" $'\\x00\\x00z\n0' \
    open far O_CREAT,O_RDWR 0644 : pwrite 0 1099511627775 z : pread 0 1099511627773 9 : lseek 0 0 hole
between "… the data is where it is, within a chunk" "$(fsop open far O_RDONLY : lseek 0 0 data)" $(((1 << 40) - (64 << 20))) $(((1 << 40) - 1))
sees "8 EiB - 1: one byte at the end" "z"$'\n'"$max" open far O_RDWR : pwrite 0 $((max - 1)) z : pread 0 $((max - 1)) 1 : fstat 0 size
expect_errno "… and none behind it" EFBIG open far O_WRONLY,O_APPEND : write 0 y
between "they take little memory" "$(fsop stat far blocks)" 1 $((128 << 11))
fsop open far O_RDWR : ftruncate 0 1M
for mode in COLLAPSE_RANGE INSERT_RANGE; do
    expect_errno "fallocate $mode" EOPNOTSUPP open far O_RDWR : fallocate 0 $mode 0 4096
done

unmount_fs
done_testing
