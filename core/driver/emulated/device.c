/* Devices: what they are, their primary contexts, how full they are. */
#include "core/driver/emulated/emulated.h"

#include <stdio.h>
#include <string.h>

#define FIRST_PCI_BUS 0xe0

static bool device_exists(CUdevice device)
{
    return device >= 0 && (unsigned)device < emulated.config.devices;
}

static uint64_t used_by_all(const struct device *device)
{
    return MIN(device->used_bytes + config_other_bytes(), emulated.config.memory_bytes);
}

CUresult cuDeviceGetCount(int *count)
{
    CUresult result = enter(ENTRY_cuDeviceGetCount, NEEDS_INIT, NULL);
    if (result)
        return result;
    if (!count)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *count = (int)emulated.config.devices;
    return leave(CUDA_SUCCESS);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = enter(ENTRY_cuDeviceGet, NEEDS_INIT, NULL);
    if (result)
        return result;
    if (!device)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (!device_exists(ordinal))
        return leave(CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    return leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    CUresult result = enter(ENTRY_cuDeviceGetName, NEEDS_INIT, NULL);
    if (result)
        return result;
    if (!name || bytes <= 0)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (!device_exists(device))
        return leave(CUDA_ERROR_INVALID_DEVICE);
    snprintf(name, (size_t)bytes, "Emulated GPU %d", device);
    return leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    CUresult result = enter(ENTRY_cuDeviceGetUuid, NEEDS_INIT, NULL);
    if (result)
        return result;
    if (!uuid)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (!device_exists(device))
        return leave(CUDA_ERROR_INVALID_DEVICE);
    static const unsigned char base[16] = {0xe0, 0x01, 0xa7, 0xed, 0x5e, 0x11, 0x4f, 0x00,
                                           0x8a, 0x3c, 0x72, 0x65, 0x73, 0x66, 0x73, 0x00};
    memcpy(uuid->bytes, base, sizeof(base));
    uuid->bytes[15] = (char)device;
    return leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetPCIBusId(char *id, int bytes, CUdevice device)
{
    CUresult result = enter(ENTRY_cuDeviceGetPCIBusId, NEEDS_INIT, NULL);
    if (result)
        return result;
    if (!id || bytes < (int)sizeof("0000:e0:00.0"))
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (!device_exists(device))
        return leave(CUDA_ERROR_INVALID_DEVICE);
    snprintf(id, (size_t)bytes, "0000:%02x:00.0", (FIRST_PCI_BUS + (unsigned)device) & 0xff);
    return leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id)
{
    CUresult result = enter(ENTRY_cuDeviceGetByPCIBusId, NEEDS_INIT, NULL);
    if (result)
        return result;
    if (!device || !id)
        return leave(CUDA_ERROR_INVALID_VALUE);
    unsigned domain = 0, bus, slot, function = 0;
    int used = 0;
    size_t length = strlen(id);
    bool parsed =
        (sscanf(id, "%4x:%2x:%2x.%1x%n", &domain, &bus, &slot, &function, &used) == 4 &&
         (size_t)used == length) ||
        (sscanf(id, "%4x:%2x:%2x%n", &domain, &bus, &slot, &used) == 3 && (size_t)used == length);
    if (!parsed) {
        domain = function = 0;
        parsed = (sscanf(id, "%2x:%2x.%1x%n", &bus, &slot, &function, &used) == 3 &&
                  (size_t)used == length);
    }
    if (!parsed || domain || slot || function || bus < FIRST_PCI_BUS ||
        !device_exists((int)(bus - FIRST_PCI_BUS)))
        return leave(CUDA_ERROR_INVALID_VALUE);
    *device = (int)(bus - FIRST_PCI_BUS);
    return leave(CUDA_SUCCESS);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult result = enter(ENTRY_cuDeviceTotalMem, NEEDS_INIT, NULL);
    if (result)
        return result;
    if (!bytes)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (!device_exists(device))
        return leave(CUDA_ERROR_INVALID_DEVICE);
    *bytes = emulated.config.memory_bytes;
    return leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    CUresult result = enter(ENTRY_cuDeviceGetAttribute, NEEDS_INIT, NULL);
    if (result)
        return result;
    if (!value)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (!device_exists(device))
        return leave(CUDA_ERROR_INVALID_DEVICE);
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        *value = FIRST_PCI_BUS + device;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = 9;
        break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = 1;
        break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        *value = emulated.config.vmm != VMM_OFF;
        break;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
        *value = -1;
        break;
    default:
        *value = 0;
        break;
    }
    return leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult result = enter(ENTRY_cuDevicePrimaryCtxRetain, NEEDS_INIT, NULL);
    if (result)
        return result;
    if (!context)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (!device_exists(device))
        return leave(CUDA_ERROR_INVALID_DEVICE);
    struct device *found = &emulated.devices[device];
    if (found->lost)
        return leave(found->lost);
    /* Or else with the first copy. */
    if (emulated.config.order == ORDER_EAGER && !found->engine_started && !engine_start(found))
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    found->retained++;
    *context = (CUcontext)found;
    return leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    CUresult result = enter(ENTRY_cuDevicePrimaryCtxRelease, NEEDS_INIT, NULL);
    if (result)
        return result;
    if (!device_exists(device))
        return leave(CUDA_ERROR_INVALID_DEVICE);
    if (!emulated.devices[device].retained)
        return leave(CUDA_ERROR_INVALID_CONTEXT);
    emulated.devices[device].retained--;
    return leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
    CUresult result = enter(ENTRY_cuDevicePrimaryCtxSetFlags, NEEDS_INIT, NULL);
    if (result)
        return result;
    if (flags > (CU_CTX_SCHED_BLOCKING_SYNC | 0x18u))
        return leave(CUDA_ERROR_INVALID_VALUE);
    return leave(device_exists(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    CUresult result = enter(ENTRY_cuMemGetInfo, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    if (!free_bytes || !total_bytes)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *total_bytes = emulated.config.memory_bytes;
    *free_bytes = emulated.config.memory_bytes - used_by_all(current_device());
    return leave(CUDA_SUCCESS);
}
