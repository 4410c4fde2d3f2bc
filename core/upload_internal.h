/*
 * What the files of the upload queue share: upload.c gathers, copies and waits, upload_submit.c
 * hands batches to the driver, upload_proof.c knows what is proven and what failed,
 * upload_staging.c gives the batch its staging. For all functions here the queue's mutex is held;
 * upload_wait_idle, upload_wait_turn, upload_wait_proven, upload_submit, upload_event_synchronize
 * and upload_event_waited may let go of it meanwhile.
 *
 * A batch is submitted without the mutex, one at a time, while others gather into the other one.
 * Meanwhile (in_flight) its operation counts as submitted although it is not in the stream yet: so
 * whatever uses the stream, or judges it, comes after upload_wait_idle.
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

/* A thread that waits for an event without the mutex. */
struct upload_waiter {
    uint64_t number;                    /* in the order in which they began to wait */
    struct upload_waiter *next, **link; /* link NULL: its stream was quarantined meanwhile */
};

struct upload_queue {
    struct device *device;
    size_t block_bytes, block_limit; /* constant */

    pthread_mutex_t mutex; /* covers what follows */
    CUstream stream;       /* NULL: none could be had after a quarantine */
    struct upload_mark submitted, proven, proven_before; /* the last: in the epoch before */
    struct upload_batch batches[2], *batch;              /* the one that is gathered into */
    uint64_t oldest_pending_ns;
    struct upload_target *dirty_targets;
    uint64_t fence_failures; /* how often a copy failed after it was submitted */

    struct upload_waiter *waiters, **last_waiter; /* the oldest first */
    uint64_t waiters_begun;
    _Atomic unsigned int querying; /* threads in upload_fence_is_done; without the mutex */
    struct upload_ended {
        struct upload_mark mark;
        uint64_t waiters_begun; /* proven when all of these have come back */
    } ended[2];                 /* ended_count of them, the older mark first */
    size_t ended_count;
    bool fencing;         /* somebody waits for the stream on behalf of all */
    pthread_cond_t proof; /* a mark was proven, there is a new epoch, or fencing went down */

    bool in_flight;       /* the other batch is being handed to the driver */
    unsigned int waiting; /* threads in upload_wait_idle: they come before the next submission */
    unsigned int failing; /* threads that know of a failure of the stream, and wait to handle it */
    pthread_cond_t idle;  /* in_flight, waiting or failing went down */

    struct staging_block *blocks; /* block_limit of them, block_count in use */
    size_t block_count;
    struct staging_block *active; /* the batch's staging */

    CUevent idle_events[IDLE_EVENTS];
    size_t idle_event_count;
};

/* -- upload_submit.c --------------------------------------------------------------------------- */

/* Waits until nothing is in flight, so that the stream may be used and judged. */
void upload_wait_idle(struct upload_queue *queue);
bool upload_is_idle(const struct upload_queue *queue);

/* Waits until a submission may begin. False: it did not need to, and nothing has changed. */
bool upload_wait_turn(struct upload_queue *queue);
bool upload_is_turn(const struct upload_queue *queue);

/*
 * Submits what was gathered, if anything; a submission may begin. NEXT: the staging to gather into
 * from then on (NULL: what is left of the present one); the one before is retired. Nothing is in
 * flight when it returns, but others may have gathered more. On failure the affected targets are
 * told.
 */
errint_t upload_submit(struct upload_queue *queue, struct staging_block *next);

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

/*
 * The driver said that everything up to the mark has ended. It tells a failure once, to whoever
 * asks first, and some ask without the mutex: so that counts as proven only when all who were
 * asking at that time have come back, with what they were told.
 */
void upload_ended(struct upload_queue *queue, const struct upload_mark *mark);

/* False, too, when it never will be (a new epoch). */
bool upload_is_proven(const struct upload_queue *queue, const struct upload_mark *mark);

/* Waits until what has ended is proven. False: it never will be. */
bool upload_wait_proven(struct upload_queue *queue, const struct upload_mark *mark);

/* cuEventSynchronize without the mutex. */
CUresult upload_event_synchronize(struct upload_queue *queue, CUevent event);

/* Gives the queue a stream; stream stays NULL if there is none to be had. */
void upload_open_stream(struct upload_queue *queue);

/* Completion cannot be proven: nothing that the stream may still touch is used again. */
void upload_queue_quarantine(struct upload_queue *queue, const char *why);

/*
 * A driver call on the stream failed, and nothing is in flight: waits until all has ended, or
 * quarantines (*unproven). fence_failed: which copy it was is unknown, so all unproven ones count
 * as lost, and nothing is unproven any more. Returns the errno.
 */
errint_t upload_queue_failed(struct upload_queue *queue, CUresult result, const char *call,
                             bool fence_failed, bool *unproven);

/* The result of waiting for (or asking about) an event that was recorded at MARK. */
errint_t upload_event_waited(struct upload_queue *queue, const struct upload_mark *mark,
                             CUresult result, bool *unproven);

/* -- upload_staging.c -------------------------------------------------------------------------- */

/*
 * Finds other staging than the batch has: a block whose copies are proven complete, or a new one.
 * At the limit: NULL, or with WAIT the oldest block once it is complete. NULL with 0, too, when a
 * fence failed, which others were told: look again when the queue is ready. Nothing is in flight.
 */
errint_t upload_find_block(struct upload_queue *queue, bool wait, struct staging_block **out);

/* The batch, which is empty, is gathered there. */
void upload_use_block(struct upload_queue *queue, struct staging_block *block);

/*
 * Records when the batch's staging, to which nothing is added any more, is free again. Nothing is
 * pending or in flight. False: all is quarantined, and others were told.
 */
bool upload_retire_block(struct upload_queue *queue);

#endif
