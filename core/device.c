#include "core/device.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <strings.h>

#include "core/device_internal.h"
#include "core/driver/cuda_error.h"
#include "core/log.h"
#include "core/readahead.h"
#include "core/slab.h"
#include "core/upload.h"

static const char *driver_name(const struct device_selector *selector)
{
    return selector->driver == DEVICE_DRIVER_CUDA ? "cuda" : "emulated";
}

/* -- choosing ---------------------------------------------------------------------------------- */

static errint_t say(char *message, size_t message_bytes, errint_t err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static errint_t say(char *message, size_t message_bytes, errint_t err, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(message, message_bytes, format, args);
    va_end(args);
    return err;
}

/* Loads and initialises the driver; says why not. */
static errint_t open_driver(const char *name, struct driver **out, int *count, char *message,
                            size_t message_bytes)
{
    struct driver *driver;
    errint_t err = driver_open(name, &driver, message, message_bytes);

    if (err < 0)
        return err;
    CUresult result = driver->cuInit(0);
    if (result == CUDA_SUCCESS)
        result = driver->cuDeviceGetCount(count);
    if (result == CUDA_ERROR_NO_DEVICE || (result == CUDA_SUCCESS && *count == 0)) {
        err = say(message, message_bytes, -ENODEV,
                  "the %s driver (%s) finds no device; check nvidia-smi and that this machine or "
                  "container may use a GPU; to try residentfs without one: residentfs emulated "
                  "MOUNTPOINT",
                  name, driver->library_path);
    } else if (result != CUDA_SUCCESS) {
        err = say(message, message_bytes, -EIO,
                  "the %s driver (%s) cannot be initialised: %s; check nvidia-smi", name,
                  driver->library_path, driver_error_name(driver, result));
    }
    if (err < 0) {
        driver_close(driver);
        return err;
    }
    driver->cuDriverGetVersion(&driver->version);
    *out = driver;
    return 0;
}

static void format_uuid(const CUuuid *uuid, char *text, size_t text_bytes)
{
    const unsigned char *b = (const unsigned char *)uuid->bytes;

    snprintf(text, text_bytes,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
             b[15]);
}

static errint_t identify(const struct driver *driver, int index, CUdevice *cuda_device,
                         struct device_identity *identity)
{
    CUuuid uuid;
    size_t total;

    *identity = (struct device_identity){.index = index, .driver_version = driver->version};
    snprintf(identity->driver, sizeof(identity->driver), "%s", driver->name);
    if (driver->cuDeviceGet(cuda_device, index) != CUDA_SUCCESS ||
        driver->cuDeviceGetName(identity->name, sizeof(identity->name), *cuda_device) !=
            CUDA_SUCCESS ||
        driver->cuDeviceGetUuid(&uuid, *cuda_device) != CUDA_SUCCESS ||
        driver->cuDeviceGetPCIBusId(identity->pci_bus_id, sizeof(identity->pci_bus_id),
                                    *cuda_device) != CUDA_SUCCESS ||
        driver->cuDeviceTotalMem(&total, *cuda_device) != CUDA_SUCCESS)
        return -EIO;
    identity->total_bytes = total;
    format_uuid(&uuid, identity->uuid, sizeof(identity->uuid));
    memcpy(identity->uuid_bytes, uuid.bytes, sizeof(identity->uuid_bytes));
    return 0;
}

static bool matches(const struct device_selector *selector, const struct device_identity *identity)
{
    switch (selector->select) {
    case DEVICE_SELECT_UUID:
        return strcasecmp(selector->id, identity->uuid) == 0;
    case DEVICE_SELECT_PCI:
        return strcasecmp(selector->id, identity->pci_bus_id) == 0;
    default:
        return selector->index == (unsigned int)identity->index;
    }
}

static errint_t choose(struct device *device, const struct device_selector *selector, int count,
                       char *message, size_t message_bytes)
{
    for (int i = 0; i < count; i++)
        if (identify(device->driver, i, &device->cuda_device, &device->identity) == 0 &&
            matches(selector, &device->identity))
            return 0;
    return say(message, message_bytes, -ENODEV,
               "%s: no such device: the %s driver has %d, the first is %s:0; see residentfs "
               "--list-devices",
               selector->text, device->driver->name, count, device->driver->name);
}

errint_t device_list(const char *name, FILE *out, char *message, size_t message_bytes)
{
    struct device_identity identity;
    struct driver *driver;
    CUdevice cuda_device;
    int count = 0;
    errint_t err = open_driver(name, &driver, &count, message, message_bytes);

    if (err < 0)
        return err;
    for (int i = 0; i < count; i++) {
        if (identify(driver, i, &cuda_device, &identity) < 0) {
            fprintf(out, "%s:%d  (does not answer)\n", name, i);
            continue;
        }
        fprintf(out, "%s:%d  %s  %s  %s  %.1f GiB\n", name, i, identity.uuid, identity.pci_bus_id,
                identity.name, (double)identity.total_bytes / (double)GIB);
    }
    driver_close(driver);
    return 0;
}

/* -- opening ----------------------------------------------------------------------------------- */

/* By trial: attributes can claim what a call then refuses. */
static CUresult try_chunk(struct device *device, const char **call)
{
    const struct driver *driver = device->driver;
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->cuda_device};
    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes =
            device->exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE,
        .location = location};
    CUmemAccessDesc access = {.location = location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    size_t granularity = 0;

    *call = "cuMemGetAllocationGranularity";
    CUresult result = driver->cuMemGetAllocationGranularity(&granularity, &properties,
                                                            CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (result != CUDA_SUCCESS)
        return result;
    if (granularity == 0 || CHUNK_UNIT_BYTES % granularity != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    *call = "cuMemCreate";
    result = driver->cuMemCreate(&handle, CHUNK_UNIT_BYTES, &properties, 0);
    if (result != CUDA_SUCCESS)
        return result;
    *call = "cuMemAddressReserve";
    result = driver->cuMemAddressReserve(&address, CHUNK_UNIT_BYTES, 0, 0, 0);
    if (result == CUDA_SUCCESS) {
        *call = "cuMemMap";
        result = driver->cuMemMap(address, CHUNK_UNIT_BYTES, 0, handle, 0);
        if (result == CUDA_SUCCESS) {
            *call = "cuMemSetAccess";
            result = driver->cuMemSetAccess(address, CHUNK_UNIT_BYTES, &access, 1);
            driver->cuMemUnmap(address, CHUNK_UNIT_BYTES);
        }
        driver->cuMemAddressFree(address, CHUNK_UNIT_BYTES);
    }
    driver->cuMemRelease(handle);
    return result;
}

static errint_t probe(struct device *device, char *message, size_t message_bytes)
{
    const char *call;

    device->exportable = true;
    CUresult result = try_chunk(device, &call);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
        device->exportable = false;
        CUresult plain = try_chunk(device, &call);
        if (plain == CUDA_SUCCESS) {
            atomic_store(&device->degraded, true);
            log_warning("%s: device memory cannot be exported (%s): files cannot be shared with "
                        "CUDA programs",
                        device->identity.uuid, driver_error_name(device->driver, result));
        }
        result = plain;
    }
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return say(message, message_bytes, -ENOSPC,
                   "%s (%s) has not even 2 MiB of memory free; end other programs that use it "
                   "(nvidia-smi lists them)",
                   device->identity.name, device->identity.uuid);
    if (result != CUDA_SUCCESS)
        return say(message, message_bytes, -EOPNOTSUPP,
                   "%s (%s) has no virtual-memory API, which residentfs needs: %s gave %s; use a "
                   "driver and a device that have it (Linux, Pascal or newer, no vGPU without it)",
                   device->identity.name, device->identity.uuid, call,
                   driver_error_name(device->driver, result));
    return 0;
}

/* What device_attach_thread made current for this thread, so that it can be cheap. */
static _Thread_local CUcontext current;

static void *flusher_main(void *data);

static errint_t start_queues(struct device *device, char *message, size_t message_bytes)
{
    unsigned int count = device->options.upload_streams;
    errint_t err = -ENOMEM;

    device->queues = calloc(count, sizeof(*device->queues));
    for (unsigned int i = 0; device->queues && i < count; i++) {
        err =
            upload_queue_create(device, device->options.staging_bytes / count, &device->queues[i]);
        if (err < 0)
            break;
    }
    if (err == 0)
        err = -pthread_create(&device->flusher, NULL, flusher_main, device);
    if (err < 0)
        return say(message, message_bytes, err, "%s: cannot start %u upload streams: %s",
                   device->identity.uuid, count, strerror(-err));
    device->flusher_started = true;
    return 0;
}

static struct device *device_create(const struct device_options *options)
{
    struct device *device = aligned_alloc(64, align_up(sizeof(*device), 64));

    if (!device)
        return NULL;
    memset(device, 0, sizeof(*device));
    device->options = *options;
    device->options.upload_streams = MAX(options->upload_streams, 1u);
    stream_pool_init(device);
    pthread_mutex_init(&device->slabs.mutex, NULL);
    pthread_mutex_init(&device->lost_mutex, NULL);
    pthread_mutex_init(&device->attachments_mutex, NULL);
    pthread_mutex_init(&device->flusher_mutex, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&device->flusher_wake, &attributes);
    pthread_condattr_destroy(&attributes);
    atomic_store(&device->next_extent_id, 1);
    return device;
}

errint_t device_open(const struct device_selector *selector, const struct device_options *options,
                     struct device **out, char *message, size_t message_bytes)
{
    struct device *device = device_create(options);
    int count = 0;

    if (!device || readahead_pool_init(device) < 0) {
        free(device);
        return say(message, message_bytes, -ENOMEM, "out of memory");
    }
    errint_t err =
        open_driver(driver_name(selector), &device->driver, &count, message, message_bytes);
    if (err == 0)
        err = choose(device, selector, count, message, message_bytes);
    if (err == 0) {
        CUresult result =
            device->driver->cuDevicePrimaryCtxRetain(&device->context, device->cuda_device);
        if (result == CUDA_SUCCESS) {
            device->has_context = true;
            current = NULL;
            result = device->driver->cuCtxSetCurrent(device->context);
        }
        if (result != CUDA_SUCCESS)
            err = say(message, message_bytes, -EIO,
                      "%s (%s): no context: %s; is the device in exclusive mode or out of memory? "
                      "(nvidia-smi)",
                      device->identity.name, device->identity.uuid,
                      driver_error_name(device->driver, result));
    }
    if (err == 0)
        err = probe(device, message, message_bytes);
    if (err == 0) {
        budget_init(&device->budget, device->identity.total_bytes, options->budget);
        err = start_queues(device, message, message_bytes);
    }
    if (err < 0) {
        device_close(device);
        return err;
    }
    *out = device;
    return 0;
}

void device_close(struct device *device)
{
    if (!device)
        return;
    if (device->flusher_started) {
        pthread_mutex_lock(&device->flusher_mutex);
        device->flusher_stop = true;
        pthread_cond_signal(&device->flusher_wake);
        pthread_mutex_unlock(&device->flusher_mutex);
        pthread_join(device->flusher, NULL);
        device_flush(device);
    }
    readahead_pool_finish(device);
    for (unsigned int i = 0; device->queues && i < device->options.upload_streams; i++)
        upload_queue_destroy(device->queues[i]);
    free(device->queues);
    stream_pool_finish(device);
    slab_pool_finish(device);
    if (device->has_context) {
        current = NULL;
        device->driver->cuCtxSetCurrent(NULL);
        device->driver->cuDevicePrimaryCtxRelease(device->cuda_device);
    }
    driver_close(device->driver);
    pthread_mutex_destroy(&device->slabs.mutex);
    pthread_mutex_destroy(&device->lost_mutex);
    pthread_mutex_destroy(&device->attachments_mutex);
    pthread_mutex_destroy(&device->flusher_mutex);
    pthread_cond_destroy(&device->flusher_wake);
    free(device);
}

errint_t device_attach_thread(struct device *device)
{
    if (current == device->context)
        return 0;
    CUresult result = device->driver->cuCtxSetCurrent(device->context);
    if (result != CUDA_SUCCESS)
        return device_failure(device, result, "cuCtxSetCurrent", "a thread");
    current = device->context;
    return 0;
}

/* -- facts ------------------------------------------------------------------------------------- */

const struct device_identity *device_identity(const struct device *device)
{
    return &device->identity;
}

struct telemetry *device_telemetry(struct device *device)
{
    return &device->telemetry;
}

struct budget *device_budget(struct device *device)
{
    return &device->budget;
}

uint64_t device_free_bytes(struct device *device)
{
    size_t free_bytes = 0, total = 0;

    if (device_is_lost(device))
        return 0;
    CUresult result = device->driver->cuMemGetInfo(&free_bytes, &total);
    if (result != CUDA_SUCCESS) {
        device_failure(device, result, "cuMemGetInfo", "free memory");
        return 0;
    }
    return free_bytes;
}

void device_get_budget_report(struct device *device, struct budget_report *report)
{
    budget_get_report(&device->budget, device_free_bytes(device), report);
}

uint64_t device_direct_threshold_bytes(const struct device *device)
{
    return device->options.direct_threshold_bytes;
}

bool device_is_degraded(const struct device *device)
{
    return atomic_load(&device->degraded);
}

/* -- failures ---------------------------------------------------------------------------------- */

bool device_is_lost(const struct device *device)
{
    return atomic_load_explicit(&device->lost, memory_order_acquire);
}

void device_get_lost_reason(struct device *device, char *text, size_t text_bytes)
{
    pthread_mutex_lock(&device->lost_mutex);
    snprintf(text, text_bytes, "%s", device->lost_reason);
    pthread_mutex_unlock(&device->lost_mutex);
}

static void mark_lost(struct device *device, const char *name, const char *call)
{
    pthread_mutex_lock(&device->lost_mutex);
    bool first = !atomic_load(&device->lost);
    if (first)
        snprintf(device->lost_reason, sizeof(device->lost_reason), "%s in %s", name, call);
    atomic_store_explicit(&device->lost, true, memory_order_release);
    pthread_mutex_unlock(&device->lost_mutex);
    if (first)
        log_error("%s (%s) is lost: %s in %s; the contents of all files are gone: unmount, check "
                  "the GPU (nvidia-smi, dmesg for Xid), and mount again",
                  device->identity.name, device->identity.uuid, name, call);
}

/* To who reads or writes, the driver has no memory or has failed; his arguments are not wrong. */
errint_t device_failure(struct device *device, CUresult result, const char *call, const char *what)
{
    const char *name = driver_error_name(device->driver, result);
    errint_t err = cuda_errno(result);

    if (cuda_error_is_sticky(result))
        mark_lost(device, name, call);
    else if (err == -ENOSPC)
        log_warning("%s: %s gave %s for %s: another program uses the device's memory", call,
                    device->identity.uuid, name, what);
    else
        log_error("%s: %s failed for %s: %s", device->identity.uuid, call, what, name);
    return err == -ENOSPC ? -ENOSPC : -EIO;
}

/* -- flushing ---------------------------------------------------------------------------------- */

void device_wake_flusher(struct device *device)
{
    if (atomic_exchange(&device->flusher_work, true))
        return;
    pthread_mutex_lock(&device->flusher_mutex);
    pthread_cond_signal(&device->flusher_wake);
    pthread_mutex_unlock(&device->flusher_mutex);
}

/* Waits until there is work; then, unless told to stop, until the interval has passed. */
static bool flusher_wait(struct device *device, uint64_t interval_ns)
{
    pthread_mutex_lock(&device->flusher_mutex);
    while (!device->flusher_stop && !atomic_load(&device->flusher_work))
        pthread_cond_wait(&device->flusher_wake, &device->flusher_mutex);
    uint64_t until = monotonic_ns() + interval_ns;
    struct timespec ts = {.tv_sec = (time_t)(until / 1000000000u),
                          .tv_nsec = (long)(until % 1000000000u)};
    while (!device->flusher_stop &&
           pthread_cond_timedwait(&device->flusher_wake, &device->flusher_mutex, &ts) != ETIMEDOUT)
        ;
    bool stop = device->flusher_stop;
    pthread_mutex_unlock(&device->flusher_mutex);
    return !stop;
}

static void *flusher_main(void *data)
{
    struct device *device = data;
    uint64_t interval_ns = MAX(device->options.flush_interval_ms, 1u) * (uint64_t)1000000;

    if (device_attach_thread(device) < 0)
        return NULL;
    while (flusher_wait(device, interval_ns)) {
        bool more = false;
        atomic_store(&device->flusher_work, false);
        for (unsigned int i = 0; i < device->options.upload_streams; i++)
            more = upload_queue_tick(device->queues[i], interval_ns) || more;
        if (more)
            atomic_store(&device->flusher_work, true);
    }
    return NULL;
}

errint_t device_flush(struct device *device)
{
    errint_t first = 0;

    for (unsigned int i = 0; i < device->options.upload_streams; i++) {
        errint_t err = upload_queue_fence(device->queues[i], NULL);
        first = first < 0 ? first : err;
    }
    return first;
}

uint64_t device_dirty_bytes(struct device *device)
{
    uint64_t bytes = 0;

    for (unsigned int i = 0; i < device->options.upload_streams; i++)
        bytes += upload_queue_dirty_bytes(device->queues[i]);
    return bytes;
}
