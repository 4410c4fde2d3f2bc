#include <errno.h>

#include "core/device_internal.h"
#include "core/log.h"

static struct stream_stripe *own_stripe(struct device *device)
{
    return &device->streams.stripes[thread_number() % STREAM_POOL_STRIPES];
}

void stream_pool_init(struct device *device)
{
    for (size_t i = 0; i < STREAM_POOL_STRIPES; i++)
        pthread_mutex_init(&device->streams.stripes[i].mutex, NULL);
}

errint_t stream_lease(struct device *device, CUstream *stream)
{
    struct stream_stripe *stripe = own_stripe(device);

    pthread_mutex_lock(&stripe->mutex);
    bool hit = stripe->idle_count > 0;
    if (hit)
        *stream = stripe->idle[--stripe->idle_count];
    pthread_mutex_unlock(&stripe->mutex);
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
    struct stream_stripe *stripe = own_stripe(device);

    pthread_mutex_lock(&stripe->mutex);
    bool kept = stripe->idle_count < ARRAY_SIZE(stripe->idle);
    if (kept)
        stripe->idle[stripe->idle_count++] = stream;
    pthread_mutex_unlock(&stripe->mutex);
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
    for (size_t i = 0; i < STREAM_POOL_STRIPES; i++) {
        struct stream_stripe *stripe = &device->streams.stripes[i];

        while (stripe->idle_count > 0)
            device->driver->cuStreamDestroy(stripe->idle[--stripe->idle_count]);
        pthread_mutex_destroy(&stripe->mutex);
    }
}
