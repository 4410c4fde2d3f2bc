#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/namespace.h"

/* Deeper ones are shown from the middle on, after "...". */
#define PATH_DEPTH_MAX 1000

/* A string that grows at its front. */
struct path {
    char *bytes; /* owned */
    size_t start, capacity;
};

static bool path_prepend(struct path *path, const char *text, size_t length)
{
    if (path->start < length) {
        size_t used = path->capacity - path->start;
        size_t capacity = 2 * (used + length) + 64;
        char *bytes = malloc(capacity);
        if (!bytes)
            return false;
        if (used)
            memcpy(bytes + capacity - used, path->bytes + path->start, used);
        free(path->bytes);
        *path = (struct path){bytes, capacity - used, capacity};
    }
    path->start -= length;
    memcpy(path->bytes + path->start, text, length);
    return true;
}

static bool path_prepend_name(struct path *path, const char *name)
{
    char escaped[1 + 4 * DIRECTORY_NAME_MAX + 1] = "/";
    size_t length = 1;

    for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
        if (*c < ' ' || *c == 0x7f || *c == '\\')
            length += (size_t)snprintf(escaped + length, sizeof(escaped) - length, "\\x%02x", *c);
        else
            escaped[length++] = (char)*c;
    }
    return path_prepend(path, escaped, length);
}

/* The directory that holds the inode's last name, with a reference, and a copy of the name. */
static struct inode *get_parent(struct residentfs *fs, struct inode *inode,
                                char name[DIRECTORY_NAME_MAX + 1])
{
    pthread_mutex_lock(&inode->mutex);
    uint64_t ino = inode->parent_ino, cookie = inode->parent_cookie;
    pthread_mutex_unlock(&inode->mutex);

    struct inode *parent = ino ? inode_table_get(fs->inodes, ino) : NULL;
    if (!parent)
        return NULL;
    pthread_rwlock_rdlock(&parent->directory->lock);
    const struct directory_entry *entry = directory_at(parent->directory, cookie);
    bool found = entry && entry->inode == inode;
    if (found)
        memcpy(name, entry->name, (size_t)entry->name_length + 1);
    pthread_rwlock_unlock(&parent->directory->lock);
    if (!found) {
        inode_unref(fs->inodes, parent, 1);
        return NULL;
    }
    return parent;
}

static char *path_without_name(struct inode *inode)
{
    pthread_mutex_lock(&inode->mutex);
    bool linked = inode->nlink != 0;
    pthread_mutex_unlock(&inode->mutex);
    return strdup(linked ? "(hard link)" : "(unlinked)");
}

char *namespace_path(struct residentfs *fs, struct inode *inode)
{
    struct path path = {NULL};
    char name[DIRECTORY_NAME_MAX + 1];
    bool whole = true, enough_memory = path_prepend(&path, "", 1);
    unsigned int depth = 0;

    if (enough_memory && inode == fs->root)
        enough_memory = path_prepend(&path, "/", 1);
    inode_ref(inode, 1);
    while (enough_memory && whole && inode != fs->root) {
        struct inode *parent = depth++ < PATH_DEPTH_MAX ? get_parent(fs, inode, name) : NULL;
        if (parent) {
            enough_memory = path_prepend_name(&path, name);
            inode_unref(fs->inodes, inode, 1);
            inode = parent;
        } else {
            whole = false;
        }
    }

    char *result = NULL;
    if (enough_memory && !whole && depth == 1)
        result = path_without_name(inode);
    else if (enough_memory && !whole)
        enough_memory = path_prepend(&path, "...", 3);
    if (enough_memory && !result)
        result = strdup(path.bytes + path.start);
    inode_unref(fs->inodes, inode, 1);
    free(path.bytes);
    return result;
}
