#include "fs/session.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/sysinfo.h>

#include "core/log.h"
#include "fs/channel.h"
#include "fs/mount.h"
#include "fs/ring.h"

#define AUTO_WORKERS_MIN 2
#define AUTO_WORKERS_MAX 8
#define INIT_TIMEOUT_MS  10000
#define STOP_TIMEOUT_MS  60000
#define STOP_KICK_NS     10000000
#define SPARE_WAITS      8

struct session {
    struct residentfs *fs;
    struct fuse_session *fuse;
    int ended_fd; /* eventfd: the session has ended by itself */
    _Atomic bool stopping;

    /*
     * Only as many workers as the load needs are awake, so that a single stream stays in one
     * worker's cache: the kernel wakes idle readers in turn. Asleep: last in, first out.
     */
    _Atomic int idle;             /* waiting for a request; those who receive one are not */
    pthread_mutex_t asleep_mutex; /* covers what follows; a leaf */
    struct worker *asleep;

    /* The main thread's: how many requests had been received, and since when it is so many. */
    uint64_t received;
    uint64_t received_since_ns;

    /* Constant while workers run. */
    struct worker *workers;
    unsigned int workers_count;
    struct session_report report;

    struct ring ring; /* serves instead of workers: report.io_uring */
};

/* A worker that waits for a request is brought back by a signal that does nothing else. */
static void on_kick(int signal_number)
{
    (void)signal_number;
}

struct session *session_create(struct residentfs *fs, struct fuse_session *fuse)
{
    struct session *session = calloc(1, sizeof(*session));
    struct sigaction action = {.sa_handler = on_kick}; /* no SA_RESTART */

    if (!session)
        return NULL;
    session->fs = fs;
    session->fuse = fuse;
    session->received_since_ns = monotonic_ns();
    pthread_mutex_init(&session->asleep_mutex, NULL);
    session->ended_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (session->ended_fd < 0) {
        free(session);
        return NULL;
    }
    sigaction(SIGUSR1, &action, NULL);
    ring_init(&session->ring, fs, fuse, session->ended_fd);
    return session;
}

static void close_channels(struct session *session)
{
    for (unsigned int i = 0; i < session->workers_count; i++)
        if (session->workers[i].channel >= 0 &&
            session->workers[i].channel != fuse_session_fd(session->fuse))
            close(session->workers[i].channel);
}

void session_destroy(struct session *session)
{
    if (!session)
        return;
    close_channels(session);
    for (unsigned int i = 0; i < session->workers_count; i++)
        worker_finish(&session->workers[i]);
    free(session->workers);
    ring_finish(&session->ring);
    close(session->ended_fd);
    free(session);
}

int session_ended_fd(const struct session *session)
{
    return session->ended_fd;
}

void session_get_report(const struct session *session, struct session_report *report)
{
    *report = session->report;
    if (report->io_uring) {
        report->receive_buffers = session->ring.payloads;
        report->buffer_bytes = session->ring.payload_bytes;
        report->page_locked = !session->ring.pageable;
    }
}

struct residentfs *session_request(fuse_req_t req)
{
    struct residentfs *fs = fuse_req_userdata(req);

    struct worker *worker = worker_current();

    if (!worker && fs->session)
        ring_adopt_thread(&fs->session->ring, req);
    else if (worker && worker->ring)
        atomic_fetch_add_explicit(&worker->requests, 1, memory_order_relaxed);
    return fs;
}

errint_t session_choose_transport(struct residentfs *fs, char *message, size_t message_bytes)
{
    return ring_choose(fs, message, message_bytes);
}

/* -- INIT -------------------------------------------------------------------------------------- */

void session_init_answered(struct session *session)
{
    if (session->fs->ring_depth > 0)
        ring_init_answered(&session->ring);
    else
        fuse_session_exit(session->fuse); /* only libfuse's loop, which is left by it */
}

static errint_t wait_for_init(struct session *session, char *message, size_t message_bytes)
{
    struct pollfd poll_fd = {.fd = fuse_session_fd(session->fuse), .events = POLLIN};

    if (session->fs->connection.proto_major != 0 || poll(&poll_fd, 1, INIT_TIMEOUT_MS) != 0)
        return 0;
    snprintf(message, message_bytes, "the kernel sent no FUSE INIT within %d s",
             INIT_TIMEOUT_MS / 1000);
    return -ETIMEDOUT;
}

/*
 * In libfuse's own loop, which is left as soon as INIT is answered: only there does libfuse allow
 * requests larger than what it was made with, and what comes out decides how large the workers'
 * buffers are. A libfuse that answers INIT while it mounts leaves nothing to do.
 */
static errint_t answer_init(struct session *session, char *message, size_t message_bytes)
{
    const struct fuse_conn_info *connection = &session->fs->connection;
    int result;

    if (connection->proto_major != 0)
        return 0;
    result = fuse_session_loop(session->fuse);
    if (result == 0 && connection->proto_major != 0) {
        fuse_session_reset(session->fuse); /* as newer libfuse does not by itself */
        return 0;
    }
    if (connection->proto_major == 0)
        snprintf(message, message_bytes, "it was unmounted before it was ready");
    else
        snprintf(message, message_bytes,
                 "kernel and libfuse %s did not agree on a protocol: %s; see the log",
                 fuse_pkgversion(), strerror(-result));
    return result < 0 ? result : -ENODEV;
}

/* -- workers ----------------------------------------------------------------------------------- */

static void session_end(struct session *session)
{
    uint64_t one = 1;

    if (write(session->ended_fd, &one, sizeof(one)) < 0)
        log_error("cannot report the end of the session: %s", strerror(errno));
}

/* The length of a request; 0: there is none now; negative: the session has ended. */
static ssize_t receive_request(const struct worker *worker, void *bytes, size_t capacity)
{
    ssize_t length = read(worker->channel, bytes, capacity);

    if (length > 0)
        return length;
    if (length == 0)
        return -ENODEV;
    switch (errno) {
    case EINTR:
    case EAGAIN:
    case ENOENT: /* the request was interrupted before it was read */
        return 0;
    case ENODEV: /* unmounted */
        return -ENODEV;
    default:
        length = -errno;
        log_error("reading requests from the kernel failed: %s; the file system ends",
                  strerror(errno));
        return length;
    }
}

static void wake_worker(struct session *session)
{
    struct worker *worker;

    pthread_mutex_lock(&session->asleep_mutex);
    worker = session->asleep;
    if (worker)
        session->asleep = worker->next_asleep;
    pthread_mutex_unlock(&session->asleep_mutex);
    if (worker)
        sem_post(&worker->wake);
}

static void sleep_until_woken(struct session *session, struct worker *worker)
{
    pthread_mutex_lock(&session->asleep_mutex);
    /* Who stopped listening meanwhile found nobody here to wake. */
    if (session->idle == 0) {
        pthread_mutex_unlock(&session->asleep_mutex);
        worker->spare_waits = 0;
        return;
    }
    worker->next_asleep = session->asleep;
    session->asleep = worker;
    pthread_mutex_unlock(&session->asleep_mutex);
    while (sem_wait(&worker->wake) < 0 && !session->stopping)
        ;
    worker->spare_waits = 0;
}

void worker_takes_long(struct worker *worker)
{
    if (worker && worker->session && worker->session->idle == 0)
        wake_worker(worker->session);
}

static bool has_requests(struct session *session)
{
    struct pollfd queue = {.fd = fuse_session_fd(session->fuse), .events = POLLIN};

    return poll(&queue, 1, 0) != 0;
}

void session_forget_attributes(struct session *session, uint64_t ino)
{
    /* An offset below 0: no pages, so nothing that the request could hold locked. */
    fuse_lowlevel_notify_inval_inode(session->fuse, ino, -1, 0);
}

void session_forget_pages(struct session *session, uint64_t ino)
{
    fuse_lowlevel_notify_inval_inode(session->fuse, ino, 0, 0);
}

void session_tick(struct session *session)
{
    bool waiting = has_requests(session);
    uint64_t received = 0;

    if (session->idle == 0 && waiting)
        wake_worker(session);
    for (unsigned int i = 0; i < session->workers_count; i++)
        received += atomic_load_explicit(&session->workers[i].requests, memory_order_relaxed);
    received += ring_received(&session->ring);
    if (!waiting || received != session->received) {
        session->received = received;
        session->received_since_ns = monotonic_ns();
    }
}

uint64_t session_held_up_ns(const struct session *session)
{
    return monotonic_ns() - session->received_since_ns;
}

/*
 * Waits for a request that may be the worker's own. If others wait too, time and again, it is not
 * needed, and sleeps.
 */
static void wait_for_request(struct session *session, struct worker *worker)
{
    struct pollfd queue = {.fd = worker->channel, .events = POLLIN};

    worker->spare_waits = session->idle == 0 ? 0 : worker->spare_waits + 1;
    if (worker->spare_waits >= SPARE_WAITS) {
        sleep_until_woken(session, worker);
        worker->comes_soon = false;
        return;
    }
    session->idle++;
    poll(&queue, 1, -1);
    session->idle--;
}

/*
 * The length of the next request; 0: none of its own yet; negative: the session has ended. *WAITED:
 * it was not there already. To wake a processor that waits takes longer than many a request: where
 * the last one came soon, and nobody else waits, the worker asks for a while before it waits.
 */
static ssize_t next_request(struct session *session, struct worker *worker, void *bytes,
                            size_t capacity, bool *waited)
{
    uint64_t limit_ns = (uint64_t)session->fs->conf->busy_poll_us * 1000, began_ns;
    ssize_t length = receive_request(worker, bytes, capacity);

    if (length != 0)
        return length;
    *waited = true;
    began_ns = monotonic_ns();
    while (length == 0 && worker->comes_soon && session->idle == 0 && !session->stopping &&
           monotonic_ns() - began_ns < limit_ns) {
        processor_pause();
        length = receive_request(worker, bytes, capacity);
    }
    if (length == 0) {
        wait_for_request(session, worker);
        worker->comes_soon = monotonic_ns() - began_ns < limit_ns;
    }
    return length;
}

static void *worker_run(void *data)
{
    struct worker *worker = data;
    struct session *session = worker->session;
    bool waited = true;
    errint_t error = device_attach_thread(worker->device);

    if (error < 0) {
        log_error("a worker cannot use the device: %s", strerror(-error));
        if (!device_is_lost(worker->device)) {
            session_end(session);
            return NULL;
        }
        /* Names go on without it. */
    }
    worker_set_current(worker);
    while (!session->stopping) {
        struct receive_buffer *buffer = worker_next_receive_buffer(worker);
        struct fuse_buf request = {0};
        size_t capacity;
        ssize_t length;

        if (!buffer) {
            nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
            continue;
        }
        request.mem = receive_buffer_bytes(buffer, &capacity);
        length = next_request(session, worker, request.mem, capacity, &waited);
        if (length == 0)
            continue;
        if (length < 0) {
            session_end(session);
            break;
        }
        /* It had been there already: while this one is at it, another one is to listen. */
        if (!waited) {
            worker->spare_waits = 0;
            if (session->idle == 0)
                wake_worker(session);
        }
        waited = false;
        worker_received(worker, buffer);
        request.size = (size_t)length;
        /* Nobody else writes it. */
        atomic_store_explicit(&worker->requests, worker->requests + 1, memory_order_relaxed);
        fuse_session_process_buf(session->fuse, &request);
        if (fuse_session_exited(session->fuse)) {
            session_end(session);
            break;
        }
    }
    worker_set_current(NULL);
    return NULL;
}

/* As asked for; of itself as many as processors, and not more than staging has room for. */
static unsigned int choose_workers(const struct residentfs *fs)
{
    uint64_t bytes_each = WORKER_RECEIVE_BUFFERS * worker_receive_length(fs->max_write_bytes) +
                          worker_reply_length(fs->max_write_bytes);
    uint64_t fit = fs->conf->staging_bytes / bytes_each;
    unsigned int wanted;

    if (fs->conf->workers > 0)
        return fs->conf->workers;
    wanted = MIN(MAX((unsigned int)get_nprocs(), AUTO_WORKERS_MIN), AUTO_WORKERS_MAX);
    return MAX(MIN(wanted, (unsigned int)MIN(fit, AUTO_WORKERS_MAX)), AUTO_WORKERS_MIN);
}

/* A channel of its own for each worker, if libfuse can. One that gets none reads the session's. */
static void open_channels(struct session *session)
{
    int shared = fuse_session_fd(session->fuse);

    fcntl(shared, F_SETFL, fcntl(shared, F_GETFL) | O_NONBLOCK);
    session->report.channels = channels_begin(session->fuse);
    for (unsigned int i = 0; i < session->workers_count; i++) {
        int fd = session->report.channels ? channel_open(session->fuse) : -ENOTSUP;

        if (fd < 0 && session->report.channels) {
            log_info("only %u of %u workers have a FUSE descriptor of their own: %s", i,
                     session->workers_count, strerror(-fd));
            session->report.channels = false;
        }
        session->workers[i].channel = fd >= 0 ? fd : shared;
    }
}

static errint_t init_workers(struct session *session)
{
    struct residentfs *fs = session->fs;
    struct session_report *report = &session->report;
    unsigned int wanted = choose_workers(fs);
    errint_t error = 0;

    session->workers = calloc(wanted, sizeof(*session->workers));
    if (!session->workers)
        return -ENOMEM;
    report->page_locked = true;
    while (session->workers_count < wanted) {
        struct worker *worker = &session->workers[session->workers_count];

        error = worker_init(worker, session, fs->device, fs->max_write_bytes);
        if (error < 0)
            break;
        session->workers_count++;
        report->receive_buffers += worker->receive_count;
        report->buffer_bytes += worker->reply.length;
        report->page_locked &= worker->reply.page_locked;
        for (unsigned int i = 0; i < worker->receive_count; i++) {
            report->buffer_bytes += worker->receive[i].memory.length;
            report->page_locked &= worker->receive[i].memory.page_locked;
        }
        if (worker->receive_count < WORKER_RECEIVE_BUFFERS)
            break;
    }
    report->workers = session->workers_count;
    if (session->workers_count == 0)
        return error;
    if (report->receive_buffers < wanted * WORKER_RECEIVE_BUFFERS)
        log_warning("host memory for requests is short: %u workers with %u receive buffers instead "
                    "of %u with %u; free some memory, or lower max_write= or workers=",
                    report->workers, report->receive_buffers, wanted,
                    wanted * WORKER_RECEIVE_BUFFERS);
    open_channels(session);
    return 0;
}

static errint_t start_workers(struct session *session, char *message, size_t message_bytes)
{
    errint_t error = init_workers(session);

    if (error < 0) {
        snprintf(message, message_bytes,
                 "no host memory for receive buffers of %llu bytes: %s; free some memory, or lower "
                 "max_write=",
                 (unsigned long long)session->fs->max_write_bytes, strerror(-error));
        return error;
    }
    for (unsigned int i = 0; i < session->workers_count; i++) {
        struct worker *worker = &session->workers[i];
        /* All but the first are not needed yet. */
        worker->spare_waits = i == 0 ? 0 : SPARE_WAITS;
        int result = pthread_create(&worker->thread, NULL, worker_run, worker);

        if (result != 0 && i == 0) {
            snprintf(message, message_bytes, "cannot start a thread: %s", strerror(result));
            return -result;
        }
        if (result != 0) {
            log_warning("only %u of %u workers: cannot start a thread: %s", i,
                        session->workers_count, strerror(result));
            break;
        }
        worker->running = true;
    }
    return 0;
}

errint_t session_start(struct session *session, char *message, size_t message_bytes)
{
    errint_t error = wait_for_init(session, message, message_bytes);

    if (error < 0)
        return error;
    if (session->fs->ring_depth > 0) {
        session->report.io_uring = true;
        session->report.workers = (unsigned int)get_nprocs_conf();
        return ring_start(&session->ring, message, message_bytes);
    }
    error = answer_init(session, message, message_bytes);
    if (error < 0)
        return error;
    return start_workers(session, message, message_bytes);
}

/* False: it is still busy at the deadline. */
static bool stop_worker(struct worker *worker, uint64_t deadline_ns)
{
    while (worker->running) {
        struct timespec until;

        pthread_kill(worker->thread, SIGUSR1);
        sem_post(&worker->wake);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += STOP_KICK_NS;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        if (pthread_timedjoin_np(worker->thread, NULL, &until) == 0)
            worker->running = false;
        else if (monotonic_ns() > deadline_ns)
            return false;
    }
    return true;
}

bool session_stop(struct session *session)
{
    uint64_t deadline_ns = monotonic_ns() + (uint64_t)STOP_TIMEOUT_MS * 1000000;
    bool stopped;

    session->stopping = true;
    stopped = ring_stop(&session->ring, deadline_ns);
    for (unsigned int i = 0; i < session->workers_count; i++)
        stopped &= stop_worker(&session->workers[i], deadline_ns);
    return stopped;
}
