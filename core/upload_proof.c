/* What of a queue is proven complete, and what happens when something failed. */
#include "core/upload_internal.h"

#include <errno.h>
#include <sched.h>

#include "core/log.h"

/* -- dirty targets ----------------------------------------------------------------------------- */

void upload_target_unlist(struct upload_target *target)
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

void upload_target_list(struct upload_queue *queue, struct upload_target *target, uint64_t offset,
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
void upload_target_failed(struct upload_queue *queue, struct upload_target *target, const char *why)
{
    atomic_fetch_add(&target->error_count, 1);
    telemetry_add(&queue->device->telemetry, TELEMETRY_ERRORS_UPLOAD, 1);
    if (target->dirty_end > target->dirty_start)
        log_error("buffer %llu: an upload in [%llu, %llu) is lost (%s); write it again",
                  (unsigned long long)target->id, (unsigned long long)target->dirty_start,
                  (unsigned long long)target->dirty_end, why);
}

/* Keeps in mind what has to be zeroed again should a copy before its proof fail. */
void upload_target_zeroing(struct upload_queue *queue, struct upload_target *target,
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

/* Everything up to the mark is complete. */
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
            upload_target_unlist(t);
    }
    pthread_cond_broadcast(&queue->proof);
}

/* Whether all have come back who were waiting for an event when the first mark ended. */
static bool waiters_are_back(const struct upload_queue *queue)
{
    return queue->failing == 0 &&
           (!queue->waiters || queue->waiters->number > queue->ended[0].waiters_begun);
}

/* Looks again at what has ended. */
static void prove_ended(struct upload_queue *queue)
{
    while (queue->ended_count > 0 && waiters_are_back(queue)) {
        if (atomic_load(&queue->querying) > 0) {
            /* They come back without the mutex: see upload_wait_proven. */
            pthread_cond_broadcast(&queue->proof);
            return;
        }
        advance_proven(queue, &queue->ended[0].mark);
        queue->ended[0] = queue->ended[1];
        queue->ended_count--;
    }
}

void upload_ended(struct upload_queue *queue, const struct upload_mark *mark)
{
    struct upload_ended *last = &queue->ended[queue->ended_count > 0 ? queue->ended_count - 1 : 0];

    if (mark->epoch == queue->submitted.epoch && mark->sequence > queue->proven.sequence &&
        (queue->ended_count == 0 || mark->sequence > last->mark.sequence)) {
        /* The first is never put off; all that end after it are proven together. */
        if (queue->ended_count < ARRAY_SIZE(queue->ended))
            last = &queue->ended[queue->ended_count++];
        *last = (struct upload_ended){*mark, queue->waiters_begun};
    }
    prove_ended(queue);
}

bool upload_is_proven(const struct upload_queue *queue, const struct upload_mark *mark)
{
    const struct upload_mark *proven =
        mark->epoch == queue->submitted.epoch ? &queue->proven : &queue->proven_before;

    return mark->epoch == proven->epoch && mark->sequence <= proven->sequence;
}

bool upload_wait_proven(struct upload_queue *queue, const struct upload_mark *mark)
{
    while (mark->epoch == queue->submitted.epoch && !upload_is_proven(queue, mark)) {
        if (!waiters_are_back(queue)) {
            pthread_cond_wait(&queue->proof, &queue->mutex);
            continue;
        }
        /* For queries, which wait for nothing but the mutex. */
        pthread_mutex_unlock(&queue->mutex);
        sched_yield();
        pthread_mutex_lock(&queue->mutex);
        prove_ended(queue);
    }
    return upload_is_proven(queue, mark);
}

CUresult upload_event_synchronize(struct upload_queue *queue, CUevent event)
{
    struct upload_waiter waiter = {.number = ++queue->waiters_begun};

    waiter.link = queue->waiters ? queue->last_waiter : &queue->waiters;
    *waiter.link = &waiter;
    queue->last_waiter = &waiter.next;
    pthread_mutex_unlock(&queue->mutex);
    CUresult result = queue->device->driver->cuEventSynchronize(event);
    pthread_mutex_lock(&queue->mutex);
    if (!waiter.link)
        return result;
    *waiter.link = waiter.next;
    if (waiter.next)
        waiter.next->link = waiter.link;
    else
        queue->last_waiter = waiter.link;
    return result;
}

/* -- failures ---------------------------------------------------------------------------------- */

void upload_open_stream(struct upload_queue *queue)
{
    CUresult result = queue->device->driver->cuStreamCreate(&queue->stream, CU_STREAM_NON_BLOCKING);

    if (result != CUDA_SUCCESS) {
        queue->stream = NULL;
        device_failure(queue->device, result, "cuStreamCreate", "an upload stream");
    }
}

/* Completion could not be proven: nothing that the stream may still touch is used again. */
void upload_queue_quarantine(struct upload_queue *queue, const char *why)
{
    struct device *device = queue->device;

    stream_quarantine(device, queue->stream);
    for (size_t i = 0; i < queue->block_count; i++)
        pinned_memory_quarantine(device, &queue->blocks[i].memory);
    queue->block_count = 0;
    queue->active = NULL;
    /* Somebody may still copy to a block: its memory stays, so that hurts nobody. */
    upload_batch_set_staging(queue->batch, NULL, 0, 0);
    while (queue->dirty_targets) {
        struct upload_target *target = queue->dirty_targets;
        if (target->submitted > queue->proven.sequence)
            atomic_store(&target->failed, true);
        upload_target_failed(queue, target, why);
        upload_target_unlist(target);
    }
    /* Nobody waits any more for those who still wait for the old stream. */
    for (struct upload_waiter *w = queue->waiters; w; w = w->next)
        w->link = NULL;
    queue->waiters = NULL;
    queue->ended_count = 0;
    queue->fencing = false;
    pthread_cond_broadcast(&queue->proof);
    queue->proven_before = queue->proven;
    queue->submitted.epoch++;
    queue->proven = queue->submitted;
    queue->stream = NULL;
    if (!device_is_lost(device))
        upload_open_stream(queue);
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
 * A driver call on the stream failed: all has ended, or is quarantined. FENCE_FAILED: which copy it
 * was is unknown, so that all unproven ones count as lost. Returns -EIO; *unproven says which of
 * the two it was.
 */
errint_t upload_queue_failed(struct upload_queue *queue, CUresult result, const char *call,
                             bool fence_failed, bool *unproven)
{
    struct device *device = queue->device;
    const char *why = driver_error_name(device->driver, result);
    CUresult proof = result;

    device_failure(device, result, call, "an upload stream");
    /* Of what somebody else was told and could not handle yet, the stream says nothing any more. */
    fence_failed = fence_failed || queue->failing > 0;
    if (fence_failed) {
        telemetry_add(&device->telemetry, TELEMETRY_ERRORS_FENCE, 1);
        queue->fence_failures++;
    }
    if (!device_is_lost(device) && queue->stream)
        proof = device->driver->cuStreamSynchronize(queue->stream);
    *unproven = proof != CUDA_SUCCESS;
    if (*unproven) {
        upload_queue_quarantine(queue, why);
        return -EIO;
    }
    telemetry_add(&device->telemetry, TELEMETRY_SYNC_POINTS, 1);
    if (fence_failed) {
        if (!zero_again(queue)) {
            *unproven = true;
            upload_queue_quarantine(queue, why);
            return -EIO;
        }
        for (struct upload_target *t = queue->dirty_targets; t; t = t->next)
            if (t->submitted > queue->proven.sequence)
                upload_target_failed(queue, t, why);
    }
    if (fence_failed)
        advance_proven(queue, &queue->submitted);
    else
        upload_ended(queue, &queue->submitted);
    return -EIO;
}

/* The result of waiting for an event that was recorded at MARK. */
errint_t upload_event_waited(struct upload_queue *queue, const struct upload_mark *mark,
                             CUresult result, bool *unproven)
{
    errint_t err = -EIO;

    /* A success needs no wait for what is in flight, which has a later sequence number. */
    if (result != CUDA_SUCCESS) {
        queue->failing++;
        while (queue->in_flight)
            pthread_cond_wait(&queue->idle, &queue->mutex);
    }
    *unproven = mark->epoch != queue->submitted.epoch; /* another thread met the failure first */
    if (result != CUDA_SUCCESS) {
        if (!*unproven)
            err = upload_queue_failed(queue, result, "cuEventSynchronize", true, unproven);
        queue->failing--;
        pthread_cond_broadcast(&queue->idle);
        prove_ended(queue);
        return err;
    }
    upload_ended(queue, mark);
    if (*unproven)
        return -EIO;
    telemetry_add(&queue->device->telemetry, TELEMETRY_SYNC_POINTS, 1);
    return 0;
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
    struct upload_queue *queue = fence->queue;
    bool unproven;

    if (!fence->pending || fence->done)
        return true;
    atomic_fetch_add(&queue->querying, 1);
    CUresult result = fence->device->driver->cuEventQuery(fence->event);
    fence->done = result == CUDA_SUCCESS;
    if (fence->done || result == CUDA_ERROR_NOT_READY) {
        atomic_fetch_sub(&queue->querying, 1);
        return fence->done;
    }
    pthread_mutex_lock(&queue->mutex);
    atomic_fetch_sub(&queue->querying, 1);
    upload_event_waited(queue, &fence->mark, result, &unproven);
    pthread_mutex_unlock(&queue->mutex);
    return true;
}

errint_t upload_fence_wait(struct upload_fence *fence)
{
    struct upload_queue *queue = fence->queue;
    CUresult result = CUDA_SUCCESS;
    bool unproven;

    if (!fence->pending)
        return 0;
    pthread_mutex_lock(&queue->mutex);
    if (!fence->done)
        result = upload_event_synchronize(queue, fence->event);
    upload_event_waited(queue, &fence->mark, result, &unproven);
    pthread_mutex_unlock(&queue->mutex);
    if (unproven)
        return -EIO;
    fence->pending = fence->done = false;
    return 0;
}
