/*
 * The entry points of the CUDA Driver API that residentfs uses, once, for the table, the loader,
 * the emulated driver and the tests:
 *
 *   X(name, suffix, asked, need, parameters)
 *
 * NAME is what cuGetProcAddress is asked for and the field in struct driver; NAME with SUFFIX is
 * the symbol that the library exports for the ABI meant here; ASKED is the API version that is
 * requested (1000 * major + 10 * minor), fixed so that a newer driver cannot hand out a newer
 * signature; NEED is REQUIRED or OPTIONAL. Only type names are used, so that this can be checked
 * against a real cuda.h as well as used with cuda_abi.h.
 */
#ifndef RESIDENTFS_CORE_DRIVER_CUDA_ENTRY_POINTS_H
#define RESIDENTFS_CORE_DRIVER_CUDA_ENTRY_POINTS_H

/* clang-format off */
#define CUDA_ENTRY_POINTS(X) \
    X(cuInit, , 12000, REQUIRED, (unsigned int flags)) \
    X(cuDriverGetVersion, , 12000, REQUIRED, (int *version)) \
    X(cuGetErrorName, , 12000, REQUIRED, (CUresult result, const char **name)) \
    X(cuGetErrorString, , 12000, REQUIRED, (CUresult result, const char **text)) \
    X(cuDeviceGetCount, , 12000, REQUIRED, (int *count)) \
    X(cuDeviceGet, , 12000, REQUIRED, (CUdevice *device, int ordinal)) \
    X(cuDeviceGetName, , 12000, REQUIRED, (char *name, int bytes, CUdevice device)) \
    X(cuDeviceGetUuid, _v2, 12000, REQUIRED, (CUuuid *uuid, CUdevice device)) \
    X(cuDeviceGetPCIBusId, , 12000, REQUIRED, (char *id, int bytes, CUdevice device)) \
    X(cuDeviceGetByPCIBusId, , 12000, REQUIRED, (CUdevice *device, const char *id)) \
    X(cuDeviceTotalMem, _v2, 12000, REQUIRED, (size_t *bytes, CUdevice device)) \
    X(cuDeviceGetAttribute, , 12000, REQUIRED, \
      (int *value, CUdevice_attribute attribute, CUdevice device)) \
    X(cuDevicePrimaryCtxRetain, , 12000, REQUIRED, (CUcontext *context, CUdevice device)) \
    X(cuDevicePrimaryCtxRelease, _v2, 12000, REQUIRED, (CUdevice device)) \
    X(cuDevicePrimaryCtxSetFlags, _v2, 12000, REQUIRED, (CUdevice device, unsigned int flags)) \
    X(cuCtxSetCurrent, , 12000, REQUIRED, (CUcontext context)) \
    X(cuCtxGetCurrent, , 12000, REQUIRED, (CUcontext *context)) \
    X(cuCtxGetDevice, , 12000, REQUIRED, (CUdevice *device)) \
    X(cuCtxSynchronize, , 12000, REQUIRED, (void)) \
    X(cuMemGetInfo, _v2, 12000, REQUIRED, (size_t *free_bytes, size_t *total_bytes)) \
    X(cuStreamCreate, , 12000, REQUIRED, (CUstream *stream, unsigned int flags)) \
    X(cuStreamDestroy, _v2, 12000, REQUIRED, (CUstream stream)) \
    X(cuStreamSynchronize, , 12000, REQUIRED, (CUstream stream)) \
    X(cuStreamQuery, , 12000, REQUIRED, (CUstream stream)) \
    X(cuStreamWaitEvent, , 12000, REQUIRED, (CUstream stream, CUevent event, unsigned int flags)) \
    X(cuEventCreate, , 12000, REQUIRED, (CUevent *event, unsigned int flags)) \
    X(cuEventDestroy, _v2, 12000, REQUIRED, (CUevent event)) \
    X(cuEventRecord, , 12000, REQUIRED, (CUevent event, CUstream stream)) \
    X(cuEventQuery, , 12000, REQUIRED, (CUevent event)) \
    X(cuEventSynchronize, , 12000, REQUIRED, (CUevent event)) \
    X(cuMemcpyHtoDAsync, _v2, 12000, REQUIRED, \
      (CUdeviceptr destination, const void *source, size_t bytes, CUstream stream)) \
    X(cuMemcpyDtoHAsync, _v2, 12000, REQUIRED, \
      (void *destination, CUdeviceptr source, size_t bytes, CUstream stream)) \
    X(cuMemcpyDtoDAsync, _v2, 12000, REQUIRED, \
      (CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream)) \
    X(cuMemcpyPeerAsync, , 12000, REQUIRED, \
      (CUdeviceptr destination, CUcontext destination_context, CUdeviceptr source, \
       CUcontext source_context, size_t bytes, CUstream stream)) \
    X(cuMemcpyBatchAsync, , 12080, OPTIONAL, \
      (CUdeviceptr *destinations, CUdeviceptr *sources, size_t *sizes, size_t count, \
       CUmemcpyAttributes *attributes, size_t *attribute_starts, size_t attribute_count, \
       size_t *failed, CUstream stream)) \
    X(cuMemsetD8Async, , 12000, REQUIRED, \
      (CUdeviceptr destination, unsigned char value, size_t count, CUstream stream)) \
    X(cuMemsetD32Async, , 12000, REQUIRED, \
      (CUdeviceptr destination, unsigned int value, size_t count, CUstream stream)) \
    X(cuMemAlloc, _v2, 12000, REQUIRED, (CUdeviceptr *address, size_t bytes)) \
    X(cuMemFree, _v2, 12000, REQUIRED, (CUdeviceptr address)) \
    X(cuMemHostAlloc, , 12000, REQUIRED, (void **address, size_t bytes, unsigned int flags)) \
    X(cuMemFreeHost, , 12000, REQUIRED, (void *address)) \
    X(cuMemHostRegister, _v2, 12000, REQUIRED, \
      (void *address, size_t bytes, unsigned int flags)) \
    X(cuMemHostUnregister, , 12000, REQUIRED, (void *address)) \
    X(cuMemAddressReserve, , 12000, REQUIRED, \
      (CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint, \
       unsigned long long flags)) \
    X(cuMemAddressFree, , 12000, REQUIRED, (CUdeviceptr address, size_t bytes)) \
    X(cuMemCreate, , 12000, REQUIRED, \
      (CUmemGenericAllocationHandle *handle, size_t bytes, \
       const CUmemAllocationProp *properties, unsigned long long flags)) \
    X(cuMemRelease, , 12000, REQUIRED, (CUmemGenericAllocationHandle handle)) \
    X(cuMemMap, , 12000, REQUIRED, \
      (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, \
       unsigned long long flags)) \
    X(cuMemUnmap, , 12000, REQUIRED, (CUdeviceptr address, size_t bytes)) \
    X(cuMemSetAccess, , 12000, REQUIRED, \
      (CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count)) \
    X(cuMemGetAllocationGranularity, , 12000, REQUIRED, \
      (size_t *granularity, const CUmemAllocationProp *properties, \
       CUmemAllocationGranularity_flags option)) \
    X(cuMemExportToShareableHandle, , 12000, REQUIRED, \
      (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, \
       unsigned long long flags)) \
    X(cuMemImportFromShareableHandle, , 12000, REQUIRED, \
      (CUmemGenericAllocationHandle *handle, void *shareable, CUmemAllocationHandleType type)) \
    X(cuMemRetainAllocationHandle, , 12000, REQUIRED, \
      (CUmemGenericAllocationHandle *handle, void *address)) \
    X(cuMemGetAllocationPropertiesFromHandle, , 12000, REQUIRED, \
      (CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)) \
    X(cuIpcGetMemHandle, , 12000, REQUIRED, (CUipcMemHandle *handle, CUdeviceptr address)) \
    X(cuIpcOpenMemHandle, _v2, 12000, REQUIRED, \
      (CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)) \
    X(cuIpcCloseMemHandle, , 12000, REQUIRED, (CUdeviceptr address)) \
    X(cuMemGetAddressRange, _v2, 12000, REQUIRED, \
      (CUdeviceptr *start, size_t *bytes, CUdeviceptr address)) \
    X(cuPointerGetAttribute, , 12000, REQUIRED, \
      (void *data, CUpointer_attribute attribute, CUdeviceptr address))
/* clang-format on */

#endif
