#include "core/slab.h"

#include <errno.h>
#include <string.h>

#include "core/log.h"

/* Order k is a block of 4 KiB << k; order 9 is the whole chunk. */
#define ORDER_WHOLE (SLAB_ORDERS - 1)
#define PAGES       (CHUNK_UNIT_BYTES / SLAB_BLOCK_MIN_BYTES)
#define WORD_BITS   64

struct slab {
    struct chunk chunk;
    struct slab *next, **link;                     /* in the pool's list */
    uint64_t free[SLAB_ORDERS][PAGES / WORD_BITS]; /* bit i: block i of that order is free */
    unsigned int free_count[SLAB_ORDERS];
};

static unsigned int order_of(uint64_t bytes)
{
    uint64_t pages = (bytes + SLAB_BLOCK_MIN_BYTES - 1) / SLAB_BLOCK_MIN_BYTES;

    return pages <= 1 ? 0 : 64 - (unsigned int)__builtin_clzll(pages - 1);
}

uint64_t slab_block_bytes(uint64_t bytes)
{
    return SLAB_BLOCK_MIN_BYTES << order_of(bytes);
}

static bool is_free(const struct slab *slab, unsigned int order, unsigned int index)
{
    return slab->free[order][index / WORD_BITS] >> (index % WORD_BITS) & 1;
}

static void set_free(struct slab *slab, unsigned int order, unsigned int index, bool value)
{
    uint64_t bit = (uint64_t)1 << (index % WORD_BITS);

    if (value) {
        slab->free[order][index / WORD_BITS] |= bit;
        slab->free_count[order]++;
    } else {
        slab->free[order][index / WORD_BITS] &= ~bit;
        slab->free_count[order]--;
    }
}

static unsigned int first_free(const struct slab *slab, unsigned int order)
{
    for (unsigned int word = 0;; word++)
        if (slab->free[order][word])
            return word * WORD_BITS + (unsigned int)__builtin_ctzll(slab->free[order][word]);
}

/* The pool's mutex is held in what follows. */

static void list_remove(struct slab *slab)
{
    *slab->link = slab->next;
    if (slab->next)
        slab->next->link = slab->link;
}

/* Puts the slab at the head of the list that its largest free block belongs to. */
static void list_insert(struct slab_pool *pool, struct slab *slab)
{
    struct slab **head = &pool->full;

    for (unsigned int order = 0; order < SLAB_ORDERS; order++)
        if (slab->free_count[order] > 0)
            head = &pool->lists[order];
    slab->next = *head;
    slab->link = head;
    if (slab->next)
        slab->next->link = &slab->next;
    *head = slab;
}

/* Cuts a block of ORDER out of a slab that has one at least as large; returns its index. */
static unsigned int slab_take(struct slab *slab, unsigned int order)
{
    unsigned int from = order;

    while (slab->free_count[from] == 0)
        from++;
    unsigned int index = first_free(slab, from);
    set_free(slab, from, index, false);
    while (from > order) {
        from--;
        index *= 2;
        set_free(slab, from, index + 1, true);
    }
    return index;
}

static void slab_give(struct slab *slab, unsigned int order, unsigned int index)
{
    while (order < ORDER_WHOLE && is_free(slab, order, index ^ 1)) {
        set_free(slab, order, index ^ 1, false);
        order++;
        index /= 2;
    }
    set_free(slab, order, index, true);
}

errint_t slab_allocate(struct device *device, uint64_t bytes, struct slab_block *block)
{
    struct slab_pool *pool = &device->slabs;
    unsigned int order = order_of(bytes);
    struct slab *slab = NULL;
    errint_t err = 0;

    pthread_mutex_lock(&pool->mutex);
    for (unsigned int o = order; o < SLAB_ORDERS && !slab; o++)
        slab = pool->lists[o];
    if (slab) {
        list_remove(slab);
    } else {
        slab = calloc(1, sizeof(*slab));
        err = slab ? chunk_create(device, CHUNK_UNIT_BYTES, &slab->chunk) : -ENOMEM;
        if (err < 0) {
            free(slab);
            goto unlock;
        }
        set_free(slab, ORDER_WHOLE, 0, true);
    }
    unsigned int index = slab_take(slab, order);
    list_insert(pool, slab);
    block->slab = slab;
    block->length = SLAB_BLOCK_MIN_BYTES << order;
    block->address = slab->chunk.address + index * block->length;
unlock:
    pthread_mutex_unlock(&pool->mutex);
    return err;
}

void slab_free(struct device *device, struct slab_block *block)
{
    struct slab_pool *pool = &device->slabs;
    struct slab *slab = block->slab;
    unsigned int order = order_of(block->length);

    pthread_mutex_lock(&pool->mutex);
    list_remove(slab);
    slab_give(slab, order, (unsigned int)((block->address - slab->chunk.address) / block->length));
    bool empty = slab->free_count[ORDER_WHOLE] > 0;
    if (!empty)
        list_insert(pool, slab);
    pthread_mutex_unlock(&pool->mutex);
    if (empty) {
        chunk_destroy(device, &slab->chunk);
        free(slab);
    }
}

void slab_quarantine(struct device *device, struct slab_block *block)
{
    telemetry_add(&device->telemetry, TELEMETRY_QUARANTINED_BYTES, block->length);
    log_error("%s: a block of %llu bytes of device memory is quarantined: a copy may still write "
              "to it; remount to get it back",
              device->identity.uuid, (unsigned long long)block->length);
}

void slab_pool_finish(struct device *device)
{
    struct slab_pool *pool = &device->slabs;
    struct slab *next;

    for (unsigned int order = 0; order <= SLAB_ORDERS; order++) {
        struct slab *slab = order < SLAB_ORDERS ? pool->lists[order] : pool->full;
        for (; slab; slab = next) {
            next = slab->next;
            free(slab);
        }
    }
}
