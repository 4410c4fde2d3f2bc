#include "fs/inode.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "fs/directory.h"
#include "fs/inode_acl.h"
#include "fs/xattr_list.h"

#define TABLE_SHARDS            64
#define TABLE_SHARD_BITS        6
#define SHARD_BUCKETS_MIN       16

#define INODE_FILE_BLOCK_BYTES  (128 * KIB)
#define INODE_OTHER_BLOCK_BYTES (4 * KIB)
#define INODE_ENTRY_BYTES       32 /* what st_size of a directory counts for each entry */
#define RELATIME_SECONDS        (24 * 60 * 60)
#define DYING_SECONDS           2
#define SETTLE_NS               (50 * 1000 * 1000) /* what the kernel takes to forget, generously */

/* lock covers the rest. A shard is on cache lines of its own. */
struct table_shard {
    _Alignas(CACHE_LINE_BYTES) pthread_rwlock_t lock;
    struct inode **buckets;
    size_t buckets_count; /* a power of two, or 0 */
    size_t count;
};

struct inode_table {
    struct table_shard shards[TABLE_SHARDS];
    _Alignas(CACHE_LINE_BYTES) _Atomic uint64_t next_ino;
    uint64_t charge_limit_bytes; /* constant */
    _Atomic uint64_t charged_bytes;

    pthread_mutex_t orphans_mutex; /* taken last; covers what follows */
    pthread_cond_t orphan_gone;
    uint64_t orphans, orphans_dying; /* held by the kernel still; being destroyed */
    uint64_t last_orphan_ns;         /* when one came or was destroyed, by CLOCK_MONOTONIC */
};

/* -- the table --------------------------------------------------------------------------------- */

static struct table_shard *shard_of(struct inode_table *table, uint64_t ino)
{
    return &table->shards[ino % TABLE_SHARDS];
}

/* Numbers are given in sequence, so they need no mixing to spread. */
static struct inode **bucket_of(const struct table_shard *shard, uint64_t ino)
{
    return &shard->buckets[(ino >> TABLE_SHARD_BITS) & (shard->buckets_count - 1)];
}

/* As tmpfs has it. */
static uint64_t default_max_files(void)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    return pages > 0 ? (uint64_t)pages / 2 : UINT32_MAX;
}

struct inode_table *inode_table_create(uint64_t max_files)
{
    struct inode_table *table = aligned_alloc(CACHE_LINE_BYTES, sizeof(*table));
    if (!table)
        return NULL;
    memset(table, 0, sizeof(*table));
    for (size_t i = 0; i < TABLE_SHARDS; i++)
        pthread_rwlock_init(&table->shards[i].lock, NULL);
    table->next_ino = INODE_FIRST_FREE;
    table->charge_limit_bytes = (max_files ? max_files : default_max_files()) * INODE_CHARGE_BYTES;

    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&table->orphan_gone, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&table->orphans_mutex, NULL);
    return table;
}

static void destroy_inode(struct inode *inode)
{
    atomic_fetch_sub(&inode->table->charged_bytes, inode->charged_bytes);
    if (S_ISREG(inode->type))
        buffer_destroy(inode->buffer);
    else if (S_ISDIR(inode->type))
        directory_destroy(inode->directory);
    else if (S_ISLNK(inode->type))
        free(inode->target);
    xattr_list_destroy(inode->xattrs);
    inode_acls_finish(&inode->acls);
    pthread_mutex_destroy(&inode->mutex);
    free(inode);
}

void inode_table_destroy(struct inode_table *table)
{
    if (!table)
        return;
    for (size_t i = 0; i < TABLE_SHARDS; i++) {
        struct table_shard *shard = &table->shards[i];
        for (size_t bucket = 0; bucket < shard->buckets_count; bucket++) {
            struct inode *next;
            for (struct inode *inode = shard->buckets[bucket]; inode; inode = next) {
                next = inode->table_next;
                destroy_inode(inode);
            }
        }
        free(shard->buckets);
        pthread_rwlock_destroy(&shard->lock);
    }
    pthread_cond_destroy(&table->orphan_gone);
    pthread_mutex_destroy(&table->orphans_mutex);
    free(table);
}

static struct inode *find_in_shard(const struct table_shard *shard, uint64_t ino)
{
    if (!shard->buckets_count)
        return NULL;
    struct inode *inode = *bucket_of(shard, ino);
    while (inode && inode->ino != ino)
        inode = inode->table_next;
    return inode;
}

struct inode *inode_table_find(struct inode_table *table, uint64_t ino)
{
    struct table_shard *shard = shard_of(table, ino);
    pthread_rwlock_rdlock(&shard->lock);
    struct inode *inode = find_in_shard(shard, ino);
    pthread_rwlock_unlock(&shard->lock);
    return inode;
}

/* False when it is on its way out: references are not brought back from 0. */
static bool ref_unless_dying(struct inode *inode)
{
    uint64_t refs = atomic_load_explicit(&inode->refs, memory_order_relaxed);
    while (refs && !atomic_compare_exchange_weak(&inode->refs, &refs, refs + 1))
        ;
    return refs != 0;
}

struct inode *inode_table_get(struct inode_table *table, uint64_t ino)
{
    struct table_shard *shard = shard_of(table, ino);
    pthread_rwlock_rdlock(&shard->lock);
    struct inode *inode = find_in_shard(shard, ino);
    if (inode && !ref_unless_dying(inode))
        inode = NULL;
    pthread_rwlock_unlock(&shard->lock);
    return inode;
}

uint64_t inode_table_count(struct inode_table *table)
{
    uint64_t count = 0;
    for (size_t i = 0; i < TABLE_SHARDS; i++) {
        pthread_rwlock_rdlock(&table->shards[i].lock);
        count += table->shards[i].count;
        pthread_rwlock_unlock(&table->shards[i].lock);
    }
    return count;
}

/* Without memory a shard keeps the buckets that it has. */
static errint_t grow_shard(struct table_shard *shard)
{
    size_t count = MAX(2 * shard->buckets_count, (size_t)SHARD_BUCKETS_MIN);
    struct inode **buckets = calloc(count, sizeof(*buckets));
    if (!buckets)
        return shard->buckets_count ? 0 : -ENOMEM;

    struct table_shard grown = {.buckets = buckets, .buckets_count = count};
    for (size_t i = 0; i < shard->buckets_count; i++) {
        struct inode *next;
        for (struct inode *inode = shard->buckets[i]; inode; inode = next) {
            struct inode **bucket = bucket_of(&grown, inode->ino);
            next = inode->table_next;
            inode->table_next = *bucket;
            *bucket = inode;
        }
    }
    free(shard->buckets);
    shard->buckets = buckets;
    shard->buckets_count = count;
    return 0;
}

static bool table_charge(struct inode_table *table, uint64_t bytes)
{
    uint64_t charged = atomic_load_explicit(&table->charged_bytes, memory_order_relaxed);
    do {
        if (bytes > table->charge_limit_bytes - MIN(charged, table->charge_limit_bytes))
            return false;
    } while (!atomic_compare_exchange_weak(&table->charged_bytes, &charged, charged + bytes));
    return true;
}

void inode_table_get_limit(struct inode_table *table, uint64_t *max_files, uint64_t *free_files)
{
    uint64_t charged = atomic_load(&table->charged_bytes), limit = table->charge_limit_bytes;
    *max_files = limit / INODE_CHARGE_BYTES;
    *free_files = (limit - MIN(charged, limit)) / INODE_CHARGE_BYTES;
}

static errint_t table_insert(struct inode_table *table, struct inode *inode)
{
    struct table_shard *shard = shard_of(table, inode->ino);
    errint_t error = 0;

    pthread_rwlock_wrlock(&shard->lock);
    if (shard->count >= shard->buckets_count)
        error = grow_shard(shard);
    if (!error) {
        struct inode **bucket = bucket_of(shard, inode->ino);
        inode->table_next = *bucket;
        *bucket = inode;
        shard->count++;
    }
    pthread_rwlock_unlock(&shard->lock);
    return error;
}

static void table_remove(struct inode_table *table, struct inode *inode)
{
    struct table_shard *shard = shard_of(table, inode->ino);

    pthread_rwlock_wrlock(&shard->lock);
    struct inode **link = bucket_of(shard, inode->ino);
    while (*link != inode)
        link = &(*link)->table_next;
    *link = inode->table_next;
    shard->count--;
    pthread_rwlock_unlock(&shard->lock);
}

/* References to every inode of the shard; the array is the caller's. */
static errint_t shard_snapshot(struct table_shard *shard, struct inode ***inodes, size_t *count)
{
    *count = 0;
    pthread_rwlock_rdlock(&shard->lock);
    *inodes = calloc(shard->count + 1, sizeof(**inodes));
    for (size_t i = 0; *inodes && i < shard->buckets_count; i++)
        for (struct inode *inode = shard->buckets[i]; inode; inode = inode->table_next)
            if (ref_unless_dying(inode))
                (*inodes)[(*count)++] = inode;
    pthread_rwlock_unlock(&shard->lock);
    return *inodes ? 0 : -ENOMEM;
}

errint_t inode_table_walk(struct inode_table *table, void (*visit)(struct inode *inode, void *data),
                          void *data)
{
    errint_t result = 0;
    for (size_t i = 0; i < TABLE_SHARDS; i++) {
        cleanup_free struct inode **inodes = NULL;
        size_t count;
        errint_t error = shard_snapshot(&table->shards[i], &inodes, &count);
        if (error)
            result = error;
        for (size_t n = 0; n < count; n++) {
            visit(inodes[n], data);
            inode_unref(table, inodes[n], 1);
        }
    }
    return result;
}

/* -- orphans ----------------------------------------------------------------------------------- */

static void orphan_added(struct inode_table *table)
{
    pthread_mutex_lock(&table->orphans_mutex);
    table->orphans++;
    table->last_orphan_ns = monotonic_ns();
    pthread_mutex_unlock(&table->orphans_mutex);
}

/* DYING: to be destroyed now; else it is open again. */
static void orphan_removed(struct inode_table *table, bool dying)
{
    pthread_mutex_lock(&table->orphans_mutex);
    table->orphans--;
    table->orphans_dying += dying;
    pthread_mutex_unlock(&table->orphans_mutex);
}

/* Its memory is given back. */
static void orphan_destroyed(struct inode_table *table)
{
    pthread_mutex_lock(&table->orphans_mutex);
    table->orphans_dying--;
    table->last_orphan_ns = monotonic_ns();
    pthread_cond_broadcast(&table->orphan_gone);
    pthread_mutex_unlock(&table->orphans_mutex);
}

bool inode_table_settle(struct inode_table *table)
{
    int result = 0;

    pthread_mutex_lock(&table->orphans_mutex);
    uint64_t end_ns = table->last_orphan_ns + SETTLE_NS;
    bool recent = table->orphans_dying > 0 || monotonic_ns() < end_ns;
    struct timespec end = {.tv_sec = (time_t)(end_ns / 1000000000),
                           .tv_nsec = (long)(end_ns % 1000000000)};
    while (recent && result == 0 && table->orphans + table->orphans_dying > 0)
        result = pthread_cond_timedwait(&table->orphan_gone, &table->orphans_mutex, &end);
    /* What is being destroyed waits for a fence; with a device that hangs, not for ever. */
    end.tv_sec += DYING_SECONDS;
    for (result = 0; result == 0 && table->orphans_dying > 0;)
        result = pthread_cond_timedwait(&table->orphan_gone, &table->orphans_mutex, &end);
    pthread_mutex_unlock(&table->orphans_mutex);
    return recent;
}

/* -- one inode --------------------------------------------------------------------------------- */

static struct timespec now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return time;
}

/* What the type needs besides the inode itself. */
static errint_t create_contents(struct inode *inode, struct device *device, const char *target)
{
    switch (inode->type) {
    case S_IFREG:
        inode->buffer = buffer_create(device, inode->ino);
        return inode->buffer ? 0 : -ENOMEM;
    case S_IFDIR:
        inode->directory = directory_create();
        inode->nlink = 2;
        return inode->directory ? 0 : -ENOMEM;
    case S_IFLNK:
        inode->target = strdup(target);
        return inode->target ? 0 : -ENOMEM;
    case S_IFIFO:
    case S_IFSOCK:
    case S_IFCHR:
    case S_IFBLK:
        return 0;
    default:
        return -EINVAL;
    }
}

errint_t inode_charge_locked(struct inode *inode, uint64_t bytes)
{
    if (!table_charge(inode->table, bytes))
        return -ENOSPC;
    inode->charged_bytes += bytes;
    return 0;
}

void inode_uncharge_locked(struct inode *inode, uint64_t bytes)
{
    inode->charged_bytes -= bytes;
    atomic_fetch_sub(&inode->table->charged_bytes, bytes);
}

errint_t inode_remove_xattr_locked(struct inode *inode, const char *name)
{
    uint64_t before = xattr_list_bytes(inode->xattrs);
    errint_t error = xattr_list_remove(inode->xattrs, name);
    inode_uncharge_locked(inode, before - xattr_list_bytes(inode->xattrs));
    return error;
}

static struct inode *create_numbered(struct inode_table *table, struct device *device, uint64_t ino,
                                     mode_t mode, uid_t uid, gid_t gid, dev_t rdev,
                                     const char *target)
{
    uint64_t charge = INODE_CHARGE_BYTES + (target ? strlen(target) : 0);
    if (!table_charge(table, charge)) {
        errno = ENOSPC;
        return NULL;
    }
    struct inode *inode = calloc(1, sizeof(*inode));
    if (!inode) {
        atomic_fetch_sub(&table->charged_bytes, charge);
        errno = ENOMEM;
        return NULL;
    }
    inode->ino = ino;
    inode->table = table;
    inode->charged_bytes = charge;
    inode->type = mode & S_IFMT;
    inode->rdev = rdev;
    inode->refs = 1;
    pthread_mutex_init(&inode->mutex, NULL);
    inode->mode = mode & 07777;
    inode->uid = uid;
    inode->gid = gid;
    inode->atime = inode->mtime = inode->ctime = inode->btime = now();

    errint_t error = create_contents(inode, device, target);
    if (!error)
        error = table_insert(table, inode);
    if (error) {
        destroy_inode(inode);
        errno = -error;
        return NULL;
    }
    return inode;
}

struct inode *inode_create(struct inode_table *table, struct device *device, mode_t mode, uid_t uid,
                           gid_t gid, dev_t rdev, const char *target)
{
    uint64_t ino = atomic_fetch_add_explicit(&table->next_ino, 1, memory_order_relaxed);
    return create_numbered(table, device, ino, mode, uid, gid, rdev, target);
}

struct inode *inode_create_root(struct inode_table *table, mode_t mode, uid_t uid, gid_t gid)
{
    return create_numbered(table, NULL, INODE_ROOT, S_IFDIR | (mode & 07777), uid, gid, 0, NULL);
}

void inode_ref(struct inode *inode, uint64_t count)
{
    atomic_fetch_add_explicit(&inode->refs, count, memory_order_relaxed);
}

void inode_unref(struct inode_table *table, struct inode *inode, uint64_t count)
{
    if (!count || atomic_fetch_sub(&inode->refs, count) != count)
        return;
    bool orphaned = inode->orphaned; /* nobody else has it any more */
    if (orphaned)
        orphan_removed(table, true);
    table_remove(table, inode);
    destroy_inode(inode);
    if (orphaned)
        orphan_destroyed(table);
}

void inode_lookup_added(struct inode *inode)
{
    inode_ref(inode, 1);
    atomic_fetch_add_explicit(&inode->lookups, 1, memory_order_relaxed);
}

void inode_forget(struct inode_table *table, struct inode *inode, uint64_t count)
{
    /* The kernel also forgets the root, which it never looked up. */
    uint64_t lookups = atomic_load_explicit(&inode->lookups, memory_order_relaxed), forgotten;
    do {
        forgotten = MIN(count, lookups);
    } while (!atomic_compare_exchange_weak(&inode->lookups, &lookups, lookups - forgotten));
    inode_unref(table, inode, forgotten);
}

void inode_stat(struct inode *inode, struct stat *st)
{
    memset(st, 0, sizeof(*st));
    st->st_ino = inode->ino;
    st->st_rdev = inode->rdev;
    st->st_blksize = INODE_OTHER_BLOCK_BYTES;
    if (S_ISREG(inode->type)) {
        struct buffer_report report;
        buffer_get_report(inode->buffer, &report);
        st->st_size = (off_t)report.length_bytes;
        st->st_blocks = (blkcnt_t)((report.resident_bytes + report.attached_bytes + 511) / 512);
        st->st_blksize = INODE_FILE_BLOCK_BYTES;
    } else if (S_ISLNK(inode->type)) {
        st->st_size = (off_t)strlen(inode->target);
    }

    pthread_mutex_lock(&inode->mutex);
    if (S_ISDIR(inode->type))
        st->st_size = (off_t)(inode->entries * INODE_ENTRY_BYTES);
    st->st_mode = inode->type | inode->mode;
    st->st_nlink = inode->nlink;
    st->st_uid = inode->uid;
    st->st_gid = inode->gid;
    st->st_atim = inode->atime;
    st->st_mtim = inode->mtime;
    st->st_ctim = inode->ctime;
    pthread_mutex_unlock(&inode->mutex);
}

static bool time_is_before(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec < b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec < b->tv_nsec);
}

void inode_touch_locked(struct inode *inode, unsigned int which)
{
    struct timespec time = now();

    if (which & INODE_TOUCH_MTIME)
        inode->mtime = time;
    if (which & INODE_TOUCH_CTIME)
        inode->ctime = time;
}

void inode_touch(struct inode *inode, unsigned int which)
{
    pthread_mutex_lock(&inode->mutex);
    inode_touch_locked(inode, which);
    pthread_mutex_unlock(&inode->mutex);
}

void inode_accessed(struct inode *inode, bool always)
{
    struct timespec time = now();

    pthread_mutex_lock(&inode->mutex);
    if (always || !time_is_before(&inode->mtime, &inode->atime) ||
        !time_is_before(&inode->ctime, &inode->atime) ||
        inode->atime.tv_sec + RELATIME_SECONDS <= time.tv_sec)
        inode->atime = time;
    pthread_mutex_unlock(&inode->mutex);
}

static void drop_capabilities_locked(struct inode *inode)
{
    inode_remove_xattr_locked(inode, "security.capability");
}

void inode_drop_privileges_locked(struct inode *inode, enum inode_author author)
{
    if (S_ISDIR(inode->type))
        return;
    inode->mode &= ~(mode_t)S_ISUID;
    if ((inode->mode & S_IXGRP) || author == INODE_AUTHOR_OTHER)
        inode->mode &= ~(mode_t)S_ISGID;
    drop_capabilities_locked(inode);
}

void inode_modified_locked(struct inode *inode, enum inode_author author)
{
    if (author == INODE_AUTHOR_PRIVILEGED)
        drop_capabilities_locked(inode);
    else
        inode_drop_privileges_locked(inode, author);
    inode_touch_locked(inode, INODE_TOUCH_MTIME | INODE_TOUCH_CTIME);
}

bool inode_modified(struct inode *inode, enum inode_author author)
{
    pthread_mutex_lock(&inode->mutex);
    mode_t before = inode->mode;
    inode_modified_locked(inode, author);
    bool mode_changed = inode->mode != before;
    pthread_mutex_unlock(&inode->mutex);
    return mode_changed;
}

/* -- open descriptions ------------------------------------------------------------------------- */

/* With the inode's mutex held. */
static void update_orphaned(struct inode_table *table, struct inode *inode)
{
    bool orphaned = S_ISREG(inode->type) && inode->nlink == 0 && inode->openers == 0;

    if (orphaned && !inode->orphaned)
        orphan_added(table);
    else if (!orphaned && inode->orphaned)
        orphan_removed(table, false);
    inode->orphaned = orphaned;
}

void inode_opened(struct inode_table *table, struct inode *inode, bool for_writing)
{
    pthread_mutex_lock(&inode->mutex);
    inode->openers++;
    inode->writers += for_writing;
    update_orphaned(table, inode);
    pthread_mutex_unlock(&inode->mutex);
}

bool inode_cache_begin(struct inode *inode)
{
    pthread_mutex_lock(&inode->mutex);
    bool allowed = inode->shares == 0;
    inode->cached_openers += allowed;
    pthread_mutex_unlock(&inode->mutex);
    return allowed;
}

void inode_cache_end(struct inode *inode)
{
    pthread_mutex_lock(&inode->mutex);
    inode->cached_openers--;
    pthread_mutex_unlock(&inode->mutex);
}

errint_t inode_share_begin(struct inode *inode)
{
    pthread_mutex_lock(&inode->mutex);
    bool allowed = inode->cached_openers == 0;
    inode->shares += allowed;
    pthread_mutex_unlock(&inode->mutex);
    return allowed ? 0 : -EBUSY;
}

void inode_share_end(struct inode *inode)
{
    pthread_mutex_lock(&inode->mutex);
    inode->shares--;
    pthread_mutex_unlock(&inode->mutex);
}

void inode_closed(struct inode_table *table, struct inode *inode, bool for_writing)
{
    pthread_mutex_lock(&inode->mutex);
    inode->openers--;
    inode->writers -= for_writing;
    update_orphaned(table, inode);
    bool trim = for_writing && inode->writers == 0 && !inode->orphaned;
    pthread_mutex_unlock(&inode->mutex);
    if (trim)
        buffer_trim(inode->buffer);
}

void inode_unlinked(struct inode_table *table, struct inode *inode)
{
    pthread_mutex_lock(&inode->mutex);
    update_orphaned(table, inode);
    pthread_mutex_unlock(&inode->mutex);
}

void inode_linked_locked(struct inode_table *table, struct inode *inode)
{
    update_orphaned(table, inode);
}
