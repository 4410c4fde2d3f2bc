#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "core/device_internal.h"
#include "core/log.h"

#define HUGEPAGE_BYTES (2 * MIB)

/* Maps LENGTH bytes at an address that is a multiple of ALIGN. */
static void *map_aligned(size_t length, size_t align, int kind)
{
    size_t span = length + align;
    char *at = mmap(NULL, span, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED)
        return NULL;
    char *start = (char *)align_up((uintptr_t)at, align);
    if (start > at)
        munmap(at, (size_t)(start - at));
    if (start + length < at + span)
        munmap(start + length, (size_t)(at + span - (start + length)));
    return start;
}

/* KIND: MAP_PRIVATE or MAP_SHARED. */
static errint_t init(struct device *device, struct pinned_memory *memory, size_t length, int kind)
{
    bool huge = kind == MAP_PRIVATE && length >= HUGEPAGE_BYTES / 2;
    size_t mapping_length = align_up(length, huge ? HUGEPAGE_BYTES : 4 * KIB);
    void *mapping = map_aligned(mapping_length, huge ? HUGEPAGE_BYTES : 4 * KIB, kind);

    if (!mapping)
        return -ENOMEM;
    if (huge)
        madvise(mapping, mapping_length, MADV_HUGEPAGE);
    madvise(mapping, mapping_length, MADV_DONTDUMP); /* other people's bytes */
    *memory = (struct pinned_memory){
        .bytes = mapping, .length = length, .mapping = mapping, .mapping_length = mapping_length};
    CUresult result =
        device->driver->cuMemHostRegister(mapping, mapping_length, CU_MEMHOSTREGISTER_PORTABLE);
    memory->page_locked = result == CUDA_SUCCESS;
    if (!memory->page_locked && !device_is_lost(device) &&
        !atomic_exchange(&device->degraded, true))
        log_warning("page-locked memory refused (%s for %zu bytes): copies are slower; raise the "
                    "limit of locked memory (ulimit -l) or lower staging= and workers=",
                    driver_error_name(device->driver, result), mapping_length);
    telemetry_staging_changed(&device->telemetry, (int64_t)mapping_length);
    return 0;
}

errint_t pinned_memory_init(struct device *device, struct pinned_memory *memory, size_t length)
{
    return init(device, memory, length, MAP_PRIVATE);
}

errint_t pinned_memory_init_shared(struct device *device, struct pinned_memory *memory,
                                   size_t length)
{
    return init(device, memory, length, MAP_SHARED);
}

errint_t pinned_memory_show_at(const struct pinned_memory *memory, void *address)
{
    /* A length of 0 has the kernel map the pages of a shared mapping once more. */
    void *at =
        mremap(memory->mapping, 0, memory->mapping_length, MREMAP_MAYMOVE | MREMAP_FIXED, address);

    return at == MAP_FAILED ? -errno : 0;
}

void pinned_memory_finish(struct device *device, struct pinned_memory *memory)
{
    if (!memory->mapping)
        return;
    if (memory->page_locked && !device_is_lost(device)) {
        CUresult result = device->driver->cuMemHostUnregister(memory->mapping);
        if (result != CUDA_SUCCESS) {
            device_failure(device, result, "cuMemHostUnregister", "staging");
            pinned_memory_quarantine(device, memory);
            return;
        }
    } else if (memory->page_locked) {
        /* A lost device may still hold the pages: unmapping them is the kernel's to refuse. */
        memset(memory, 0, sizeof(*memory));
        return;
    }
    munmap(memory->mapping, memory->mapping_length);
    telemetry_staging_changed(&device->telemetry, -(int64_t)memory->mapping_length);
    memset(memory, 0, sizeof(*memory));
}

void pinned_memory_quarantine(struct device *device, struct pinned_memory *memory)
{
    telemetry_add(&device->telemetry, TELEMETRY_QUARANTINED_BYTES, memory->mapping_length);
    telemetry_staging_changed(&device->telemetry, -(int64_t)memory->mapping_length);
    log_error("%zu bytes of staging are quarantined: a copy may still use them",
              memory->mapping_length);
    memset(memory, 0, sizeof(*memory));
}
