#include "core/upload.h"

#include <errno.h>
#include <string.h>

#include "core/log.h"

#define STAGING_BLOCK_MAX_BYTES (1 * MIB)
#define STAGING_BLOCK_MIN_BYTES (64 * KIB)
#define STAGING_BLOCKS_MIN      2
#define SUBMIT_BYTES            (512 * KIB) /* gathered bytes that are submitted without waiting */
#define IDLE_EVENTS             32

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

void upload_target_init(struct upload_target *target, struct upload_queue *queue, uint64_t id)
{
    *target = (struct upload_target){.queue = queue, .id = id};
}

/* In all that follows, but for the public functions, the queue's mutex is held. */

/* -- dirty targets ----------------------------------------------------------------------------- */

static void target_unlist(struct upload_target *target)
{
    *target->link = target->next;
    if (target->next)
        target->next->link = target->link;
    target->link = NULL;
    target->dirty_bytes = 0;
    target->pending_bytes = 0;
    target->zeroing_count = 0;
    target->zeroing_untold = 0;
    atomic_store(&target->dirty, false);
}

static void target_list(struct upload_queue *queue, struct upload_target *target, uint64_t offset,
                        uint64_t length)
{
    if (!target->link) {
        target->next = queue->dirty_targets;
        target->link = &queue->dirty_targets;
        if (target->next)
            target->next->link = &target->next;
        queue->dirty_targets = target;
        target->dirty_start = UINT64_MAX;
        target->dirty_end = 0;
        atomic_store(&target->dirty, true);
    }
    if (length > 0) {
        target->dirty_bytes += length;
        target->dirty_start = MIN(target->dirty_start, offset);
        target->dirty_end = MAX(target->dirty_end, offset + length);
    }
}

/* An upload of the target is lost: whoever has the file open is told once. */
static void target_failed(struct upload_queue *queue, struct upload_target *target, const char *why)
{
    atomic_fetch_add(&target->error_count, 1);
    telemetry_add(&queue->device->telemetry, TELEMETRY_ERRORS_UPLOAD, 1);
    if (target->dirty_end > target->dirty_start)
        log_error("buffer %llu: an upload in [%llu, %llu) is lost (%s); write it again",
                  (unsigned long long)target->id, (unsigned long long)target->dirty_start,
                  (unsigned long long)target->dirty_end, why);
}

/* Keeps in mind what has to be zeroed again should a copy before its proof fail. */
static void target_zeroing(struct upload_queue *queue, struct upload_target *target,
                           CUdeviceptr address, uint64_t length)
{
    unsigned int kept = 0;

    for (unsigned int i = 0; i < target->zeroing_count; i++)
        if (target->zeroing[i].sequence > queue->proven.sequence)
            target->zeroing[kept++] = target->zeroing[i];
    target->zeroing_count = kept;
    if (kept < ARRAY_SIZE(target->zeroing))
        target->zeroing[target->zeroing_count++] =
            (struct upload_zeroing){address, length, queue->submitted.sequence};
    else
        target->zeroing_untold = queue->submitted.sequence;
}

static void advance_proven(struct upload_queue *queue, const struct upload_mark *mark)
{
    if (mark->epoch != queue->submitted.epoch || mark->sequence <= queue->proven.sequence)
        return;
    telemetry_add(&queue->device->telemetry, TELEMETRY_H2D_BYTES,
                  mark->bytes - queue->proven.bytes);
    telemetry_add(&queue->device->telemetry, TELEMETRY_H2D_OPERATIONS,
                  mark->operations - queue->proven.operations);
    queue->proven = *mark;
    for (struct upload_target *t = queue->dirty_targets, *next; t; t = next) {
        next = t->next;
        if (t->pending_bytes == 0 && t->submitted <= mark->sequence)
            target_unlist(t);
    }
}

/* -- failures ---------------------------------------------------------------------------------- */

static void open_stream(struct upload_queue *queue)
{
    CUresult result = queue->device->driver->cuStreamCreate(&queue->stream, CU_STREAM_NON_BLOCKING);

    if (result != CUDA_SUCCESS) {
        queue->stream = NULL;
        device_failure(queue->device, result, "cuStreamCreate", "an upload stream");
    }
}

/* Completion could not be proven: nothing that the stream may still touch is used again. */
static void queue_quarantine(struct upload_queue *queue, const char *why)
{
    struct device *device = queue->device;

    stream_quarantine(device, queue->stream);
    for (size_t i = 0; i < queue->block_count; i++)
        pinned_memory_quarantine(device, &queue->blocks[i].memory);
    queue->block_count = 0;
    queue->active = NULL;
    upload_batch_set_staging(&queue->batch, NULL, 0, 0);
    while (queue->dirty_targets) {
        struct upload_target *target = queue->dirty_targets;
        if (target->submitted > queue->proven.sequence)
            atomic_store(&target->failed, true);
        target_failed(queue, target, why);
        target_unlist(target);
    }
    queue->submitted.epoch++;
    queue->proven = queue->submitted;
    queue->stream = NULL;
    if (!device_is_lost(device))
        open_stream(queue);
}

/*
 * A copy failed after its submission, and it may have been any that is unproven. Uploads are lost
 * and their targets told; memory that was to be zeroed is zeroed again, or its buffer is given up:
 * what it held before belongs to somebody else. Returns whether that is proven.
 */
static bool zero_again(struct upload_queue *queue)
{
    const struct driver *driver = queue->device->driver;
    CUresult result = CUDA_SUCCESS;

    for (struct upload_target *t = queue->dirty_targets; t; t = t->next) {
        if (t->zeroing_untold > queue->proven.sequence)
            atomic_store(&t->failed, true);
        for (unsigned int i = 0; i < t->zeroing_count && result == CUDA_SUCCESS; i++)
            if (t->zeroing[i].sequence > queue->proven.sequence)
                result = driver->cuMemsetD8Async(t->zeroing[i].address, 0, t->zeroing[i].length,
                                                 queue->stream);
    }
    if (result == CUDA_SUCCESS)
        result = driver->cuStreamSynchronize(queue->stream);
    if (result != CUDA_SUCCESS)
        device_failure(queue->device, result, "cuMemsetD8Async", "zeroing again");
    return result == CUDA_SUCCESS;
}

/*
 * A driver call on the stream failed. Proves completion or quarantines. FENCE_FAILED: which copy it
 * was is unknown, so that all unproven ones count as lost. Returns -EIO; *unproven says which of
 * the two it was.
 */
static errint_t queue_failed(struct upload_queue *queue, CUresult result, const char *call,
                             bool fence_failed, bool *unproven)
{
    struct device *device = queue->device;
    const char *why = driver_error_name(device->driver, result);
    CUresult proof = result;

    device_failure(device, result, call, "an upload stream");
    if (fence_failed) {
        telemetry_add(&device->telemetry, TELEMETRY_ERRORS_FENCE, 1);
        queue->fence_failures++;
    }
    if (!device_is_lost(device) && queue->stream)
        proof = device->driver->cuStreamSynchronize(queue->stream);
    *unproven = proof != CUDA_SUCCESS;
    if (*unproven) {
        queue_quarantine(queue, why);
        return -EIO;
    }
    telemetry_add(&device->telemetry, TELEMETRY_SYNC_POINTS, 1);
    if (fence_failed) {
        if (!zero_again(queue)) {
            *unproven = true;
            queue_quarantine(queue, why);
            return -EIO;
        }
        for (struct upload_target *t = queue->dirty_targets; t; t = t->next)
            if (t->submitted > queue->proven.sequence)
                target_failed(queue, t, why);
    }
    advance_proven(queue, &queue->submitted);
    return -EIO;
}

/* The result of waiting for an event that was recorded at MARK. */
static errint_t event_waited(struct upload_queue *queue, const struct upload_mark *mark,
                             CUresult result, bool *unproven)
{
    *unproven = mark->epoch != queue->submitted.epoch;
    if (*unproven)
        return -EIO; /* another thread met the failure first */
    if (result != CUDA_SUCCESS)
        return queue_failed(queue, result, "cuEventSynchronize", true, unproven);
    telemetry_add(&queue->device->telemetry, TELEMETRY_SYNC_POINTS, 1);
    advance_proven(queue, mark);
    return 0;
}

/* -- events ------------------------------------------------------------------------------------ */

static errint_t event_take(struct upload_queue *queue, CUevent *event)
{
    if (queue->idle_event_count > 0) {
        *event = queue->idle_events[--queue->idle_event_count];
        return 0;
    }
    CUresult result = queue->device->driver->cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
    return result == CUDA_SUCCESS
               ? 0
               : device_failure(queue->device, result, "cuEventCreate", "a fence");
}

static void event_give(struct upload_queue *queue, CUevent event)
{
    if (queue->idle_event_count < IDLE_EVENTS)
        queue->idle_events[queue->idle_event_count++] = event;
    else
        queue->device->driver->cuEventDestroy(event);
}

/* -- submitting -------------------------------------------------------------------------------- */

static CUresult submit_as_batch(struct upload_queue *queue)
{
    const struct upload_batch *batch = &queue->batch;
    CUdeviceptr destinations[UPLOAD_BATCH_INTERVALS], sources[UPLOAD_BATCH_INTERVALS];
    size_t sizes[UPLOAD_BATCH_INTERVALS], attribute_start = 0, failed = 0;
    CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};

    for (size_t i = 0; i < batch->count; i++) {
        destinations[i] = batch->intervals[i].address;
        sources[i] = (CUdeviceptr)(uintptr_t)batch->intervals[i].bytes;
        sizes[i] = batch->intervals[i].length;
    }
    return queue->device->driver->cuMemcpyBatchAsync(destinations, sources, sizes, batch->count,
                                                     &attributes, &attribute_start, 1, &failed,
                                                     queue->stream);
}

/* Submits what was gathered. On failure the affected targets are told. */
static errint_t submit_pending(struct upload_queue *queue)
{
    const struct driver *driver = queue->device->driver;
    struct upload_batch *batch = &queue->batch;
    CUresult result = CUDA_SUCCESS;
    const char *call = "cuMemcpyHtoDAsync";
    size_t done = 0;

    if (batch->count == 0)
        return 0;
    /* The copies of a batch run in any order: only where no two of them overlap. */
    if (batch->count > 1 && driver->cuMemcpyBatchAsync && !upload_batch_overlaps(batch)) {
        call = "cuMemcpyBatchAsync";
        result = submit_as_batch(queue);
        done = result == CUDA_SUCCESS ? batch->count : 0;
    } else {
        for (; done < batch->count && result == CUDA_SUCCESS; done += result == CUDA_SUCCESS)
            result = driver->cuMemcpyHtoDAsync(batch->intervals[done].address,
                                               batch->intervals[done].bytes,
                                               batch->intervals[done].length, queue->stream);
    }
    queue->submitted.sequence++;
    for (size_t i = 0; i < batch->count; i++) {
        struct upload_interval *interval = &batch->intervals[i];
        interval->target->submitted = queue->submitted.sequence;
        interval->target->pending_bytes = 0;
        if (i < done) {
            queue->submitted.bytes += interval->length;
            queue->submitted.operations++;
        }
    }
    if (queue->active)
        queue->active->mark = queue->submitted;
    if (result != CUDA_SUCCESS) {
        bool unproven;
        for (size_t i = done; i < batch->count; i++) {
            struct upload_target *target = batch->intervals[i].target;
            bool seen = false;
            for (size_t j = done; j < i && !seen; j++)
                seen = batch->intervals[j].target == target;
            if (!seen)
                target_failed(queue, target, driver_error_name(driver, result));
        }
        upload_batch_clear(batch);
        return queue_failed(queue, result, call, false, &unproven);
    }
    upload_batch_clear(batch);
    return 0;
}

/* -- staging ----------------------------------------------------------------------------------- */

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

/*
 * Gives the batch, which is empty, other staging: a block whose copies are proven complete, or a
 * new one, or, at the limit, the oldest once it is complete. 0 although there is no room yet: a
 * fence failed, which others were told; to be called again when the queue is ready.
 */
static errint_t next_block(struct upload_queue *queue)
{
    const struct driver *driver = queue->device->driver;
    struct staging_block *block;
    CUresult result;
    bool unproven;
    errint_t err = 0;

    if (queue->active && queue->active->mark.sequence > queue->proven.sequence) {
        queue->active->mark = queue->submitted;
        result = driver->cuEventRecord(queue->active->event, queue->stream);
        if (result != CUDA_SUCCESS) {
            queue_failed(queue, result, "cuEventRecord", false, &unproven);
            return 0;
        }
    }
    block = block_oldest(queue);
    if (block && block->mark.sequence > queue->proven.sequence) {
        result = driver->cuEventQuery(block->event);
        if (result == CUDA_SUCCESS)
            advance_proven(queue, &block->mark);
        else if (result != CUDA_ERROR_NOT_READY)
            return event_waited(queue, &block->mark, result, &unproven);
    }
    if (!block || block->mark.sequence > queue->proven.sequence) {
        if (queue->block_count < queue->block_limit)
            err = block_create(queue, &block);
        if (!block)
            return err < 0 ? err : -ENOMEM;
    } else {
        telemetry_add(&queue->device->telemetry, TELEMETRY_POOL_HITS, 1);
    }
    if (block->mark.sequence > queue->proven.sequence) {
        err =
            event_waited(queue, &block->mark, driver->cuEventSynchronize(block->event), &unproven);
        if (err < 0)
            return 0;
    }
    queue->active = block;
    upload_batch_set_staging(&queue->batch, block->memory.bytes, 0, block->memory.length);
    return 0;
}

/* -- public ------------------------------------------------------------------------------------ */

errint_t upload_queue_create(struct device *device, uint64_t staging_bytes,
                             struct upload_queue **out)
{
    struct upload_queue *queue = calloc(1, sizeof(*queue));

    if (!queue)
        return -ENOMEM;
    queue->device = device;
    queue->block_bytes = align_down(
        MAX(MIN(staging_bytes / 4, STAGING_BLOCK_MAX_BYTES), STAGING_BLOCK_MIN_BYTES), 4 * KIB);
    queue->block_limit = MAX(staging_bytes / queue->block_bytes, STAGING_BLOCKS_MIN);
    queue->blocks = calloc(queue->block_limit, sizeof(*queue->blocks));
    if (!queue->blocks || upload_batch_init(&queue->batch) < 0) {
        free(queue->blocks);
        free(queue);
        return -ENOMEM;
    }
    pthread_mutex_init(&queue->mutex, NULL);
    open_stream(queue);
    if (!queue->stream) {
        upload_queue_destroy(queue);
        return -EIO;
    }
    *out = queue;
    return 0;
}

void upload_queue_destroy(struct upload_queue *queue)
{
    if (!queue)
        return;
    const struct driver *driver = queue->device->driver;
    for (size_t i = 0; i < queue->block_count; i++) {
        driver->cuEventDestroy(queue->blocks[i].event);
        pinned_memory_finish(queue->device, &queue->blocks[i].memory);
    }
    while (queue->idle_event_count > 0)
        driver->cuEventDestroy(queue->idle_events[--queue->idle_event_count]);
    if (queue->stream)
        driver->cuStreamDestroy(queue->stream);
    upload_batch_finish(&queue->batch);
    pthread_mutex_destroy(&queue->mutex);
    free(queue->blocks);
    free(queue);
}

/* Whether the queue can take an operation. */
static errint_t queue_ready(struct upload_queue *queue)
{
    if (device_is_lost(queue->device))
        return -EIO;
    if (!queue->stream)
        open_stream(queue);
    return queue->stream ? 0 : -EIO;
}

/*
 * Submits what was gathered, so that something of TARGET can come after it. Failures of uploads are
 * told to those who wrote them and keep nobody else from going on.
 */
static errint_t make_way(struct upload_queue *queue, struct upload_target *target)
{
    submit_pending(queue);
    return atomic_load(&target->failed) ? -EIO : queue_ready(queue);
}

errint_t upload_queue_gather(struct upload_queue *queue, struct upload_target *target,
                             struct upload_place place, const void *bytes, size_t length)
{
    const unsigned char *from = bytes;
    bool wake = false;

    pthread_mutex_lock(&queue->mutex);
    errint_t err = queue_ready(queue);
    while (length > 0 && err == 0) {
        size_t room = upload_batch_room(&queue->batch);
        /* A small write is not cut in two for the sake of the end of a block. */
        if (room == 0 || (room < length && length <= queue->block_bytes / 8)) {
            err = make_way(queue, target);
            if (err == 0)
                err = next_block(queue);
            continue;
        }
        size_t part = MIN(length, room);
        wake = wake || queue->batch.count == 0;
        if (queue->batch.count == 0)
            queue->oldest_pending_ns = monotonic_ns();
        if (!upload_batch_add(&queue->batch, target, place.extent_id, place.address, from, part)) {
            err = make_way(queue, target);
            continue;
        }
        target_list(queue, target, place.offset, part);
        target->pending_bytes += part;
        from += part;
        place.address += part;
        place.offset += part;
        length -= part;
    }
    if (err == 0 && queue->batch.count > 0 &&
        (queue->device->options.flush_interval_ms == 0 ||
         queue->batch.base + queue->batch.used - queue->batch.intervals[0].bytes >=
             (ptrdiff_t)SUBMIT_BYTES))
        submit_pending(queue); /* the bytes were accepted: a failure is a deferred one */
    telemetry_add(&queue->device->telemetry, TELEMETRY_UPLOAD_REQUESTS, 1);
    pthread_mutex_unlock(&queue->mutex);
    if (wake)
        device_wake_flusher(queue->device);
    return err;
}

/* Counts an operation that was just submitted to the stream. */
static void operation_submitted(struct upload_queue *queue, struct upload_target *target)
{
    queue->submitted.sequence++;
    target->submitted = queue->submitted.sequence;
}

errint_t upload_queue_direct(struct upload_queue *queue, struct upload_target *target,
                             struct upload_place place, const void *bytes, size_t length,
                             struct upload_fence *fence)
{
    const struct driver *driver = queue->device->driver;
    const char *call = "cuMemcpyHtoDAsync";
    CUresult result;
    bool unproven = false;

    pthread_mutex_lock(&queue->mutex);
    errint_t err = queue_ready(queue);
    if (err == 0 && target->pending_bytes > 0)
        err = make_way(queue, target);
    if (err < 0)
        goto unlock;
    struct upload_mark before = queue->submitted;
    uint64_t sequence = before.sequence;
    result = driver->cuMemcpyHtoDAsync(place.address, bytes, length, queue->stream);
    if (result == CUDA_SUCCESS) {
        target_list(queue, target, place.offset, length);
        operation_submitted(queue, target);
        queue->submitted.bytes += length;
        queue->submitted.operations++;
        call = "cuEventRecord";
        result = driver->cuEventRecord(fence->event, queue->stream);
        before = queue->submitted;
    }
    if (result != CUDA_SUCCESS)
        err = queue_failed(queue, result, call, false, &unproven);
    if (before.sequence > sequence && !unproven)
        err = 0; /* without a fence, but the copy is made and proven */
    if (result == CUDA_SUCCESS || unproven) {
        fence->queue = queue;
        fence->mark = before;
        fence->pending = true;
    }
    telemetry_add(&queue->device->telemetry, TELEMETRY_UPLOAD_REQUESTS, 1);
unlock:
    pthread_mutex_unlock(&queue->mutex);
    if (err == 0)
        device_wake_flusher(queue->device);
    return err;
}

errint_t upload_queue_zero(struct upload_queue *queue, struct upload_target *target,
                           CUdeviceptr address, uint64_t length)
{
    bool unproven;

    if (length == 0)
        return 0;
    pthread_mutex_lock(&queue->mutex);
    errint_t err = queue_ready(queue);
    if (err == 0 && target->pending_bytes > 0)
        err = make_way(queue, target);
    if (err == 0) {
        CUresult result = queue->device->driver->cuMemsetD8Async(address, 0, length, queue->stream);
        target_list(queue, target, 0, 0);
        operation_submitted(queue, target);
        if (result != CUDA_SUCCESS)
            err = queue_failed(queue, result, "cuMemsetD8Async", false, &unproven);
        else
            target_zeroing(queue, target, address, length);
    }
    pthread_mutex_unlock(&queue->mutex);
    if (err == 0)
        device_wake_flusher(queue->device);
    return err;
}

errint_t upload_queue_copy(struct upload_queue *queue, struct upload_target *target,
                           CUdeviceptr destination, CUdeviceptr source, uint64_t length)
{
    bool unproven;

    if (length == 0)
        return 0;
    pthread_mutex_lock(&queue->mutex);
    errint_t err = queue_ready(queue);
    if (err == 0 && target->pending_bytes > 0)
        err = make_way(queue, target);
    if (err == 0) {
        CUresult result =
            queue->device->driver->cuMemcpyDtoDAsync(destination, source, length, queue->stream);
        target_list(queue, target, 0, 0);
        operation_submitted(queue, target);
        if (result != CUDA_SUCCESS)
            err = queue_failed(queue, result, "cuMemcpyDtoDAsync", false, &unproven);
        else
            telemetry_add(&queue->device->telemetry, TELEMETRY_D2D_BYTES, length);
    }
    pthread_mutex_unlock(&queue->mutex);
    if (err == 0)
        device_wake_flusher(queue->device);
    return err;
}

/*
 * Records an event now, waits for it without the mutex, and takes the mutex again. The mark is that
 * of the record.
 */
static errint_t record_and_wait(struct upload_queue *queue, bool *unproven)
{
    const struct driver *driver = queue->device->driver;
    struct upload_mark mark = queue->submitted;
    CUevent event;

    *unproven = false;
    errint_t err = event_take(queue, &event);
    if (err < 0) {
        /* Without an event the stream itself can still be waited for. */
        CUresult result = driver->cuStreamSynchronize(queue->stream);
        return event_waited(queue, &mark, result, unproven);
    }
    CUresult result = driver->cuEventRecord(event, queue->stream);
    if (result != CUDA_SUCCESS) {
        event_give(queue, event);
        err = queue_failed(queue, result, "cuEventRecord", false, unproven);
        /* A failed record loses no copy: if completion was proven, this is a fence. */
        return *unproven ? err : 0;
    }
    pthread_mutex_unlock(&queue->mutex);
    result = driver->cuEventSynchronize(event);
    pthread_mutex_lock(&queue->mutex);
    err = event_waited(queue, &mark, result, unproven);
    if (!*unproven)
        event_give(queue, event);
    return err;
}

errint_t upload_queue_fence(struct upload_queue *queue, struct upload_target *target)
{
    errint_t err = 0;
    bool unproven;

    if (target && !atomic_load(&target->dirty))
        return 0;
    pthread_mutex_lock(&queue->mutex);
    if (device_is_lost(queue->device)) {
        /* Nothing will complete any more: what is listed is lost, and its memory with it. */
        if (queue->dirty_targets)
            queue_quarantine(queue, "the device is lost");
        err = -EIO;
    } else {
        if (target ? target->pending_bytes > 0 : queue->batch.count > 0)
            err = submit_pending(queue);
        uint64_t wanted = target ? target->submitted : queue->submitted.sequence;
        if (queue->stream && wanted > queue->proven.sequence) {
            errint_t waited = record_and_wait(queue, &unproven);
            err = err < 0 ? err : waited;
        }
    }
    pthread_mutex_unlock(&queue->mutex);
    return err;
}

errint_t upload_queue_read_behind(struct upload_queue *queue, struct upload_target *target,
                                  CUresult (*submit)(CUstream stream, void *data), void *data)
{
    bool unproven = false;

    pthread_mutex_lock(&queue->mutex);
    uint64_t errors = atomic_load(&target->error_count);
    errint_t err = queue_ready(queue);
    if (err == 0 && target->pending_bytes > 0)
        err = make_way(queue, target);
    /* A read shows every write that returned before it, or is an error. */
    if (atomic_load(&target->error_count) != errors)
        err = -EIO;
    if (err == 0) {
        uint64_t failures = queue->fence_failures;
        CUresult result = submit(queue->stream, data);
        operation_submitted(queue, target);
        if (result != CUDA_SUCCESS)
            err = queue_failed(queue, result, "cuMemcpyDtoHAsync", false, &unproven);
        else
            err = record_and_wait(queue, &unproven);
        /* A failure is told once: another thread may have met that of these copies. */
        if (queue->fence_failures != failures && err == 0)
            err = -EIO;
    }
    pthread_mutex_unlock(&queue->mutex);
    return unproven ? -ENOTRECOVERABLE : err;
}

void upload_queue_drop_pending(struct upload_queue *queue, struct upload_target *target)
{
    pthread_mutex_lock(&queue->mutex);
    if (target->pending_bytes > 0) {
        upload_batch_drop(&queue->batch, target);
        target->pending_bytes = 0;
        if (target->submitted <= queue->proven.sequence)
            target_unlist(target);
    }
    pthread_mutex_unlock(&queue->mutex);
}

bool upload_queue_tick(struct upload_queue *queue, uint64_t max_wait_ns)
{
    bool unproven;

    pthread_mutex_lock(&queue->mutex);
    if (!device_is_lost(queue->device) && queue->stream) {
        if (queue->batch.count > 0 && monotonic_ns() - queue->oldest_pending_ns >= max_wait_ns)
            submit_pending(queue);
        if (queue->stream && queue->submitted.sequence > queue->proven.sequence) {
            CUresult result = queue->device->driver->cuStreamQuery(queue->stream);
            if (result == CUDA_SUCCESS)
                advance_proven(queue, &queue->submitted);
            else if (result != CUDA_ERROR_NOT_READY)
                queue_failed(queue, result, "cuStreamQuery", true, &unproven);
        }
    }
    bool more = !device_is_lost(queue->device) &&
                (queue->batch.count > 0 || queue->submitted.sequence > queue->proven.sequence);
    pthread_mutex_unlock(&queue->mutex);
    return more;
}

uint64_t upload_queue_dirty_bytes(struct upload_queue *queue)
{
    uint64_t bytes = 0;

    pthread_mutex_lock(&queue->mutex);
    for (const struct upload_target *t = queue->dirty_targets; t; t = t->next)
        bytes += t->dirty_bytes;
    pthread_mutex_unlock(&queue->mutex);
    return bytes;
}

uint64_t upload_target_dirty_bytes(struct upload_target *target)
{
    pthread_mutex_lock(&target->queue->mutex);
    uint64_t bytes = target->dirty_bytes;
    pthread_mutex_unlock(&target->queue->mutex);
    return bytes;
}

/* -- fences of page-locked memory -------------------------------------------------------------- */

errint_t upload_fence_init(struct device *device, struct upload_fence *fence)
{
    CUevent event;
    CUresult result = device->driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);

    *fence = (struct upload_fence){.device = device};
    if (result != CUDA_SUCCESS)
        return device_failure(device, result, "cuEventCreate", "a fence");
    fence->event = event;
    return 0;
}

void upload_fence_finish(struct upload_fence *fence)
{
    if (fence->event && !fence->pending)
        fence->device->driver->cuEventDestroy(fence->event);
    *fence = (struct upload_fence){0};
}

bool upload_fence_is_done(struct upload_fence *fence)
{
    return !fence->pending ||
           fence->device->driver->cuEventQuery(fence->event) != CUDA_ERROR_NOT_READY;
}

errint_t upload_fence_wait(struct upload_fence *fence)
{
    struct upload_queue *queue = fence->queue;
    bool unproven;

    if (!fence->pending)
        return 0;
    CUresult result = fence->device->driver->cuEventSynchronize(fence->event);
    pthread_mutex_lock(&queue->mutex);
    event_waited(queue, &fence->mark, result, &unproven);
    pthread_mutex_unlock(&queue->mutex);
    if (unproven)
        return -EIO;
    fence->pending = false;
    return 0;
}
