/*
 * The settings: RESIDENTFS_EMULATED="key=value;key=value". Bytes may end in KiB, MiB, GiB or TiB.
 *
 *   devices=1          how many, up to 16
 *   memory=4GiB        of each device
 *   seed=N             of everything random; without it another one each time
 *   order=random       each operation may run late, streams in any order; sync: nothing runs until
 *                      it is waited for or queried; eager: at once, on the engine's threads
 *   scribble=on|off    a page-locked readback destination is spoilt when the copy is queued;
 *                      without it: on, except with order=eager
 *   hazard=abort       memory taken away under queued copies, the null stream; or count
 *   fill=on            fresh memory gets a pattern; off for large streaming runs
 *   bandwidth=0        bytes per second; latency=0 in ns, of each operation; 0: none
 *   other=0            bytes that another process seems to use; other_file=PATH holds such a
 *                      number, read again each time
 *   pinned=BYTES       how much host memory can be page-locked
 *   batch=on           off: no cuMemcpyBatchAsync (as asked for when the driver is opened)
 *   vmm=on             off: no virtual-memory API; refuse: claimed, but cuMemCreate fails
 *   export=on          off: cuMemCreate refuses exportable chunks
 *   fault=RULE         see faults.c; may be repeated; "none" removes all rules
 */
#include "core/driver/emulated/emulated.h"

#include "core/driver/cuda_error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static bool parse_number(const char *text, uint64_t *value)
{
    char *end;
    errno = 0;
    if (*text < '0' || *text > '9')
        return false;
    *value = strtoull(text, &end, 0);
    return !errno && !*end;
}

/* A decimal number with an optional suffix KiB, MiB, GiB or TiB. */
static bool parse_bytes(const char *text, uint64_t *value)
{
    static const struct {
        const char *suffix;
        unsigned shift;
    } units[] = {{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
    char *end;
    errno = 0;
    if (*text < '0' || *text > '9')
        return false;
    uint64_t number = strtoull(text, &end, 10);
    if (errno)
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(units); i++) {
        if (!strcmp(end, units[i].suffix)) {
            *value = number << units[i].shift;
            return *value >> units[i].shift == number;
        }
    }
    return false;
}

static bool parse_switch(const char *text, bool *value)
{
    bool on = !strcmp(text, "on") || !strcmp(text, "1");
    if (!on && strcmp(text, "off") && strcmp(text, "0"))
        return false;
    *value = on;
    return true;
}

/* One of NAMES, which ends with NULL. */
static bool parse_choice(const char *text, const char *const *names, int *value)
{
    for (int i = 0; names[i]; i++) {
        if (!strcmp(text, names[i])) {
            *value = i;
            return true;
        }
    }
    return false;
}

CUresult config_parse_result(const char *text, CUresult *result)
{
    uint64_t number;
    if (parse_number(text, &number) && number && number < 10000) {
        *result = (CUresult)number;
        return CUDA_SUCCESS;
    }
#define NAMED_RESULT(name, value) \
    if (!strcmp(text, #name)) {   \
        *result = name;           \
        return CUDA_SUCCESS;      \
    }
    CUDA_RESULTS(NAMED_RESULT)
#undef NAMED_RESULT
    return CUDA_ERROR_INVALID_VALUE;
}

static bool set_devices(struct config *config, const char *value)
{
    uint64_t number;
    if (!parse_number(value, &number) || number > MAX_DEVICES)
        return false;
    if (emulated.initialised && number != config->devices)
        return false;
    config->devices = (unsigned)number;
    return true;
}

static bool set_seed(struct config *config, const char *value)
{
    if (!parse_number(value, &config->seed))
        return false;
    /* Any seed, 0 too, must give a state that is not 0. */
    emulated.random = (config->seed ^ 0x9E3779B97F4A7C15u) | 1;
    return true;
}

static bool set_other_file(struct config *config, const char *value)
{
    char *copy = *value ? strdup(value) : NULL;
    if (*value && !copy)
        return false;
    free(config->other_file);
    config->other_file = copy;
    return true;
}

static bool set_fault(const char *value)
{
    if (strcmp(value, "none"))
        return fault_add(value) == CUDA_SUCCESS;
    fault_clear();
    return true;
}

static bool set(struct config *config, const char *key, const char *value)
{
    static const char *const orders[] = {"random", "sync", "eager", NULL};
    static const char *const vmms[] = {"on", "off", "refuse", NULL};
    static const char *const hazards[] = {"count", "abort", NULL};
    int choice;
    bool flag;
    if (!strcmp(key, "devices"))
        return set_devices(config, value);
    if (!strcmp(key, "memory"))
        return parse_bytes(value, &config->memory_bytes);
    if (!strcmp(key, "seed"))
        return set_seed(config, value);
    if (!strcmp(key, "order")) {
        if (!parse_choice(value, orders, &choice))
            return false;
        config->order = (enum order)choice;
        return true;
    }
    if (!strcmp(key, "vmm")) {
        if (!parse_choice(value, vmms, &choice))
            return false;
        config->vmm = (enum vmm)choice;
        return true;
    }
    if (!strcmp(key, "hazard")) {
        if (!parse_choice(value, hazards, &choice))
            return false;
        config->hazard_aborts = choice;
        return true;
    }
    if (!strcmp(key, "scribble")) {
        if (!parse_switch(value, &flag))
            return false;
        config->scribble = flag;
        return true;
    }
    if (!strcmp(key, "fill"))
        return parse_switch(value, &config->fill);
    if (!strcmp(key, "batch"))
        return parse_switch(value, &config->batch);
    if (!strcmp(key, "export"))
        return parse_switch(value, &config->export);
    if (!strcmp(key, "bandwidth"))
        return parse_bytes(value, &config->bandwidth);
    if (!strcmp(key, "latency"))
        return parse_number(value, &config->latency_ns);
    if (!strcmp(key, "other"))
        return parse_bytes(value, &config->other_bytes);
    if (!strcmp(key, "other_file"))
        return set_other_file(config, value);
    if (!strcmp(key, "pinned"))
        return parse_bytes(value, &config->pinned_bytes);
    if (!strcmp(key, "fault"))
        return set_fault(value);
    fprintf(stderr,
            "residentfs-emulated: RESIDENTFS_EMULATED: no key is called '%s'; there are devices, "
            "memory, seed, order, scribble, hazard, fill, bandwidth, latency, other, other_file, "
            "pinned, batch, vmm, export, fault\n",
            key);
    return false;
}

static void set_defaults(struct config *config)
{
    *config = (struct config){
        .devices = 1,
        .memory_bytes = 4 * GIB,
        .scribble = -1,
        .hazard_aborts = true,
        .fill = true,
        .batch = true,
        .export = true,
        .pinned_bytes = UINT64_MAX,
    };
    if (getrandom(&config->seed, sizeof(config->seed), 0) != sizeof(config->seed))
        config->seed = monotonic_ns();
    emulated.random = (config->seed ^ 0x9E3779B97F4A7C15u) | 1;
}

/* NULL sets the defaults. */
CUresult config_apply(const char *text)
{
    if (!text) {
        set_defaults(&emulated.config);
        return CUDA_SUCCESS;
    }
    cleanup_free char *copy = strdup(text);
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    char *rest = copy, *part;
    while ((part = strsep(&rest, ";"))) {
        if (!*part)
            continue;
        char *value = strchr(part, '=');
        if (value)
            *value++ = 0;
        if (!value || !set(&emulated.config, part, value)) {
            fprintf(stderr, "residentfs-emulated: RESIDENTFS_EMULATED: cannot use '%s%s%s'\n", part,
                    value ? "=" : "", value ? value : "");
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

uint64_t config_other_bytes(void)
{
    const struct config *config = &emulated.config;
    if (!config->other_file)
        return config->other_bytes;
    FILE *file = fopen(config->other_file, "re");
    unsigned long long bytes = config->other_bytes;
    if (file) {
        if (fscanf(file, "%llu", &bytes) != 1)
            bytes = config->other_bytes;
        fclose(file);
    }
    return bytes;
}

bool config_scribbles(void)
{
    if (emulated.config.scribble >= 0)
        return emulated.config.scribble;
    return emulated.config.order != ORDER_EAGER;
}
