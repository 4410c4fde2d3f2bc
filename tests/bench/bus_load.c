/*
 * What the bus and the device's driver allow at most: copies out of and into page-locked memory,
 * through the same table of entry points as residentfs, with nothing around them. Prints one line
 * of JSON, as io_load does.
 *
 *   bus_load LOAD DEVICE [KEY=VALUE…]
 *
 *   write, read   block= clients= ms= fence= file=; each client has a stream and waits after every
 *                 fence= copies; file= is the device memory that they go to in turn
 *   scattered     one client: rounds of count= copies of block= bytes to places that do not touch,
 *                 as one batch where the driver has that, and one fence
 *   copy          on the device, from file= bytes to file= others
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/device_internal.h"
#include "tests/bench/load.h"

#define SCATTER_GAP 2

/* Shared by the clients of a load. */
struct bus {
    struct device *device;
    struct chunk chunk, copy; /* copy: for loads that copy on the device */
};

struct bus_client {
    CUstream stream;
    struct pinned_memory memory;
};

static errint_t check(const struct bus *bus, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return 0;
    fprintf(stderr, "bus_load: %s\n", driver_error_name(bus->device->driver, result));
    return -EIO;
}

static errint_t prepare(struct load_client *client, size_t host_bytes)
{
    struct bus *bus = client->load->context;
    struct bus_client *state = calloc(1, sizeof(*state));
    errint_t error = state ? device_attach_thread(bus->device) : -ENOMEM;

    client->state = state;
    if (error == 0)
        error =
            check(bus, bus->device->driver->cuStreamCreate(&state->stream, CU_STREAM_NON_BLOCKING));
    if (error == 0 && host_bytes > 0)
        error = pinned_memory_init(bus->device, &state->memory, host_bytes);
    if (error == 0 && host_bytes > 0)
        memset(state->memory.bytes, 'a', host_bytes);
    if (error == 0 && host_bytes > 0 && !state->memory.page_locked)
        error = -EPERM;
    return error;
}

static void finish(struct load_client *client)
{
    struct bus *bus = client->load->context;
    struct bus_client *state = client->state;

    if (!state)
        return;
    if (state->stream) {
        bus->device->driver->cuStreamSynchronize(state->stream);
        bus->device->driver->cuStreamDestroy(state->stream);
    }
    pinned_memory_finish(bus->device, &state->memory);
    free(state);
}

/* -- write, read ------------------------------------------------------------------------------- */

/* Host memory for a few copies, as a daemon has it; not for all that are under way. */
static errint_t prepare_copies(struct load_client *client)
{
    const struct load_parameters *parameters = &client->load->parameters;

    if (parameters->file / parameters->clients < parameters->block)
        return -EINVAL;
    return prepare(client, (parameters->fence > 1 ? 4 : 1) * parameters->block);
}

static errint_t run_copies(struct load_client *client, bool write)
{
    const struct load *load = client->load;
    const struct load_parameters *parameters = &load->parameters;
    const struct bus *bus = load->context;
    const struct driver *driver = bus->device->driver;
    struct bus_client *state = client->state;
    uint64_t block = parameters->block, fence = MAX(parameters->fence, 1u), begin = load->start_ns;
    uint64_t blocks = parameters->file / parameters->clients / block;
    uint64_t buffers = state->memory.length / block;
    CUdeviceptr start = bus->chunk.address + client->index * blocks * block;

    for (uint64_t n = 0; !load_is_over(load, begin);) {
        CUresult result = CUDA_SUCCESS;
        for (uint64_t i = 0; i < fence && result == CUDA_SUCCESS; i++, n++) {
            char *host = (char *)state->memory.bytes + n % buffers * block;
            CUdeviceptr at = start + n % blocks * block;
            result = write ? driver->cuMemcpyHtoDAsync(at, host, block, state->stream)
                           : driver->cuMemcpyDtoHAsync(host, at, block, state->stream);
        }
        if (result == CUDA_SUCCESS)
            result = driver->cuStreamSynchronize(state->stream);
        if (result != CUDA_SUCCESS)
            return check(bus, result);
        load_count(client, &begin, fence * block);
        client->requests += fence - 1; /* those of one fence have one latency */
    }
    return 0;
}

static errint_t run_write(struct load_client *client)
{
    return run_copies(client, true);
}

static errint_t run_read(struct load_client *client)
{
    return run_copies(client, false);
}

/* -- scattered --------------------------------------------------------------------------------- */

static errint_t prepare_scattered(struct load_client *client)
{
    const struct load_parameters *parameters = &client->load->parameters;

    if (parameters->clients != 1 ||
        parameters->file < SCATTER_GAP * parameters->count * parameters->block)
        return -EINVAL;
    return prepare(client, parameters->count * parameters->block);
}

static CUresult submit_scattered(const struct load_client *client, CUdeviceptr *destinations,
                                 CUdeviceptr *sources, size_t *sizes)
{
    const struct bus *bus = client->load->context;
    const struct driver *driver = bus->device->driver;
    const struct bus_client *state = client->state;
    CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    size_t attribute_start = 0, failed = 0, count = client->load->parameters.count;
    CUresult result = CUDA_SUCCESS;

    if (driver->cuMemcpyBatchAsync)
        return driver->cuMemcpyBatchAsync(destinations, sources, sizes, count, &attributes,
                                          &attribute_start, 1, &failed, state->stream);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = driver->cuMemcpyHtoDAsync(destinations[i], (void *)(uintptr_t)sources[i], sizes[i],
                                           state->stream);
    return result;
}

static errint_t run_scattered(struct load_client *client)
{
    const struct load *load = client->load;
    const struct bus *bus = load->context;
    const struct bus_client *state = client->state;
    uint64_t count = load->parameters.count, block = load->parameters.block;
    uint64_t slots = load->parameters.file / (SCATTER_GAP * block), begin = load->start_ns;
    cleanup_free CUdeviceptr *destinations = calloc(count, sizeof(*destinations));
    cleanup_free CUdeviceptr *sources = calloc(count, sizeof(*sources));
    cleanup_free size_t *sizes = calloc(count, sizeof(*sizes));

    if (!destinations || !sources || !sizes)
        return -ENOMEM;
    for (uint64_t i = 0; i < count; i++) {
        destinations[i] = bus->chunk.address + i * (slots / count) * SCATTER_GAP * block;
        sources[i] = (CUdeviceptr)(uintptr_t)state->memory.bytes + i * block;
        sizes[i] = block;
    }
    do {
        CUresult result = submit_scattered(client, destinations, sources, sizes);
        if (result == CUDA_SUCCESS)
            result = bus->device->driver->cuStreamSynchronize(state->stream);
        if (result != CUDA_SUCCESS)
            return check(bus, result);
        load_count(client, &begin, count * block);
        client->requests += count - 1;
    } while (!load_is_over(load, begin));
    return 0;
}

/* -- copy -------------------------------------------------------------------------------------- */

static errint_t prepare_device_copy(struct load_client *client)
{
    return client->load->parameters.clients == 1 ? prepare(client, 0) : -EINVAL;
}

static errint_t run_device_copy(struct load_client *client)
{
    const struct load *load = client->load;
    const struct bus *bus = load->context;
    const struct bus_client *state = client->state;
    uint64_t begin = load->start_ns;

    do {
        CUresult result = bus->device->driver->cuMemcpyDtoDAsync(
            bus->copy.address, bus->chunk.address, load->parameters.file, state->stream);
        if (result == CUDA_SUCCESS)
            result = bus->device->driver->cuStreamSynchronize(state->stream);
        if (result != CUDA_SUCCESS)
            return check(bus, result);
        load_count(client, &begin, load->parameters.file);
    } while (!load_is_over(load, begin));
    return 0;
}

static const struct load_kind kinds[] = {
    {"write", prepare_copies, run_write, finish},
    {"read", prepare_copies, run_read, finish},
    {"scattered", prepare_scattered, run_scattered, finish},
    {"copy", prepare_device_copy, run_device_copy, finish},
};

static int run(struct load *load, const struct device_selector *selector)
{
    const struct device_options options = {.staging_bytes = 2 * MIB, .upload_streams = 1};
    uint64_t length = align_up(load->parameters.file, CHUNK_UNIT_BYTES);
    bool copies = strcmp(load->kind->name, "copy") == 0;
    struct bus bus = {0};
    char message[512];
    int status = EXIT_FAILURE;

    if (device_open(selector, &options, &bus.device, message, sizeof(message)) < 0) {
        fprintf(stderr, "bus_load: %s\n", message);
        return EXIT_FAILURE;
    }
    load->context = &bus;
    if (chunk_create(bus.device, length, &bus.chunk) < 0)
        fprintf(stderr, "bus_load: no %llu bytes on the device\n", (unsigned long long)length);
    else if (copies && chunk_create(bus.device, length, &bus.copy) < 0)
        fprintf(stderr, "bus_load: no %llu bytes more on the device\n", (unsigned long long)length);
    else
        status = load_run(load);
    if (bus.chunk.length > 0)
        chunk_destroy(bus.device, &bus.chunk);
    if (bus.copy.length > 0)
        chunk_destroy(bus.device, &bus.copy);
    device_close(bus.device);
    return status;
}

int main(int argc, char **argv)
{
    static struct load load = {
        .parameters = {.block = MIB, .file = 256 * MIB, .clients = 1, .count = 1024, .fence = 1}};
    struct device_selector selector;

    for (size_t i = 0; argc >= 3 && i < ARRAY_SIZE(kinds); i++)
        if (strcmp(kinds[i].name, argv[1]) == 0)
            load.kind = &kinds[i];
    if (!load.kind || device_selector_parse(argv[2], &selector) < 0 ||
        !load_parse(&load.parameters, argc - 3, argv + 3)) {
        fprintf(stderr, "usage: bus_load write|read|scattered|copy DEVICE [KEY=VALUE...]\n");
        return 2;
    }
    load.target = argv[2];
    return run(&load, &selector);
}
