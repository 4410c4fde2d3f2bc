#include "core/budget_setting.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static errint_t parse_percent(const char *digits, size_t length, struct budget_setting *setting)
{
    unsigned value = 0;

    if (length < 1 || length > 3)
        return -EINVAL;
    for (size_t i = 0; i < length; i++) {
        if (digits[i] < '0' || digits[i] > '9')
            return -EINVAL;
        value = value * 10 + (unsigned)(digits[i] - '0');
    }
    if (value < 1 || value > 100)
        return -EINVAL;
    *setting = (struct budget_setting){.kind = BUDGET_PERCENT, .value = value};
    return 0;
}

errint_t budget_setting_parse(const char *text, size_t length, struct budget_setting *setting)
{
    uint64_t bytes;

    if (length > 0 && text[length - 1] == '\n')
        length--;
    if (length == 0)
        return -EINVAL;
    if (length == 4 && memcmp(text, "auto", 4) == 0) {
        *setting = (struct budget_setting){.kind = BUDGET_AUTO};
        return 0;
    }
    if (text[length - 1] == '%')
        return parse_percent(text, length - 1, setting);
    if (size_text_parse(text, length, &bytes) < 0 || bytes == 0)
        return -EINVAL;
    *setting = (struct budget_setting){.kind = BUDGET_BYTES, .value = bytes};
    return 0;
}

char *budget_setting_format(const struct budget_setting *setting,
                            char out[BUDGET_SETTING_TEXT_BYTES])
{
    switch (setting->kind) {
    case BUDGET_AUTO:
        snprintf(out, BUDGET_SETTING_TEXT_BYTES, "auto");
        break;
    case BUDGET_PERCENT:
        snprintf(out, BUDGET_SETTING_TEXT_BYTES, "%" PRIu64 "%%", setting->value);
        break;
    case BUDGET_BYTES:
        size_text_format(setting->value, out);
        break;
    }
    return out;
}
