#include <errno.h>

#include "core/device_internal.h"
#include "core/log.h"

errint_t stream_lease(struct device *device, CUstream *stream)
{
    struct stream_pool *pool = &device->streams;

    pthread_mutex_lock(&pool->mutex);
    bool hit = pool->idle_count > 0;
    if (hit)
        *stream = pool->idle[--pool->idle_count];
    pthread_mutex_unlock(&pool->mutex);
    telemetry_add(&device->telemetry, hit ? TELEMETRY_POOL_HITS : TELEMETRY_POOL_MISSES, 1);
    if (hit)
        return 0;
    CUresult result = device->driver->cuStreamCreate(stream, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS)
        return device_failure(device, result, "cuStreamCreate", "a stream");
    return 0;
}

void stream_return(struct device *device, CUstream stream)
{
    struct stream_pool *pool = &device->streams;

    pthread_mutex_lock(&pool->mutex);
    bool kept = pool->idle_count < ARRAY_SIZE(pool->idle);
    if (kept)
        pool->idle[pool->idle_count++] = stream;
    pthread_mutex_unlock(&pool->mutex);
    if (!kept)
        device->driver->cuStreamDestroy(stream);
}

void stream_quarantine(struct device *device, CUstream stream)
{
    (void)stream;
    telemetry_add(&device->telemetry, TELEMETRY_QUARANTINED_STREAMS, 1);
    log_error("%s: a stream is quarantined: its copies could not be proven complete",
              device->identity.uuid);
}

void stream_pool_finish(struct device *device)
{
    struct stream_pool *pool = &device->streams;

    while (pool->idle_count > 0)
        device->driver->cuStreamDestroy(pool->idle[--pool->idle_count]);
    pthread_mutex_destroy(&pool->mutex);
}
