/*
 * Sizes, offsets and values of the CUDA ABI as the including file's headers have them, and one
 * function that returns them. test_cuda_abi compares the table made with our declarations with the
 * one made with the toolkit's.
 */
#include "test_cuda_abi.h"

#include <stddef.h>

#define SIZE(type)                    \
    {                                 \
        "sizeof " #type, sizeof(type) \
    }
#define OFFSET(type, member)                                \
    {                                                       \
        "offset " #type "." #member, offsetof(type, member) \
    }
#define WIDTH(type, member)                                     \
    {                                                           \
        "width " #type "." #member, sizeof(((type *)0)->member) \
    }
#define FIELD(type, member) OFFSET(type, member), WIDTH(type, member)
#define VALUE(name)                       \
    {                                     \
#name, (unsigned long long)(name) \
    }

static const struct abi_figure figures[] = {
    SIZE(CUdevice),
    SIZE(CUdeviceptr),
    SIZE(CUmemGenericAllocationHandle),
    SIZE(CUcontext),
    SIZE(CUstream),
    SIZE(CUevent),
    SIZE(cuuint64_t),
    SIZE(CUresult),
    SIZE(CUdevice_attribute),
    SIZE(CUpointer_attribute),
    SIZE(CUmemAllocationHandleType),
    SIZE(CUmemAccess_flags),
    SIZE(CUmemLocationType),
    SIZE(CUmemAllocationType),
    SIZE(CUmemAllocationGranularity_flags),
    SIZE(CUmemcpySrcAccessOrder),
    SIZE(CUdriverProcAddressQueryResult),
    SIZE(CUuuid),
    SIZE(CUipcMemHandle),
    SIZE(CUmemLocation),
    FIELD(CUmemLocation, type),
    FIELD(CUmemLocation, id),
    SIZE(CUmemAllocationProp),
    FIELD(CUmemAllocationProp, type),
    FIELD(CUmemAllocationProp, requestedHandleTypes),
    FIELD(CUmemAllocationProp, location),
    FIELD(CUmemAllocationProp, win32HandleMetaData),
    FIELD(CUmemAllocationProp, allocFlags.compressionType),
    FIELD(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable),
    FIELD(CUmemAllocationProp, allocFlags.usage),
    FIELD(CUmemAllocationProp, allocFlags.reserved),
    SIZE(CUmemAccessDesc),
    FIELD(CUmemAccessDesc, location),
    FIELD(CUmemAccessDesc, flags),
    SIZE(CUmemcpyAttributes),
    FIELD(CUmemcpyAttributes, srcAccessOrder),
    FIELD(CUmemcpyAttributes, srcLocHint),
    FIELD(CUmemcpyAttributes, dstLocHint),
    FIELD(CUmemcpyAttributes, flags),
    VALUE(CU_IPC_HANDLE_SIZE),
    VALUE(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
    VALUE(CU_DEVICE_ATTRIBUTE_INTEGRATED),
    VALUE(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY),
    VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE),
    VALUE(CU_DEVICE_ATTRIBUTE_ECC_ENABLED),
    VALUE(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
    VALUE(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID),
    VALUE(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT),
    VALUE(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING),
    VALUE(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
    VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
    VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
    VALUE(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM),
    VALUE(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED),
    VALUE(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
    VALUE(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
    VALUE(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED),
    VALUE(CU_DEVICE_ATTRIBUTE_MPS_ENABLED),
    VALUE(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID),
    VALUE(CU_POINTER_ATTRIBUTE_CONTEXT),
    VALUE(CU_POINTER_ATTRIBUTE_MEMORY_TYPE),
    VALUE(CU_POINTER_ATTRIBUTE_DEVICE_POINTER),
    VALUE(CU_POINTER_ATTRIBUTE_HOST_POINTER),
    VALUE(CU_POINTER_ATTRIBUTE_BUFFER_ID),
    VALUE(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL),
    VALUE(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE),
    VALUE(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR),
    VALUE(CU_POINTER_ATTRIBUTE_RANGE_SIZE),
    VALUE(CU_POINTER_ATTRIBUTE_MAPPED),
    VALUE(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES),
    VALUE(CU_MEMORYTYPE_HOST),
    VALUE(CU_MEMORYTYPE_DEVICE),
    VALUE(CU_CTX_SCHED_AUTO),
    VALUE(CU_CTX_SCHED_SPIN),
    VALUE(CU_CTX_SCHED_YIELD),
    VALUE(CU_CTX_SCHED_BLOCKING_SYNC),
    VALUE(CU_STREAM_DEFAULT),
    VALUE(CU_STREAM_NON_BLOCKING),
    VALUE(CU_EVENT_DEFAULT),
    VALUE(CU_EVENT_BLOCKING_SYNC),
    VALUE(CU_EVENT_DISABLE_TIMING),
    VALUE(CU_EVENT_INTERPROCESS),
    VALUE(CU_MEMHOSTALLOC_PORTABLE),
    VALUE(CU_MEMHOSTALLOC_DEVICEMAP),
    VALUE(CU_MEMHOSTALLOC_WRITECOMBINED),
    VALUE(CU_MEMHOSTREGISTER_PORTABLE),
    VALUE(CU_MEMHOSTREGISTER_DEVICEMAP),
    VALUE(CU_MEMHOSTREGISTER_IOMEMORY),
    VALUE(CU_MEMHOSTREGISTER_READ_ONLY),
    VALUE(CU_MEM_HANDLE_TYPE_NONE),
    VALUE(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
    VALUE(CU_MEM_ACCESS_FLAGS_PROT_NONE),
    VALUE(CU_MEM_ACCESS_FLAGS_PROT_READ),
    VALUE(CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
    VALUE(CU_MEM_LOCATION_TYPE_INVALID),
    VALUE(CU_MEM_LOCATION_TYPE_DEVICE),
    VALUE(CU_MEM_LOCATION_TYPE_HOST),
    VALUE(CU_MEM_ALLOCATION_TYPE_INVALID),
    VALUE(CU_MEM_ALLOCATION_TYPE_PINNED),
    VALUE(CU_MEM_ALLOC_GRANULARITY_MINIMUM),
    VALUE(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
    VALUE(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
    VALUE(CU_MEMCPY_FLAG_DEFAULT),
    VALUE(CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE),
    VALUE(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM),
    VALUE(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL),
    VALUE(CU_MEMCPY_SRC_ACCESS_ORDER_ANY),
    VALUE(CU_GET_PROC_ADDRESS_DEFAULT),
    VALUE(CU_GET_PROC_ADDRESS_LEGACY_STREAM),
    VALUE(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM),
    VALUE(CU_GET_PROC_ADDRESS_SUCCESS),
    VALUE(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
    VALUE(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT),
};

const struct abi_figure *ABI_FIGURES(size_t *count)
{
    *count = sizeof(figures) / sizeof(figures[0]);
    return figures;
}
