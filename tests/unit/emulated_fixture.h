/*
 * An emulated device for tests: the driver opened, initialised, and its hooks. Settings go through
 * configure(); finish() fails the test if anything is leaked.
 */
#ifndef RESIDENTFS_TESTS_EMULATED_FIXTURE_H
#define RESIDENTFS_TESTS_EMULATED_FIXTURE_H

/* cmocka.h needs these four before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/driver/driver.h"
#include "core/driver/emulated/hooks.h"
#include "tests/unit/under_tsan.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define CHUNK_BYTES (2 * MIB)

static struct driver *drv;
static CUcontext context_of_device_0;

#define assert_cuda(call)                                               \
    do {                                                                \
        CUresult result_ = (call);                                      \
        if (result_)                                                    \
            fail_msg("%s: %s", #call, driver_error_name(drv, result_)); \
    } while (0)

#define assert_cuda_fails(call, expected) \
    assert_string_equal(driver_error_name(drv, call), driver_error_name(drv, expected))

static inline void *hook(const char *name)
{
    void *found = dlsym(drv->library, name);
    assert_non_null(found);
    return found;
}

static inline int try_configure(const char *text)
{
    int (*function)(const char *);
    void *found = hook("residentfs_emulated_configure");
    memcpy(&function, &found, sizeof(function));
    return function(text);
}

static inline void configure(const char *text)
{
    assert_int_equal(try_configure(text), 0);
}

static inline uint64_t call_count(const char *entry)
{
    uint64_t (*function)(const char *);
    void *found = hook("residentfs_emulated_call_count");
    memcpy(&function, &found, sizeof(function));
    return function(entry);
}

static inline struct residentfs_emulated_stats stats(void)
{
    void (*function)(struct residentfs_emulated_stats *);
    struct residentfs_emulated_stats now;
    void *found = hook("residentfs_emulated_stats");
    memcpy(&function, &found, sizeof(function));
    function(&now);
    return now;
}

/* The settings that each test starts from. */
#define DEFAULTS                                                                          \
    "fault=none;order=random;scribble=on;hazard=abort;fill=on;batch=on;vmm=on;export=on;" \
    "memory=4GiB;bandwidth=0;latency=0;other=0;other_file=;pinned=1TiB"

/* Once a program: opens the driver with DEVICES devices. */
static inline int open_devices(unsigned devices)
{
    char message[512], text[64];
    if (driver_open("emulated", &drv, message, sizeof(message))) {
        fprintf(stderr, "%s\n", message);
        return -1;
    }
    snprintf(text, sizeof(text), "devices=%u", devices);
    if (try_configure(text) || drv->cuInit(0) ||
        drv->cuDevicePrimaryCtxRetain(&context_of_device_0, 0) ||
        drv->cuCtxSetCurrent(context_of_device_0))
        return -1;
    return 0;
}

static inline int start(void **state)
{
    (void)state;
    configure(DEFAULTS);
    return drv->cuCtxSetCurrent(context_of_device_0) ? -1 : 0;
}

static inline int finish(void **state)
{
    (void)state;
    configure(DEFAULTS);
    drv->cuCtxSetCurrent(context_of_device_0);
    if (drv->cuCtxSynchronize())
        fail_msg("the device does not synchronise after the test");
    struct residentfs_emulated_stats now = stats();
    if (now.streams || now.events || now.handles || now.physical_bytes || now.reservations ||
        now.allocations || now.host_ranges)
        fail_msg("left over: %llu streams, %llu events, %llu handles, %llu bytes, "
                 "%llu reservations, %llu allocations, %llu host ranges",
                 (unsigned long long)now.streams, (unsigned long long)now.events,
                 (unsigned long long)now.handles, (unsigned long long)now.physical_bytes,
                 (unsigned long long)now.reservations, (unsigned long long)now.allocations,
                 (unsigned long long)now.host_ranges);
    return 0;
}

static inline CUmemAllocationProp chunk_properties(int device)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
    };
}

static inline CUmemGenericAllocationHandle chunk_create(size_t bytes)
{
    CUmemAllocationProp properties = chunk_properties(0);
    CUmemGenericAllocationHandle handle;
    assert_cuda(drv->cuMemCreate(&handle, bytes, &properties, 0));
    return handle;
}

static inline CUdeviceptr reserve(size_t bytes)
{
    CUdeviceptr address;
    assert_cuda(drv->cuMemAddressReserve(&address, bytes, 0, 0, 0));
    return address;
}

static inline void allow(CUdeviceptr address, size_t bytes, CUmemAccess_flags flags)
{
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, flags};
    assert_cuda(drv->cuMemSetAccess(address, bytes, &access, 1));
}

static inline CUstream stream_create(void)
{
    CUstream stream;
    assert_cuda(drv->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static inline CUevent event_create(void)
{
    CUevent event;
    assert_cuda(drv->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

static inline unsigned char *host_create(size_t bytes)
{
    void *memory;
    assert_cuda(drv->cuMemHostAlloc(&memory, bytes, 0));
    return memory;
}

static inline CUdeviceptr device_create(size_t bytes)
{
    CUdeviceptr address;
    assert_cuda(drv->cuMemAlloc(&address, bytes));
    return address;
}

/* Reads device memory through pageable memory: complete when it returns. */
static inline void device_read(void *to, CUdeviceptr from, size_t bytes)
{
    CUstream stream = stream_create();
    assert_cuda(drv->cuMemcpyDtoHAsync(to, from, bytes, stream));
    assert_cuda(drv->cuStreamSynchronize(stream));
    assert_cuda(drv->cuStreamDestroy(stream));
}

static inline void device_set(CUdeviceptr to, unsigned char value, size_t bytes)
{
    CUstream stream = stream_create();
    assert_cuda(drv->cuMemsetD8Async(to, value, bytes, stream));
    assert_cuda(drv->cuStreamSynchronize(stream));
    assert_cuda(drv->cuStreamDestroy(stream));
}

#endif
