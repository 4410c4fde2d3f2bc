/*
 * The CUDA driver as libresident uses it: opened at first use and kept, and a context for the time
 * of a call. Private to libresident.
 */
#ifndef RESIDENTFS_CORE_SHARE_CUDA_H
#define RESIDENTFS_CORE_SHARE_CUDA_H

#include "core/driver/driver.h"
#include "core/share/connection.h"

/* NAME as a reply has it. Initialised. */
errint_t share_driver(const char *name, const struct driver **out);

/* share_fail with what CALL returned. */
errint_t share_cuda_fail(const struct driver *driver, CUresult result, const char *call);

/* This process's number of the device; -ENODEV with a text if it is not visible. */
errint_t share_find_device(const struct driver *driver, const uint8_t uuid[16], CUdevice *device);

/*
 * Between enter and leave a context of DEVICE is current: the one that was, or else the primary
 * context, which stays retained from the first enter until share_context_release.
 */
struct share_context {
    const struct driver *driver;
    CUdevice device;
    CUcontext primary; /* NULL: not retained */
    CUcontext previous;
    bool switched;
};
errint_t share_context_enter(struct share_context *context);
void share_context_leave(struct share_context *context);
void share_context_release(struct share_context *context);

#endif
