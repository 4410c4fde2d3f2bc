/*
 * How many bytes resident buffers may take on one device. A caller reserves here first, then asks
 * the driver for memory, and gives the reservation back if that fails. Lock-free: one
 * compare-and-swap.
 */
#ifndef RESIDENTFS_CORE_BUDGET_H
#define RESIDENTFS_CORE_BUDGET_H

#include <stdint.h>

#include "core/budget_setting.h"
#include "core/util.h"

struct budget {
    uint64_t total_bytes;            /* of the device; constant */
    _Atomic uint64_t resident_bytes; /* taken, reservations included */
    _Atomic uint64_t setting;        /* struct budget_setting, packed: see budget.c */
};

struct budget_report {
    uint64_t total_bytes, free_bytes, limit_bytes, resident_bytes, available_bytes;
    struct budget_setting setting;
};

void budget_init(struct budget *budget, uint64_t total_bytes, struct budget_setting setting);

/* May be called at any time; memory already taken stays. */
void budget_set(struct budget *budget, struct budget_setting setting);

/*
 * The contract's arithmetic. ceiling_bytes is T; budget_ceiling_bytes gives it for a setting:
 * total*9/10, lowered (never raised) by the setting.
 */
uint64_t budget_ceiling_bytes(uint64_t total_bytes, struct budget_setting setting);
uint64_t budget_limit_bytes(uint64_t ceiling_bytes, uint64_t live_free_bytes,
                            uint64_t resident_bytes);

/* 0, or -ENOSPC and nothing reserved. live_free_bytes: what the driver says is free now. */
errint_t budget_reserve(struct budget *budget, uint64_t bytes, uint64_t live_free_bytes);
void budget_release(struct budget *budget, uint64_t bytes);

void budget_get_report(struct budget *budget, uint64_t live_free_bytes,
                       struct budget_report *report);

#endif
