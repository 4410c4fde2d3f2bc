/*
 * Read-ahead: while a sequential reader gets what it asked for, the device copies what comes next
 * into page-locked memory, so that the next read waits for no copy.
 *
 * What was read ahead is shown only if no change of the buffer has begun since before its copy
 * did (buffer.version), and never of a buffer that other processes share, whose memory changes
 * unseen. It is read in windows, two a reader, which grow with what was read in a row up to
 * device_options.readahead_bytes. Their memory is a pool of the device's, of at most half of
 * staging_bytes; a reader that has not read for a while loses its windows to one that needs them.
 *
 * Locks: readahead.mutex, then readahead_pool.mutex or readahead_slot.mutex. With the latter a
 * buffer's lock is only tried, since whoever changes a buffer holds it and then waits for copies
 * that read the buffer (readahead_wait_all).
 */
#ifndef RESIDENTFS_CORE_READAHEAD_H
#define RESIDENTFS_CORE_READAHEAD_H

#include <pthread.h>

#include "core/buffer.h"

struct readahead_slot;

/* One reader of one buffer, an open file. */
struct readahead {
    pthread_mutex_t mutex;       /* covers what follows; readers that find it taken go without */
    uint64_t next;               /* where the last read ended */
    uint64_t run;                /* bytes that were read in a row up to there */
    struct readahead_slot *slot; /* NULL: none yet, or it went to another reader */
};

void readahead_init(struct readahead *reader);
/* The last read has ended. Waits for copies under way. */
void readahead_finish(struct readahead *reader, struct buffer *buffer);

/*
 * Is told of each read before it is made. True: its bytes are here, *available of them (fewer than
 * LENGTH only at the end of the buffer), as if they had been read now, until readahead_end is
 * called. False: read them with buffer_read; readahead_end is not to be called. Never an error:
 * what went wrong, buffer_read will meet.
 */
bool readahead_begin(struct readahead *reader, struct buffer *buffer, uint64_t offset,
                     size_t length, const void **bytes, size_t *available);
/* OFFSET and LENGTH as above: the bytes have been used; what comes next begins to be copied. */
void readahead_end(struct readahead *reader, struct buffer *buffer, uint64_t offset, size_t length);

/* With the buffer's lock exclusively: waits until no copy for a reader reads its memory. */
void readahead_wait_all(struct buffer *buffer);

/* For device_open and device_close; no reader is left then. -ENOMEM. */
errint_t readahead_pool_init(struct device *device);
void readahead_pool_finish(struct device *device);

#endif
