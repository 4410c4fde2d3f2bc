#include "core/share/cuda.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "core/driver/cuda_error.h"

errint_t share_cuda_fail(const struct driver *driver, CUresult result, const char *call)
{
    return share_fail(cuda_errno(result), "%s failed: %s", call, driver_error_name(driver, result));
}

errint_t share_driver(const char *name, const struct driver **out)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* covers opened */
    static struct driver *opened[2];                          /* for the life of the process */
    struct driver *driver = NULL;
    char message[256] = "";
    errint_t error = 0;

    pthread_mutex_lock(&mutex);
    size_t i = 0;
    while (i < ARRAY_SIZE(opened) && opened[i] && strcmp(opened[i]->name, name) != 0)
        i++;
    if (i < ARRAY_SIZE(opened) && !opened[i]) {
        error = driver_open(name, &driver, message, sizeof(message));
        if (error < 0) {
            share_fail(error, "%s", message);
        } else {
            CUresult result = driver->cuInit(0);
            if (result == CUDA_SUCCESS) {
                opened[i] = driver;
            } else {
                error = share_cuda_fail(driver, result, "cuInit");
                driver_close(driver);
            }
        }
    }
    pthread_mutex_unlock(&mutex);
    if (i == ARRAY_SIZE(opened))
        error = share_fail(-EPROTO, "no driver called \"%s\"", name);
    if (error == 0)
        *out = opened[i];
    return error;
}

errint_t share_find_device(const struct driver *driver, const uint8_t uuid[16], CUdevice *device)
{
    int count = 0;
    CUresult result = driver->cuDeviceGetCount(&count);

    if (result != CUDA_SUCCESS)
        return share_cuda_fail(driver, result, "cuDeviceGetCount");
    for (int i = 0; i < count; i++) {
        CUuuid other;
        if (driver->cuDeviceGet(device, i) == CUDA_SUCCESS &&
            driver->cuDeviceGetUuid(&other, *device) == CUDA_SUCCESS &&
            memcmp(other.bytes, uuid, sizeof(other.bytes)) == 0)
            return 0;
    }
    return share_fail(-ENODEV,
                      "the file's device is not among the %d that this process sees: check "
                      "CUDA_VISIBLE_DEVICES, and which devices the container has",
                      count);
}

errint_t share_context_enter(struct share_context *context)
{
    const struct driver *driver = context->driver;
    CUdevice current;

    context->switched = false;
    CUresult result = driver->cuCtxGetCurrent(&context->previous);
    if (result != CUDA_SUCCESS)
        return share_cuda_fail(driver, result, "cuCtxGetCurrent");
    if (context->previous && driver->cuCtxGetDevice(&current) == CUDA_SUCCESS &&
        current == context->device)
        return 0;
    if (!context->primary) {
        result = driver->cuDevicePrimaryCtxRetain(&context->primary, context->device);
        if (result != CUDA_SUCCESS) {
            context->primary = NULL;
            return share_cuda_fail(driver, result, "cuDevicePrimaryCtxRetain");
        }
    }
    result = driver->cuCtxSetCurrent(context->primary);
    if (result != CUDA_SUCCESS)
        return share_cuda_fail(driver, result, "cuCtxSetCurrent");
    context->switched = true;
    return 0;
}

void share_context_leave(struct share_context *context)
{
    if (context->switched)
        context->driver->cuCtxSetCurrent(context->previous);
    context->switched = false;
}

void share_context_release(struct share_context *context)
{
    if (context->primary)
        context->driver->cuDevicePrimaryCtxRelease(context->device);
    context->primary = NULL;
}
