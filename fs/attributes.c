#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include "fs/inode_acl.h"
#include "fs/namespace.h"

#define STATFS_BLOCK_BYTES 4096

/* Inodes are limited by host memory only, but `df -i` wants a number. */

static void reply_attributes(fuse_req_t req, struct residentfs *fs, struct inode *inode)
{
    struct stat st;
    inode_stat(inode, &st);
    fuse_reply_attr(req, &st, fs->conf->attr_timeout_s);
}

static void reply_virtual_attributes(fuse_req_t req, struct residentfs *fs, uint64_t ino)
{
    struct stat st = {0};
    virtual_stat(fs, ino, &st);
    fuse_reply_attr(req, &st, 0);
}

static void handle_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)fi;
    struct residentfs *fs = request_fs(req);

    if (virtual_is(ino)) {
        reply_virtual_attributes(req, fs, ino);
        return;
    }
    struct inode *inode = request_inode(req, ino);
    if (inode)
        reply_attributes(req, fs, inode);
}

#ifdef HAVE_FUSE_STATX
static struct statx_timestamp statx_time(const struct timespec *time)
{
    return (struct statx_timestamp){.tv_sec = time->tv_sec, .tv_nsec = (uint32_t)time->tv_nsec};
}

/* All but the birth time. */
static void fill_statx(struct statx *stx, const struct stat *st)
{
    memset(stx, 0, sizeof(*stx));
    stx->stx_mask = STATX_BASIC_STATS;
    stx->stx_blksize = (uint32_t)st->st_blksize;
    stx->stx_nlink = (uint32_t)st->st_nlink;
    stx->stx_uid = st->st_uid;
    stx->stx_gid = st->st_gid;
    stx->stx_mode = (uint16_t)st->st_mode;
    stx->stx_ino = st->st_ino;
    stx->stx_size = (uint64_t)st->st_size;
    stx->stx_blocks = (uint64_t)st->st_blocks;
    stx->stx_rdev_major = major(st->st_rdev);
    stx->stx_rdev_minor = minor(st->st_rdev);
    stx->stx_atime = statx_time(&st->st_atim);
    stx->stx_mtime = statx_time(&st->st_mtim);
    stx->stx_ctime = statx_time(&st->st_ctim);
}

/* The kernel asks for this when someone wants to know the birth time. */
static void handle_statx(fuse_req_t req, fuse_ino_t ino, int flags, int mask,
                         struct fuse_file_info *fi)
{
    (void)flags;
    (void)mask;
    (void)fi;
    struct residentfs *fs = request_fs(req);
    struct timespec btime = {.tv_sec = fs->started};
    double timeout_s = 0;
    struct stat st = {0};
    struct statx stx;

    if (virtual_is(ino)) {
        virtual_stat(fs, ino, &st);
    } else {
        struct inode *inode = request_inode(req, ino);
        if (!inode)
            return;
        inode_stat(inode, &st);
        btime = inode->btime;
        timeout_s = fs->conf->attr_timeout_s;
    }
    fill_statx(&stx, &st);
    stx.stx_btime = statx_time(&btime);
    stx.stx_mask |= STATX_BTIME;
    /* A libfuse that was built without statx does not reply. */
    if (fuse_reply_statx(req, 0, &stx, timeout_s) == -ENOSYS)
        fuse_reply_err(req, ENOSYS);
}
#endif

static errint_t set_size(struct inode *inode, off_t size)
{
    if (S_ISDIR(inode->type))
        return -EISDIR;
    if (!S_ISREG(inode->type) || size < 0)
        return -EINVAL;
    return buffer_truncate(inode->buffer, (uint64_t)size);
}

static void set_times(struct inode *inode, const struct stat *st, int valid)
{
    /* One now for both, so that `touch` makes them equal. */
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);

    if (valid & FUSE_SET_ATTR_ATIME)
        inode->atime = valid & FUSE_SET_ATTR_ATIME_NOW ? now : st->st_atim;
    if (valid & FUSE_SET_ATTR_MTIME)
        inode->mtime = valid & FUSE_SET_ATTR_MTIME_NOW ? now : st->st_mtim;
    else if (valid & FUSE_SET_ATTR_SIZE)
        inode->mtime = now;
    inode->ctime = valid & FUSE_SET_ATTR_CTIME ? st->st_ctim : now;
}

/*
 * libfuse has fuse_req_getgroups for this, which up to 3.14 at least searches past the end of what
 * it read.
 */
bool namespace_caller_is_in_group(fuse_req_t req, gid_t gid)
{
    const struct fuse_ctx *context = fuse_req_ctx(req);
    cleanup_free char *line = NULL;
    char path[64];
    size_t capacity = 0;
    bool found = false;

    if (context->gid == gid)
        return true;
    snprintf(path, sizeof(path), "/proc/%ld/status", (long)context->pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false; /* rather too few rights than too many */
    while (getline(&line, &capacity, file) > 0) {
        if (strncmp(line, "Groups:", 7) != 0)
            continue;
        char *at = line + 7, *end;
        for (unsigned long value = strtoul(at, &end, 10); end != at && !found;
             value = strtoul(at, &end, 10)) {
            found = value == gid;
            at = end;
        }
        break;
    }
    fclose(file);
    return found;
}

enum inode_author namespace_author(fuse_req_t req, struct inode *inode)
{
    /* FUSE does not say who has CAP_FSETID: root is taken to. */
    if (fuse_req_ctx(req)->uid == 0)
        return INODE_AUTHOR_PRIVILEGED;

    pthread_mutex_lock(&inode->mutex);
    bool matters = (inode->mode & (S_ISGID | S_IXGRP)) == S_ISGID;
    gid_t gid = inode->gid;
    pthread_mutex_unlock(&inode->mutex);
    /* The groups are in /proc: not worth it for each write. */
    return !matters || namespace_caller_is_in_group(req, gid) ? INODE_AUTHOR_IN_GROUP
                                                              : INODE_AUTHOR_OTHER;
}

/* The kernel has checked who may do what (default_permissions). */
static void set_others(struct inode *inode, const struct stat *st, int valid,
                       enum inode_author author)
{
    pthread_mutex_lock(&inode->mutex);
    if (valid & FUSE_SET_ATTR_UID)
        inode->uid = st->st_uid;
    if (valid & FUSE_SET_ATTR_GID)
        inode->gid = st->st_gid;
    if (valid & FUSE_SET_ATTR_MODE)
        inode_set_mode_locked(inode, st->st_mode);
    /*
     * With a MODE the kernel has worked out itself what is left of suid and sgid. Nothing at all to
     * set is chown(-1, -1), which on Linux clears them and changes ctime like any other chown.
     */
    bool chown = valid == 0 || (valid & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID));
    if (!(valid & FUSE_SET_ATTR_MODE)) {
        if (chown || (valid & FUSE_SET_ATTR_KILL_SUID))
            inode_drop_privileges_locked(inode, author);
        else if (valid & FUSE_SET_ATTR_SIZE)
            inode_modified_locked(inode, author);
    }
    set_times(inode, st, valid);
    pthread_mutex_unlock(&inode->mutex);
}

static void handle_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int valid,
                           struct fuse_file_info *fi)
{
    (void)fi;
    struct residentfs *fs = request_fs(req);

    if (virtual_is(ino)) {
        /* `>` truncates before it writes; that is no reason to refuse the write. */
        const int harmless = FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_CTIME | FUSE_SET_ATTR_MTIME |
                             FUSE_SET_ATTR_MTIME_NOW | FUSE_SET_ATTR_KILL_SUID;
        if ((valid & FUSE_SET_ATTR_SIZE) && !(valid & ~harmless) && virtual_is_writable(ino))
            reply_virtual_attributes(req, fs, ino);
        else
            fuse_reply_err(req, EPERM);
        return;
    }
    struct inode *inode = request_inode(req, ino);
    if (!inode)
        return;

    enum inode_author author = namespace_author(req, inode);
    if (valid & FUSE_SET_ATTR_SIZE) {
        errint_t error = set_size(inode, st->st_size);
        if (error) {
            fuse_reply_err(req, -error);
            return;
        }
    }
    set_others(inode, st, valid, author);
    reply_attributes(req, fs, inode);
}

void namespace_accessed(const struct residentfs *fs, struct inode *inode)
{
    const struct conf *conf = fs->conf;

    if (conf->atime == CONF_ATIME_NONE || (conf->no_directory_atime && S_ISDIR(inode->type)))
        return;
    inode_accessed(inode, conf->atime == CONF_ATIME_STRICT);
}

static void handle_statfs(fuse_req_t req, fuse_ino_t ino)
{
    (void)ino;
    struct residentfs *fs = request_fs(req);
    struct budget_report report;
    uint64_t max_files, free_files;

    inode_table_settle(fs->inodes);
    device_get_budget_report(fs->device, &report);
    inode_table_get_limit(fs->inodes, &max_files, &free_files);
    struct statvfs statfs = {
        .f_bsize = STATFS_BLOCK_BYTES,
        .f_frsize = STATFS_BLOCK_BYTES,
        .f_blocks = report.limit_bytes / STATFS_BLOCK_BYTES,
        .f_bfree = report.available_bytes / STATFS_BLOCK_BYTES,
        .f_bavail = report.available_bytes / STATFS_BLOCK_BYTES,
        .f_files = max_files,
        .f_ffree = free_files,
        .f_favail = free_files,
        .f_namemax = DIRECTORY_NAME_MAX,
    };
    fuse_reply_statfs(req, &statfs);
}

void attributes_operations(struct fuse_lowlevel_ops *ops)
{
    ops->getattr = handle_getattr;
#ifdef HAVE_FUSE_STATX
    ops->statx = handle_statx;
#endif
    ops->setattr = handle_setattr;
    ops->statfs = handle_statfs;
}
