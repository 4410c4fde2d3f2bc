/*
 * The CUDA Driver API as a table of entry points, found at run time: the driver of an NVIDIA GPU
 * ("cuda"), or the emulated one over host memory ("emulated"), which is used only when named.
 * Opening loads the library and does not initialise it, so it may come before a fork; cuInit, by
 * the caller, may not. The table is constant once opened: any thread may use it. CUresult stays
 * inside core/: cuda_error.h turns it into errno.
 */
#ifndef RESIDENTFS_CORE_DRIVER_DRIVER_H
#define RESIDENTFS_CORE_DRIVER_DRIVER_H

#include "core/driver/cuda_abi.h"
#include "core/driver/cuda_entry_points.h"
#include "core/util.h"

struct driver {
    /* One field per entry point, e.g. cuMemcpyHtoDAsync. Optional ones may be NULL. */
#define DRIVER_FIELD(name, suffix, asked, need, parameters) CUresult(*name) parameters;
    CUDA_ENTRY_POINTS(DRIVER_FIELD)
#undef DRIVER_FIELD

    const char *name;   /* "cuda" or "emulated" */
    char *library_path; /* the library as it was opened */
    int version;        /* cuDriverGetVersion: 13000 is 13.0 */
    void *library;      /* for dlsym: tests reach the emulated driver's hooks through it */
};

/*
 * Opens the driver called NAME, "cuda" or "emulated". On success *OUT is owned by the caller. On
 * failure MESSAGE holds one line for a user: what was tried, why it failed, what to do. -EINVAL: no
 * such name; -ENOENT: library not found; -ENOSYS: an entry point is missing; -ENOMEM.
 */
errint_t driver_open(const char *name, struct driver **out, char *message, size_t message_bytes);

/* Takes NULL. No call through the table may be running or come later. */
void driver_close(struct driver *driver);

/* CUDA's name for RESULT, e.g. "CUDA_ERROR_OUT_OF_MEMORY"; never NULL. DRIVER may be NULL. */
const char *driver_error_name(const struct driver *driver, CUresult result);

#endif
