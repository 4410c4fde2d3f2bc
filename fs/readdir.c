/*
 * Listing directories. The offset of an entry is its cookie (fs/directory.h), so seekdir works with
 * any offset ever given out.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>

#include "fs/namespace.h"

/* fuse_file_info.fh of a directory; none for .resident. */
struct open_directory {
    struct handle handle;
    bool noatime;
    /* Entries made later are left out until the listing is started again. A listing that renames
     * each entry it is told of would else be told of it for ever. */
    _Atomic uint64_t last_cookie;
};

/* A reply in the making. */
struct listing {
    fuse_req_t req;
    uint64_t last_cookie;
    char *bytes; /* owned */
    size_t size, used;
};

/* An entry that is in the reply, as far as its attributes are still to come. */
struct pending_entry {
    struct inode *inode; /* with one lookup */
    uint64_t cookie;
    size_t name_offset, listing_offset;
};

static bool add_plain(struct listing *listing, const char *name, uint64_t ino, mode_t type,
                      uint64_t cookie)
{
    struct stat st = {.st_ino = ino, .st_mode = type};
    size_t room = listing->size - listing->used;
    size_t length = fuse_add_direntry(listing->req, listing->bytes + listing->used, room, name, &st,
                                      (off_t)cookie);
    if (length > room)
        return false;
    listing->used += length;
    return true;
}

/* Without an inode number in the entry the kernel takes no lookup: for "." and "..". */
static bool add_plus_without_lookup(struct listing *listing, const char *name, uint64_t ino,
                                    uint64_t cookie)
{
    struct fuse_entry_param entry = {.attr = {.st_ino = ino, .st_mode = S_IFDIR}};
    size_t room = listing->size - listing->used;
    size_t length = fuse_add_direntry_plus(listing->req, listing->bytes + listing->used, room, name,
                                           &entry, (off_t)cookie);
    if (length > room)
        return false;
    listing->used += length;
    return true;
}

/* The entry at *POSITION, if it belongs to the listing. The directory's lock is held. */
static struct directory_entry *next_entry(const struct listing *listing,
                                          const struct directory *directory, size_t *position)
{
    struct directory_entry *entry = directory_next(directory, position);
    return entry && entry->cookie <= listing->last_cookie ? entry : NULL;
}

/* "." and "..", if they come after the offset. False when the listing is full. */
static bool add_dots(struct listing *listing, struct inode *directory, uint64_t offset, bool plus)
{
    pthread_mutex_lock(&directory->mutex);
    uint64_t parent_ino = directory->parent_ino ? directory->parent_ino : directory->ino;
    pthread_mutex_unlock(&directory->mutex);

    const struct {
        const char *name;
        uint64_t ino, cookie;
    } dots[] = {{".", directory->ino, DIRECTORY_COOKIE_DOT},
                {"..", parent_ino, DIRECTORY_COOKIE_DOTDOT}};

    for (size_t i = 0; i < ARRAY_SIZE(dots); i++) {
        if (offset >= dots[i].cookie)
            continue;
        if (plus ? !add_plus_without_lookup(listing, dots[i].name, dots[i].ino, dots[i].cookie)
                 : !add_plain(listing, dots[i].name, dots[i].ino, S_IFDIR, dots[i].cookie))
            return false;
    }
    return true;
}

static void list_plain(struct listing *listing, struct inode *inode, uint64_t offset)
{
    struct directory *directory = inode->directory;
    struct directory_entry *entry;

    if (!add_dots(listing, inode, offset, false))
        return;
    pthread_rwlock_rdlock(&directory->lock);
    size_t position = directory_seek(directory, offset);
    while ((entry = next_entry(listing, directory, &position)) &&
           add_plain(listing, entry->name, entry->inode->ino, entry->inode->type, entry->cookie))
        ;
    pthread_rwlock_unlock(&directory->lock);
}

/*
 * Attributes are asked for without the directory's lock (a buffer may take its time), but which
 * entries fit depends only on their names. So: under the lock take lookups and copy names, then
 * fill in the entries.
 */
struct plus_listing {
    struct listing listing;
    struct pending_entry *entries; /* owned */
    char *names;                   /* owned */
    size_t count;
};

static size_t plus_entry_bytes(fuse_req_t req, const char *name)
{
    return fuse_add_direntry_plus(req, NULL, 0, name, NULL, 0);
}

static errint_t plus_listing_init(struct plus_listing *plus, fuse_req_t req, size_t size)
{
    memset(plus, 0, sizeof(*plus));
    plus->listing.req = req;
    plus->listing.size = size;
    plus->listing.bytes = malloc(size);
    plus->names = malloc(size); /* names are shorter than their entries */
    plus->entries = calloc(size / plus_entry_bytes(req, "x") + 1, sizeof(*plus->entries));
    return plus->listing.bytes && plus->names && plus->entries ? 0 : -ENOMEM;
}

static void plus_listing_finish(struct plus_listing *plus)
{
    free(plus->listing.bytes);
    free(plus->names);
    free(plus->entries);
}

static void gather_plus(struct plus_listing *plus, struct directory *directory, uint64_t offset)
{
    struct listing *listing = &plus->listing;
    struct directory_entry *entry;
    size_t names_used = 0;

    pthread_rwlock_rdlock(&directory->lock);
    size_t position = directory_seek(directory, offset);
    while ((entry = next_entry(listing, directory, &position))) {
        size_t length = plus_entry_bytes(listing->req, entry->name);
        if (length > listing->size - listing->used)
            break;
        inode_lookup_added(entry->inode);
        plus->entries[plus->count++] = (struct pending_entry){
            .inode = entry->inode,
            .cookie = entry->cookie,
            .name_offset = names_used,
            .listing_offset = listing->used,
        };
        memcpy(plus->names + names_used, entry->name, (size_t)entry->name_length + 1);
        names_used += (size_t)entry->name_length + 1;
        listing->used += length;
    }
    pthread_rwlock_unlock(&directory->lock);
}

static void list_plus(struct residentfs *fs, struct plus_listing *plus, struct inode *inode,
                      uint64_t offset)
{
    struct listing *listing = &plus->listing;

    if (!add_dots(listing, inode, offset, true))
        return;
    gather_plus(plus, inode->directory, offset);
    for (size_t i = 0; i < plus->count; i++) {
        const struct pending_entry *pending = &plus->entries[i];
        struct fuse_entry_param entry;
        namespace_fill_entry(fs, pending->inode, &entry);
        fuse_add_direntry_plus(listing->req, listing->bytes + pending->listing_offset,
                               listing->size - pending->listing_offset,
                               plus->names + pending->name_offset, &entry, (off_t)pending->cookie);
    }
}

/* -- handlers ---------------------------------------------------------------------------------- */

/* NULL: replied. */
static struct inode *request_directory(fuse_req_t req, fuse_ino_t ino)
{
    struct inode *inode = request_inode(req, ino);
    if (inode && !S_ISDIR(inode->type)) {
        fuse_reply_err(req, ENOTDIR);
        return NULL;
    }
    return inode;
}

static struct open_directory *open_directory_of(const struct fuse_file_info *fi)
{
    return (struct open_directory *)(uintptr_t)fi->fh;
}

static void open_directory_destroy(struct residentfs *fs, struct open_directory *open_directory)
{
    handle_list_remove(&fs->open_directories, &open_directory->handle);
    free(open_directory);
}

void readdir_finish(struct residentfs *fs)
{
    while (fs->open_directories.first)
        open_directory_destroy(fs, (struct open_directory *)fs->open_directories.first);
}

static void accessed(const struct residentfs *fs, struct inode *inode,
                     const struct fuse_file_info *fi)
{
    if (!open_directory_of(fi)->noatime)
        namespace_accessed(fs, inode);
}

static uint64_t last_cookie_now(struct directory *directory)
{
    pthread_rwlock_rdlock(&directory->lock);
    uint64_t cookie = directory_last_cookie(directory);
    pthread_rwlock_unlock(&directory->lock);
    return cookie;
}

/* Where a listing that goes on at OFFSET ends. */
static uint64_t listing_end(struct inode *inode, off_t offset, const struct fuse_file_info *fi)
{
    struct open_directory *open_directory = open_directory_of(fi);
    if (offset == 0)
        atomic_store(&open_directory->last_cookie, last_cookie_now(inode->directory));
    return atomic_load(&open_directory->last_cookie);
}

static void handle_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    if (virtual_is(ino)) {
        fuse_reply_open(req, fi);
        return;
    }
    struct inode *inode = request_directory(req, ino);
    if (!inode)
        return;

    struct residentfs *fs = request_fs(req);
    struct open_directory *open_directory = malloc(sizeof(*open_directory));
    if (!open_directory) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    open_directory->noatime = (fi->flags & O_NOATIME) != 0;
    atomic_init(&open_directory->last_cookie, last_cookie_now(inode->directory));
    handle_list_add(&fs->open_directories, &open_directory->handle);
    fi->fh = (uintptr_t)open_directory;
    if (fuse_reply_open(req, fi) < 0)
        open_directory_destroy(fs, open_directory);
}

static void handle_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                           struct fuse_file_info *fi)
{
    if (virtual_is(ino)) {
        virtual_readdir(req, ino, size, offset, false);
        return;
    }
    struct inode *inode = request_directory(req, ino);
    if (!inode)
        return;

    struct listing listing = {
        .req = req,
        .last_cookie = listing_end(inode, offset, fi),
        .size = size,
        .bytes = malloc(size),
    };
    if (!listing.bytes) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    list_plain(&listing, inode, (uint64_t)offset);
    accessed(request_fs(req), inode, fi);
    fuse_reply_buf(req, listing.bytes, listing.used);
    free(listing.bytes);
}

static void handle_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                               struct fuse_file_info *fi)
{
    struct residentfs *fs = request_fs(req);

    if (virtual_is(ino)) {
        virtual_readdir(req, ino, size, offset, true);
        return;
    }
    struct inode *inode = request_directory(req, ino);
    if (!inode)
        return;

    struct plus_listing plus;
    if (plus_listing_init(&plus, req, size) < 0) {
        fuse_reply_err(req, ENOMEM);
    } else {
        plus.listing.last_cookie = listing_end(inode, offset, fi);
        list_plus(fs, &plus, inode, (uint64_t)offset);
        accessed(fs, inode, fi);
        /* The kernel did not take the reply, so it has not looked up what is in it. */
        if (fuse_reply_buf(req, plus.listing.bytes, plus.listing.used) != 0)
            for (size_t i = 0; i < plus.count; i++)
                inode_forget(fs->inodes, plus.entries[i].inode, 1);
    }
    plus_listing_finish(&plus);
}

static void handle_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    if (!virtual_is(ino))
        open_directory_destroy(request_fs(req), open_directory_of(fi));
    fuse_reply_err(req, 0);
}

/* Names are in host memory: there is nothing to make durable. */
static void handle_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    (void)ino;
    (void)datasync;
    (void)fi;
    fuse_reply_err(req, 0);
}

void readdir_operations(struct fuse_lowlevel_ops *ops)
{
    ops->opendir = handle_opendir;
    ops->readdir = handle_readdir;
    ops->readdirplus = handle_readdirplus;
    ops->releasedir = handle_releasedir;
    ops->fsyncdir = handle_fsyncdir;
}
