/*
 * Inodes: everything a file has besides its name and its bytes. The table finds them by number.
 * Numbers are never reused, so that a stale handle finds nothing rather than another file.
 *
 * References: refs counts 1 for being linked (nlink > 0, however many names), the kernel's lookups,
 * each open file, and each short-lived borrower. When it falls to 0 the inode and its buffer are
 * destroyed. While a request names an inode, the kernel holds a lookup on it, so a handler needs no
 * reference of its own until it has replied; after that it must not touch the inode any more.
 *
 * Locks, in the order in which they are taken:
 *   1. residentfs.rename_mutex: held by whoever moves a directory to another parent
 *   2. directory.lock: the entries; of two directories (rename) in the order of their numbers
 *   3. inode.mutex: the fields marked (m); of one inode at a time
 *   4. a shard of the inode table
 * Locks of core/ are taken with none of these held: what a buffer has to say may have to wait for
 * a copy.
 */
#ifndef RESIDENTFS_FS_INODE_H
#define RESIDENTFS_FS_INODE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "core/buffer.h"
#include "core/util.h"

struct acl;
struct directory;
struct xattr_list;

/* Numbers below this are the root (1), .resident and the files in it (fs/virtual.h). */
#define INODE_ROOT         1
#define INODE_VIRTUAL_BASE 2
#define INODE_FIRST_FREE   64

/* NULL: none. The default ACL, of directories only, is what new files in them inherit. */
struct inode_acls {
    struct acl *access_acl, *default_acl; /* owned */
};

struct inode {
    uint64_t ino;
    struct inode_table *table; /* constant */
    mode_t type;               /* S_IFMT bits; constant */
    dev_t rdev;                /* constant */
    _Atomic uint64_t refs;
    _Atomic uint64_t lookups; /* how many of refs are the kernel's */

    pthread_mutex_t mutex; /* covers what is marked (m) */
    mode_t mode;           /* (m) permission bits, suid, sgid, sticky */
    uid_t uid;             /* (m) */
    gid_t gid;             /* (m) */
    nlink_t nlink;         /* (m) names of it; a directory: 2 + subdirectories; 0 once unlinked */
    uint64_t entries;      /* (m) S_IFDIR: that are there or about to be. A new one is counted here
                              first, and only while nlink is not 0; a directory is removed by setting
                              nlink to 0, and only while this is. So rmdir needs no lock of it. */
    struct timespec atime, mtime, ctime; /* (m) */
    struct timespec btime;               /* constant */
    struct xattr_list *xattrs;           /* (m) NULL: none */
    uint64_t charged_bytes;              /* (m) of inode_charge_locked */
    struct inode_acls acls;              /* (m) fs/inode_acl.h */

    /* (m) The name given last, for ".." and for paths shown to people: the directory and the
     * cookie of the entry in it. parent_ino is 0 when that name is gone (others may be left). */
    uint64_t parent_ino, parent_cookie;

    union {
        struct buffer *buffer;       /* S_IFREG: always there; owned */
        struct directory *directory; /* S_IFDIR: owned */
        char *target;                /* S_IFLNK: owned, constant */
    };
    uint32_t openers, writers; /* (m) S_IFREG: open descriptions, and those for writing */
    uint32_t cached_openers;   /* (m) S_IFREG: of openers, those that read by the page cache */
    uint32_t shares;           /* (m) S_IFREG: of inode_share_begin; not 0: cached_openers is 0 */
    bool orphaned;             /* (m) S_IFREG: neither name nor opener; counted by the table */
    bool linkable; /* (m) S_IFREG: made without a name, and has not had one yet: may get one */

    struct inode *table_next; /* private to the table */
};

/* Names of one inode, or subdirectories of one directory. */
#define INODE_LINKS_MAX 0x7fffffff

/* -- the table --------------------------------------------------------------------------------- */

struct inode_table;

/*
 * Host memory that users take by names and attributes is counted, as tmpfs does: a file, and each
 * further name of it, is INODE_CHARGE_BYTES; the target of a symlink and extended attributes are as
 * many bytes as they have.
 */
#define INODE_CHARGE_BYTES 1024

/* No more is charged than that many files would be. MAX_FILES 0: half the pages of host memory. */
struct inode_table *inode_table_create(uint64_t max_files);
/* Destroys every inode left. No other thread uses it any more. */
void inode_table_destroy(struct inode_table *table);

/* Borrowed: NULL when there is none. See the head for how long it lives. */
struct inode *inode_table_find(struct inode_table *table, uint64_t ino);
/* With a reference, for callers for whom nothing else keeps it alive; NULL when there is none. */
struct inode *inode_table_get(struct inode_table *table, uint64_t ino);
uint64_t inode_table_count(struct inode_table *table);
/* How many files there may be, and how many more: what is charged otherwise lowers it. */
void inode_table_get_limit(struct inode_table *table, uint64_t *max_files, uint64_t *free_files);
/*
 * Waits, for some milliseconds at most, until the device memory of files that have just lost their
 * last name and opener is given back: for whoever needs memory or reports how much there is. True
 * when there were such files: there may be more memory now.
 */
bool inode_table_settle(struct inode_table *table);

/*
 * Calls visit for each inode, each held by a reference meanwhile, no lock held. Inodes that come
 * or go during the walk may or may not be seen. -ENOMEM: some were left out.
 */
errint_t inode_table_walk(struct inode_table *table, void (*visit)(struct inode *inode, void *data),
                          void *data);

/* -- one inode --------------------------------------------------------------------------------- */

/*
 * Makes an inode of the given type with one reference (the caller's) and nlink 0 (a directory: 2),
 * all four times now, and puts it into the table. Regular files get an empty buffer on DEVICE. A
 * symlink has a copy of TARGET; else that is NULL. NULL and errno: ENOMEM, EINVAL for a type that
 * there is not, ENOSPC: as many as there may be.
 */
struct inode *inode_create(struct inode_table *table, struct device *device, mode_t mode, uid_t uid,
                           gid_t gid, dev_t rdev, const char *target);
/* The same for the root directory: number INODE_ROOT. Once a table. */
struct inode *inode_create_root(struct inode_table *table, mode_t mode, uid_t uid, gid_t gid);

/* -ENOSPC: there would be too much. With mutex held. What is left goes with the inode. */
errint_t inode_charge_locked(struct inode *inode, uint64_t bytes);
void inode_uncharge_locked(struct inode *inode, uint64_t bytes);

/* As xattr_list_remove; what it took is uncharged. With mutex held. */
errint_t inode_remove_xattr_locked(struct inode *inode, const char *name);

void inode_ref(struct inode *inode, uint64_t count);
void inode_unref(struct inode_table *table, struct inode *inode, uint64_t count);

/*
 * Open descriptions of a regular file. Without a name or an opener it is an orphan: the kernel
 * forgets it at once, unless somebody still holds it without having it open (O_PATH, a bind mount)
 * and may read it or open it again. So its device memory goes with the inode. The last writer's
 * close gives back slack.
 */
void inode_opened(struct inode_table *table, struct inode *inode, bool for_writing);
void inode_closed(struct inode_table *table, struct inode *inode, bool for_writing);
/*
 * The page cache does not see what a GPU does: a file is open through it, or shared with GPU
 * programs, not both. False: not through the page cache.
 */
bool inode_cache_begin(struct inode *inode);
void inode_cache_end(struct inode *inode);
/* -EBUSY: it is open through the page cache. */
errint_t inode_share_begin(struct inode *inode);
void inode_share_end(struct inode *inode);

/* nlink has fallen to 0. */
void inode_unlinked(struct inode_table *table, struct inode *inode);
/* nlink has risen from 0. With mutex held. */
void inode_linked_locked(struct inode_table *table, struct inode *inode);

/* The kernel's lookups; a lookup is also a reference. */
void inode_lookup_added(struct inode *inode);
void inode_forget(struct inode_table *table, struct inode *inode, uint64_t count);

/*
 * Size and blocks come from the buffer. st_blksize of regular files is 128 KiB, what cat and cp use
 * anyway: stdio buffers of 4 KiB would pay for a request to the daemon every 4 KiB.
 */
void inode_stat(struct inode *inode, struct stat *st);

#define INODE_TOUCH_MTIME 1u
#define INODE_TOUCH_CTIME 2u
void inode_touch(struct inode *inode, unsigned int which);
/* The same with mutex held. */
void inode_touch_locked(struct inode *inode, unsigned int which);

/* It was read: atime is now. Unless ALWAYS, only as the mount option relatime has it: if a change
 * came since, or after a day. */
void inode_accessed(struct inode *inode, bool always);

/* Who changes a file: what becomes of suid and sgid depends on it. */
enum inode_author {
    INODE_AUTHOR_PRIVILEGED, /* CAP_FSETID */
    INODE_AUTHOR_IN_GROUP,   /* of the inode's group */
    INODE_AUTHOR_OTHER,
};

/* chown: suid goes, sgid too if group may execute or the author is not of the group, and the file's
 * capabilities. Directories are left alone. */
void inode_drop_privileges_locked(struct inode *inode, enum inode_author author);

/* Its bytes were changed: mtime, ctime, and the privileges as with chown, but that the privileged
 * leave suid and sgid. The capabilities go all the same: they were given to other bytes. */
/* True when suid or sgid went, of which the kernel must be told: it keeps the mode. */
bool inode_modified(struct inode *inode, enum inode_author author);
void inode_modified_locked(struct inode *inode, enum inode_author author);

#endif
