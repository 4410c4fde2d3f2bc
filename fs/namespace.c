#include "fs/namespace.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/inode_acl.h"

/* -- shared ------------------------------------------------------------------------------------ */

struct inode *request_inode(fuse_req_t req, fuse_ino_t ino)
{
    struct inode *inode = inode_table_find(request_fs(req)->inodes, ino);
    if (!inode)
        fuse_reply_err(req, ESTALE);
    return inode;
}

bool namespace_is_virtual(fuse_ino_t parent, const char *name)
{
    return virtual_is(parent) || (parent == INODE_ROOT && virtual_lookup(parent, name));
}

errint_t namespace_reserve_entry(struct inode *parent, bool is_directory)
{
    errint_t error = 0;

    pthread_mutex_lock(&parent->mutex);
    if (parent->nlink == 0) {
        error = -ENOENT;
    } else if (is_directory && parent->nlink >= INODE_LINKS_MAX) {
        error = -EMLINK;
    } else {
        parent->entries++;
        parent->nlink += is_directory;
    }
    pthread_mutex_unlock(&parent->mutex);
    return error;
}

void namespace_unreserve_entry(struct inode *parent, bool is_directory)
{
    pthread_mutex_lock(&parent->mutex);
    parent->entries--;
    parent->nlink -= is_directory;
    pthread_mutex_unlock(&parent->mutex);
}

void namespace_entry_added(struct inode *parent)
{
    inode_touch(parent, INODE_TOUCH_MTIME | INODE_TOUCH_CTIME);
}

void namespace_entry_removed(struct inode *parent, bool is_directory)
{
    pthread_mutex_lock(&parent->mutex);
    parent->entries--;
    parent->nlink -= is_directory;
    inode_touch_locked(parent, INODE_TOUCH_MTIME | INODE_TOUCH_CTIME);
    pthread_mutex_unlock(&parent->mutex);
}

void namespace_named(struct inode *inode, const struct inode *parent,
                     const struct directory_entry *entry)
{
    inode->parent_ino = parent->ino;
    inode->parent_cookie = entry->cookie;
}

errint_t namespace_unlink(const struct inode *parent, const struct directory_entry *entry,
                          uint64_t *unrefs)
{
    struct inode *inode = entry->inode;

    pthread_mutex_lock(&inode->mutex);
    if (inode->entries) {
        pthread_mutex_unlock(&inode->mutex);
        return -ENOTEMPTY;
    }
    inode->nlink = S_ISDIR(inode->type) ? 0 : inode->nlink - 1;
    *unrefs += inode->nlink == 0;
    if (inode->nlink > 0)
        inode_uncharge_locked(inode, INODE_CHARGE_BYTES);
    if (inode->parent_ino == parent->ino && inode->parent_cookie == entry->cookie)
        inode->parent_ino = inode->parent_cookie = 0;
    inode_touch_locked(inode, INODE_TOUCH_CTIME);
    pthread_mutex_unlock(&inode->mutex);
    return 0;
}

void namespace_fill_entry(struct residentfs *fs, struct inode *inode,
                          struct fuse_entry_param *entry)
{
    memset(entry, 0, sizeof(*entry));
    entry->ino = inode->ino;
    /* Numbers are used once in a mount; with the generation, once in all mounts. */
    entry->generation = inode->ino == INODE_ROOT ? 0 : fs->generation;
    entry->entry_timeout = fs->conf->entry_timeout_s;
    entry->attr_timeout = fs->conf->attr_timeout_s;
    inode_stat(inode, &entry->attr);
}

/* The kernel gets the caller's lookup, unless it does not want the reply any more. */
static void reply_entry(fuse_req_t req, struct residentfs *fs, struct inode *inode,
                        const struct fuse_entry_param *entry)
{
    if (fuse_reply_entry(req, entry) == -ENOENT)
        inode_forget(fs->inodes, inode, 1);
}

/* -- lookup and forget ------------------------------------------------------------------------- */

static void reply_virtual_entry(fuse_req_t req, struct residentfs *fs, uint64_t ino)
{
    struct fuse_entry_param entry = {.ino = ino, .generation = 1};
    entry.entry_timeout = fs->conf->entry_timeout_s;
    virtual_stat(fs, ino, &entry.attr);
    fuse_reply_entry(req, &entry);
}

/* Also for a name that there is not, which the kernel may remember. */
static void reply_no_entry(fuse_req_t req, struct residentfs *fs)
{
    struct fuse_entry_param entry = {.ino = 0, .entry_timeout = fs->conf->entry_timeout_s};
    fuse_reply_entry(req, &entry);
}

/* The kernel asks for "." and ".." of a number that came in a handle (open_by_handle_at, NFS) and
 * of which it may know nothing any more. */
static void lookup_by_handle(fuse_req_t req, fuse_ino_t ino, bool parent)
{
    struct residentfs *fs = request_fs(req);
    struct inode *inode = inode_table_get(fs->inodes, ino);

    if (inode && parent) {
        struct inode *child = inode;
        pthread_mutex_lock(&child->mutex);
        uint64_t parent_ino = child->parent_ino;
        pthread_mutex_unlock(&child->mutex);
        inode_unref(fs->inodes, child, 1);
        inode = inode_table_get(fs->inodes, parent_ino);
    }
    if (!inode) {
        fuse_reply_err(req, ESTALE);
        return;
    }
    inode_lookup_added(inode);
    struct fuse_entry_param entry;
    namespace_fill_entry(fs, inode, &entry);
    reply_entry(req, fs, inode, &entry);
    inode_unref(fs->inodes, inode, 1);
}

static void handle_lookup(fuse_req_t req, fuse_ino_t parent_ino, const char *name)
{
    struct residentfs *fs = request_fs(req);

    if (strlen(name) > DIRECTORY_NAME_MAX) {
        fuse_reply_err(req, ENAMETOOLONG);
        return;
    }
    if (virtual_is(parent_ino) || parent_ino == INODE_ROOT) {
        uint64_t ino = virtual_lookup(parent_ino, name);
        if (ino) {
            reply_virtual_entry(req, fs, ino);
            return;
        }
        if (virtual_is(parent_ino)) {
            reply_no_entry(req, fs);
            return;
        }
    }

    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        lookup_by_handle(req, parent_ino, name[1] == '.');
        return;
    }

    struct inode *parent = request_inode(req, parent_ino);
    if (!parent)
        return;
    if (!S_ISDIR(parent->type)) {
        fuse_reply_err(req, ENOTDIR);
        return;
    }

    struct inode *inode = NULL;
    pthread_rwlock_rdlock(&parent->directory->lock);
    struct directory_entry *found = directory_find(parent->directory, name);
    if (found) {
        inode = found->inode;
        inode_lookup_added(inode);
    }
    pthread_rwlock_unlock(&parent->directory->lock);

    if (!inode) {
        reply_no_entry(req, fs);
        return;
    }
    struct fuse_entry_param entry;
    namespace_fill_entry(fs, inode, &entry);
    reply_entry(req, fs, inode, &entry);
}

static void forget_one(struct residentfs *fs, fuse_ino_t ino, uint64_t count)
{
    struct inode *inode = virtual_is(ino) ? NULL : inode_table_find(fs->inodes, ino);
    if (inode)
        inode_forget(fs->inodes, inode, count);
}

static void handle_forget(fuse_req_t req, fuse_ino_t ino, uint64_t count)
{
    forget_one(request_fs(req), ino, count);
    fuse_reply_none(req);
}

static void handle_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    for (size_t i = 0; i < count; i++)
        forget_one(request_fs(req), forgets[i].ino, forgets[i].nlookup);
    fuse_reply_none(req);
}

/* -- new nodes --------------------------------------------------------------------------------- */

struct inode *namespace_new_inode(fuse_req_t req, struct inode *parent, mode_t mode, dev_t rdev,
                                  const char *target)
{
    struct residentfs *fs = request_fs(req);
    const struct fuse_ctx *context = fuse_req_ctx(req);
    gid_t gid = context->gid;
    struct inode_acls acls;

    pthread_mutex_lock(&parent->mutex);
    if (parent->mode & S_ISGID) {
        gid = parent->gid;
        if (S_ISDIR(mode))
            mode |= S_ISGID;
    }
    errint_t error = inode_acls_inherit_locked(parent, context->umask, &mode, &acls);
    pthread_mutex_unlock(&parent->mutex);
    if (error) {
        errno = -error;
        return NULL;
    }

    struct inode *inode =
        inode_create(fs->inodes, fs->device, mode, context->uid, gid, rdev, target);
    if (!inode && errno == ENOSPC && inode_table_settle(fs->inodes))
        inode = inode_create(fs->inodes, fs->device, mode, context->uid, gid, rdev, target);
    if (!inode) {
        error = -errno;
        inode_acls_finish(&acls);
        errno = -error;
        return NULL;
    }
    pthread_mutex_lock(&inode->mutex);
    inode->acls = acls;
    pthread_mutex_unlock(&inode->mutex);
    return inode;
}

/* The inode, made but nowhere yet, is put into the directory. Its one reference is the link's then.
 */
static errint_t publish(struct inode *parent, const char *name, struct inode *inode)
{
    bool is_directory = S_ISDIR(inode->type);
    struct directory_entry *entry;

    errint_t error = namespace_reserve_entry(parent, is_directory);
    if (error)
        return error;
    error = directory_insert(parent->directory, name, inode, &entry);
    if (error) {
        namespace_unreserve_entry(parent, is_directory);
        return error;
    }
    pthread_mutex_lock(&inode->mutex);
    if (!is_directory)
        inode->nlink = 1;
    namespace_named(inode, parent, entry);
    pthread_mutex_unlock(&inode->mutex);
    inode_lookup_added(inode);
    namespace_entry_added(parent);
    return 0;
}

static errint_t create_node(struct residentfs *fs, fuse_req_t req, struct inode *parent,
                            const char *name, mode_t mode, dev_t rdev, const char *target,
                            struct inode **out, struct fuse_entry_param *entry)
{
    if (!S_ISDIR(parent->type))
        return -ENOTDIR;
    if (strlen(name) > DIRECTORY_NAME_MAX)
        return -ENAMETOOLONG;
    if (namespace_is_virtual(parent->ino, name))
        return -EEXIST;

    struct inode *inode = namespace_new_inode(req, parent, mode, rdev, target);
    if (!inode)
        return -errno;
    pthread_rwlock_wrlock(&parent->directory->lock);
    errint_t error = publish(parent, name, inode);
    pthread_rwlock_unlock(&parent->directory->lock);
    if (error) {
        inode_unref(fs->inodes, inode, 1);
        return error;
    }
    namespace_fill_entry(fs, inode, entry);
    *out = inode;
    return 0;
}

errint_t namespace_create(struct residentfs *fs, fuse_req_t req, struct inode *parent,
                          const char *name, mode_t mode, dev_t rdev, struct inode **out,
                          struct fuse_entry_param *entry)
{
    return create_node(fs, req, parent, name, mode, rdev, NULL, out, entry);
}

errint_t namespace_create_nameless(struct residentfs *fs, fuse_req_t req, struct inode *parent,
                                   mode_t mode, bool linkable, struct inode **out,
                                   struct fuse_entry_param *entry)
{
    if (!S_ISDIR(parent->type))
        return -ENOTDIR;
    struct inode *inode = namespace_new_inode(req, parent, mode, 0, NULL);
    if (!inode)
        return -errno;
    inode->linkable = linkable; /* nobody else knows the inode yet */
    inode_lookup_added(inode);
    inode_unref(fs->inodes, inode, 1);
    namespace_fill_entry(fs, inode, entry);
    *out = inode;
    return 0;
}

static void reply_new_node(fuse_req_t req, fuse_ino_t parent_ino, const char *name, mode_t mode,
                           dev_t rdev, const char *target)
{
    struct residentfs *fs = request_fs(req);
    struct fuse_entry_param entry;
    struct inode *inode;

    if (virtual_is(parent_ino)) {
        fuse_reply_err(req, virtual_lookup(parent_ino, name) ? EEXIST : EPERM);
        return;
    }
    struct inode *parent = request_inode(req, parent_ino);
    if (!parent)
        return;
    errint_t error = create_node(fs, req, parent, name, mode, rdev, target, &inode, &entry);
    if (error)
        fuse_reply_err(req, -error);
    else
        reply_entry(req, fs, inode, &entry);
}

static void handle_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                         dev_t rdev)
{
    if (S_ISDIR(mode) || S_ISLNK(mode)) {
        fuse_reply_err(req, EINVAL);
        return;
    }
    reply_new_node(req, parent, name, mode & S_IFMT ? mode : mode | S_IFREG, rdev, NULL);
}

static void handle_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    reply_new_node(req, parent, name, S_IFDIR | (mode & 07777), 0, NULL);
}

static void handle_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    reply_new_node(req, parent, name, S_IFLNK | 0777, 0, target);
}

static void handle_readlink(fuse_req_t req, fuse_ino_t ino)
{
    struct residentfs *fs = request_fs(req);

    if (virtual_is(ino)) {
        fuse_reply_err(req, EINVAL);
        return;
    }
    struct inode *inode = request_inode(req, ino);
    if (!inode)
        return;
    if (!S_ISLNK(inode->type)) {
        fuse_reply_err(req, EINVAL);
        return;
    }
    namespace_accessed(fs, inode);
    /* The reply is made of the inode's own memory, so it must outlive it. */
    inode_ref(inode, 1);
    fuse_reply_readlink(req, inode->target);
    inode_unref(fs->inodes, inode, 1);
}

/* -- more and fewer names ---------------------------------------------------------------------- */

/*
 * One more name for the inode. Its last one may go meanwhile; then it cannot come back. The first
 * name of a file that was made without one takes a reference, like every first name.
 */
static errint_t count_link(struct inode_table *table, struct inode *inode,
                           const struct inode *parent, const struct directory_entry *entry)
{
    errint_t error = 0;

    pthread_mutex_lock(&inode->mutex);
    if (inode->nlink == 0 && !inode->linkable)
        error = -ENOENT;
    else if (inode->nlink >= INODE_LINKS_MAX)
        error = -EMLINK;
    else if (inode->nlink > 0)
        error = inode_charge_locked(inode, INODE_CHARGE_BYTES);
    if (!error) {
        if (inode->nlink == 0)
            inode_ref(inode, 1);
        inode->nlink++;
        inode->linkable = false;
        inode_linked_locked(table, inode);
        inode_touch_locked(inode, INODE_TOUCH_CTIME);
        namespace_named(inode, parent, entry);
    }
    pthread_mutex_unlock(&inode->mutex);
    return error;
}

static errint_t add_link(struct inode_table *table, struct inode *parent, const char *name,
                         struct inode *inode)
{
    struct directory_entry *entry;

    errint_t error = namespace_reserve_entry(parent, false);
    if (error)
        return error;
    error = directory_insert(parent->directory, name, inode, &entry);
    if (!error) {
        error = count_link(table, inode, parent, entry);
        if (error)
            directory_remove(parent->directory, entry);
    }
    if (error) {
        namespace_unreserve_entry(parent, false);
        return error;
    }
    inode_lookup_added(inode);
    namespace_entry_added(parent);
    return 0;
}

static void handle_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent_ino, const char *name)
{
    struct residentfs *fs = request_fs(req);

    if (namespace_is_virtual(parent_ino, name)) {
        fuse_reply_err(req, virtual_lookup(parent_ino, name) ? EEXIST : EPERM);
        return;
    }
    if (virtual_is(ino)) {
        fuse_reply_err(req, EPERM);
        return;
    }
    struct inode *inode = request_inode(req, ino);
    if (!inode)
        return;
    struct inode *parent = request_inode(req, parent_ino);
    if (!parent)
        return;

    errint_t error = S_ISDIR(inode->type) ? -EPERM : S_ISDIR(parent->type) ? 0 : -ENOTDIR;
    if (!error) {
        pthread_rwlock_wrlock(&parent->directory->lock);
        error = add_link(fs->inodes, parent, name, inode);
        pthread_rwlock_unlock(&parent->directory->lock);
    }
    if (error) {
        fuse_reply_err(req, -error);
        return;
    }
    struct fuse_entry_param entry;
    namespace_fill_entry(fs, inode, &entry);
    reply_entry(req, fs, inode, &entry);
}

/* *INODE and *UNREFS: what to give back once the lock is released. */
static errint_t remove_entry(struct inode *parent, const char *name, bool is_directory,
                             struct inode **inode, uint64_t *unrefs)
{
    struct directory_entry *entry = directory_find(parent->directory, name);
    if (!entry)
        return -ENOENT;
    if (!is_directory && S_ISDIR(entry->inode->type))
        return -EISDIR;
    if (is_directory && !S_ISDIR(entry->inode->type))
        return -ENOTDIR;

    *inode = entry->inode;
    errint_t error = namespace_unlink(parent, entry, unrefs);
    if (error)
        return error;
    directory_remove(parent->directory, entry);
    namespace_entry_removed(parent, is_directory);
    return 0;
}

static void reply_removal(fuse_req_t req, fuse_ino_t parent_ino, const char *name,
                          bool is_directory)
{
    struct inode *inode = NULL;
    uint64_t unrefs = 0;

    if (namespace_is_virtual(parent_ino, name)) {
        fuse_reply_err(req, EPERM);
        return;
    }
    struct inode *parent = request_inode(req, parent_ino);
    if (!parent)
        return;
    errint_t error = !S_ISDIR(parent->type)              ? -ENOTDIR
                     : strlen(name) > DIRECTORY_NAME_MAX ? -ENAMETOOLONG
                                                         : 0;
    if (!error) {
        pthread_rwlock_wrlock(&parent->directory->lock);
        error = remove_entry(parent, name, is_directory, &inode, &unrefs);
        pthread_rwlock_unlock(&parent->directory->lock);
    }
    if (unrefs) {
        inode_unlinked(request_fs(req)->inodes, inode);
        inode_unref(request_fs(req)->inodes, inode, unrefs);
    }
    fuse_reply_err(req, -error);
}

static void handle_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    reply_removal(req, parent, name, false);
}

static void handle_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    reply_removal(req, parent, name, true);
}

/* -- the whole --------------------------------------------------------------------------------- */

errint_t namespace_init(struct residentfs *fs)
{
    pthread_mutex_init(&fs->rename_mutex, NULL);
    fs->root = NULL;
    fs->inodes = inode_table_create(fs->conf->max_files);
    if (!fs->inodes)
        return -ENOMEM;
    fs->root = inode_create_root(fs->inodes, fs->conf->root_mode, fs->conf->uid, fs->conf->gid);
    if (!fs->root)
        return -errno;
    fs->root->parent_ino = INODE_ROOT;
    return 0;
}

void namespace_finish(struct residentfs *fs)
{
    readdir_finish(fs);
    inode_table_destroy(fs->inodes);
    fs->inodes = NULL;
    fs->root = NULL;
    pthread_mutex_destroy(&fs->rename_mutex);
}

void namespace_operations(struct fuse_lowlevel_ops *ops)
{
    ops->lookup = handle_lookup;
    ops->forget = handle_forget;
    ops->forget_multi = handle_forget_multi;
    ops->mknod = handle_mknod;
    ops->mkdir = handle_mkdir;
    ops->symlink = handle_symlink;
    ops->readlink = handle_readlink;
    ops->link = handle_link;
    ops->unlink = handle_unlink;
    ops->rmdir = handle_rmdir;
    ops->rename = handle_rename;
    readdir_operations(ops);
    attributes_operations(ops);
    xattr_operations(ops);
}
