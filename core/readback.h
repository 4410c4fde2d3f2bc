/*
 * Readbacks: copies from device memory to host memory behind one fence, fused by a plan that was
 * validated before any DMA.
 */
#ifndef RESIDENTFS_CORE_READBACK_H
#define RESIDENTFS_CORE_READBACK_H

#include "core/readback_plan.h"
#include "core/upload.h"

/* One piece of a readback: device memory, and where it goes. */
struct readback_piece {
    struct readback_range range;
    void *bytes; /* range.length of them */
};

/*
 * Copies all pieces, and returns when the bytes are there. If TARGET (the buffer that the memory
 * belongs to) is dirty, the copies run behind its uploads, else on a leased stream. 0; -EIO;
 * -ENOMEM; -ENOTRECOVERABLE: completion is unproven: the destinations must be quarantined.
 */
errint_t readback_run(struct device *device, struct upload_target *target,
                      const struct readback_piece *pieces, size_t count);

#endif
