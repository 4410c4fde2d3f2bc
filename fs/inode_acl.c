#include "fs/inode_acl.h"

#include <errno.h>

void inode_acls_finish(struct inode_acls *acls)
{
    free(acls->access_acl);
    free(acls->default_acl);
    *acls = (struct inode_acls){NULL};
}

static errint_t set_default(struct inode *inode, struct acl *acl)
{
    if (!S_ISDIR(inode->type))
        return acl ? -EACCES : 0;
    free(inode->acls.default_acl);
    inode->acls.default_acl = acl;
    return 0;
}

static void set_access(struct inode *inode, struct acl *acl, bool drop_sgid)
{
    if (drop_sgid)
        inode->mode &= ~(mode_t)S_ISGID;
    if (acl) {
        inode->mode = acl_mode(acl, inode->mode);
        if (acl_is_mode(acl)) {
            free(acl);
            acl = NULL;
        }
    }
    free(inode->acls.access_acl);
    inode->acls.access_acl = acl;
}

errint_t inode_acl_set_locked(struct inode *inode, enum inode_acl_kind kind, struct acl *acl,
                              bool drop_sgid)
{
    if (S_ISLNK(inode->type))
        return -EOPNOTSUPP;
    if (kind == INODE_ACL_DEFAULT) {
        errint_t error = set_default(inode, acl);
        if (error)
            return error;
    } else {
        set_access(inode, acl, drop_sgid);
    }
    inode_touch_locked(inode, INODE_TOUCH_CTIME);
    return 0;
}

const struct acl *inode_acl_locked(const struct inode *inode, enum inode_acl_kind kind)
{
    return kind == INODE_ACL_DEFAULT ? inode->acls.default_acl : inode->acls.access_acl;
}

void inode_set_mode_locked(struct inode *inode, mode_t mode)
{
    inode->mode = mode & 07777;
    if (inode->acls.access_acl)
        acl_set_mode(inode->acls.access_acl, mode);
}

errint_t inode_acls_inherit_locked(const struct inode *parent, mode_t umask, mode_t *mode,
                                   struct inode_acls *acls)
{
    const struct acl *inherited = parent->acls.default_acl;

    *acls = (struct inode_acls){NULL};
    if (S_ISLNK(*mode))
        return 0;
    if (!inherited) {
        *mode &= ~(umask & 0777);
        return 0;
    }

    struct acl *access = acl_copy(inherited);
    if (!access)
        return -ENOMEM;
    if (S_ISDIR(*mode)) {
        acls->default_acl = acl_copy(inherited);
        if (!acls->default_acl) {
            free(access);
            return -ENOMEM;
        }
    }
    acl_restrict(access, *mode);
    *mode = acl_mode(access, *mode);
    if (acl_is_mode(access)) {
        free(access);
        access = NULL;
    }
    acls->access_acl = access;
    return 0;
}
