/*
 * INIT: what is asked of the kernel through libfuse, and what came of it. Works with libfuse 3.14
 * and uses what newer ones add.
 */
#include <string.h>

#include "core/log.h"
#include "fs/session.h"

#define PAGE_BYTES           4096
#define MAX_PAGES_LIMIT_PATH "/proc/sys/fs/fuse/max_pages_limit"
#define DEFAULT_MAX_PAGES    256
#define LARGE_REQUESTS_SINCE FUSE_MAKE_VERSION(3, 17)
/* FUSE 7.x: Linux 6.2 and 6.6. */
#define TMPFILE_PROTOCOL_MINOR 37
#define STATX_PROTOCOL_MINOR   39
#define DIRECT_IO_MMAP_SINCE   FUSE_MAKE_VERSION(3, 17)

static bool is_capable(const struct fuse_conn_info *connection, uint64_t capability)
{
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
    return (connection->capable_ext & capability) != 0;
#else
    return (connection->capable & capability) != 0;
#endif
}

static bool want(struct fuse_conn_info *connection, uint64_t capability)
{
    if (!is_capable(connection, capability))
        return false;
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
    return fuse_set_feature_flag(connection, capability);
#else
    connection->want |= (unsigned int)capability;
    return true;
#endif
}

static void do_not_want(struct fuse_conn_info *connection, uint64_t capability)
{
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
    fuse_unset_feature_flag(connection, capability);
#else
    connection->want &= ~(unsigned int)capability;
#endif
}

/* How many pages the kernel lets a request have; a setting since Linux 6.13. */
static uint64_t kernel_max_pages(void)
{
    FILE *file = fopen(MAX_PAGES_LIMIT_PATH, "re");
    unsigned int pages = 0;

    if (file) {
        if (fscanf(file, "%u", &pages) != 1)
            pages = 0;
        fclose(file);
    }
    return pages > 0 ? pages : DEFAULT_MAX_PAGES;
}

static void negotiate_request_size(struct residentfs *fs, struct fuse_conn_info *connection)
{
    uint64_t asked = fs->conf->max_write_bytes;
    uint64_t kernel = kernel_max_pages() * PAGE_BYTES;
    uint64_t granted = MIN(asked, kernel);

    if (fuse_version() < LARGE_REQUESTS_SINCE)
        granted = MIN(granted, connection->max_write);
    connection->max_write = (unsigned int)granted;
    fs->max_write_bytes = granted;
    if (granted == asked)
        return;
    if (granted == kernel)
        log_warning("max_write is %llu bytes, not the %llu asked for: the kernel allows no more; "
                    "raise " MAX_PAGES_LIMIT_PATH " before mounting",
                    (unsigned long long)granted, (unsigned long long)asked);
    else
        log_warning("max_write is %llu bytes, not the %llu asked for: libfuse %s allows no more; "
                    "3.17 and newer do",
                    (unsigned long long)granted, (unsigned long long)asked, fuse_pkgversion());
}

static void on_init(void *userdata, struct fuse_conn_info *connection)
{
    struct residentfs *fs = userdata;

    /* Splicing would put a pipe and a copy between the kernel and our buffers. */
    do_not_want(connection, FUSE_CAP_SPLICE_READ);
    do_not_want(connection, FUSE_CAP_SPLICE_WRITE);
    do_not_want(connection, FUSE_CAP_SPLICE_MOVE);
    do_not_want(connection, FUSE_CAP_WRITEBACK_CACHE);
    /*
     * All changes come through this kernel, which takes care of its pages itself. Dropping the
     * pages of a file whenever its mtime is news would undo cache=on after each write, and a page
     * read anew while a write to it is under way would keep the old bytes.
     */
    do_not_want(connection, FUSE_CAP_AUTO_INVAL_DATA);
    want(connection, FUSE_CAP_EXPLICIT_INVAL_DATA);
#ifdef FUSE_CAP_OVER_IO_URING
    if (fs->ring_depth > 0)
        want(connection, FUSE_CAP_OVER_IO_URING);
    else
        do_not_want(connection, FUSE_CAP_OVER_IO_URING); /* the workers read the descriptor */
#endif

    want(connection, FUSE_CAP_ASYNC_READ);
    want(connection, FUSE_CAP_ASYNC_DIO);
    want(connection, FUSE_CAP_ATOMIC_O_TRUNC);
    want(connection, FUSE_CAP_EXPORT_SUPPORT);
    want(connection, FUSE_CAP_PARALLEL_DIROPS);
    want(connection, FUSE_CAP_READDIRPLUS);
    want(connection, FUSE_CAP_READDIRPLUS_AUTO);
    want(connection, FUSE_CAP_HANDLE_KILLPRIV);
    /* A default ACL takes the place of the umask, so the umask is for us to apply. */
    fs->posix_acl = want(connection, FUSE_CAP_DONT_MASK) && want(connection, FUSE_CAP_POSIX_ACL);
#ifdef FUSE_CAP_DIRECT_IO_ALLOW_MMAP
    if (fs->conf->cache == CONF_CACHE_OFF && fuse_version() >= DIRECT_IO_MMAP_SINCE)
        fs->direct_mmap = want(connection, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
#endif
#ifdef HAVE_FUSE_PARALLEL_DIRECT_WRITES
    fs->parallel_writes = fs->conf->cache == CONF_CACHE_OFF;
#endif
#ifdef HAVE_FUSE_NO_INTERRUPT
    connection->no_interrupt = 1; /* no handler can be interrupted; saves a lock per request */
#endif

    negotiate_request_size(fs, connection);
    connection->max_read = 0; /* the kernel bounds reads as it bounds writes, by pages */
    connection->max_background = fs->conf->max_background;
    connection->congestion_threshold = MAX(fs->conf->max_background * 3 / 4, 1u);
    connection->time_gran = 1;
    /* The kernel asks for them if its protocol has them. */
#ifdef HAVE_FUSE_TMPFILE
    fs->nameless_files = connection->proto_minor >= TMPFILE_PROTOCOL_MINOR;
#endif
#ifdef HAVE_FUSE_STATX
    fs->birth_times = connection->proto_minor >= STATX_PROTOCOL_MINOR;
#endif
    fs->connection = *connection;
    if (fs->session)
        session_init_answered(fs->session);
}

void session_operations(struct fuse_lowlevel_ops *ops)
{
    ops->init = on_init;
}
