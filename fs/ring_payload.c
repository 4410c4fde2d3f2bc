#include <string.h>
#include <sys/mman.h>

#include "core/log.h"
#include "fs/ring.h"

/* With libfuse that has no io_uring nobody asks. */
static bool get_payload(fuse_req_t req, char **address, size_t *length)
{
#ifdef HAVE_FUSE_IO_URING
    return fuse_req_get_payload(req, address, length, NULL) == 0;
#else
    (void)req, (void)address, (void)length;
    return false;
#endif
}

static struct ring_payload *find(struct worker *worker, fuse_req_t req)
{
    struct ring_payload *payload = worker->payloads;
    size_t length;
    char *address;

    if (!get_payload(req, &address, &length))
        return NULL;
    while (payload && payload->address != address)
        payload = payload->next;
    if (payload)
        return payload;
    if ((uintptr_t)address % WORKER_PAGE_BYTES != 0 || length % WORKER_PAGE_BYTES != 0)
        return NULL; /* something else may share its pages */
    payload = calloc(1, sizeof(*payload));
    if (!payload)
        return NULL;
    payload->address = address;
    payload->length = length;
    payload->next = worker->payloads;
    worker->payloads = payload;
    return payload;
}

static bool has_room(struct ring *ring, size_t length)
{
    uint64_t before = atomic_fetch_add(&ring->payload_bytes, length);

    if (before + length <= ring->fs->conf->staging_bytes)
        return true;
    atomic_fetch_sub(&ring->payload_bytes, length);
    return false;
}

static errint_t take_over(struct worker *worker, struct ring_payload *payload, size_t keep)
{
    struct pinned_memory memory;
    errint_t error = pinned_memory_init_shared(worker->device, &memory, payload->length);

    if (error < 0)
        return error;
    memcpy(memory.bytes, payload->address, MIN(keep, payload->length));
    error = upload_fence_init(worker->device, &payload->fence);
    if (error < 0) {
        pinned_memory_finish(worker->device, &memory);
        return error;
    }
    error = pinned_memory_show_at(&memory, payload->address);
    if (error < 0) {
        upload_fence_finish(&payload->fence);
        pinned_memory_finish(worker->device, &memory);
        return error;
    }
    payload->memory = memory;
    return 0;
}

struct ring_payload *ring_payload_take(struct worker *worker, fuse_req_t req, size_t keep)
{
    struct ring_payload *payload = find(worker, req);
    struct ring *ring = worker->ring;

    if (!payload || payload->memory.bytes)
        return payload;
    if (!has_room(ring, payload->length))
        return NULL;
    if (take_over(worker, payload, keep) < 0) {
        atomic_fetch_sub(&ring->payload_bytes, payload->length);
        return NULL;
    }
    atomic_fetch_add(&ring->payloads, 1);
    if (!payload->memory.page_locked)
        atomic_store(&ring->pageable, true);
    return payload;
}

static void forget(struct ring *ring, struct ring_payload *payload)
{
    upload_fence_finish(&payload->fence);
    payload->memory = (struct pinned_memory){0};
    atomic_fetch_sub(&ring->payloads, 1);
    atomic_fetch_sub(&ring->payload_bytes, payload->length);
}

void ring_payload_quarantine(struct worker *worker, struct ring_payload *payload)
{
    void *at = mmap(payload->address, payload->length, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

    pinned_memory_quarantine(worker->device, &payload->memory);
    forget(worker->ring, payload);
    if (at == MAP_FAILED) {
        /* Whatever is answered out of it next might not be what was meant. */
        log_error("no memory to go on with after an unproven copy: the file system ends");
        fuse_session_exit(worker->ring->fuse);
        fuse_session_unmount(worker->ring->fuse);
    }
}

void ring_payload_fence(struct worker *worker, struct ring_payload *payload)
{
    if (upload_fence_wait(&payload->fence) < 0)
        ring_payload_quarantine(worker, payload);
}

void ring_payloads_finish(struct worker *worker)
{
    struct ring_payload *payload;

    while ((payload = worker->payloads)) {
        worker->payloads = payload->next;
        if (payload->memory.bytes) {
            pinned_memory_finish(worker->device, &payload->memory);
            forget(worker->ring, payload);
        }
        free(payload);
    }
}
