/*
 * fsmodel: random calls on files, compared with a model in memory.
 *
 *   fsmodel [-s SEED] [-n CALLS] [-l LENGTH] [-p PROCESSES] [-c] [-f] [-m] FOLDER
 *
 * Each process works on a file of its own, of up to LENGTH bytes: writes, reads, truncates, fsyncs
 * and reopens at random offsets with lengths from 1 byte to LENGTH/4. With -f also fallocate, punch
 * hole, zero range (where the file system has it) and copy_file_range; with -m also reads and
 * writes through mappings. With -c all processes share one file of LENGTH bytes: each locks a
 * range, writes or reads it, and unlocks; the ranges of neighbours touch at odd offsets. The first
 * difference is printed with the seed, the calls that led to it, the offset, what was expected and
 * what was seen; the exit status is then 1.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HISTORY = 24 };

struct run {
    char path[4096];
    unsigned char *model;
    unsigned char *scratch;
    size_t size;   /* of the file, as the model has it */
    size_t length; /* most that it may be */
    uint64_t random;
    uint64_t seed;
    unsigned process;
    int file;
    bool allocating;
    bool mapping;
    long long call;
    char history[HISTORY][128];
};

static uint64_t next_random(struct run *run)
{
    run->random ^= run->random << 13;
    run->random ^= run->random >> 7;
    run->random ^= run->random << 17;
    return run->random * 0x2545f4914f6cdd1dULL >> 8;
}

static size_t below(struct run *run, size_t limit)
{
    return limit ? next_random(run) % limit : 0;
}

__attribute__((format(printf, 2, 3))) static void note(struct run *run, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(run->history[run->call % HISTORY], sizeof run->history[0], format, list);
    va_end(list);
}

__attribute__((noreturn, format(printf, 2, 3))) static void wrong(struct run *run,
                                                                  const char *format, ...)
{
    va_list list;
    char text[512];
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    flockfile(stdout);
    printf("seed %llu process %u call %lld: %s\n", (unsigned long long)run->seed, run->process,
           run->call, text);
    for (int i = HISTORY - 1; i >= 0; i--)
        if (run->call >= i)
            printf("  %lld %s\n", run->call - i, run->history[(run->call - i) % HISTORY]);
    fflush(stdout);
    _exit(1);
}

static void compare(struct run *run, const unsigned char *seen, size_t offset, size_t length)
{
    if (memcmp(seen, run->model + offset, length) == 0)
        return;
    size_t first = 0, last = length;
    while (seen[first] == run->model[offset + first])
        first++;
    while (seen[last - 1] == run->model[offset + last - 1])
        last--;
    wrong(run, "[%zu, %zu) differs; at %zu expected 0x%02x, saw 0x%02x", offset + first,
          offset + last, offset + first, run->model[offset + first], seen[first]);
}

/* One write or read call that must move everything, but may do so in pieces. */
static void write_all(struct run *run, const unsigned char *data, size_t offset, size_t length)
{
    while (length) {
        ssize_t done = pwrite(run->file, data, length, (off_t)offset);
        if (done <= 0)
            wrong(run, "pwrite of %zu at %zu: %s", length, offset,
                  done ? strerror(errno) : "nothing written");
        data += done;
        offset += (size_t)done;
        length -= (size_t)done;
    }
}

static size_t read_all(struct run *run, unsigned char *data, size_t offset, size_t length)
{
    size_t total = 0;
    while (total < length) {
        ssize_t done = pread(run->file, data + total, length - total, (off_t)(offset + total));
        if (done < 0)
            wrong(run, "pread of %zu at %zu: %s", length, offset, strerror(errno));
        if (done == 0)
            break;
        total += (size_t)done;
    }
    return total;
}

/* Lengths: mostly small and odd, some around pages, some large. */
static size_t some_length(struct run *run)
{
    switch (below(run, 4)) {
    case 0:
        return 1 + below(run, 64);
    case 1:
        return 1 + below(run, 5000);
    case 2:
        return 4096 * (1 + below(run, 16)) + below(run, 3) - 1;
    default:
        return 1 + below(run, run->length / 4);
    }
}

static void range_within(struct run *run, size_t limit, size_t *offset, size_t *length)
{
    *length = some_length(run);
    if (*length > limit)
        *length = limit;
    *offset = below(run, limit - *length + 1);
    if (below(run, 3) == 0)
        *offset &= ~(size_t)4095;
}

static void randomise(struct run *run, unsigned char *data, size_t length)
{
    uint64_t value = next_random(run);
    for (size_t i = 0; i < length; i++) {
        if ((i & 7) == 0)
            value = value * 6364136223846793005ULL + 1442695040888963407ULL;
        data[i] = (unsigned char)(value >> 8 * (i & 7));
    }
}

static void check_size(struct run *run)
{
    struct stat s;
    if (fstat(run->file, &s) < 0)
        wrong(run, "fstat: %s", strerror(errno));
    if ((size_t)s.st_size != run->size)
        wrong(run, "size: expected %zu, saw %lld", run->size, (long long)s.st_size);
}

static void check_all(struct run *run)
{
    check_size(run);
    size_t seen = read_all(run, run->scratch, 0, run->length);
    if (seen != run->size)
        wrong(run, "read of the whole file: expected %zu bytes, saw %zu", run->size, seen);
    compare(run, run->scratch, 0, seen);
}

static void change_size(struct run *run, size_t size)
{
    if (size > run->size)
        memset(run->model + run->size, 0, size - run->size);
    run->size = size;
}

/* Allocation calls may be absent on the file system under test: then the sequence goes on without.
 */
static bool absent(int error)
{
    return error == EOPNOTSUPP || error == ENOSYS;
}

static void allocate(struct run *run)
{
    size_t offset, length;
    range_within(run, run->length, &offset, &length);
    switch (below(run, 5)) {
    case 0:
        note(run, "fallocate 0 [%zu, %zu)", offset, offset + length);
        if (fallocate(run->file, 0, (off_t)offset, (off_t)length) < 0) {
            if (!absent(errno))
                wrong(run, "fallocate: %s", strerror(errno));
        } else if (offset + length > run->size) {
            change_size(run, offset + length);
        }
        break;
    case 1:
        note(run, "fallocate KEEP_SIZE [%zu, %zu)", offset, offset + length);
        if (fallocate(run->file, FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)length) < 0 &&
            !absent(errno))
            wrong(run, "fallocate: %s", strerror(errno));
        break;
    case 2:
    case 3: {
        bool punch = below(run, 2);
        note(run, "fallocate %s [%zu, %zu)", punch ? "PUNCH_HOLE" : "ZERO_RANGE|KEEP_SIZE", offset,
             offset + length);
        int mode = FALLOC_FL_KEEP_SIZE | (punch ? FALLOC_FL_PUNCH_HOLE : FALLOC_FL_ZERO_RANGE);
        if (fallocate(run->file, mode, (off_t)offset, (off_t)length) < 0) {
            if (!absent(errno))
                wrong(run, "fallocate: %s", strerror(errno));
        } else if (offset < run->size) {
            size_t end = offset + length < run->size ? offset + length : run->size;
            memset(run->model + offset, 0, end - offset);
        }
        break;
    }
    default: {
        if (run->size == 0)
            break;
        size_t from;
        range_within(run, run->size, &from, &length);
        size_t to = below(run, run->length - length + 1);
        if (to < from + length && from < to + length)
            break; /* overlap: EINVAL */
        note(run, "copy_file_range [%zu, %zu) to %zu", from, from + length, to);
        off_t in = (off_t)from, out = (off_t)to;
        size_t left = length;
        while (left) {
            ssize_t done = copy_file_range(run->file, &in, run->file, &out, left, 0);
            if (done < 0 && left == length && (absent(errno) || errno == EXDEV))
                return;
            if (done <= 0)
                wrong(run, "copy_file_range: %s", done ? strerror(errno) : "nothing copied");
            left -= (size_t)done;
        }
        if (to + length > run->size)
            change_size(run, to + length);
        memcpy(run->model + to, run->model + from, length);
    }
    }
}

static void through_mapping(struct run *run)
{
    size_t offset, length;
    if (run->size == 0)
        return;
    range_within(run, run->size, &offset, &length);
    size_t start = offset & ~(size_t)4095, skip = offset - start;
    bool writing = below(run, 2);
    note(run, "mmap %s [%zu, %zu)", writing ? "write" : "read", offset, offset + length);
    unsigned char *map = mmap(NULL, skip + length, PROT_READ | (writing ? PROT_WRITE : 0),
                              MAP_SHARED, run->file, (off_t)start);
    if (map == MAP_FAILED)
        wrong(run, "mmap: %s", strerror(errno));
    if (writing) {
        randomise(run, run->model + offset, length);
        memcpy(map + skip, run->model + offset, length);
        if (below(run, 2) && msync(map, skip + length, MS_SYNC) < 0)
            wrong(run, "msync: %s", strerror(errno));
    } else {
        compare(run, map + skip, offset, length);
    }
    munmap(map, skip + length);
}

static void reopen(struct run *run)
{
    if (run->file >= 0 && close(run->file) < 0)
        wrong(run, "close: %s", strerror(errno));
    run->file = open(run->path, O_RDWR | O_CREAT, 0644);
    if (run->file < 0)
        wrong(run, "open %s: %s", run->path, strerror(errno));
}

static void own_file(struct run *run, long long calls)
{
    size_t offset, length;
    reopen(run);
    for (run->call = 0; run->call < calls; run->call++) {
        unsigned which = (unsigned)below(run, 100);
        note(run, "nothing");
        if (which < 40) {
            range_within(run, run->length, &offset, &length);
            if (below(run, 4) == 0 && run->size < run->length) { /* at the end */
                offset = run->size;
                if (length > run->length - offset)
                    length = run->length - offset;
            }
            note(run, "write [%zu, %zu)", offset, offset + length);
            if (offset + length > run->size)
                change_size(run, offset + length);
            randomise(run, run->model + offset, length);
            write_all(run, run->model + offset, offset, length);
        } else if (which < 75) {
            range_within(run, run->length, &offset, &length);
            note(run, "read [%zu, %zu)", offset, offset + length);
            size_t seen = read_all(run, run->scratch, offset, length);
            size_t expected = offset >= run->size           ? 0
                              : run->size - offset < length ? run->size - offset
                                                            : length;
            if (seen != expected)
                wrong(run, "read of [%zu, %zu): expected %zu bytes, saw %zu", offset,
                      offset + length, expected, seen);
            compare(run, run->scratch, offset, seen);
        } else if (which < 83) {
            size_t size = below(run, 8) == 0 ? 0 : below(run, run->length + 1);
            note(run, "truncate %zu to %zu", run->size, size);
            change_size(run, size);
            if (ftruncate(run->file, (off_t)size) < 0)
                wrong(run, "ftruncate: %s", strerror(errno));
        } else if (which < 86) {
            note(run, "fsync");
            if (fsync(run->file) < 0)
                wrong(run, "fsync: %s", strerror(errno));
        } else if (which < 90) {
            note(run, "reopen");
            reopen(run);
        } else if (which < 95 && run->allocating) {
            allocate(run);
        } else if (which < 99 && run->mapping) {
            through_mapping(run);
        } else if (which == 99) {
            note(run, "compare all");
            check_all(run);
        }
        check_size(run);
    }
    run->call--;
    check_all(run);
    reopen(run);
    check_all(run);
}

static void lock_range(struct run *run, short type, size_t offset, size_t length)
{
    struct flock lock = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)offset, .l_len = (off_t)length};
    if (fcntl(run->file, F_OFD_SETLKW, &lock) < 0)
        wrong(run, "lock: %s", strerror(errno));
}

static void common_file(struct run *run, long long calls)
{
    size_t offset, length;
    run->size = run->length;
    reopen(run);
    for (run->call = 0; run->call < calls; run->call++) {
        range_within(run, run->length, &offset, &length);
        bool writing = below(run, 2);
        note(run, "%s [%zu, %zu)", writing ? "write" : "read", offset, offset + length);
        lock_range(run, writing ? F_WRLCK : F_RDLCK, offset, length);
        if (writing) {
            randomise(run, run->scratch, length);
            memcpy(run->model + offset, run->scratch, length);
            write_all(run, run->scratch, offset, length);
        } else {
            size_t seen = read_all(run, run->scratch, offset, length);
            if (seen != length)
                wrong(run, "read: expected %zu bytes, saw %zu", length, seen);
            compare(run, run->scratch, offset, length);
        }
        lock_range(run, F_UNLCK, offset, length);
        if (below(run, 50) == 0 && fsync(run->file) < 0)
            wrong(run, "fsync: %s", strerror(errno));
        if (below(run, 50) == 0)
            reopen(run);
    }
}

static void *shared_memory(size_t length)
{
    void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("fsmodel: memory");
        exit(2);
    }
    return memory;
}

int main(int argc, char **argv)
{
    uint64_t seed = 1;
    long long calls = 1000;
    size_t length = 1 << 20;
    unsigned processes = 1;
    bool common = false, allocating = false, mapping = false;
    for (int option; (option = getopt(argc, argv, "s:n:l:p:cfm")) != -1;) {
        switch (option) {
        case 's':
            seed = strtoull(optarg, NULL, 0);
            break;
        case 'n':
            calls = strtoll(optarg, NULL, 0);
            break;
        case 'l':
            length = strtoull(optarg, NULL, 0);
            break;
        case 'p':
            processes = (unsigned)strtoul(optarg, NULL, 0);
            break;
        case 'c':
            common = true;
            break;
        case 'f':
            allocating = true;
            break;
        case 'm':
            mapping = true;
            break;
        default:
            return 2;
        }
    }
    if (optind != argc - 1 || length < 65536) {
        fprintf(stderr, "fsmodel [-s SEED] [-n CALLS] [-l LENGTH, at least 65536] [-p PROCESSES] "
                        "[-c] [-f] [-m] FOLDER\n");
        return 2;
    }
    unsigned char *model = common ? shared_memory(length) : NULL;
    char path[4000];
    snprintf(path, sizeof path, "%s/common", argv[optind]);
    if (common) {
        int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
        if (file < 0 || ftruncate(file, (off_t)length) < 0 || close(file) < 0) {
            perror(path);
            return 2;
        }
    }
    for (unsigned p = 0; p < processes; p++) {
        pid_t child = fork();
        if (child < 0) {
            perror("fork");
            return 2;
        }
        if (child)
            continue;
        struct run *run = calloc(1, sizeof *run);
        if (!run)
            _exit(2);
        run->scratch = shared_memory(length);
        run->model = common ? model : shared_memory(length);
        run->length = length;
        run->seed = seed;
        run->process = p;
        run->random = (seed * 1000003 + p + 1) * 0x9e3779b97f4a7c15ULL | 1;
        run->file = -1;
        run->allocating = allocating;
        run->mapping = mapping;
        if (common) {
            snprintf(run->path, sizeof run->path, "%s", path);
            common_file(run, calls);
        } else {
            snprintf(run->path, sizeof run->path, "%s/own%u", argv[optind], p);
            own_file(run, calls);
        }
        close(run->file);
        _exit(0);
    }
    int bad = 0;
    for (unsigned p = 0; p < processes; p++) {
        int status;
        if (wait(&status) < 0 || status)
            bad = 1;
    }
    if (common && !bad) { /* what is there at the end */
        struct run *run = calloc(1, sizeof *run);
        if (!run)
            return 2;
        run->scratch = shared_memory(length);
        run->model = model;
        run->size = run->length = length;
        run->seed = seed;
        run->file = open(path, O_RDWR);
        check_all(run);
        close(run->file);
        free(run);
    }
    printf("seed %llu\n", (unsigned long long)seed);
    return bad;
}
