#include "core/upload_internal.h"

#include <errno.h>
#include <string.h>

#define STAGING_BLOCK_MAX_BYTES (1 * MIB)
#define STAGING_BLOCK_MIN_BYTES (64 * KIB)
#define STAGING_BLOCKS_MIN      2
#define SUBMIT_BYTES            (512 * KIB) /* gathered bytes that are submitted without waiting */
#define COPY_ASIDE_BYTES        (16 * KIB)  /* so long a part is copied without the mutex */

void upload_target_init(struct upload_target *target, struct upload_queue *queue, uint64_t id)
{
    *target = (struct upload_target){.queue = queue, .id = id};
}

/* In all that follows, but for the public functions, the queue's mutex is held. */

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
    queue->batch = &queue->batches[0];
    if (!queue->blocks || upload_batch_init(&queue->batches[0]) < 0 ||
        upload_batch_init(&queue->batches[1]) < 0) {
        upload_batch_finish(&queue->batches[0]);
        free(queue->blocks);
        free(queue);
        return -ENOMEM;
    }
    /* It is held for so short a time that spinning is cheaper than sleeping. */
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(&queue->mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    pthread_cond_init(&queue->idle, NULL);
    pthread_cond_init(&queue->proof, NULL);
    upload_open_stream(queue);
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
    upload_batch_finish(&queue->batches[0]);
    upload_batch_finish(&queue->batches[1]);
    pthread_cond_destroy(&queue->idle);
    pthread_cond_destroy(&queue->proof);
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
        upload_open_stream(queue);
    return queue->stream ? 0 : -EIO;
}

static errint_t target_ready(struct upload_queue *queue, const struct upload_target *target)
{
    return atomic_load(&target->failed) ? -EIO : queue_ready(queue);
}

/* Submits what was gathered. Nothing is in flight when it returns, as after upload_wait_idle. */
static errint_t submit_pending(struct upload_queue *queue)
{
    upload_wait_turn(queue);
    errint_t err = upload_submit(queue, NULL);
    upload_wait_idle(queue);
    return err;
}

/*
 * Submits what was gathered, so that something of TARGET can come after it. Failures of uploads are
 * told to those who wrote them and keep nobody else from going on.
 */
static errint_t make_way(struct upload_queue *queue, struct upload_target *target)
{
    submit_pending(queue);
    return target_ready(queue, target);
}

/* The staging is used up: gets other. Others may have done so, and taken it: look again. */
static errint_t make_room(struct upload_queue *queue, struct upload_target *target)
{
    struct staging_block *block;

    if (upload_wait_turn(queue))
        return target_ready(queue, target);
    bool empty = queue->batch->count == 0;
    if (empty && !upload_retire_block(queue))
        return target_ready(queue, target);
    errint_t err = upload_find_block(queue, empty, &block);
    if (err < 0)
        return err;
    /* The device gets what there is before anybody waits for it. */
    if (queue->batch->count > 0)
        upload_submit(queue, block);
    else if (block)
        upload_use_block(queue, block);
    return target_ready(queue, target);
}

/* Without waiting for more. */
static bool is_due(const struct upload_queue *queue)
{
    const struct upload_batch *batch = queue->batch;

    return batch->count > 0 &&
           (queue->device->options.flush_interval_ms == 0 ||
            batch->base + batch->used - batch->intervals[0].bytes >= (ptrdiff_t)SUBMIT_BYTES);
}

/* A submission that is due is left to who comes next while it would have to wait. */
static void submit_if_due(struct upload_queue *queue)
{
    struct staging_block *next = NULL;

    if (queue->device->options.flush_interval_ms == 0)
        upload_wait_turn(queue);
    if (!is_due(queue) || !upload_is_turn(queue))
        return;
    /* Without other staging, there would soon be none left to gather into meanwhile. */
    if (upload_batch_room(queue->batch) < queue->block_bytes / 4)
        upload_find_block(queue, false, &next);
    upload_submit(queue, next); /* the bytes were accepted: a failure is a deferred one */
}

/*
 * Copies to what was reserved in the batch, without the mutex: who closes the batch waits for that.
 * The target's buffer is locked, so it is still there. RELOCK: the mutex is taken again.
 */
static void copy_aside(struct upload_queue *queue, unsigned char *to, const void *from,
                       size_t length, bool relock)
{
    struct upload_batch *batch = queue->batch;

    pthread_mutex_unlock(&queue->mutex);
    memcpy(to, from, length);
    upload_batch_copied(batch);
    if (relock)
        pthread_mutex_lock(&queue->mutex);
}

errint_t upload_queue_gather(struct upload_queue *queue, struct upload_target *target,
                             struct upload_place place, const void *bytes, size_t length)
{
    const unsigned char *from = bytes;
    bool wake = false, locked = true;

    pthread_mutex_lock(&queue->mutex);
    errint_t err = queue_ready(queue);
    while (length > 0 && err == 0) {
        struct upload_batch *batch = queue->batch;
        size_t room = upload_batch_room(batch), part = MIN(length, room);
        unsigned char *aside = NULL;
        /* A small write is not cut in two for the sake of the end of a block. */
        if (room == 0 || (room < length && length <= queue->block_bytes / 8)) {
            err = make_room(queue, target);
            continue;
        }
        bool first = batch->count == 0;
        if (part >= COPY_ASIDE_BYTES)
            aside = upload_batch_reserve(batch, target, place.extent_id, place.address, part);
        if (!aside &&
            !upload_batch_add(batch, target, place.extent_id, place.address, from, part)) {
            err = make_way(queue, target);
            continue;
        }
        if (first)
            queue->oldest_pending_ns = monotonic_ns();
        wake = wake || first;
        upload_target_list(queue, target, place.offset, part);
        target->pending_bytes += part;
        if (aside) {
            locked = length > part || is_due(queue);
            copy_aside(queue, aside, from, part, locked);
            if (length > part)
                err = target_ready(queue, target);
        }
        from += part;
        place.address += part;
        place.offset += part;
        length -= part;
    }
    if (locked) {
        if (err == 0)
            submit_if_due(queue);
        pthread_mutex_unlock(&queue->mutex);
    }
    telemetry_add(&queue->device->telemetry, TELEMETRY_UPLOAD_REQUESTS, 1);
    if (wake)
        device_wake_flusher(queue->device);
    return err;
}

/* For all that uses or judges the stream. */
static void lock_idle(struct upload_queue *queue)
{
    pthread_mutex_lock(&queue->mutex);
    upload_wait_idle(queue);
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

    lock_idle(queue);
    errint_t err = queue_ready(queue);
    if (err == 0 && target->pending_bytes > 0)
        err = make_way(queue, target);
    if (err < 0)
        goto unlock;
    struct upload_mark before = queue->submitted;
    uint64_t sequence = before.sequence;
    result = driver->cuMemcpyHtoDAsync(place.address, bytes, length, queue->stream);
    if (result == CUDA_SUCCESS) {
        upload_target_list(queue, target, place.offset, length);
        operation_submitted(queue, target);
        queue->submitted.bytes += length;
        queue->submitted.operations++;
        call = "cuEventRecord";
        result = driver->cuEventRecord(fence->event, queue->stream);
        before = queue->submitted;
    }
    if (result != CUDA_SUCCESS)
        err = upload_queue_failed(queue, result, call, false, &unproven);
    if (before.sequence > sequence && !unproven)
        err = 0; /* without a fence, but the copy has ended */
    if (result == CUDA_SUCCESS || unproven) {
        fence->queue = queue;
        fence->mark = before;
        fence->pending = true;
        fence->done = false;
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
    lock_idle(queue);
    errint_t err = queue_ready(queue);
    if (err == 0 && target->pending_bytes > 0)
        err = make_way(queue, target);
    if (err == 0) {
        CUresult result = queue->device->driver->cuMemsetD8Async(address, 0, length, queue->stream);
        upload_target_list(queue, target, 0, 0);
        operation_submitted(queue, target);
        if (result != CUDA_SUCCESS)
            err = upload_queue_failed(queue, result, "cuMemsetD8Async", false, &unproven);
        else
            upload_target_zeroing(queue, target, address, length);
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
    lock_idle(queue);
    errint_t err = queue_ready(queue);
    if (err == 0 && target->pending_bytes > 0)
        err = make_way(queue, target);
    if (err == 0) {
        CUresult result =
            queue->device->driver->cuMemcpyDtoDAsync(destination, source, length, queue->stream);
        upload_target_list(queue, target, 0, 0);
        operation_submitted(queue, target);
        if (result != CUDA_SUCCESS)
            err = upload_queue_failed(queue, result, "cuMemcpyDtoDAsync", false, &unproven);
        else
            telemetry_add(&queue->device->telemetry, TELEMETRY_D2D_BYTES, length);
    }
    pthread_mutex_unlock(&queue->mutex);
    if (err == 0)
        device_wake_flusher(queue->device);
    return err;
}

/* Waits, without the mutex, until all that is in the stream has ended. Nothing is in flight. */
static errint_t wait_for_stream(struct upload_queue *queue, bool *unproven)
{
    const struct driver *driver = queue->device->driver;
    struct upload_mark mark = queue->submitted;
    CUresult result;
    CUevent event;

    errint_t err = event_take(queue, &event);
    if (err < 0) {
        /* Without an event the stream itself can still be waited for. */
        result = driver->cuStreamSynchronize(queue->stream);
        return upload_event_waited(queue, &mark, result, unproven);
    }
    result = driver->cuEventRecord(event, queue->stream);
    if (result != CUDA_SUCCESS) {
        event_give(queue, event);
        err = upload_queue_failed(queue, result, "cuEventRecord", false, unproven);
        /* A failed record loses no copy: if completion was proven, this is a fence. */
        return *unproven ? err : 0;
    }
    result = upload_event_synchronize(queue, event);
    err = upload_event_waited(queue, &mark, result, unproven);
    if (!*unproven)
        event_give(queue, event);
    return err;
}

/*
 * Waits until all that was submitted by now is proven. SHARED: one thread at a time asks the
 * driver, for all who came meanwhile, which may mean to wait for what was submitted later. Nothing
 * is in flight at the beginning.
 */
static errint_t wait_until_proven(struct upload_queue *queue, bool shared, bool *unproven)
{
    struct upload_mark mark = queue->submitted;
    bool asked = false;
    errint_t err = 0;

    *unproven = false;
    while (mark.epoch == queue->submitted.epoch && !upload_is_proven(queue, &mark)) {
        if (asked) {
            upload_wait_proven(queue, &mark);
        } else if (shared && queue->fencing) {
            pthread_cond_wait(&queue->proof, &queue->mutex);
        } else if (!upload_is_idle(queue)) {
            upload_wait_idle(queue);
        } else {
            asked = true;
            queue->fencing = queue->fencing || shared;
            err = wait_for_stream(queue, unproven);
            if (shared && mark.epoch == queue->submitted.epoch) {
                queue->fencing = false;
                pthread_cond_broadcast(&queue->proof);
            }
        }
    }
    *unproven = !upload_is_proven(queue, &mark);
    return *unproven ? -EIO : err;
}

errint_t upload_queue_fence(struct upload_queue *queue, struct upload_target *target)
{
    errint_t err = 0;
    bool unproven;

    if (target && !atomic_load(&target->dirty))
        return 0;
    lock_idle(queue);
    uint64_t failures = queue->fence_failures;
    if (device_is_lost(queue->device)) {
        /* Nothing will complete any more: what is listed is lost, and its memory with it. */
        if (queue->dirty_targets)
            upload_queue_quarantine(queue, "the device is lost");
        err = -EIO;
    } else {
        if (target ? target->pending_bytes > 0 : queue->batch->count > 0)
            err = submit_pending(queue);
        uint64_t wanted = target ? target->submitted : queue->submitted.sequence;
        if (queue->stream && wanted > queue->proven.sequence) {
            errint_t waited = wait_until_proven(queue, true, &unproven);
            err = err < 0 ? err : waited;
        }
        /* Another thread may have met a failure on behalf of all. */
        if (queue->fence_failures != failures && err == 0)
            err = -EIO;
    }
    pthread_mutex_unlock(&queue->mutex);
    return err;
}

errint_t upload_queue_read_behind(struct upload_queue *queue, struct upload_target *target,
                                  CUresult (*submit)(CUstream stream, void *data), void *data)
{
    bool unproven = false;

    uint64_t errors = atomic_load(&target->error_count); /* before anything is waited for */
    lock_idle(queue);
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
            err = upload_queue_failed(queue, result, "cuMemcpyDtoHAsync", false, &unproven);
        else
            err = wait_until_proven(queue, false, &unproven);
        /* A failure is told once: another thread may have met that of these copies. */
        if (queue->fence_failures != failures && err == 0)
            err = -EIO;
    }
    pthread_mutex_unlock(&queue->mutex);
    return unproven ? -ENOTRECOVERABLE : err;
}

void upload_queue_drop_pending(struct upload_queue *queue, struct upload_target *target)
{
    /*
     * Right while a batch is in flight, too: it is not this one, and the target stays listed until
     * its copies are proven. Nobody copies to what is dropped: the buffer is locked by its owner.
     */
    pthread_mutex_lock(&queue->mutex);
    if (target->pending_bytes > 0) {
        upload_batch_drop(queue->batch, target);
        target->pending_bytes = 0;
        if (target->submitted <= queue->proven.sequence)
            upload_target_unlist(target);
    }
    pthread_mutex_unlock(&queue->mutex);
}

bool upload_queue_tick(struct upload_queue *queue, uint64_t max_wait_ns)
{
    bool unproven;

    lock_idle(queue);
    if (!device_is_lost(queue->device) && queue->stream) {
        if (queue->batch->count > 0 && monotonic_ns() - queue->oldest_pending_ns >= max_wait_ns)
            submit_pending(queue);
        if (queue->stream && queue->submitted.sequence > queue->proven.sequence) {
            CUresult result = queue->device->driver->cuStreamQuery(queue->stream);
            if (result == CUDA_SUCCESS)
                upload_ended(queue, &queue->submitted);
            else if (result != CUDA_ERROR_NOT_READY)
                upload_queue_failed(queue, result, "cuStreamQuery", true, &unproven);
        }
    }
    bool more = !device_is_lost(queue->device) &&
                (queue->batch->count > 0 || queue->submitted.sequence > queue->proven.sequence);
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
