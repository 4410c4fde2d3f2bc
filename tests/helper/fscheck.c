/*
 * fscheck: many processes on the same files, and every byte that was acknowledged is verified.
 *
 *   fscheck [-s SEED] [-t SECONDS] [-p PROCESSES] [-n FILES] [-c CELLS] [-b BYTES] [-g] FOLDER
 *
 * A file is CELLS cells of BYTES bytes (odd numbers make them cross every boundary there is). What
 * is in a cell follows from its value, which the processes share: 0 is zeros. Each process writes,
 * reads, scans, punches, zeroes, allocates, copies (copy_file_range) and fsyncs runs of cells, and
 * truncates, at random; it locks the cells that it works on, so that what they must contain is
 * known, while neighbours change what lies in the same page, chunk and batch. With -g it also maps
 * the files as a CUDA program does (libresident), and reads and writes cells through the driver.
 * The first wrong byte ends the run: it is printed with file, cell, what was expected, what was
 * found and who changed the cell last. The exit status is 0 only if there was none. The same SEED
 * with -p 1 gives the same calls again.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "core/driver/driver.h"
#include "core/share/resident.h"

#define PROCESSES_MAX 255
#define FILES_MAX     16
#define CELLS_MAX     65536
#define VERIFY_MAX    ((size_t)4 << 20)
#define COMMON_RUN    24 /* cells, most often */
#define REOPEN_EACH   200

enum operation {
    WRITE,
    READ,
    PUNCH,
    ZERO,
    ALLOCATE,
    COPY,
    TRUNCATE,
    SYNC,
    SCAN,
    GPU_READ,
    GPU_WRITE,
    OPERATIONS
};

static const char *const change_names[] = {
    "nothing yet", "write", "punch", "zero range", "copy", "truncate", "a kernel's write"};
enum change { NONE, BY_WRITE, BY_PUNCH, BY_ZERO, BY_COPY, BY_TRUNCATE, BY_GPU };

struct cell {
    pthread_rwlock_t lock; /* covers value and what is in the file there */
    uint32_t value;
    uint8_t change;  /* enum change: the last one, */
    uint8_t process; /* and who made it */
};

/* Shared by all processes. */
struct file {
    pthread_rwlock_t shape;       /* exclusive: truncate; before the cells' locks */
    _Atomic uint64_t length;      /* in cells: at least so long is the file; under shape */
    struct cell cells[CELLS_MAX]; /* locked in ascending order, of files too */
};

struct shared {
    _Atomic bool stop, failed;
    _Atomic uint32_t next_value;
    _Atomic uint64_t operations, verified_bytes;
    struct file files[FILES_MAX];
};

static struct {
    unsigned int seed, seconds, processes, files, cells;
    size_t bytes; /* of a cell */
    bool gpu;
    const char *folder;
} options = {.seconds = 10, .processes = 4, .files = 3, .cells = 3000, .bytes = 1009};

static struct shared *shared;

struct process {
    unsigned int number;
    uint64_t random;
    int fds[FILES_MAX];
    unsigned char *buffer, *expected;
    const struct driver *driver;
    void *stream;
    struct resident_mapping *mappings[FILES_MAX];
};

/* A run of cells. */
struct run {
    unsigned int file, first, count;
};

static uint64_t next_random(struct process *p)
{
    p->random ^= p->random << 13;
    p->random ^= p->random >> 7;
    p->random ^= p->random << 17;
    return p->random * 0x2545f4914f6cdd1dULL >> 16;
}

static unsigned int below(struct process *p, unsigned int limit)
{
    return (unsigned int)(next_random(p) % limit);
}

static void __attribute__((noreturn, format(printf, 2, 3)))
give_up(const struct process *p, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    if (!atomic_exchange(&shared->failed, true)) {
        printf("seed %u, process %u: ", options.seed, p->number);
        vprintf(format, arguments);
        printf("\n");
        fflush(stdout);
    }
    va_end(arguments);
    shared->stop = true;
    _exit(1);
}

/* -- what is in a cell ------------------------------------------------------------------------- */

static void fill(unsigned char *at, unsigned int file, unsigned int cell, uint32_t value)
{
    struct {
        uint32_t value;
        uint16_t file, mark;
        uint32_t cell;
    } head = {value, (uint16_t)file, 0xcafe, cell};
    uint64_t state = ((uint64_t)value << 32 | (uint64_t)file << 24 | cell) * 0x9e3779b97f4a7c15ULL;

    memset(at, 0, options.bytes);
    if (value == 0)
        return;
    for (size_t i = 0; i < options.bytes; i++) {
        if (i % 8 == 0)
            state = (state ^ state >> 29) * 0xbf58476d1ce4e5b9ULL + i;
        at[i] = (unsigned char)(state >> i % 8 * 8);
    }
    memcpy(at, &head, options.bytes < sizeof(head) ? options.bytes : sizeof(head));
}

static void explain(const struct process *p, const char *how, const struct run *run,
                    unsigned int cell, const unsigned char *seen, const unsigned char *expected)
{
    const struct cell *c = &shared->files[run->file].cells[cell];
    size_t at = 0;
    uint32_t value;
    uint16_t file, mark;

    while (at + 1 < options.bytes && seen[at] == expected[at])
        at++;
    memcpy(&value, seen, sizeof(value));
    memcpy(&file, seen + 4, sizeof(file));
    memcpy(&mark, seen + 6, sizeof(mark));
    give_up(
        p,
        "%s: file %u, cell %u of %u+%u, byte %zu (offset %llu): expected 0x%02x of value %u, by "
        "%s of process %u; found 0x%02x%s (value %u, file %u)",
        how, run->file, cell, run->first, run->count, at,
        (unsigned long long)cell * options.bytes + at, expected[at], c->value,
        change_names[c->change], c->process, seen[at],
        mark == 0xcafe ? " of a cell" : ", no head of a cell", value, file);
}

/* The cells are locked. SEEN has all of the run. */
static void verify(struct process *p, const char *how, const struct run *run,
                   const unsigned char *seen)
{
    for (unsigned int i = 0; i < run->count; i++) {
        unsigned int cell = run->first + i;
        fill(p->expected, run->file, cell, shared->files[run->file].cells[cell].value);
        if (memcmp(p->expected, seen + i * options.bytes, options.bytes) != 0)
            explain(p, how, run, cell, seen + i * options.bytes, p->expected);
    }
    shared->verified_bytes += run->count * options.bytes;
}

/* -- locks ------------------------------------------------------------------------------------- */

static void lock(const struct run *run, bool exclusive)
{
    for (unsigned int i = 0; i < run->count; i++) {
        pthread_rwlock_t *rwlock = &shared->files[run->file].cells[run->first + i].lock;
        if (exclusive)
            pthread_rwlock_wrlock(rwlock);
        else
            pthread_rwlock_rdlock(rwlock);
    }
}

static void unlock(const struct run *run)
{
    for (unsigned int i = 0; i < run->count; i++)
        pthread_rwlock_unlock(&shared->files[run->file].cells[run->first + i].lock);
}

/* The cells of the run are locked exclusively. VALUES NULL: 0. */
static void changed(const struct process *p, const struct run *run, const uint32_t *values,
                    enum change change)
{
    for (unsigned int i = 0; i < run->count; i++) {
        struct cell *cell = &shared->files[run->file].cells[run->first + i];
        cell->value = values ? values[i] : 0;
        cell->change = (uint8_t)change;
        cell->process = (uint8_t)p->number;
    }
}

static void grown(const struct run *run)
{
    struct file *file = &shared->files[run->file];
    uint64_t end = run->first + run->count, length = file->length;

    while (length < end && !atomic_compare_exchange_weak(&file->length, &length, end))
        ;
}

static off_t offset_of(const struct run *run)
{
    return (off_t)run->first * (off_t)options.bytes;
}

static size_t length_of(const struct run *run)
{
    return run->count * options.bytes;
}

/* Anywhere in a file of at most LIMIT cells; mostly short, now and then long. */
static struct run choose_run(struct process *p, unsigned int file, unsigned int limit)
{
    unsigned int most = (unsigned int)(VERIFY_MAX / options.bytes);
    unsigned int longest = below(p, 20) == 0 || most < COMMON_RUN ? most : COMMON_RUN;
    struct run run = {.file = file, .first = below(p, limit)};

    if (longest > limit - run.first)
        longest = limit - run.first;
    run.count = 1 + below(p, longest);
    return run;
}

/* -- operations: shape is held shared, but for truncate -----------------------------------------
 */

static void do_write(struct process *p, unsigned int file)
{
    struct run run = choose_run(p, file, options.cells);
    cleanup_free uint32_t *values = calloc(run.count, sizeof(*values));

    lock(&run, true);
    for (unsigned int i = 0; i < run.count; i++) {
        values[i] = ++shared->next_value;
        fill(p->buffer + i * options.bytes, file, run.first + i, values[i]);
    }
    for (size_t done = 0; done < length_of(&run);) {
        ssize_t n = pwrite(p->fds[file], p->buffer + done, length_of(&run) - done,
                           offset_of(&run) + (off_t)done);
        if (n <= 0)
            give_up(p, "pwrite of %zu bytes at %lld: %s", length_of(&run) - done,
                    (long long)offset_of(&run) + (long long)done, strerror(errno));
        done += (size_t)n;
    }
    changed(p, &run, values, BY_WRITE);
    grown(&run);
    unlock(&run);
}

static void read_run(struct process *p, const struct run *run)
{
    size_t done = 0;

    lock(run, false);
    while (done < length_of(run)) {
        ssize_t n = pread(p->fds[run->file], p->buffer + done, length_of(run) - done,
                          offset_of(run) + (off_t)done);
        if (n < 0)
            give_up(p, "pread at %lld: %s", (long long)offset_of(run), strerror(errno));
        if (n == 0)
            break;
        done += (size_t)n;
    }
    /* Past the end is as good as zeros: that the file is long enough follows from the values. */
    memset(p->buffer + done, 0, length_of(run) - done);
    verify(p, "read", run, p->buffer);
    unlock(run);
}

static void do_read(struct process *p, unsigned int file)
{
    struct run run = choose_run(p, file, options.cells);

    read_run(p, &run);
}

/* One run after the other, as whoever is read ahead for; others change what comes meanwhile. */
static void do_scan(struct process *p, unsigned int file)
{
    struct run run = choose_run(p, file, options.cells);

    for (unsigned int n = 2 + below(p, 30); n > 0 && run.first + run.count <= options.cells; n--) {
        read_run(p, &run);
        run.first += run.count;
    }
}

static void do_fallocate(struct process *p, unsigned int file, enum operation operation)
{
    struct run run = choose_run(p, file, options.cells);
    int mode = operation == PUNCH  ? FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
               : operation == ZERO ? FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE
                                   : 0;

    if (operation != ALLOCATE)
        lock(&run, true);
    int result = fallocate(p->fds[file], mode, offset_of(&run), (off_t)length_of(&run));
    if (result < 0 && operation == ZERO && errno == EOPNOTSUPP) { /* tmpfs */
        mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        result = fallocate(p->fds[file], mode, offset_of(&run), (off_t)length_of(&run));
    }
    if (result < 0)
        give_up(p, "fallocate mode %d of %zu bytes at %lld: %s", mode, length_of(&run),
                (long long)offset_of(&run), strerror(errno));
    if (operation == ALLOCATE) {
        grown(&run);
        return;
    }
    changed(p, &run, NULL, operation == PUNCH ? BY_PUNCH : BY_ZERO);
    unlock(&run);
}

static bool overlap(const struct run *a, const struct run *b)
{
    return a->file == b->file && a->first < b->first + b->count && b->first < a->first + a->count;
}

/*
 * Cells keep their place in copies, so that contents can be told apart: from one file to another
 * the heads would name the wrong file. So what is copied is rewritten in the model: a copied cell
 * is verified right away, byte by byte, and then overwritten or zeroed.
 */
static void do_copy(struct process *p, unsigned int file)
{
    struct run from = choose_run(p, file, options.cells);
    struct run to = {below(p, options.files), below(p, options.cells), from.count};
    unsigned char *seen = p->buffer;

    if (to.first + to.count > options.cells)
        to.first = options.cells - to.count;
    if (overlap(&from, &to) || from.first + from.count > shared->files[file].length)
        return;
    bool from_first = from.file < to.file || (from.file == to.file && from.first < to.first);
    if (from_first)
        lock(&from, false);
    lock(&to, true);
    if (!from_first)
        lock(&from, false);
    off_t in = offset_of(&from), out = offset_of(&to);
    for (size_t done = 0; done < length_of(&to);) {
        ssize_t n = copy_file_range(p->fds[from.file], &in, p->fds[to.file], &out,
                                    length_of(&to) - done, 0);
        if (n <= 0)
            give_up(p, "copy_file_range of %zu bytes: %s", length_of(&to) - done,
                    n < 0 ? strerror(errno) : "ended early");
        done += (size_t)n;
    }
    grown(&to);
    if (pread(p->fds[to.file], seen, length_of(&to), offset_of(&to)) != (ssize_t)length_of(&to))
        give_up(p, "a copy of %zu bytes cannot be read back", length_of(&to));
    verify(p, "copy", &from, seen);
    unlock(&from);
    if (fallocate(p->fds[to.file], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset_of(&to),
                  (off_t)length_of(&to)) < 0)
        give_up(p, "punching a copy: %s", strerror(errno));
    changed(p, &to, NULL, BY_COPY);
    unlock(&to);
}

/* shape is held exclusively: nobody else is at the file. */
static void do_truncate(struct process *p, unsigned int file)
{
    struct file *f = &shared->files[file];
    unsigned int length = below(p, 4) == 0 ? 0 : below(p, options.cells + 1);
    struct stat st;

    if (ftruncate(p->fds[file], (off_t)(length * options.bytes)) < 0)
        give_up(p, "ftruncate to %zu: %s", length * options.bytes, strerror(errno));
    if (fstat(p->fds[file], &st) < 0 || st.st_size != (off_t)(length * options.bytes))
        give_up(p, "truncated to %zu, fstat says %lld", length * options.bytes,
                (long long)st.st_size);
    if (length < options.cells) {
        struct run rest = {file, length, options.cells - length};
        changed(p, &rest, NULL, BY_TRUNCATE);
    }
    f->length = length;
}

/* -- as a CUDA program ------------------------------------------------------------------------- */

/* The first call on any of the files in this process; after the fork. */
static void start_driver(struct process *p)
{
    char name[64], message[256];
    struct driver *driver;
    CUcontext context;
    ssize_t length = fgetxattr(p->fds[0], "user.resident.device", name, sizeof(name) - 1);

    if (length < 0)
        give_up(p, "not a file of residentfs");
    name[length] = 0;
    name[strcspn(name, ":")] = 0;
    if (driver_open(name, &driver, message, sizeof(message)) < 0)
        give_up(p, "%s", message);
    if (driver->cuInit(0) != CUDA_SUCCESS ||
        driver->cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        driver->cuCtxSetCurrent(context) != CUDA_SUCCESS ||
        driver->cuStreamCreate((CUstream *)&p->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        give_up(p, "the driver does not start");
    p->driver = driver;
}

/* The file's length is not 0. */
static uint64_t mapped_address(struct process *p, const struct run *run)
{
    struct resident_mapping **mapping = &p->mappings[run->file];
    size_t end = (size_t)offset_of(run) + length_of(run);

    if (*mapping && below(p, 50) == 0) {
        if (resident_unmap(*mapping) < 0)
            give_up(p, "resident_unmap: %s", resident_error());
        *mapping = NULL;
    }
    if (!*mapping && resident_map(p->fds[run->file], 0, mapping) < 0)
        give_up(p, "resident_map: %s", resident_error());
    if (resident_length(*mapping) < end && resident_remap(*mapping) < 0)
        give_up(p, "resident_remap: %s", resident_error());
    if (resident_length(*mapping) < end)
        give_up(p, "a mapping of %zu bytes of a file that has %zu", resident_length(*mapping), end);
    if (resident_sync(*mapping) < 0)
        give_up(p, "resident_sync: %s", resident_error());
    return resident_address(*mapping) + (uint64_t)offset_of(run);
}

static void do_gpu(struct process *p, unsigned int file, bool writes)
{
    struct run run = choose_run(p, file, options.cells);
    cleanup_free uint32_t *values = calloc(run.count, sizeof(*values));
    CUresult result;

    if (run.first + run.count > shared->files[file].length)
        return;
    lock(&run, writes);
    uint64_t address = mapped_address(p, &run);
    if (writes) {
        for (unsigned int i = 0; i < run.count; i++) {
            values[i] = ++shared->next_value;
            fill(p->buffer + i * options.bytes, file, run.first + i, values[i]);
        }
        result = p->driver->cuMemcpyHtoDAsync(address, p->buffer, length_of(&run), p->stream);
    } else {
        result = p->driver->cuMemcpyDtoHAsync(p->buffer, address, length_of(&run), p->stream);
    }
    if (result == CUDA_SUCCESS)
        result = p->driver->cuStreamSynchronize(p->stream);
    if (result != CUDA_SUCCESS)
        give_up(p, "a copy of the driver failed: %s", driver_error_name(p->driver, result));
    if (writes)
        changed(p, &run, values, BY_GPU);
    else
        verify(p, "a kernel's read", &run, p->buffer);
    unlock(&run);
}

/* -- processes --------------------------------------------------------------------------------- */

static void open_file(struct process *p, unsigned int file)
{
    static const int flags[] = {0, O_DIRECT, O_SYNC, 0};
    char path[4096];

    snprintf(path, sizeof(path), "%s/fscheck.%u", options.folder, file);
    if (p->fds[file] >= 0 && close(p->fds[file]) < 0)
        give_up(p, "close: %s", strerror(errno));
    /* A file is mapped or open through the page cache, not both. */
    int more = options.gpu ? O_DIRECT : flags[below(p, 4)];
    p->fds[file] = open(path, O_RDWR | O_CREAT | O_CLOEXEC | more, 0644);
    if (p->fds[file] < 0)
        give_up(p, "%s: %s", path, strerror(errno));
}

static enum operation choose_operation(struct process *p)
{
    static const unsigned char weights[OPERATIONS] = {
        [WRITE] = 40, [READ] = 40,    [PUNCH] = 6, [ZERO] = 3,      [ALLOCATE] = 3,   [COPY] = 12,
        [SYNC] = 4,   [TRUNCATE] = 1, [SCAN] = 4,  [GPU_READ] = 20, [GPU_WRITE] = 15,
    };
    unsigned int total = 0;
    unsigned int count = options.gpu ? OPERATIONS : GPU_READ;

    for (unsigned int i = 0; i < count; i++)
        total += weights[i];
    unsigned int at = below(p, total), i = 0;
    while (at >= weights[i])
        at -= weights[i++];
    return (enum operation)i;
}

static void one_operation(struct process *p)
{
    unsigned int file = below(p, options.files);
    enum operation operation = choose_operation(p);
    /* A copy has two files: their shapes in order, the second one by do_copy's choice of any. */
    bool all = operation == COPY;

    for (unsigned int i = all ? 0 : file; i < (all ? options.files : file + 1); i++) {
        if (operation == TRUNCATE)
            pthread_rwlock_wrlock(&shared->files[i].shape);
        else
            pthread_rwlock_rdlock(&shared->files[i].shape);
    }
    switch (operation) {
    case WRITE:
        do_write(p, file);
        break;
    case READ:
        do_read(p, file);
        break;
    case PUNCH:
    case ZERO:
    case ALLOCATE:
        do_fallocate(p, file, operation);
        break;
    case COPY:
        do_copy(p, file);
        break;
    case TRUNCATE:
        do_truncate(p, file);
        break;
    case SYNC:
        if (fsync(p->fds[file]) < 0)
            give_up(p, "fsync: %s", strerror(errno));
        break;
    case SCAN:
        do_scan(p, file);
        break;
    case GPU_READ:
    case GPU_WRITE:
        do_gpu(p, file, operation == GPU_WRITE);
        break;
    default:
        break;
    }
    for (unsigned int i = all ? 0 : file; i < (all ? options.files : file + 1); i++)
        pthread_rwlock_unlock(&shared->files[i].shape);
    shared->operations++;
}

static void process_init(struct process *p, unsigned int number)
{
    *p = (struct process){.number = number,
                          .random = (options.seed + 1) * 0x9e3779b97f4a7c15ULL +
                                    number * 0xbf58476d1ce4e5b9ULL};
    p->buffer = malloc(VERIFY_MAX + options.bytes);
    p->expected = malloc(options.bytes);
    if (!p->buffer || !p->expected)
        give_up(p, "no memory");
    for (unsigned int i = 0; i < options.files; i++) {
        p->fds[i] = -1;
        open_file(p, i);
    }
}

static void process_finish(struct process *p)
{
    for (unsigned int i = 0; i < options.files; i++)
        if (close(p->fds[i]) < 0)
            give_up(p, "close: %s", strerror(errno));
    free(p->buffer);
    free(p->expected);
}

static int run_process(unsigned int number)
{
    struct process p;

    process_init(&p, number);
    if (options.gpu)
        start_driver(&p);
    for (unsigned int n = 1; !shared->stop; n++) {
        one_operation(&p);
        if (n % REOPEN_EACH == 0)
            open_file(&p, below(&p, options.files));
    }
    for (unsigned int i = 0; i < options.files; i++) {
        if (resident_unmap(p.mappings[i]) < 0)
            give_up(&p, "resident_unmap: %s", resident_error());
    }
    process_finish(&p);
    return 0;
}

/* At the end, by the parent, when nobody changes anything any more. */
static void verify_all(void)
{
    struct process p;
    unsigned int most = (unsigned int)(VERIFY_MAX / options.bytes);

    process_init(&p, options.processes);
    for (unsigned int file = 0; file < options.files; file++) {
        for (unsigned int first = 0; first < options.cells; first += most) {
            struct run run = {file, first, options.cells - first};
            if (run.count > most)
                run.count = most;
            ssize_t n = pread(p.fds[file], p.buffer, length_of(&run), offset_of(&run));
            if (n < 0)
                give_up(&p, "pread: %s", strerror(errno));
            memset(p.buffer + n, 0, length_of(&run) - (size_t)n);
            verify(&p, "at the end", &run, p.buffer);
        }
    }
    process_finish(&p);
}

static bool init_shared(void)
{
    pthread_rwlockattr_t attributes;

    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return false;
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    for (unsigned int i = 0; i < options.files; i++) {
        pthread_rwlock_init(&shared->files[i].shape, &attributes);
        for (unsigned int j = 0; j < options.cells; j++)
            pthread_rwlock_init(&shared->files[i].cells[j].lock, &attributes);
    }
    return true;
}

static bool parse(int argc, char **argv)
{
    int flag;

    options.seed = (unsigned int)time(NULL) ^ (unsigned int)getpid() << 16;
    while ((flag = getopt(argc, argv, "s:t:p:n:c:b:g")) != -1) {
        unsigned int value = optarg ? (unsigned int)strtoul(optarg, NULL, 10) : 0;
        switch (flag) {
        case 's':
            options.seed = value;
            break;
        case 't':
            options.seconds = value;
            break;
        case 'p':
            options.processes = value;
            break;
        case 'n':
            options.files = value;
            break;
        case 'c':
            options.cells = value;
            break;
        case 'b':
            options.bytes = value;
            break;
        case 'g':
            options.gpu = true;
            break;
        default:
            return false;
        }
    }
    options.folder = argv[optind];
    return options.folder && options.processes > 0 && options.processes <= PROCESSES_MAX &&
           options.files > 0 && options.files <= FILES_MAX && options.cells > 0 &&
           options.cells <= CELLS_MAX && options.bytes >= 16 && options.bytes <= VERIFY_MAX;
}

int main(int argc, char **argv)
{
    pid_t children[PROCESSES_MAX];
    unsigned int bad = 0;
    int status;

    if (!parse(argc, argv) || !init_shared()) {
        fprintf(stderr,
                "usage: fscheck [-s SEED] [-t SECONDS] [-p PROCESSES] [-n FILES (%d)] "
                "[-c CELLS (%d)] [-b BYTES] [-g] FOLDER\n",
                FILES_MAX, CELLS_MAX);
        return 2;
    }
    for (unsigned int i = 0; i < options.files; i++) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/fscheck.%u", options.folder, i);
        unlink(path); /* of an earlier run */
    }
    for (unsigned int i = 0; i < options.processes; i++) {
        children[i] = fork();
        if (children[i] < 0)
            shared->stop = shared->failed = true;
        if (children[i] == 0)
            _exit(run_process(i));
    }
    for (unsigned int i = 0; i < options.seconds * 10 && !shared->stop; i++)
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    shared->stop = true;
    /* After a failure others may wait for a lock of a process that is no more. */
    for (unsigned int i = 0; i < options.processes && shared->failed; i++)
        if (children[i] > 0)
            kill(children[i], SIGKILL);
    while (wait(&status) > 0)
        bad += status != 0;
    if (bad == 0)
        verify_all();
    printf("seed %u: %llu operations, %llu MiB verified: %s\n", options.seed,
           (unsigned long long)shared->operations,
           (unsigned long long)(shared->verified_bytes >> 20),
           bad == 0 ? "no wrong byte" : "failed");
    return bad == 0 ? 0 : 1;
}
