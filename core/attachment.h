/*
 * Device memory that belongs to another process, mapped into this one: what an attached buffer is
 * made of. It is not in the budget. Any attached thread may call; device.attachments_mutex (a leaf
 * but for driver calls) covers the list of allocations that are open.
 */
#ifndef RESIDENTFS_CORE_ATTACHMENT_H
#define RESIDENTFS_CORE_ATTACHMENT_H

#include "core/buffer.h"
#include "core/driver/cuda_abi.h"

struct device;
struct attachment;

/*
 * Opens the allocation that MEMORY names and checks that the range lies in it: by what the driver
 * says of it, not by what its owner says. *address is where the range begins. MESSAGE holds one
 * line when it fails. -EINVAL: no such memory, or the range is not inside; -ENODEV: of another
 * device; -EIO; -ENOMEM.
 */
errint_t attachment_open(struct device *device, const struct buffer_memory *memory,
                         struct attachment **out, CUdeviceptr *address, char *message,
                         size_t message_bytes);

/* No copy may be running on it. */
void attachment_close(struct device *device, struct attachment *attachment);
/* A copy may be running on it: stays mapped for good. */
void attachment_quarantine(struct device *device, struct attachment *attachment);

#endif
