/*
 * The device memory of a buffer: which ranges of it have memory, and where. A small buffer has one
 * extent at offset 0, a block of a slab; a large one has chunks, each at a multiple of 2 MiB, in
 * order, not overlapping. Memory past the buffer's length and in it where nothing was written is
 * zero. An attached buffer has one extent, memory that is another process's.
 *
 * All of it is covered by buffer.lock: changes need it exclusively.
 */
#ifndef RESIDENTFS_CORE_EXTENT_H
#define RESIDENTFS_CORE_EXTENT_H

#include "core/attachment.h"
#include "core/device_internal.h"
#include "core/slab.h"

enum extent_kind { EXTENT_CHUNK, EXTENT_BLOCK, EXTENT_ATTACHED };

struct extent {
    uint64_t id; /* never reused */
    uint64_t offset;
    uint64_t length; /* bytes */
    CUdeviceptr address;
    uint64_t run; /* bytes of the chunks that end where this one begins: how far the file has
                     grown in a row */
    enum extent_kind kind;
    union {
        struct chunk chunk;
        struct slab_block block;
        struct attachment *attachment; /* owned */
    };
};

/* Zero-initialised is empty. */
struct extent_map {
    struct extent *items; /* by offset; owned */
    size_t count, capacity;
};

static inline uint64_t extent_end(const struct extent *extent)
{
    return extent->offset + extent->length;
}

/* The index of the first extent that ends after OFFSET; count if none does. */
size_t extent_map_search(const struct extent_map *map, uint64_t offset);

/* Whether all of [offset, offset + length) has memory. */
bool extent_map_covers(const struct extent_map *map, uint64_t offset, uint64_t length);

/* Makes room for one more. -ENOMEM. */
errint_t extent_map_reserve(struct extent_map *map);
/* There is room (extent_map_reserve). */
void extent_map_insert(struct extent_map *map, size_t index, const struct extent *extent);
void extent_map_remove(struct extent_map *map, size_t index);
void extent_map_finish(struct extent_map *map);

/*
 * How long a chunk at OFFSET (a multiple of 2 MiB in a hole) should be when the bytes up to END
 * are wanted: it grows with the file, an eighth of what lies before it in a row, 2 MiB to 64 MiB,
 * and ends where the next extent begins. *run is set for the new extent.
 */
uint64_t extent_map_chunk_bytes(const struct extent_map *map, uint64_t offset, uint64_t end,
                                uint64_t *run);

/* Takes device memory for an extent at OFFSET: a block or a chunk. -ENOSPC, -EIO, -ENOMEM. */
errint_t extent_create_block(struct device *device, uint64_t bytes, struct extent *extent);
errint_t extent_create_chunk(struct device *device, uint64_t offset, uint64_t length,
                             struct extent *extent);
/* No copy may be running on it. */
void extent_destroy(struct device *device, struct extent *extent);
/* A copy may be running on it. */
void extent_quarantine(struct device *device, struct extent *extent);

#endif
