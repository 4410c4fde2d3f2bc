#include "core/budget.h"

#include <errno.h>
#include <stdatomic.h>

#define BUDGET_NUMERATOR   9
#define BUDGET_DENOMINATOR 10

/* A setting as one atomic word: the kind in the top two bits, the value in the rest. */
#define SETTING_KIND_SHIFT 62
#define SETTING_VALUE_MASK (((uint64_t)1 << SETTING_KIND_SHIFT) - 1)

static uint64_t setting_pack(struct budget_setting setting)
{
    return (uint64_t)setting.kind << SETTING_KIND_SHIFT | MIN(setting.value, SETTING_VALUE_MASK);
}

static struct budget_setting setting_unpack(uint64_t word)
{
    return (struct budget_setting){.kind = (enum budget_kind)(word >> SETTING_KIND_SHIFT),
                                   .value = word & SETTING_VALUE_MASK};
}

static uint64_t scaled(uint64_t bytes, uint64_t numerator, uint64_t denominator)
{
    return (uint64_t)((unsigned __int128)bytes * numerator / denominator);
}

void budget_init(struct budget *budget, uint64_t total_bytes, struct budget_setting setting)
{
    budget->total_bytes = total_bytes;
    atomic_init(&budget->resident_bytes, 0);
    atomic_init(&budget->setting, setting_pack(setting));
}

void budget_set(struct budget *budget, struct budget_setting setting)
{
    atomic_store(&budget->setting, setting_pack(setting));
}

uint64_t budget_ceiling_bytes(uint64_t total_bytes, struct budget_setting setting)
{
    uint64_t ceiling = scaled(total_bytes, BUDGET_NUMERATOR, BUDGET_DENOMINATOR);

    if (setting.kind == BUDGET_BYTES)
        return MIN(ceiling, setting.value);
    if (setting.kind == BUDGET_PERCENT)
        return MIN(ceiling, scaled(total_bytes, setting.value, 100));
    return ceiling;
}

uint64_t budget_limit_bytes(uint64_t ceiling_bytes, uint64_t live_free_bytes,
                            uint64_t resident_bytes)
{
    if (resident_bytes >= ceiling_bytes)
        return resident_bytes;
    return resident_bytes + MIN(ceiling_bytes - resident_bytes,
                                scaled(live_free_bytes, BUDGET_NUMERATOR, BUDGET_DENOMINATOR));
}

errint_t budget_reserve(struct budget *budget, uint64_t bytes, uint64_t live_free_bytes)
{
    uint64_t ceiling =
        budget_ceiling_bytes(budget->total_bytes, setting_unpack(atomic_load(&budget->setting)));
    uint64_t resident = atomic_load(&budget->resident_bytes);

    do {
        uint64_t limit = budget_limit_bytes(ceiling, live_free_bytes, resident);
        if (bytes > limit - resident)
            return -ENOSPC;
    } while (!atomic_compare_exchange_weak(&budget->resident_bytes, &resident, resident + bytes));
    return 0;
}

void budget_release(struct budget *budget, uint64_t bytes)
{
    atomic_fetch_sub(&budget->resident_bytes, bytes);
}

void budget_get_report(struct budget *budget, uint64_t live_free_bytes,
                       struct budget_report *report)
{
    report->setting = setting_unpack(atomic_load(&budget->setting));
    report->total_bytes = budget->total_bytes;
    report->free_bytes = live_free_bytes;
    report->resident_bytes = atomic_load(&budget->resident_bytes);
    report->limit_bytes =
        budget_limit_bytes(budget_ceiling_bytes(budget->total_bytes, report->setting),
                           live_free_bytes, report->resident_bytes);
    report->available_bytes = report->limit_bytes - report->resident_bytes;
}
