/* Physical memory: chunks of the virtual-memory API, cuMemAlloc, IPC handles, pointer queries. */
#include "core/driver/emulated/emulated.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

static bool memory_available(int device, uint64_t bytes)
{
    uint64_t limit = emulated.config.memory_bytes, other = config_other_bytes();
    uint64_t used = emulated.devices[device].used_bytes;
    return other <= limit && used <= limit - other && bytes <= limit - other - used;
}

/* A byte that is never 0 and differs from page to page, so that no test passes by luck. */
static void fill_with_pattern(char *memory, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint64_t sequence = emulated.fill_sequence++ * 7;
    for (size_t at = 0; at < bytes; at += page)
        memset(memory + at, 0xa5 ^ (int)((sequence + at / page) & 0x1f), MIN(page, bytes - at));
}

static CUresult physical_wrap(int device, int fd, size_t bytes, struct physical **out)
{
    size_t backed_bytes = align_up(bytes, (uint64_t)sysconf(_SC_PAGESIZE));
    struct stat status;
    struct physical *physical = calloc(1, sizeof(*physical));
    if (!physical || fstat(fd, &status))
        goto fail;
    char *alias = mmap(NULL, backed_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (alias == MAP_FAILED)
        goto fail;
    *physical = (struct physical){
        .refs = 1,
        .device = device,
        .fd = fd,
        .bytes = bytes,
        .backed_bytes = backed_bytes,
        .alias = alias,
        .inode = status.st_ino,
    };
    *out = physical;
    return CUDA_SUCCESS;
fail:
    free(physical);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult physical_create(int device, size_t bytes, struct physical **out)
{
    if (!memory_available(device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    cleanup_fd int fd = memfd_create("residentfs-emulated", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)align_up(bytes, (uint64_t)sysconf(_SC_PAGESIZE))))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = physical_wrap(device, fd, bytes, out);
    if (result)
        return result;
    steal_fd(&fd);
    (*out)->charged = true;
    emulated.devices[device].used_bytes += bytes;
    if (emulated.config.fill)
        fill_with_pattern((*out)->alias, (*out)->backed_bytes);
    return CUDA_SUCCESS;
}

CUresult physical_import(int device, int fd, size_t bytes, struct physical **out)
{
    return physical_wrap(device, fd, bytes, out);
}

void physical_unref(struct physical *physical)
{
    if (--physical->refs)
        return;
    if (physical->charged)
        emulated.devices[physical->device].used_bytes -= physical->bytes;
    munmap(physical->alias, physical->backed_bytes);
    ipc_withdraw(physical->fd);
    close(physical->fd);
    free(physical);
}

static bool properties_valid(const CUmemAllocationProp *properties)
{
    return properties && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
           properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           (properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE ||
            properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) &&
           !properties->win32HandleMetaData;
}

static bool device_valid(const CUmemAllocationProp *properties)
{
    return properties->location.id >= 0 &&
           (unsigned)properties->location.id < emulated.config.devices;
}

/* Takes a reference of PHYSICAL over. */
static CUresult handle_create(struct physical *physical, CUmemGenericAllocationHandle *handle)
{
    if (physical->handle_refs == 0)
        physical->handle = handle_add(&emulated.physicals, physical);
    if (!physical->handle) {
        physical_unref(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    physical->handle_refs++;
    *handle = physical->handle;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *properties, unsigned long long flags)
{
    CUresult result = enter(ENTRY_cuMemCreate, NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    if (emulated.config.vmm != VMM_ON)
        return leave(CUDA_ERROR_NOT_SUPPORTED);
    if (!handle || flags || !bytes || bytes % GRANULARITY_BYTES || !properties_valid(properties))
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (!device_valid(properties))
        return leave(CUDA_ERROR_INVALID_DEVICE);
    if (properties->requestedHandleTypes && !emulated.config.export)
        return leave(CUDA_ERROR_NOT_SUPPORTED);
    struct physical *physical;
    result = physical_create(properties->location.id, bytes, &physical);
    if (result)
        return leave(result);
    physical->properties = *properties;
    return leave(handle_create(physical, handle));
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult result = enter(ENTRY_cuMemRelease, NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    struct physical *physical = handle_find(&emulated.physicals, handle);
    if (!physical)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (--physical->handle_refs == 0)
        handle_remove(&emulated.physicals, handle);
    physical_unref(physical);
    return leave(CUDA_SUCCESS);
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags option)
{
    CUresult result = enter(ENTRY_cuMemGetAllocationGranularity, NEEDS_INIT, NULL);
    if (result)
        return result;
    if (emulated.config.vmm == VMM_OFF)
        return leave(CUDA_ERROR_NOT_SUPPORTED);
    if (!granularity || !properties_valid(properties) ||
        (unsigned)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (!device_valid(properties))
        return leave(CUDA_ERROR_INVALID_DEVICE);
    *granularity = GRANULARITY_BYTES;
    return leave(CUDA_SUCCESS);
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
    CUresult result = enter(ENTRY_cuMemExportToShareableHandle, NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    struct physical *physical = handle_find(&emulated.physicals, handle);
    if (!shareable || !physical || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        physical->properties.requestedHandleTypes != type)
        return leave(CUDA_ERROR_INVALID_VALUE);
    int fd = fcntl(physical->fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return leave(CUDA_ERROR_OPERATING_SYSTEM);
    memcpy(shareable, &fd, sizeof(fd));
    return leave(CUDA_SUCCESS);
}

/* True for the memory of an emulated driver, and no other file. */
static bool fd_is_memory(int fd, size_t *bytes)
{
    char link[64], target[64];
    struct stat status;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, target, sizeof(target) - 1);
    if (length < 0 || fstat(fd, &status) || status.st_size <= 0)
        return false;
    target[length] = 0;
    *bytes = (size_t)status.st_size;
    return !strncmp(target, "/memfd:residentfs-emulated", 26);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        CUmemAllocationHandleType type)
{
    CUresult result = enter(ENTRY_cuMemImportFromShareableHandle, NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    size_t bytes;
    int from = (int)(intptr_t)shareable;
    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || from < 0)
        return leave(CUDA_ERROR_INVALID_VALUE);
    cleanup_fd int fd = fcntl(from, F_DUPFD_CLOEXEC, 3);
    if (fd < 0 || !fd_is_memory(fd, &bytes) || bytes % GRANULARITY_BYTES)
        return leave(CUDA_ERROR_INVALID_VALUE);
    struct device *device = current_device();
    struct physical *physical;
    result = physical_import(device ? device->ordinal : 0, fd, bytes, &physical);
    if (result)
        return leave(result);
    steal_fd(&fd);
    physical->properties = (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {CU_MEM_LOCATION_TYPE_DEVICE, physical->device},
    };
    return leave(handle_create(physical, handle));
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                CUmemGenericAllocationHandle handle)
{
    CUresult result = enter(ENTRY_cuMemGetAllocationPropertiesFromHandle, NEEDS_INIT, NULL);
    if (result)
        return result;
    struct physical *physical = handle_find(&emulated.physicals, handle);
    if (!physical || !properties)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *properties = physical->properties;
    return leave(CUDA_SUCCESS);
}

/* Takes PHYSICAL over, also when it fails. */
static struct reservation *allocation_create(enum reservation_kind kind, struct physical *physical)
{
    struct reservation *reservation =
        reservation_create(kind, physical->bytes, (size_t)sysconf(_SC_PAGESIZE));
    if (!reservation ||
        reservation_map(reservation, reservation->start, physical->bytes, physical)) {
        if (reservation)
            reservation_destroy(reservation);
        physical_unref(physical);
        return NULL;
    }
    /* Unified addressing: a copy may name memory of any device. */
    memset(reservation->mappings[0].access, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, MAX_DEVICES);
    return reservation;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    CUresult result = enter(ENTRY_cuMemAlloc, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    if (!address || !bytes)
        return leave(CUDA_ERROR_INVALID_VALUE);
    struct physical *physical;
    result = physical_create(current_device()->ordinal, bytes, &physical);
    if (result)
        return leave(result);
    struct reservation *reservation = allocation_create(RESERVED_ALLOCATION, physical);
    if (!reservation)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    *address = reservation->start;
    return leave(CUDA_SUCCESS);
}

static struct reservation *allocation_at(CUdeviceptr address, enum reservation_kind kind)
{
    struct reservation *reservation = reservation_find(address);
    return reservation && reservation->kind == kind && reservation->start == address ? reservation
                                                                                     : NULL;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    CUresult result = enter(ENTRY_cuMemFree, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    struct reservation *reservation = allocation_at(address, RESERVED_ALLOCATION);
    if (!reservation)
        return leave(CUDA_ERROR_INVALID_VALUE);
    hazard_check(ENTRY_cuMemFree, reservation->start, reservation->bytes, true);
    reservation = allocation_at(address, RESERVED_ALLOCATION);
    if (reservation)
        reservation_destroy(reservation);
    return leave(CUDA_SUCCESS);
}

/* What the 64 bytes of an IPC handle hold. */
struct ipc {
    char magic[8];
    pid_t maker;
    int fd;
    uint64_t bytes;
    uint64_t inode;
    int device;
};

_Static_assert(sizeof(struct ipc) <= CU_IPC_HANDLE_SIZE, "an IPC handle has 64 bytes");

static const char ipc_magic[8] = "resemu1";

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    CUresult result =
        enter(ENTRY_cuIpcGetMemHandle, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    struct reservation *reservation = reservation_find(address);
    if (!handle || !reservation || reservation->kind != RESERVED_ALLOCATION)
        return leave(CUDA_ERROR_INVALID_VALUE);
    struct physical *physical = reservation->mappings[0].physical;
    if (!ipc_serve(physical->fd))
        return leave(CUDA_ERROR_OPERATING_SYSTEM);
    struct ipc ipc = {
        .maker = getpid(),
        .fd = physical->fd,
        .bytes = physical->bytes,
        .inode = physical->inode,
        .device = physical->device,
    };
    memcpy(ipc.magic, ipc_magic, sizeof(ipc.magic));
    memset(handle, 0, sizeof(*handle));
    memcpy(handle, &ipc, sizeof(ipc));
    return leave(CUDA_SUCCESS);
}

static struct reservation *ipc_opened(const struct ipc *ipc)
{
    for (size_t i = 0; i < emulated.reservation_count; i++) {
        struct reservation *reservation = emulated.reservations[i];
        if (reservation->kind == RESERVED_IPC && reservation->maker == ipc->maker &&
            reservation->mappings[0].physical->inode == (ino_t)ipc->inode)
            return reservation;
    }
    return NULL;
}

static CUresult ipc_import(const struct ipc *ipc, struct physical **physical)
{
    struct stat status;
    cleanup_fd int fd = ipc_ask(ipc->maker, ipc->fd, ipc->inode);
    if (fd < 0 || fstat(fd, &status) || status.st_ino != (ino_t)ipc->inode ||
        (uint64_t)status.st_size < ipc->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = physical_import(ipc->device, fd, ipc->bytes, physical);
    if (!result)
        steal_fd(&fd);
    return result;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
    CUresult result =
        enter(ENTRY_cuIpcOpenMemHandle, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    struct ipc ipc;
    memcpy(&ipc, &handle, sizeof(ipc));
    if (!address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
        memcmp(ipc.magic, ipc_magic, sizeof(ipc_magic)) || ipc.device < 0 ||
        (unsigned)ipc.device >= emulated.config.devices || !ipc.bytes)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (ipc.maker == getpid())
        return leave(CUDA_ERROR_INVALID_CONTEXT);
    struct reservation *reservation = ipc_opened(&ipc);
    if (!reservation) {
        struct physical *physical;
        result = ipc_import(&ipc, &physical);
        if (result)
            return leave(result);
        reservation = allocation_create(RESERVED_IPC, physical);
        if (!reservation)
            return leave(CUDA_ERROR_OUT_OF_MEMORY);
        reservation->maker = ipc.maker;
    }
    reservation->opened++;
    *address = reservation->start;
    return leave(CUDA_SUCCESS);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    CUresult result =
        enter(ENTRY_cuIpcCloseMemHandle, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    struct reservation *reservation = allocation_at(address, RESERVED_IPC);
    if (!reservation)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (--reservation->opened)
        return leave(CUDA_SUCCESS);
    hazard_check(ENTRY_cuIpcCloseMemHandle, reservation->start, reservation->bytes, true);
    reservation = allocation_at(address, RESERVED_IPC);
    if (reservation && !reservation->opened)
        reservation_destroy(reservation);
    return leave(CUDA_SUCCESS);
}

static const struct mapping *mapping_at(const struct reservation *reservation, uint64_t address)
{
    for (size_t i = 0; i < reservation->mapping_count; i++) {
        if (address - reservation->mappings[i].start < reservation->mappings[i].bytes)
            return &reservation->mappings[i];
    }
    return NULL;
}

static CUresult pointer_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
    struct reservation *reservation = reservation_find(address);
    bool pinned = false;
    if (!reservation) {
        if (host_find(address, 1, &pinned) || !pinned)
            return CUDA_ERROR_INVALID_VALUE;
        switch (attribute) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *(unsigned *)data = CU_MEMORYTYPE_HOST;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            *(uint64_t *)data = address;
            return CUDA_SUCCESS;
        default:
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    const struct mapping *mapping = mapping_at(reservation, address);
    if (attribute == CU_POINTER_ATTRIBUTE_MAPPED) {
        *(int *)data = mapping != NULL;
        return CUDA_SUCCESS;
    }
    if (!mapping)
        return CUDA_ERROR_INVALID_VALUE;
    struct physical *physical = mapping->physical;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        /* Memory of the virtual-memory API belongs to no context. */
        *(CUcontext *)data = reservation->kind == RESERVED_ADDRESSES
                                 ? NULL
                                 : (CUcontext)&emulated.devices[physical->device];
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(uint64_t *)data = address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(uint64_t *)data = physical->inode;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = physical->device;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(int *)data = reservation->kind == RESERVED_ALLOCATION;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(uint64_t *)data = reservation->start;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = reservation->bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data = physical->properties.requestedHandleTypes;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
    CUresult result =
        enter(ENTRY_cuPointerGetAttribute, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    return leave(data ? pointer_attribute(data, attribute, address) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *bytes, CUdeviceptr address)
{
    CUresult result =
        enter(ENTRY_cuMemGetAddressRange, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    struct reservation *reservation = reservation_find(address);
    const struct mapping *mapping = reservation ? mapping_at(reservation, address) : NULL;
    if (!mapping)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (start)
        *start = mapping->start;
    if (bytes)
        *bytes = mapping->bytes;
    return leave(CUDA_SUCCESS);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    CUresult result = enter(ENTRY_cuMemRetainAllocationHandle, NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    struct reservation *reservation = reservation_find((uint64_t)(uintptr_t)address);
    const struct mapping *mapping =
        reservation ? mapping_at(reservation, (uint64_t)(uintptr_t)address) : NULL;
    if (!handle || !mapping || reservation->kind != RESERVED_ADDRESSES)
        return leave(CUDA_ERROR_INVALID_VALUE);
    mapping->physical->refs++;
    return leave(handle_create(mapping->physical, handle));
}
