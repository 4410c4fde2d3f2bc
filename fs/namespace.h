/*
 * What the handlers of names, attributes and xattrs share. Private to them; see fs/residentfs.h for
 * what others use.
 */
#ifndef RESIDENTFS_FS_NAMESPACE_H
#define RESIDENTFS_FS_NAMESPACE_H

#include "fs/directory.h"
#include "fs/session.h"

static inline struct residentfs *request_fs(fuse_req_t req)
{
    return session_request(req);
}

/* The inode that a request names. NULL: ESTALE has been replied. */
struct inode *request_inode(fuse_req_t req, fuse_ino_t ino);

/* Whether the request names something below .resident, or .resident itself. */
bool namespace_is_virtual(fuse_ino_t parent, const char *name);

/*
 * An inode as mknod, mkdir or symlink (with TARGET) would make in the directory PARENT, but without
 * a name yet: the caller's user, group and umask, what it inherits of PARENT (group, sgid, ACLs).
 * With one reference. NULL and errno, as inode_create. No lock is held.
 */
struct inode *namespace_new_inode(fuse_req_t req, struct inode *parent, mode_t mode, dev_t rdev,
                                  const char *target);

/*
 * What happens to the inode of a directory, and to the inode named, when an entry comes or goes.
 * The directory's lock is held for writing. Each takes the mutex of the inode that it is about.
 */

/*
 * A new entry is about to be made: counts it. -ENOENT: the directory has been removed. -EMLINK: too
 * many subdirectories. Followed by namespace_entry_added or namespace_unreserve_entry.
 */
errint_t namespace_reserve_entry(struct inode *parent, bool is_directory);
void namespace_unreserve_entry(struct inode *parent, bool is_directory);
void namespace_entry_added(struct inode *parent);
void namespace_entry_removed(struct inode *parent, bool is_directory);

/* ENTRY of PARENT names the inode from now on. The caller holds the inode's mutex. */
void namespace_named(struct inode *inode, const struct inode *parent,
                     const struct directory_entry *entry);

/*
 * ENTRY of PARENT names its inode no more. A directory that has entries gives -ENOTEMPTY. Adds to
 * *UNREFS how many references of the inode to give back once all locks are released.
 */
errint_t namespace_unlink(const struct inode *parent, const struct directory_entry *entry,
                          uint64_t *unrefs);

/* fs/rename.c */
void handle_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
                   const char *new_name, unsigned int flags);

/* fs/readdir.c */
void readdir_operations(struct fuse_lowlevel_ops *ops);
/* Closes what the kernel has not released. No handler runs any more. */
void readdir_finish(struct residentfs *fs);

/* fs/attributes.c */
void attributes_operations(struct fuse_lowlevel_ops *ops);

/* fs/xattr.c */
void xattr_operations(struct fuse_lowlevel_ops *ops);

/*
 * Whether GID is one of the groups of the caller's process. False also when that cannot be known
 * (a foreign pid namespace, a process that has ended).
 */
bool namespace_caller_is_in_group(fuse_req_t req, gid_t gid);

#endif
