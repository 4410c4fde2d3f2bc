/*
 * One GPU, or one emulated GPU: its driver, context, budget, telemetry, streams and memory pools.
 * There is no global "the device": everything hangs off a struct device, and a program may open
 * any number of them. CUDA is initialised in device_open, so it must not be called before a fork.
 *
 * Errors: negative errno; texts for people go to the message buffer or the log.
 */
#ifndef RESIDENTFS_CORE_DEVICE_H
#define RESIDENTFS_CORE_DEVICE_H

#include <stdatomic.h>
#include <stdio.h>

#include "core/budget.h"
#include "core/device_selector.h"
#include "core/telemetry.h"
#include "core/util.h"

struct device;

struct device_options {
    struct budget_setting budget;
    uint64_t staging_bytes;          /* cap of the upload staging of this device */
    unsigned int upload_streams;     /* streams that uploads are spread over, >= 1 */
    unsigned int flush_interval_ms;  /* how long a gathered write may wait; 0: submit at once */
    uint64_t direct_threshold_bytes; /* page-locked writes this long are copied from where they
                                        are */
    uint64_t readahead_bytes;        /* how far ahead of a sequential reader; 0: not at all */
    bool scrub;                      /* zero device memory before it goes back to the driver */
};

#define DEVICE_NAME_BYTES 128

/* Constant after device_open. */
struct device_identity {
    char driver[16];              /* "cuda" or "emulated" */
    int driver_version;           /* 13000 for CUDA 13.0 */
    int index;                    /* among the driver's devices */
    char name[DEVICE_NAME_BYTES]; /* "NVIDIA H200" */
    char uuid[48];                /* "GPU-..." */
    uint8_t uuid_bytes[16];       /* the same */
    char pci_bus_id[24];          /* "0000:1b:00.0" */
    uint64_t total_bytes;
};

/*
 * Opens the driver and the device, makes its context current for the calling thread and probes by
 * trial what the device can do. On failure *out is untouched, and message holds one line for the
 * user: what is wrong and what to do.
 */
errint_t device_open(const struct device_selector *selector, const struct device_options *options,
                     struct device **out, char *message, size_t message_bytes);

/* Fences everything, gives everything back. All buffers must have been destroyed. NULL is fine. */
void device_close(struct device *device);

/*
 * Every thread that calls into core must call this once before (the context is a per-thread
 * setting of the driver). Cheap when repeated.
 */
errint_t device_attach_thread(struct device *device);

const struct device_identity *device_identity(const struct device *device);
struct telemetry *device_telemetry(struct device *device);
struct budget *device_budget(struct device *device);
void device_get_budget_report(struct device *device, struct budget_report *report);
uint64_t device_direct_threshold_bytes(const struct device *device);

/* After a sticky error: true for good; every data operation fails with EIO. */
bool device_is_lost(const struct device *device);
/* Why, e.g. "CUDA_ERROR_ECC_UNCORRECTABLE in cuMemcpyHtoDAsync"; "" while it is not lost. */
void device_get_lost_reason(struct device *device, char *text, size_t text_bytes);

/* Lines about what is less than it could be ("page-locked memory refused: ..."); owned text. */
bool device_is_degraded(const struct device *device);

/* Submits and fences every pending upload of the device. 0 or the first error. */
errint_t device_flush(struct device *device);
uint64_t device_dirty_bytes(struct device *device);

/* A table of the driver's devices: index, UUID, PCI id, name, memory. For --list-devices. */
errint_t device_list(const char *driver, FILE *out, char *message, size_t message_bytes);

/*
 * Host memory that DMA may read or write. page_locked is false when the driver refused to lock it
 * (then copies are slower but right; the log has said so). Owned by the caller.
 */
struct pinned_memory {
    void *bytes;
    size_t length;
    bool page_locked;
    void *mapping; /* private */
    size_t mapping_length;
};

/*
 * Page-aligned, hugepage-backed where the kernel can, and left out of core dumps. 0, -ENOMEM.
 * Counts as staging.
 */
errint_t pinned_memory_init(struct device *device, struct pinned_memory *memory, size_t length);
/*
 * The same in memory that can be shown at a second address, for bytes that somebody else hands over
 * there: pinned_memory_show_at replaces what is mapped from ADDRESS (a page's) on, as far as the
 * memory goes, at once. That mapping is not counted, and not taken away by the functions below.
 */
errint_t pinned_memory_init_shared(struct device *device, struct pinned_memory *memory,
                                   size_t length);
errint_t pinned_memory_show_at(const struct pinned_memory *memory, void *address);
/* The caller guarantees that no copy touches it any more. */
void pinned_memory_finish(struct device *device, struct pinned_memory *memory);
/* DMA may still be running on it: it is counted, forgotten and never given back. */
void pinned_memory_quarantine(struct device *device, struct pinned_memory *memory);

#endif
