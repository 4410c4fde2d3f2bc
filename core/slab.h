/*
 * Small device memory: blocks of 4 KiB to 1 MiB (powers of two), cut out of chunks of 2 MiB by a
 * buddy system, so that a file of one byte does not take 2 MiB. A chunk goes back to the driver
 * when its last block is freed. One mutex a device (a leaf, but for the driver calls that take and
 * give back chunks).
 */
#ifndef RESIDENTFS_CORE_SLAB_H
#define RESIDENTFS_CORE_SLAB_H

#include "core/device_internal.h"

#define SLAB_BLOCK_MIN_BYTES (4 * KIB)
#define SLAB_BLOCK_MAX_BYTES (1 * MIB)

struct slab;

struct slab_block {
    struct slab *slab;
    CUdeviceptr address;
    uint64_t length; /* bytes, a power of two */
};

/* The size of the block that holds BYTES (1 to SLAB_BLOCK_MAX_BYTES). */
uint64_t slab_block_bytes(uint64_t bytes);

/* -ENOSPC, -EIO, -ENOMEM. The content is undefined. */
errint_t slab_allocate(struct device *device, uint64_t bytes, struct slab_block *block);
/* No copy may be running on it. */
void slab_free(struct device *device, struct slab_block *block);
/* A copy may be running on it: the block, and so its chunk, is never used again. */
void slab_quarantine(struct device *device, struct slab_block *block);

#endif
