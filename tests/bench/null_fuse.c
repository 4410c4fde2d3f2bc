/*
 * A file system that answers at once and keeps nothing: what /dev/fuse, or io_uring, and libfuse
 * allow at most. Reads give zeros, writes are dropped, only sizes and names are kept. It receives
 * as fs/session.c does: workers by need, hugepage-backed buffers and a descriptor of the connection
 * of their own, payloads aligned.
 *
 *   null_fuse MOUNTPOINT [-o OPTION,…]
 *
 * Options are those of residentfs: max_write=SIZE, workers=N, max_background=N,
 * busy_poll=MICROSECONDS, io_uring=on|off. Stays in the foreground; ends when it is unmounted.
 *
 * The root has files "0", "1", … and directories "d0", "d1", … which have files "0", "1", …; no
 * other name can be made. Lookups and creations take no lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/size_text.h"
#include "core/util.h"

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#define DIRECTORIES          64u /* besides the root */
#define FILES                (1u << 21)
#define WORKERS_MAX          64u
#define SPARE_WAITS          8
#define PAGE_BYTES           4096
#define HUGEPAGE_BYTES       (2 * MIB)
#define WRITE_HEADER_BYTES   80
#define ENTRY_TIMEOUT_S      3600
#define ATTRIBUTES_TIMEOUT_S 1

/* Inodes: the root 1, directory N N + 2, file N of directory D (0: the root) (D + 1) << 32 | N. */
struct directory {
    _Atomic bool exists;
    _Atomic uint32_t end;      /* past the highest file that ever was */
    _Atomic uint64_t *lengths; /* of FILES files, plus one; 0: no file */
};

struct worker {
    pthread_t thread;
    int channel;
    char *receive, *reply;
    unsigned int spare_waits;
    bool comes_soon;
    sem_t wake;
    struct worker *next_asleep;
};

static struct directory directories[DIRECTORIES + 1]; /* the root is 0 */
static struct fuse_session *session;
static struct {
    uint64_t max_write_bytes;
    unsigned int workers, max_background, busy_poll_us;
    bool io_uring;
} options = {.max_write_bytes = MIB, .max_background = 128, .busy_poll_us = 50};

static _Atomic int idle;
static _Atomic bool ended;
static pthread_mutex_t asleep_mutex = PTHREAD_MUTEX_INITIALIZER; /* covers asleep */
static struct worker *asleep;
static size_t receive_bytes, reply_bytes;
static _Thread_local struct worker *current;

/* -- names ------------------------------------------------------------------------------------- */

static bool parse_number(const char *text, unsigned int end, unsigned int *number)
{
    char *rest;

    if (*text < '0' || *text > '9' || (*text == '0' && text[1]))
        return false;
    unsigned long value = strtoul(text, &rest, 10);
    *number = (unsigned int)value;
    return *rest == '\0' && value < end;
}

static struct directory *directory_of(fuse_ino_t ino)
{
    return ino == FUSE_ROOT_ID ? &directories[0] : &directories[ino - 1];
}

static fuse_ino_t file_inode(const struct directory *directory, unsigned int number)
{
    return (fuse_ino_t)(directory - directories + 1) << 32 | number;
}

static _Atomic uint64_t *file_length(fuse_ino_t ino)
{
    return &directories[(ino >> 32) - 1].lengths[(uint32_t)ino];
}

/* Zeros for an inode without an attribute of its own: no file. */
static bool fill_attributes(fuse_ino_t ino, struct stat *st)
{
    bool is_file = ino >> 32;
    uint64_t length = is_file ? *file_length(ino) : 1;

    *st = (struct stat){.st_ino = ino,
                        .st_mode = is_file ? S_IFREG | 0644 : S_IFDIR | 0755,
                        .st_nlink = is_file ? 1 : 2,
                        .st_size = length > 0 ? (off_t)length - 1 : 0};
    return length > 0;
}

static struct fuse_entry_param entry_of(fuse_ino_t ino)
{
    struct fuse_entry_param entry = {.ino = ino,
                                     .generation = 1,
                                     .entry_timeout = ENTRY_TIMEOUT_S,
                                     .attr_timeout = ATTRIBUTES_TIMEOUT_S};

    fill_attributes(ino, &entry.attr);
    return entry;
}

/* 0: there is none. */
static fuse_ino_t search(fuse_ino_t parent, const char *name)
{
    struct directory *directory = directory_of(parent);
    unsigned int number;

    if (parent == FUSE_ROOT_ID && name[0] == 'd')
        return parse_number(name + 1, DIRECTORIES, &number) && directories[number + 1].exists
                   ? number + 2
                   : 0;
    if (!parse_number(name, FILES, &number) || directory->lengths[number] == 0)
        return 0;
    return file_inode(directory, number);
}

static void on_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    fuse_ino_t ino = search(parent, name);
    struct fuse_entry_param entry = ino ? entry_of(ino) : (struct fuse_entry_param){0};

    if (ino)
        fuse_reply_entry(req, &entry);
    else
        fuse_reply_err(req, ENOENT);
}

static void on_forget(fuse_req_t req, fuse_ino_t ino, uint64_t count)
{
    (void)ino;
    (void)count;
    fuse_reply_none(req);
}

static void on_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    (void)count;
    (void)forgets;
    fuse_reply_none(req);
}

static void on_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct stat st;

    (void)fi;
    fill_attributes(ino, &st);
    fuse_reply_attr(req, &st, ATTRIBUTES_TIMEOUT_S);
}

static void on_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
                       struct fuse_file_info *fi)
{
    if ((to_set & FUSE_SET_ATTR_SIZE) && ino >> 32)
        *file_length(ino) = (uint64_t)attr->st_size + 1;
    on_getattr(req, ino, fi);
}

static void on_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    unsigned int number;

    (void)mode;
    if (parent != FUSE_ROOT_ID || name[0] != 'd' || !parse_number(name + 1, DIRECTORIES, &number)) {
        fuse_reply_err(req, EPERM);
        return;
    }
    struct fuse_entry_param entry = entry_of(number + 2);
    if (atomic_exchange(&directories[number + 1].exists, true))
        fuse_reply_err(req, EEXIST);
    else
        fuse_reply_entry(req, &entry);
}

/* Files of a directory that is removed are gone with it. */
static void on_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    fuse_ino_t ino = search(parent, name);

    if (ino && !(ino >> 32))
        directory_of(ino)->exists = false;
    fuse_reply_err(req, ino ? 0 : ENOENT);
}

static void on_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    fuse_ino_t ino = search(parent, name);

    if (ino >> 32)
        *file_length(ino) = 0;
    fuse_reply_err(req, ino ? 0 : ENOENT);
}

static void read_directory(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, bool plus)
{
    struct directory *directory = directory_of(ino);
    uint32_t end = directory->end;
    size_t capacity, used = 0;
    char *bytes = malloc(size);

    for (uint32_t number = (uint32_t)offset; bytes && number < end; number++, used += capacity) {
        char name[16];

        capacity = 0;
        if (directory->lengths[number] == 0)
            continue;
        struct fuse_entry_param entry = entry_of(file_inode(directory, number));
        snprintf(name, sizeof(name), "%u", number);
        capacity = plus ? fuse_add_direntry_plus(req, bytes + used, size - used, name, &entry,
                                                 (off_t)number + 1)
                        : fuse_add_direntry(req, bytes + used, size - used, name, &entry.attr,
                                            (off_t)number + 1);
        if (capacity > size - used)
            break;
    }
    fuse_reply_buf(req, bytes, used);
    free(bytes);
}

static void on_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                       struct fuse_file_info *fi)
{
    (void)fi;
    read_directory(req, ino, size, offset, false);
}

static void on_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                           struct fuse_file_info *fi)
{
    (void)fi;
    read_directory(req, ino, size, offset, true);
}

static void on_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    fuse_reply_open(req, fi);
}

static void on_statfs(fuse_req_t req, fuse_ino_t ino)
{
    struct statvfs st = {.f_bsize = PAGE_BYTES,
                         .f_frsize = PAGE_BYTES,
                         .f_blocks = 1u << 30,
                         .f_bfree = 1u << 30,
                         .f_bavail = 1u << 30,
                         .f_namemax = 255};

    (void)ino;
    fuse_reply_statfs(req, &st);
}

/* -- bytes ------------------------------------------------------------------------------------- */

static void set_file_info(struct fuse_file_info *fi)
{
    fi->direct_io = 1;
#ifdef HAVE_FUSE_PARALLEL_DIRECT_WRITES
    fi->parallel_direct_writes = 1;
#endif
}

static void on_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    if (fi->flags & O_TRUNC)
        *file_length(ino) = 1;
    set_file_info(fi);
    fuse_reply_open(req, fi);
}

static void on_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                      struct fuse_file_info *fi)
{
    struct directory *directory = directory_of(parent);
    unsigned int number;
    uint64_t none = 0;

    (void)mode;
    if (!parse_number(name, FILES, &number)) {
        fuse_reply_err(req, EPERM);
        return;
    }
    if (!atomic_compare_exchange_strong(&directory->lengths[number], &none, 1) &&
        (fi->flags & O_EXCL)) {
        fuse_reply_err(req, EEXIST);
        return;
    }
    uint32_t end = directory->end;
    while (end <= number && !atomic_compare_exchange_weak(&directory->end, &end, number + 1))
        ;
    struct fuse_entry_param entry = entry_of(file_inode(directory, number));
    set_file_info(fi);
    fuse_reply_create(req, &entry, fi);
}

static void on_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                    struct fuse_file_info *fi)
{
    uint64_t length = *file_length(ino), end = length > 0 ? length - 1 : 0;
    size_t n = (uint64_t)offset < end ? MIN(size, end - (uint64_t)offset) : 0;
    char *bytes = current ? current->reply : NULL;

    (void)fi;
#ifdef HAVE_FUSE_IO_URING
    if (!bytes) { /* a request through io_uring: answered in place */
        size_t capacity;
        if (fuse_req_get_payload(req, &bytes, &capacity, NULL) != 0)
            bytes = NULL;
        else
            n = MIN(n, capacity);
    }
#endif
    if (bytes)
        fuse_reply_buf(req, bytes, MIN(n, reply_bytes));
    else
        fuse_reply_err(req, EIO);
}

static void on_write(fuse_req_t req, fuse_ino_t ino, const char *bytes, size_t size, off_t offset,
                     struct fuse_file_info *fi)
{
    _Atomic uint64_t *length = file_length(ino);
    uint64_t end = (uint64_t)offset + size + 1, old = *length;

    (void)bytes;
    (void)fi;
    while (old < end && !atomic_compare_exchange_weak(length, &old, end))
        ;
    fuse_reply_write(req, size);
}

static void reply_success(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    (void)fi;
    fuse_reply_err(req, 0);
}

static void on_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    (void)datasync;
    reply_success(req, ino, fi);
}

static void on_copy(fuse_req_t req, fuse_ino_t from, off_t from_offset, struct fuse_file_info *in,
                    fuse_ino_t to, off_t to_offset, struct fuse_file_info *out, size_t size,
                    int flags)
{
    uint64_t length = *file_length(from), end = length > 0 ? length - 1 : 0;
    size_t n = (uint64_t)from_offset < end ? MIN(size, end - (uint64_t)from_offset) : 0;

    (void)in;
    (void)flags;
    on_write(req, to, NULL, n, to_offset, out);
}

/* -- INIT -------------------------------------------------------------------------------------- */

static void set_wanted(struct fuse_conn_info *connection, uint64_t capability, bool wanted)
{
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
    if (wanted && (connection->capable_ext & capability))
        fuse_set_feature_flag(connection, capability);
    else
        fuse_unset_feature_flag(connection, capability);
#else
    if (wanted && (connection->capable & capability))
        connection->want |= (unsigned int)capability;
    else
        connection->want &= ~(unsigned int)capability;
#endif
}

static void on_init(void *userdata, struct fuse_conn_info *connection)
{
    static const uint64_t unwanted[] = {FUSE_CAP_SPLICE_READ, FUSE_CAP_SPLICE_WRITE,
                                        FUSE_CAP_SPLICE_MOVE, FUSE_CAP_WRITEBACK_CACHE,
                                        FUSE_CAP_AUTO_INVAL_DATA};
    static const uint64_t wanted[] = {FUSE_CAP_ASYNC_READ,     FUSE_CAP_ASYNC_DIO,
                                      FUSE_CAP_ATOMIC_O_TRUNC, FUSE_CAP_PARALLEL_DIROPS,
                                      FUSE_CAP_READDIRPLUS,    FUSE_CAP_READDIRPLUS_AUTO,
                                      FUSE_CAP_HANDLE_KILLPRIV};

    (void)userdata;
    for (size_t i = 0; i < ARRAY_SIZE(unwanted); i++)
        set_wanted(connection, unwanted[i], false);
    for (size_t i = 0; i < ARRAY_SIZE(wanted); i++)
        set_wanted(connection, wanted[i], true);
#ifdef FUSE_CAP_OVER_IO_URING
    set_wanted(connection, FUSE_CAP_OVER_IO_URING, options.io_uring);
#endif
#ifdef HAVE_FUSE_NO_INTERRUPT
    connection->no_interrupt = 1;
#endif
    if (fuse_version() < FUSE_MAKE_VERSION(3, 17) || options.io_uring)
        options.max_write_bytes = MIN(options.max_write_bytes, connection->max_write);
    connection->max_write = (unsigned int)options.max_write_bytes;
    connection->max_read = 0;
    connection->max_background = options.max_background;
    connection->congestion_threshold = MAX(options.max_background * 3 / 4, 1u);
    connection->time_gran = 1;
    if (!options.io_uring)
        fuse_session_exit(session); /* only libfuse's loop, as fs/session.c has it */
}

static const struct fuse_lowlevel_ops operations = {
    .init = on_init,
    .lookup = on_lookup,
    .forget = on_forget,
    .forget_multi = on_forget_multi,
    .getattr = on_getattr,
    .setattr = on_setattr,
    .mkdir = on_mkdir,
    .rmdir = on_rmdir,
    .unlink = on_unlink,
    .opendir = on_opendir,
    .readdir = on_readdir,
    .readdirplus = on_readdirplus,
    .statfs = on_statfs,
    .open = on_open,
    .create = on_create,
    .read = on_read,
    .write = on_write,
    .flush = reply_success,
    .release = reply_success,
    .releasedir = reply_success,
    .fsync = on_fsync,
    .copy_file_range = on_copy,
};

/* -- channels ---------------------------------------------------------------------------------- */

static ssize_t write_reply(int fd, struct iovec *iov, int count, void *userdata)
{
    (void)userdata;
    return writev(current ? current->channel : fd, iov, count);
}

static ssize_t read_request(int fd, void *bytes, size_t capacity, void *userdata)
{
    (void)userdata;
    return read(fd, bytes, capacity);
}

static int open_channel(void)
{
    uint32_t connection = (uint32_t)fuse_session_fd(session);
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC | O_NONBLOCK);

    if (fd >= 0 && ioctl(fd, FUSE_DEV_IOC_CLONE, &connection) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return (int)connection;
}

/* -- workers ----------------------------------------------------------------------------------- */

static void wake_worker(void)
{
    pthread_mutex_lock(&asleep_mutex);
    struct worker *worker = asleep;
    if (worker)
        asleep = worker->next_asleep;
    pthread_mutex_unlock(&asleep_mutex);
    if (worker)
        sem_post(&worker->wake);
}

static void sleep_until_woken(struct worker *worker)
{
    pthread_mutex_lock(&asleep_mutex);
    worker->next_asleep = asleep;
    asleep = worker;
    pthread_mutex_unlock(&asleep_mutex);
    if (ended)
        wake_worker();
    while (sem_wait(&worker->wake) < 0)
        ;
    worker->spare_waits = 0;
}

static void wait_for_request(struct worker *worker)
{
    struct pollfd queue = {.fd = worker->channel, .events = POLLIN};

    worker->spare_waits = idle == 0 ? 0 : worker->spare_waits + 1;
    if (worker->spare_waits >= SPARE_WAITS) {
        sleep_until_woken(worker);
        worker->comes_soon = false;
        return;
    }
    idle++;
    poll(&queue, 1, -1);
    idle--;
}

/* Of its own: 0: none yet. *waited: it was not there already. */
static ssize_t next_request(struct worker *worker, char *bytes, bool *waited)
{
    uint64_t limit_ns = (uint64_t)options.busy_poll_us * 1000, began_ns;
    ssize_t length = read(worker->channel, bytes, receive_bytes);

    if (length >= 0 || errno != EAGAIN)
        return length < 0 && (errno == EINTR || errno == ENOENT) ? 0 : length;
    *waited = true;
    began_ns = monotonic_ns();
    while (length < 0 && errno == EAGAIN && worker->comes_soon && idle == 0 && !ended &&
           monotonic_ns() - began_ns < limit_ns) {
        processor_pause();
        length = read(worker->channel, bytes, receive_bytes);
    }
    if (length >= 0 || errno != EAGAIN)
        return length < 0 && (errno == EINTR || errno == ENOENT) ? 0 : length;
    wait_for_request(worker);
    worker->comes_soon = monotonic_ns() - began_ns < limit_ns;
    return 0;
}

static void *run_worker(void *data)
{
    struct worker *worker = data;
    struct fuse_buf request = {.mem = worker->receive};
    bool waited = true;

    current = worker;
    while (!ended) {
        ssize_t length = next_request(worker, request.mem, &waited);

        if (length == 0)
            continue;
        if (length < 0)
            break;
        if (!waited) {
            worker->spare_waits = 0;
            if (idle == 0)
                wake_worker();
        }
        waited = false;
        request.size = (size_t)length;
        fuse_session_process_buf(session, &request);
    }
    ended = true;
    wake_worker(); /* which wakes the next one */
    return NULL;
}

/* A page boundary is BEFORE_BOUNDARY bytes into it; backed by hugepages. NULL: no memory. */
static char *map_buffer(size_t length, size_t before_boundary)
{
    size_t span = align_up(length + PAGE_BYTES, HUGEPAGE_BYTES) + HUGEPAGE_BYTES;
    char *at = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED)
        return NULL;
    at = (char *)align_up((uintptr_t)at, HUGEPAGE_BYTES);
    madvise(at, span - HUGEPAGE_BYTES, MADV_HUGEPAGE);
    memset(at, 0, length + PAGE_BYTES);
    return at + (PAGE_BYTES - before_boundary) % PAGE_BYTES;
}

static int serve(void)
{
    static struct worker workers[WORKERS_MAX];
    unsigned int count = options.workers ? options.workers : (unsigned int)get_nprocs(),
                 started = 0;

    if (!options.workers)
        count = MIN(MAX(count, 2u), 8u);
    if (!options.io_uring) {
        int result = fuse_session_loop(session);
        if (result != 0)
            return result;
        fuse_session_reset(session);
    }
    reply_bytes = MAX(options.max_write_bytes, MIB) + PAGE_BYTES;
    receive_bytes = MAX(options.max_write_bytes, MIB) + 2 * PAGE_BYTES;
    static const struct fuse_custom_io io = {.writev = write_reply, .read = read_request};
    int shared = fuse_session_fd(session);
    if (!options.io_uring)
        fcntl(shared, F_SETFL, fcntl(shared, F_GETFL) | O_NONBLOCK);
    bool channels =
        !options.io_uring && fuse_session_custom_io(session, &io, fuse_session_fd(session)) == 0;
    for (; started < MIN(count, WORKERS_MAX); started++) {
        struct worker *worker = &workers[started];

        worker->channel = channels ? open_channel() : fuse_session_fd(session);
        worker->spare_waits = started == 0 ? 0 : SPARE_WAITS;
        sem_init(&worker->wake, 0, 0);
        worker->receive = map_buffer(receive_bytes, WRITE_HEADER_BYTES);
        worker->reply = map_buffer(reply_bytes, 0);
        if (!worker->receive || !worker->reply)
            return -ENOMEM;
        if (pthread_create(&worker->thread, NULL, run_worker, worker) != 0)
            break;
    }
    for (unsigned int i = 0; i < started; i++)
        pthread_join(workers[i].thread, NULL);
    fuse_session_exit(session); /* ends the threads of libfuse that serve io_uring */
    return started > 0 ? 0 : -EAGAIN;
}

/* -- start ------------------------------------------------------------------------------------- */

static bool parse_option(const char *option)
{
    char name[32];
    const char *value = strchr(option, '=');
    uint64_t number;

    if (!value || value - option >= (ptrdiff_t)sizeof(name))
        return false;
    snprintf(name, sizeof(name), "%.*s", (int)(value - option), option);
    value++;
    if (strcmp(name, "io_uring") == 0) {
        options.io_uring = strcmp(value, "on") == 0;
        return options.io_uring || strcmp(value, "off") == 0;
    }
    if (strcmp(name, "busy_poll") == 0) {
        options.busy_poll_us = (unsigned int)strtoul(value, NULL, 10);
        return true;
    }
    if (size_text_parse(value, strlen(value), &number) < 0 || number == 0)
        return false;
    if (strcmp(name, "max_write") == 0)
        options.max_write_bytes = align_up(number, PAGE_BYTES);
    else if (strcmp(name, "workers") == 0)
        options.workers = (unsigned int)number;
    else if (strcmp(name, "max_background") == 0)
        options.max_background = (unsigned int)number;
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    int status = EXIT_FAILURE, result;

    if ((argc != 2 && argc != 4) || (argc == 4 && strcmp(argv[2], "-o") != 0)) {
        fprintf(stderr, "usage: null_fuse MOUNTPOINT [-o max_write=SIZE,workers=N,"
                        "max_background=N,io_uring=on|off]\n");
        return 2;
    }
    for (char *option = argc == 4 ? strtok(argv[3], ",") : NULL; option; option = strtok(NULL, ","))
        if (!parse_option(option)) {
            fprintf(stderr, "null_fuse: wrong option %s\n", option);
            return 2;
        }
    directories[0].exists = true;
    for (unsigned int i = 0; i <= DIRECTORIES; i++) {
        directories[i].lengths =
            mmap(NULL, FILES * sizeof(*directories[i].lengths), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (directories[i].lengths == MAP_FAILED) {
            perror("null_fuse");
            return EXIT_FAILURE;
        }
    }
    fuse_opt_add_arg(&args, "null_fuse");
    fuse_opt_add_arg(&args, "-ofsname=null,subtype=null_fuse,default_permissions,allow_other");
    if (options.io_uring)
        fuse_opt_add_arg(&args, "-oio_uring");
    session = fuse_session_new(&args, &operations, sizeof(operations), NULL);
    fuse_opt_free_args(&args);
    if (!session)
        return EXIT_FAILURE;
    if (fuse_session_mount(session, argv[1]) == 0) {
        result = serve();
        if (result < 0)
            fprintf(stderr, "null_fuse: %s\n", strerror(-result));
        status = result == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
        fuse_session_unmount(session);
    }
    fuse_session_destroy(session);
    return status;
}
