/*
 * The configuration of the daemon: the command line, the INI file and the table of options that
 * both are read by. A value comes from -o, else from the INI file, else from the table; within
 * each, the later wins. Functions that can fail return 0 or a negative errno and put one line,
 * without a newline, into the caller's message buffer. Nothing here prints, except where a FILE is
 * given. Not thread safe while parsing (getopt); a parsed struct is plain data.
 */
#ifndef RESIDENTFS_CONF_CONF_H
#define RESIDENTFS_CONF_CONF_H

#include <stdio.h>

#include "conf/option.h"
#include "core/budget_setting.h"
#include "core/device_selector.h"
#include "core/log.h"

/* Read when no --config is given; it need not exist. */
#define CONF_DEFAULT_PATH "/etc/residentfs.conf"

/* Enough for every message; longer ones are cut. */
#define CONF_MESSAGE_BYTES 1024

/* Exit codes of the daemon, as --help lists them. */
enum conf_exit {
    CONF_EXIT_OK = 0,
    CONF_EXIT_FAILURE = 1,
    CONF_EXIT_USAGE = 2,
    CONF_EXIT_DEVICE_LOST = 69, /* EX_UNAVAILABLE of sysexits.h */
};

enum conf_action {
    CONF_ACTION_MOUNT, /* device and mountpoint are set */
    CONF_ACTION_HELP,
    CONF_ACTION_VERSION,
    CONF_ACTION_LIST_DEVICES, /* device and mountpoint are set if they were given */
    CONF_ACTION_CHECK_CONFIG, /* likewise; the options have been checked already */
};

enum conf_switch { CONF_SWITCH_AUTO, CONF_SWITCH_ON, CONF_SWITCH_OFF };
enum conf_cache { CONF_CACHE_OFF, CONF_CACHE_ON };
enum conf_atime { CONF_ATIME_RELATIME, CONF_ATIME_NONE, CONF_ATIME_STRICT };
enum conf_log_to { CONF_LOG_AUTO, CONF_LOG_STDERR, CONF_LOG_SYSLOG, CONF_LOG_JOURNAL };
enum conf_device_lost { CONF_DEVICE_LOST_STAY, CONF_DEVICE_LOST_EXIT };
enum conf_suspend {
    CONF_SUSPEND_WARN,
    CONF_SUSPEND_REFUSE,
    CONF_SUSPEND_SAVE,
    CONF_SUSPEND_IGNORE
};

struct conf {
    /* The command line. */
    enum conf_action action;
    bool has_device;
    struct device_selector device; /* valid when has_device */
    char *mountpoint;              /* as given; NULL when none was */
    bool foreground;               /* -f, or -d */
    bool debug;                    /* -d; log_level is debug then */
    char *config_path;             /* the INI file that was read; NULL when none was */
    char **mount_options; /* what mount(8) asked of the kernel, in words that libfuse takes; */
    size_t mount_options_count; /* contradictions resolved: the later of "ro,rw" is here, once */
    enum conf_atime atime;      /* when reading changes atime: FUSE leaves that to the daemon, */
    bool no_directory_atime;    /* and does not tell it how it is mounted */

    /* [budget] */
    struct budget_setting budget;

    /* [transport] */
    uint32_t workers;         /* 0: as many as the daemon thinks best */
    uint32_t busy_poll_us;    /* see fs/session.c; 0: off */
    uint64_t max_write_bytes; /* largest request; a multiple of 4096 */
    uint32_t max_background;
    enum conf_switch io_uring;
    enum conf_cache cache;
    double entry_timeout_s, attr_timeout_s;

    /* [transfer] */
    uint64_t staging_bytes; /* at least max_write_bytes */
    uint32_t streams;       /* for uploads, per device */
    uint32_t flush_interval_ms;
    uint64_t direct_threshold_bytes;
    uint64_t readahead_bytes; /* 0: off */
    enum conf_scrub { CONF_SCRUB_OFF, CONF_SCRUB_ON } scrub;

    /* [mount] */
    enum conf_switch allow_other; /* see conf_allows_other */
    uint32_t uid, gid;            /* of the root directory */
    uint32_t root_mode;           /* permission bits of the root directory */
    uint32_t max_files;           /* 0: by host memory; see inode_table_create */
    enum conf_log_to log;         /* see conf_log_sink */
    enum log_level log_level;
    enum conf_device_lost on_device_lost;
    enum conf_suspend on_suspend; /* read by the sleep hook, out of .resident/config */

    /* [share] */
    enum conf_switch share; /* the socket for CUDA programs; auto: go on without if it cannot be */

    /* [emulated] */
    uint64_t emulated_memory_bytes;
};

/*
 * Reads the command line, then the INI file, then -o. ARGV's elements may be put in another order.
 * Called as mount.SOMETHING, the command line is that of a mount helper, see mount(8).
 * --help and --version look at nothing else, so they work with a broken configuration.
 * On failure CONF holds nothing; on success the caller calls conf_finish.
 */
errint_t conf_parse(int argc, char **argv, struct conf *conf, char *message, size_t message_bytes);

/* Frees what CONF holds and clears it. Takes a cleared struct too. */
void conf_finish(struct conf *conf);

/* `auto` resolved: on when root mounts. */
bool conf_allows_other(const struct conf *conf);

/* `auto` resolved: in the foreground the journal if stderr leads there, else stderr; else syslog.
 */
enum log_sink conf_log_sink(const struct conf *conf);

/*
 * The effective options as an INI file: fed back with --config it gives the same values. Owned by
 * the caller; NULL without memory. *LENGTH leaves out the NUL and may be NULL.
 */
char *conf_dump_ini(const struct conf *conf, size_t *length);

/* Usage, forms of DEVICE, every option with its default and range, exit codes. */
void conf_print_help(FILE *out);

/* The table, in the order of help: the options of a section stand together. */
const struct conf_option *conf_options(size_t *count);

/* TEXT is a size, as in "64MiB"; -EINVAL or -ERANGE when not. */
errint_t conf_parse_size(const char *text, uint64_t *bytes);

/* TEXT is a budget; -EINVAL when not. */
errint_t conf_parse_budget(const char *text, struct budget_setting *setting);

#endif
