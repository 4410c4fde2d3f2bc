#include <errno.h>
#include <sys/statvfs.h>

#include "fs/inode_acl.h"
#include "fs/namespace.h"

#define STATFS_BLOCK_BYTES 4096

/* Inodes are limited by host memory only, but `df -i` wants a number. */
#define STATFS_INODES ((fsfilcnt_t)UINT32_MAX)

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

/* The kernel has checked who may do what (default_permissions). */
static void set_others(struct inode *inode, const struct stat *st, int valid, bool privileged)
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
    if (!(valid & FUSE_SET_ATTR_MODE) && (chown || (valid & FUSE_SET_ATTR_KILL_SUID) ||
                                          ((valid & FUSE_SET_ATTR_SIZE) && !privileged)))
        inode_drop_privileges_locked(inode);
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

    if (valid & FUSE_SET_ATTR_SIZE) {
        errint_t error = set_size(inode, st->st_size);
        if (error) {
            fuse_reply_err(req, -error);
            return;
        }
    }
    set_others(inode, st, valid, fuse_req_ctx(req)->uid == 0);
    reply_attributes(req, fs, inode);
}

static void handle_statfs(fuse_req_t req, fuse_ino_t ino)
{
    (void)ino;
    struct residentfs *fs = request_fs(req);
    struct budget_report report;

    inode_table_settle(fs->inodes);
    device_get_budget_report(fs->device, &report);
    fsfilcnt_t inodes = (fsfilcnt_t)inode_table_count(fs->inodes);
    struct statvfs statfs = {
        .f_bsize = STATFS_BLOCK_BYTES,
        .f_frsize = STATFS_BLOCK_BYTES,
        .f_blocks = report.limit_bytes / STATFS_BLOCK_BYTES,
        .f_bfree = report.available_bytes / STATFS_BLOCK_BYTES,
        .f_bavail = report.available_bytes / STATFS_BLOCK_BYTES,
        .f_files = STATFS_INODES,
        .f_ffree = STATFS_INODES - MIN(inodes, STATFS_INODES),
        .f_favail = STATFS_INODES - MIN(inodes, STATFS_INODES),
        .f_namemax = DIRECTORY_NAME_MAX,
    };
    fuse_reply_statfs(req, &statfs);
}

void attributes_operations(struct fuse_lowlevel_ops *ops)
{
    ops->getattr = handle_getattr;
    ops->setattr = handle_setattr;
    ops->statfs = handle_statfs;
}
