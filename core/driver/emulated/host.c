/* Page-locked host memory: allocated or registered. */
#include "core/driver/emulated/emulated.h"

#include <string.h>
#include <sys/mman.h>

/* The index of the first range that ends after ADDRESS. */
static size_t host_index(uint64_t address)
{
    size_t low = 0, high = emulated.host_range_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (emulated.host_ranges[middle].start + emulated.host_ranges[middle].bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

CUresult host_find(uint64_t address, size_t bytes, bool *pinned)
{
    size_t at = host_index(address);
    *pinned = false;
    if (address + bytes < address)
        return CUDA_ERROR_INVALID_VALUE;
    if (at == emulated.host_range_count || emulated.host_ranges[at].start >= address + bytes)
        return CUDA_SUCCESS;
    const struct host_range *range = &emulated.host_ranges[at];
    if (address < range->start || address + bytes > range->start + range->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    *pinned = true;
    return CUDA_SUCCESS;
}

static CUresult host_add(uint64_t start, size_t bytes, bool registered)
{
    size_t at = host_index(start);
    if (!reserve_element(&emulated.host_ranges, &emulated.host_range_capacity,
                         emulated.host_range_count, sizeof(*emulated.host_ranges)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    memmove(&emulated.host_ranges[at + 1], &emulated.host_ranges[at],
            (emulated.host_range_count - at) * sizeof(*emulated.host_ranges));
    emulated.host_ranges[at] = (struct host_range){start, bytes, registered};
    emulated.host_range_count++;
    emulated.host_bytes += bytes;
    return CUDA_SUCCESS;
}

static void host_remove(size_t at)
{
    emulated.host_bytes -= emulated.host_ranges[at].bytes;
    memmove(&emulated.host_ranges[at], &emulated.host_ranges[at + 1],
            (emulated.host_range_count - at - 1) * sizeof(*emulated.host_ranges));
    emulated.host_range_count--;
}

static bool host_starts_at(uint64_t address, bool registered, size_t *at)
{
    *at = host_index(address);
    return *at < emulated.host_range_count && emulated.host_ranges[*at].start == address &&
           emulated.host_ranges[*at].registered == registered;
}

static bool within_pinned_limit(size_t bytes)
{
    return emulated.host_bytes <= emulated.config.pinned_bytes &&
           bytes <= emulated.config.pinned_bytes - emulated.host_bytes;
}

CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned int flags)
{
    CUresult result = enter(ENTRY_cuMemHostAlloc, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    unsigned known =
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    if (!address || !bytes || flags & ~known)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (!within_pinned_limit(bytes))
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    if (emulated.config.fill)
        memset(memory, 0xc3, bytes);
    result = host_add((uintptr_t)memory, bytes, false);
    if (result)
        munmap(memory, bytes);
    else
        *address = memory;
    return leave(result);
}

CUresult cuMemFreeHost(void *address)
{
    CUresult result = enter(ENTRY_cuMemFreeHost, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    size_t at;
    if (!host_starts_at((uintptr_t)address, false, &at))
        return leave(CUDA_ERROR_INVALID_VALUE);
    hazard_check(ENTRY_cuMemFreeHost, (uintptr_t)address, emulated.host_ranges[at].bytes, false);
    if (!host_starts_at((uintptr_t)address, false, &at))
        return leave(CUDA_ERROR_INVALID_VALUE);
    munmap(address, emulated.host_ranges[at].bytes);
    host_remove(at);
    return leave(CUDA_SUCCESS);
}

static bool is_mapped(uint64_t start, size_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t first = align_down(start, page), end = align_up(start + bytes, page);
    /* msync with no flag but MS_ASYNC does nothing on Linux, but fails if a page is not mapped. */
    return !msync((void *)(uintptr_t)first, end - first, MS_ASYNC);
}

CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned int flags)
{
    CUresult result =
        enter(ENTRY_cuMemHostRegister, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    uint64_t start = (uintptr_t)address;
    unsigned known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                     CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
    if (!address || !bytes || flags & ~known || start + bytes < start || !is_mapped(start, bytes) ||
        address_is_device(start, bytes))
        return leave(CUDA_ERROR_INVALID_VALUE);
    size_t at = host_index(start);
    if (at < emulated.host_range_count && emulated.host_ranges[at].start < start + bytes)
        return leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    if (!within_pinned_limit(bytes))
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    return leave(host_add(start, bytes, true));
}

CUresult cuMemHostUnregister(void *address)
{
    CUresult result =
        enter(ENTRY_cuMemHostUnregister, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    size_t at;
    if (!host_starts_at((uintptr_t)address, true, &at))
        return leave(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    hazard_check(ENTRY_cuMemHostUnregister, (uintptr_t)address, emulated.host_ranges[at].bytes,
                 false);
    if (!host_starts_at((uintptr_t)address, true, &at))
        return leave(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    host_remove(at);
    return leave(CUDA_SUCCESS);
}
