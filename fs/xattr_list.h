/*
 * The extended attributes of one inode, in memory: a small list that the caller locks. Functions
 * return negative errno as Linux's xattr calls do.
 */
#ifndef RESIDENTFS_FS_XATTR_LIST_H
#define RESIDENTFS_FS_XATTR_LIST_H

#include <sys/types.h>

#include "core/util.h"

/* Linux's limits. */
#define XATTR_LIST_NAME_MAX        255
#define XATTR_LIST_VALUE_MAX_BYTES 65536
#define XATTR_LIST_NAMES_MAX_BYTES 65536 /* more could never be listed */
/* Ours, of names and values together: they are in host memory. */
#define XATTR_LIST_MAX_BYTES ((size_t)1 << 20)

struct xattr_list;

/* NULL is fine. */
void xattr_list_destroy(struct xattr_list *list);

/*
 * Sets an attribute; *LIST is made when it is NULL. FLAGS: 0, XATTR_CREATE (-EEXIST when it is
 * there), XATTR_REPLACE (-ENODATA when it is not). -ERANGE: name empty or too long; -E2BIG: value
 * too long; -ENOSPC: the inode has too much already; -EINVAL: flags; -ENOMEM. On failure nothing
 * has changed.
 */
errint_t xattr_list_set(struct xattr_list **list, const char *name, const void *value, size_t size,
                        int flags);

/* What the list takes: an attribute its name, its value and this for keeping it. NULL: 0. */
#define XATTR_LIST_KEEPING_BYTES 64
size_t xattr_list_bytes(const struct xattr_list *list);

/* -ENODATA when it is not there. LIST may be NULL here and below. */
errint_t xattr_list_remove(struct xattr_list *list, const char *name);

/*
 * Returns the value's length, and copies it if SIZE is not 0: -ERANGE when it does not fit,
 * -ENODATA when it is not there.
 */
ssize_t xattr_list_get(const struct xattr_list *list, const char *name, void *value, size_t size);

/*
 * Returns the length of all names, each with its NUL, and copies them if SIZE is not 0: -ERANGE
 * when they do not fit. trusted.* only with TRUSTED.
 */
ssize_t xattr_list_names(const struct xattr_list *list, bool trusted, char *names, size_t size);

#endif
