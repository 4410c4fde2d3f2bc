#include "core/device_selector.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Decimal digits only, at least one, up to LIMIT. */
static bool parse_number(const char *text, unsigned limit, unsigned *value)
{
    unsigned result = 0;

    if (*text == '\0')
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return false;
        result = result * 10 + (unsigned)(*text - '0');
        if (result > limit)
            return false;
    }
    *value = result;
    return true;
}

/* TEXT against PATTERN, where 'x' stands for a hexadecimal digit. */
static bool matches(const char *text, const char *pattern)
{
    for (; *pattern; text++, pattern++) {
        if (*pattern == 'x' ? !isxdigit((unsigned char)*text) : *text != *pattern)
            return false;
    }
    return *text == '\0';
}

static void copy_lower(char *out, const char *text)
{
    for (; *text; text++)
        *out++ = (char)tolower((unsigned char)*text);
    *out = '\0';
}

/* The shapes in which drivers and tools print a PCI bus id, and the domain to put before each. */
static bool parse_pci(const char *text, char id[DEVICE_SELECTOR_ID_BYTES])
{
    static const struct {
        const char *pattern, *before, *after;
    } shapes[] = {
        {"xxxx:xx:xx.x", "", ""}, {"xxxxxxxx:xx:xx.x", "", ""}, {"xx:xx.x", "0000:", ""},
        {"xxxx:xx:xx", "", ".0"}, {"xxxxxxxx:xx:xx", "", ".0"}, {"xx:xx", "0000:", ".0"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
        char whole[DEVICE_SELECTOR_ID_BYTES];

        if (!matches(text, shapes[i].pattern))
            continue;
        snprintf(whole, sizeof(whole), "%s%s%s", shapes[i].before, text, shapes[i].after);
        copy_lower(id, whole);
        return true;
    }
    return false;
}

static bool parse_cuda(const char *which, struct device_selector *selector)
{
    selector->driver = DEVICE_DRIVER_CUDA;
    if (strcmp(which, "all") == 0) {
        selector->select = DEVICE_SELECT_ALL;
        return true;
    }
    if (matches(which, "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")) {
        selector->select = DEVICE_SELECT_UUID;
        memcpy(selector->id, "GPU-", 4);
        copy_lower(selector->id + 4, which + 4);
        return true;
    }
    if (parse_number(which, DEVICE_SELECTOR_MAX_INDEX, &selector->index)) {
        selector->select = DEVICE_SELECT_INDEX;
        return true;
    }
    selector->select = DEVICE_SELECT_PCI;
    return parse_pci(which, selector->id);
}

static bool parse_emulated(const char *count, struct device_selector *selector)
{
    selector->driver = DEVICE_DRIVER_EMULATED;
    selector->select = DEVICE_SELECT_ALL;
    return parse_number(count, DEVICE_SELECTOR_MAX_EMULATED, &selector->count) &&
           selector->count >= 1;
}

errint_t device_selector_parse(const char *text, struct device_selector *selector)
{
    struct device_selector result = {0};

    if (strlen(text) >= sizeof(result.text))
        return -EINVAL;
    strcpy(result.text, text);
    if (strcmp(text, "emulated") == 0) {
        result.driver = DEVICE_DRIVER_EMULATED;
        result.select = DEVICE_SELECT_INDEX;
        result.count = 1;
    } else if (strncmp(text, "cuda:", 5) == 0) {
        if (!parse_cuda(text + 5, &result))
            return -EINVAL;
    } else if (strncmp(text, "emulated:", 9) == 0) {
        if (!parse_emulated(text + 9, &result))
            return -EINVAL;
    } else {
        return -EINVAL;
    }
    *selector = result;
    return 0;
}
