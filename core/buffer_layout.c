#include <errno.h>

#include "core/buffer_internal.h"

/* What counts as taken: another process's memory does not. */
static uint64_t charge_of(const struct extent *extent)
{
    return extent->kind == EXTENT_ATTACHED ? 0 : extent->length;
}

static void map_insert(struct buffer *buffer, size_t index, const struct extent *extent)
{
    extent_map_insert(&buffer->extents, index, extent);
    atomic_fetch_add(&buffer->resident_bytes, charge_of(extent));
}

/* Gives back the memory (or to the quarantine) of an extent that is not in the map. */
static void discard(struct buffer *buffer, struct extent *extent)
{
    if (atomic_load(&buffer->target.failed) && !device_is_lost(buffer->device))
        extent_quarantine(buffer->device, extent);
    else
        extent_destroy(buffer->device, extent);
}

/*
 * Puts COUNT extents in the place of the one at INDEX; there is room for them. Whoever looks at
 * resident_bytes meanwhile sees what was there, then what is.
 */
static void map_replace(struct buffer *buffer, size_t index, const struct extent *extents,
                        size_t count)
{
    struct extent old = buffer->extents.items[index];
    uint64_t added = 0;

    extent_map_remove(&buffer->extents, index);
    for (size_t i = count; i-- > 0;) {
        extent_map_insert(&buffer->extents, index, &extents[i]);
        added += charge_of(&extents[i]);
    }
    atomic_fetch_add(&buffer->resident_bytes, added - charge_of(&old));
    discard(buffer, &old);
}

/* Takes the extent out of the map and gives its memory back. */
static void map_drop(struct buffer *buffer, size_t index)
{
    map_replace(buffer, index, NULL, 0);
}

static errint_t fence(struct buffer *buffer)
{
    upload_queue_fence(buffer->target.queue, &buffer->target);
    return atomic_load(&buffer->target.failed) || device_is_lost(buffer->device) ? -EIO : 0;
}

/*
 * The same for copies whose result decides what is freed: ERRORS is the target's count before them.
 * A copy that failed late is known by that count alone when another thread met its failure.
 */
static errint_t fence_copies(struct buffer *buffer, uint64_t errors)
{
    errint_t err = fence(buffer);

    return err == 0 && atomic_load(&buffer->target.error_count) != errors ? -EIO : err;
}

/*
 * Replaces the extent at INDEX by FRESH, which is not in the map: the bytes that both have are
 * copied on the device, what only FRESH has is zeroed. FRESH is consumed either way.
 */
static errint_t move_extent(struct buffer *buffer, size_t index, struct extent *fresh)
{
    struct upload_queue *queue = buffer->target.queue;
    struct extent *old = &buffer->extents.items[index];
    uint64_t shared = MIN(extent_end(old), extent_end(fresh)) - fresh->offset;
    uint64_t errors = atomic_load(&buffer->target.error_count);
    errint_t err = upload_queue_copy(queue, &buffer->target, fresh->address,
                                     old->address + (fresh->offset - old->offset), shared);

    if (err == 0)
        err = upload_queue_zero(queue, &buffer->target, fresh->address + shared,
                                fresh->length - shared);
    /* The old memory may be freed only once it has been read. */
    errint_t fenced = fence_copies(buffer, errors);
    if (err < 0 || fenced < 0) {
        discard(buffer, fresh);
        return err < 0 ? err : fenced;
    }
    fresh->run = old->run;
    map_replace(buffer, index, fresh, 1);
    return 0;
}

/* Makes a chunk at OFFSET, smaller if need be, zeroed, and puts it into the map. */
static errint_t add_chunk(struct buffer *buffer, uint64_t offset, uint64_t end)
{
    struct extent extent;
    uint64_t run, bytes = extent_map_chunk_bytes(&buffer->extents, offset, end, &run);
    errint_t err = extent_map_reserve(&buffer->extents);

    if (err < 0)
        return err;
    err = extent_create_chunk(buffer->device, offset, bytes, &extent);
    while (err == -ENOSPC && bytes > CHUNK_UNIT_BYTES) {
        bytes = align_up(bytes / 2, CHUNK_UNIT_BYTES);
        err = extent_create_chunk(buffer->device, offset, bytes, &extent);
    }
    if (err < 0)
        return err;
    extent.run = run;
    err = upload_queue_zero(buffer->target.queue, &buffer->target, extent.address, extent.length);
    if (err < 0) {
        fence(buffer);
        discard(buffer, &extent);
        return err;
    }
    map_insert(buffer, extent_map_search(&buffer->extents, offset), &extent);
    return 0;
}

/* Gives a small buffer, or one without memory, a block that holds END bytes. */
static errint_t grow_block(struct buffer *buffer, uint64_t end)
{
    struct extent fresh;
    errint_t err = extent_map_reserve(&buffer->extents);

    if (err == 0)
        err = extent_create_block(buffer->device, end, &fresh);
    if (err < 0)
        return err;
    if (buffer->extents.count > 0)
        return move_extent(buffer, 0, &fresh);
    err = upload_queue_zero(buffer->target.queue, &buffer->target, fresh.address, fresh.length);
    if (err < 0) {
        fence(buffer);
        discard(buffer, &fresh);
        return err;
    }
    map_insert(buffer, 0, &fresh);
    return 0;
}

errint_t buffer_layout_promote(struct buffer *buffer)
{
    struct extent fresh;

    if (buffer->extents.count == 0)
        return add_chunk(buffer, 0, CHUNK_UNIT_BYTES);
    if (buffer->extents.items[0].kind != EXTENT_BLOCK)
        return 0;
    errint_t err = extent_create_chunk(buffer->device, 0, CHUNK_UNIT_BYTES, &fresh);

    return err < 0 ? err : move_extent(buffer, 0, &fresh);
}

/* The bytes from OFFSET on that have memory, or ERR if there are none. */
static int64_t covered_or(struct buffer *buffer, uint64_t offset, uint64_t length, errint_t err)
{
    const struct extent_map *map = &buffer->extents;
    uint64_t at = offset;

    for (size_t i = extent_map_search(map, at);
         i < map->count && map->items[i].offset <= at && at < offset + length; i++)
        at = extent_end(&map->items[i]);
    return at > offset ? (int64_t)MIN(at - offset, length) : err;
}

int64_t buffer_layout_ensure(struct buffer *buffer, uint64_t offset, uint64_t length)
{
    struct extent_map *map = &buffer->extents;
    uint64_t end = offset + length;
    errint_t err = 0;

    if (extent_map_covers(map, offset, length))
        return (int64_t)length;
    if (buffer->attached)
        return covered_or(buffer, offset, length, -EPERM);
    bool small = map->count == 0 || map->items[0].kind == EXTENT_BLOCK;
    if (small && end <= SLAB_BLOCK_MAX_BYTES) {
        err = grow_block(buffer, end);
        return err < 0 ? covered_or(buffer, offset, length, err) : (int64_t)length;
    }
    if (small && map->count > 0) {
        err = buffer_layout_promote(buffer);
        if (err < 0)
            return covered_or(buffer, offset, length, err);
    }
    for (uint64_t at = offset; at < end && err == 0;) {
        size_t i = extent_map_search(map, at);
        if (i < map->count && map->items[i].offset <= at)
            at = extent_end(&map->items[i]);
        else
            err = add_chunk(buffer, align_down(at, CHUNK_UNIT_BYTES), end);
    }
    return err < 0 ? covered_or(buffer, offset, length, err) : (int64_t)length;
}

errint_t buffer_layout_ensure_all(struct buffer *buffer, uint64_t offset, uint64_t length)
{
    struct extent_map *map = &buffer->extents;

    /* A block that had to become a chunk stays one: what it holds is the same. */
    if (map->count > 0 && map->items[0].kind == EXTENT_BLOCK &&
        offset + length > SLAB_BLOCK_MAX_BYTES) {
        errint_t err = buffer_layout_promote(buffer);
        if (err < 0)
            return err;
    }
    uint64_t first_new_id = atomic_load(&buffer->device->next_extent_id);
    int64_t covered = buffer_layout_ensure(buffer, offset, length);
    if (covered >= 0 && (uint64_t)covered == length)
        return 0;
    fence(buffer);
    for (size_t i = map->count; i-- > 0;)
        if (map->items[i].id >= first_new_id && map->items[i].kind == EXTENT_CHUNK)
            map_drop(buffer, i);
    return covered < 0 ? (errint_t)covered : -ENOSPC;
}

/*
 * Takes [hole, hole_end), which are multiples of 2 MiB strictly inside or at one side of the chunk
 * at INDEX, out of it: what is left moves to chunks of its own. -ENOSPC and nothing changed when
 * there is no memory for that.
 */
static errint_t carve(struct buffer *buffer, size_t index, uint64_t hole, uint64_t hole_end)
{
    struct extent old = buffer->extents.items[index], left = {0}, right = {0};
    struct upload_queue *queue = buffer->target.queue;
    uint64_t errors = atomic_load(&buffer->target.error_count);
    errint_t err = extent_map_reserve(&buffer->extents);

    if (err == 0 && hole > old.offset)
        err = extent_create_chunk(buffer->device, old.offset, hole - old.offset, &left);
    if (err < 0)
        return err;
    if (hole_end < extent_end(&old)) {
        err = extent_create_chunk(buffer->device, hole_end, extent_end(&old) - hole_end, &right);
        if (err < 0)
            goto discard_left;
    }
    if (left.length > 0)
        err = upload_queue_copy(queue, &buffer->target, left.address, old.address, left.length);
    if (err == 0 && right.length > 0)
        err = upload_queue_copy(queue, &buffer->target, right.address,
                                old.address + (hole_end - old.offset), right.length);
    errint_t fenced = fence_copies(buffer, errors);
    if (err < 0 || fenced < 0) {
        err = err < 0 ? err : fenced;
        goto discard_right;
    }
    struct extent kept[2];
    size_t kept_count = 0;
    left.run = old.run;
    if (left.length > 0)
        kept[kept_count++] = left;
    if (right.length > 0)
        kept[kept_count++] = right;
    map_replace(buffer, index, kept, kept_count);
    return 0;

discard_right:
    if (right.length > 0)
        discard(buffer, &right);
discard_left:
    if (left.length > 0)
        discard(buffer, &left);
    return err;
}

errint_t buffer_layout_punch(struct buffer *buffer, uint64_t offset, uint64_t end)
{
    struct extent_map *map = &buffer->extents;
    size_t i = extent_map_search(map, offset);

    /* Past the end there is nothing but zeros: the hole may take the rest of the extent too. */
    if (end >= atomic_load(&buffer->length_bytes) && end >= buffer->keep_end)
        end = UINT64_MAX;
    while (i < map->count && map->items[i].offset < end) {
        struct extent *extent = &map->items[i];
        uint64_t start = MAX(offset, extent->offset), stop = MIN(end, extent_end(extent));
        if (start == extent->offset && stop == extent_end(extent) && buffer->shares == 0) {
            map_drop(buffer, i);
            continue;
        }
        uint64_t hole = align_up(start, CHUNK_UNIT_BYTES);
        uint64_t hole_end = align_down(stop, CHUNK_UNIT_BYTES);
        uint64_t address = extent->address + (start - extent->offset);
        errint_t err =
            upload_queue_zero(buffer->target.queue, &buffer->target, address, stop - start);
        if (err < 0)
            return err;
        size_t pieces = 1;
        if (extent->kind == EXTENT_CHUNK && hole < hole_end && buffer->shares == 0) {
            pieces = (hole > extent->offset) + (hole_end < extent_end(extent));
            err = carve(buffer, i, hole, hole_end);
            if (err == -EIO)
                return err;
            pieces = err < 0 ? 1 : pieces; /* no memory to carve with: zeroed is enough */
        }
        i += pieces;
    }
    return 0;
}

/* Moves the last extent into less memory. Failure only means that slack stays. */
static void shrink_last(struct buffer *buffer, uint64_t floor)
{
    struct extent_map *map = &buffer->extents;
    size_t last = map->count - 1;
    struct extent *extent = &map->items[last], fresh;

    if (extent->offset == 0 && floor <= SLAB_BLOCK_MAX_BYTES) {
        if (slab_block_bytes(floor) < extent->length &&
            extent_create_block(buffer->device, floor, &fresh) == 0)
            move_extent(buffer, last, &fresh);
        return;
    }
    uint64_t wanted = align_up(floor, CHUNK_UNIT_BYTES);
    if (extent->kind == EXTENT_CHUNK && wanted < extent_end(extent))
        carve(buffer, last, wanted, extent_end(extent));
}

void buffer_layout_trim(struct buffer *buffer, uint64_t floor)
{
    struct extent_map *map = &buffer->extents;
    bool fenced = false;

    if (buffer->shares > 0 || buffer->attached)
        return;
    while (map->count > 0 && map->items[map->count - 1].offset >= floor) {
        if (!fenced && fence(buffer) < 0)
            return;
        fenced = true;
        map_drop(buffer, map->count - 1);
    }
    if (map->count > 0)
        shrink_last(buffer, floor);
}

void buffer_layout_clear(struct buffer *buffer)
{
    while (buffer->extents.count > 0)
        map_drop(buffer, buffer->extents.count - 1);
    extent_map_finish(&buffer->extents);
}

errint_t buffer_layout_attach(struct buffer *buffer, struct attachment *attachment,
                              CUdeviceptr address, uint64_t length)
{
    struct extent extent = {
        .id = atomic_fetch_add(&buffer->device->next_extent_id, 1),
        .length = length,
        .address = address,
        .kind = EXTENT_ATTACHED,
        .attachment = attachment,
    };
    errint_t err = extent_map_reserve(&buffer->extents);

    if (err == 0)
        map_insert(buffer, 0, &extent);
    return err;
}
