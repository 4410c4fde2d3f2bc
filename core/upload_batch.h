/*
 * Fusion of uploads: pending writes are gathered as intervals of device memory whose bytes lie one
 * behind the other in a block of staging. A write is merged with the interval before it when they
 * touch or overlap in the same extent (the later bytes win; one that covers the earlier one
 * replaces it), and the tail then collapses backwards while it touches. Gaps are never bridged and
 * the order of intervals is never changed. Pure data: no driver call, no lock, no allocation after
 * upload_batch_init.
 *
 * The caller sees to it that one thread at a time uses a batch. Only the bytes of what was reserved
 * are copied while others go on; until they are there, nothing in staging is moved or overwritten.
 */
#ifndef RESIDENTFS_CORE_UPLOAD_BATCH_H
#define RESIDENTFS_CORE_UPLOAD_BATCH_H

#include <stdatomic.h>

#include "core/util.h"

#define UPLOAD_BATCH_INTERVALS 512

/* A merge that would have to move more bytes than this in staging is not made: it would cost more
 * than the copy that it saves. */
#define UPLOAD_BATCH_MOVE_BYTES (64 * KIB)

struct upload_target;

struct upload_interval {
    struct upload_target *target; /* whose upload it is */
    uint64_t extent_id;           /* device memory that is contiguous; never reused */
    uint64_t address;             /* device address of the first byte */
    unsigned char *bytes;         /* in staging */
    size_t length;                /* > 0 */
};

struct upload_batch {
    struct upload_interval *intervals; /* UPLOAD_BATCH_INTERVALS of them; owned */
    size_t count;
    unsigned char *base;    /* staging; borrowed */
    size_t used;            /* bytes of it that are taken, by this batch or before it */
    size_t capacity;        /* bytes of it */
    _Atomic size_t copying; /* reservations whose bytes are not there yet */
};

/* 0 or -ENOMEM. Starts without staging: nothing can be added before upload_batch_set_staging. */
errint_t upload_batch_init(struct upload_batch *batch);
void upload_batch_finish(struct upload_batch *batch);

/* The batch is empty; USED bytes at the start of the staging are in the hands of earlier copies. */
void upload_batch_set_staging(struct upload_batch *batch, unsigned char *base, size_t used,
                              size_t capacity);

/*
 * Adds bytes for [address, address + length) of an extent. False, and nothing changed, when there
 * is no room for them: submit the batch, clear it, perhaps take other staging, and try again. A
 * length of 0 is dropped (true).
 */
bool upload_batch_add(struct upload_batch *batch, struct upload_target *target, uint64_t extent_id,
                      uint64_t address, const void *bytes, size_t length);

/*
 * The same for bytes that the caller copies to where the result says, before upload_batch_copied.
 * NULL, and nothing changed: there is no room, or upload_batch_add would merge it.
 */
unsigned char *upload_batch_reserve(struct upload_batch *batch, struct upload_target *target,
                                    uint64_t extent_id, uint64_t address, size_t length);
/* From any thread, whoever uses the batch meanwhile. */
void upload_batch_copied(struct upload_batch *batch);
/* Whether all that was reserved is there. From any thread. */
bool upload_batch_is_whole(const struct upload_batch *batch);

/* Forgets the intervals; their staging stays taken until upload_batch_set_staging. */
void upload_batch_clear(struct upload_batch *batch);

/* Forgets the intervals of one target. */
void upload_batch_drop(struct upload_batch *batch, const struct upload_target *target);

/* Bytes of staging that are still free. */
size_t upload_batch_room(const struct upload_batch *batch);

/* Whether two intervals overlap, so that their copies must not run out of order. */
bool upload_batch_overlaps(const struct upload_batch *batch);

#endif
