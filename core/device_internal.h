/*
 * What the modules of core/ know of a device and of each other's pools. Not for fs/.
 *
 * Locks of core/, in the order in which they are taken:
 *   1. buffer.lock (of two buffers: the one at the lower address first)
 *   2. upload_queue.mutex
 *   3. slab_pool.mutex; then device.attachments_mutex, device.lost_mutex, device.flusher_mutex,
 *      stream_pool.mutex (leaves)
 */
#ifndef RESIDENTFS_CORE_DEVICE_INTERNAL_H
#define RESIDENTFS_CORE_DEVICE_INTERNAL_H

#include <pthread.h>

#include "core/device.h"
#include "core/driver/driver.h"

struct attachment;
struct readahead_slot;
struct upload_queue;

#define CHUNK_UNIT_BYTES (2 * MIB) /* every chunk is a multiple of it, in size and file offset */

/*
 * Streams that readbacks lease, one operation each; last in, first out. In stripes, so that threads
 * seldom wait for each other.
 */
#define STREAM_POOL_STRIPES 16
struct stream_pool {
    struct stream_stripe {
        _Alignas(64) pthread_mutex_t mutex; /* covers what follows */
        CUstream idle[16];
        size_t idle_count;
    } stripes[STREAM_POOL_STRIPES];
};

/* Memory for what is read ahead: see core/readahead.h. */
struct readahead_pool {
    pthread_mutex_t mutex; /* covers whose slots are */
    struct readahead_slot *slots;
    unsigned int count;  /* constant */
    size_t window_bytes; /* of one window; 0: nothing is read ahead; constant */
};

/* Blocks of 4 KiB to 1 MiB out of chunks of CHUNK_UNIT_BYTES: see core/slab.h. */
#define SLAB_ORDERS 10
struct slab_pool {
    pthread_mutex_t mutex;           /* covers what follows, and every slab */
    struct slab *lists[SLAB_ORDERS]; /* by the largest free order in the slab */
    struct slab *full;
};

struct device {
    struct device_identity identity;
    struct device_options options;
    struct driver *driver;
    CUdevice cuda_device;
    CUcontext context;
    bool exportable;  /* chunks can be exported as POSIX descriptors */
    bool has_context; /* the primary context is retained */

    struct budget budget;
    struct telemetry telemetry;
    struct stream_pool streams;
    struct slab_pool slabs;
    struct readahead_pool readahead;
    pthread_mutex_t attachments_mutex; /* covers attachments, and what is in them */
    struct attachment *attachments;    /* allocations of other processes that are open */

    struct upload_queue **queues; /* options.upload_streams of them; constant */
    _Atomic unsigned int next_queue;
    _Atomic uint64_t next_extent_id;

    _Atomic bool lost;
    _Atomic bool degraded;
    pthread_mutex_t lost_mutex; /* covers lost_reason */
    char lost_reason[160];

    /* The flusher submits what has waited long enough and notices completed copies. */
    pthread_t flusher;
    bool flusher_started;
    _Atomic bool flusher_work;     /* something is pending or unproven */
    pthread_mutex_t flusher_mutex; /* covers flusher_stop and the waking; a leaf */
    pthread_cond_t flusher_wake;
    bool flusher_stop;
};

/*
 * Every failed driver call is reported here once: logs it, counts it, and marks the device lost if
 * the result is sticky. CALL is the entry point, WHAT the thing it was for. -ENOSPC or -EIO.
 */
errint_t device_failure(struct device *device, CUresult result, const char *call, const char *what);

/* Tells the flusher that there is something pending. */
void device_wake_flusher(struct device *device);

/* Live free memory as the driver says; 0 when it cannot say. */
uint64_t device_free_bytes(struct device *device);

/* -- streams ----------------------------------------------------------------------------------- */

/* 0 and a stream of the caller's own until it is given back, or a negative errno. */
errint_t stream_lease(struct device *device, CUstream *stream);
/* Nothing is running on it. */
void stream_return(struct device *device, CUstream stream);
/* Something may still be running on it: never used again, not destroyed. */
void stream_quarantine(struct device *device, CUstream stream);
void stream_pool_init(struct device *device);
void stream_pool_finish(struct device *device);

/* Forgets the slabs; blocks that are still in use are in quarantine. */
void slab_pool_finish(struct device *device);

/* -- chunks ------------------------------------------------------------------------------------ */

/* Physical device memory, mapped at an address of its own. */
struct chunk {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    uint64_t length;       /* bytes, a multiple of CHUNK_UNIT_BYTES */
    _Atomic bool exported; /* another process may have it mapped */
};

/*
 * Takes LENGTH bytes of device memory within the budget. -ENOSPC: budget or driver; -EIO. The
 * content is undefined: the caller zeroes it before a byte of it can be read.
 */
errint_t chunk_create(struct device *device, uint64_t length, struct chunk *chunk);
/*
 * No copy may be running on it. With the option scrub it is zeroed first, unless it was exported:
 * a program may go on using what it has mapped.
 */
void chunk_destroy(struct device *device, struct chunk *chunk);
/* A copy may be running on it: stays mapped and in the budget for good. */
void chunk_quarantine(struct device *device, struct chunk *chunk);

#endif
