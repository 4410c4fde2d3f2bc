#include "fs/serve.h"

#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>

#include "core/log.h"
#include "fs/mount.h"
#include "fs/privileges.h"
#include "fs/session.h"
#include "fs/share.h"
#include "fs/version.h"

#define TICK_MS 50
/* An idle device is asked for signs of life this often, where its loss ends the daemon. */
#define DEVICE_CHECK_NS UINT64_C(2000000000)

/* So many files fewer, and less than half: worth looking for memory to give back. */
#define FILES_GONE 4096

/* What has been made so far; the rest is NULL. */
struct service {
    struct residentfs fs;
    struct fuse_session *fuse;
    int signal_fd;
    uint64_t most_files; /* since host memory was given back last */
};

/* In all threads, those of the driver too: so before any of them. */
static errint_t catch_signals(struct service *service)
{
    sigset_t signals;

    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    service->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
    if (service->signal_fd < 0)
        return -errno;
    sigaddset(&signals, SIGPIPE);
    return -pthread_sigmask(SIG_BLOCK, &signals, NULL);
}

static struct device_options device_options_of(const struct conf *conf)
{
    return (struct device_options){
        .budget = conf->budget,
        .staging_bytes = conf->staging_bytes,
        .upload_streams = conf->streams,
        .flush_interval_ms = conf->flush_interval_ms,
        .direct_threshold_bytes = conf->direct_threshold_bytes,
        /* A request must fit. */
        .readahead_bytes =
            conf->readahead_bytes > 0 ? MAX(conf->readahead_bytes, conf->max_write_bytes) : 0,
        .scrub = conf->scrub == CONF_SCRUB_ON,
    };
}

static void log_start(const struct service *service)
{
    const struct residentfs *fs = &service->fs;
    const struct device_identity *device = device_identity(fs->device);
    struct budget_report budget;
    struct session_report transport;
    char setting[BUDGET_SETTING_TEXT_BYTES];

    device_get_budget_report(fs->device, &budget);
    session_get_report(fs->session, &transport);
    log_info("residentfs %s: %s:%d, %s, %s, %s, driver %d.%d, mounted on %s", RESIDENTFS_VERSION,
             device->driver, device->index, device->name, device->uuid, device->pci_bus_id,
             device->driver_version / 1000, device->driver_version % 1000 / 10,
             fs->conf->mountpoint);
    log_info("budget: %llu of %llu bytes (setting %s)", (unsigned long long)budget.limit_bytes,
             (unsigned long long)budget.total_bytes,
             budget_setting_format(&budget.setting, setting));
    log_info("transport: libfuse %s, protocol %u.%u, requests of up to %llu bytes, %s",
             fuse_pkgversion(), fs->connection.proto_major, fs->connection.proto_minor,
             (unsigned long long)fs->max_write_bytes,
             fs->parallel_writes ? "parallel direct writes" : "no parallel direct writes");
    if (transport.io_uring)
        log_info("transport: io_uring, %u queues", transport.workers);
    else
        log_info("transport: %u workers with %u receive buffers, %s", transport.workers,
                 transport.receive_buffers, transport.page_locked ? "page-locked" : "pageable");
    if (fs->ring_reason[0])
        log_info("transport: io_uring would make small requests faster: %s", fs->ring_reason);
    if (strcmp(device->driver, "emulated") == 0)
        log_warning("the device is emulated: files are in host memory, not in VRAM");
}

static errint_t start(struct service *service, const struct conf *conf, struct startup *startup,
                      char *message, size_t message_bytes)
{
    struct residentfs *fs = &service->fs;
    struct device_options options = device_options_of(conf);
    struct fuse_lowlevel_ops ops = {0};
    errint_t error = catch_signals(service);

    if (error < 0) {
        snprintf(message, message_bytes, "cannot catch signals: %s", strerror(-error));
        return error;
    }
    error = session_choose_transport(fs, message, message_bytes);
    if (error < 0)
        return error;
    startup_step(startup, "opening %s", conf->device.text);
    error = device_open(&conf->device, &options, &fs->device, message, message_bytes);
    if (error < 0)
        return error;
    error = namespace_init(fs);
    if (error < 0) {
        snprintf(message, message_bytes, "cannot make the root directory: %s", strerror(-error));
        return error;
    }
    session_operations(&ops);
    namespace_operations(&ops);
    data_operations(&ops);
    startup_step(startup, "mounting on %.100s", conf->mountpoint);
    service->fuse = mount_create(fs, &ops, message, message_bytes);
    if (!service->fuse)
        return -EIO;
    fs->session = session_create(fs, service->fuse);
    if (!fs->session) {
        snprintf(message, message_bytes, "cannot start serving: %s", strerror(errno));
        return -ENOMEM;
    }
    if (conf->share != CONF_SWITCH_OFF) {
        fs->share = share_create(fs);
        if (!fs->share) {
            snprintf(message, message_bytes, "cannot make the share socket: %s", strerror(errno));
            return -ENOMEM;
        }
    }
    startup_step(startup, "page-locking memory for requests");
    error = session_start(fs->session, message, message_bytes);
    if (error < 0 || !fs->share)
        return error;
    error = share_start(fs->share, message, message_bytes);
    if (error < 0 && conf->share == CONF_SWITCH_AUTO) {
        log_warning("CUDA programs cannot map files: %s", message);
        error = 0;
    }
    return error;
}

/*
 * The C library keeps what was freed, for each thread's own use: after many files were deleted,
 * that would be host memory for nothing.
 */
static void give_back_host_memory(struct service *service)
{
    uint64_t files = inode_table_count(service->fs.inodes);

    if (files > service->most_files)
        service->most_files = files;
    if (service->most_files < files + FILES_GONE || service->most_files / 2 < files)
        return;
    malloc_trim(0);
    service->most_files = files;
}

static void keep_house(struct service *service, struct startup *startup)
{
    uint64_t patience_ns = startup_patience_ns(startup);

    session_tick(service->fs.session);
    log_tick();
    virtual_tick(&service->fs);
    give_back_host_memory(service);
    /* A daemon that answers nobody must not look alive. */
    if (patience_ns > 0 && session_held_up_ns(service->fs.session) < patience_ns)
        startup_alive(startup);
}

/* A lost device is noticed by who uses it; an idle one by asking. */
static bool must_end(const struct service *service, uint64_t *checked_ns)
{
    struct device *device = service->fs.device;
    struct budget_report budget;

    if (service->fs.conf->on_device_lost != CONF_DEVICE_LOST_EXIT)
        return false;
    if (monotonic_ns() - *checked_ns >= DEVICE_CHECK_NS) {
        device_get_budget_report(device, &budget);
        *checked_ns = monotonic_ns();
    }
    return device_is_lost(device);
}

/* Returns when it is time to end. */
static enum conf_exit wait_for_end(struct service *service, struct startup *startup)
{
    struct pollfd fds[] = {
        {.fd = service->signal_fd, .events = POLLIN},
        {.fd = session_ended_fd(service->fs.session), .events = POLLIN},
    };
    struct signalfd_siginfo caught;
    uint64_t checked_ns = monotonic_ns();

    while (poll(fds, ARRAY_SIZE(fds), TICK_MS) <= 0) {
        keep_house(service, startup);
        if (must_end(service, &checked_ns)) {
            log_error("ending, for the device is lost and on_device_lost=exit");
            startup_ending(startup, "The device is lost");
            return CONF_EXIT_DEVICE_LOST;
        }
    }
    startup_ending(startup, "Ending");
    if (fds[1].revents)
        log_info("unmounted");
    else if (read(service->signal_fd, &caught, sizeof(caught)) == (ssize_t)sizeof(caught))
        log_info("ending: %s from process %u", strsignal((int)caught.ssi_signo), caught.ssi_pid);
    return CONF_EXIT_OK;
}

/* In the reverse order of start, whatever of it was reached. */
static void stop(struct service *service, enum conf_exit result)
{
    struct residentfs *fs = &service->fs;

    bool sharing_ended = share_stop(fs->share);
    bool session_ended = !fs->session || session_stop(fs->session);
    if (!sharing_ended || !session_ended) {
        /* Freeing what it uses would be worse than leaving that to the kernel. */
        if (!session_ended)
            log_error("a request has been stuck for a minute, most likely in the device's driver; "
                      "unmounting and ending without it");
        else
            log_error("share: a program's thread is stuck, most likely in closing a descriptor "
                      "of a file system that does not answer; unmounting and ending without it");
        privileges_before_unmount();
        fuse_session_unmount(service->fuse);
        _exit(result == CONF_EXIT_OK ? CONF_EXIT_FAILURE : result);
    }
    if (fs->device && device_flush(fs->device) < 0)
        log_error("some uploads could not be completed before the end");
    session_destroy(fs->session);
    fs->session = NULL;
    share_destroy(fs->share);
    fs->share = NULL;
    privileges_before_unmount();
    mount_destroy(service->fuse);
    data_finish(fs);
    virtual_finish(fs);
    if (fs->inodes)
        namespace_finish(fs);
    device_close(fs->device);
    if (service->signal_fd >= 0)
        close(service->signal_fd);
}

enum conf_exit serve(const struct conf *conf, struct startup *startup)
{
    struct service service = {
        .fs =
            {
                .conf = conf,
                .rename_mutex = PTHREAD_MUTEX_INITIALIZER,
                .owner_uid = getuid(),
                .owner_gid = getgid(),
                .started = time(NULL),
                .generation = (uint32_t)monotonic_ns(),
                .open_files = {.mutex = PTHREAD_MUTEX_INITIALIZER},
                .open_virtual = {.mutex = PTHREAD_MUTEX_INITIALIZER},
                .open_directories = {.mutex = PTHREAD_MUTEX_INITIALIZER},
            },
        .signal_fd = -1,
    };
    char message[CONF_MESSAGE_BYTES] = "";
    enum conf_exit result = CONF_EXIT_OK;
    errint_t error = start(&service, conf, startup, message, sizeof(message));

    if (error < 0) {
        stop(&service, CONF_EXIT_FAILURE);
        startup_failed(startup, message);
        return CONF_EXIT_FAILURE;
    }
    log_start(&service);
    privileges_drop();
    if (startup_succeeded(startup))
        result = wait_for_end(&service, startup);
    else
        log_info("ending: whoever started it is gone");
    stop(&service, result);
    log_info("ended");
    return result;
}
