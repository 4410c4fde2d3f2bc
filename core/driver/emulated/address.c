/* Device addresses: reservations, what is mapped in them, finding the memory behind a range. */
#include "core/driver/emulated/emulated.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

/* Far from where programs, libraries and sanitizers live; addresses are used in turn, so that a
 * freed one does not soon mean something else. Where the kernel refuses, it chooses. */
#define FIRST_ADDRESS 0x400000000000u
#define LAST_ADDRESS  0x540000000000u

static size_t reservation_after(uint64_t address)
{
    size_t low = 0, high = emulated.reservation_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (emulated.reservations[middle]->start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct reservation *reservation_find(uint64_t address)
{
    size_t after = reservation_after(address);
    if (!after)
        return NULL;
    struct reservation *reservation = emulated.reservations[after - 1];
    return address - reservation->start < reservation->bytes ? reservation : NULL;
}

bool address_is_device(uint64_t address, size_t bytes)
{
    if (reservation_find(address))
        return true;
    size_t after = reservation_after(address);
    return after < emulated.reservation_count &&
           emulated.reservations[after]->start - address < bytes;
}

/* ThreadSanitizer keeps the whole range above as PROT_NONE, which is just what is wanted. */
#if defined(__SANITIZE_THREAD__)
#define RANGE_IS_KEPT true
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RANGE_IS_KEPT true
#endif
#endif
#ifndef RANGE_IS_KEPT
#define RANGE_IS_KEPT false
#endif

static bool is_kept(uint64_t address)
{
    return RANGE_IS_KEPT && address >= FIRST_ADDRESS && address < LAST_ADDRESS;
}

/*
 * Nobody ever reads or writes at these addresses, so no sanitizer needs to know of them; they would
 * refuse addresses outside of what they watch.
 */
static uint64_t reserve_range(uint64_t address, size_t bytes, int flags)
{
    if (is_kept(address))
        return address;
    return (uint64_t)syscall(SYS_mmap, address, bytes, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

static void unreserve_range(uint64_t address, size_t bytes)
{
    if (is_kept(address))
        return;
    syscall(SYS_munmap, address, bytes);
}

/* BYTES is a multiple of the page size, ALIGNMENT a power of two of at least a page. */
static uint64_t map_anywhere(size_t bytes, size_t alignment)
{
    if (bytes > LAST_ADDRESS - FIRST_ADDRESS)
        return 0;
    for (int turn = 0; turn < 2; turn++) {
        uint64_t address = emulated.next_address;
        if (turn || address < FIRST_ADDRESS)
            address = FIRST_ADDRESS;
        for (address = align_up(address, alignment); address + bytes <= LAST_ADDRESS;) {
            size_t after = reservation_after(address);
            struct reservation *before = after ? emulated.reservations[after - 1] : NULL;
            if (before && before->start + before->mapped_bytes + GRANULARITY_BYTES > address) {
                address =
                    align_up(before->start + before->mapped_bytes + GRANULARITY_BYTES, alignment);
                continue;
            }
            if (after < emulated.reservation_count) {
                struct reservation *next = emulated.reservations[after];
                if (next->start < address + bytes + GRANULARITY_BYTES) {
                    address =
                        align_up(next->start + next->mapped_bytes + GRANULARITY_BYTES, alignment);
                    continue;
                }
            }
            if (reserve_range(address, bytes, MAP_FIXED_NOREPLACE) != address)
                break;
            emulated.next_address = address + bytes + GRANULARITY_BYTES;
            return address;
        }
    }
    if (bytes + alignment < bytes)
        return 0;
    uint64_t start = reserve_range(0, bytes + alignment, 0);
    if (start == UINT64_MAX)
        return 0;
    uint64_t aligned = align_up(start, alignment);
    if (aligned > start)
        unreserve_range(start, aligned - start);
    if (start + alignment > aligned)
        unreserve_range(aligned + bytes, start + alignment - aligned);
    return aligned;
}

struct reservation *reservation_create(enum reservation_kind kind, size_t bytes, size_t alignment)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct reservation *reservation = calloc(1, sizeof(*reservation));
    if (!reservation || !reserve_element(&emulated.reservations, &emulated.reservation_capacity,
                                         emulated.reservation_count, sizeof(reservation)))
        goto fail;
    reservation->kind = kind;
    reservation->bytes = bytes;
    reservation->mapped_bytes = align_up(bytes, page);
    reservation->start = map_anywhere(reservation->mapped_bytes, MAX(alignment, page));
    if (!reservation->start)
        goto fail;
    size_t at = reservation_after(reservation->start);
    memmove(&emulated.reservations[at + 1], &emulated.reservations[at],
            (emulated.reservation_count - at) * sizeof(reservation));
    emulated.reservations[at] = reservation;
    emulated.reservation_count++;
    return reservation;
fail:
    free(reservation);
    return NULL;
}

void reservation_destroy(struct reservation *reservation)
{
    size_t after = reservation_after(reservation->start);
    memmove(&emulated.reservations[after - 1], &emulated.reservations[after],
            (emulated.reservation_count - after) * sizeof(reservation));
    emulated.reservation_count--;
    for (size_t i = 0; i < reservation->mapping_count; i++)
        physical_unref(reservation->mappings[i].physical);
    unreserve_range(reservation->start, reservation->mapped_bytes);
    free(reservation->mappings);
    free(reservation);
}

/* The index of the first mapping that ends after ADDRESS. */
static size_t mapping_index(const struct reservation *reservation, uint64_t address)
{
    size_t low = 0, high = reservation->mapping_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct mapping *mapping = &reservation->mappings[middle];
        if (mapping->start + mapping->bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool range_inside(const struct reservation *reservation, uint64_t address, size_t bytes)
{
    return reservation && bytes && bytes <= reservation->bytes - (address - reservation->start);
}

CUresult reservation_map(struct reservation *reservation, uint64_t start, size_t bytes,
                         struct physical *physical)
{
    if (!range_inside(reservation, start, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    size_t at = mapping_index(reservation, start);
    if (at < reservation->mapping_count && reservation->mappings[at].start < start + bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!reserve_element(&reservation->mappings, &reservation->mapping_capacity,
                         reservation->mapping_count, sizeof(*reservation->mappings)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    memmove(&reservation->mappings[at + 1], &reservation->mappings[at],
            (reservation->mapping_count - at) * sizeof(*reservation->mappings));
    reservation->mappings[at] =
        (struct mapping){.start = start, .bytes = bytes, .physical = physical};
    reservation->mapping_count++;
    return CUDA_SUCCESS;
}

/*
 * Finds the mappings [*first, *end) that make up [address, address + bytes) without a gap. WHOLE:
 * none may reach past the range.
 */
static bool mappings_cover(const struct reservation *reservation, uint64_t address, size_t bytes,
                           bool whole, size_t *first, size_t *end)
{
    if (!range_inside(reservation, address, bytes))
        return false;
    size_t i = *first = mapping_index(reservation, address);
    uint64_t at = address, stop = address + bytes;
    while (at < stop) {
        if (i == reservation->mapping_count)
            return false;
        const struct mapping *mapping = &reservation->mappings[i++];
        if (mapping->start > at)
            return false;
        if (whole && (mapping->start != at || mapping->start + mapping->bytes > stop))
            return false;
        at = mapping->start + mapping->bytes;
    }
    *end = i;
    return true;
}

CUresult side_resolve_device(struct side *side, uint64_t address, size_t bytes, int device,
                             bool write)
{
    size_t first, end;
    struct reservation *reservation = reservation_find(address);
    if (!reservation || !mappings_cover(reservation, address, bytes, false, &first, &end))
        return CUDA_ERROR_INVALID_VALUE;
    unsigned wanted = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
    for (size_t i = first; i < end; i++) {
        if ((reservation->mappings[i].access[device] & wanted) != wanted)
            return CUDA_ERROR_INVALID_VALUE;
    }
    side->segments = calloc(end - first, sizeof(*side->segments));
    if (!side->segments)
        return CUDA_ERROR_OUT_OF_MEMORY;
    side->segment_count = end - first;
    side->is_device = true;
    side->address = address;
    for (size_t i = first; i < end; i++) {
        const struct mapping *mapping = &reservation->mappings[i];
        uint64_t from = MAX(address, mapping->start);
        uint64_t to = MIN(address + bytes, mapping->start + mapping->bytes);
        mapping->physical->refs++;
        side->segments[i - first] =
            (struct segment){mapping->physical->alias + (from - mapping->start),
                             (size_t)(to - from), mapping->physical};
    }
    return CUDA_SUCCESS;
}

static bool granular(uint64_t value)
{
    return value % GRANULARITY_BYTES == 0;
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags)
{
    CUresult result = enter(ENTRY_cuMemAddressReserve, NEEDS_INIT | NEEDS_DEVICE, NULL);
    (void)hint; /* need not be followed, and is not */
    if (result)
        return result;
    if (emulated.config.vmm == VMM_OFF)
        return leave(CUDA_ERROR_NOT_SUPPORTED);
    if (!address || !bytes || !granular(bytes) || flags || (alignment & (alignment - 1)))
        return leave(CUDA_ERROR_INVALID_VALUE);
    struct reservation *reservation =
        reservation_create(RESERVED_ADDRESSES, bytes, MAX(alignment, GRANULARITY_BYTES));
    if (!reservation)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    *address = reservation->start;
    return leave(CUDA_SUCCESS);
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    CUresult result = enter(ENTRY_cuMemAddressFree, NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    struct reservation *reservation = reservation_find(address);
    if (!reservation || reservation->kind != RESERVED_ADDRESSES || reservation->start != address ||
        reservation->bytes != bytes || reservation->mapping_count)
        return leave(CUDA_ERROR_INVALID_VALUE);
    reservation_destroy(reservation);
    return leave(CUDA_SUCCESS);
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    CUresult result = enter(ENTRY_cuMemMap, NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    struct physical *physical = handle_find(&emulated.physicals, handle);
    struct reservation *reservation = reservation_find(address);
    if (!physical || !reservation || reservation->kind != RESERVED_ADDRESSES || flags || offset ||
        !granular(address) || !granular(bytes) || bytes > physical->bytes)
        return leave(CUDA_ERROR_INVALID_VALUE);
    result = reservation_map(reservation, address, bytes, physical);
    if (!result)
        physical->refs++;
    return leave(result);
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    CUresult result = enter(ENTRY_cuMemUnmap, NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    struct reservation *reservation = reservation_find(address);
    size_t first, end;
    if (!reservation || reservation->kind != RESERVED_ADDRESSES ||
        !mappings_cover(reservation, address, bytes, true, &first, &end))
        return leave(CUDA_ERROR_INVALID_VALUE);
    hazard_check(ENTRY_cuMemUnmap, address, bytes, true);
    /* The lock may have been dropped: look again. */
    reservation = reservation_find(address);
    if (!reservation || !mappings_cover(reservation, address, bytes, true, &first, &end))
        return leave(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = first; i < end; i++)
        physical_unref(reservation->mappings[i].physical);
    memmove(&reservation->mappings[first], &reservation->mappings[end],
            (reservation->mapping_count - end) * sizeof(*reservation->mappings));
    reservation->mapping_count -= end - first;
    return leave(CUDA_SUCCESS);
}

static bool access_valid(const CUmemAccessDesc *access)
{
    return access->location.type == CU_MEM_LOCATION_TYPE_DEVICE && access->location.id >= 0 &&
           (unsigned)access->location.id < emulated.config.devices &&
           (access->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
            access->flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
            access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access,
                        size_t count)
{
    CUresult result = enter(ENTRY_cuMemSetAccess, NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    struct reservation *reservation = reservation_find(address);
    size_t first, end;
    if (!access || !count || !reservation || reservation->kind != RESERVED_ADDRESSES ||
        !mappings_cover(reservation, address, bytes, true, &first, &end))
        return leave(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++) {
        if (!access_valid(&access[i]))
            return leave(CUDA_ERROR_INVALID_VALUE);
    }
    for (size_t i = first; i < end; i++) {
        for (size_t j = 0; j < count; j++)
            reservation->mappings[i].access[access[j].location.id] = (uint8_t)access[j].flags;
    }
    return leave(CUDA_SUCCESS);
}
