/*
 * POSIX ACLs as data: the format of the attributes system.posix_acl_access and _default (version 2,
 * little-endian), what makes one valid, and how one and the permission bits of a mode follow each
 * other. Knows nothing of inodes; the caller locks. Functions return negative errno as Linux's
 * setxattr does for these attributes.
 */
#ifndef RESIDENTFS_FS_ACL_H
#define RESIDENTFS_FS_ACL_H

#include <sys/types.h>

#include "core/util.h"

/* FUSE reads an ACL into one page, so the kernel neither sets nor gets more. */
#define ACL_ENTRIES_MAX 511
#define ACL_BYTES_MAX   (4 + 8 * ACL_ENTRIES_MAX)

/* Always valid: owner, named users, group, named groups, mask and others, in that order. */
struct acl;

/*
 * *OUT is the caller's, for free(); NULL for an ACL without entries, which says that there is none.
 * -EINVAL: not an ACL, or not a valid one; -EOPNOTSUPP: another version; -E2BIG: too many entries;
 * -ENOMEM.
 */
errint_t acl_parse(const void *bytes, size_t size, struct acl **out);

/* The attribute's length, and its bytes; those are ACL_BYTES_MAX at most. */
size_t acl_bytes(const struct acl *acl);
void acl_serialise(const struct acl *acl, void *bytes);

/* For free(). NULL: no memory. */
struct acl *acl_copy(const struct acl *acl);

/* Whether it has nothing but what permission bits say as well. */
bool acl_is_mode(const struct acl *acl);

/* MODE with the permission bits of the ACL: the group's are the mask's if there is one. */
mode_t acl_mode(const struct acl *acl, mode_t mode);

/* chmod: the entries that the permission bits stand for get those of MODE. */
void acl_set_mode(struct acl *acl, mode_t mode);

/* What a new file inherits: those entries lose what MODE, as create was given it, has not. */
void acl_restrict(struct acl *acl, mode_t mode);

#endif
