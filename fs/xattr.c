#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "fs/inode_acl.h"
#include "fs/namespace.h"
#include "fs/share.h"
#include "fs/xattr_list.h"

/* Answered from the buffer, never stored, not listed: so that cp -a and rsync -X do not carry them
 * elsewhere. */
#define RESIDENT_PREFIX "user.resident."

static bool has_prefix(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* Whether attributes of this name may be stored. */
static errint_t check_name(const char *name, bool to_change)
{
    static const char *const prefixes[] = {"user.", "trusted.", "security."};

    if (has_prefix(name, RESIDENT_PREFIX))
        return to_change ? -EPERM : 0;
    for (size_t i = 0; i < ARRAY_SIZE(prefixes); i++)
        if (has_prefix(name, prefixes[i]))
            return name[strlen(prefixes[i])] ? 0 : -EINVAL;
    return -EOPNOTSUPP;
}

/* What get and list have in common: LENGTH as the list's functions return it. */
static void reply_value(fuse_req_t req, ssize_t length, const char *bytes, size_t size)
{
    if (length < 0)
        fuse_reply_err(req, (int)-length);
    else if (!size)
        fuse_reply_xattr(req, (size_t)length);
    else if ((size_t)length > size)
        fuse_reply_err(req, ERANGE);
    else
        fuse_reply_buf(req, bytes, (size_t)length);
}

/* -- ACLs -------------------------------------------------------------------------------------- */

static const char *const acl_names[] = {
    [INODE_ACL_ACCESS] = "system.posix_acl_access",
    [INODE_ACL_DEFAULT] = "system.posix_acl_default",
};

/* Whether the attribute is an ACL, and which. Not when the kernel does not check by ACLs: one that
 * nobody heeds is worse than none. */
static bool is_acl(fuse_req_t req, const char *name, enum inode_acl_kind *kind)
{
    for (size_t i = 0; request_fs(req)->posix_acl && i < ARRAY_SIZE(acl_names); i++) {
        if (strcmp(name, acl_names[i]) == 0) {
            *kind = (enum inode_acl_kind)i;
            return true;
        }
    }
    return false;
}

/*
 * Whether the caller, changing the access ACL, may not leave the inode sgid. The kernel knows and
 * would say so (FUSE_SETXATTR_ACL_KILL_SGID), but libfuse does not hand that on, and of a removal
 * it says nothing. Root stands for CAP_FSETID.
 */
static bool drops_sgid(fuse_req_t req, struct inode *inode)
{
    pthread_mutex_lock(&inode->mutex);
    bool is_sgid = (inode->mode & S_ISGID) != 0;
    gid_t gid = inode->gid;
    pthread_mutex_unlock(&inode->mutex);
    return is_sgid && fuse_req_ctx(req)->uid != 0 && !namespace_caller_is_in_group(req, gid);
}

/* ACL is taken over; NULL removes. There is no error when there was none. */
static void reply_set_acl(fuse_req_t req, struct inode *inode, enum inode_acl_kind kind,
                          struct acl *acl)
{
    bool drop_sgid = kind == INODE_ACL_ACCESS && drops_sgid(req, inode);

    pthread_mutex_lock(&inode->mutex);
    errint_t error = inode_acl_set_locked(inode, kind, acl, drop_sgid);
    pthread_mutex_unlock(&inode->mutex);
    if (error)
        free(acl);
    fuse_reply_err(req, -error);
}

static void reply_get_acl(fuse_req_t req, struct inode *inode, enum inode_acl_kind kind,
                          size_t size)
{
    char bytes[ACL_BYTES_MAX];
    ssize_t length = S_ISLNK(inode->type) ? -EOPNOTSUPP : -ENODATA;

    pthread_mutex_lock(&inode->mutex);
    const struct acl *acl = inode_acl_locked(inode, kind);
    if (acl) {
        length = (ssize_t)acl_bytes(acl);
        acl_serialise(acl, bytes);
    }
    pthread_mutex_unlock(&inode->mutex);
    reply_value(req, length, bytes, size);
}

/* As xattr_list_names. The inode's mutex is held. */
static ssize_t names_of_acls(const struct inode *inode, char *names, size_t size)
{
    size_t length = 0;

    for (size_t i = 0; i < ARRAY_SIZE(acl_names); i++) {
        size_t name_bytes = strlen(acl_names[i]) + 1;
        if (!inode_acl_locked(inode, (enum inode_acl_kind)i))
            continue;
        if (size && length + name_bytes > size)
            return -ERANGE;
        if (size)
            memcpy(names + length, acl_names[i], name_bytes);
        length += name_bytes;
    }
    return (ssize_t)length;
}

/* -- all attributes ---------------------------------------------------------------------------- */

#define RESIDENT_TEXT_BYTES SHARE_PATH_BYTES

/* NAME is what follows the prefix. The length of the text, or -ENODATA. */
static int resident_text(struct residentfs *fs, const struct inode *inode, const char *name,
                         char text[RESIDENT_TEXT_BYTES])
{
    struct buffer_report report;

    if (!S_ISREG(inode->type))
        return -ENODATA;
    if (strcmp(name, "device") == 0) {
        const struct device_identity *identity = device_identity(buffer_device(inode->buffer));
        return snprintf(text, RESIDENT_TEXT_BYTES, "%s:%d", identity->driver, identity->index);
    }
    if (strcmp(name, "socket") == 0) {
        share_get_socket_path(fs->share, text);
        return text[0] ? (int)strlen(text) : -ENODATA;
    }
    buffer_get_report(inode->buffer, &report);
    if (strcmp(name, "shares") == 0)
        return snprintf(text, RESIDENT_TEXT_BYTES, "%u", report.shares);
    if (strcmp(name, "resident_bytes") == 0)
        return snprintf(text, RESIDENT_TEXT_BYTES, "%" PRIu64, report.resident_bytes);
    if (strcmp(name, "dirty_bytes") == 0)
        return snprintf(text, RESIDENT_TEXT_BYTES, "%" PRIu64, report.dirty_bytes);
    if (strcmp(name, "length_bytes") == 0)
        return snprintf(text, RESIDENT_TEXT_BYTES, "%" PRIu64, report.length_bytes);
    if (strcmp(name, "state") == 0)
        return snprintf(text, RESIDENT_TEXT_BYTES, "%s", buffer_state_name(report.state));
    return -ENODATA;
}

/* NULL: replied. Virtual files have no attributes and take none. */
static struct inode *xattr_inode(fuse_req_t req, fuse_ino_t ino, int virtual_error)
{
    if (virtual_is(ino)) {
        fuse_reply_err(req, virtual_error);
        return NULL;
    }
    return request_inode(req, ino);
}

static void handle_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    enum inode_acl_kind kind;
    struct inode *inode = xattr_inode(req, ino, ENODATA);
    if (!inode)
        return;
    if (is_acl(req, name, &kind)) {
        reply_get_acl(req, inode, kind, size);
        return;
    }
    errint_t error = check_name(name, false);
    if (error) {
        fuse_reply_err(req, -error);
        return;
    }
    if (has_prefix(name, RESIDENT_PREFIX)) {
        char text[RESIDENT_TEXT_BYTES];
        ssize_t length =
            resident_text(request_fs(req), inode, name + strlen(RESIDENT_PREFIX), text);
        reply_value(req, length, text, size);
        return;
    }

    size = MIN(size, (size_t)XATTR_LIST_VALUE_MAX_BYTES);
    cleanup_free char *value = size ? malloc(size) : NULL;
    if (size && !value) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    pthread_mutex_lock(&inode->mutex);
    ssize_t length = xattr_list_get(inode->xattrs, name, value, size);
    pthread_mutex_unlock(&inode->mutex);
    reply_value(req, length, value, size);
}

/* As xattr_list_names. The ACLs come first, as on tmpfs. */
static ssize_t list_names(const struct inode *inode, bool trusted, char *names, size_t size)
{
    ssize_t acls = names_of_acls(inode, names, size);
    if (acls < 0)
        return acls;
    size_t room = size - MIN(size, (size_t)acls);
    ssize_t others = xattr_list_names(inode->xattrs, trusted, room ? names + acls : NULL, room);
    return others < 0 ? others : acls + others; /* more than SIZE if there was no room */
}

static void handle_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
    if (virtual_is(ino)) {
        reply_value(req, 0, "", size);
        return;
    }
    struct inode *inode = request_inode(req, ino);
    if (!inode)
        return;

    size = MIN(size, (size_t)XATTR_LIST_NAMES_MAX_BYTES);
    cleanup_free char *names = size ? malloc(size) : NULL;
    if (size && !names) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    /* trusted.* is for CAP_SYS_ADMIN; of capabilities a request tells no more than this. */
    bool trusted = fuse_req_ctx(req)->uid == 0;
    pthread_mutex_lock(&inode->mutex);
    ssize_t length = list_names(inode, trusted, names, size);
    pthread_mutex_unlock(&inode->mutex);
    reply_value(req, length, names, size);
}

/* With the inode's mutex held: the new one is charged before, the old one uncharged after. */
static errint_t set_xattr_locked(struct inode *inode, const char *name, const void *value,
                                 size_t size, int flags)
{
    uint64_t before = xattr_list_bytes(inode->xattrs),
             charge = strlen(name) + 1 + size + XATTR_LIST_KEEPING_BYTES;
    errint_t error = inode_charge_locked(inode, charge);
    if (error)
        return error;
    error = xattr_list_set(&inode->xattrs, name, value, size, flags);
    inode_uncharge_locked(inode, before + charge - xattr_list_bytes(inode->xattrs));
    if (!error)
        inode_touch_locked(inode, INODE_TOUCH_CTIME);
    return error;
}

static void handle_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
                            size_t size, int flags)
{
    enum inode_acl_kind kind;
    struct inode *inode = xattr_inode(req, ino, EPERM);
    if (!inode)
        return;
    if (is_acl(req, name, &kind)) {
        struct acl *acl;
        errint_t error = acl_parse(value, size, &acl);
        if (error)
            fuse_reply_err(req, -error);
        else
            reply_set_acl(req, inode, kind, acl);
        return;
    }
    errint_t error = check_name(name, true);
    if (!error) {
        pthread_mutex_lock(&inode->mutex);
        error = set_xattr_locked(inode, name, value, size, flags);
        pthread_mutex_unlock(&inode->mutex);
    }
    fuse_reply_err(req, -error);
}

static void handle_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    enum inode_acl_kind kind;
    struct inode *inode = xattr_inode(req, ino, EPERM);
    if (!inode)
        return;
    if (is_acl(req, name, &kind)) {
        reply_set_acl(req, inode, kind, NULL);
        return;
    }
    errint_t error = check_name(name, true);
    if (!error) {
        pthread_mutex_lock(&inode->mutex);
        error = inode_remove_xattr_locked(inode, name);
        if (!error)
            inode_touch_locked(inode, INODE_TOUCH_CTIME);
        pthread_mutex_unlock(&inode->mutex);
    }
    fuse_reply_err(req, -error);
}

void xattr_operations(struct fuse_lowlevel_ops *ops)
{
    ops->getxattr = handle_getxattr;
    ops->listxattr = handle_listxattr;
    ops->setxattr = handle_setxattr;
    ops->removexattr = handle_removexattr;
}
