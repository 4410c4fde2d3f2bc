/*
 * rename and exchange. Both directories are locked, in the order of their numbers. Only when a
 * directory gets another parent is rename_mutex held as well, so that the tree above stands still
 * while we make sure that nothing is put below itself.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/namespace.h"

struct rename {
    struct residentfs *fs;
    struct inode *parent, *new_parent;
    const char *name, *new_name;
    unsigned int flags;
    bool exclusive; /* rename_mutex is held */

    /* Out: what to give back once all locks are released. */
    struct inode *victim;
    uint64_t victim_unrefs;
};

/*
 * Whether the directory is INODE or lies below it. rename_mutex is held. If the directory is
 * removed meanwhile the answer may be wrong, but then no entry can be made in it either.
 */
static bool is_below(struct residentfs *fs, const struct inode *directory,
                     const struct inode *inode)
{
    uint64_t ino = directory->ino;
    while (ino && ino != INODE_ROOT && ino != inode->ino) {
        struct inode *step = inode_table_get(fs->inodes, ino);
        if (!step)
            return false;
        pthread_mutex_lock(&step->mutex);
        ino = step->parent_ino;
        pthread_mutex_unlock(&step->mutex);
        inode_unref(fs->inodes, step, 1);
    }
    return ino == inode->ino;
}

/* Whether the inode, if it is a directory, may go to another parent. -EAGAIN: not exclusive. */
static errint_t check_move(const struct rename *rename, const struct inode *inode,
                           const struct inode *new_parent)
{
    if (!S_ISDIR(inode->type) || rename->parent == rename->new_parent)
        return 0;
    if (!rename->exclusive)
        return -EAGAIN;
    return is_below(rename->fs, new_parent, inode) ? -EINVAL : 0;
}

/* The inode is now named by ENTRY of PARENT. */
static void moved(struct inode *inode, const struct inode *parent,
                  const struct directory_entry *entry)
{
    pthread_mutex_lock(&inode->mutex);
    namespace_named(inode, parent, entry);
    inode_touch_locked(inode, INODE_TOUCH_CTIME);
    pthread_mutex_unlock(&inode->mutex);
}

/* Both entries are there and name different inodes. */
static errint_t exchange(const struct rename *rename, struct directory_entry *from,
                         struct directory_entry *to)
{
    struct inode *inode = from->inode, *other = to->inode;
    bool is_directory = S_ISDIR(inode->type), other_is_directory = S_ISDIR(other->type);

    errint_t error = check_move(rename, inode, rename->new_parent);
    if (!error)
        error = check_move(rename, other, rename->parent);
    /* As if each came anew and then the other went. */
    if (!error)
        error = namespace_reserve_entry(rename->new_parent, is_directory);
    if (error)
        return error;
    error = namespace_reserve_entry(rename->parent, other_is_directory);
    if (error) {
        namespace_unreserve_entry(rename->new_parent, is_directory);
        return error;
    }
    from->inode = other;
    to->inode = inode;
    moved(inode, rename->new_parent, to);
    moved(other, rename->parent, from);
    namespace_entry_removed(rename->parent, is_directory);
    namespace_entry_removed(rename->new_parent, other_is_directory);
    return 0;
}

/* The inode takes the place of what TO names. */
static errint_t replace(struct rename *rename, struct inode *inode, struct directory_entry *to)
{
    if (S_ISDIR(inode->type) && !S_ISDIR(to->inode->type))
        return -ENOTDIR;
    if (!S_ISDIR(inode->type) && S_ISDIR(to->inode->type))
        return -EISDIR;

    rename->victim = to->inode;
    errint_t error = namespace_unlink(rename->new_parent, to, &rename->victim_unrefs);
    if (!error) {
        to->inode = inode;
        moved(inode, rename->new_parent, to);
        namespace_entry_added(rename->new_parent);
    }
    return error;
}

static errint_t insert(const struct rename *rename, struct inode *inode)
{
    bool is_directory = S_ISDIR(inode->type);
    struct directory_entry *to;

    errint_t error = namespace_reserve_entry(rename->new_parent, is_directory);
    if (error)
        return error;
    error = directory_insert(rename->new_parent->directory, rename->new_name, inode, &to);
    if (error) {
        namespace_unreserve_entry(rename->new_parent, is_directory);
        return error;
    }
    moved(inode, rename->new_parent, to);
    namespace_entry_added(rename->new_parent);
    return 0;
}

/* TO is NULL when there is no such entry yet. */
static errint_t move(struct rename *rename, struct directory_entry *from,
                     struct directory_entry *to)
{
    struct inode *inode = from->inode;

    errint_t error = check_move(rename, inode, rename->new_parent);
    if (!error)
        error = to ? replace(rename, inode, to) : insert(rename, inode);
    if (error)
        return error;
    directory_remove(rename->parent->directory, from);
    namespace_entry_removed(rename->parent, S_ISDIR(inode->type));
    return 0;
}

/* Both directories are locked. -EAGAIN: try again with rename_mutex. */
static errint_t rename_locked(struct rename *rename)
{
    struct directory_entry *from = directory_find(rename->parent->directory, rename->name);
    struct directory_entry *to = directory_find(rename->new_parent->directory, rename->new_name);

    if (!from)
        return -ENOENT;
    if (to && (rename->flags & RENAME_NOREPLACE))
        return -EEXIST;
    if (!to && (rename->flags & RENAME_EXCHANGE))
        return -ENOENT;
    if (to && to->inode == from->inode)
        return 0; /* POSIX: both names stay */
    return rename->flags & RENAME_EXCHANGE ? exchange(rename, from, to) : move(rename, from, to);
}

static errint_t rename_once(struct rename *rename)
{
    struct inode *first = rename->parent, *second = rename->new_parent;
    if (first->ino > second->ino) {
        first = rename->new_parent;
        second = rename->parent;
    }

    pthread_rwlock_wrlock(&first->directory->lock);
    if (second != first)
        pthread_rwlock_wrlock(&second->directory->lock);
    errint_t error = rename_locked(rename);
    if (second != first)
        pthread_rwlock_unlock(&second->directory->lock);
    pthread_rwlock_unlock(&first->directory->lock);
    return error;
}

static errint_t do_rename(struct rename *rename)
{
    errint_t error = rename_once(rename);
    if (error == -EAGAIN) {
        pthread_mutex_lock(&rename->fs->rename_mutex);
        rename->exclusive = true;
        error = rename_once(rename);
        pthread_mutex_unlock(&rename->fs->rename_mutex);
    }
    if (rename->victim_unrefs) {
        inode_unlinked(rename->fs->inodes, rename->victim);
        inode_unref(rename->fs->inodes, rename->victim, rename->victim_unrefs);
    }
    return error;
}

static errint_t check_names(fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
                            const char *new_name, unsigned int flags)
{
    if (strlen(name) > DIRECTORY_NAME_MAX || strlen(new_name) > DIRECTORY_NAME_MAX)
        return -ENAMETOOLONG;
    if ((flags & ~(unsigned int)(RENAME_NOREPLACE | RENAME_EXCHANGE)) ||
        flags == (RENAME_NOREPLACE | RENAME_EXCHANGE))
        return -EINVAL;
    if (namespace_is_virtual(parent, name) || namespace_is_virtual(new_parent, new_name))
        return -EPERM;
    return 0;
}

void handle_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
                   const char *new_name, unsigned int flags)
{
    struct rename rename = {
        .fs = request_fs(req), .name = name, .new_name = new_name, .flags = flags};

    errint_t error = check_names(parent, name, new_parent, new_name, flags);
    if (error) {
        fuse_reply_err(req, -error);
        return;
    }
    rename.parent = request_inode(req, parent);
    if (!rename.parent)
        return;
    rename.new_parent = request_inode(req, new_parent);
    if (!rename.new_parent)
        return;
    if (S_ISDIR(rename.parent->type) && S_ISDIR(rename.new_parent->type))
        error = do_rename(&rename);
    else
        error = -ENOTDIR;
    fuse_reply_err(req, -error);
}
