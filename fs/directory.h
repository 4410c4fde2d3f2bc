/*
 * A directory's entries: found by name through a hash, and listed in the order of their cookies
 * through a vector. A cookie is given once, when the entry is made, and only ever grows; so a
 * listing that goes on after any cookie, even one whose entry is gone, neither misses nor repeats
 * an entry that was there throughout. Removing leaves a tombstone in the vector; when there are
 * more tombstones than entries the vector is compacted, so that each operation costs O(1) on
 * average, and O(log n) to find a place by its cookie.
 *
 * Knows nothing of inodes: it holds pointers to them, no references. The caller takes the lock:
 * for reading where the argument is const, else for writing.
 */
#ifndef RESIDENTFS_FS_DIRECTORY_H
#define RESIDENTFS_FS_DIRECTORY_H

#include <pthread.h>

#include "core/util.h"

struct inode;

#define DIRECTORY_NAME_MAX 255

/* Of "." and "..", which are not entries here; the cookies of entries are larger. */
#define DIRECTORY_COOKIE_DOT    1
#define DIRECTORY_COOKIE_DOTDOT 2

struct directory_entry {
    struct inode *inode; /* whoever holds the lock for writing may set another one */
    uint64_t cookie;     /* constant */
    struct directory_entry *bucket_next; /* private */
    uint64_t hash;                       /* private */
    uint16_t name_length;                /* constant */
    char name[];                         /* constant; NUL-terminated */
};

struct directory_slot {
    uint64_t cookie;
    struct directory_entry *entry; /* NULL: a tombstone */
};

struct directory {
    pthread_rwlock_t lock;
    /* private, under the lock */
    size_t count;
    uint64_t hash_seed, next_cookie;
    struct directory_entry **buckets;
    size_t buckets_count; /* a power of two, or 0 */
    struct directory_slot *slots;
    size_t slots_first, slots_end, slots_capacity; /* no entry before first or from end on */
};

/* NULL: no memory. */
struct directory *directory_create(void);
/* Frees the entries too. NULL is fine. */
void directory_destroy(struct directory *directory);

/* How many entries. */
size_t directory_count(const struct directory *directory);

struct directory_entry *directory_find(const struct directory *directory, const char *name);

/*
 * -EEXIST, -ENAMETOOLONG, -ENOMEM. *OUT is set on success; with -EEXIST it is the entry that is
 * there.
 */
errint_t directory_insert(struct directory *directory, const char *name, struct inode *inode,
                          struct directory_entry **out);

/* Frees the entry. */
void directory_remove(struct directory *directory, struct directory_entry *entry);

/* The cookie of the entry that was made last, whether it is still there or not. */
uint64_t directory_last_cookie(const struct directory *directory);

/* The entry with this very cookie, or NULL. */
struct directory_entry *directory_at(const struct directory *directory, uint64_t cookie);

/*
 * Listing: seek gives the position of the first entry with a cookie larger than COOKIE; next gives
 * the entry at the position and moves on, or NULL at the end. A position holds while the lock does.
 */
size_t directory_seek(const struct directory *directory, uint64_t cookie);
struct directory_entry *directory_next(const struct directory *directory, size_t *position);

#endif
