/*
 * iomodes: ways to read and write other than read and write, for tests/posix/iomodes.t.
 *
 *   iomodes SUBJECT FILE [ARGUMENT...]
 */
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

#include "subject.h"

static off_t size_of(int file)
{
    struct stat st;
    MUST(fstat(file, &st));
    return st.st_size;
}

/* -- O_DIRECT and vectors ---------------------------------------------------------------------- */

static void direct(char **a)
{
    int file = open(a[0], O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0644);
    if (file < 0 && errno == EINVAL)
        not_here("O_DIRECT");
    MUST(file);
    size_t length = 3 << 20;
    unsigned char *bytes = pattern(length, 1);
    for (size_t at = 0; at < length; at += 1 << 20)
        expect(pwrite(file, bytes + at, 1 << 20, (off_t)at) == 1 << 20, "aligned write at %zu", at);
    holds(file, 0, bytes, length, "aligned");
    static const struct {
        size_t memory, offset, length;
    } odd[] = {{0, 3, PAGE}, {5, PAGE, PAGE}, {0, 0, 1}, {1, 77, 70001}, {512, 512, 512}};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        memset(bytes + odd[i].offset, 'o', odd[i].length);
        unsigned char *source = pattern(odd[i].length + 1024, 2);
        memset(source, 'o', odd[i].length + 1024);
        struct iovec vector = {source + odd[i].memory, odd[i].length};
        ssize_t done = pwritev(file, &vector, 1, (off_t)odd[i].offset);
        expect(done == (ssize_t)odd[i].length, "unaligned %zu: %zd", i, done);
        holds(file, (off_t)odd[i].offset, bytes + odd[i].offset, odd[i].length, "unaligned");
        free(source);
    }
    int plain = open(a[0], O_RDWR);
    MUST(plain);
    holds(plain, 0, bytes, length, "through another open file");
    expect(pwrite(plain, "plain", 5, PAGE) == 5, "plain write");
    memcpy(bytes + PAGE, "plain", 5);
    holds(file, 0, bytes, length, "after a plain write");
    expect(pread(file, bytes, PAGE, (off_t)length) == 0, "a read at the end");
    MUST(fcntl(plain, F_SETFL, O_DIRECT));
    expect(pread(plain, bytes, 100, (off_t)length - 10) == 10, "a read over the end");
}

static void vectors(char **a)
{
    int file = fresh(a[0], 0);
    unsigned char *bytes = pattern(200000, 3), *seen = pattern(200000, 4);
    struct iovec write[] = {{bytes, 1},
                            {bytes + 1, 0},
                            {bytes + 1, 4095},
                            {bytes + PAGE, 70001},
                            {bytes + PAGE + 70001, 100000}};
    ssize_t total = 1 + 4095 + 70001 + 100000;
    expect(pwritev2(file, write, 5, 5, 0) == total, "pwritev2");
    struct iovec read[] = {{seen, 99999}, {seen + 99999, 2}, {seen + 100001, 99999}};
    expect(preadv2(file, read, 3, 5, 0) == total, "preadv2");
    expect(memcmp(bytes, seen, (size_t)total) == 0, "other bytes");
    struct iovec many[1024];
    for (int i = 0; i < 1024; i++)
        many[i] = (struct iovec){bytes + 3 * i, 3};
    expect(pwritev2(file, many, 1024, 1, 0) == 3072, "1024 pieces of 3 bytes");
    holds(file, 1, bytes, 3072, "1024 pieces");
    MUST(lseek(file, 10, SEEK_SET));
    expect(pwritev2(file, write, 1, -1, 0) == 1 && lseek(file, 0, SEEK_CUR) == 11,
           "offset -1 is the file's own");
    expect(pwritev2(file, write, 5, 0, 0x40000000) == -1 && errno == EOPNOTSUPP, "a flag unknown");
}

/* RWF_NOWAIT: the bytes, EAGAIN, or refused; never wrong. */
static void nowait(char **a)
{
    int file = fresh(a[0], 0);
    unsigned char *bytes = pattern(PAGE, 5), seen[PAGE];
    struct iovec write = {bytes, PAGE}, read = {seen, PAGE};
    MUST(pwritev2(file, &write, 1, 0, 0));
    ssize_t done = preadv2(file, &read, 1, 0, RWF_NOWAIT);
    if (done >= 0)
        expect(memcmp(bytes, seen, (size_t)done) == 0, "other bytes");
    else
        expect(errno == EAGAIN || errno == EOPNOTSUPP, "preadv2: %s", strerror(errno));
    done = pwritev2(file, &write, 1, PAGE, RWF_NOWAIT);
    if (done >= 0)
        holds(file, PAGE, bytes, (size_t)done, "written");
    else
        expect(errno == EAGAIN || errno == EOPNOTSUPP, "pwritev2: %s", strerror(errno));
    expect(size_of(file) == PAGE + (done > 0 ? done : 0), "size %lld", (long long)size_of(file));
}

/* -- appending, and reading what grows --------------------------------------------------------- */

struct record {
    uint32_t magic, process, number, length;
};

static uint32_t record_length(uint32_t process, uint32_t number, uint32_t most)
{
    return (uint32_t)sizeof(struct record) + (number * 7919 + process * 104729) % most;
}

static void append_records(const char *path, bool by_flag, uint32_t process, uint32_t count,
                           uint32_t most)
{
    int file = open(path, O_WRONLY | (by_flag ? 0 : O_APPEND));
    unsigned char *bytes = pattern(most + sizeof(struct record), 0);
    if (file < 0)
        _exit(1);
    for (uint32_t i = 0; i < count; i++) {
        struct record record = {0xa99e4d, process, i, record_length(process, i, most)};
        memset(bytes, (int)(process * 16 + i % 16), record.length);
        memcpy(bytes, &record, sizeof record);
        struct iovec vector = {bytes, record.length};
        ssize_t done =
            by_flag ? pwritev2(file, &vector, 1, 0, RWF_APPEND) : write(file, bytes, record.length);
        if (done != (ssize_t)record.length)
            _exit(2);
    }
    _exit(close(file) < 0);
}

/* append FILE o_append|rwf_append PROCESSES RECORDS MOST-BYTES: each record whole and in order. */
static void append(char **a)
{
    int file = fresh(a[0], 0), status;
    uint32_t processes = (uint32_t)atoi(a[2]), count = (uint32_t)atoi(a[3]),
             most = (uint32_t)atoi(a[4]), next[64] = {0};
    for (uint32_t p = 0; p < processes; p++) {
        pid_t child = fork();
        MUST(child);
        if (child == 0)
            append_records(a[0], strcmp(a[1], "rwf_append") == 0, p, count, most);
    }
    for (uint32_t p = 0; p < processes; p++) {
        MUST(wait(&status));
        expect(status == 0, "a process failed: %x", status);
    }
    unsigned char *bytes = pattern(most + sizeof(struct record), 0);
    off_t at = 0;
    struct record r;
    while (!unexpected && pread(file, &r, sizeof r, at) == sizeof r) {
        expect(r.magic == 0xa99e4d && r.process < processes && r.number == next[r.process] &&
                   r.length == record_length(r.process, r.number, most),
               "no whole record at %lld", (long long)at);
        if (unexpected)
            return;
        memset(bytes, (int)(r.process * 16 + r.number % 16), r.length);
        holds(file, at + (off_t)sizeof r, bytes, r.length - sizeof r, "a record");
        next[r.process]++;
        at += r.length;
    }
    for (uint32_t p = 0; p < processes; p++)
        expect(next[p] == count, "process %u: %u of %u records", p, next[p], count);
    expect(at == size_of(file), "%lld bytes of records, size %lld", (long long)at,
           (long long)size_of(file));
}

/*
 * growing FILE stat|returned: one process writes at the end. Another's read never stops before the
 * size that stat gave, or before the end of a write that returned, and shows no other bytes.
 */
static void growing(char **a)
{
    bool by_stat = strcmp(a[1], "stat") == 0;
    int file = fresh(a[0], 0), status;
    unsigned char *bytes = pattern(300000, 6), *seen = pattern(300000, 0);
    _Atomic off_t *returned =
        mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (returned == MAP_FAILED)
        fail("mmap");
    memset(bytes, 'g', 300000);
    pid_t child = fork();
    MUST(child);
    if (child == 0) {
        off_t end = 0;
        for (int i = 0; i < 400; i++) {
            size_t length = (size_t)(i * 7919) % (i % 4 ? 5000 : 300000) + 1;
            if (pwrite(file, bytes, length, end) != (ssize_t)length)
                _exit(1);
            *returned = end += (off_t)length;
        }
        _exit(0);
    }
    int reader = open(a[0], O_RDONLY);
    MUST(reader);
    while (waitpid(child, &status, WNOHANG) == 0 && !unexpected) {
        off_t size = by_stat ? size_of(reader) : *returned,
              from = size > 100000 ? size - 100000 : 0;
        ssize_t done = pread(reader, seen, 300000, from);
        expect(done >= size - from, "%lld bytes long, but %zd from %lld", (long long)size, done,
               (long long)from);
        for (ssize_t i = 0; i < done; i++)
            if (seen[i] != 'g') {
                expect(false, "byte %lld of %zd from %lld is 0x%02x", (long long)(from + i), done,
                       (long long)from, seen[i]);
                break;
            }
    }
    if (unexpected)
        waitpid(child, &status, 0);
    expect(status == 0, "the writer failed");
}

/* -- synchronous writes ------------------------------------------------------------------------ */

/* sync FILE o_sync|o_dsync|rwf_dsync|rwf_sync|fsync|fdatasync|msync|none: prints the greatest
 * number of bytes that were still on their way after a call had returned. */
static void sync_mode(char **a)
{
    const char *how = a[1];
    int file = fresh(a[0], strcmp(how, "o_sync") == 0    ? O_SYNC
                           : strcmp(how, "o_dsync") == 0 ? O_DSYNC
                                                         : 0);
    int flags = strcmp(how, "rwf_dsync") == 0  ? RWF_DSYNC
                : strcmp(how, "rwf_sync") == 0 ? RWF_SYNC
                                               : 0;
    unsigned char *bytes = pattern(1 << 20, 7);
    bool is_msync = strcmp(how, "msync") == 0;
    long long most = 0;
    off_t end = 0;
    for (int i = 0; i < 60; i++) {
        bool synced = !is_msync || end > PAGE;
        static const size_t lengths[] = {1, 100, PAGE, 65536, 1 << 20, 70001};
        struct iovec vector = {bytes, lengths[i % 6]};
        if (is_msync && end > PAGE) {
            unsigned char *m = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            if (m == MAP_FAILED)
                not_here("mmap");
            m[i] = 'm';
            MUST(msync(m, PAGE, MS_SYNC));
            munmap(m, PAGE);
        } else {
            MUST(pwritev2(file, &vector, 1, end, flags));
            end += (off_t)vector.iov_len;
        }
        if (strcmp(how, "fsync") == 0)
            MUST(fsync(file));
        if (strcmp(how, "fdatasync") == 0)
            MUST(fdatasync(file));
        long long now = dirty_bytes(file);
        if (synced && now > most)
            most = now;
        if (strcmp(how, "none") == 0)
            MUST(ftruncate(file, end = 0));
    }
    printf("%lld\n", most);
    fflush(stdout);
    _exit(0);
}

/* -- pipes ------------------------------------------------------------------------------------- */

static void drain(int pipe_end, const unsigned char *bytes, size_t length, const char *what)
{
    unsigned char *seen = pattern(length, 0);
    size_t done = 0;
    while (done < length) {
        ssize_t now = read(pipe_end, seen + done, length - done);
        if (now <= 0)
            fail(what);
        done += (size_t)now;
    }
    expect(memcmp(seen, bytes, length) == 0, "%s: other bytes", what);
    free(seen);
}

static void splices(char **a)
{
    enum { LENGTH = 60000 };
    int file = fresh(a[0], 0), ends[2], second[2];
    unsigned char *bytes = pattern(LENGTH, 8), *again = pattern(LENGTH, 9);
    MUST(pipe(ends));
    MUST(pipe(second));
    fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
    fcntl(second[1], F_SETPIPE_SZ, 1 << 20);
    struct iovec vector = {bytes, LENGTH};
    expect(vmsplice(ends[1], &vector, 1, 0) == LENGTH, "vmsplice");
    expect(tee(ends[0], second[1], LENGTH, 0) == LENGTH, "tee");
    for (loff_t to = 3; to < LENGTH + 3;)
        MUST(splice(ends[0], NULL, file, &to, (size_t)(LENGTH + 3 - to), 0));
    holds(file, 3, bytes, LENGTH, "vmspliced and spliced into the file");
    drain(second[0], bytes, LENGTH, "the tee");
    /* Out of the file: bytes of now, however often it was spliced before. */
    for (int i = 0; i < 5; i++) {
        loff_t from = 3;
        if (i == 1)
            MUST(pwrite(file, again, LENGTH, 3));
        if (i == 2) {
            int other = open(a[0], O_WRONLY);
            MUST(pwrite(other, bytes, LENGTH, 3));
            MUST(close(other));
        }
        if (i == 3) {
            MUST(ftruncate(file, 3));
            MUST(ftruncate(file, LENGTH + 3));
            memset(again, 0, LENGTH);
        }
        if (i == 4 && fallocate(file, 3, 0, LENGTH + 3) < 0) /* a hole */
            break;
        for (size_t done = 0; done < LENGTH;) {
            ssize_t now = splice(file, &from, second[1], NULL, LENGTH - done, 0);
            MUST(now);
            if (now == 0)
                fail("splice: the end");
            done += (size_t)now;
        }
        drain(second[0], i == 0 || i == 2 ? bytes : again, LENGTH,
              i == 0   ? "spliced out"
              : i == 1 ? "spliced out after a write"
              : i == 2 ? "spliced out after another's write"
              : i == 3 ? "spliced out after a truncate"
                       : "spliced out of a hole");
    }
    expect(splice(ends[0], NULL, ends[1], NULL, 1, 0) < 0, "splice to itself");
}

/* sendfile FILE: to a pipe and to another file, again after each kind of change. */
static void sendfiles(char **a)
{
    enum { LENGTH = 50000 };
    char path[4096];
    snprintf(path, sizeof path, "%s.copy", a[0]);
    int file = fresh(a[0], 0), copy = fresh(path, 0), ends[2];
    unsigned char *bytes = pattern(LENGTH, 10);
    MUST(pwrite(file, bytes, LENGTH, 0));
    MUST(pipe(ends));
    fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
    for (int i = 0; i < 4; i++) {
        if (i == 1) {
            bytes[20000] ^= 0xff;
            MUST(pwrite(file, bytes + 20000, 1, 20000));
        } else if (i == 2) {
            off_t from = 0, to = 30000;
            if (copy_file_range(file, &from, file, &to, 10000, 0) == 10000)
                memcpy(bytes + 30000, bytes, 10000);
        } else if (i == 3) {
            MUST(ftruncate(file, 10));
            MUST(ftruncate(file, LENGTH));
            memset(bytes + 10, 0, LENGTH - 10);
        }
        off_t from = 0;
        while (from < LENGTH) {
            ssize_t now = sendfile(ends[1], file, &from, (size_t)(LENGTH - from));
            MUST(now);
            if (now == 0)
                fail("sendfile: the end");
        }
        drain(ends[0], bytes, LENGTH, "sent to a pipe");
        MUST(lseek(copy, 0, SEEK_SET));
        for (from = 0; from < LENGTH;)
            MUST(sendfile(copy, file, &from, (size_t)(LENGTH - from)));
        holds(copy, 0, bytes, LENGTH, "sent to a file");
    }
    MUST(unlink(path));
}

/* advise FILE: hints are taken and change nothing. */
static void advise(char **a)
{
    int file = fresh(a[0], 0);
    unsigned char *bytes = pattern(100000, 11);
    MUST(pwrite(file, bytes, 100000, 0));
    static const int advices[] = {POSIX_FADV_NORMAL,   POSIX_FADV_SEQUENTIAL, POSIX_FADV_RANDOM,
                                  POSIX_FADV_WILLNEED, POSIX_FADV_NOREUSE,    POSIX_FADV_DONTNEED};
    for (size_t i = 0; i < sizeof advices / sizeof *advices; i++) {
        expect(posix_fadvise(file, 0, 0, advices[i]) == 0, "advice %zu is refused", i);
        bytes[i] ^= 0x55;
        MUST(pwrite(file, bytes + i, 1, (off_t)i));
        holds(file, 0, bytes, 100000, "after advice");
    }
    expect(posix_fadvise(file, 0, 0, 99) == EINVAL, "an unknown advice");
    expect(readahead(file, 0, 100000) == 0 || errno == EINVAL, "readahead: %s", strerror(errno));
    bytes[50000] ^= 0x55;
    MUST(pwrite(file, bytes + 50000, 1, 50000));
    holds(file, 0, bytes, 100000, "after readahead");
    MUST(sync_file_range(file, 0, 0, SYNC_FILE_RANGE_WRITE));
}

/* -- locks ------------------------------------------------------------------------------------- */

static int lock(int file, int command, short type, off_t from, off_t length)
{
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = from, .l_len = length};
    return fcntl(file, command, &l) < 0 ? -errno : 0;
}

/* In another process, which opens the file itself: 0 or a negative errno. */
static int lock_elsewhere(const char *path, int command, short type, off_t from, off_t length)
{
    int status;
    pid_t child = fork();
    MUST(child);
    if (child == 0) {
        int file = open(path, O_RDWR);
        _exit(file < 0 ? 255 : -lock(file, command, type, from, length));
    }
    MUST(waitpid(child, &status, 0));
    return -WEXITSTATUS(status);
}

static void locks(char **a)
{
    int file = fresh(a[0], 0), second = open(a[0], O_RDWR), status;
    struct flock who = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    expect(lock(file, F_SETLK, F_WRLCK, 0, 10) == 0, "a record lock");
    expect(lock_elsewhere(a[0], F_SETLK, F_WRLCK, 9, 1) == -EAGAIN, "another process got it too");
    expect(lock_elsewhere(a[0], F_SETLK, F_RDLCK, 5, 1) == -EAGAIN, "… for reading");
    expect(lock_elsewhere(a[0], F_SETLK, F_WRLCK, 10, 5) == 0, "beside it");
    expect(lock_elsewhere(a[0], F_OFD_SETLK, F_WRLCK, 0, 1) == -EAGAIN, "an OFD lock got it too");
    pid_t parent = getpid(), child = fork();
    MUST(child);
    if (child == 0) {
        expect(fcntl(file, F_GETLK, &who) == 0 && who.l_type == F_WRLCK && who.l_pid == parent &&
                   who.l_len == 10,
               "F_GETLK says type %d, process %d, length %lld", who.l_type, who.l_pid,
               (long long)who.l_len);
        _exit(unexpected);
    }
    MUST(waitpid(child, &status, 0));
    expect(status == 0, "F_GETLK");
    /* One waits until the other lets go. */
    child = fork();
    MUST(child);
    if (child == 0)
        _exit(-lock(second, F_SETLKW, F_WRLCK, 0, 1));
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    expect(waitpid(child, &status, WNOHANG) == 0, "F_SETLKW did not wait");
    expect(lock(file, F_SETLK, F_UNLCK, 0, 10) == 0, "unlock");
    MUST(waitpid(child, &status, 0));
    expect(status == 0, "F_SETLKW gave %d", WEXITSTATUS(status));
    /* Record locks go with any close of the process; those of an open file do not. */
    expect(lock(file, F_SETLK, F_WRLCK, 0, 0) == 0, "the whole file");
    MUST(close(second));
    expect(lock_elsewhere(a[0], F_SETLK, F_WRLCK, 0, 0) == 0, "close did not drop record locks");
    second = open(a[0], O_RDWR);
    expect(lock(file, F_OFD_SETLK, F_WRLCK, 0, 0) == 0, "OFD lock");
    MUST(close(second));
    expect(lock_elsewhere(a[0], F_OFD_SETLK, F_RDLCK, 0, 1) == -EAGAIN, "close dropped OFD locks");
    MUST(close(file));
    expect(lock_elsewhere(a[0], F_OFD_SETLK, F_WRLCK, 0, 0) == 0, "OFD locks outlived the file");
}

/* A lease is granted, then broken by who opens the file; or refused outright. */
static void leases(char **a)
{
    int file = fresh(a[0], 0);
    MUST(close(file));
    MUST(file = open(a[0], O_RDONLY));
    if (fcntl(file, F_SETLEASE, F_RDLCK) < 0) {
        expect(errno == EINVAL || errno == EAGAIN, "refused with %s", strerror(errno));
        return;
    }
    expect(fcntl(file, F_GETLEASE) == F_RDLCK, "F_GETLEASE");
    signal(SIGIO, SIG_IGN);
    expect(open(a[0], O_WRONLY | O_NONBLOCK) < 0 && errno == EWOULDBLOCK, "a writer may open");
    MUST(fcntl(file, F_SETLEASE, F_UNLCK));
    expect(open(a[0], O_WRONLY | O_NONBLOCK) >= 0, "after it was given back: %s", strerror(errno));
}

static const struct subject subjects[] = {
    {"direct", direct},   {"vectors", vectors}, {"nowait", nowait},  {"append", append},
    {"growing", growing}, {"sync", sync_mode},  {"splice", splices}, {"sendfile", sendfiles},
    {"advise", advise},   {"locks", locks},     {"leases", leases},
};

int main(int argc, char **argv)
{
    return run_subject(subjects, sizeof subjects / sizeof *subjects, argc, argv);
}
