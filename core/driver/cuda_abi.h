/*
 * The part of the CUDA Driver API's binary interface that residentfs uses, so that no toolkit is
 * needed to build. Types, enumerators and constants carry CUDA's own names; values and layouts are
 * those of CUDA 12 and 13 on 64-bit Linux. Where a real cuda.h is installed, the test cuda_abi
 * compares everything here with it.
 */
#ifndef RESIDENTFS_CORE_DRIVER_CUDA_ABI_H
#define RESIDENTFS_CORE_DRIVER_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef uint64_t cuuint64_t;

/* Every result code by name and number. */
#define CUDA_RESULTS(X)                               \
    X(CUDA_SUCCESS, 0)                                \
    X(CUDA_ERROR_INVALID_VALUE, 1)                    \
    X(CUDA_ERROR_OUT_OF_MEMORY, 2)                    \
    X(CUDA_ERROR_NOT_INITIALIZED, 3)                  \
    X(CUDA_ERROR_DEINITIALIZED, 4)                    \
    X(CUDA_ERROR_PROFILER_DISABLED, 5)                \
    X(CUDA_ERROR_PROFILER_NOT_INITIALIZED, 6)         \
    X(CUDA_ERROR_PROFILER_ALREADY_STARTED, 7)         \
    X(CUDA_ERROR_PROFILER_ALREADY_STOPPED, 8)         \
    X(CUDA_ERROR_STUB_LIBRARY, 34)                    \
    X(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, 36)      \
    X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46)              \
    X(CUDA_ERROR_NO_DEVICE, 100)                      \
    X(CUDA_ERROR_INVALID_DEVICE, 101)                 \
    X(CUDA_ERROR_DEVICE_NOT_LICENSED, 102)            \
    X(CUDA_ERROR_INVALID_IMAGE, 200)                  \
    X(CUDA_ERROR_INVALID_CONTEXT, 201)                \
    X(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, 202)        \
    X(CUDA_ERROR_MAP_FAILED, 205)                     \
    X(CUDA_ERROR_UNMAP_FAILED, 206)                   \
    X(CUDA_ERROR_ARRAY_IS_MAPPED, 207)                \
    X(CUDA_ERROR_ALREADY_MAPPED, 208)                 \
    X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209)              \
    X(CUDA_ERROR_ALREADY_ACQUIRED, 210)               \
    X(CUDA_ERROR_NOT_MAPPED, 211)                     \
    X(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, 212)            \
    X(CUDA_ERROR_NOT_MAPPED_AS_POINTER, 213)          \
    X(CUDA_ERROR_ECC_UNCORRECTABLE, 214)              \
    X(CUDA_ERROR_UNSUPPORTED_LIMIT, 215)              \
    X(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, 216)         \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217)        \
    X(CUDA_ERROR_INVALID_PTX, 218)                    \
    X(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, 219)       \
    X(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220)           \
    X(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, 221)         \
    X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222)        \
    X(CUDA_ERROR_JIT_COMPILATION_DISABLED, 223)       \
    X(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, 224)      \
    X(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC, 225)       \
    X(CUDA_ERROR_CONTAINED, 226)                      \
    X(CUDA_ERROR_INVALID_SOURCE, 300)                 \
    X(CUDA_ERROR_FILE_NOT_FOUND, 301)                 \
    X(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, 302) \
    X(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, 303)      \
    X(CUDA_ERROR_OPERATING_SYSTEM, 304)               \
    X(CUDA_ERROR_INVALID_HANDLE, 400)                 \
    X(CUDA_ERROR_ILLEGAL_STATE, 401)                  \
    X(CUDA_ERROR_LOSSY_QUERY, 402)                    \
    X(CUDA_ERROR_NOT_FOUND, 500)                      \
    X(CUDA_ERROR_NOT_READY, 600)                      \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, 700)                \
    X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701)        \
    X(CUDA_ERROR_LAUNCH_TIMEOUT, 702)                 \
    X(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, 703)  \
    X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704)    \
    X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, 705)        \
    X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, 708)         \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709)           \
    X(CUDA_ERROR_ASSERT, 710)                         \
    X(CUDA_ERROR_TOO_MANY_PEERS, 711)                 \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712) \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713)     \
    X(CUDA_ERROR_HARDWARE_STACK_ERROR, 714)           \
    X(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715)            \
    X(CUDA_ERROR_MISALIGNED_ADDRESS, 716)             \
    X(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717)          \
    X(CUDA_ERROR_INVALID_PC, 718)                     \
    X(CUDA_ERROR_LAUNCH_FAILED, 719)                  \
    X(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, 720)   \
    X(CUDA_ERROR_TENSOR_MEMORY_LEAK, 721)             \
    X(CUDA_ERROR_NOT_PERMITTED, 800)                  \
    X(CUDA_ERROR_NOT_SUPPORTED, 801)                  \
    X(CUDA_ERROR_SYSTEM_NOT_READY, 802)               \
    X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803)         \
    X(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, 804) \
    X(CUDA_ERROR_MPS_CONNECTION_FAILED, 805)          \
    X(CUDA_ERROR_MPS_RPC_FAILURE, 806)                \
    X(CUDA_ERROR_MPS_SERVER_NOT_READY, 807)           \
    X(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, 808)        \
    X(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, 809)    \
    X(CUDA_ERROR_MPS_CLIENT_TERMINATED, 810)          \
    X(CUDA_ERROR_CDP_NOT_SUPPORTED, 811)              \
    X(CUDA_ERROR_CDP_VERSION_MISMATCH, 812)           \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)     \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901)     \
    X(CUDA_ERROR_STREAM_CAPTURE_MERGE, 902)           \
    X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903)       \
    X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904)        \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905)       \
    X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906)        \
    X(CUDA_ERROR_CAPTURED_EVENT, 907)                 \
    X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908)    \
    X(CUDA_ERROR_TIMEOUT, 909)                        \
    X(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, 910)      \
    X(CUDA_ERROR_EXTERNAL_DEVICE, 911)                \
    X(CUDA_ERROR_INVALID_CLUSTER_SIZE, 912)           \
    X(CUDA_ERROR_FUNCTION_NOT_LOADED, 913)            \
    X(CUDA_ERROR_INVALID_RESOURCE_TYPE, 914)          \
    X(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, 915) \
    X(CUDA_ERROR_KEY_ROTATION, 916)                   \
    X(CUDA_ERROR_UNKNOWN, 999)

typedef enum cudaError_enum {
#define CUDA_RESULT_ENUMERATOR(name, value) name = value,
    CUDA_RESULTS(CUDA_RESULT_ENUMERATOR)
#undef CUDA_RESULT_ENUMERATOR
} CUresult;

typedef enum CUdevice_attribute_enum {
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_INTEGRATED = 18,
    CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY = 19,
    CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20,
    CU_DEVICE_ATTRIBUTE_ECC_ENABLED = 32,
    CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
    CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
    CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40,
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
    CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99,
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
    CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED = 113,
    CU_DEVICE_ATTRIBUTE_MPS_ENABLED = 133,
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID = 134
} CUdevice_attribute;

typedef enum CUpointer_attribute_enum {
    CU_POINTER_ATTRIBUTE_CONTEXT = 1,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
    CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
    CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
    CU_POINTER_ATTRIBUTE_MAPPED = 13,
    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14
} CUpointer_attribute;

typedef enum CUmemorytype_enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2 } CUmemorytype;

typedef enum CUctx_flags_enum {
    CU_CTX_SCHED_AUTO = 0,
    CU_CTX_SCHED_SPIN = 1,
    CU_CTX_SCHED_YIELD = 2,
    CU_CTX_SCHED_BLOCKING_SYNC = 4
} CUctx_flags;

typedef enum CUstream_flags_enum {
    CU_STREAM_DEFAULT = 0,
    CU_STREAM_NON_BLOCKING = 1
} CUstream_flags;

typedef enum CUevent_flags_enum {
    CU_EVENT_DEFAULT = 0,
    CU_EVENT_BLOCKING_SYNC = 1,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_EVENT_INTERPROCESS = 4
} CUevent_flags;

#define CU_MEMHOSTALLOC_PORTABLE      0x01
#define CU_MEMHOSTALLOC_DEVICEMAP     0x02
#define CU_MEMHOSTALLOC_WRITECOMBINED 0x04

#define CU_MEMHOSTREGISTER_PORTABLE   0x01
#define CU_MEMHOSTREGISTER_DEVICEMAP  0x02
#define CU_MEMHOSTREGISTER_IOMEMORY   0x04
#define CU_MEMHOSTREGISTER_READ_ONLY  0x08

typedef enum CUmemAllocationHandleType_enum {
    CU_MEM_HANDLE_TYPE_NONE = 0,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
    CU_MEM_HANDLE_TYPE_MAX = 0x7FFFFFFF
} CUmemAllocationHandleType;

typedef enum CUmemAccess_flags_enum {
    CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
    CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
    CU_MEM_ACCESS_FLAGS_PROT_MAX = 0x7FFFFFFF
} CUmemAccess_flags;

typedef enum CUmemLocationType_enum {
    CU_MEM_LOCATION_TYPE_INVALID = 0,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEM_LOCATION_TYPE_HOST = 2,
    CU_MEM_LOCATION_TYPE_MAX = 0x7FFFFFFF
} CUmemLocationType;

typedef enum CUmemAllocationType_enum {
    CU_MEM_ALLOCATION_TYPE_INVALID = 0,
    CU_MEM_ALLOCATION_TYPE_PINNED = 1,
    CU_MEM_ALLOCATION_TYPE_MAX = 0x7FFFFFFF
} CUmemAllocationType;

typedef enum CUmemAllocationGranularity_flags_enum {
    CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1
} CUmemAllocationGranularity_flags;

typedef enum CUipcMem_flags_enum { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1 } CUipcMem_flags;

typedef enum CUmemcpyFlags_enum {
    CU_MEMCPY_FLAG_DEFAULT = 0,
    CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE = 1
} CUmemcpyFlags;

typedef enum CUmemcpySrcAccessOrder_enum {
    CU_MEMCPY_SRC_ACCESS_ORDER_INVALID = 0,
    CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1,
    CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL = 2,
    CU_MEMCPY_SRC_ACCESS_ORDER_ANY = 3,
    CU_MEMCPY_SRC_ACCESS_ORDER_MAX = 0x7FFFFFFF
} CUmemcpySrcAccessOrder;

typedef enum CUdriverProcAddress_flags_enum {
    CU_GET_PROC_ADDRESS_DEFAULT = 0,
    CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2
} CUdriverProcAddress_flags;

typedef enum CUdriverProcAddressQueryResult_enum {
    CU_GET_PROC_ADDRESS_SUCCESS = 0,
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
    CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2
} CUdriverProcAddressQueryResult;

typedef struct CUuuid_st {
    char bytes[16];
} CUuuid;

#define CU_IPC_HANDLE_SIZE 64

typedef struct CUipcMemHandle_st {
    char reserved[CU_IPC_HANDLE_SIZE];
} CUipcMemHandle;

typedef struct CUmemLocation_st {
    CUmemLocationType type;
    int id;
} CUmemLocation;

typedef struct CUmemAllocationProp_st {
    CUmemAllocationType type;
    CUmemAllocationHandleType requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType;
        unsigned char gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} CUmemAllocationProp;

typedef struct CUmemAccessDesc_st {
    CUmemLocation location;
    CUmemAccess_flags flags;
} CUmemAccessDesc;

typedef struct CUmemcpyAttributes_st {
    CUmemcpySrcAccessOrder srcAccessOrder;
    CUmemLocation srcLocHint;
    CUmemLocation dstLocHint;
    unsigned int flags;
} CUmemcpyAttributes;

#endif
