/* What CUDA offers for memory that is shared, in the emulated driver. */
#include "tests/unit/emulated_fixture.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
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

/* What the handle holds, and what is asked for: as core/driver/emulated has it. */
struct ipc {
    char magic[8];
    pid_t maker;
    int fd;
    uint64_t bytes, inode;
};

/* Whether anybody may have that descriptor of ours. */
static bool is_handed_out(int fd, uint64_t inode)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct {
        int fd;
        uint64_t inode;
    } question;
    char byte;
    int length = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1,
                          "residentfs-emulated-ipc-%d", (int)getpid());
    int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    memset(&question, 0, sizeof(question));
    question.fd = fd;
    question.inode = inode;
    assert_int_equal(
        connect(connection, (struct sockaddr *)&address,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)),
        0);
    assert_int_equal(send(connection, &question, sizeof(question), 0), sizeof(question));
    bool answered = recv(connection, &byte, 1, 0) == 1;
    close(connection);
    return answered;
}

static void test_only_memory_is_handed_out(void **unused)
{
    CUdeviceptr shown = device_create(4096);
    CUipcMemHandle handle;
    struct ipc ipc;
    struct stat status;
    int file = open("/dev/null", O_RDWR | O_CLOEXEC);
    (void)unused;

    assert_cuda(drv->cuIpcGetMemHandle(&handle, shown));
    memcpy(&ipc, &handle, sizeof(ipc));
    assert_int_equal(fstat(file, &status), 0);
    assert_true(is_handed_out(ipc.fd, ipc.inode));
    assert_false(is_handed_out(file, status.st_ino));
    assert_false(is_handed_out(ipc.fd, ipc.inode + 1));
    assert_false(is_handed_out(-1, ipc.inode));
    close(file);
    assert_cuda(drv->cuMemFree(shown));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_address_range, start, finish),
        cmocka_unit_test_setup_teardown(test_retain, start, finish),
        cmocka_unit_test_setup_teardown(test_context_device, start, finish),
        cmocka_unit_test_setup_teardown(test_only_memory_is_handed_out, start, finish),
    };
    if (open_devices(2))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
