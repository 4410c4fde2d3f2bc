#include "core/extent.h"

#include <errno.h>
#include <string.h>

#define CHUNK_MAX_BYTES       (64 * MIB)
#define CHUNK_GROWTH_FRACTION 8

size_t extent_map_search(const struct extent_map *map, uint64_t offset)
{
    size_t low = 0, high = map->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (extent_end(&map->items[middle]) > offset)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

bool extent_map_covers(const struct extent_map *map, uint64_t offset, uint64_t length)
{
    uint64_t end = offset + length;

    for (size_t i = extent_map_search(map, offset); i < map->count && offset < end; i++) {
        if (map->items[i].offset > offset)
            return false;
        offset = extent_end(&map->items[i]);
    }
    return offset >= end;
}

errint_t extent_map_reserve(struct extent_map *map)
{
    if (map->count < map->capacity)
        return 0;
    size_t capacity = map->capacity ? map->capacity * 2 : 1;
    struct extent *items = realloc(map->items, capacity * sizeof(*items));
    if (!items)
        return -ENOMEM;
    map->items = items;
    map->capacity = capacity;
    return 0;
}

void extent_map_insert(struct extent_map *map, size_t index, const struct extent *extent)
{
    memmove(map->items + index + 1, map->items + index, (map->count - index) * sizeof(*map->items));
    map->items[index] = *extent;
    map->count++;
}

void extent_map_remove(struct extent_map *map, size_t index)
{
    map->count--;
    memmove(map->items + index, map->items + index + 1, (map->count - index) * sizeof(*map->items));
}

void extent_map_finish(struct extent_map *map)
{
    free(map->items);
    *map = (struct extent_map){0};
}

uint64_t extent_map_chunk_bytes(const struct extent_map *map, uint64_t offset, uint64_t end,
                                uint64_t *run)
{
    size_t next = extent_map_search(map, offset);
    uint64_t wanted = align_up(end - offset, CHUNK_UNIT_BYTES);
    uint64_t grown;

    *run = 0;
    if (next > 0 && extent_end(&map->items[next - 1]) == offset)
        *run = map->items[next - 1].run + map->items[next - 1].length;
    grown = align_down(*run / CHUNK_GROWTH_FRACTION, CHUNK_UNIT_BYTES);
    uint64_t bytes = MIN(MAX(wanted, grown), CHUNK_MAX_BYTES);
    if (next < map->count)
        bytes = MIN(bytes, map->items[next].offset - offset);
    return bytes;
}

errint_t extent_create_block(struct device *device, uint64_t bytes, struct extent *extent)
{
    *extent = (struct extent){.kind = EXTENT_BLOCK};
    errint_t err = slab_allocate(device, bytes, &extent->block);
    if (err < 0)
        return err;
    extent->id = atomic_fetch_add(&device->next_extent_id, 1);
    extent->length = extent->block.length;
    extent->address = extent->block.address;
    return 0;
}

errint_t extent_create_chunk(struct device *device, uint64_t offset, uint64_t length,
                             struct extent *extent)
{
    *extent = (struct extent){.offset = offset, .length = length};
    errint_t err = chunk_create(device, length, &extent->chunk);
    if (err < 0)
        return err;
    extent->id = atomic_fetch_add(&device->next_extent_id, 1);
    extent->address = extent->chunk.address;
    return 0;
}

void extent_destroy(struct device *device, struct extent *extent)
{
    switch (extent->kind) {
    case EXTENT_CHUNK:
        chunk_destroy(device, &extent->chunk);
        break;
    case EXTENT_BLOCK:
        slab_free(device, &extent->block);
        break;
    case EXTENT_ATTACHED:
        attachment_close(device, extent->attachment);
        break;
    }
}

void extent_quarantine(struct device *device, struct extent *extent)
{
    switch (extent->kind) {
    case EXTENT_CHUNK:
        chunk_quarantine(device, &extent->chunk);
        break;
    case EXTENT_BLOCK:
        slab_quarantine(device, &extent->block);
        break;
    case EXTENT_ATTACHED:
        attachment_quarantine(device, extent->attachment);
        break;
    }
}
