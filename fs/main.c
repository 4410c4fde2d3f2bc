/* The program: what the command line asks for. Serving a mount is in serve.c. */
#include <errno.h>
#include <string.h>
#include <sys/resource.h>

#include "core/log.h"
#include "fs/mount.h"
#include "fs/serve.h"
#include "fs/startup.h"
#include "fs/version.h"

#define EMULATED_VARIABLE "RESIDENTFS_EMULATED"

static int complain(const char *message)
{
    fprintf(stderr, "residentfs: %s\n", message);
    return CONF_EXIT_FAILURE;
}

static int print_version(void)
{
    printf("residentfs %s\nlibfuse %s (built for %d.%d)\nbuild %s\n", RESIDENTFS_VERSION,
           fuse_pkgversion(), FUSE_MAJOR_VERSION, FUSE_MINOR_VERSION, RESIDENTFS_BUILD);
    return CONF_EXIT_OK;
}

/*
 * The emulated driver takes its settings from the environment. Ours come first: the user's own
 * (tests: faults, timing) win.
 */
static errint_t configure_emulated(const struct conf *conf)
{
    const char *own = getenv(EMULATED_VARIABLE);
    unsigned int count = 1;
    cleanup_free char *value = NULL;

    if (conf->has_device && conf->device.driver == DEVICE_DRIVER_EMULATED)
        count = conf->device.count;
    if (asprintf(&value, "memory=%llu;devices=%u%s%s",
                 (unsigned long long)conf->emulated_memory_bytes, count, own && *own ? ";" : "",
                 own ? own : "") < 0)
        return -ENOMEM;
    return setenv(EMULATED_VARIABLE, value, 1) < 0 ? -errno : 0;
}

static int list_devices(const struct conf *conf)
{
    static const char *const drivers[] = {"cuda", "emulated"};
    int result = CONF_EXIT_FAILURE;

    if (configure_emulated(conf) < 0)
        return complain("out of memory");
    for (size_t i = 0; i < ARRAY_SIZE(drivers); i++) {
        char message[CONF_MESSAGE_BYTES] = "";

        if (device_list(drivers[i], stdout, message, sizeof(message)) == 0)
            result = CONF_EXIT_OK;
        else
            fprintf(stderr, "residentfs: %s: %s\n", drivers[i], message);
        fflush(stdout);
    }
    return result;
}

/* One device a mount: a selector of all is that of the first if there is one only. */
static errint_t choose_device(struct device_selector *selector, char *message, size_t message_bytes)
{
    if (selector->select != DEVICE_SELECT_ALL)
        return 0;
    if (selector->driver == DEVICE_DRIVER_EMULATED && selector->count == 1) {
        selector->select = DEVICE_SELECT_INDEX;
        selector->index = 0;
        return 0;
    }
    snprintf(message, message_bytes,
             "%s: several devices in one mount are not supported yet; choose one: %s",
             selector->text,
             selector->driver == DEVICE_DRIVER_EMULATED
                 ? "emulated"
                 : "cuda:0, cuda:1, ... (residentfs --list-devices shows them)");
    return -ENOTSUP;
}

/* As far as the hard limits allow: memory is page-locked, and chunks may be descriptors. */
static void raise_limits(void)
{
    static const int resources[] = {RLIMIT_MEMLOCK, RLIMIT_NOFILE};

    for (size_t i = 0; i < ARRAY_SIZE(resources); i++) {
        struct rlimit limit;

        if (getrlimit(resources[i], &limit) < 0)
            continue;
        if (resources[i] == RLIMIT_MEMLOCK && geteuid() == 0)
            limit.rlim_max = RLIM_INFINITY;
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(resources[i], &limit) < 0 && resources[i] == RLIMIT_MEMLOCK &&
            getrlimit(resources[i], &limit) == 0) {
            limit.rlim_cur = limit.rlim_max;
            setrlimit(resources[i], &limit);
        }
    }
}

static int mount_and_serve(struct conf *conf)
{
    char message[CONF_MESSAGE_BYTES] = "";
    char *resolved = NULL;
    struct startup startup;
    enum log_sink sink = conf_log_sink(conf);
    enum conf_exit result;
    errint_t error;

    if (choose_device(&conf->device, message, sizeof(message)) < 0 ||
        mount_check(conf->mountpoint, &resolved, message, sizeof(message)) < 0)
        return complain(message);
    free(conf->mountpoint);
    conf->mountpoint = resolved;
    if (conf->device.driver == DEVICE_DRIVER_EMULATED && configure_emulated(conf) < 0)
        return complain("out of memory");
    raise_limits();

    error = startup_begin(&startup, conf->foreground, sink != LOG_SINK_SYSLOG);
    if (error < 0) {
        snprintf(message, sizeof(message), "cannot go into the background: %s", strerror(-error));
        return complain(message);
    }
    log_set_level(conf->log_level);
    log_set_sink(sink);
    result = serve(conf, &startup);
    startup_finish(&startup);
    return result;
}

int main(int argc, char **argv)
{
    struct conf conf;
    char message[CONF_MESSAGE_BYTES] = "";
    int result = CONF_EXIT_OK;

    if (conf_parse(argc, argv, &conf, message, sizeof(message)) < 0) {
        complain(message);
        return CONF_EXIT_USAGE;
    }
    switch (conf.action) {
    case CONF_ACTION_HELP:
        conf_print_help(stdout);
        break;
    case CONF_ACTION_VERSION:
        result = print_version();
        break;
    case CONF_ACTION_LIST_DEVICES:
        result = list_devices(&conf);
        break;
    case CONF_ACTION_CHECK_CONFIG:
        printf("residentfs: the configuration is right (%s%s)\n",
               conf.config_path ? "" : "no " CONF_DEFAULT_PATH ": ",
               conf.config_path ? conf.config_path : "all defaults");
        break;
    case CONF_ACTION_MOUNT:
        result = mount_and_serve(&conf);
        break;
    }
    conf_finish(&conf);
    if (fflush(stdout) != 0)
        result = complain("writing to standard output failed");
    return result;
}
