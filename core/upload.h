/*
 * Upload queues: each owns a stream and a part of the device's staging, and gathers the pending
 * uploads of the buffers that belong to it. All copies into a buffer's memory go through its one
 * queue, in order: uploads, zeroing, copies on the device. A fence proves them complete.
 *
 * Failures: after an error the stream is synchronised. If that succeeds, the failure is completed:
 * what was lost is reported by upload_target's error counter, everything else goes on. If it fails,
 * completion is unproven: stream, staging and the memory of all buffers with unproven copies are
 * quarantined, and the queue goes on with a new stream.
 *
 * One mutex a queue. It is held neither while a batch is handed to the driver, nor while long parts
 * are copied to staging, nor while a fence is waited for (except when the queue's staging is used
 * up: then its writers wait). One thread at a time waits for a fence, for all who want one
 * meanwhile. What is submitted by itself is so with the mutex held, while no batch is on its way:
 * see core/upload_internal.h.
 */
#ifndef RESIDENTFS_CORE_UPLOAD_H
#define RESIDENTFS_CORE_UPLOAD_H

#include "core/buffer.h"
#include "core/device_internal.h"
#include "core/upload_batch.h"

struct upload_queue;

/* What a queue knows of a buffer. Under the queue's mutex, but for the atomics. */
struct upload_target {
    struct upload_queue *queue;      /* constant */
    uint64_t id;                     /* of the buffer, for messages; constant */
    uint64_t pending_bytes;          /* gathered, not submitted */
    uint64_t submitted;              /* sequence number of its last operation in the stream */
    uint64_t dirty_bytes;            /* accepted and not proven (at most) */
    uint64_t dirty_start, dirty_end; /* hull of their places in the buffer */
    /* Zeroing that is not proven: until it is, the memory may hold another file's bytes. */
    struct upload_zeroing {
        CUdeviceptr address;
        uint64_t length, sequence;
    } zeroing[4];
    unsigned int zeroing_count;
    uint64_t zeroing_untold; /* sequence of the last that found no place above; 0: none */
    struct upload_target *next, **link; /* in the queue's list of dirty targets; link NULL: not */

    _Atomic bool dirty;           /* is in the list: a read must go through the queue */
    _Atomic bool failed;          /* an unproven copy may still write to its memory */
    _Atomic uint64_t error_count; /* deferred failures so far */
};

errint_t upload_queue_create(struct device *device, uint64_t staging_bytes,
                             struct upload_queue **out);
/* Nothing is pending or running (see upload_queue_fence). NULL is fine. */
void upload_queue_destroy(struct upload_queue *queue);

void upload_target_init(struct upload_target *target, struct upload_queue *queue, uint64_t id);

/* Where an upload goes: device memory, and which bytes of the buffer those are. */
struct upload_place {
    uint64_t extent_id;
    CUdeviceptr address;
    uint64_t offset; /* in the buffer */
};

/* Copies the bytes to staging, to be uploaded later. -EIO: the device is lost. */
errint_t upload_queue_gather(struct upload_queue *queue, struct upload_target *target,
                             struct upload_place place, const void *bytes, size_t length);

/*
 * Submits a copy from page-locked memory in place. FENCE then belongs to this copy and all those
 * made with it since it was last waited for.
 */
errint_t upload_queue_direct(struct upload_queue *queue, struct upload_target *target,
                             struct upload_place place, const void *bytes, size_t length,
                             struct upload_fence *fence);

/* Zeroes device memory; copies on the device. Ordered with the target's uploads. */
errint_t upload_queue_zero(struct upload_queue *queue, struct upload_target *target,
                           CUdeviceptr address, uint64_t length);
errint_t upload_queue_copy(struct upload_queue *queue, struct upload_target *target,
                           CUdeviceptr destination, CUdeviceptr source, uint64_t length);

/*
 * Submits what is pending and waits until everything of the target (NULL: of the queue) is proven
 * complete. 0, or the errno of a failure that happened meanwhile; the target is clean either way.
 */
errint_t upload_queue_fence(struct upload_queue *queue, struct upload_target *target);

/*
 * Runs copies to host memory behind everything that the target has pending: submit is called with
 * the mutex held and the stream, and must only submit to it. Then waits. 0; a negative errno;
 * -ENOTRECOVERABLE: completion is unproven, the host memory must be quarantined.
 */
errint_t upload_queue_read_behind(struct upload_queue *queue, struct upload_target *target,
                                  CUresult (*submit)(CUstream stream, void *data), void *data);

/* Forgets what was gathered for the target but not submitted (its file is gone). */
void upload_queue_drop_pending(struct upload_queue *queue, struct upload_target *target);

/*
 * For the flusher: submits what has waited for longer than max_wait_ns, and notices what has
 * completed. True when something is still pending or unproven.
 */
bool upload_queue_tick(struct upload_queue *queue, uint64_t max_wait_ns);

uint64_t upload_queue_dirty_bytes(struct upload_queue *queue);
/* Under the mutex. */
uint64_t upload_target_dirty_bytes(struct upload_target *target);

#endif
