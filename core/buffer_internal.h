/* What buffer.c (bytes), buffer_layout.c (memory) and buffer_share.c have in common. */
#ifndef RESIDENTFS_CORE_BUFFER_INTERNAL_H
#define RESIDENTFS_CORE_BUFFER_INTERNAL_H

#include "core/buffer.h"
#include "core/extent.h"
#include "core/readahead.h"
#include "core/upload.h"

struct buffer {
    struct device *device; /* constant */
    struct upload_target target;

    /* Shared: copies in and out. Exclusive: whatever changes what follows. */
    pthread_rwlock_t lock;
    struct extent_map extents;
    uint64_t keep_end; /* memory up to here was asked for past the end, and is no slack */
    _Atomic unsigned int
        shares; /* written under the exclusive lock: nothing in extents goes away */

    /* Constant once set. An attached buffer has one extent until it is detached, then none. */
    _Atomic bool attached, detached;

    /*
     * version counts up before each change of what a read would see, settled_version after it and
     * before it is reported; both do when the lock is taken exclusively.
     */
    _Atomic uint64_t version, settled_version;
    _Atomic unsigned int prefetches; /* windows that are being read ahead: core/readahead.c */

    _Atomic uint64_t length_bytes;   /* written under the exclusive lock */
    _Atomic uint64_t resident_bytes; /* likewise: sum of the extents */
};

/* Whether bytes can be copied in or out at all: 0 or -EIO. Any lock. */
errint_t buffer_usable(const struct buffer *buffer);

/* Takes the lock exclusively; nothing reads the memory then, nor has been read ahead. */
void buffer_lock_exclusive(struct buffer *buffer);

/* Bytes that are to be copied ahead of being asked for. */
struct buffer_prefetch {
    uint64_t offset;
    size_t length; /* clipped to the buffer */
    unsigned char *bytes;
    CUstream stream;
    /* What came of it: */
    bool at_end;      /* it goes up to the end of the buffer */
    bool failed;      /* not all copies could be submitted */
    uint64_t version; /* of the buffer: shows whether the bytes still are what a read would give */
    unsigned int copies; /* submitted to the stream; not 0: counted in buffer.prefetches */
    uint64_t copied_bytes;
};

/*
 * Submits the copies without waiting for anything. False, and nothing was done: there is nothing at
 * OFFSET, or not now: the buffer is being written or changed, or is shared with other processes.
 */
bool buffer_prefetch(struct buffer *buffer, struct buffer_prefetch *prefetch);

/* All with the exclusive lock held. */

/* Gives a small buffer, or an empty one, a chunk that nothing else is in. */
errint_t buffer_layout_promote(struct buffer *buffer);

/* Puts in the memory of another process. The buffer is empty. -ENOMEM. */
errint_t buffer_layout_attach(struct buffer *buffer, struct attachment *attachment,
                              CUdeviceptr address, uint64_t length);

/*
 * Takes memory for [offset, offset + length), zeroed. Returns how many bytes from OFFSET have
 * memory: all, or fewer when it ran out on the way (at least 1), else an error.
 */
int64_t buffer_layout_ensure(struct buffer *buffer, uint64_t offset, uint64_t length);

/* Like it, but all or nothing. */
errint_t buffer_layout_ensure_all(struct buffer *buffer, uint64_t offset, uint64_t length);

/*
 * Makes [offset, end) read as zeros: whole chunks are given back unless the buffer is shared, the
 * rest is zeroed. Everything of the buffer must have been fenced.
 */
errint_t buffer_layout_punch(struct buffer *buffer, uint64_t offset, uint64_t end);

/* Gives back everything past FLOOR that the granularity and sharing allow. Fences where it must. */
void buffer_layout_trim(struct buffer *buffer, uint64_t floor);

/* Gives everything back, or to the quarantine if an unproven copy may still write there. */
void buffer_layout_clear(struct buffer *buffer);

#endif
