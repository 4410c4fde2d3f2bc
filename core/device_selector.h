/*
 * Which device or devices the user named, as text taken apart; whether they exist is found out
 * later.
 */
#ifndef RESIDENTFS_CORE_DEVICE_SELECTOR_H
#define RESIDENTFS_CORE_DEVICE_SELECTOR_H

#include "core/util.h"

enum device_driver { DEVICE_DRIVER_CUDA, DEVICE_DRIVER_EMULATED };

enum device_select {
    DEVICE_SELECT_INDEX, /* index */
    DEVICE_SELECT_UUID,  /* id is "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", lower-case hex */
    DEVICE_SELECT_PCI,   /* id is "domain:bus:device.function", lower-case hex, all parts present */
    DEVICE_SELECT_ALL,   /* every device; count is set for the emulated driver */
};

#define DEVICE_SELECTOR_ID_BYTES     48
#define DEVICE_SELECTOR_MAX_INDEX    1023
#define DEVICE_SELECTOR_MAX_EMULATED 64

struct device_selector {
    enum device_driver driver;
    enum device_select select;
    unsigned index;                    /* INDEX only, else 0 */
    unsigned count;                    /* emulated: how many devices to make, at least 1; cuda: 0 */
    char id[DEVICE_SELECTOR_ID_BYTES]; /* UUID and PCI only, else "" */
    char
        text[DEVICE_SELECTOR_ID_BYTES + 16]; /* as the user wrote it; what df shows as the source */
};

/* The forms that device_selector_parse takes, for messages. */
#define DEVICE_SELECTOR_FORMS \
    "cuda:0 | cuda:GPU-<uuid> | cuda:<pci bus id> | cuda:all | emulated | emulated:<count>"

/*
 * `emulated` is index 0 of one emulated device; `emulated:<count>` (1 to 64) is all of so many.
 * -EINVAL when TEXT is none of the forms; *SELECTOR is set only on success.
 */
errint_t device_selector_parse(const char *text, struct device_selector *selector);

#endif
