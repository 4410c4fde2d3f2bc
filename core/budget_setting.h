/*
 * What the user asked the budget to be: `auto`, so many bytes, or a percentage of the device's
 * memory. The option `budget=`, the INI file and writes to .resident/budget all go through the one
 * parser here.
 */
#ifndef RESIDENTFS_CORE_BUDGET_SETTING_H
#define RESIDENTFS_CORE_BUDGET_SETTING_H

#include "core/size_text.h"

enum budget_kind { BUDGET_AUTO, BUDGET_BYTES, BUDGET_PERCENT };

struct budget_setting {
    enum budget_kind kind;
    uint64_t value; /* AUTO: 0. BYTES: bytes, over 0. PERCENT: 1 to 100, of total memory. */
};

/* What a setting may look like, for messages. */
#define BUDGET_SETTING_FORMS "auto, 1%..100%, or a size over 0 such as 12GiB"

/* Room for any setting as text, with the NUL. */
#define BUDGET_SETTING_TEXT_BYTES SIZE_TEXT_BYTES

/*
 * Reads exactly LENGTH bytes, which need no NUL and may end in one newline.
 * -EINVAL for everything that is not one of the forms; *SETTING is set only on success.
 */
errint_t budget_setting_parse(const char *text, size_t length, struct budget_setting *setting);

/* As text that budget_setting_parse reads back to the same setting. Returns OUT. */
char *budget_setting_format(const struct budget_setting *setting,
                            char out[BUDGET_SETTING_TEXT_BYTES]);

#endif
