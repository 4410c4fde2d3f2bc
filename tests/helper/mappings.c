/*
 * mappings: what a shared or private mapping of a file must hold, for tests/posix/mmap.t.
 *
 *   mappings SUBJECT FILE
 */
#include <linux/falloc.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "subject.h"

#define PAGES  64
#define LENGTH (PAGES * PAGE)

static int filled(const char *path, off_t length, int byte)
{
    int file = fresh(path, 0);
    static char bytes[1 << 16];
    memset(bytes, byte, sizeof bytes);
    for (off_t at = 0; at < length;) {
        size_t part = length - at < (off_t)sizeof bytes ? (size_t)(length - at) : sizeof bytes;
        ssize_t done = pwrite(file, bytes, part, at);
        if (done <= 0)
            fail("pwrite");
        at += done;
    }
    return file;
}

static volatile unsigned char *map(int file, size_t length, int protection, int flags, off_t offset)
{
    void *mapping = mmap(NULL, length, protection, flags, file, offset);
    if (mapping == MAP_FAILED)
        not_here("mmap");
    return mapping;
}

static volatile unsigned char *map_shared(int file)
{
    return map(file, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
}

static void unmap(volatile unsigned char *mapping, size_t length)
{
    MUST(munmap((void *)mapping, length));
}

static unsigned char at(int file, off_t offset)
{
    unsigned char byte = 0xee;
    if (pread(file, &byte, 1, offset) != 1)
        fail("pread");
    return byte;
}

static void put(int file, off_t offset, unsigned char byte)
{
    if (pwrite(file, &byte, 1, offset) != 1)
        fail("pwrite");
}

static sigjmp_buf bus_jump;

static void on_bus(int number)
{
    (void)number;
    siglongjmp(bus_jump, 1);
}

/* Whether reading (or writing) that byte gives SIGBUS. */
static bool is_bus(volatile unsigned char *byte, bool write_it)
{
    bool bus = true;
    signal(SIGBUS, on_bus);
    if (sigsetjmp(bus_jump, 1) == 0) {
        if (write_it)
            *byte = 1;
        else
            (void)*byte;
        bus = false;
    }
    signal(SIGBUS, SIG_DFL);
    return bus;
}

/* Stores and calls see each other at once, page for page, also through another open file. */
static void coherent(char **arguments)
{
    const char *path = arguments[0];
    int file = filled(path, LENGTH, 'a'), other = open(path, O_RDWR);
    if (other < 0)
        fail("open");
    volatile unsigned char *m = map_shared(file);
    for (int i = 0; i < PAGES; i++) {
        off_t o = (off_t)i * PAGE + i;
        m[o] = 'b';
        expect(at(file, o) == 'b', "page %d: pread missed a store", i);
        m[o] = 'c';
        expect(at(other, o) == 'c', "page %d: another open file missed a store", i);
        put(file, o, 'd');
        expect(m[o] == 'd', "page %d: the mapping missed a pwrite", i);
        put(other, o, 'e');
        expect(m[o] == 'e', "page %d: the mapping missed another's pwrite", i);
        m[o + 1] = 'f';
        put(other, o + 2, 'g');
        expect(m[o + 1] == 'f' && m[o + 2] == 'g' && at(file, o + 1) == 'f',
               "page %d: a store and a pwrite beside it: %c%c", i, m[o + 1], m[o + 2]);
    }
    unmap(m, LENGTH);
    for (int i = 0; i < PAGES; i++)
        expect(at(other, (off_t)i * PAGE + i + 1) == 'f', "page %d: lost after munmap", i);
}

static void is_all(volatile unsigned char *m, size_t from, size_t to, unsigned char byte,
                   const char *what)
{
    for (size_t i = from; i < to; i++)
        if (m[i] != byte) {
            expect(false, "%s: byte %zu is 0x%02x, not 0x%02x", what, i, m[i], byte);
            return;
        }
}

/* What changes bytes without a write is seen by a mapping, and no stored byte comes back. */
static void changed_below(char **arguments)
{
    const char *path = arguments[0];
    int file = filled(path, LENGTH, 'a');
    volatile unsigned char *m = map_shared(file);
    memset((void *)m, 'b', LENGTH);
    if (fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE + 10, 3 * PAGE) == 0) {
        is_all(m, 0, PAGE + 10, 'b', "before a hole");
        is_all(m, PAGE + 10, 4 * PAGE + 10, 0, "in a hole");
        is_all(m, 4 * PAGE + 10, LENGTH, 'b', "behind a hole");
        expect(at(file, PAGE + 10) == 0 && at(file, 4 * PAGE + 10) == 'b', "pread of a hole");
    } else if (errno != EOPNOTSUPP) {
        fail("punch");
    }
    if (fallocate(file, FALLOC_FL_ZERO_RANGE, 8 * PAGE + 5, 100) == 0) {
        is_all(m, 8 * PAGE, 8 * PAGE + 5, 'b', "before zeros");
        is_all(m, 8 * PAGE + 5, 8 * PAGE + 105, 0, "zero range");
    } else if (errno != EOPNOTSUPP) {
        fail("zero range");
    }
    m[20 * PAGE + 7] = 'x';
    m[40 * PAGE + 1] = 'y';
    off_t from = 20 * PAGE, to = 40 * PAGE + 2;
    ssize_t copied = copy_file_range(file, &from, file, &to, 5000, 0);
    if (copied > 0) {
        expect(copied == 5000, "copied %zd", copied);
        expect(m[40 * PAGE + 1] == 'y', "a store right before the copy was lost");
        expect(m[40 * PAGE + 9] == 'x', "the copy missed a store, or the mapping the copy");
        expect(at(file, 40 * PAGE + 9) == 'x', "pread missed the copy");
    } else if (copied < 0 && errno != EOPNOTSUPP && errno != EXDEV) {
        fail("copy_file_range");
    }
    memset((void *)(m + 50 * PAGE), 'z', 10 * PAGE);
    MUST(ftruncate(file, 52 * PAGE + 100));
    MUST(ftruncate(file, LENGTH));
    is_all(m, 50 * PAGE, 52 * PAGE + 100, 'z', "below the cut");
    is_all(m, 52 * PAGE + 100, LENGTH, 0, "cut off and made long again");
    expect(at(file, 52 * PAGE + 100) == 0 && at(file, 53 * PAGE) == 0, "pread of what was cut");
    unmap(m, LENGTH);
    expect(at(file, 52 * PAGE + 99) == 'z' && at(file, 52 * PAGE + 100) == 0, "after munmap");
}

static void truncated(char **arguments)
{
    const char *path = arguments[0];
    int file = filled(path, LENGTH, 'a');
    volatile unsigned char *m = map_shared(file);
    m[10 * PAGE] = 'b';
    MUST(ftruncate(file, 5 * PAGE + 1));
    expect(!is_bus(m + 5 * PAGE + 4095, false), "SIGBUS in the last page");
    expect(m[5 * PAGE] == 'a' && m[5 * PAGE + 1] == 0, "the last page: %d %d", m[5 * PAGE],
           m[5 * PAGE + 1]);
    expect(is_bus(m + 6 * PAGE, false), "no SIGBUS for a read past the end");
    expect(is_bus(m + 10 * PAGE, true), "no SIGBUS for a store past the end");
    MUST(ftruncate(file, LENGTH));
    expect(!is_bus(m + 10 * PAGE, false) && m[10 * PAGE] == 0, "after growing: %d", m[10 * PAGE]);
    MUST(ftruncate(file, 0));
    expect(is_bus(m, false), "no SIGBUS in an empty file");
    put(file, 3 * PAGE, 'c');
    expect(!is_bus(m + 3 * PAGE, false) && m[3 * PAGE] == 'c' && m[0] == 0, "grown by a write");
    unmap(m, LENGTH);
}

/* Bytes stored behind the end, in its page, are not part of the file. */
static void behind_end(char **arguments)
{
    const char *path = arguments[0];
    int file = filled(path, 3 * PAGE + 1, 'a');
    struct stat st;
    volatile unsigned char *m = map_shared(file);
    m[3 * PAGE + 50] = 'd';
    MUST(msync((void *)m, 4 * PAGE, MS_SYNC));
    MUST(fstat(file, &st));
    expect(st.st_size == 3 * PAGE + 1, "it made the file %lld long", (long long)st.st_size);
    MUST(ftruncate(file, 4 * PAGE));
    expect(at(file, 3 * PAGE + 50) == 0, "the byte shows after growing");
    unmap(m, LENGTH);
}

static void forked(char **arguments)
{
    const char *path = arguments[0];
    int file = filled(path, LENGTH, 'a'), status;
    volatile unsigned char *shared = map_shared(file);
    volatile unsigned char *own = map(file, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
    own[PAGE] = 'p';
    pid_t child = fork();
    MUST(child);
    if (child == 0) {
        shared[0] = 's';
        own[0] = 'x';
        own[PAGE] = 'y';
        _exit(shared[5 * PAGE] == 'a' ? 0 : 1);
    }
    MUST(waitpid(child, &status, 0));
    expect(status == 0, "the child read something else");
    expect(shared[0] == 's', "the child's store is not shared");
    expect(at(file, 0) == 's', "pread missed the child's store");
    expect(own[0] != 'x' && own[PAGE] == 'p', "the child's private store shows: %c%c", own[0],
           own[PAGE]);
    expect(at(file, PAGE) == 'a', "a private store is in the file");
}

static void private_only(char **arguments)
{
    const char *path = arguments[0];
    int file = filled(path, LENGTH, 'a');
    MUST(close(file));
    file = open(path, O_RDONLY);
    MUST(file);
    volatile unsigned char *m = map(file, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
    is_all(m, 0, LENGTH, 'a', "a private mapping");
    memset((void *)m, 'b', LENGTH);
    for (int i = 0; i < PAGES; i++)
        expect(at(file, (off_t)i * PAGE) == 'a', "a private store is in page %d", i);
    MUST(close(file));
    is_all(m, 0, LENGTH, 'b', "a private mapping after close");
    unmap(m, LENGTH);
    file = filled(path, LENGTH, 'c');
    m = map(file, LENGTH, PROT_READ, MAP_PRIVATE, 0);
    is_all(m, 0, LENGTH, 'c', "a later private mapping");
    unmap(m, LENGTH);
    /* Again in the same open file, written by another meanwhile. */
    int other = open(path, O_RDWR);
    MUST(other);
    put(other, 7 * PAGE, 'd');
    m = map(file, LENGTH, PROT_READ, MAP_PRIVATE, 0);
    expect(m[7 * PAGE] == 'd', "a private mapping made after a write misses it");
    unmap(m, LENGTH);
}

/* A mapping outlives the descriptor and the name. */
static void outlives(char **arguments)
{
    const char *path = arguments[0];
    int file = filled(path, LENGTH, 'a'), reader = open(path, O_RDONLY);
    volatile unsigned char *m = map_shared(file);
    MUST(close(file));
    m[9] = 'b';
    expect(at(reader, 9) == 'b', "a store after close");
    MUST(unlink(path));
    m[PAGE] = 'c';
    expect(at(reader, PAGE) == 'c', "a store after unlink");
    MUST(close(reader));
    m[2 * PAGE] = 'd';
    expect(m[2 * PAGE] == 'd' && m[3 * PAGE] == 'a', "the mapping alone is left");
    MUST(msync((void *)m, LENGTH, MS_SYNC));
    unmap(m, LENGTH);
}

static void synced(char **arguments)
{
    const char *path = arguments[0];
    int file = filled(path, LENGTH, 'a');
    volatile unsigned char *m = map_shared(file);
    struct stat before, after;
    for (int i = 0; i < 3; i++) {
        static const int flags[] = {MS_SYNC, MS_ASYNC, MS_SYNC | MS_INVALIDATE};
        struct timespec pause = {0, 20000000};
        MUST(fstat(file, &before));
        nanosleep(&pause, NULL);
        m[i * PAGE] = 'b';
        MUST(msync((void *)m, LENGTH, flags[i]));
        if (flags[i] & MS_SYNC) {
            MUST(fstat(file, &after));
            expect(after.st_mtim.tv_sec != before.st_mtim.tv_sec ||
                       after.st_mtim.tv_nsec != before.st_mtim.tv_nsec,
                   "msync %d left mtime", i);
        }
        expect(at(file, i * PAGE) == 'b' && m[i * PAGE] == 'b', "msync %d", i);
    }
    unmap(m, LENGTH);
}

/* Reading and writing a file from and to its own mapping; a page must not wait for itself. */
static void own_pages(char **arguments)
{
    const char *path = arguments[0];
    int file = filled(path, LENGTH, 'a');
    volatile unsigned char *m = map_shared(file);
    m[5] = 'b';
    expect(pwrite(file, (void *)m, PAGE, 8 * PAGE) == PAGE, "pwrite from the mapping");
    expect(m[8 * PAGE + 5] == 'b', "… is not there");
    expect(pread(file, (void *)(m + 16 * PAGE), PAGE, 8 * PAGE) == PAGE, "pread to the mapping");
    expect(at(file, 16 * PAGE + 5) == 'b', "… is not there");
    unmap(m, LENGTH);
    m = map_shared(file); /* nothing of it is in memory now */
    expect(pwrite(file, (void *)(m + PAGE), PAGE, PAGE) == PAGE, "pwrite of a page from itself");
    expect(pread(file, (void *)(m + 2 * PAGE), PAGE, 2 * PAGE) == PAGE,
           "pread of a page to itself");
    expect(pwrite(file, (void *)m, 4 * PAGE, 2 * PAGE) > 0, "pwrite of pages that overlap");
    unmap(m, LENGTH);
}

static void far(char **arguments)
{
    const char *path = arguments[0];
    off_t offset = (1LL << 40) - PAGE;
    int file = filled(path, 0, 0);
    MUST(ftruncate(file, offset + 2 * PAGE));
    volatile unsigned char *m = map(file, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, offset);
    expect(m[0] == 0 && m[PAGE] == 0, "a hole reads as something");
    m[PAGE - 1] = 'x';
    m[PAGE] = 'y';
    expect(at(file, offset + PAGE - 1) == 'x' && at(file, offset + PAGE) == 'y', "pread");
    unmap(m, 2 * PAGE);
    expect(at(file, offset + PAGE) == 'y', "after munmap");
}

/*
 * Four processes store to bytes of their own in every page, while each also writes and reads: to
 * the same pages (APART 0), or to pages to which nobody stores.
 */
static void store_and_write(const char *path, off_t apart)
{
    enum { PROCESSES = 4, ROUNDS = 20 };
    int file = filled(path, 2 * LENGTH, 0), status;
    volatile unsigned char *m = map(file, 2 * LENGTH, PROT_READ, MAP_SHARED, 0);

    unmap(m, 2 * LENGTH); /* it can be mapped */
    for (int p = 0; p < PROCESSES; p++) {
        pid_t child = fork();
        MUST(child);
        if (child > 0)
            continue;
        int mine = open(path, O_RDWR);
        MUST(mine);
        m = map(mine, 2 * LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
        for (int r = 1; r <= ROUNDS; r++)
            for (int page = 0; page < PAGES; page++) {
                off_t o = (off_t)page * PAGE + p * 16, w = o + 1 + apart;
                m[o] = (unsigned char)r;
                put(mine, w, (unsigned char)r);
                if (m[w] != r || at(mine, o) != r)
                    _exit(1);
            }
        _exit(0);
    }
    for (int p = 0; p < PROCESSES; p++) {
        MUST(wait(&status));
        expect(status == 0, "a process missed its own byte");
    }
    for (int page = 0; page < PAGES; page++)
        for (int p = 0; p < PROCESSES; p++) {
            off_t o = (off_t)page * PAGE + p * 16;
            expect(at(file, o) == ROUNDS, "page %d, process %d: a store is lost", page, p);
            expect(at(file, o + 1 + apart) == ROUNDS, "page %d, process %d: a write is lost", page,
                   p);
        }
}

static void several(char **arguments)
{
    store_and_write(arguments[0], LENGTH);
}

static void same_pages(char **arguments)
{
    store_and_write(arguments[0], 0);
}

/* Mappings that only read show a write once it has returned, although others look all the time. */
static void watched(char **arguments)
{
    const char *path = arguments[0];
    enum { WATCHERS = 3, ROUNDS = 1500 };
    int file = filled(path, LENGTH, 0);
    pid_t watchers[WATCHERS];
    volatile unsigned char *m = map(file, LENGTH, PROT_READ, MAP_SHARED, 0);
    for (int i = 0; i < WATCHERS; i++) {
        MUST(watchers[i] = fork());
        while (watchers[i] == 0)
            for (int page = 0; page < PAGES; page++)
                (void)m[page * PAGE];
    }
    for (int r = 0; r < ROUNDS && !unexpected; r++) {
        off_t o = (off_t)(r % 4) * PAGE;
        put(file, o, (unsigned char)r);
        expect(m[o] == (unsigned char)r, "write %d is not in the mapping: %d", r, m[o]);
    }
    for (int i = 0; i < WATCHERS; i++) {
        kill(watchers[i], SIGKILL);
        waitpid(watchers[i], NULL, 0);
    }
}

static const struct subject subjects[] = {
    {"coherent", coherent},     {"changed-below", changed_below}, {"truncated", truncated},
    {"forked", forked},         {"private", private_only},        {"outlives", outlives},
    {"synced", synced},         {"own-pages", own_pages},         {"far", far},
    {"several", several},       {"same-pages", same_pages},       {"watched", watched},
    {"behind-end", behind_end},
};

int main(int argc, char **argv)
{
    return run_subject(subjects, sizeof subjects / sizeof *subjects, argc, argv);
}
