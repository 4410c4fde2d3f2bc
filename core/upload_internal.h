/*
 * What the files of the upload queue share: upload.c submits and waits, upload_proof.c knows what
 * is proven and what failed, upload_staging.c gives the batch its staging. For all functions here
 * the queue's mutex is held.
 */
#ifndef RESIDENTFS_CORE_UPLOAD_INTERNAL_H
#define RESIDENTFS_CORE_UPLOAD_INTERNAL_H

#include "core/upload.h"

#define IDLE_EVENTS 32

struct staging_block {
    struct pinned_memory memory;
    CUevent event;           /* recorded when the block was retired */
    struct upload_mark mark; /* of the last copy that reads it */
};

struct upload_queue {
    struct device *device;
    size_t block_bytes, block_limit; /* constant */

    pthread_mutex_t mutex; /* covers what follows */
    CUstream stream;       /* NULL: none could be had after a quarantine */
    struct upload_mark submitted, proven;
    struct upload_batch batch;
    uint64_t oldest_pending_ns;
    struct upload_target *dirty_targets;
    uint64_t fence_failures; /* how often a copy failed after it was submitted */

    struct staging_block *blocks; /* block_limit of them, block_count in use */
    size_t block_count;
    struct staging_block *active; /* the batch's staging */

    CUevent idle_events[IDLE_EVENTS];
    size_t idle_event_count;
};

/* -- upload_proof.c ---------------------------------------------------------------------------- */

/* The target has bytes at [offset, offset + length) (none: length 0) on their way. */
void upload_target_list(struct upload_queue *queue, struct upload_target *target, uint64_t offset,
                        uint64_t length);
void upload_target_unlist(struct upload_target *target);

/* An upload of the target is lost: whoever has the file open is told once. */
void upload_target_failed(struct upload_queue *queue, struct upload_target *target,
                          const char *why);

/* Memory of the target is being zeroed: if that fails unseen, it is done again. */
void upload_target_zeroing(struct upload_queue *queue, struct upload_target *target,
                           CUdeviceptr address, uint64_t length);

/* Everything up to the mark is complete. */
void upload_advance_proven(struct upload_queue *queue, const struct upload_mark *mark);

/* Gives the queue a stream; stream stays NULL if there is none to be had. */
void upload_open_stream(struct upload_queue *queue);

/* Completion cannot be proven: nothing that the stream may still touch is used again. */
void upload_queue_quarantine(struct upload_queue *queue, const char *why);

/*
 * A driver call on the stream failed: proves completion, or quarantines (*unproven). fence_failed:
 * which copy it was is unknown, so all unproven ones count as lost. Returns the errno.
 */
errint_t upload_queue_failed(struct upload_queue *queue, CUresult result, const char *call,
                             bool fence_failed, bool *unproven);

/* The result of waiting for (or asking about) an event that was recorded at MARK. */
errint_t upload_event_waited(struct upload_queue *queue, const struct upload_mark *mark,
                             CUresult result, bool *unproven);

/* -- upload_staging.c -------------------------------------------------------------------------- */

/*
 * Gives the batch, which is empty, other staging: a block whose copies are proven complete, or a
 * new one, or, at the limit, the oldest once it is complete.
 */
errint_t upload_next_block(struct upload_queue *queue);

#endif
