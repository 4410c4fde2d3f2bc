#include <errno.h>

#include "core/device_internal.h"
#include "core/log.h"

static CUmemAllocationProp chunk_properties(const struct device *device)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes =
            device->exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->cuda_device},
    };
}

static errint_t chunk_map(struct device *device, struct chunk *chunk)
{
    const struct driver *driver = device->driver;
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->cuda_device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUresult result;

    result = driver->cuMemAddressReserve(&chunk->address, chunk->length, 0, 0, 0);
    if (result != CUDA_SUCCESS)
        return device_failure(device, result, "cuMemAddressReserve", "device addresses");
    result = driver->cuMemMap(chunk->address, chunk->length, 0, chunk->handle, 0);
    if (result != CUDA_SUCCESS) {
        driver->cuMemAddressFree(chunk->address, chunk->length);
        return device_failure(device, result, "cuMemMap", "a chunk");
    }
    result = driver->cuMemSetAccess(chunk->address, chunk->length, &access, 1);
    if (result != CUDA_SUCCESS) {
        driver->cuMemUnmap(chunk->address, chunk->length);
        driver->cuMemAddressFree(chunk->address, chunk->length);
        return device_failure(device, result, "cuMemSetAccess", "a chunk");
    }
    return 0;
}

errint_t chunk_create(struct device *device, uint64_t length, struct chunk *chunk)
{
    const struct driver *driver = device->driver;
    CUmemAllocationProp properties = chunk_properties(device);
    errint_t err;

    if (device_is_lost(device))
        return -EIO;
    if (budget_reserve(&device->budget, length, device_free_bytes(device)) < 0) {
        telemetry_add(&device->telemetry, TELEMETRY_ERRORS_BUDGET, 1);
        return -ENOSPC;
    }
    *chunk = (struct chunk){.length = length};
    CUresult result = driver->cuMemCreate(&chunk->handle, length, &properties, 0);
    if (result != CUDA_SUCCESS) {
        telemetry_add(&device->telemetry, TELEMETRY_ERRORS_ALLOCATION, 1);
        err = device_failure(device, result, "cuMemCreate", "device memory");
        goto release_budget;
    }
    err = chunk_map(device, chunk);
    if (err < 0)
        goto release_handle;
    telemetry_add(&device->telemetry, TELEMETRY_ALLOCATED_BYTES, length);
    return 0;

release_handle:
    driver->cuMemRelease(chunk->handle);
release_budget:
    budget_release(&device->budget, length);
    return err;
}

/* What could not be given back stays in the budget, unless the device is lost: then it is gone. */
static void chunk_stuck(struct device *device, struct chunk *chunk, CUresult result,
                        const char *call)
{
    device_failure(device, result, call, "a chunk");
    if (device_is_lost(device))
        budget_release(&device->budget, chunk->length);
    else
        chunk_quarantine(device, chunk);
}

/* False: a memset may still be running on it. */
static bool chunk_scrub(struct device *device, const struct chunk *chunk)
{
    const struct driver *driver = device->driver;
    CUstream stream;

    if (stream_lease(device, &stream) < 0)
        return true; /* and has been reported; freeing comes first */
    CUresult result = driver->cuMemsetD8Async(chunk->address, 0, chunk->length, stream);
    if (result != CUDA_SUCCESS)
        device_failure(device, result, "cuMemsetD8Async", "scrubbing a chunk");
    result = driver->cuStreamSynchronize(stream);
    if (result == CUDA_SUCCESS) {
        stream_return(device, stream);
        return true;
    }
    device_failure(device, result, "cuStreamSynchronize", "scrubbing a chunk");
    stream_quarantine(device, stream);
    return false;
}

void chunk_destroy(struct device *device, struct chunk *chunk)
{
    const struct driver *driver = device->driver;
    CUresult result;

    if (device->options.scrub && !chunk->exported && !device_is_lost(device) &&
        !chunk_scrub(device, chunk) && !device_is_lost(device)) {
        chunk_quarantine(device, chunk);
        return;
    }
    if (device_is_lost(device)) {
        /* The context is gone and so is the memory: nothing that could be given back. */
        budget_release(&device->budget, chunk->length);
        return;
    }
    result = driver->cuMemUnmap(chunk->address, chunk->length);
    if (result != CUDA_SUCCESS) {
        chunk_stuck(device, chunk, result, "cuMemUnmap");
        return;
    }
    result = driver->cuMemAddressFree(chunk->address, chunk->length);
    if (result != CUDA_SUCCESS)
        device_failure(device, result, "cuMemAddressFree", "device addresses");
    result = driver->cuMemRelease(chunk->handle);
    if (result != CUDA_SUCCESS) {
        chunk_stuck(device, chunk, result, "cuMemRelease");
        return;
    }
    budget_release(&device->budget, chunk->length);
}

void chunk_quarantine(struct device *device, struct chunk *chunk)
{
    telemetry_add(&device->telemetry, TELEMETRY_QUARANTINED_BYTES, chunk->length);
    log_error("%s: %llu bytes of device memory are quarantined: a copy may still write to them; "
              "remount to get them back",
              device->identity.uuid, (unsigned long long)chunk->length);
}
