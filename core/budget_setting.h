/*
 * What a user may set the budget to: the default, a number of bytes, or a percentage of the
 * device's memory. Plain data; the text form is the one of the option budget= and of
 * .resident/budget.
 */
#ifndef RESIDENTFS_CORE_BUDGET_SETTING_H
#define RESIDENTFS_CORE_BUDGET_SETTING_H

#include <stddef.h>
#include <stdint.h>

#include "core/util.h"

enum budget_setting_kind { BUDGET_AUTO, BUDGET_BYTES, BUDGET_PERCENT };

struct budget_setting {
    enum budget_setting_kind kind;
    uint64_t value; /* bytes, or 1..100 */
};

/*
 * Parses "auto", "80%", "12GiB", "1048576" (one newline at the end is fine). 0, or -EINVAL and
 * *setting untouched.
 */
errint_t budget_setting_parse(const char *text, size_t length, struct budget_setting *setting);

/* The text form. Always fits in 32 bytes. */
void budget_setting_format(struct budget_setting setting, char *text, size_t text_bytes);

#endif
