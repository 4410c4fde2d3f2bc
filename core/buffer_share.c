/* What of a buffer other processes have a part in: memory of its own that they map, or theirs. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "core/buffer_internal.h"

errint_t buffer_share_begin(struct buffer *buffer)
{
    if (!buffer->device->exportable)
        return -EOPNOTSUPP;
    buffer_lock_exclusive(buffer);
    errint_t err = buffer_usable(buffer);
    if (err == 0 && buffer->attached)
        err = -EPERM;
    if (err == 0 && buffer->extents.count > 0)
        err = buffer_layout_promote(buffer);
    if (err == 0)
        buffer->shares++;
    pthread_rwlock_unlock(&buffer->lock);
    return err;
}

void buffer_share_end(struct buffer *buffer)
{
    buffer_lock_exclusive(buffer);
    buffer->shares--;
    if (buffer->shares == 0 && buffer_usable(buffer) == 0)
        buffer_layout_trim(buffer, MAX(atomic_load(&buffer->length_bytes), buffer->keep_end));
    pthread_rwlock_unlock(&buffer->lock);
}

errint_t buffer_share_prepare(struct buffer *buffer, uint64_t *length, uint64_t *mapped_length)
{
    const struct extent_map *map = &buffer->extents;

    buffer_lock_exclusive(buffer);
    errint_t err = buffer_usable(buffer);
    *length = atomic_load(&buffer->length_bytes);
    if (err == 0 && *length == 0)
        err = -ENODATA;
    if (err == 0) /* a small write may have come since it was found empty */
        err = buffer_layout_promote(buffer);
    if (err == 0)
        err = buffer_layout_ensure_all(buffer, 0, *length);
    if (err == 0) {
        upload_queue_fence(buffer->target.queue, &buffer->target);
        err = buffer_usable(buffer);
    }
    if (err == 0)
        *mapped_length = extent_end(&map->items[extent_map_search(map, *length - 1)]);
    pthread_rwlock_unlock(&buffer->lock);
    return err;
}

ssize_t buffer_share_export(struct buffer *buffer, uint64_t offset, uint64_t end,
                            struct buffer_share_chunk *chunks, size_t count)
{
    const struct driver *driver = buffer->device->driver;
    const struct extent_map *map = &buffer->extents;
    size_t done = 0;

    pthread_rwlock_rdlock(&buffer->lock);
    errint_t err = buffer_usable(buffer);
    if (err == 0 && buffer->shares == 0)
        err = -EINVAL;
    for (size_t i = extent_map_search(map, offset); err == 0 && i < map->count && done < count;
         i++) {
        struct extent *extent = &map->items[i];
        if (extent->offset < offset)
            continue;
        if (extent->offset >= end)
            break;
        int descriptor = -1;
        CUresult result = driver->cuMemExportToShareableHandle(
            &descriptor, extent->chunk.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        if (result != CUDA_SUCCESS) {
            err = device_failure(buffer->device, result, "cuMemExportToShareableHandle", "a chunk");
            break;
        }
        extent->chunk.exported = true;
        chunks[done++] = (struct buffer_share_chunk){extent->offset, extent->length, descriptor};
    }
    pthread_rwlock_unlock(&buffer->lock);
    if (err == 0)
        return (ssize_t)done;
    while (done > 0)
        close(chunks[--done].descriptor);
    return err;
}

errint_t buffer_attach(struct buffer *buffer, const struct buffer_memory *memory, char *message,
                       size_t message_bytes)
{
    struct attachment *attachment;
    CUdeviceptr address;
    errint_t err =
        attachment_open(buffer->device, memory, &attachment, &address, message, message_bytes);

    if (err < 0)
        return err;
    buffer_lock_exclusive(buffer);
    if (buffer->attached || buffer->shares > 0 || buffer->extents.count > 0 ||
        atomic_load(&buffer->length_bytes) > 0)
        err = -EEXIST;
    if (err == 0)
        err = buffer_layout_attach(buffer, attachment, address, memory->length);
    if (err == 0) {
        buffer->attached = true;
        atomic_store(&buffer->length_bytes, memory->length);
    }
    pthread_rwlock_unlock(&buffer->lock);
    if (err < 0) {
        attachment_close(buffer->device, attachment);
        snprintf(message, message_bytes, "%s",
                 err == -EEXIST ? "memory is attached to an empty file only" : "no host memory");
    }
    return err;
}

void buffer_detach(struct buffer *buffer)
{
    buffer_lock_exclusive(buffer);
    if (buffer->attached && !buffer->detached) {
        upload_queue_drop_pending(buffer->target.queue, &buffer->target);
        upload_queue_fence(buffer->target.queue, &buffer->target);
        buffer_layout_clear(buffer);
        buffer->detached = true;
    }
    pthread_rwlock_unlock(&buffer->lock);
}
