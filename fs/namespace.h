/*
 * What the handlers of names, attributes and xattrs share. Private to them; see fs/residentfs.h for
 * what others use.
 */
#ifndef RESIDENTFS_FS_NAMESPACE_H
#define RESIDENTFS_FS_NAMESPACE_H

#include "fs/directory.h"
#include "fs/residentfs.h"

static inline struct residentfs *request_fs(fuse_req_t req)
{
    return fuse_req_userdata(req);
}

/* The inode that a request names. NULL: ESTALE has been replied. */
struct inode *request_inode(fuse_req_t req, fuse_ino_t ino);

/* Whether the request names something below .resident, or .resident itself. */
bool namespace_is_virtual(fuse_ino_t parent, const char *name);

/*
 * Notes that ENTRY of PARENT now names the inode, or that this name of it is gone. PARENT's
 * directory is locked for writing, INODE's mutex held.
 */
void namespace_name_added(struct inode *inode, const struct inode *parent,
                          const struct directory_entry *entry);
void namespace_name_removed(struct inode *inode, const struct inode *parent, uint64_t cookie);

/*
 * A name of the inode is gone from PARENT, as above: counts links down (a directory's to 0) and
 * sets ctime. Takes the mutex. Returns how many references the caller must give back once it has
 * released all locks.
 */
uint64_t namespace_drop_link(struct inode *inode, const struct inode *parent, uint64_t cookie);

/*
 * Closes a directory that is about to lose its name to new entries; -ENOTEMPTY if it has any. Takes
 * its lock: rename_mutex is held.
 */
errint_t namespace_retire_directory(struct inode *inode);

/* DELTA subdirectories more; entries have changed. PARENT's directory is locked for writing. */
void namespace_parent_changed(struct inode *parent, int delta);

/* fs/rename.c */
void rename_handle(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
                   const char *new_name, unsigned int flags);

/* fs/readdir.c */
void readdir_operations(struct fuse_lowlevel_ops *ops);

/* fs/attributes.c */
void attributes_operations(struct fuse_lowlevel_ops *ops);

/* fs/xattr.c */
void xattr_operations(struct fuse_lowlevel_ops *ops);

#endif
