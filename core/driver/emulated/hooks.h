/*
 * What tests may ask of the emulated driver besides CUDA: found with dlsym in struct driver's
 * library. Any thread may call any of them at any time.
 */
#ifndef RESIDENTFS_CORE_DRIVER_EMULATED_HOOKS_H
#define RESIDENTFS_CORE_DRIVER_EMULATED_HOOKS_H

#include <stdint.h>

struct residentfs_emulated_stats {
    uint64_t seed;           /* the seed in force, for repeating a run */
    uint64_t streams;        /* created and not destroyed */
    uint64_t events;         /* created and not destroyed */
    uint64_t handles;        /* of physical memory, created or imported, not released */
    uint64_t physical_bytes; /* charged to the devices by this process */
    uint64_t reservations;   /* by cuMemAddressReserve, not freed */
    uint64_t mappings;       /* by cuMemMap, not unmapped */
    uint64_t allocations;    /* by cuMemAlloc or an opened IPC handle */
    uint64_t host_ranges;    /* page-locked ranges: allocated or registered */
    uint64_t host_bytes;     /* in them */
    uint64_t contexts;       /* primary contexts retained */
    uint64_t queued;         /* operations submitted and not finished */
    uint64_t hazards;        /* misuses seen, with hazard=count */
};

/*
 * Applies TEXT, in the syntax of the environment variable RESIDENTFS_EMULATED, at once. Rules are
 * added, counting from now; "fault=none" first removes all rules and revives lost devices. Returns
 * a CUresult. "devices" cannot change after cuInit.
 */
int residentfs_emulated_configure(const char *text);

/* How often an entry point (name without version suffix) was called; 0 if there is none. */
uint64_t residentfs_emulated_call_count(const char *entry);

void residentfs_emulated_stats(struct residentfs_emulated_stats *stats);

#endif
