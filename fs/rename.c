/*
 * rename and exchange. Within one directory a rename needs only that directory's lock, unless it
 * replaces another directory; everything else is done under rename_mutex, so that no two requests
 * wait for each other's directories and the tree above stands still meanwhile.
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

    struct inode *victim; /* out: gives back one reference once all locks are released */
};

/* Whether the directory is INODE or lies below it. rename_mutex is held: no parent changes. */
static bool is_below(struct residentfs *fs, const struct inode *directory,
                     const struct inode *inode)
{
    uint64_t ino = directory->ino;
    while (ino && ino != INODE_ROOT && ino != inode->ino) {
        struct inode *step = inode_table_find(fs->inodes, ino);
        if (!step)
            return false;
        pthread_mutex_lock(&step->mutex);
        ino = step->parent_ino;
        pthread_mutex_unlock(&step->mutex);
    }
    return ino == inode->ino;
}

static bool links_are_full(struct inode *inode)
{
    pthread_mutex_lock(&inode->mutex);
    bool full = inode->nlink >= INODE_LINKS_MAX;
    pthread_mutex_unlock(&inode->mutex);
    return full;
}

/* The inode is now named by ENTRY of PARENT. */
static void moved(struct inode *inode, const struct inode *parent,
                  const struct directory_entry *entry)
{
    pthread_mutex_lock(&inode->mutex);
    namespace_name_added(inode, parent, entry);
    inode_touch_locked(inode, INODE_TOUCH_CTIME);
    pthread_mutex_unlock(&inode->mutex);
}

/* Both entries are there and name different inodes. */
static errint_t exchange(struct rename *rename, struct directory_entry *from,
                         struct directory_entry *to)
{
    struct inode *a = from->inode, *b = to->inode;
    int a_directory = S_ISDIR(a->type) ? 1 : 0, b_directory = S_ISDIR(b->type) ? 1 : 0;
    int delta = 0;

    if (rename->parent != rename->new_parent) {
        if ((a_directory && is_below(rename->fs, rename->new_parent, a)) ||
            (b_directory && is_below(rename->fs, rename->parent, b)))
            return -EINVAL;
        delta = a_directory - b_directory;
        if ((delta > 0 && links_are_full(rename->new_parent)) ||
            (delta < 0 && links_are_full(rename->parent)))
            return -EMLINK;
    }
    from->inode = b;
    to->inode = a;
    moved(a, rename->new_parent, to);
    moved(b, rename->parent, from);
    namespace_parent_changed(rename->parent, -delta);
    if (rename->parent != rename->new_parent)
        namespace_parent_changed(rename->new_parent, delta);
    return 0;
}

/* Makes sure that INODE may take the place of VICTIM; a directory can be used no more after. */
static errint_t retire(const struct rename *rename, const struct inode *inode, struct inode *victim)
{
    if (S_ISDIR(inode->type) && !S_ISDIR(victim->type))
        return -ENOTDIR;
    if (!S_ISDIR(inode->type) && S_ISDIR(victim->type))
        return -EISDIR;
    if (!S_ISDIR(victim->type))
        return 0;
    /* The old parent lies in there: it is not empty, and locked already. */
    if (victim == rename->parent)
        return -ENOTEMPTY;
    if (!rename->exclusive)
        return -EAGAIN;

    return namespace_retire_directory(victim);
}

/* TO is NULL when there is no such entry yet. */
static errint_t move(struct rename *rename, struct directory_entry *from,
                     struct directory_entry *to)
{
    struct directory *directory = rename->new_parent->directory;
    struct inode *inode = from->inode;
    int is_directory = S_ISDIR(inode->type) ? 1 : 0;
    bool crosses = rename->parent != rename->new_parent;
    errint_t error;

    if (is_directory && crosses && is_below(rename->fs, rename->new_parent, inode))
        return -EINVAL;
    if (is_directory && crosses && !to && links_are_full(rename->new_parent))
        return -EMLINK;
    error = to ? retire(rename, inode, to->inode)
               : directory_insert(directory, rename->new_name, inode, &to);
    if (error)
        return error;

    if (to->inode != inode) {
        if (namespace_drop_link(to->inode, rename->new_parent, to->cookie))
            rename->victim = to->inode;
        to->inode = inode;
        if (is_directory)
            namespace_parent_changed(rename->new_parent, -1);
    }
    moved(inode, rename->new_parent, to);
    directory_remove(rename->parent->directory, from);
    namespace_parent_changed(rename->parent, crosses ? -is_directory : 0);
    if (crosses)
        namespace_parent_changed(rename->new_parent, is_directory);
    return 0;
}

/* Both directories are locked. -EAGAIN: try again with rename_mutex. */
static errint_t rename_locked(struct rename *rename)
{
    struct directory_entry *from = directory_find(rename->parent->directory, rename->name);
    struct directory_entry *to = directory_find(rename->new_parent->directory, rename->new_name);

    if (!from || rename->new_parent->directory->removed)
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
    struct directory *directory = rename->parent->directory;
    struct directory *new_directory = rename->new_parent->directory;

    pthread_rwlock_wrlock(&directory->lock);
    if (new_directory != directory)
        pthread_rwlock_wrlock(&new_directory->lock);
    errint_t error = rename_locked(rename);
    if (new_directory != directory)
        pthread_rwlock_unlock(&new_directory->lock);
    pthread_rwlock_unlock(&directory->lock);
    return error;
}

static errint_t do_rename(struct rename *rename)
{
    errint_t error = -EAGAIN;

    if (rename->parent == rename->new_parent)
        error = rename_once(rename);
    if (error == -EAGAIN) {
        pthread_mutex_lock(&rename->fs->rename_mutex);
        rename->exclusive = true;
        error = rename_once(rename);
        pthread_mutex_unlock(&rename->fs->rename_mutex);
    }
    if (rename->victim) {
        inode_unlinked(rename->victim);
        inode_unref(rename->fs->inodes, rename->victim, 1);
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

void rename_handle(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
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
