#include "core/attachment.h"

#include <errno.h>
#include <string.h>

#include "core/device_internal.h"
#include "core/driver/cuda_error.h"
#include "core/log.h"

/* An open allocation. The driver opens one only once a process: it is shared by its ranges. */
struct attachment {
    struct attachment *next; /* device.attachments */
    unsigned int refs;
    bool is_ipc;
    CUipcMemHandle ipc;                  /* is_ipc */
    CUmemGenericAllocationHandle handle; /* else */
    CUdeviceptr address;
    uint64_t length; /* bytes */
};

static errint_t fail(char *message, size_t message_bytes, errint_t error, const char *text)
{
    snprintf(message, message_bytes, "%s", text);
    return error;
}

/* What the driver says of an error in what another process has sent: not an error of the device,
 * unless it is sticky. */
static errint_t refused(struct device *device, CUresult result, const char *call, char *message,
                        size_t message_bytes)
{
    snprintf(message, message_bytes, "%s of the memory to attach failed: %s", call,
             driver_error_name(device->driver, result));
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return -ENOMEM;
    if (!cuda_error_is_sticky(result))
        return -EINVAL;
    device_failure(device, result, call, "memory to attach");
    return -EIO;
}

/* -- cuMemAlloc memory ------------------------------------------------------------------------- */

static errint_t open_ipc(struct device *device, struct attachment *attachment, char *message,
                         size_t message_bytes)
{
    const struct driver *driver = device->driver;
    size_t length = 0;
    CUdeviceptr start = 0;
    int ordinal = -1;

    CUresult result = driver->cuIpcOpenMemHandle(&attachment->address, attachment->ipc,
                                                 CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result != CUDA_SUCCESS)
        return refused(device, result, "cuIpcOpenMemHandle", message, message_bytes);
    result = driver->cuMemGetAddressRange(&start, &length, attachment->address);
    if (result == CUDA_SUCCESS)
        result = driver->cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                               attachment->address);
    if (result != CUDA_SUCCESS || start != attachment->address || length == 0 ||
        ordinal != device->cuda_device) {
        driver->cuIpcCloseMemHandle(attachment->address);
        if (result != CUDA_SUCCESS)
            return refused(device, result, "asking for the size", message, message_bytes);
        return ordinal != device->cuda_device
                   ? fail(message, message_bytes, -ENODEV, "the memory is of another device")
                   : fail(message, message_bytes, -EINVAL, "the memory has no known size");
    }
    attachment->length = length;
    return 0;
}

/* -- cuMemCreate memory ------------------------------------------------------------------------ */

static errint_t map_imported(struct device *device, struct attachment *attachment, char *message,
                             size_t message_bytes)
{
    const struct driver *driver = device->driver;
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->cuda_device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    uint64_t length = attachment->length;

    CUresult result = driver->cuMemAddressReserve(&attachment->address, length, 0, 0, 0);
    if (result != CUDA_SUCCESS)
        return refused(device, result, "cuMemAddressReserve", message, message_bytes);
    result = driver->cuMemMap(attachment->address, length, 0, attachment->handle, 0);
    if (result != CUDA_SUCCESS)
        goto free_address;
    result = driver->cuMemSetAccess(attachment->address, length, &access, 1);
    if (result == CUDA_SUCCESS)
        return 0;
    driver->cuMemUnmap(attachment->address, length);
free_address:
    driver->cuMemAddressFree(attachment->address, length);
    return refused(device, result, "mapping", message, message_bytes);
}

static errint_t open_descriptor(struct device *device, struct attachment *attachment,
                                const struct buffer_memory *memory, char *message,
                                size_t message_bytes)
{
    const struct driver *driver = device->driver;
    CUmemAllocationProp properties;
    uint64_t length = memory->allocation_bytes;

    if (length == 0 || length % CHUNK_UNIT_BYTES || length > device->identity.total_bytes)
        return fail(
            message, message_bytes, -EINVAL,
            "an allocation of cuMemCreate is a multiple of 2 MiB long, and fits the device");
    CUresult result = driver->cuMemImportFromShareableHandle(
        &attachment->handle, (void *)(intptr_t)memory->descriptor,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS)
        return refused(device, result, "cuMemImportFromShareableHandle", message, message_bytes);
    result = driver->cuMemGetAllocationPropertiesFromHandle(&properties, attachment->handle);
    errint_t err = 0;
    if (result != CUDA_SUCCESS)
        err = refused(device, result, "cuMemGetAllocationPropertiesFromHandle", message,
                      message_bytes);
    else if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
             properties.location.id != device->cuda_device)
        err = fail(message, message_bytes, -ENODEV, "the memory is not on this device");
    attachment->length = length;
    if (err == 0) /* the driver refuses more than the allocation has */
        err = map_imported(device, attachment, message, message_bytes);
    if (err < 0)
        driver->cuMemRelease(attachment->handle);
    return err;
}

/* -- the list ---------------------------------------------------------------------------------- */

static struct attachment *find_ipc(const struct device *device, const void *handle)
{
    for (struct attachment *a = device->attachments; a; a = a->next)
        if (a->is_ipc && memcmp(&a->ipc, handle, sizeof(a->ipc)) == 0)
            return a;
    return NULL;
}

static errint_t open_new(struct device *device, const struct buffer_memory *memory,
                         struct attachment **out, char *message, size_t message_bytes)
{
    struct attachment *attachment = calloc(1, sizeof(*attachment));
    errint_t err;

    if (!attachment)
        return fail(message, message_bytes, -ENOMEM, "no host memory");
    attachment->is_ipc = memory->kind == BUFFER_MEMORY_IPC;
    if (attachment->is_ipc) {
        memcpy(&attachment->ipc, memory->ipc_handle, sizeof(attachment->ipc));
        err = open_ipc(device, attachment, message, message_bytes);
    } else {
        err = open_descriptor(device, attachment, memory, message, message_bytes);
    }
    if (err < 0) {
        free(attachment);
        return err;
    }
    attachment->next = device->attachments;
    device->attachments = attachment;
    *out = attachment;
    return 0;
}

static void unref_locked(struct device *device, struct attachment *attachment)
{
    const struct driver *driver = device->driver;
    struct attachment **link = &device->attachments;
    CUresult result;

    if (--attachment->refs > 0)
        return;
    while (*link != attachment)
        link = &(*link)->next;
    *link = attachment->next;
    if (device_is_lost(device)) {
        free(attachment); /* the context is gone, and the mapping with it */
        return;
    }
    if (attachment->is_ipc) {
        result = driver->cuIpcCloseMemHandle(attachment->address);
        if (result != CUDA_SUCCESS)
            device_failure(device, result, "cuIpcCloseMemHandle", "attached memory");
    } else {
        result = driver->cuMemUnmap(attachment->address, attachment->length);
        if (result == CUDA_SUCCESS)
            result = driver->cuMemAddressFree(attachment->address, attachment->length);
        if (result == CUDA_SUCCESS)
            result = driver->cuMemRelease(attachment->handle);
        if (result != CUDA_SUCCESS)
            device_failure(device, result, "letting go of it", "attached memory");
    }
    free(attachment);
}

errint_t attachment_open(struct device *device, const struct buffer_memory *memory,
                         struct attachment **out, CUdeviceptr *address, char *message,
                         size_t message_bytes)
{
    struct attachment *attachment = NULL;
    errint_t err = 0;

    if (device_is_lost(device))
        return fail(message, message_bytes, -EIO, "the device is lost");
    if (memory->length == 0)
        return fail(message, message_bytes, -EINVAL, "0 bytes of memory cannot be attached");
    pthread_mutex_lock(&device->attachments_mutex);
    if (memory->kind == BUFFER_MEMORY_IPC)
        attachment = find_ipc(device, memory->ipc_handle);
    if (!attachment)
        err = open_new(device, memory, &attachment, message, message_bytes);
    if (err == 0) {
        attachment->refs++;
        if (memory->offset > attachment->length ||
            memory->length > attachment->length - memory->offset) {
            snprintf(message, message_bytes,
                     "%llu bytes from byte %llu on are not inside an allocation of %llu bytes",
                     (unsigned long long)memory->length, (unsigned long long)memory->offset,
                     (unsigned long long)attachment->length);
            unref_locked(device, attachment);
            err = -EINVAL;
        }
    }
    pthread_mutex_unlock(&device->attachments_mutex);
    if (err < 0)
        return err;
    *out = attachment;
    *address = attachment->address + memory->offset;
    return 0;
}

void attachment_close(struct device *device, struct attachment *attachment)
{
    pthread_mutex_lock(&device->attachments_mutex);
    unref_locked(device, attachment);
    pthread_mutex_unlock(&device->attachments_mutex);
}

void attachment_quarantine(struct device *device, struct attachment *attachment)
{
    /* Its reference stays, and with it the mapping. */
    log_error("%s: %llu bytes of another process's memory are quarantined: a copy may still write "
              "to them",
              device->identity.uuid, (unsigned long long)attachment->length);
}
