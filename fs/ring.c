#include "fs/ring.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>

#ifdef HAVE_FUSE_IO_URING
#include <linux/io_uring.h>
#endif

#include "core/log.h"

#define ENABLE_PATH "/sys/module/fuse/parameters/enable_uring"
#define KICK_NS     10000000
#define PROBE_S     10
#define STUCK_NS    1000000000
/*
 * io_uring=auto does without. What io_uring was found to give, against workers that read the
 * descriptor, in interleaved runs: on an H200, 1 MiB writes of one stream 0.81, of eight 0.79,
 * reads 0.86 and 1.04; prototypes of both there, 4 KiB 1.4-1.9. On two processors, busy, emulated
 * driver: 4 KiB writes of one stream 1.1-1.3, random of eight 1.4-1.6, 4 KiB reads 1.2 and 0.95. So
 * it is for those who know that their requests are small.
 *
 * One request at a time a processor (four were no faster): a processor's queue has one thread, and
 * what that has answered of a batch it sends only after the last of the batch is done.
 */
#define DEPTH 1

/* -- whether ----------------------------------------------------------------------------------- */

#ifdef HAVE_FUSE_IO_URING
/* As libfuse does it: sysctls and seccomp may forbid it. 0 or a negative errno. */
static errint_t try_io_uring(void)
{
    struct io_uring_params params = {.flags = IORING_SETUP_SQE128 | IORING_SETUP_CQSIZE,
                                     .cq_entries = 4};
    long fd = syscall(SYS_io_uring_setup, 2, &params);

    if (fd < 0)
        return -errno;
    close((int)fd);
    return 0;
}

static bool is_possible(char *reason, size_t reason_bytes)
{
    FILE *file = fopen(ENABLE_PATH, "re");
    int word = 0;
    errint_t error;

    if (!file) {
        struct utsname kernel;

        uname(&kernel);
        snprintf(reason, reason_bytes,
                 "Linux %s has no FUSE over io_uring; Linux 6.14 and newer do, built with "
                 "CONFIG_FUSE_IO_URING",
                 kernel.release);
        return false;
    }
    word = fgetc(file);
    fclose(file);
    if (word != 'Y') {
        snprintf(reason, reason_bytes,
                 "the kernel has it switched off; as root, before mounting: echo Y >" ENABLE_PATH
                 " (for good: options fuse enable_uring=1 in /etc/modprobe.d/fuse.conf)");
        return false;
    }
    error = try_io_uring();
    if (error < 0) {
        snprintf(reason, reason_bytes,
                 "io_uring_setup is refused: %s; sysctl kernel.io_uring_disabled must be 0, and a "
                 "container's seccomp profile must allow io_uring",
                 strerror(-error));
        return false;
    }
    return true;
}
#else
static bool is_possible(char *reason, size_t reason_bytes)
{
    snprintf(reason, reason_bytes,
             "this residentfs was built with libfuse %d.%d; libfuse 3.18 and newer, built with "
             "liburing, have it",
             FUSE_MAJOR_VERSION, FUSE_MINOR_VERSION);
    return false;
}
#endif

errint_t ring_choose(struct residentfs *fs, char *message, size_t message_bytes)
{
    enum conf_switch setting = fs->conf->io_uring;

    fs->ring_depth = 0;
    fs->ring_reason[0] = '\0';
    if (setting == CONF_SWITCH_OFF)
        return 0;
    bool possible = is_possible(fs->ring_reason, sizeof(fs->ring_reason));
    if (setting == CONF_SWITCH_AUTO) {
        if (possible)
            snprintf(fs->ring_reason, sizeof(fs->ring_reason),
                     "mount with io_uring=on, if requests of 1 MiB may be slower");
        return 0;
    }
    if (possible) {
        fs->ring_depth = DEPTH;
        return 0;
    }
    snprintf(message, message_bytes, "io_uring=on is not possible: %s; or mount with io_uring=auto",
             fs->ring_reason);
    return -EOPNOTSUPP;
}

/* -- start and end ----------------------------------------------------------------------------- */

void ring_init(struct ring *ring, struct residentfs *fs, struct fuse_session *fuse, int ended_fd)
{
    ring->fs = fs;
    ring->fuse = fuse;
    ring->ended_fd = ended_fd;
    sem_init(&ring->stage, 0, 0);
    pthread_mutex_init(&ring->mutex, NULL);
}

static void *ring_run(void *data)
{
    struct ring *ring = data;
    uint64_t one = 1;
    /* Ends the threads of the queues, too, and frees what they had. */
    int result = fuse_session_loop(ring->fuse);

    worker_set_current(NULL);
    if (result < 0 && !ring->stopping)
        log_error("reading requests from the kernel failed: %s; the file system ends",
                  strerror(-result));
    if (!ring->stopping && write(ring->ended_fd, &one, sizeof(one)) < 0)
        log_error("cannot report the end of the session: %s", strerror(errno));
    sem_post(&ring->stage);
    return NULL;
}

void ring_init_answered(struct ring *ring)
{
    sem_post(&ring->stage);
}

static void *ask(void *path)
{
    struct statvfs unused;

    if (statvfs(path, &unused) < 0)
        log_warning("%s: %s", (const char *)path, strerror(errno));
    return NULL;
}

/*
 * libfuse does not tell whether it has io_uring. The way that a request comes does, if it comes:
 * with queues that the kernel does not take, it would wait for ever.
 */
static errint_t probe(struct ring *ring, char *message, size_t message_bytes)
{
    struct timespec until;
    pthread_t thread;
    int result = pthread_create(&thread, NULL, ask, ring->fs->conf->mountpoint);

    if (result != 0) {
        snprintf(message, message_bytes, "cannot start a thread: %s", strerror(result));
        return -result;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PROBE_S;
    if (pthread_timedjoin_np(thread, NULL, &until) == 0)
        return 0;
    snprintf(message, message_bytes,
             "no request came by io_uring within %d s; mount with io_uring=off", PROBE_S);
    /* libfuse 3.18.3 can get stuck in a start of its queues that fails. */
    ring->stuck = !ring_stop(ring, monotonic_ns() + STUCK_NS);
    log_error("%s", message);
    fuse_session_unmount(ring->fuse); /* ends the request */
    pthread_join(thread, NULL);
    return -ETIMEDOUT;
}

errint_t ring_start(struct ring *ring, char *message, size_t message_bytes)
{
    const struct fuse_conn_info *connection = &ring->fs->connection;
    bool answered = connection->proto_major != 0;
    errint_t error;
    int result = pthread_create(&ring->thread, NULL, ring_run, ring);

    if (result != 0) {
        snprintf(message, message_bytes, "cannot start a thread: %s", strerror(result));
        return -result;
    }
    ring->running = true;
    while (!answered && sem_wait(&ring->stage) < 0)
        ;
    if (connection->proto_major == 0) {
        snprintf(message, message_bytes,
                 "it was unmounted before it was ready, or kernel and libfuse %s did not agree on "
                 "a protocol; see the log",
                 fuse_pkgversion());
        return -ENODEV;
    }
    error = probe(ring, message, message_bytes);
    if (error < 0)
        return error;
    if (ring->serves)
        return 0;
    snprintf(message, message_bytes,
             "io_uring=on is not possible: libfuse %s did not start it, as if it was built without "
             "liburing; or mount with io_uring=auto",
             fuse_pkgversion());
    return ring_stop(ring, UINT64_MAX) ? -ENOSYS : -EIO;
}

bool ring_stop(struct ring *ring, uint64_t deadline_ns)
{
    ring->stopping = true;
    if (ring->stuck)
        return false;
    if (ring->running)
        fuse_session_exit(ring->fuse);
    while (ring->running) {
        struct timespec until;

        pthread_kill(ring->thread, SIGUSR1);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += KICK_NS;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        if (pthread_timedjoin_np(ring->thread, NULL, &until) == 0)
            ring->running = false;
        else if (monotonic_ns() > deadline_ns)
            return false;
    }
    return true;
}

uint64_t ring_received(struct ring *ring)
{
    uint64_t received = 0;

    pthread_mutex_lock(&ring->mutex);
    for (const struct worker *worker = ring->workers; worker; worker = worker->next_adopted)
        received += atomic_load_explicit(&worker->requests, memory_order_relaxed);
    pthread_mutex_unlock(&ring->mutex);
    return received;
}

void ring_finish(struct ring *ring)
{
    struct worker *worker;

    while ((worker = ring->workers)) {
        ring->workers = worker->next_adopted;
        ring_payloads_finish(worker);
        free(worker);
    }
    pthread_mutex_destroy(&ring->mutex);
    sem_destroy(&ring->stage);
}

void ring_adopt_thread(struct ring *ring, fuse_req_t req)
{
    struct worker *worker = calloc(1, sizeof(*worker));
    errint_t error;

    if (!worker)
        return; /* the next request tries again */
    /* libfuse 3.18 cancels its threads to end them: not in a handler, where locks are held. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
#ifdef HAVE_FUSE_IO_URING
    if (fuse_req_is_uring(req))
        atomic_store(&ring->serves, true);
#else
    (void)req;
#endif
    worker->ring = ring;
    worker->device = ring->fs->device;
    error = device_attach_thread(worker->device);
    if (error < 0)
        log_error("a thread cannot use the device: %s", strerror(-error));
    pthread_mutex_lock(&ring->mutex);
    worker->next_adopted = ring->workers;
    ring->workers = worker;
    pthread_mutex_unlock(&ring->mutex);
    worker_set_current(worker);
}
