#include "core/upload_batch.h"

#include <errno.h>
#include <string.h>

errint_t upload_batch_init(struct upload_batch *batch)
{
    *batch = (struct upload_batch){0};
    batch->intervals = calloc(UPLOAD_BATCH_INTERVALS, sizeof(*batch->intervals));
    return batch->intervals ? 0 : -ENOMEM;
}

void upload_batch_finish(struct upload_batch *batch)
{
    free(batch->intervals);
    *batch = (struct upload_batch){0};
}

void upload_batch_set_staging(struct upload_batch *batch, unsigned char *base, size_t used,
                              size_t capacity)
{
    batch->count = 0;
    batch->base = base;
    batch->used = used;
    batch->capacity = capacity;
}

void upload_batch_clear(struct upload_batch *batch)
{
    batch->count = 0;
}

void upload_batch_drop(struct upload_batch *batch, const struct upload_target *target)
{
    size_t kept = 0;

    for (size_t i = 0; i < batch->count; i++)
        if (batch->intervals[i].target != target)
            batch->intervals[kept++] = batch->intervals[i];
    batch->count = kept;
}

size_t upload_batch_room(const struct upload_batch *batch)
{
    return batch->capacity - batch->used;
}

static uint64_t interval_end(const struct upload_interval *interval)
{
    return interval->address + interval->length;
}

/* Touching counts. */
static bool mergeable(const struct upload_interval *a, const struct upload_interval *b)
{
    return a->target == b->target && a->extent_id == b->extent_id &&
           a->address <= interval_end(b) && b->address <= interval_end(a);
}

/* Whether the interval can grow in staging: after upload_batch_drop something may lie behind it. */
static bool is_at_tail(const struct upload_batch *batch, const struct upload_interval *interval)
{
    return interval->bytes + interval->length == batch->base + batch->used;
}

/*
 * The last two intervals become one when they touch. Their bytes lie one behind the other: those of
 * the earlier one at p->bytes, those of the later one right after.
 */
static bool collapse_once(struct upload_batch *batch)
{
    if (batch->count < 2)
        return false;
    struct upload_interval *p = &batch->intervals[batch->count - 2];
    struct upload_interval *l = &batch->intervals[batch->count - 1];
    /* Not side by side in staging: intervals between them were dropped (upload_batch_drop). */
    if (!mergeable(p, l) || p->bytes + p->length != l->bytes)
        return false;

    uint64_t p_end = interval_end(p), l_end = interval_end(l);
    if (l->address == p_end) {
        p->length += l->length;
    } else if (!upload_batch_is_whole(batch)) {
        return false; /* somebody copies to what would be moved or overwritten */
    } else if (l->address >= p->address) {
        if (l->length > UPLOAD_BATCH_MOVE_BYTES)
            return false;
        memmove(p->bytes + (l->address - p->address), l->bytes, l->length);
        p->length = MAX(p_end, l_end) - p->address;
    } else {
        /* The later one starts first: what it leaves of the earlier one goes behind it. */
        size_t rest = l_end < p_end ? (size_t)(p_end - l_end) : 0;
        if (l->length + rest > UPLOAD_BATCH_MOVE_BYTES || rest > upload_batch_room(batch))
            return false;
        memmove(l->bytes + l->length, p->bytes + p->length - rest, rest);
        memmove(p->bytes, l->bytes, l->length + rest);
        p->address = l->address;
        p->length = l->length + rest;
    }
    batch->count--;
    batch->used = (size_t)(p->bytes - batch->base) + p->length;
    return true;
}

/*
 * Merges the write into the last interval, which it touches. False: no room, too much to move, or
 * bytes that somebody still copies are in the way.
 */
static bool merge_into_last(struct upload_batch *batch, uint64_t address, const void *bytes,
                            size_t length)
{
    struct upload_interval *last = &batch->intervals[batch->count - 1];
    uint64_t end = address + length, last_end = interval_end(last);
    size_t room = upload_batch_room(batch);

    if (address != last_end && !upload_batch_is_whole(batch))
        return false;
    if (address >= last->address) {
        size_t grown = end > last_end ? (size_t)(end - last_end) : 0;
        if (grown > room)
            return false;
        memcpy(last->bytes + (address - last->address), bytes, length);
        last->length += grown;
        batch->used += grown;
        while (collapse_once(batch))
            ;
        return true;
    }
    size_t rest = end < last_end ? (size_t)(last_end - end) : 0;
    size_t grown = length + rest - last->length;
    if (grown > room || rest > UPLOAD_BATCH_MOVE_BYTES)
        return false;
    memmove(last->bytes + length, last->bytes + last->length - rest, rest);
    memcpy(last->bytes, bytes, length);
    last->address = address;
    last->length = length + rest;
    batch->used += grown;
    while (collapse_once(batch))
        ;
    return true;
}

bool upload_batch_add(struct upload_batch *batch, struct upload_target *target, uint64_t extent_id,
                      uint64_t address, const void *bytes, size_t length)
{
    struct upload_interval added = {
        .target = target, .extent_id = extent_id, .address = address, .length = length};

    if (length == 0)
        return true;
    if (batch->count > 0 && mergeable(&batch->intervals[batch->count - 1], &added) &&
        is_at_tail(batch, &batch->intervals[batch->count - 1]) &&
        merge_into_last(batch, address, bytes, length))
        return true;
    if (batch->count == UPLOAD_BATCH_INTERVALS || length > upload_batch_room(batch))
        return false;
    added.bytes = batch->base + batch->used;
    memcpy(added.bytes, bytes, length);
    batch->used += length;
    batch->intervals[batch->count++] = added;
    return true;
}

unsigned char *upload_batch_reserve(struct upload_batch *batch, struct upload_target *target,
                                    uint64_t extent_id, uint64_t address, size_t length)
{
    struct upload_interval added = {
        .target = target, .extent_id = extent_id, .address = address, .length = length};
    struct upload_interval *last = batch->count > 0 ? &batch->intervals[batch->count - 1] : NULL;

    if (length == 0 || length > upload_batch_room(batch))
        return NULL;
    added.bytes = batch->base + batch->used;
    if (last && (!mergeable(last, &added) || !is_at_tail(batch, last)))
        last = NULL;
    if (last && address == interval_end(last)) {
        last->length += length;
    } else {
        if ((last && upload_batch_is_whole(batch)) || batch->count == UPLOAD_BATCH_INTERVALS)
            return NULL;
        batch->intervals[batch->count++] = added;
    }
    batch->used += length;
    atomic_fetch_add_explicit(&batch->copying, 1, memory_order_relaxed);
    return added.bytes;
}

void upload_batch_copied(struct upload_batch *batch)
{
    atomic_fetch_sub_explicit(&batch->copying, 1, memory_order_release);
}

bool upload_batch_is_whole(const struct upload_batch *batch)
{
    return atomic_load_explicit(&batch->copying, memory_order_acquire) == 0;
}

static int compare_addresses(const void *a, const void *b)
{
    const struct upload_interval *x = *(const struct upload_interval *const *)a;
    const struct upload_interval *y = *(const struct upload_interval *const *)b;

    return (x->address > y->address) - (x->address < y->address);
}

bool upload_batch_overlaps(const struct upload_batch *batch)
{
    const struct upload_interval *sorted[UPLOAD_BATCH_INTERVALS];
    bool in_order = true;

    for (size_t i = 0; i < batch->count; i++) {
        sorted[i] = &batch->intervals[i];
        in_order = in_order && (i == 0 || interval_end(sorted[i - 1]) <= sorted[i]->address);
    }
    if (in_order)
        return false;
    qsort(sorted, batch->count, sizeof(sorted[0]), compare_addresses);
    for (size_t i = 1; i < batch->count; i++)
        if (interval_end(sorted[i - 1]) > sorted[i]->address)
            return true;
    return false;
}
