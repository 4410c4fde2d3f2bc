/*
 * Fusion of readbacks: several ranges of device memory become as few copies as touch or overlap in
 * the same extent, and each range becomes a view into one of them. Requests keep their order and
 * are sorted (by extent and address) only if they are not in order already; gaps are never bridged;
 * an empty request gets an empty view. Pure data: nothing is copied here.
 */
#ifndef RESIDENTFS_CORE_READBACK_PLAN_H
#define RESIDENTFS_CORE_READBACK_PLAN_H

#include "core/util.h"

struct readback_range {
    uint64_t extent_id; /* device memory that is contiguous */
    uint64_t address;   /* device address */
    size_t length;      /* may be 0 */
};

struct readback_copy {
    uint64_t extent_id;
    uint64_t address;
    size_t length;      /* > 0 */
    size_t host_offset; /* where its bytes go in host memory of host_bytes */
};

struct readback_view {
    size_t copy;   /* index into copies; 0 for an empty view */
    size_t offset; /* of the range's first byte within the copy */
    size_t length;
};

struct readback_plan {
    struct readback_copy *copies; /* owned */
    size_t copy_count;
    struct readback_view *views; /* one a request, in the order of the requests; owned */
    size_t view_count;
    size_t host_bytes; /* sum of the copies' lengths */
};

/* 0, -ENOMEM, -EOVERFLOW (a range that wraps around, or more bytes than a size_t holds). */
errint_t readback_plan_init(struct readback_plan *plan, const struct readback_range *ranges,
                            size_t count);
void readback_plan_finish(struct readback_plan *plan);

/*
 * Checks before any DMA that every view lies within its copy and shows the range that was asked
 * for, and that the copies' places add up. 0 or -EINVAL.
 */
errint_t readback_plan_validate(const struct readback_plan *plan,
                                const struct readback_range *ranges, size_t count);

#endif
