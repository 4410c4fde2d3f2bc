#include "core/readahead.h"

#include <errno.h>

#include "core/buffer_internal.h"
#include "core/device_internal.h"

#define SLOTS_MAX 64
/* A reader that has not read for so long may lose its windows. */
#define IDLE_NS 100000000

struct window {
    CUstream stream; /* NULL: there was none to be had */
    unsigned char *bytes;
    uint64_t offset; /* in the buffer */
    size_t length;   /* 0: empty */
    bool at_end;     /* of the buffer */
    uint64_t version;
    unsigned int copies; /* under way; 0: none */
    uint64_t copied_bytes;
};

/* The windows of one reader. */
struct readahead_slot {
    struct readahead *owner;     /* NULL: nobody's; under the pool's mutex */
    _Atomic uint64_t used_ns;    /* when it was of use last */
    pthread_mutex_t mutex;       /* covers what follows, but for the bytes: those are the owner's */
    struct buffer *buffer;       /* whose memory copies under way read */
    struct pinned_memory memory; /* of both windows; bytes NULL: none */
    struct window windows[2];
};

void readahead_init(struct readahead *reader)
{
    *reader = (struct readahead){0};
    pthread_mutex_init(&reader->mutex, NULL);
}

/* -- windows: with the slot's mutex ------------------------------------------------------------ */

static void quarantine(struct readahead_slot *slot)
{
    struct device *device = slot->buffer->device;

    /* While an unproven copy may still read it, the memory must not be given to anyone else. */
    atomic_store(&slot->buffer->target.failed, true);
    for (size_t i = 0; i < ARRAY_SIZE(slot->windows); i++) {
        struct window *window = &slot->windows[i];
        if (window->copies > 0)
            atomic_fetch_sub(&slot->buffer->prefetches, 1);
        if (window->stream)
            stream_quarantine(device, window->stream);
        *window = (struct window){0};
    }
    pinned_memory_quarantine(device, &slot->memory);
}

/* Waits for the copies into the window; empty if they failed. */
static void window_wait(struct readahead_slot *slot, struct window *window)
{
    if (window->copies == 0)
        return;
    struct device *device = slot->buffer->device;
    CUresult result = device->driver->cuStreamSynchronize(window->stream);
    if (result == CUDA_SUCCESS) {
        telemetry_add(&device->telemetry, TELEMETRY_SYNC_POINTS, 1);
        telemetry_add(&device->telemetry, TELEMETRY_D2H_BYTES, window->copied_bytes);
        telemetry_add(&device->telemetry, TELEMETRY_D2H_OPERATIONS, window->copies);
    } else {
        telemetry_add(&device->telemetry, TELEMETRY_ERRORS_READBACK, 1);
        device_failure(device, result, "cuStreamSynchronize", "read-ahead");
        window->length = 0;
        if (device_is_lost(device) ||
            device->driver->cuStreamSynchronize(window->stream) != CUDA_SUCCESS) {
            quarantine(slot);
            return;
        }
    }
    window->copies = 0;
    atomic_fetch_sub(&slot->buffer->prefetches, 1);
}

static void slot_empty(struct readahead_slot *slot)
{
    for (size_t i = 0; i < ARRAY_SIZE(slot->windows); i++) {
        window_wait(slot, &slot->windows[i]);
        slot->windows[i].length = 0;
    }
    slot->buffer = NULL;
}

/* Takes memory and streams if the slot has none. */
static bool slot_ready(struct device *device, struct readahead_slot *slot)
{
    if (!slot->memory.bytes) {
        if (pinned_memory_init(device, &slot->memory, 2 * device->readahead.window_bytes) < 0)
            return false;
        if (!slot->memory.page_locked) { /* copies into it would not run meanwhile */
            pinned_memory_finish(device, &slot->memory);
            return false;
        }
        for (size_t i = 0; i < ARRAY_SIZE(slot->windows); i++)
            slot->windows[i].bytes =
                (unsigned char *)slot->memory.bytes + i * device->readahead.window_bytes;
    }
    for (size_t i = 0; i < ARRAY_SIZE(slot->windows); i++)
        if (!slot->windows[i].stream && stream_lease(device, &slot->windows[i].stream) < 0)
            return false;
    return true;
}

/* -- the pool ---------------------------------------------------------------------------------- */

errint_t readahead_pool_init(struct device *device)
{
    struct readahead_pool *pool = &device->readahead;
    uint64_t bytes = device->options.readahead_bytes;

    pthread_mutex_init(&pool->mutex, NULL);
    if (bytes == 0)
        return 0;
    uint64_t count = MIN(MAX(device->options.staging_bytes / 2 / (2 * bytes), 1u), SLOTS_MAX);
    pool->slots = calloc(count, sizeof(*pool->slots));
    if (!pool->slots)
        return -ENOMEM;
    for (; pool->count < count; pool->count++)
        pthread_mutex_init(&pool->slots[pool->count].mutex, NULL);
    pool->window_bytes = bytes;
    return 0;
}

void readahead_pool_finish(struct device *device)
{
    struct readahead_pool *pool = &device->readahead;

    for (unsigned int i = 0; i < pool->count; i++) {
        struct readahead_slot *slot = &pool->slots[i];
        for (size_t j = 0; j < ARRAY_SIZE(slot->windows); j++)
            if (slot->windows[j].stream)
                stream_return(device, slot->windows[j].stream);
        pinned_memory_finish(device, &slot->memory);
        pthread_mutex_destroy(&slot->mutex);
    }
    free(pool->slots);
    pthread_mutex_destroy(&pool->mutex);
}

/* With the pool's mutex. Takes the slot from an owner that is not reading. */
static bool slot_steal(struct readahead_slot *slot)
{
    if (pthread_mutex_trylock(&slot->owner->mutex) != 0)
        return false;
    pthread_mutex_lock(&slot->mutex);
    slot_empty(slot);
    pthread_mutex_unlock(&slot->mutex);
    slot->owner->slot = NULL;
    pthread_mutex_unlock(&slot->owner->mutex);
    slot->owner = NULL;
    return true;
}

static struct readahead_slot *slot_take(struct device *device, struct readahead *owner)
{
    struct readahead_pool *pool = &device->readahead;
    struct readahead_slot *found = NULL, *oldest = NULL;

    pthread_mutex_lock(&pool->mutex);
    for (unsigned int i = 0; i < pool->count && !found; i++) {
        struct readahead_slot *slot = &pool->slots[i];
        if (!slot->owner)
            found = slot;
        else if (!oldest || slot->used_ns < oldest->used_ns)
            oldest = slot;
    }
    if (!found && oldest && monotonic_ns() - oldest->used_ns > IDLE_NS && slot_steal(oldest))
        found = oldest;
    if (found && !slot_ready(device, found))
        found = NULL;
    if (found) {
        found->owner = owner;
        found->used_ns = monotonic_ns();
    }
    pthread_mutex_unlock(&pool->mutex);
    return found;
}

/* With the owner's mutex. */
static void slot_give_back(struct device *device, struct readahead *owner)
{
    struct readahead_slot *slot = owner->slot;

    pthread_mutex_lock(&slot->mutex);
    slot_empty(slot);
    pthread_mutex_unlock(&slot->mutex);
    pthread_mutex_lock(&device->readahead.mutex);
    slot->owner = NULL;
    pthread_mutex_unlock(&device->readahead.mutex);
    owner->slot = NULL;
}

void readahead_finish(struct readahead *reader, struct buffer *buffer)
{
    /* Not before whoever may be taking its slot away is done. */
    pthread_mutex_lock(&reader->mutex);
    if (reader->slot)
        slot_give_back(buffer->device, reader);
    pthread_mutex_unlock(&reader->mutex);
    pthread_mutex_destroy(&reader->mutex);
}

void readahead_wait_all(struct buffer *buffer)
{
    struct readahead_pool *pool = &buffer->device->readahead;

    if (atomic_load(&buffer->prefetches) == 0)
        return;
    for (unsigned int i = 0; i < pool->count; i++) {
        struct readahead_slot *slot = &pool->slots[i];
        pthread_mutex_lock(&slot->mutex);
        for (size_t j = 0; slot->buffer == buffer && j < ARRAY_SIZE(slot->windows); j++)
            window_wait(slot, &slot->windows[j]);
        pthread_mutex_unlock(&slot->mutex);
    }
}

/* -- reading ----------------------------------------------------------------------------------- */

static uint64_t window_end(const struct window *window)
{
    return window->offset + window->length;
}

static bool is_current(const struct window *window, const struct buffer *buffer)
{
    return window->length > 0 && window->version == atomic_load(&buffer->version);
}

/* The window with all bytes of the read that the buffer has; NULL: none. */
static struct window *search(struct readahead_slot *slot, struct readahead *reader,
                             const struct buffer *buffer, uint64_t offset, size_t length)
{
    for (size_t i = 0; i < ARRAY_SIZE(slot->windows); i++) {
        struct window *window = &slot->windows[i];
        if (window->length == 0 || offset < window->offset || offset >= window_end(window))
            continue;
        if (!is_current(window, buffer)) {
            /* Somebody writes what is read here: all of it was in vain, so begin small again. */
            reader->run = length;
            return NULL;
        }
        if (length > window_end(window) - offset && !window->at_end)
            return NULL;
        window_wait(slot, window);
        return window->length > 0 ? window : NULL;
    }
    return NULL;
}

/* Starts to copy what comes from OFFSET on, unless that is here or under way already. */
static void read_ahead(struct readahead_slot *slot, struct window *window, struct buffer *buffer,
                       uint64_t offset, size_t length)
{
    if (is_current(window, buffer) && window->offset == offset)
        return;
    window_wait(slot, window);
    window->length = 0;
    if (!slot->memory.bytes || !window->stream)
        return;
    slot->buffer = buffer;
    struct buffer_prefetch prefetch = {
        .offset = offset, .length = length, .bytes = window->bytes, .stream = window->stream};
    if (!buffer_prefetch(buffer, &prefetch))
        return;
    window->offset = offset;
    window->length = prefetch.length;
    window->at_end = prefetch.at_end;
    window->version = prefetch.version;
    window->copies = prefetch.copies;
    window->copied_bytes = prefetch.copied_bytes;
    if (prefetch.failed) {
        window_wait(slot, window);
        window->length = 0;
    }
}

/* With the reader's mutex. How much is to be read ahead of a reader of such blocks. */
static size_t ahead_of(const struct readahead *reader, size_t limit, size_t length)
{
    return MIN(reader->run, limit) / length * length;
}

bool readahead_begin(struct readahead *reader, struct buffer *buffer, uint64_t offset,
                     size_t length, const void **bytes, size_t *available)
{
    struct device *device = buffer->device;
    size_t limit = device->readahead.window_bytes;
    struct window *window = NULL;

    if (length == 0 || length > limit || pthread_mutex_trylock(&reader->mutex) != 0)
        return false;
    bool in_a_row = offset == reader->next;
    reader->run = MIN(in_a_row ? reader->run : 0, limit) + length;
    reader->next = offset + length;
    if (!reader->slot && in_a_row && reader->run >= 2 * length &&
        reader->next < buffer_length_bytes(buffer))
        reader->slot = slot_take(device, reader);
    struct readahead_slot *slot = reader->slot;
    if (slot) {
        pthread_mutex_lock(&slot->mutex);
        if (buffer_usable(buffer) == 0)
            window = search(slot, reader, buffer, offset, length);
        if (!window && in_a_row && reader->run >= 2 * length)
            read_ahead(slot, &slot->windows[0], buffer, reader->next,
                       ahead_of(reader, limit, length));
        bool usable = slot->memory.bytes;
        pthread_mutex_unlock(&slot->mutex);
        if (!usable) { /* quarantined */
            slot_give_back(device, reader);
            window = NULL;
        }
    }
    if (!window) {
        pthread_mutex_unlock(&reader->mutex);
        return false;
    }
    slot->used_ns = monotonic_ns();
    telemetry_add(&device->telemetry, TELEMETRY_READBACK_REQUESTS, 1);
    telemetry_add(&device->telemetry, TELEMETRY_READAHEAD_HITS, 1);
    *bytes = window->bytes + (offset - window->offset);
    *available = MIN(length, window_end(window) - offset);
    return true;
}

void readahead_end(struct readahead *reader, struct buffer *buffer, uint64_t offset, size_t length)
{
    struct readahead_slot *slot = reader->slot;

    pthread_mutex_lock(&slot->mutex);
    for (size_t i = 0; i < ARRAY_SIZE(slot->windows); i++) {
        struct window *window = &slot->windows[i], *other = &slot->windows[1 - i];
        uint64_t end = window_end(window);
        if (window->length == 0 || offset < window->offset || offset >= end)
            continue;
        /* One that has been used up is still in the caches: the next bytes go there. */
        bool used_up = offset + length >= end;
        if (!window->at_end && !(is_current(other, buffer) && other->offset == end))
            read_ahead(slot, used_up ? window : other, buffer, end,
                       ahead_of(reader, buffer->device->readahead.window_bytes, length));
        break;
    }
    pthread_mutex_unlock(&slot->mutex);
    pthread_mutex_unlock(&reader->mutex);
}
