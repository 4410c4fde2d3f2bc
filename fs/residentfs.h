/*
 * What all handlers of one mount share. One per process, reached through fuse_req_userdata: there
 * is no global.
 */
#ifndef RESIDENTFS_FS_RESIDENTFS_H
#define RESIDENTFS_FS_RESIDENTFS_H

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include "conf/conf.h"
#include "core/device.h"
#include "core/readahead.h"
#include "fs/handle.h"
#include "fs/inode.h"
#include "fs/progress.h"

/* Bytes per second, over the last second or so. The totals are the main thread's. */
struct traffic {
    uint64_t sampled_ns, uploaded_bytes, read_back_bytes, device_copied_bytes;
    _Atomic uint64_t upload_rate, readback_rate, device_copy_rate;
};

struct residentfs {
    const struct conf *conf;
    struct device *device;
    struct inode_table *inodes;
    pthread_mutex_t rename_mutex; /* see fs/inode.h */
    struct inode *root;
    uid_t owner_uid; /* who mounted it */
    gid_t owner_gid;
    time_t started;                      /* when it was mounted */
    uint32_t generation;                 /* of its inode numbers, for handles of earlier mounts */
    struct handle_list open_files;       /* struct open_file */
    struct handle_list open_virtual;     /* struct virtual_file */
    _Atomic uint64_t virtual_bytes;      /* of their text */
    struct handle_list open_directories; /* struct open_directory of fs/readdir.c */
    struct session *session;             /* fs/session.h */
    struct share *share;                 /* fs/share.h; NULL with share=off */
    struct traffic traffic;

    /* Asked of libfuse before mounting, 0: no; session_report says what came of it. */
    unsigned int ring_depth; /* requests that the kernel may hand over at once, each processor's */
    char ring_reason[256];   /* why it is 0, and what to do about it; empty: as configured */

    /* As negotiated; constant after INIT. */
    struct fuse_conn_info connection;
    uint64_t max_write_bytes; /* of one request, as library and kernel allow */
    bool parallel_writes;     /* writes to one file need not wait for each other */
    bool direct_mmap;         /* a file with cache=off can be mapped */
    bool posix_acl;           /* the kernel checks permissions by ACLs */
    bool nameless_files;      /* O_TMPFILE */
    bool birth_times;         /* statx tells them */
};

/* An open regular file; fi->fh points to it. Holds a reference of its inode. */
struct open_file {
    struct handle handle;
    struct inode *inode;
    int flags;                     /* as given to open */
    bool cached;                   /* its reads go by the page cache */
    _Atomic uint64_t error_cursor; /* buffer_error_check */
    struct readahead readahead;
    struct progress read, written;
};

/*
 * fs/namespace.c, rename.c, readdir.c, attributes.c, xattr.c: registered in the table of operations
 * by namespace_operations(): lookup, forget, forget_multi, getattr, setattr, readlink, mknod,
 * mkdir, unlink, rmdir, symlink, rename, link, opendir, readdir, readdirplus, releasedir, fsyncdir,
 * statfs, access (not set: default_permissions), the xattr calls.
 */
void namespace_operations(struct fuse_lowlevel_ops *ops);

/*
 * fs/data.c: create, open, read, write, flush, release, fsync, fallocate, lseek, copy_file_range.
 * create calls namespace_create, and tmpfile namespace_create_nameless.
 */
void data_operations(struct fuse_lowlevel_ops *ops);
/* Closes what the kernel has not released. No handler runs any more. */
void data_finish(struct residentfs *fs);

/*
 * Makes a new file or node NAME in PARENT, as mknod does (errors of mknod(2), negative errno).
 * On success *out has one lookup and *entry is filled for the reply.
 */
errint_t namespace_create(struct residentfs *fs, fuse_req_t req, struct inode *parent,
                          const char *name, mode_t mode, dev_t rdev, struct inode **out,
                          struct fuse_entry_param *entry);

/*
 * A regular file without a name, as O_TMPFILE makes it; LINKABLE: it may get one, once. *out and
 * *entry as above.
 */
errint_t namespace_create_nameless(struct residentfs *fs, fuse_req_t req, struct inode *parent,
                                   mode_t mode, bool linkable, struct inode **out,
                                   struct fuse_entry_param *entry);

/* Fills the reply for an inode on which the caller holds a lookup. */
void namespace_fill_entry(struct residentfs *fs, struct inode *inode,
                          struct fuse_entry_param *entry);

/* Who the request comes from, for what becomes of suid and sgid. */
enum inode_author namespace_author(fuse_req_t req, struct inode *inode);

/* Something was read of the inode: atime follows as the mount options ask. */
void namespace_accessed(const struct residentfs *fs, struct inode *inode);

/* Makes the table of inodes and the root directory: fs->inodes, fs->root, fs->rename_mutex. */
errint_t namespace_init(struct residentfs *fs);
/* Destroys what namespace_init made, and every inode left. Also after a failed init. */
void namespace_finish(struct residentfs *fs);

/*
 * A path of the inode from the mount's root, for people: the name that it was given last ("/a/b").
 * "(unlinked)" when it has none; "(hard link)" when that name is gone and others are left. Control
 * characters and backslashes are escaped as in "\x0a". The caller holds a reference of the inode
 * and no lock. Allocated; NULL when memory is short.
 */
char *namespace_path(struct residentfs *fs, struct inode *inode);

/*
 * fs/virtual.c: .resident and the files in it. Handlers of other files call these first:
 */
bool virtual_is(uint64_t ino);
/* The inode number of NAME in PARENT, or 0: not virtual. PARENT is the root or .resident. */
uint64_t virtual_lookup(uint64_t parent_ino, const char *name);
/* Whether something can be written to it. */
bool virtual_is_writable(uint64_t ino);
/* Attributes of a virtual inode. */
void virtual_stat(struct residentfs *fs, uint64_t ino, struct stat *st);
/* The handlers for requests that name a virtual inode. */
void virtual_open(fuse_req_t req, uint64_t ino, struct fuse_file_info *fi);
void virtual_read(fuse_req_t req, uint64_t ino, size_t size, off_t offset,
                  struct fuse_file_info *fi);
void virtual_write(fuse_req_t req, uint64_t ino, const char *bytes, size_t size, off_t offset,
                   struct fuse_file_info *fi);
void virtual_release(fuse_req_t req, uint64_t ino, struct fuse_file_info *fi);
void virtual_readdir(fuse_req_t req, uint64_t ino, size_t size, off_t offset, bool plus);
/* To be called now and then by the main thread: keeps fs->traffic. */
void virtual_tick(struct residentfs *fs);
/* Frees snapshots that the kernel has not released. No handler runs any more. */
void virtual_finish(struct residentfs *fs);

#endif
