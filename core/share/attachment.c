#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "core/share/cuda.h"
#include "core/share/resident.h"

struct resident_attachment {
    int socket;
    pid_t process;
};

/* The name of the driver that the file system of FILE uses. */
static errint_t driver_of_file(int file, const struct driver **driver)
{
    char name[64];
    ssize_t length = fgetxattr(file, "user.resident.device", name, sizeof(name) - 1);

    if (length < 0)
        return share_fail(-ENOTSUP, "not a file of residentfs");
    name[length] = 0;
    name[strcspn(name, ":")] = 0;
    return share_driver(name, driver);
}

/* The allocation that the range is in. */
struct allocation {
    CUdeviceptr start;
    size_t length; /* bytes */
};

static errint_t find_allocation(const struct driver *driver, uint64_t pointer, size_t bytes,
                                struct allocation *allocation)
{
    unsigned int type = 0;
    CUresult result =
        driver->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer);

    if (result == CUDA_ERROR_INVALID_CONTEXT)
        return share_fail(-EINVAL, "this thread has no current CUDA context");
    if (result != CUDA_SUCCESS || type != CU_MEMORYTYPE_DEVICE)
        return share_fail(-EINVAL, "0x%llx is not device memory of this process",
                          (unsigned long long)pointer);
    result = driver->cuMemGetAddressRange(&allocation->start, &allocation->length, pointer);
    if (result != CUDA_SUCCESS)
        return share_cuda_fail(driver, result, "cuMemGetAddressRange");
    uint64_t offset = pointer - allocation->start;
    if (bytes == 0 || offset > allocation->length || bytes > allocation->length - offset)
        return share_fail(-EINVAL,
                          "%zu bytes at 0x%llx are not inside one allocation: it has %zu bytes "
                          "from there on",
                          bytes, (unsigned long long)pointer,
                          offset > allocation->length ? 0 : allocation->length - (size_t)offset);
    return 0;
}

static bool handle_at(const struct driver *driver, uint64_t address,
                      CUmemGenericAllocationHandle *handle)
{
    return driver->cuMemRetainAllocationHandle(handle, (void *)(uintptr_t)address) == CUDA_SUCCESS;
}

/* Memory of cuMemCreate: *DESCRIPTOR is the caller's to close. */
static errint_t export_allocation(const struct driver *driver, uint64_t pointer, size_t bytes,
                                  const struct allocation *allocation, int *descriptor)
{
    /* Addresses may be made up of several: the range must be in one, and that the first. */
    const uint64_t probes[] = {allocation->start, pointer + bytes - 1,
                               allocation->start + allocation->length - 1};
    CUmemGenericAllocationHandle handle, other;
    bool one = true;

    if (!handle_at(driver, pointer, &handle))
        return share_fail(-ENOTSUP,
                          "the memory at 0x%llx can be shared neither by an IPC handle "
                          "nor as an allocation of cuMemCreate",
                          (unsigned long long)pointer);
    for (size_t i = 0; i < ARRAY_SIZE(probes) && one; i++) {
        one = handle_at(driver, probes[i], &other);
        if (one) {
            driver->cuMemRelease(other);
            one = other == handle;
        }
    }
    if (!one) {
        driver->cuMemRelease(handle);
        return share_fail(-ENOTSUP,
                          "the addresses around 0x%llx are made up of several "
                          "allocations of cuMemCreate: attach one of them as a whole",
                          (unsigned long long)pointer);
    }
    CUresult result = driver->cuMemExportToShareableHandle(
        descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    driver->cuMemRelease(handle);
    if (result == CUDA_SUCCESS)
        return 0;
    return share_fail(-ENOTSUP,
                      "cuMemExportToShareableHandle failed: %s; the allocation must have been made "
                      "with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
                      driver_error_name(driver, result));
}

/* Fills the request; *DESCRIPTOR is -1 or the memory, the caller's to close. */
static errint_t describe_memory(const struct driver *driver, uint64_t pointer, size_t bytes,
                                struct share_request *request, int *descriptor)
{
    struct allocation allocation;
    CUipcMemHandle ipc;
    CUdevice device;
    CUuuid uuid;
    int ordinal = -1;

    errint_t error = find_allocation(driver, pointer, bytes, &allocation);
    if (error < 0)
        return error;
    CUresult result =
        driver->cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer);
    if (result == CUDA_SUCCESS)
        result = driver->cuDeviceGet(&device, ordinal);
    if (result == CUDA_SUCCESS)
        result = driver->cuDeviceGetUuid(&uuid, device);
    if (result != CUDA_SUCCESS)
        return share_cuda_fail(driver, result, "asking for the memory's device");
    memcpy(request->device_uuid, uuid.bytes, sizeof(request->device_uuid));
    request->offset = pointer - allocation.start;
    request->length = bytes;
    request->allocation_length = allocation.length;
    if (driver->cuIpcGetMemHandle(&ipc, allocation.start) == CUDA_SUCCESS) {
        request->memory_kind = SHARE_MEMORY_IPC;
        memcpy(request->ipc_handle, &ipc, sizeof(request->ipc_handle));
        return 0;
    }
    request->memory_kind = SHARE_MEMORY_DESCRIPTOR;
    return export_allocation(driver, pointer, bytes, &allocation, descriptor);
}

static errint_t attach(struct resident_attachment *attachment, int file, uint64_t pointer,
                       size_t bytes)
{
    struct share_request request = share_request_of(SHARE_ATTACH);
    struct share_reply reply;
    const struct driver *driver;
    int descriptors[SHARE_DESCRIPTORS_MAX] = {file, -1};

    errint_t error = driver_of_file(file, &driver);
    if (error == 0)
        error = describe_memory(driver, pointer, bytes, &request, &descriptors[1]);
    if (error == 0)
        error = share_connect(file, &attachment->socket);
    if (error == 0)
        error = share_ask(attachment->socket, &request, descriptors, descriptors[1] >= 0 ? 2 : 1,
                          &reply, NULL);
    if (descriptors[1] >= 0)
        close(descriptors[1]);
    return error;
}

int resident_attach(const char *path, uint64_t pointer, size_t bytes, mode_t mode,
                    struct resident_attachment **out)
{
    struct resident_attachment *attachment = calloc(1, sizeof(*attachment));

    if (!attachment)
        return share_fail(-ENOMEM, "no host memory");
    attachment->socket = -1;
    attachment->process = getpid();
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_DIRECT, mode);
    if (file < 0) {
        errint_t error = share_fail(-errno, "%s: %s", path, strerror(errno));
        free(attachment);
        return error;
    }
    errint_t error = attach(attachment, file, pointer, bytes);
    if (error < 0) {
        unlink(path);
        if (attachment->socket >= 0)
            close(attachment->socket);
        free(attachment);
    } else {
        *out = attachment;
    }
    close(file);
    return error;
}

int resident_detach(struct resident_attachment *attachment)
{
    if (!attachment)
        return 0;
    if (attachment->process == getpid())
        share_disconnect(attachment->socket);
    else
        close(attachment->socket);
    free(attachment);
    return 0;
}
