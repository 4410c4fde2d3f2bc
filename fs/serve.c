#include "fs/serve.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>

#include "core/log.h"
#include "fs/mount.h"
#include "fs/session.h"
#include "fs/share.h"
#include "fs/version.h"

#define TICK_MS 50

/* What has been made so far; the rest is NULL. */
struct service {
    struct residentfs fs;
    struct fuse_session *fuse;
    int signal_fd;
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
    log_info("transport: libfuse %s, protocol %u.%u, %u workers with %u receive buffers, %s, "
             "requests of up to %llu bytes, %s",
             fuse_pkgversion(), fs->connection.proto_major, fs->connection.proto_minor,
             transport.workers, transport.receive_buffers,
             transport.page_locked ? "page-locked" : "pageable",
             (unsigned long long)fs->max_write_bytes,
             fs->parallel_writes ? "parallel direct writes" : "no parallel direct writes");
    if (strcmp(device->driver, "emulated") == 0)
        log_warning("the device is emulated: files are in host memory, not in VRAM");
}

static errint_t start(struct service *service, const struct conf *conf, char *message,
                      size_t message_bytes)
{
    struct residentfs *fs = &service->fs;
    struct device_options options = device_options_of(conf);
    struct fuse_lowlevel_ops ops = {0};
    errint_t error = catch_signals(service);

    if (error < 0) {
        snprintf(message, message_bytes, "cannot catch signals: %s", strerror(-error));
        return error;
    }
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

/* Returns when it is time to end. */
static void wait_for_end(const struct service *service)
{
    struct pollfd fds[] = {
        {.fd = service->signal_fd, .events = POLLIN},
        {.fd = session_ended_fd(service->fs.session), .events = POLLIN},
    };
    struct signalfd_siginfo caught;

    while (poll(fds, ARRAY_SIZE(fds), TICK_MS) <= 0)
        session_tick(service->fs.session);
    if (fds[1].revents) {
        log_info("unmounted");
        return;
    }
    if (read(service->signal_fd, &caught, sizeof(caught)) == (ssize_t)sizeof(caught))
        log_info("ending: %s from process %u", strsignal((int)caught.ssi_signo), caught.ssi_pid);
}

/* In the reverse order of start, whatever of it was reached. */
static void stop(struct service *service)
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
        fuse_session_unmount(service->fuse);
        _exit(EXIT_FAILURE);
    }
    if (fs->device && device_flush(fs->device) < 0)
        log_error("some uploads could not be completed before the end");
    session_destroy(fs->session);
    fs->session = NULL;
    share_destroy(fs->share);
    fs->share = NULL;
    mount_destroy(service->fuse);
    data_finish(fs);
    virtual_finish(fs);
    if (fs->inodes)
        namespace_finish(fs);
    device_close(fs->device);
    if (service->signal_fd >= 0)
        close(service->signal_fd);
}

errint_t serve(const struct conf *conf, struct startup *startup)
{
    struct service service = {
        .fs =
            {
                .conf = conf,
                .rename_mutex = PTHREAD_MUTEX_INITIALIZER,
                .owner_uid = getuid(),
                .owner_gid = getgid(),
                .started = time(NULL),
                .open_files = {.mutex = PTHREAD_MUTEX_INITIALIZER},
                .open_virtual = {.mutex = PTHREAD_MUTEX_INITIALIZER},
            },
        .signal_fd = -1,
    };
    char message[CONF_MESSAGE_BYTES] = "";
    errint_t error = start(&service, conf, message, sizeof(message));

    if (error < 0) {
        stop(&service);
        startup_failed(startup, message);
        return error;
    }
    log_start(&service);
    if (startup_succeeded(startup))
        wait_for_end(&service);
    else
        log_info("ending: whoever started it is gone");
    stop(&service);
    log_info("ended");
    return 0;
}
