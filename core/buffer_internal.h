/* What buffer.c (bytes) and buffer_layout.c (memory) share. */
#ifndef RESIDENTFS_CORE_BUFFER_INTERNAL_H
#define RESIDENTFS_CORE_BUFFER_INTERNAL_H

#include "core/buffer.h"
#include "core/extent.h"
#include "core/upload.h"

struct buffer {
    struct device *device; /* constant */
    struct upload_target target;

    /* Shared: copies in and out. Exclusive: whatever changes what follows. */
    pthread_rwlock_t lock;
    struct extent_map extents;
    uint64_t keep_end; /* memory up to here was asked for past the end, and is no slack */

    _Atomic uint64_t length_bytes;   /* written under the exclusive lock */
    _Atomic uint64_t resident_bytes; /* likewise: sum of the extents */
};

/* All with the exclusive lock held. */

/*
 * Takes memory for [offset, offset + length), zeroed. Returns how many bytes from OFFSET have
 * memory: all, or fewer when it ran out on the way (at least 1), else an error.
 */
int64_t buffer_layout_ensure(struct buffer *buffer, uint64_t offset, uint64_t length);

/* Like it, but all or nothing. */
errint_t buffer_layout_ensure_all(struct buffer *buffer, uint64_t offset, uint64_t length);

/*
 * Makes [offset, end) read as zeros: whole chunks are given back, the rest is zeroed. Everything of
 * the buffer must have been fenced.
 */
errint_t buffer_layout_punch(struct buffer *buffer, uint64_t offset, uint64_t end);

/* Gives back everything past FLOOR that the granularity allows. Fences where it must. */
void buffer_layout_trim(struct buffer *buffer, uint64_t floor);

/* Gives everything back, or to the quarantine if an unproven copy may still write there. */
void buffer_layout_clear(struct buffer *buffer);

#endif
