/*
 * The emulated driver's devices and memory: what is refused, what is accounted, what crosses
 * processes, and that memory cannot be taken away under queued DMA. Timeout: 300 s.
 */
#include "emulated_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>

extern char **environ;

static void devices_have_names_and_identities(void **state)
{
    (void)state;
    char name[64], id[32];
    int count, value;
    CUuuid first, second;
    CUdevice found;
    assert_cuda(drv->cuDeviceGetCount(&count));
    assert_int_equal(count, 2);
    assert_cuda(drv->cuDeviceGetName(name, sizeof(name), 1));
    assert_string_equal(name, "Emulated GPU 1");
    assert_cuda(drv->cuDeviceGetUuid(&first, 0));
    assert_cuda(drv->cuDeviceGetUuid(&second, 1));
    assert_memory_not_equal(&first, &second, sizeof(first));
    assert_cuda(drv->cuDeviceGetPCIBusId(id, sizeof(id), 1));
    assert_string_equal(id, "0000:e1:00.0");
    assert_cuda(drv->cuDeviceGetByPCIBusId(&found, "0000:E1:00.0"));
    assert_int_equal(found, 1);
    assert_cuda(drv->cuDeviceGetByPCIBusId(&found, "e0:00.0"));
    assert_int_equal(found, 0);
    assert_cuda_fails(drv->cuDeviceGetByPCIBusId(&found, "0000:e2:00.0"), CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(drv->cuDeviceGetByPCIBusId(&found, "e0:00.0x"), CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(drv->cuDeviceGet(&found, 2), CUDA_ERROR_INVALID_DEVICE);
    assert_cuda(drv->cuDeviceGetAttribute(
        &value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    assert_int_equal(value, 1);
}

static void calls_without_a_context_fail(void **state)
{
    (void)state;
    CUstream stream;
    CUdeviceptr address;
    void *memory;
    size_t free_bytes, total_bytes;
    assert_cuda(drv->cuCtxSetCurrent(NULL));
    assert_cuda_fails(drv->cuStreamCreate(&stream, 0), CUDA_ERROR_INVALID_CONTEXT);
    assert_cuda_fails(drv->cuMemAlloc(&address, 4096), CUDA_ERROR_INVALID_CONTEXT);
    assert_cuda_fails(drv->cuMemHostAlloc(&memory, 4096, 0), CUDA_ERROR_INVALID_CONTEXT);
    assert_cuda_fails(drv->cuMemGetInfo(&free_bytes, &total_bytes), CUDA_ERROR_INVALID_CONTEXT);
    assert_cuda_fails(drv->cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
}

static void memory_is_accounted_and_runs_out(void **state)
{
    (void)state;
    configure("memory=16MiB");
    size_t free_bytes, total_bytes;
    CUmemAllocationProp properties = chunk_properties(0);
    CUmemGenericAllocationHandle second, first = chunk_create(10 * MIB);
    assert_cuda(drv->cuMemGetInfo(&free_bytes, &total_bytes));
    assert_int_equal(total_bytes, 16 * MIB);
    assert_int_equal(free_bytes, 6 * MIB);
    assert_cuda_fails(drv->cuMemCreate(&second, 8 * MIB, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
    configure("other=2MiB");
    assert_cuda(drv->cuMemGetInfo(&free_bytes, &total_bytes));
    assert_int_equal(free_bytes, 4 * MIB);
    assert_cuda_fails(drv->cuMemCreate(&second, 6 * MIB, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
    assert_cuda(drv->cuMemCreate(&second, 4 * MIB, &properties, 0));
    assert_cuda(drv->cuMemRelease(first));
    assert_cuda(drv->cuMemRelease(second));
    assert_cuda(drv->cuMemGetInfo(&free_bytes, &total_bytes));
    assert_int_equal(free_bytes, 14 * MIB);
}

static void another_process_can_take_memory_while_we_run(void **state)
{
    (void)state;
    char path[] = "/tmp/emulated-other-XXXXXX", text[128];
    size_t free_bytes, total_bytes;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    snprintf(text, sizeof(text), "memory=16MiB;other_file=%s", path);
    assert_int_equal(pwrite(fd, "1048576\n", 8, 0), 8);
    configure(text);
    assert_cuda(drv->cuMemGetInfo(&free_bytes, &total_bytes));
    assert_int_equal(free_bytes, 15 * MIB);
    assert_int_equal(pwrite(fd, "9048576\n", 8, 0), 8);
    assert_cuda(drv->cuMemGetInfo(&free_bytes, &total_bytes));
    assert_int_equal(free_bytes, 16 * MIB - 9048576);
    close(fd);
    unlink(path);
}

static void page_locked_memory_can_be_short(void **state)
{
    (void)state;
    void *memory, *more;
    static char registered[8192];
    configure("pinned=1MiB");
    assert_cuda(drv->cuMemHostAlloc(&memory, MIB - 4096, 0));
    assert_cuda_fails(drv->cuMemHostAlloc(&more, 8192, 0), CUDA_ERROR_OUT_OF_MEMORY);
    assert_cuda_fails(drv->cuMemHostRegister(registered, 8192, 0), CUDA_ERROR_OUT_OF_MEMORY);
    assert_cuda(drv->cuMemHostRegister(registered, 4096, 0));
    assert_cuda(drv->cuMemHostUnregister(registered));
    assert_cuda(drv->cuMemFreeHost(memory));
}

static void fresh_memory_has_no_zero_byte(void **state)
{
    (void)state;
    cleanup_free unsigned char *seen = malloc(4 * MIB);
    CUdeviceptr address = reserve(4 * MIB), small = device_create(5000);
    CUmemGenericAllocationHandle chunk = chunk_create(4 * MIB);
    assert_cuda(drv->cuMemMap(address, 4 * MIB, 0, chunk, 0));
    allow(address, 4 * MIB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    device_read(seen, address, 4 * MIB);
    assert_null(memchr(seen, 0, 4 * MIB));
    assert_int_not_equal(seen[0], seen[4096]);
    device_read(seen, small, 5000);
    assert_null(memchr(seen, 0, 5000));
    assert_cuda(drv->cuMemFree(small));
    assert_cuda(drv->cuMemUnmap(address, 4 * MIB));
    assert_cuda(drv->cuMemAddressFree(address, 4 * MIB));
    assert_cuda(drv->cuMemRelease(chunk));
}

static void chunks_have_granularity_and_properties(void **state)
{
    (void)state;
    CUmemAllocationProp properties = chunk_properties(0), read;
    CUmemGenericAllocationHandle handle;
    size_t granularity;
    assert_cuda(drv->cuMemGetAllocationGranularity(&granularity, &properties,
                                                   CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    assert_int_equal(granularity, CHUNK_BYTES);
    assert_cuda_fails(drv->cuMemCreate(&handle, MIB, &properties, 0), CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(drv->cuMemCreate(&handle, 0, &properties, 0), CUDA_ERROR_INVALID_VALUE);
    properties.location.id = 2;
    assert_cuda_fails(drv->cuMemCreate(&handle, CHUNK_BYTES, &properties, 0),
                      CUDA_ERROR_INVALID_DEVICE);
    properties.location.id = 1;
    assert_cuda(drv->cuMemCreate(&handle, CHUNK_BYTES, &properties, 0));
    assert_cuda(drv->cuMemGetAllocationPropertiesFromHandle(&read, handle));
    assert_int_equal(read.location.id, 1);
    assert_cuda(drv->cuMemRelease(handle));
    assert_cuda_fails(drv->cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
}

static void vmm_can_be_absent_or_refused(void **state)
{
    (void)state;
    CUmemAllocationProp properties = chunk_properties(0);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    int value;
    configure("vmm=off");
    assert_cuda_fails(drv->cuMemCreate(&handle, CHUNK_BYTES, &properties, 0),
                      CUDA_ERROR_NOT_SUPPORTED);
    assert_cuda_fails(drv->cuMemAddressReserve(&address, CHUNK_BYTES, 0, 0, 0),
                      CUDA_ERROR_NOT_SUPPORTED);
    configure("vmm=refuse");
    assert_cuda(drv->cuDeviceGetAttribute(
        &value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    assert_int_equal(value, 1);
    assert_cuda_fails(drv->cuMemCreate(&handle, CHUNK_BYTES, &properties, 0),
                      CUDA_ERROR_NOT_SUPPORTED);
    configure("vmm=on;export=off");
    assert_cuda_fails(drv->cuMemCreate(&handle, CHUNK_BYTES, &properties, 0),
                      CUDA_ERROR_NOT_SUPPORTED);
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    assert_cuda(drv->cuMemCreate(&handle, CHUNK_BYTES, &properties, 0));
    int fd;
    assert_cuda_fails(
        drv->cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        CUDA_ERROR_INVALID_VALUE);
    assert_cuda(drv->cuMemRelease(handle));
}

static void mapping_refuses_what_cuda_refuses(void **state)
{
    (void)state;
    CUmemGenericAllocationHandle first = chunk_create(CHUNK_BYTES);
    CUmemGenericAllocationHandle second = chunk_create(2 * CHUNK_BYTES);
    CUdeviceptr address = reserve(8 * CHUNK_BYTES);
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr refused;
    assert_cuda_fails(drv->cuMemAddressReserve(&refused, MIB, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    assert_cuda(drv->cuMemMap(address, CHUNK_BYTES, 0, first, 0));
    assert_cuda(drv->cuMemMap(address + CHUNK_BYTES, 2 * CHUNK_BYTES, 0, second, 0));
    /* overlapping, misaligned, with an offset, too long, past the reservation, not reserved */
    assert_cuda_fails(drv->cuMemMap(address, CHUNK_BYTES, 0, first, 0), CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(drv->cuMemMap(address + 2 * CHUNK_BYTES, CHUNK_BYTES, 0, first, 0),
                      CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(drv->cuMemMap(address + 4 * CHUNK_BYTES + MIB, CHUNK_BYTES, 0, first, 0),
                      CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(drv->cuMemMap(address + 4 * CHUNK_BYTES, CHUNK_BYTES, CHUNK_BYTES, second, 0),
                      CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(drv->cuMemMap(address + 4 * CHUNK_BYTES, 2 * CHUNK_BYTES, 0, first, 0),
                      CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(drv->cuMemMap(address + 7 * CHUNK_BYTES, 2 * CHUNK_BYTES, 0, second, 0),
                      CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(drv->cuMemMap(address + 8 * CHUNK_BYTES, CHUNK_BYTES, 0, first, 0),
                      CUDA_ERROR_INVALID_VALUE);
    /* access over a gap, or over part of a mapping */
    assert_cuda_fails(drv->cuMemSetAccess(address, 4 * CHUNK_BYTES, &access, 1),
                      CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(drv->cuMemSetAccess(address, 2 * CHUNK_BYTES, &access, 1),
                      CUDA_ERROR_INVALID_VALUE);
    assert_cuda(drv->cuMemSetAccess(address, 3 * CHUNK_BYTES, &access, 1));
    /* part of a mapping, a gap; then all, across mappings */
    assert_cuda_fails(drv->cuMemUnmap(address, 2 * CHUNK_BYTES), CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(drv->cuMemUnmap(address, 4 * CHUNK_BYTES), CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(drv->cuMemAddressFree(address, 8 * CHUNK_BYTES), CUDA_ERROR_INVALID_VALUE);
    assert_cuda(drv->cuMemUnmap(address, 3 * CHUNK_BYTES));
    assert_cuda_fails(drv->cuMemUnmap(address, CHUNK_BYTES), CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(drv->cuMemAddressFree(address, 4 * CHUNK_BYTES), CUDA_ERROR_INVALID_VALUE);
    assert_cuda(drv->cuMemAddressFree(address, 8 * CHUNK_BYTES));
    assert_cuda(drv->cuMemRelease(first));
    assert_cuda(drv->cuMemRelease(second));
}

static void copies_need_mapped_memory_with_access(void **state)
{
    (void)state;
    CUstream stream = stream_create();
    CUdeviceptr address = reserve(4 * CHUNK_BYTES);
    CUmemGenericAllocationHandle chunk = chunk_create(CHUNK_BYTES), other;
    CUmemAllocationProp properties = chunk_properties(0);
    unsigned char *host = host_create(8192);
    assert_cuda_fails(drv->cuMemsetD8Async(address, 1, 1, stream), CUDA_ERROR_INVALID_VALUE);
    assert_cuda(drv->cuMemMap(address, CHUNK_BYTES, 0, chunk, 0));
    assert_cuda_fails(drv->cuMemsetD8Async(address, 1, 1, stream), CUDA_ERROR_INVALID_VALUE);
    allow(address, CHUNK_BYTES, CU_MEM_ACCESS_FLAGS_PROT_READ);
    assert_cuda_fails(drv->cuMemsetD8Async(address, 1, 1, stream), CUDA_ERROR_INVALID_VALUE);
    assert_cuda(drv->cuMemcpyDtoHAsync(host, address, 4096, stream));
    allow(address, CHUNK_BYTES, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    assert_cuda(drv->cuMemsetD8Async(address, 1, CHUNK_BYTES, stream));
    assert_cuda_fails(drv->cuMemsetD8Async(address, 1, CHUNK_BYTES + 1, stream),
                      CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(drv->cuMemcpyHtoDAsync(address + CHUNK_BYTES - 1, host, 2, stream),
                      CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(drv->cuMemcpyHtoDAsync(address, host, 0, stream), CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(drv->cuMemcpyHtoDAsync(address, host, 8193, stream),
                      CUDA_ERROR_INVALID_VALUE);
    assert_cuda_fails(drv->cuMemsetD32Async(address + 2, 1, 1, stream), CUDA_ERROR_INVALID_VALUE);
    /* across two chunks that touch */
    assert_cuda(drv->cuMemCreate(&other, CHUNK_BYTES, &properties, 0));
    assert_cuda(drv->cuMemMap(address + CHUNK_BYTES, CHUNK_BYTES, 0, other, 0));
    allow(address + CHUNK_BYTES, CHUNK_BYTES, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    assert_cuda(drv->cuMemsetD32Async(address + CHUNK_BYTES - 4, 0x01020304, 2, stream));
    assert_cuda(drv->cuMemcpyDtoHAsync(host, address + CHUNK_BYTES - 6, 12, stream));
    assert_cuda(drv->cuStreamSynchronize(stream));
    static const unsigned char expected[] = {1, 1, 4, 3, 2, 1, 4, 3, 2, 1};
    assert_memory_equal(host, expected, sizeof(expected));
    assert_cuda(drv->cuMemUnmap(address, 2 * CHUNK_BYTES));
    assert_cuda(drv->cuMemAddressFree(address, 4 * CHUNK_BYTES));
    assert_cuda(drv->cuMemRelease(chunk));
    assert_cuda(drv->cuMemRelease(other));
    assert_cuda(drv->cuMemFreeHost(host));
    assert_cuda(drv->cuStreamDestroy(stream));
}

static void memory_lives_while_it_is_mapped(void **state)
{
    (void)state;
    unsigned char byte;
    CUdeviceptr first = reserve(CHUNK_BYTES), second = reserve(2 * CHUNK_BYTES);
    CUmemGenericAllocationHandle chunk = chunk_create(CHUNK_BYTES);
    assert_cuda(drv->cuMemMap(first, CHUNK_BYTES, 0, chunk, 0));
    allow(first, CHUNK_BYTES, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    device_set(first, 0x42, CHUNK_BYTES);
    /* moved, as a buffer does that outgrows its reservation */
    assert_cuda(drv->cuMemMap(second, CHUNK_BYTES, 0, chunk, 0));
    allow(second, CHUNK_BYTES, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    assert_cuda(drv->cuMemUnmap(first, CHUNK_BYTES));
    assert_cuda(drv->cuMemAddressFree(first, CHUNK_BYTES));
    assert_cuda(drv->cuMemRelease(chunk));
    assert_int_equal(stats().physical_bytes, CHUNK_BYTES);
    device_read(&byte, second + CHUNK_BYTES - 1, 1);
    assert_int_equal(byte, 0x42);
    assert_cuda(drv->cuMemUnmap(second, CHUNK_BYTES));
    assert_int_equal(stats().physical_bytes, 0);
    assert_cuda(drv->cuMemAddressFree(second, 2 * CHUNK_BYTES));
}

static void addresses_are_not_used_again_at_once(void **state)
{
    (void)state;
    CUdeviceptr first = device_create(4096);
    assert_cuda(drv->cuMemFree(first));
    CUdeviceptr second = device_create(4096);
    assert_true(first != second);
    assert_cuda_fails(drv->cuMemFree(first), CUDA_ERROR_INVALID_VALUE);
    assert_cuda(drv->cuMemFree(second));
}

static void pointers_can_be_asked_about(void **state)
{
    (void)state;
    CUdeviceptr allocation = device_create(10000), start;
    size_t bytes;
    unsigned type;
    int value;
    assert_cuda(drv->cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                           allocation + 5000));
    assert_true(start == allocation);
    assert_cuda(
        drv->cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, allocation + 5000));
    assert_int_equal(bytes, 10000);
    assert_cuda(drv->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, allocation));
    assert_int_equal(type, CU_MEMORYTYPE_DEVICE);
    assert_cuda(
        drv->cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, allocation));
    assert_int_equal(value, 0);
    assert_cuda_fails(
        drv->cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, allocation + 10000),
        CUDA_ERROR_INVALID_VALUE);
    assert_cuda(drv->cuMemFree(allocation));
}

static void registration_refuses_what_cuda_refuses(void **state)
{
    (void)state;
    char *memory = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    assert_cuda(drv->cuMemHostRegister(memory, 8192, 0));
    assert_cuda_fails(drv->cuMemHostRegister(memory + 4096, 8192, 0),
                      CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    assert_cuda_fails(drv->cuMemHostUnregister(memory + 4096),
                      CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    assert_cuda_fails(drv->cuMemFreeHost(memory), CUDA_ERROR_INVALID_VALUE);
    assert_cuda(drv->cuMemHostUnregister(memory));
    assert_cuda_fails(drv->cuMemHostUnregister(memory), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    munmap(memory, 16384);
    assert_cuda_fails(drv->cuMemHostRegister(memory, 8192, 0), CUDA_ERROR_INVALID_VALUE);
}

static void after_a_fork_nothing_works(void **state)
{
    (void)state;
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        int count;
        bool refused = drv->cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED &&
                       drv->cuInit(0) == CUDA_ERROR_NOT_INITIALIZED &&
                       drv->cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED;
        _exit(refused ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void peers_copy_between_devices(void **state)
{
    (void)state;
    CUcontext other;
    unsigned char seen[100];
    CUdeviceptr here = device_create(4096), there;
    device_set(here, 0x77, 4096);
    assert_cuda(drv->cuDevicePrimaryCtxRetain(&other, 1));
    assert_cuda(drv->cuCtxSetCurrent(other));
    there = device_create(4096);
    assert_cuda(drv->cuCtxSetCurrent(context_of_device_0));
    CUstream stream = stream_create();
    assert_cuda(drv->cuMemcpyPeerAsync(there, other, here, context_of_device_0, 4096, stream));
    assert_cuda(drv->cuStreamSynchronize(stream));
    /* a stream of one device is no stream of the other */
    assert_cuda(drv->cuCtxSetCurrent(other));
    assert_cuda_fails(drv->cuMemsetD8Async(there, 0, 1, stream), CUDA_ERROR_INVALID_HANDLE);
    device_read(seen, there + 1000, sizeof(seen));
    assert_int_equal(seen[0], 0x77);
    assert_int_equal(seen[99], 0x77);
    assert_cuda(drv->cuMemFree(there));
    assert_cuda(drv->cuCtxSetCurrent(context_of_device_0));
    assert_cuda(drv->cuDevicePrimaryCtxRelease(1));
    assert_cuda(drv->cuMemFree(here));
    assert_cuda(drv->cuStreamDestroy(stream));
}

static void host_access_to_device_memory_faults(void **state)
{
    (void)state;
    int fds[2];
    CUdeviceptr address = device_create(4096);
    assert_int_equal(pipe(fds), 0);
    /* The kernel reports a bad address where a load would be a SIGSEGV. */
    assert_int_equal(write(fds[1], (void *)(uintptr_t)address, 1), -1);
    assert_int_equal(errno, EFAULT);
    close(fds[0]);
    close(fds[1]);
    assert_cuda(drv->cuMemFree(address));
}

/* ---- other processes: this program again, with a scenario's name ---- */

static pid_t scenario_start(const char *name, const char *argument)
{
    char *arguments[] = {(char *)"test_emulated_driver", (char *)name, (char *)argument, NULL};
    pid_t child;
    assert_int_equal(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ), 0);
    return child;
}

static int scenario_status(pid_t child)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static int fill_chunk_and_export(int fd_to)
{
    int fd;
    CUdeviceptr address = reserve(CHUNK_BYTES);
    CUmemGenericAllocationHandle chunk = chunk_create(CHUNK_BYTES);
    assert_cuda(drv->cuMemMap(address, CHUNK_BYTES, 0, chunk, 0));
    allow(address, CHUNK_BYTES, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    device_set(address, 0x99, CHUNK_BYTES);
    assert_cuda(
        drv->cuMemExportToShareableHandle(&fd, chunk, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    return dup2(fd, fd_to) == fd_to ? 0 : 1;
}

static CUdeviceptr map_exported(int fd, CUmemGenericAllocationHandle *handle)
{
    CUdeviceptr address = reserve(CHUNK_BYTES);
    assert_cuda(drv->cuMemImportFromShareableHandle(handle, (void *)(intptr_t)fd,
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    assert_cuda(drv->cuMemMap(address, CHUNK_BYTES, 0, *handle, 0));
    allow(address, CHUNK_BYTES, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return address;
}

static void unmap_exported(CUdeviceptr address, CUmemGenericAllocationHandle handle)
{
    assert_cuda(drv->cuMemUnmap(address, CHUNK_BYTES));
    assert_cuda(drv->cuMemAddressFree(address, CHUNK_BYTES));
    assert_cuda(drv->cuMemRelease(handle));
}

static int scenario_import(const char *argument)
{
    unsigned char seen;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address = map_exported(atoi(argument), &handle);
    device_read(&seen, address + 12345, 1);
    device_set(address + 54321, 0x66, 1);
    return seen != 0x99;
}

static void an_exported_chunk_is_the_same_memory_in_another_process(void **state)
{
    (void)state;
    char number[16];
    unsigned char seen;
    int fd;
    CUdeviceptr address = reserve(CHUNK_BYTES);
    CUmemGenericAllocationHandle chunk = chunk_create(CHUNK_BYTES);
    assert_cuda(drv->cuMemMap(address, CHUNK_BYTES, 0, chunk, 0));
    allow(address, CHUNK_BYTES, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    device_set(address, 0x99, CHUNK_BYTES);
    assert_cuda(
        drv->cuMemExportToShareableHandle(&fd, chunk, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(fcntl(fd, F_SETFD, 0), 0);
    snprintf(number, sizeof(number), "%d", fd);
    assert_int_equal(scenario_status(scenario_start("import", number)), 0);
    device_read(&seen, address + 54321, 1);
    assert_int_equal(seen, 0x66);
    close(fd);
    unmap_exported(address, chunk);
}

static int scenario_export(const char *argument)
{
    return fill_chunk_and_export(atoi(argument));
}

static void a_chunk_outlives_the_process_that_made_it(void **state)
{
    (void)state;
    unsigned char seen[2];
    char number[16];
    int known[2];
    assert_int_equal(pipe(known), 0);
    snprintf(number, sizeof(number), "%d", known[0]);
    /* The child puts the chunk in place of the pipe's end, whose number is known, and stops. */
    pid_t child = scenario_start("export-and-stop", number);
    int status;
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    assert_true(WIFSTOPPED(status));
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)child, known[0]);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    kill(child, SIGKILL);
    scenario_status(child);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address = map_exported(fd, &handle);
    close(fd);
    device_read(seen, address, 2);
    assert_int_equal(seen[0], 0x99);
    assert_int_equal(seen[1], 0x99);
    unmap_exported(address, handle);
    close(known[0]);
    close(known[1]);
}

static int scenario_export_and_stop(const char *argument)
{
    int error = scenario_export(argument);
    raise(SIGSTOP);
    return error;
}

static void only_device_memory_is_imported(void **state)
{
    (void)state;
    CUmemGenericAllocationHandle handle;
    int fd = open("/dev/null", O_RDWR);
    assert_cuda_fails(drv->cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                      CUDA_ERROR_INVALID_VALUE);
    close(fd);
}

static int scenario_ipc(const char *argument)
{
    CUipcMemHandle handle;
    CUdeviceptr address, again;
    unsigned char seen;
    for (size_t i = 0; i < sizeof(handle); i++) {
        unsigned value;
        if (sscanf(argument + 2 * i, "%2x", &value) != 1)
            return 1;
        handle.reserved[i] = (char)value;
    }
    assert_cuda_fails(drv->cuIpcOpenMemHandle(&address, handle, 0), CUDA_ERROR_INVALID_VALUE);
    assert_cuda(drv->cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    assert_cuda(drv->cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    device_read(&seen, address + 4999, 1);
    device_set(address + 1, 0x55, 1);
    assert_cuda(drv->cuIpcCloseMemHandle(address));
    assert_cuda(drv->cuIpcCloseMemHandle(address));
    assert_cuda_fails(drv->cuIpcCloseMemHandle(address), CUDA_ERROR_INVALID_VALUE);
    return seen != 0x33 || again != address;
}

static void an_ipc_handle_opens_in_another_process_only(void **state)
{
    (void)state;
    CUipcMemHandle handle;
    char text[2 * CU_IPC_HANDLE_SIZE + 1];
    unsigned char seen;
    CUdeviceptr opened, address = device_create(5000);
    device_set(address, 0x33, 5000);
    assert_cuda(drv->cuIpcGetMemHandle(&handle, address + 100));
    assert_cuda_fails(drv->cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                      CUDA_ERROR_INVALID_CONTEXT);
    for (size_t i = 0; i < sizeof(handle); i++)
        snprintf(text + 2 * i, 3, "%02x", (unsigned char)handle.reserved[i]);
    assert_int_equal(scenario_status(scenario_start("ipc", text)), 0);
    device_read(&seen, address + 1, 1);
    assert_int_equal(seen, 0x55);
    assert_cuda(drv->cuMemFree(address));
    int status = scenario_status(scenario_start("ipc", text));
    assert_true(WIFEXITED(status) && WEXITSTATUS(status));
}

/* ---- memory taken away under queued DMA ---- */

static int scenario_free(const char *what)
{
    configure("order=sync;fault=none");
    CUstream stream = stream_create();
    CUdeviceptr address = device_create(8192), reserved = reserve(CHUNK_BYTES);
    CUmemGenericAllocationHandle chunk = chunk_create(CHUNK_BYTES);
    unsigned char *host = host_create(8192);
    static unsigned char registered[8192];
    assert_cuda(drv->cuMemHostRegister(registered, sizeof(registered), 0));
    assert_cuda(drv->cuMemMap(reserved, CHUNK_BYTES, 0, chunk, 0));
    allow(reserved, CHUNK_BYTES, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    assert_cuda(drv->cuMemcpyDtoHAsync(host, address, 8192, stream));
    assert_cuda(drv->cuMemcpyHtoDAsync(reserved, registered, 8192, stream));
    if (!strcmp(what, "null-stream"))
        drv->cuMemsetD8Async(address, 0, 1, NULL);
    if (!strcmp(what, "fenced"))
        assert_cuda(drv->cuStreamSynchronize(stream));
    if (!strcmp(what, "device") || !strcmp(what, "fenced"))
        assert_cuda(drv->cuMemFree(address));
    if (!strcmp(what, "unmap") || !strcmp(what, "fenced"))
        assert_cuda(drv->cuMemUnmap(reserved, CHUNK_BYTES));
    if (!strcmp(what, "host") || !strcmp(what, "fenced"))
        assert_cuda(drv->cuMemFreeHost(host));
    if (!strcmp(what, "registered") || !strcmp(what, "fenced"))
        assert_cuda(drv->cuMemHostUnregister(registered));
    return 0;
}

static void taking_memory_from_queued_copies_aborts(void **state)
{
    (void)state;
    static const char *const misuses[] = {"device", "unmap", "host", "registered", "null-stream"};
    for (size_t i = 0; i < ARRAY_SIZE(misuses); i++) {
        int status = scenario_status(scenario_start("free", misuses[i]));
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
            fail_msg("%s: status %d", misuses[i], status);
    }
    assert_int_equal(scenario_status(scenario_start("free", "fenced")), 0);
}

static void hazards_can_be_counted_instead(void **state)
{
    (void)state;
    configure("hazard=count;order=sync");
    uint64_t before = stats().hazards;
    CUstream stream = stream_create();
    CUdeviceptr address = device_create(8192);
    assert_cuda(drv->cuMemsetD8Async(address, 0, 8192, stream));
    assert_cuda(drv->cuMemFree(address));
    assert_int_equal(stats().hazards, before + 1);
    assert_cuda(drv->cuStreamSynchronize(stream));
    assert_cuda(drv->cuStreamDestroy(stream));
}

static void settings_that_are_wrong_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "colour=red", "memory=12GB",          "order=later",
        "devices=3",  "scribble=maybe",       "fault=cuNothing:1:1",
        "seed",       "fault=cuMemAlloc:0:2", "fault=cuMemAlloc:1:2:twice",
    };
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        if (try_configure(wrong[i]) != CUDA_ERROR_INVALID_VALUE)
            fail_msg("accepted: %s", wrong[i]);
    }
}

static int scenario_bad_setting(void)
{
    char message[256];
    setenv("RESIDENTFS_EMULATED", "memory=1GiB;colour=red", 1);
    if (driver_open("emulated", &drv, message, sizeof(message)))
        return 2;
    return drv->cuInit(0) != CUDA_ERROR_INVALID_VALUE;
}

static void a_wrong_setting_in_the_environment_fails_cuInit(void **state)
{
    (void)state;
    assert_int_equal(scenario_status(scenario_start("bad-setting", "")), 0);
}

static int run_scenario(const char *name, const char *argument)
{
    if (!strcmp(name, "bad-setting"))
        return scenario_bad_setting();
    if (open_devices(1))
        return 100;
    /* Outside a cmocka test a failed assertion ends the process with a failure. */
    if (!strcmp(name, "import"))
        return scenario_import(argument);
    if (!strcmp(name, "export-and-stop"))
        return scenario_export_and_stop(argument);
    if (!strcmp(name, "ipc"))
        return scenario_ipc(argument);
    if (!strcmp(name, "free"))
        return scenario_free(argument);
    return 101;
}

static int open_two(void **state)
{
    (void)state;
    return open_devices(2);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, finish)

int main(int argc, char **argv)
{
    if (argc == 3)
        return run_scenario(argv[1], argv[2]);
    const struct CMUnitTest tests[] = {
        TEST(devices_have_names_and_identities),
        TEST(calls_without_a_context_fail),
        TEST(memory_is_accounted_and_runs_out),
        TEST(another_process_can_take_memory_while_we_run),
        TEST(page_locked_memory_can_be_short),
        TEST(fresh_memory_has_no_zero_byte),
        TEST(chunks_have_granularity_and_properties),
        TEST(vmm_can_be_absent_or_refused),
        TEST(mapping_refuses_what_cuda_refuses),
        TEST(copies_need_mapped_memory_with_access),
        TEST(memory_lives_while_it_is_mapped),
        TEST(addresses_are_not_used_again_at_once),
        TEST(pointers_can_be_asked_about),
        TEST(registration_refuses_what_cuda_refuses),
        TEST(after_a_fork_nothing_works),
        TEST(peers_copy_between_devices),
        TEST(host_access_to_device_memory_faults),
        TEST(an_exported_chunk_is_the_same_memory_in_another_process),
        TEST(a_chunk_outlives_the_process_that_made_it),
        TEST(only_device_memory_is_imported),
        TEST(an_ipc_handle_opens_in_another_process_only),
        TEST(taking_memory_from_queued_copies_aborts),
        TEST(hazards_can_be_counted_instead),
        TEST(settings_that_are_wrong_are_refused),
        TEST(a_wrong_setting_in_the_environment_fails_cuInit),
    };
    return cmocka_run_group_tests(tests, open_two, NULL);
}
