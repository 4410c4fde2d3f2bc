#include "core/buffer.h"

#include <errno.h>
#include <string.h>

#include "core/buffer_internal.h"
#include "core/readback.h"

#define STACK_PIECES 16

struct buffer *buffer_create(struct device *device, uint64_t id)
{
    struct buffer *buffer = calloc(1, sizeof(*buffer));

    if (!buffer) {
        errno = ENOMEM;
        return NULL;
    }
    unsigned int queue = atomic_fetch_add(&device->next_queue, 1) % device->options.upload_streams;
    buffer->device = device;
    upload_target_init(&buffer->target, device->queues[queue], id);
    /* By default readers come first, and a buffer that is read all the time could never grow. */
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&buffer->lock, &attributes);
    pthread_rwlockattr_destroy(&attributes);
    return buffer;
}

void buffer_destroy(struct buffer *buffer)
{
    if (!buffer)
        return;
    upload_queue_drop_pending(buffer->target.queue, &buffer->target);
    upload_queue_fence(buffer->target.queue, &buffer->target);
    buffer_layout_clear(buffer);
    pthread_rwlock_destroy(&buffer->lock);
    free(buffer);
}

void buffer_lock_exclusive(struct buffer *buffer)
{
    pthread_rwlock_wrlock(&buffer->lock);
    readahead_wait_all(buffer);
    atomic_fetch_add(&buffer->version, 1);
    atomic_fetch_add(&buffer->settled_version, 1);
}

uint64_t buffer_length_bytes(const struct buffer *buffer)
{
    return atomic_load(&buffer->length_bytes);
}

struct device *buffer_device(const struct buffer *buffer)
{
    return buffer->device;
}

errint_t buffer_usable(const struct buffer *buffer)
{
    return device_is_lost(buffer->device) || buffer->target.failed || buffer->detached ? -EIO : 0;
}

/* Whether its length and its memory may be changed at all. */
static errint_t changeable(const struct buffer *buffer)
{
    errint_t err = buffer_usable(buffer);

    return err == 0 && buffer->attached ? -EPERM : err;
}

static errint_t check_range(uint64_t offset, uint64_t length)
{
    return offset > BUFFER_LENGTH_MAX || length > BUFFER_LENGTH_MAX - offset ? -EFBIG : 0;
}

/* -- write ------------------------------------------------------------------------------------- */

/* The range has memory. Returns how many bytes were taken over, or the error of the first piece. */
static ssize_t upload(struct buffer *buffer, uint64_t offset, const unsigned char *bytes,
                      size_t length, struct upload_fence *fence)
{
    const struct extent_map *map = &buffer->extents;
    struct upload_queue *queue = buffer->target.queue;
    uint64_t threshold = buffer->device->options.direct_threshold_bytes;
    size_t done = 0;

    for (size_t i = extent_map_search(map, offset); done < length; i++) {
        const struct extent *extent = &map->items[i];
        uint64_t at = offset + done, skip = at - extent->offset;
        size_t part = MIN(length - done, extent->length - skip);
        struct upload_place place = {extent->id, extent->address + skip, at};
        errint_t err;
        if (fence && part >= threshold)
            err = upload_queue_direct(queue, &buffer->target, place, bytes + done, part, fence);
        else
            err = upload_queue_gather(queue, &buffer->target, place, bytes + done, part);
        if (err < 0)
            return done > 0 ? (ssize_t)done : err;
        done += part;
    }
    return (ssize_t)done;
}

/* With the exclusive lock: takes memory, uploads, and lets the buffer grow over what was taken. */
static ssize_t write_growing(struct buffer *buffer, uint64_t offset, const void *bytes,
                             size_t length, struct upload_fence *fence)
{
    int64_t covered = buffer_layout_ensure(buffer, offset, length);

    if (covered < 0)
        return covered;
    ssize_t done = upload(buffer, offset, bytes, (size_t)covered, fence);
    if (done > 0 && offset + (uint64_t)done > atomic_load(&buffer->length_bytes))
        atomic_store(&buffer->length_bytes, offset + (uint64_t)done);
    if (done < covered) {
        /* What was uploaded beyond what is reported must not show when the buffer gets longer. */
        uint64_t end = atomic_load(&buffer->length_bytes);
        upload_queue_fence(buffer->target.queue, &buffer->target);
        if (end < offset + (uint64_t)covered && buffer_usable(buffer) == 0)
            buffer_layout_punch(buffer, MAX(end, offset), offset + (uint64_t)covered);
    }
    return done;
}

ssize_t buffer_write(struct buffer *buffer, uint64_t offset, const void *bytes, size_t length,
                     struct upload_fence *fence)
{
    errint_t err = check_range(offset, length);
    ssize_t done;

    if (err < 0 || length == 0)
        return err;
    pthread_rwlock_rdlock(&buffer->lock);
    err = buffer_usable(buffer);
    bool growing = offset + length > atomic_load(&buffer->length_bytes) ||
                   !extent_map_covers(&buffer->extents, offset, length);
    if (err < 0 || !growing) {
        atomic_fetch_add(&buffer->version, 1);
        done = err < 0 ? err : upload(buffer, offset, bytes, length, fence);
        atomic_fetch_add(&buffer->settled_version, 1);
        pthread_rwlock_unlock(&buffer->lock);
        return done;
    }
    pthread_rwlock_unlock(&buffer->lock);

    buffer_lock_exclusive(buffer);
    err = buffer_usable(buffer);
    done = err < 0 ? err : write_growing(buffer, offset, bytes, length, fence);
    pthread_rwlock_unlock(&buffer->lock);
    return done;
}

/* -- read -------------------------------------------------------------------------------------- */

/*
 * Calls for each part of the range that has memory; holes are filled with zeros right away. Returns
 * how many parts there are; the first LIMIT of them are stored.
 */
static size_t split_range(const struct extent_map *map, uint64_t offset, size_t length,
                          unsigned char *bytes, struct readback_piece *pieces, size_t limit)
{
    uint64_t at = offset, end = offset + length;
    size_t count = 0;

    for (size_t i = extent_map_search(map, offset); at < end; i++) {
        const struct extent *extent = i < map->count ? &map->items[i] : NULL;
        uint64_t hole_end = extent ? MIN(MAX(extent->offset, at), end) : end;
        memset(bytes + (at - offset), 0, (size_t)(hole_end - at));
        at = hole_end;
        if (!extent || at >= end)
            break;
        uint64_t part_end = MIN(extent_end(extent), end);
        if (count < limit)
            pieces[count] = (struct readback_piece){
                .range = {extent->id, extent->address + (at - extent->offset),
                          (size_t)(part_end - at)},
                .bytes = bytes + (at - offset)};
        count++;
        at = part_end;
    }
    return count;
}

static size_t clipped(uint64_t buffer_length, uint64_t offset, size_t length)
{
    return offset >= buffer_length ? 0 : (size_t)MIN(length, buffer_length - offset);
}

errint_t buffer_read_ranges(struct buffer *buffer, const struct buffer_range *ranges, size_t count,
                            size_t *done)
{
    struct readback_piece stack_pieces[STACK_PIECES], *pieces = stack_pieces;
    cleanup_free struct readback_piece *heap_pieces = NULL;
    size_t limit = STACK_PIECES, total = 0;

    pthread_rwlock_rdlock(&buffer->lock);
    errint_t err = buffer_usable(buffer);
    uint64_t length = atomic_load(&buffer->length_bytes);
    for (size_t pass = 0; err == 0 && pass < 2; pass++) {
        total = 0;
        for (size_t i = 0; i < count; i++) {
            done[i] = clipped(length, ranges[i].offset, ranges[i].length);
            total += split_range(&buffer->extents, ranges[i].offset, done[i], ranges[i].bytes,
                                 pieces + MIN(total, limit), limit - MIN(total, limit));
        }
        if (total <= limit)
            break;
        pieces = heap_pieces = calloc(total, sizeof(*pieces));
        limit = total;
        if (!pieces)
            err = -ENOMEM;
    }
    if (err == 0)
        err = readback_run(buffer->device, &buffer->target, pieces, total);
    pthread_rwlock_unlock(&buffer->lock);
    return err;
}

ssize_t buffer_read(struct buffer *buffer, uint64_t offset, void *bytes, size_t length)
{
    struct buffer_range range = {offset, length, bytes};
    size_t done;
    errint_t err = buffer_read_ranges(buffer, &range, 1, &done);

    return err < 0 ? err : (ssize_t)done;
}

bool buffer_prefetch(struct buffer *buffer, struct buffer_prefetch *prefetch)
{
    const struct driver *driver = buffer->device->driver;
    struct readback_piece pieces[STACK_PIECES];
    CUresult result = CUDA_SUCCESS;

    if (pthread_rwlock_tryrdlock(&buffer->lock) != 0)
        return false;
    uint64_t buffer_length = atomic_load(&buffer->length_bytes);
    size_t count = 0, length = clipped(buffer_length, prefetch->offset, prefetch->length);
    /*
     * Before it is asked whether something is on its way: what comes later is seen by this. When
     * both are the same, all changes that had begun have ended.
     */
    prefetch->version = atomic_load(&buffer->settled_version);
    bool possible = length > 0 && buffer_usable(buffer) == 0 &&
                    atomic_load(&buffer->version) == prefetch->version &&
                    !atomic_load(&buffer->target.dirty) && buffer->shares == 0 && !buffer->attached;
    if (possible)
        count = split_range(&buffer->extents, prefetch->offset, length, prefetch->bytes, pieces,
                            STACK_PIECES);
    if (!possible || count > STACK_PIECES) {
        pthread_rwlock_unlock(&buffer->lock);
        return false;
    }
    if (count > 0)
        atomic_fetch_add(&buffer->prefetches, 1);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = driver->cuMemcpyDtoHAsync(pieces[i].bytes, pieces[i].range.address,
                                           pieces[i].range.length, prefetch->stream);
        prefetch->copied_bytes += pieces[i].range.length;
    }
    pthread_rwlock_unlock(&buffer->lock);
    if (result != CUDA_SUCCESS)
        device_failure(buffer->device, result, "cuMemcpyDtoHAsync", "read-ahead");
    prefetch->length = length;
    prefetch->at_end = prefetch->offset + length == buffer_length;
    prefetch->copies = (unsigned int)count;
    prefetch->failed = result != CUDA_SUCCESS;
    return true;
}

/* -- length and memory ------------------------------------------------------------------------- */

/* With the exclusive lock. */
static errint_t shrink(struct buffer *buffer, uint64_t length)
{
    struct upload_queue *queue = buffer->target.queue;

    buffer->keep_end = 0;
    if (length == 0 && buffer->shares == 0) {
        upload_queue_drop_pending(queue, &buffer->target);
        upload_queue_fence(queue, &buffer->target);
        buffer_layout_clear(buffer);
        atomic_store(&buffer->target.failed, false);
        atomic_store(&buffer->length_bytes, 0);
        return 0;
    }
    errint_t err = buffer_usable(buffer);
    if (err < 0)
        return err;
    upload_queue_fence(queue, &buffer->target);
    err = buffer_usable(buffer);
    if (err == 0)
        err = buffer_layout_punch(buffer, length, UINT64_MAX);
    if (err < 0)
        return err;
    atomic_store(&buffer->length_bytes, length);
    buffer_layout_trim(buffer, length);
    return 0;
}

errint_t buffer_truncate(struct buffer *buffer, uint64_t length)
{
    errint_t err = check_range(length, 0);

    if (err < 0)
        return err;
    buffer_lock_exclusive(buffer);
    uint64_t old = atomic_load(&buffer->length_bytes);
    if (buffer->attached)
        err = length == old ? 0 : -EPERM;
    else if (length < old || length == 0)
        err = shrink(buffer, length);
    else
        atomic_store(&buffer->length_bytes, length);
    pthread_rwlock_unlock(&buffer->lock);
    return err;
}

errint_t buffer_allocate(struct buffer *buffer, uint64_t offset, uint64_t length, bool keep_length)
{
    errint_t err = check_range(offset, length);

    if (err < 0)
        return err;
    if (length == 0)
        return -EINVAL;
    buffer_lock_exclusive(buffer);
    err = changeable(buffer);
    if (err == 0)
        err = buffer_layout_ensure_all(buffer, offset, length);
    if (err == 0) {
        uint64_t end = offset + length;
        if (end > atomic_load(&buffer->length_bytes)) {
            if (keep_length)
                buffer->keep_end = MAX(buffer->keep_end, end);
            else
                atomic_store(&buffer->length_bytes, end);
        }
    }
    pthread_rwlock_unlock(&buffer->lock);
    return err;
}

errint_t buffer_punch(struct buffer *buffer, uint64_t offset, uint64_t length)
{
    errint_t err = check_range(offset, length);

    if (err < 0)
        return err;
    if (length == 0)
        return -EINVAL;
    buffer_lock_exclusive(buffer);
    err = changeable(buffer);
    if (err == 0) {
        upload_queue_fence(buffer->target.queue, &buffer->target);
        err = buffer_usable(buffer);
    }
    if (err == 0)
        err = buffer_layout_punch(buffer, offset, offset + length);
    pthread_rwlock_unlock(&buffer->lock);
    return err;
}

int64_t buffer_seek_data(struct buffer *buffer, uint64_t offset)
{
    const struct extent_map *map = &buffer->extents;
    int64_t found = -ENXIO;

    pthread_rwlock_rdlock(&buffer->lock);
    uint64_t length = atomic_load(&buffer->length_bytes);
    size_t i = extent_map_search(map, offset);
    if (offset < length && i < map->count && map->items[i].offset < length)
        found = (int64_t)MAX(offset, map->items[i].offset);
    pthread_rwlock_unlock(&buffer->lock);
    return found;
}

int64_t buffer_seek_hole(struct buffer *buffer, uint64_t offset)
{
    const struct extent_map *map = &buffer->extents;

    pthread_rwlock_rdlock(&buffer->lock);
    uint64_t length = atomic_load(&buffer->length_bytes), at = offset;
    for (size_t i = extent_map_search(map, at); i < map->count && map->items[i].offset <= at; i++)
        at = extent_end(&map->items[i]);
    pthread_rwlock_unlock(&buffer->lock);
    return offset >= length ? -ENXIO : (int64_t)MIN(at, length);
}

/* -- copy on the device ------------------------------------------------------------------------ */

/* Both in the order of their addresses; the destination exclusively. */
static void lock_both(struct buffer *source, struct buffer *destination)
{
    if (source < destination)
        pthread_rwlock_rdlock(&source->lock);
    buffer_lock_exclusive(destination);
    if (source > destination)
        pthread_rwlock_rdlock(&source->lock);
}

static void unlock_both(struct buffer *source, struct buffer *destination)
{
    pthread_rwlock_unlock(&destination->lock);
    if (source != destination)
        pthread_rwlock_unlock(&source->lock);
}

/* Copies device memory to where the destination has memory already. */
static errint_t copy_into(struct buffer *destination, uint64_t offset, CUdeviceptr from,
                          uint64_t length)
{
    const struct extent_map *map = &destination->extents;

    for (size_t i = extent_map_search(map, offset); length > 0; i++) {
        const struct extent *extent = &map->items[i];
        uint64_t skip = offset - extent->offset, part = MIN(length, extent->length - skip);
        errint_t err = upload_queue_copy(destination->target.queue, &destination->target,
                                         extent->address + skip, from, part);
        if (err < 0)
            return err;
        offset += part;
        from += part;
        length -= part;
    }
    return 0;
}

/* Copies one part of the source that is all memory, or all hole. Returns how much of it. */
static int64_t copy_part(struct buffer *destination, uint64_t offset, const struct extent *extent,
                         uint64_t skip, uint64_t length)
{
    if (!extent) {
        uint64_t end = MIN(offset + length, atomic_load(&destination->length_bytes));
        errint_t err = destination->attached ? -EPERM : 0;
        if (err == 0 && offset < end) {
            upload_queue_fence(destination->target.queue, &destination->target);
            err = buffer_layout_punch(destination, offset, end);
        }
        return err < 0 ? err : (int64_t)length;
    }
    int64_t covered = buffer_layout_ensure(destination, offset, length);
    if (covered <= 0)
        return covered;
    errint_t err = copy_into(destination, offset, extent->address + skip, (uint64_t)covered);
    return err < 0 ? err : covered;
}

/*
 * A copy that failed in the end does not make the buffer longer, unless what it has left behind
 * cannot be zeroed: that must not show as the zeros of a later growth.
 */
static void take_back_growth(struct buffer *buffer, uint64_t length)
{
    uint64_t grown = atomic_load(&buffer->length_bytes);

    if (grown <= length)
        return;
    if (buffer_usable(buffer) == 0 && buffer_layout_punch(buffer, length, grown) < 0 &&
        buffer_usable(buffer) == 0)
        return;
    atomic_store(&buffer->length_bytes, length);
}

static ssize_t copy_locked(struct buffer *source, uint64_t source_offset,
                           struct buffer *destination, uint64_t destination_offset, size_t length)
{
    uint64_t done = 0;
    int64_t copied = 0;

    /* What is still on its way to the source, in another stream perhaps, has to be there. */
    upload_queue_fence(source->target.queue, &source->target);
    errint_t err = MIN(buffer_usable(source), buffer_usable(destination));
    uint64_t errors = atomic_load(&destination->target.error_count);
    uint64_t length_before = atomic_load(&destination->length_bytes);
    if (err < 0)
        return err;
    while (done < length) {
        /* Looked up each time: within one buffer, making room moves the source as well. */
        const struct extent_map *map = &source->extents;
        uint64_t at = source_offset + done;
        size_t i = extent_map_search(map, at);
        const struct extent *extent =
            i < map->count && map->items[i].offset <= at ? &map->items[i] : NULL;
        uint64_t end =
            extent ? extent_end(extent) : (i < map->count ? map->items[i].offset : UINT64_MAX);
        uint64_t part = MIN(end - at, length - done);
        struct extent copy = extent ? *extent : (struct extent){0};
        if (source == destination && extent) {
            /* Make room first, then look again. */
            copied = buffer_layout_ensure(destination, destination_offset + done, part);
            if (copied <= 0)
                break;
            part = (uint64_t)copied;
            copy = map->items[extent_map_search(map, at)];
        }
        copied = copy_part(destination, destination_offset + done, extent ? &copy : NULL,
                           extent ? at - copy.offset : 0, part);
        if (copied <= 0)
            break;
        done += (uint64_t)copied;
        if (destination_offset + done > atomic_load(&destination->length_bytes))
            atomic_store(&destination->length_bytes, destination_offset + done);
    }
    /* A later write to the source, in another stream perhaps, must not overtake the copy. */
    upload_queue_fence(destination->target.queue, &destination->target);
    if (atomic_load(&destination->target.failed)) {
        /* An unproven copy may still read the source: its memory goes to nobody else either. */
        atomic_store(&source->target.failed, true);
        take_back_growth(destination, length_before);
        return -EIO;
    }
    if (buffer_usable(destination) < 0 || atomic_load(&destination->target.error_count) != errors) {
        take_back_growth(destination, length_before);
        return -EIO;
    }
    return done > 0 ? (ssize_t)done : copied;
}

ssize_t buffer_copy(struct buffer *source, uint64_t source_offset, struct buffer *destination,
                    uint64_t destination_offset, size_t length)
{
    errint_t err = check_range(source_offset, length);
    ssize_t done;

    if (err == 0)
        err = check_range(destination_offset, length);
    if (err < 0)
        return err;
    if (source->device != destination->device)
        return -EXDEV;
    lock_both(source, destination);
    length = clipped(atomic_load(&source->length_bytes), source_offset, length);
    uint64_t distance = source_offset > destination_offset ? source_offset - destination_offset
                                                           : destination_offset - source_offset;
    if (source == destination && distance < length)
        done = -EINVAL;
    else
        done = length == 0
                   ? 0
                   : copy_locked(source, source_offset, destination, destination_offset, length);
    unlock_both(source, destination);
    return done;
}

/* -- flush, trim, errors ----------------------------------------------------------------------- */

bool buffer_is_dirty(const struct buffer *buffer)
{
    return atomic_load(&buffer->target.dirty);
}

errint_t buffer_flush(struct buffer *buffer)
{
    if (device_is_lost(buffer->device))
        return -EIO;
    upload_queue_fence(buffer->target.queue, &buffer->target);
    return device_is_lost(buffer->device) ? -EIO : 0;
}

void buffer_trim(struct buffer *buffer)
{
    buffer_lock_exclusive(buffer);
    if (buffer_usable(buffer) == 0)
        buffer_layout_trim(buffer, MAX(atomic_load(&buffer->length_bytes), buffer->keep_end));
    pthread_rwlock_unlock(&buffer->lock);
}

uint64_t buffer_error_sample(struct buffer *buffer)
{
    return atomic_load(&buffer->target.error_count);
}

errint_t buffer_error_check(struct buffer *buffer, uint64_t *cursor)
{
    uint64_t count = atomic_load(&buffer->target.error_count);

    if (count == *cursor)
        return 0;
    *cursor = count;
    return -EIO;
}

const char *buffer_state_name(enum buffer_state state)
{
    static const char *const names[] = {
        [BUFFER_OK] = "ok",
        [BUFFER_FAILED] = "failed",
        [BUFFER_ATTACHED] = "attached",
        [BUFFER_DETACHED] = "detached",
    };

    return names[state];
}

void buffer_get_report(struct buffer *buffer, struct buffer_report *report)
{
    *report = (struct buffer_report){
        .length_bytes = atomic_load(&buffer->length_bytes),
        .resident_bytes = atomic_load(&buffer->resident_bytes),
        .dirty_bytes =
            atomic_load(&buffer->target.dirty) ? upload_target_dirty_bytes(&buffer->target) : 0,
        .attached_bytes = buffer->attached && !buffer->detached ? buffer->length_bytes : 0,
        .shares = buffer->shares,
        .state = buffer->detached        ? BUFFER_DETACHED
                 : buffer->target.failed ? BUFFER_FAILED
                 : buffer->attached      ? BUFFER_ATTACHED
                                         : BUFFER_OK,
    };
}
