/* The blocks of staging of a queue, in turn. */
#include "core/upload_internal.h"

#include <errno.h>

static errint_t block_create(struct upload_queue *queue, struct staging_block **out)
{
    struct staging_block *block = &queue->blocks[queue->block_count];
    CUresult result;

    *block = (struct staging_block){0};
    if (pinned_memory_init(queue->device, &block->memory, queue->block_bytes) < 0)
        return -ENOMEM;
    result = queue->device->driver->cuEventCreate(&block->event, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS) {
        pinned_memory_finish(queue->device, &block->memory);
        return device_failure(queue->device, result, "cuEventCreate", "a fence");
    }
    queue->block_count++;
    telemetry_add(&queue->device->telemetry, TELEMETRY_POOL_MISSES, 1);
    *out = block;
    return 0;
}

static struct staging_block *block_oldest(struct upload_queue *queue)
{
    struct staging_block *oldest = NULL;

    for (size_t i = 0; i < queue->block_count; i++) {
        struct staging_block *block = &queue->blocks[i];
        if (block != queue->active && (!oldest || block->mark.sequence < oldest->mark.sequence))
            oldest = block;
    }
    return oldest;
}

bool upload_retire_block(struct upload_queue *queue)
{
    struct staging_block *block = queue->active;
    bool unproven;

    if (!block || block->mark.sequence <= queue->proven.sequence)
        return true;
    block->mark = queue->submitted;
    CUresult result = queue->device->driver->cuEventRecord(block->event, queue->stream);
    if (result == CUDA_SUCCESS)
        return true;
    upload_queue_failed(queue, result, "cuEventRecord", false, &unproven);
    return !unproven; /* all copies have ended: an older event says so, too */
}

void upload_use_block(struct upload_queue *queue, struct staging_block *block)
{
    queue->active = block;
    upload_batch_set_staging(queue->batch, block->memory.bytes, 0, block->memory.length);
}

errint_t upload_find_block(struct upload_queue *queue, bool wait, struct staging_block **out)
{
    const struct driver *driver = queue->device->driver;
    struct staging_block *block = block_oldest(queue);
    CUresult result;
    bool unproven, ended = block && block->mark.sequence <= queue->proven.sequence;
    errint_t err = 0;

    *out = NULL;
    if (block && !ended) {
        result = driver->cuEventQuery(block->event);
        ended = result == CUDA_SUCCESS;
        if (ended) {
            upload_ended(queue, &block->mark);
        } else if (result != CUDA_ERROR_NOT_READY) {
            upload_queue_failed(queue, result, "cuEventQuery", true, &unproven);
            return 0;
        }
    }
    if (!ended) {
        struct staging_block *created = NULL;
        if (queue->block_count < queue->block_limit)
            err = block_create(queue, &created);
        ended = created != NULL;
        block = created ? created : block;
        if (!block)
            return err < 0 ? err : -ENOMEM;
    } else {
        telemetry_add(&queue->device->telemetry, TELEMETRY_POOL_HITS, 1);
    }
    if (!ended) {
        if (!wait)
            return 0;
        /* Nothing is in flight, so the mutex is held all the time. */
        err = upload_event_waited(queue, &block->mark, driver->cuEventSynchronize(block->event),
                                  &unproven);
        if (err < 0)
            return 0;
    }
    *out = block;
    return 0;
}
