#include "fs/worker.h"

#include <string.h>

#include "core/log.h"
#include "fs/ring.h"

static _Thread_local struct worker *current_worker;

struct worker *worker_current(void)
{
    return current_worker;
}

void worker_set_current(struct worker *worker)
{
    current_worker = worker;
}

struct upload_fence *worker_receive_fence(struct worker *worker, fuse_req_t req, const char **bytes,
                                          size_t length)
{
    if (worker && worker->ring) {
        struct ring_payload *payload;

        if (length < RING_DIRECT_MIN_BYTES)
            return NULL;
        payload = ring_payload_take(worker, req, length);
        if (!payload || !payload->memory.page_locked)
            return NULL;
        *bytes = payload->memory.bytes;
        return &payload->fence;
    }
    if (!worker || !worker->receive[worker->current].memory.page_locked ||
        !worker->receive[worker->current].fence.event)
        return NULL;
    return &worker->receive[worker->current].fence;
}

void worker_upload_submitted(struct worker *worker, fuse_req_t req, struct upload_fence *fence)
{
    if (fence && fence->pending && worker->ring)
        ring_payload_fence(worker, ring_payload_take(worker, req, 0));
}

void worker_reply_memory(struct worker *worker, fuse_req_t req, struct reply_memory *memory)
{
    *memory = (struct reply_memory){0};
    if (worker && worker->ring) {
        struct ring_payload *payload = ring_payload_take(worker, req, 0);

        if (payload)
            *memory = (struct reply_memory){.bytes = payload->memory.bytes,
                                            .answer = payload->address,
                                            .capacity = payload->length};
    } else if (worker) {
        *memory = (struct reply_memory){.bytes = worker->reply.bytes,
                                        .answer = worker->reply.bytes,
                                        .capacity = worker->reply.length};
    }
}

bool worker_answers_in_place(const struct worker *worker, size_t size)
{
    return worker && worker->ring && size >= RING_DIRECT_MIN_BYTES;
}

void worker_quarantine_reply(struct worker *worker, fuse_req_t req)
{
    size_t length = worker->reply.length;

    if (worker->ring) {
        ring_payload_quarantine(worker, ring_payload_take(worker, req, 0));
        return;
    }
    pinned_memory_quarantine(worker->device, &worker->reply);
    if (pinned_memory_init(worker->device, &worker->reply, length) < 0) {
        log_warning("no memory for another reply buffer of %zu bytes: reads of this worker are "
                    "slower",
                    length);
        worker->reply = (struct pinned_memory){0};
    }
}

size_t worker_receive_length(uint64_t max_write_bytes)
{
    return WORKER_PAGE_BYTES + align_up(max_write_bytes, WORKER_PAGE_BYTES) + WORKER_PAGE_BYTES;
}

size_t worker_reply_length(uint64_t max_write_bytes)
{
    return align_up(MAX(max_write_bytes, MIB), WORKER_PAGE_BYTES) + WORKER_PAGE_BYTES;
}

static errint_t receive_buffer_init(struct device *device, struct receive_buffer *buffer,
                                    size_t length)
{
    errint_t error;

    memset(buffer, 0, sizeof(*buffer));
    error = pinned_memory_init(device, &buffer->memory, length);
    if (error < 0)
        return error;
    error = upload_fence_init(device, &buffer->fence);
    if (error < 0)
        pinned_memory_finish(device, &buffer->memory);
    return error;
}

static void receive_buffer_finish(struct device *device, struct receive_buffer *buffer)
{
    if (!buffer->memory.bytes)
        return;
    if (!buffer->fence.pending || upload_fence_wait(&buffer->fence) == 0)
        pinned_memory_finish(device, &buffer->memory);
    else
        pinned_memory_quarantine(device, &buffer->memory);
    upload_fence_finish(&buffer->fence);
}

errint_t worker_init(struct worker *worker, struct session *session, struct device *device,
                     uint64_t max_write_bytes)
{
    errint_t error;

    *worker = (struct worker){.session = session, .device = device, .channel = -1};
    sem_init(&worker->wake, 0, 0);
    error = pinned_memory_init(device, &worker->reply, worker_reply_length(max_write_bytes));
    if (error < 0)
        return error;
    while (worker->receive_count < WORKER_RECEIVE_BUFFERS) {
        error = receive_buffer_init(device, &worker->receive[worker->receive_count],
                                    worker_receive_length(max_write_bytes));
        if (error < 0)
            break;
        worker->receive_count++;
    }
    if (worker->receive_count == 0) {
        pinned_memory_finish(device, &worker->reply);
        return error;
    }
    return 0;
}

void worker_finish(struct worker *worker)
{
    for (unsigned int i = 0; i < worker->receive_count; i++)
        receive_buffer_finish(worker->device, &worker->receive[i]);
    worker->receive_count = 0;
    pinned_memory_finish(worker->device, &worker->reply);
    sem_destroy(&worker->wake);
}

/*
 * Waits for the fence of a buffer. When the end of the upload cannot be proven, DMA may read the
 * memory for ever: another one takes its place. That takes a fence only if there is one to be had:
 * of a lost device there is none, and requests must be received all the same. False: there is no
 * memory now, try again later.
 */
static bool receive_buffer_reclaim(struct device *device, struct receive_buffer *buffer)
{
    size_t length = buffer->memory.length;

    if (buffer->memory.bytes) {
        if (!buffer->fence.pending || upload_fence_wait(&buffer->fence) == 0)
            return true;
        log_error("receive buffer of %zu bytes put aside for good: the end of an upload out of it "
                  "could not be proven; see .resident/status",
                  length);
        pinned_memory_quarantine(device, &buffer->memory);
        upload_fence_finish(&buffer->fence);
    }
    memset(buffer, 0, sizeof(*buffer));
    if (pinned_memory_init(device, &buffer->memory, length) < 0) {
        buffer->memory.length = length; /* for the next attempt */
        return false;
    }
    upload_fence_init(device, &buffer->fence);
    return true;
}

struct receive_buffer *worker_next_receive_buffer(struct worker *worker)
{
    unsigned int count = worker->receive_count;

    for (unsigned int i = 0; i < count; i++) {
        unsigned int index = (worker->current + i) % count;
        struct receive_buffer *buffer = &worker->receive[index];

        if (!buffer->memory.bytes)
            continue;
        if (buffer->fence.pending && !upload_fence_is_done(&buffer->fence))
            continue;
        if (receive_buffer_reclaim(worker->device, buffer))
            return buffer;
    }
    /* All are taken: the one after the current one was taken first. */
    for (unsigned int i = 1; i <= count; i++) {
        unsigned int index = (worker->current + i) % count;

        if (receive_buffer_reclaim(worker->device, &worker->receive[index]))
            return &worker->receive[index];
    }
    return NULL;
}

void worker_received(struct worker *worker, const struct receive_buffer *buffer)
{
    worker->current = (unsigned int)(buffer - worker->receive);
}

void *receive_buffer_bytes(const struct receive_buffer *buffer, size_t *capacity)
{
    size_t skip = WORKER_PAGE_BYTES - WORKER_WRITE_HEADER_BYTES;

    *capacity = buffer->memory.length - skip;
    return (char *)buffer->memory.bytes + skip;
}
