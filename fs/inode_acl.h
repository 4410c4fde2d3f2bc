/*
 * The ACLs of an inode, and how its mode follows them: set, removed, changed by chmod, inherited
 * when a file is made, as Linux's own file systems do. The kernel checks permissions by them; it
 * asks for them through getxattr. The inode's mutex is held by the caller. Functions return
 * negative errno.
 */
#ifndef RESIDENTFS_FS_INODE_ACL_H
#define RESIDENTFS_FS_INODE_ACL_H

#include "fs/acl.h"
#include "fs/inode.h"

enum inode_acl_kind {
    INODE_ACL_ACCESS,
    INODE_ACL_DEFAULT,
};

/* Frees both. */
void inode_acls_finish(struct inode_acls *acls);

/*
 * Sets the ACL, which is the inode's from then on; on failure it is still the caller's. NULL: none
 * any more, which leaves the mode as it is. An access ACL sets the permission bits, and is not kept
 * if they say it all. With DROP_SGID sgid goes with it. -EOPNOTSUPP: a symlink has no ACLs;
 * -EACCES: only directories have default ACLs.
 */
errint_t inode_acl_set_locked(struct inode *inode, enum inode_acl_kind kind, struct acl *acl,
                              bool drop_sgid);

/* The ACL, or NULL. */
const struct acl *inode_acl_locked(const struct inode *inode, enum inode_acl_kind kind);

/* chmod: sets the mode, and the entries of the access ACL that are its permission bits. */
void inode_set_mode_locked(struct inode *inode, mode_t mode);

/*
 * The ACLs of a new file of mode *MODE (with its type) in PARENT, whose mutex is held, and what is
 * left of that mode: by PARENT's default ACL, or else, if it has none, by the umask. They are the
 * caller's. -ENOMEM: none, and the mode has not changed.
 */
errint_t inode_acls_inherit_locked(const struct inode *parent, mode_t umask, mode_t *mode,
                                   struct inode_acls *acls);

#endif
