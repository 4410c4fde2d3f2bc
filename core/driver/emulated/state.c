/* Entering and leaving, handles, contexts' threads, cuInit, cuGetProcAddress, the hooks. */
#include "core/driver/emulated/emulated.h"

#include "core/driver/cuda_error.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct emulated emulated = {.lock = PTHREAD_MUTEX_INITIALIZER};

const char *const entry_names[ENTRY_COUNT] = {
#define ENTRY_NAME(name, suffix, asked, need, parameters) #name,
    CUDA_ENTRY_POINTS(ENTRY_NAME)
#undef ENTRY_NAME
};

static _Thread_local struct device *thread_device;

/* The process that called cuInit; read without the lock, which a fork may have left locked. */
static atomic_int init_pid;

static bool forked(void)
{
    int pid = atomic_load_explicit(&init_pid, memory_order_relaxed);
    return pid && pid != getpid();
}

static void ensure_configured(void)
{
    if (emulated.configured)
        return;
    emulated.configured = true;
    emulated.bad_config = config_apply(NULL) != CUDA_SUCCESS;
    const char *text = getenv("RESIDENTFS_EMULATED");
    if (!emulated.bad_config && text)
        emulated.bad_config = config_apply(text) != CUDA_SUCCESS;
}

CUresult leave(CUresult result)
{
    pthread_mutex_unlock(&emulated.lock);
    return result;
}

static bool any_lost(CUresult *result)
{
    for (unsigned i = 0; i < emulated.config.devices; i++) {
        if (emulated.devices[i].lost) {
            *result = emulated.devices[i].lost;
            return true;
        }
    }
    return false;
}

CUresult enter(enum entry entry, unsigned needs, struct verdict *verdict)
{
    struct verdict ignored;
    if (!verdict)
        verdict = &ignored;
    *verdict = (struct verdict){CUDA_SUCCESS, CUDA_SUCCESS};
    if (forked())
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&emulated.lock);
    ensure_configured();
    uint64_t delay_us = 0;
    CUresult result = fault_check(entry, verdict, &delay_us);
    if (delay_us) {
        pthread_mutex_unlock(&emulated.lock);
        usleep((useconds_t)delay_us);
        pthread_mutex_lock(&emulated.lock);
    }
    if (result)
        return leave(result);
    if (needs && !emulated.initialised)
        return leave(CUDA_ERROR_NOT_INITIALIZED);
    if (needs & NEEDS_CONTEXT) {
        if (!thread_device)
            return leave(CUDA_ERROR_INVALID_CONTEXT);
        if (!thread_device->retained)
            return leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    }
    if (needs & NEEDS_DEVICE) {
        if (thread_device && thread_device->lost)
            return leave(thread_device->lost);
        if (!thread_device && any_lost(&result))
            return leave(result);
    }
    return CUDA_SUCCESS;
}

struct device *current_device(void)
{
    return thread_device;
}

struct device *device_of_context(CUcontext context)
{
    for (unsigned i = 0; i < emulated.config.devices; i++) {
        if ((CUcontext)&emulated.devices[i] == context)
            return &emulated.devices[i];
    }
    return NULL;
}

/* xorshift64* */
uint64_t random_below(uint64_t limit)
{
    uint64_t x = emulated.random;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    emulated.random = x;
    return ((x * 0x2545F4914F6CDD1Du) >> 16) % limit;
}

bool reserve_element(void *array, size_t *capacity, size_t count, size_t size)
{
    if (count < *capacity)
        return true;
    size_t grown = *capacity ? *capacity * 2 : 8;
    void *old, *moved;
    memcpy(&old, array, sizeof(old));
    moved = realloc(old, grown * size);
    if (!moved)
        return false;
    memcpy(array, &moved, sizeof(moved));
    *capacity = grown;
    return true;
}

/* A handle is generation:32, slot:24, tag:8; the tag keeps it from looking like small numbers. */
#define HANDLE_TAG 0x5eu

uint64_t handle_add(struct handles *handles, void *object)
{
    size_t slot = 0;
    if (handles->live == handles->count) {
        size_t capacity = handles->capacity;
        if (!reserve_element(&handles->generations, &capacity, handles->count,
                             sizeof(*handles->generations)))
            return 0;
        capacity = handles->capacity;
        if (!reserve_element(&handles->objects, &capacity, handles->count,
                             sizeof(*handles->objects)))
            return 0;
        handles->capacity = capacity;
        slot = handles->count++;
        handles->generations[slot] = 0;
    } else {
        while (handles->objects[slot])
            slot++;
    }
    handles->objects[slot] = object;
    handles->live++;
    return (uint64_t)handles->generations[slot] << 32 | slot << 8 | HANDLE_TAG;
}

static bool handle_slot(const struct handles *handles, uint64_t handle, size_t *slot)
{
    *slot = (handle >> 8) & 0xffffff;
    return (handle & 0xff) == HANDLE_TAG && *slot < handles->count &&
           handles->generations[*slot] == handle >> 32 && handles->objects[*slot];
}

void *handle_find(struct handles *handles, uint64_t handle)
{
    size_t slot;
    return handle_slot(handles, handle, &slot) ? handles->objects[slot] : NULL;
}

void handle_remove(struct handles *handles, uint64_t handle)
{
    size_t slot;
    if (!handle_slot(handles, handle, &slot))
        return;
    handles->objects[slot] = NULL;
    handles->generations[slot]++;
    handles->live--;
}

CUresult cuInit(unsigned int flags)
{
    CUresult result = enter(ENTRY_cuInit, 0, NULL);
    if (result)
        return result;
    if (flags || emulated.bad_config)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (!emulated.config.devices)
        return leave(CUDA_ERROR_NO_DEVICE);
    if (!emulated.initialised) {
        pthread_condattr_t attributes;
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        for (unsigned i = 0; i < emulated.config.devices; i++) {
            struct device *device = &emulated.devices[i];
            device->ordinal = (int)i;
            pthread_cond_init(&device->work, &attributes);
            pthread_cond_init(&device->done, &attributes);
        }
        pthread_condattr_destroy(&attributes);
        atomic_store_explicit(&init_pid, getpid(), memory_order_relaxed);
        emulated.initialised = true;
    }
    return leave(CUDA_SUCCESS);
}

CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = DRIVER_VERSION;
    return CUDA_SUCCESS;
}

static bool known_result(CUresult result)
{
    return strcmp(cuda_result_name(result), cuda_result_name((CUresult)-1)) != 0;
}

CUresult cuGetErrorName(CUresult result, const char **name)
{
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    *name = known_result(result) ? cuda_result_name(result) : NULL;
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult result, const char **text)
{
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    *text = known_result(result) ? "emulated driver: see the error's name" : NULL;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    CUresult result = enter(ENTRY_cuCtxSetCurrent, NEEDS_INIT, NULL);
    if (result)
        return result;
    struct device *device = context ? device_of_context(context) : NULL;
    if (context && (!device || !device->retained))
        return leave(CUDA_ERROR_INVALID_CONTEXT);
    thread_device = device;
    return leave(CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    CUresult result = enter(ENTRY_cuCtxGetCurrent, NEEDS_INIT, NULL);
    if (result)
        return result;
    if (!context)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *context = (CUcontext)thread_device;
    return leave(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    CUresult result = enter(ENTRY_cuCtxGetDevice, NEEDS_INIT | NEEDS_CONTEXT, NULL);
    if (result)
        return result;
    if (!device)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *device = thread_device->ordinal;
    return leave(CUDA_SUCCESS);
}

struct symbol {
    const char *name;
    int since; /* the API version that the signature came with */
    CUresult (*function)(void);
};

/* Since which version: exact where it matters to a caller that asks for 11.x or 12.x. */
#define SINCE_DEFAULT 4000

static int symbol_since(const char *name)
{
    static const struct {
        const char *name;
        int since;
    } later[] = {
        {"cuDeviceGetUuid", 11040},
        {"cuDevicePrimaryCtxRelease", 11000},
        {"cuDevicePrimaryCtxSetFlags", 11000},
        {"cuIpcOpenMemHandle", 11000},
        {"cuMemHostRegister", 6050},
        {"cuMemcpyBatchAsync", 12080},
        {"cuMemAddressReserve", 10020},
        {"cuMemAddressFree", 10020},
        {"cuMemCreate", 10020},
        {"cuMemRelease", 10020},
        {"cuMemMap", 10020},
        {"cuMemUnmap", 10020},
        {"cuMemSetAccess", 10020},
        {"cuMemGetAllocationGranularity", 10020},
        {"cuMemExportToShareableHandle", 10020},
        {"cuMemRetainAllocationHandle", 11000},
        {"cuMemImportFromShareableHandle", 10020},
        {"cuMemGetAllocationPropertiesFromHandle", 10020},
    };
    for (size_t i = 0; i < ARRAY_SIZE(later); i++) {
        if (!strcmp(later[i].name, name))
            return later[i].since;
    }
    return SINCE_DEFAULT;
}

static const struct symbol *symbol_find(const char *name)
{
    static const struct symbol symbols[ENTRY_COUNT] = {
#define SYMBOL(name, suffix, asked, need, parameters) \
    {#name, 0, (CUresult(*)(void))(uintptr_t)name##suffix},
        CUDA_ENTRY_POINTS(SYMBOL)
#undef SYMBOL
    };
    for (size_t i = 0; i < ENTRY_COUNT; i++) {
        if (!strcmp(symbols[i].name, name))
            return &symbols[i];
    }
    return NULL;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    CUdriverProcAddressQueryResult ignored;
    if (!symbol || !function || version <= 0 ||
        flags & ~(cuuint64_t)(CU_GET_PROC_ADDRESS_LEGACY_STREAM |
                              CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))
        return CUDA_ERROR_INVALID_VALUE;
    if (!status)
        status = &ignored;
    pthread_mutex_lock(&emulated.lock);
    ensure_configured();
    bool batch = emulated.config.batch;
    pthread_mutex_unlock(&emulated.lock);
    *function = NULL;
    const struct symbol *found = symbol_find(symbol);
    bool is_batch = !strcmp(symbol, "cuMemcpyBatchAsync");
    if (!found || (is_batch && !batch) || flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) {
        *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        return CUDA_SUCCESS;
    }
    /* From 13.0 on the name means another signature, which is not here. */
    if (version < symbol_since(symbol) || (is_batch && version >= 13000)) {
        *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        return CUDA_SUCCESS;
    }
    memcpy(function, &found->function, sizeof(*function));
    *status = CU_GET_PROC_ADDRESS_SUCCESS;
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    CUresult result = cuGetProcAddress_v2(symbol, function, version, flags, &status);
    return result || status == CU_GET_PROC_ADDRESS_SUCCESS ? result : CUDA_ERROR_NOT_FOUND;
}

EXPORT int residentfs_emulated_configure(const char *text)
{
    pthread_mutex_lock(&emulated.lock);
    ensure_configured();
    return (int)leave(config_apply(text));
}

EXPORT uint64_t residentfs_emulated_call_count(const char *entry)
{
    uint64_t calls = 0;
    pthread_mutex_lock(&emulated.lock);
    for (int i = 0; i < ENTRY_COUNT; i++) {
        if (!strcmp(entry_names[i], entry))
            calls = emulated.calls[i];
    }
    pthread_mutex_unlock(&emulated.lock);
    return calls;
}

EXPORT void residentfs_emulated_stats(struct residentfs_emulated_stats *stats)
{
    pthread_mutex_lock(&emulated.lock);
    ensure_configured();
    *stats = (struct residentfs_emulated_stats){
        .seed = emulated.config.seed,
        .streams = emulated.streams.live,
        .events = emulated.events.live,
        .host_ranges = emulated.host_range_count,
        .host_bytes = emulated.host_bytes,
        .queued = emulated.queued,
        .hazards = emulated.hazards,
    };
    for (size_t i = 0; i < emulated.physicals.count; i++) {
        struct physical *physical = emulated.physicals.objects[i];
        if (physical)
            stats->handles += physical->handle_refs;
    }
    for (size_t i = 0; i < emulated.reservation_count; i++) {
        struct reservation *reservation = emulated.reservations[i];
        if (reservation->kind == RESERVED_ADDRESSES) {
            stats->reservations++;
            stats->mappings += reservation->mapping_count;
        } else {
            stats->allocations++;
        }
    }
    for (unsigned i = 0; i < emulated.config.devices; i++) {
        stats->physical_bytes += emulated.devices[i].used_bytes;
        stats->contexts += emulated.devices[i].retained;
    }
    pthread_mutex_unlock(&emulated.lock);
}
