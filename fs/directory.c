#include "fs/directory.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#define DIRECTORY_BUCKETS_MIN 8
#define DIRECTORY_SLOTS_MIN   8

struct directory *directory_create(void)
{
    struct directory *directory = calloc(1, sizeof(*directory));
    if (!directory)
        return NULL;

    /* Listings must not keep creators waiting for good. Nobody takes the lock twice. */
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&directory->lock, &attributes);
    pthread_rwlockattr_destroy(&attributes);

    /* A seed of its own, so that nobody can prepare names that all fall into one bucket. */
    if (getrandom(&directory->hash_seed, sizeof(directory->hash_seed), GRND_NONBLOCK) < 0)
        directory->hash_seed = monotonic_ns() ^ (uintptr_t)directory;
    directory->next_cookie = DIRECTORY_COOKIE_DOTDOT + 1;
    return directory;
}

void directory_destroy(struct directory *directory)
{
    if (!directory)
        return;
    for (size_t i = directory->slots_first; i < directory->slots_end; i++)
        free(directory->slots[i].entry);
    free(directory->slots);
    free(directory->buckets);
    pthread_rwlock_destroy(&directory->lock);
    free(directory);
}

size_t directory_count(const struct directory *directory)
{
    return directory->count;
}

/* -- by name ----------------------------------------------------------------------------------- */

static uint64_t hash_mix(uint64_t hash, uint64_t word)
{
    unsigned __int128 product =
        (unsigned __int128)(hash ^ word ^ 0x9e3779b97f4a7c15u) * 0xd6e8feb86659fd93u;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash_name(const struct directory *directory, const char *name, size_t length)
{
    uint64_t hash = hash_mix(directory->hash_seed, length);
    uint64_t word;

    for (; length >= sizeof(word); name += sizeof(word), length -= sizeof(word)) {
        memcpy(&word, name, sizeof(word));
        hash = hash_mix(hash, word);
    }
    word = 0;
    memcpy(&word, name, length);
    return hash_mix(hash_mix(hash, word), directory->hash_seed);
}

static struct directory_entry **bucket_of(const struct directory *directory, uint64_t hash)
{
    return &directory->buckets[hash & (directory->buckets_count - 1)];
}

/* Without memory the old buckets stay, and only get longer. */
static bool resize_buckets(struct directory *directory, size_t count)
{
    struct directory_entry **old = directory->buckets;
    size_t old_count = directory->buckets_count;

    struct directory_entry **buckets = calloc(count, sizeof(*buckets));
    if (!buckets)
        return false;
    directory->buckets = buckets;
    directory->buckets_count = count;
    for (size_t i = 0; i < old_count; i++) {
        struct directory_entry *next;
        for (struct directory_entry *entry = old[i]; entry; entry = next) {
            struct directory_entry **bucket = bucket_of(directory, entry->hash);
            next = entry->bucket_next;
            entry->bucket_next = *bucket;
            *bucket = entry;
        }
    }
    free(old);
    return true;
}

static struct directory_entry *find_hashed(const struct directory *directory, const char *name,
                                           size_t length, uint64_t hash)
{
    if (!directory->buckets_count)
        return NULL;
    struct directory_entry *entry = *bucket_of(directory, hash);
    while (entry && (entry->hash != hash || entry->name_length != length ||
                     memcmp(entry->name, name, length) != 0))
        entry = entry->bucket_next;
    return entry;
}

struct directory_entry *directory_find(const struct directory *directory, const char *name)
{
    size_t length = strlen(name);
    return find_hashed(directory, name, length, hash_name(directory, name, length));
}

/* -- by cookie --------------------------------------------------------------------------------- */

static size_t tombstones(const struct directory *directory)
{
    return directory->slots_end - directory->count;
}

static void compact(struct directory *directory)
{
    size_t end = 0;
    for (size_t i = directory->slots_first; i < directory->slots_end; i++)
        if (directory->slots[i].entry)
            directory->slots[end++] = directory->slots[i];
    directory->slots_first = 0;
    directory->slots_end = end;
}

/* Gives memory back after many removals; without memory for the smaller one the larger one stays.
 */
static void shrink(struct directory *directory)
{
    compact(directory);
    size_t capacity = MAX(2 * directory->slots_end, (size_t)DIRECTORY_SLOTS_MIN);
    if (capacity < directory->slots_capacity / 2) {
        struct directory_slot *slots =
            realloc(directory->slots, capacity * sizeof(*directory->slots));
        if (slots) {
            directory->slots = slots;
            directory->slots_capacity = capacity;
        }
    }
    size_t buckets = directory->buckets_count;
    while (buckets > DIRECTORY_BUCKETS_MIN && buckets / 4 > directory->count)
        buckets /= 2;
    if (buckets != directory->buckets_count)
        resize_buckets(directory, buckets);
}

/* Room for one more slot. */
static errint_t reserve_slot(struct directory *directory)
{
    if (directory->slots_end < directory->slots_capacity)
        return 0;
    if (tombstones(directory) > directory->slots_end / 4) {
        compact(directory);
        return 0;
    }
    size_t capacity = MAX(2 * directory->slots_capacity, (size_t)DIRECTORY_SLOTS_MIN);
    struct directory_slot *slots =
        reallocarray(directory->slots, capacity, sizeof(*directory->slots));
    if (!slots)
        return -ENOMEM;
    directory->slots = slots;
    directory->slots_capacity = capacity;
    return 0;
}

size_t directory_seek(const struct directory *directory, uint64_t cookie)
{
    size_t low = directory->slots_first, high = directory->slots_end;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (directory->slots[middle].cookie > cookie)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

struct directory_entry *directory_next(const struct directory *directory, size_t *position)
{
    while (*position < directory->slots_end) {
        struct directory_entry *entry = directory->slots[(*position)++].entry;
        if (entry)
            return entry;
    }
    return NULL;
}

uint64_t directory_last_cookie(const struct directory *directory)
{
    return directory->next_cookie - 1;
}

struct directory_entry *directory_at(const struct directory *directory, uint64_t cookie)
{
    if (!cookie)
        return NULL;
    size_t position = directory_seek(directory, cookie - 1);
    if (position == directory->slots_end || directory->slots[position].cookie != cookie)
        return NULL;
    return directory->slots[position].entry;
}

/* -- changes ----------------------------------------------------------------------------------- */

errint_t directory_insert(struct directory *directory, const char *name, struct inode *inode,
                          struct directory_entry **out)
{
    size_t length = strlen(name);
    if (length > DIRECTORY_NAME_MAX)
        return -ENAMETOOLONG;

    uint64_t hash = hash_name(directory, name, length);
    struct directory_entry *entry = find_hashed(directory, name, length, hash);
    if (entry) {
        *out = entry;
        return -EEXIST;
    }
    if (directory->count >= directory->buckets_count &&
        !resize_buckets(directory,
                        MAX(2 * directory->buckets_count, (size_t)DIRECTORY_BUCKETS_MIN)) &&
        !directory->buckets_count)
        return -ENOMEM;
    if (reserve_slot(directory) < 0)
        return -ENOMEM;
    entry = malloc(sizeof(*entry) + length + 1);
    if (!entry)
        return -ENOMEM;

    struct directory_entry **bucket = bucket_of(directory, hash);
    entry->inode = inode;
    entry->cookie = directory->next_cookie++;
    entry->bucket_next = *bucket;
    entry->hash = hash;
    entry->name_length = (uint16_t)length;
    memcpy(entry->name, name, length + 1);
    *bucket = entry;
    directory->slots[directory->slots_end++] = (struct directory_slot){entry->cookie, entry};
    directory->count++;
    *out = entry;
    return 0;
}

void directory_remove(struct directory *directory, struct directory_entry *entry)
{
    struct directory_entry **link = bucket_of(directory, entry->hash);
    while (*link != entry)
        link = &(*link)->bucket_next;
    *link = entry->bucket_next;

    directory->slots[directory_seek(directory, entry->cookie - 1)].entry = NULL;
    free(entry);
    directory->count--;

    /* Whoever lists and deletes from one end must not step over the same tombstones each time. */
    while (directory->slots_first < directory->slots_end &&
           !directory->slots[directory->slots_first].entry)
        directory->slots_first++;
    while (directory->slots_end > directory->slots_first &&
           !directory->slots[directory->slots_end - 1].entry)
        directory->slots_end--;
    if (tombstones(directory) > directory->count + 32)
        shrink(directory);
}
