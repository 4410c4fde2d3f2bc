/* What CUDA offers for memory that is shared, in the emulated driver. */
#include "tests/unit/emulated_fixture.h"

#include <unistd.h>

static void test_address_range(void **unused)
{
    CUdeviceptr allocation = device_create(1000003), reserved = reserve(3 * CHUNK_BYTES), start;
    CUmemGenericAllocationHandle chunk = chunk_create(CHUNK_BYTES);
    size_t bytes;
    (void)unused;

    for (size_t offset = 0; offset < 1000003; offset += 333334) {
        start = 0, bytes = 0;
        assert_cuda(drv->cuMemGetAddressRange(&start, &bytes, allocation + offset));
        assert_int_equal(start, allocation);
        assert_int_equal(bytes, 1000003);
    }
    assert_cuda(drv->cuMemGetAddressRange(NULL, &bytes, allocation));
    assert_cuda(drv->cuMemGetAddressRange(&start, NULL, allocation));
    /* What is mapped there, not all of the reservation: so on an H200. */
    assert_cuda(drv->cuMemMap(reserved + CHUNK_BYTES, CHUNK_BYTES, 0, chunk, 0));
    assert_cuda(drv->cuMemGetAddressRange(&start, &bytes, reserved + 2 * CHUNK_BYTES - 1));
    assert_int_equal(start, reserved + CHUNK_BYTES);
    assert_int_equal(bytes, CHUNK_BYTES);
    assert_cuda_fails(drv->cuMemGetAddressRange(&start, &bytes, reserved + 2 * CHUNK_BYTES),
                      CUDA_ERROR_INVALID_VALUE);
    assert_cuda(drv->cuMemUnmap(reserved + CHUNK_BYTES, CHUNK_BYTES));
    assert_cuda(drv->cuMemRelease(chunk));
    assert_cuda(drv->cuMemFree(allocation));
    assert_cuda(drv->cuMemAddressFree(reserved, 3 * CHUNK_BYTES));
    assert_cuda_fails(drv->cuMemGetAddressRange(&start, &bytes, allocation),
                      CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(drv->cuMemGetAddressRange(&start, &bytes, 0), CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(drv->cuMemGetAddressRange(&start, &bytes, (CUdeviceptr)(uintptr_t)&start),
                      CUDA_ERROR_INVALID_VALUE);
}

static CUresult retain(CUdeviceptr address, CUmemGenericAllocationHandle *handle)
{
    return drv->cuMemRetainAllocationHandle(handle, (void *)(uintptr_t)address);
}

static void test_retain(void **unused)
{
    CUmemGenericAllocationHandle one = chunk_create(CHUNK_BYTES), two = chunk_create(CHUNK_BYTES);
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr base = reserve(3 * CHUNK_BYTES), plain = device_create(4096);
    (void)unused;

    assert_cuda(drv->cuMemMap(base, CHUNK_BYTES, 0, one, 0));
    assert_cuda(drv->cuMemMap(base + CHUNK_BYTES, CHUNK_BYTES, 0, two, 0));
    assert_cuda(retain(base, &handle));
    assert_true(handle == one);
    assert_cuda(retain(base + CHUNK_BYTES - 1, &handle));
    assert_true(handle == one);
    assert_cuda(retain(base + CHUNK_BYTES, &handle));
    assert_true(handle == two);
    assert_cuda_fails(retain(base + 2 * CHUNK_BYTES, &handle), CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(retain(plain, &handle), CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(retain(0, &handle), CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(retain(base, NULL), CUDA_ERROR_INVALID_VALUE);
    /* Each needs its release: once created, twice retained. */
    assert_int_equal(stats().handles, 5);
    assert_cuda(drv->cuMemRelease(one));
    assert_cuda(drv->cuMemRelease(one));
    assert_int_equal(stats().handles, 3);
    assert_cuda(drv->cuMemRelease(one));
    assert_int_equal(stats().handles, 2);
    assert_cuda_fails(drv->cuMemRelease(one), CUDA_ERROR_INVALID_VALUE);
    /* The mapping alone keeps the memory, and a handle can be had of it again. */
    assert_cuda(retain(base, &handle));
    assert_int_equal(stats().handles, 3);
    int descriptor = -1;
    assert_cuda(drv->cuMemExportToShareableHandle(&descriptor, handle,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    close(descriptor);
    assert_cuda(drv->cuMemRelease(handle));
    assert_cuda(drv->cuMemUnmap(base, CHUNK_BYTES));
    assert_cuda_fails(retain(base, &handle), CUDA_ERROR_INVALID_VALUE);
    assert_cuda(drv->cuMemUnmap(base + CHUNK_BYTES, CHUNK_BYTES));
    assert_cuda(drv->cuMemRelease(two));
    assert_cuda(drv->cuMemRelease(two));
    assert_cuda(drv->cuMemAddressFree(base, 3 * CHUNK_BYTES));
    assert_cuda(drv->cuMemFree(plain));
}

static void test_context_device(void **unused)
{
    CUcontext second;
    CUdevice device = -1;
    (void)unused;

    assert_cuda(drv->cuCtxGetDevice(&device));
    assert_int_equal(device, 0);
    assert_cuda(drv->cuDevicePrimaryCtxRetain(&second, 1));
    assert_cuda(drv->cuCtxSetCurrent(second));
    assert_cuda(drv->cuCtxGetDevice(&device));
    assert_int_equal(device, 1);
    assert_cuda_fails(drv->cuCtxGetDevice(NULL), CUDA_ERROR_INVALID_VALUE);
    assert_cuda(drv->cuCtxSetCurrent(NULL));
    assert_cuda_fails(drv->cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
    assert_cuda(drv->cuDevicePrimaryCtxRelease(1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_address_range, start, finish),
        cmocka_unit_test_setup_teardown(test_retain, start, finish),
        cmocka_unit_test_setup_teardown(test_context_device, start, finish),
    };
    if (open_devices(2))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
