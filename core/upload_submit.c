/* How a batch gets to the driver: closed under the mutex, submitted without it, accounted again. */
#include "core/upload_internal.h"

#include <errno.h>
#include <sched.h>

#define SPINS 64 /* before the processor is left to those who copy */

/* -- whose turn it is -------------------------------------------------------------------------- */

bool upload_is_idle(const struct upload_queue *queue)
{
    return !queue->in_flight && queue->failing == 0;
}

void upload_wait_idle(struct upload_queue *queue)
{
    if (upload_is_idle(queue))
        return;
    queue->waiting++;
    while (!upload_is_idle(queue))
        pthread_cond_wait(&queue->idle, &queue->mutex);
    if (--queue->waiting == 0)
        pthread_cond_broadcast(&queue->idle);
}

bool upload_is_turn(const struct upload_queue *queue)
{
    return upload_is_idle(queue) && queue->waiting == 0;
}

bool upload_wait_turn(struct upload_queue *queue)
{
    if (upload_is_turn(queue))
        return false;
    while (!upload_is_turn(queue))
        pthread_cond_wait(&queue->idle, &queue->mutex);
    return true;
}

/* -- submitting -------------------------------------------------------------------------------- */

static CUresult submit_as_batch(const struct driver *driver, CUstream stream,
                                const struct upload_batch *batch)
{
    CUdeviceptr destinations[UPLOAD_BATCH_INTERVALS], sources[UPLOAD_BATCH_INTERVALS];
    size_t sizes[UPLOAD_BATCH_INTERVALS], attribute_start = 0, failed = 0;
    CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};

    for (size_t i = 0; i < batch->count; i++) {
        destinations[i] = batch->intervals[i].address;
        sources[i] = (CUdeviceptr)(uintptr_t)batch->intervals[i].bytes;
        sizes[i] = batch->intervals[i].length;
    }
    return driver->cuMemcpyBatchAsync(destinations, sources, sizes, batch->count, &attributes,
                                      &attribute_start, 1, &failed, stream);
}

/* Without the mutex. *done: how many of the copies are in the stream. */
static CUresult submit_copies(const struct driver *driver, CUstream stream,
                              const struct upload_batch *batch, size_t *done, const char **call)
{
    CUresult result = CUDA_SUCCESS;

    *done = 0;
    /* The copies of a batch run in any order: only where no two of them overlap. */
    if (batch->count > 1 && driver->cuMemcpyBatchAsync && !upload_batch_overlaps(batch)) {
        *call = "cuMemcpyBatchAsync";
        result = submit_as_batch(driver, stream, batch);
        *done = result == CUDA_SUCCESS ? batch->count : 0;
        return result;
    }
    *call = "cuMemcpyHtoDAsync";
    for (; *done < batch->count && result == CUDA_SUCCESS; *done += result == CUDA_SUCCESS)
        result = driver->cuMemcpyHtoDAsync(batch->intervals[*done].address,
                                           batch->intervals[*done].bytes,
                                           batch->intervals[*done].length, stream);
    return result;
}

/* From here on it is the other batch that is gathered into, behind what is used of the staging. */
static struct upload_batch *close_batch(struct upload_queue *queue)
{
    struct upload_batch *closed = queue->batch;

    queue->batch = closed == &queue->batches[0] ? &queue->batches[1] : &queue->batches[0];
    upload_batch_set_staging(queue->batch, closed->base, closed->used, closed->capacity);
    queue->submitted.sequence++;
    for (size_t i = 0; i < closed->count; i++) {
        closed->intervals[i].target->submitted = queue->submitted.sequence;
        closed->intervals[i].target->pending_bytes = 0;
    }
    queue->in_flight = true;
    return closed;
}

/* Tells the targets of the copies from the one at DONE on, each once. */
static void tell_targets(struct upload_queue *queue, const struct upload_batch *batch, size_t done,
                         CUresult result)
{
    for (size_t i = done; i < batch->count; i++) {
        struct upload_target *target = batch->intervals[i].target;
        bool seen = false;
        for (size_t j = done; j < i && !seen; j++)
            seen = batch->intervals[j].target == target;
        if (!seen)
            upload_target_failed(queue, target, driver_error_name(queue->device->driver, result));
    }
}

errint_t upload_submit(struct upload_queue *queue, struct staging_block *next)
{
    const struct driver *driver = queue->device->driver;
    struct staging_block *block = queue->active;
    CUstream stream = queue->stream;
    const char *call;
    size_t done;
    bool unproven;
    errint_t err = 0;

    if (queue->batch->count == 0)
        return 0;
    struct upload_batch *closed = close_batch(queue);
    if (next)
        upload_use_block(queue, next);
    pthread_mutex_unlock(&queue->mutex);
    for (unsigned int i = 0; !upload_batch_is_whole(closed); i++)
        if (i >= SPINS)
            sched_yield();
    CUresult result = submit_copies(driver, stream, closed, &done, &call);
    if (next && result == CUDA_SUCCESS) {
        call = "cuEventRecord";
        result = driver->cuEventRecord(block->event, stream);
    }
    pthread_mutex_lock(&queue->mutex);
    for (size_t i = 0; i < done; i++)
        queue->submitted.bytes += closed->intervals[i].length;
    queue->submitted.operations += done;
    block->mark = queue->submitted;
    queue->in_flight = false;
    if (result != CUDA_SUCCESS) {
        tell_targets(queue, closed, done, result);
        err = upload_queue_failed(queue, result, call, false, &unproven);
    }
    upload_batch_clear(closed);
    pthread_cond_broadcast(&queue->idle);
    return err;
}
