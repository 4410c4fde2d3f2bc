/* Opens an emulated device for a unit test, as adversarial as it comes. */
#ifndef RESIDENTFS_TESTS_FIXTURE_H
#define RESIDENTFS_TESTS_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dlfcn.h>

#include "core/buffer.h"
#include "core/device.h"
#include "core/driver/emulated/hooks.h"

#define FIXTURE_DEFAULTS                                                                   \
    "memory=256MiB;order=random;batch=on;vmm=on;fill=on;hazard=abort;scribble=on;other=0;" \
    "pinned=1TiB;latency=0;bandwidth=0;fault=none;"

static inline void *fixture_hook(const char *name)
{
    static void *library;

    if (!library)
        library = dlopen(getenv("RESIDENTFS_EMULATED_LIBRARY"), RTLD_NOW);
    void *hook = library ? dlsym(library, name) : NULL;
    if (!hook)
        fail_msg("%s: %s", name, dlerror());
    return hook;
}

/* DEVICE=cuda:0 runs the tests that know nothing of the emulated driver on a GPU. */
static inline bool fixture_is_emulated(void)
{
    const char *name = getenv("DEVICE");

    return !name || strncmp(name, "cuda", 4) != 0;
}

/* SETTINGS as in RESIDENTFS_EMULATED; may be called while the device is open. */
static inline void fixture_configure(const char *settings)
{
    if (!fixture_is_emulated())
        return;
    int (*configure)(const char *) =
        (int (*)(const char *))fixture_hook("residentfs_emulated_configure");
    int result = configure(settings);

    if (result != 0)
        fail_msg("RESIDENTFS_EMULATED=\"%s\" is refused: %d", settings, result);
}

static inline struct residentfs_emulated_stats fixture_stats(void)
{
    struct residentfs_emulated_stats stats;
    void (*get)(struct residentfs_emulated_stats *) =
        (void (*)(struct residentfs_emulated_stats *))fixture_hook("residentfs_emulated_stats");

    get(&stats);
    return stats;
}

/* Starts from the defaults above. Fails the test if the device cannot be opened. */
static inline struct device *fixture_open(const char *settings, struct device_options *options)
{
    struct device_options defaults = {
        .budget = {.kind = BUDGET_AUTO},
        .staging_bytes = 1 * MIB,
        .upload_streams = 2,
        .flush_interval_ms = 5,
        .direct_threshold_bytes = 64 * KIB,
    };
    struct device_selector selector = {
        .driver = DEVICE_DRIVER_EMULATED, .select = DEVICE_SELECT_INDEX, .text = "emulated"};
    struct device *device = NULL;
    char message[512] = "";

    fixture_configure(FIXTURE_DEFAULTS);
    fixture_configure(settings);
    if (!fixture_is_emulated() && device_selector_parse(getenv("DEVICE"), &selector) < 0)
        fail_msg("DEVICE=%s", getenv("DEVICE"));
    if (device_open(&selector, options ? options : &defaults, &device, message, sizeof(message)) <
        0)
        fail_msg("device_open: %s", message);
    return device;
}

/* Closes the device and fails the test if it leaves anything of the driver's behind. */
static inline void fixture_close(struct device *device)
{
    device_close(device);
    if (!fixture_is_emulated())
        return;
    struct residentfs_emulated_stats stats = fixture_stats();
    assert_int_equal(stats.streams, 0);
    assert_int_equal(stats.events, 0);
    assert_int_equal(stats.handles, 0);
    assert_int_equal(stats.physical_bytes, 0);
    assert_int_equal(stats.reservations, 0);
    assert_int_equal(stats.mappings, 0);
    assert_int_equal(stats.host_ranges, 0);
    assert_int_equal(stats.contexts, 0);
    assert_int_equal(stats.queued, 0);
    assert_int_equal(stats.hazards, 0);
}

/* A buffer of LENGTH bytes that are all BYTE, on the device. */
static inline struct buffer *filled(struct device *device, uint64_t id, int byte, size_t length)
{
    struct buffer *buffer = buffer_create(device, id);
    unsigned char *bytes = malloc(length);

    memset(bytes, byte, length);
    assert_int_equal(buffer_write(buffer, 0, bytes, length, NULL), length);
    assert_int_equal(buffer_flush(buffer), 0);
    free(bytes);
    return buffer;
}

static inline void expect_all(struct buffer *buffer, uint64_t offset, int byte, size_t length)
{
    unsigned char *back = malloc(length);

    assert_int_equal(buffer_read(buffer, offset, back, length), length);
    for (size_t i = 0; i < length; i++)
        if (back[i] != byte)
            fail_msg("byte %llu is %02x, not %02x", (unsigned long long)offset + i, back[i], byte);
    free(back);
}

/* A seed for random sequences: SEED from the environment, or a new one; printed either way. */
static inline unsigned int fixture_seed(void)
{
    const char *text = getenv("SEED");
    unsigned int seed =
        text ? (unsigned int)strtoul(text, NULL, 10) : (unsigned int)(monotonic_ns() / 1000);

    printf("SEED=%u\n", seed);
    fflush(stdout);
    return seed;
}

/* A small generator of its own, so that a seed means the same everywhere. */
static inline uint32_t fixture_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

#endif
