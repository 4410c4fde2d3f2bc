#include "core/size_text.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char units[] = "KMGT";

errint_t size_text_parse(const char *text, size_t length, uint64_t *bytes)
{
    uint64_t value = 0;
    bool overflow = false;
    size_t at = 0;

    for (; at < length && text[at] >= '0' && text[at] <= '9'; at++) {
        overflow |= __builtin_mul_overflow(value, 10u, &value);
        overflow |= __builtin_add_overflow(value, (uint64_t)(text[at] - '0'), &value);
    }
    if (at == 0)
        return -EINVAL;
    if (at < length) {
        const char *unit = text[at] ? strchr(units, toupper((unsigned char)text[at])) : NULL;

        if (!unit)
            return -EINVAL;
        at++;
        if (length - at == 2 && memcmp(text + at, "iB", 2) == 0)
            at += 2;
        overflow |= __builtin_mul_overflow(value, KIB << (10 * (unit - units)), &value);
    }
    if (at != length)
        return -EINVAL;
    if (overflow)
        return -ERANGE;
    *bytes = value;
    return 0;
}

char *size_text_format(uint64_t bytes, char out[SIZE_TEXT_BYTES])
{
    int unit = -1;

    while (bytes != 0 && bytes % KIB == 0 && unit + 1 < (int)sizeof(units) - 1) {
        bytes /= KIB;
        unit++;
    }
    if (unit < 0)
        snprintf(out, SIZE_TEXT_BYTES, "%" PRIu64, bytes);
    else
        snprintf(out, SIZE_TEXT_BYTES, "%" PRIu64 "%ciB", bytes, units[unit]);
    return out;
}
