/*
 * The order of the emulated driver's copies: streams and events are respected, nothing else is, and
 * a client that leaves out a fence sees wrong data. Timeout: 300 s.
 */
#include "emulated_fixture.h"

#include <pthread.h>
#include <sched.h>

#define TRIES 300

/* The default is random; every rule must hold in each order. */
static const char *const orders[] = {"order=random", "order=sync", "order=eager"};

static void work_runs_only_when_it_is_waited_for_in_order_sync(void **state)
{
    (void)state;
    configure("order=sync");
    CUstream stream = stream_create();
    CUevent event = event_create();
    CUdeviceptr address = device_create(4096);
    uint64_t before = stats().queued;
    assert_cuda(drv->cuMemsetD8Async(address, 1, 4096, stream));
    assert_cuda(drv->cuEventRecord(event, stream));
    assert_cuda(drv->cuMemsetD8Async(address, 2, 4096, stream));
    assert_int_equal(stats().queued, before + 3);
    assert_cuda(drv->cuEventSynchronize(event));
    assert_int_equal(stats().queued, before + 1);
    assert_cuda_fails(drv->cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    assert_cuda(drv->cuCtxSynchronize());
    assert_int_equal(stats().queued, before);
    assert_cuda(drv->cuStreamQuery(stream));
    assert_cuda(drv->cuMemFree(address));
    assert_cuda(drv->cuEventDestroy(event));
    assert_cuda(drv->cuStreamDestroy(stream));
}

static void polling_gets_there(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(orders); i++) {
        configure(orders[i]);
        CUstream stream = stream_create();
        CUevent event = event_create();
        CUdeviceptr address = device_create(4096);
        assert_cuda(drv->cuMemsetD8Async(address, 1, 4096, stream));
        assert_cuda(drv->cuEventRecord(event, stream));
        CUresult result;
        while ((result = drv->cuEventQuery(event)) == CUDA_ERROR_NOT_READY)
            sched_yield();
        assert_cuda(result);
        while ((result = drv->cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY)
            sched_yield();
        assert_cuda(result);
        assert_cuda(drv->cuMemFree(address));
        assert_cuda(drv->cuEventDestroy(event));
        assert_cuda(drv->cuStreamDestroy(stream));
    }
}

static void an_event_never_recorded_is_complete(void **state)
{
    (void)state;
    CUstream stream = stream_create();
    CUevent event = event_create();
    assert_cuda(drv->cuEventQuery(event));
    assert_cuda(drv->cuEventSynchronize(event));
    assert_cuda(drv->cuStreamWaitEvent(stream, event, 0));
    assert_cuda(drv->cuStreamSynchronize(stream));
    assert_cuda(drv->cuEventDestroy(event));
    assert_cuda(drv->cuStreamDestroy(stream));
}

/* The wait means the record that was the latest when cuStreamWaitEvent was called. */
static void a_wait_means_the_record_at_the_call(void **state)
{
    (void)state;
    configure("order=sync");
    CUstream first = stream_create(), second = stream_create();
    CUevent event = event_create();
    CUdeviceptr address = device_create(4096);
    unsigned char *host = host_create(4096);
    assert_cuda(drv->cuMemsetD8Async(address, 1, 4096, first));
    assert_cuda(drv->cuEventRecord(event, first));
    assert_cuda(drv->cuStreamWaitEvent(second, event, 0));
    assert_cuda(drv->cuMemcpyDtoHAsync(host, address, 4096, second));
    assert_cuda(drv->cuMemsetD8Async(address, 2, 4096, first));
    assert_cuda(drv->cuEventRecord(event, first));
    assert_cuda(drv->cuStreamSynchronize(second));
    assert_int_equal(host[0], 1);
    assert_cuda_fails(drv->cuEventQuery(event), CUDA_ERROR_NOT_READY);
    assert_cuda(drv->cuEventSynchronize(event));
    assert_cuda(drv->cuMemcpyDtoHAsync(host, address, 4096, second));
    assert_cuda(drv->cuStreamSynchronize(second));
    assert_int_equal(host[0], 2);
    assert_cuda(drv->cuMemFree(address));
    assert_cuda(drv->cuMemFreeHost(host));
    assert_cuda(drv->cuEventDestroy(event));
    assert_cuda(drv->cuStreamDestroy(first));
    assert_cuda(drv->cuStreamDestroy(second));
}

static void destroying_a_stream_or_event_loses_no_work(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(orders); i++) {
        configure(orders[i]);
        CUstream first = stream_create(), second = stream_create();
        CUevent event = event_create();
        CUdeviceptr address = device_create(4096);
        unsigned char *host = host_create(4096);
        assert_cuda(drv->cuMemsetD8Async(address, 7, 4096, first));
        assert_cuda(drv->cuEventRecord(event, first));
        assert_cuda(drv->cuStreamWaitEvent(second, event, 0));
        assert_cuda(drv->cuEventDestroy(event));
        assert_cuda(drv->cuStreamDestroy(first));
        assert_cuda(drv->cuMemcpyDtoHAsync(host, address, 4096, second));
        assert_cuda(drv->cuStreamSynchronize(second));
        assert_int_equal(host[4095], 7);
        assert_cuda_fails(drv->cuStreamSynchronize(first), CUDA_ERROR_INVALID_HANDLE);
        assert_cuda_fails(drv->cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
        assert_cuda(drv->cuMemFree(address));
        assert_cuda(drv->cuMemFreeHost(host));
        assert_cuda(drv->cuStreamDestroy(second));
    }
}

static void work_of_a_destroyed_stream_runs_unasked(void **state)
{
    (void)state;
    configure("order=sync");
    CUstream stream = stream_create();
    CUdeviceptr address = device_create(4096);
    assert_cuda(drv->cuMemsetD8Async(address, 7, 4096, stream));
    assert_cuda(drv->cuStreamDestroy(stream));
    uint64_t limit_ns = monotonic_ns() + 10000000000u;
    while (stats().queued && monotonic_ns() < limit_ns)
        sched_yield();
    assert_int_equal(stats().queued, 0);
    assert_cuda(drv->cuMemFree(address));
}

static void a_destroyed_handle_never_means_another_object(void **state)
{
    (void)state;
    CUstream old = stream_create();
    assert_cuda(drv->cuStreamDestroy(old));
    CUstream stream = stream_create();
    assert_cuda_fails(drv->cuStreamSynchronize(old), CUDA_ERROR_INVALID_HANDLE);
    assert_cuda(drv->cuStreamSynchronize(stream));
    assert_cuda(drv->cuStreamDestroy(stream));
}

static void pageable_sources_are_read_at_the_call(void **state)
{
    (void)state;
    configure("order=sync");
    unsigned char source[64], seen[64];
    CUstream stream = stream_create();
    CUdeviceptr address = device_create(64);
    memset(source, 1, sizeof(source));
    assert_cuda(drv->cuMemcpyHtoDAsync(address, source, 64, stream));
    memset(source, 2, sizeof(source));
    assert_cuda(drv->cuMemcpyDtoHAsync(seen, address, 64, stream));
    assert_int_equal(seen[0], 1);
    assert_cuda(drv->cuMemFree(address));
    assert_cuda(drv->cuStreamDestroy(stream));
}

static void bandwidth_and_latency_take_time(void **state)
{
    (void)state;
    configure("order=eager;bandwidth=100MiB;latency=5000000");
    CUstream stream = stream_create();
    CUdeviceptr address = device_create(2 * MIB);
    uint64_t started_ns = monotonic_ns();
    assert_cuda(drv->cuMemsetD8Async(address, 1, 2 * MIB, stream));
    assert_cuda(drv->cuStreamSynchronize(stream));
    assert_true(monotonic_ns() - started_ns >= 25000000);
    assert_cuda(drv->cuMemFree(address));
    assert_cuda(drv->cuStreamDestroy(stream));
}

/* ---- a client without a fence; how often in TRIES it saw wrong data ---- */

struct pair {
    CUstream first, second;
    CUevent event;
    CUdeviceptr address;
    unsigned char *host;
};

#define PAIR_BYTES 65536

static struct pair pair_create(void)
{
    return (struct pair){stream_create(), stream_create(), event_create(),
                         device_create(PAIR_BYTES), host_create(PAIR_BYTES)};
}

static void pair_destroy(struct pair *pair)
{
    assert_cuda(drv->cuCtxSynchronize());
    assert_cuda(drv->cuMemFree(pair->address));
    assert_cuda(drv->cuMemFreeHost(pair->host));
    assert_cuda(drv->cuEventDestroy(pair->event));
    assert_cuda(drv->cuStreamDestroy(pair->first));
    assert_cuda(drv->cuStreamDestroy(pair->second));
}

/* A staging buffer is filled again before (or, with FENCE, after) its upload is known complete. */
static unsigned reuse_staging(struct pair *pair, bool fence)
{
    unsigned wrong = 0;
    unsigned char seen[16];
    for (int i = 0; i < TRIES; i++) {
        unsigned char byte = (unsigned char)(i % 200 + 1);
        memset(pair->host, byte, PAIR_BYTES);
        assert_cuda(drv->cuMemcpyHtoDAsync(pair->address, pair->host, PAIR_BYTES, pair->first));
        assert_cuda(drv->cuEventRecord(pair->event, pair->first));
        if (fence)
            assert_cuda(drv->cuEventSynchronize(pair->event));
        memset(pair->host, 0, PAIR_BYTES);
        assert_cuda(drv->cuStreamSynchronize(pair->first));
        device_read(seen, pair->address + PAIR_BYTES - sizeof(seen), sizeof(seen));
        wrong += seen[0] != byte;
    }
    return wrong;
}

/* Another stream reads what a stream writes, with or without waiting for its event. */
static unsigned read_across_streams(struct pair *pair, bool fence)
{
    unsigned wrong = 0;
    for (int i = 0; i < TRIES; i++) {
        unsigned char byte = (unsigned char)(i % 200 + 1);
        assert_cuda(drv->cuMemsetD8Async(pair->address, byte, PAIR_BYTES, pair->first));
        assert_cuda(drv->cuEventRecord(pair->event, pair->first));
        if (fence)
            assert_cuda(drv->cuStreamWaitEvent(pair->second, pair->event, 0));
        assert_cuda(drv->cuMemcpyDtoHAsync(pair->host, pair->address, PAIR_BYTES, pair->second));
        assert_cuda(drv->cuStreamSynchronize(pair->second));
        wrong += pair->host[PAIR_BYTES - 1] != byte;
        assert_cuda(drv->cuStreamSynchronize(pair->first));
    }
    return wrong;
}

/* The host looks at a readback's destination, with or without waiting for it. */
static unsigned look_at_readback(struct pair *pair, bool fence)
{
    unsigned wrong = 0;
    device_set(pair->address, 0x11, PAIR_BYTES);
    memset(pair->host, 0x11, PAIR_BYTES);
    for (int i = 0; i < TRIES; i++) {
        assert_cuda(drv->cuMemcpyDtoHAsync(pair->host, pair->address, PAIR_BYTES, pair->first));
        assert_cuda(drv->cuEventRecord(pair->event, pair->first));
        if (fence)
            assert_cuda(drv->cuEventSynchronize(pair->event));
        wrong += ((volatile unsigned char *)pair->host)[PAIR_BYTES - 1] != 0x11;
        assert_cuda(drv->cuStreamSynchronize(pair->first));
    }
    return wrong;
}

static void assert_fence_matters(unsigned (*client)(struct pair *pair, bool fence))
{
    for (size_t i = 0; i < 2; i++) {
        configure(orders[i]);
        struct pair pair = pair_create();
        assert_int_equal(client(&pair, true), 0);
        unsigned wrong = client(&pair, false);
        print_message("%s: wrong data without the fence %u times of %d\n", orders[i], wrong, TRIES);
        if (i == 1)
            assert_int_equal(wrong, TRIES);
        else
            assert_true(wrong > 0);
        pair_destroy(&pair);
    }
}

static void reusing_staging_before_its_fence_is_caught(void **state)
{
    (void)state;
    if (UNDER_TSAN)
        skip();
    assert_fence_matters(reuse_staging);
}

static void a_missing_event_wait_is_caught(void **state)
{
    (void)state;
    if (UNDER_TSAN)
        skip();
    assert_fence_matters(read_across_streams);
}

static void a_readback_seen_before_its_fence_is_caught(void **state)
{
    (void)state;
    if (UNDER_TSAN)
        skip();
    assert_fence_matters(look_at_readback);
}

/* ---- random operations against a model ---- */

#define STREAMS      4
#define REGIONS      12 /* the last SLOTS of them in page-locked host memory */
#define SLOTS        4
#define REGION_BYTES 3000
#define STEPS        2000

struct region {
    unsigned char model[REGION_BYTES];
    CUdeviceptr address; /* of the host slots too: unified addressing */
    int writer;          /* stream, -1 if the host has seen it complete */
    CUevent written;
    bool reading[STREAMS];
    CUevent read[STREAMS];
};

struct world {
    CUstream streams[STREAMS];
    struct region regions[REGIONS];
    CUdeviceptr device;
    unsigned char *host;
    uint64_t random;
    unsigned leave_out; /* every n-th event wait is left out; 0: none */
    unsigned waits, wrong;
};

static unsigned draw(struct world *world, unsigned limit)
{
    world->random = world->random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(world->random >> 33) % limit;
}

static void wait_for(struct world *world, int stream, CUevent event)
{
    if (world->leave_out && ++world->waits % world->leave_out == 0)
        return;
    assert_cuda(drv->cuStreamWaitEvent(world->streams[stream], event, 0));
}

static void before_read(struct world *world, struct region *region, int stream)
{
    if (region->writer >= 0 && region->writer != stream)
        wait_for(world, stream, region->written);
}

static void before_write(struct world *world, struct region *region, int stream)
{
    before_read(world, region, stream);
    for (int i = 0; i < STREAMS; i++) {
        if (region->reading[i] && i != stream)
            wait_for(world, stream, region->read[i]);
    }
}

static void after_read(struct world *world, struct region *region, int stream)
{
    region->reading[stream] = true;
    assert_cuda(drv->cuEventRecord(region->read[stream], world->streams[stream]));
}

static void after_write(struct world *world, struct region *region, int stream)
{
    region->writer = stream;
    memset(region->reading, 0, sizeof(region->reading));
    assert_cuda(drv->cuEventRecord(region->written, world->streams[stream]));
}

/* The host may touch a slot once every copy that uses it is known complete. */
static void settle(struct region *region)
{
    if (region->writer >= 0)
        assert_cuda(drv->cuEventSynchronize(region->written));
    for (int i = 0; i < STREAMS; i++) {
        if (region->reading[i])
            assert_cuda(drv->cuEventSynchronize(region->read[i]));
    }
    region->writer = -1;
    memset(region->reading, 0, sizeof(region->reading));
}

static void check_slot(struct world *world, struct region *slot)
{
    settle(slot);
    world->wrong += memcmp((void *)(uintptr_t)slot->address, slot->model, REGION_BYTES) != 0;
}

static void issue_copy(struct world *world, struct region *to, struct region *from, size_t offset,
                       size_t bytes, int stream)
{
    bool to_host = to >= &world->regions[REGIONS - SLOTS];
    bool from_host = from >= &world->regions[REGIONS - SLOTS];
    CUdeviceptr target = to->address + offset, source = from->address + offset;
    CUstream on = world->streams[stream];
    if (draw(world, 3) == 0 || (to_host && from_host)) {
        /* two halves in one batch, in any order */
        CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
        size_t first = bytes / 2, start = 0, failed;
        CUdeviceptr targets[] = {target, target + first}, sources[] = {source, source + first};
        size_t sizes[] = {first, bytes - first};
        assert_cuda(drv->cuMemcpyBatchAsync(targets, sources, sizes, 2, &attributes, &start, 1,
                                            &failed, on));
    } else if (to_host) {
        assert_cuda(drv->cuMemcpyDtoHAsync((void *)(uintptr_t)target, source, bytes, on));
    } else if (from_host) {
        assert_cuda(drv->cuMemcpyHtoDAsync(target, (void *)(uintptr_t)source, bytes, on));
    } else {
        assert_cuda(drv->cuMemcpyDtoDAsync(target, source, bytes, on));
    }
}

static void step(struct world *world)
{
    int stream = (int)draw(world, STREAMS);
    struct region *to = &world->regions[draw(world, REGIONS)];
    struct region *from = &world->regions[draw(world, REGIONS)];
    bool to_host = to >= &world->regions[REGIONS - SLOTS];
    size_t offset = draw(world, REGION_BYTES - 8), bytes = 2 + draw(world, REGION_BYTES - 2);
    bytes = MIN(bytes, REGION_BYTES - offset);
    unsigned action = draw(world, 10);
    if (action == 0 && to_host) {
        check_slot(world, to);
        memset(to->model, (int)draw(world, 256), REGION_BYTES);
        memcpy((void *)(uintptr_t)to->address, to->model, REGION_BYTES);
    } else if (action <= 2 && !to_host) {
        int value = (int)draw(world, 256);
        before_write(world, to, stream);
        assert_cuda(drv->cuMemsetD8Async(to->address + offset, (unsigned char)value, bytes,
                                         world->streams[stream]));
        memset(to->model + offset, value, bytes);
        after_write(world, to, stream);
    } else if (to != from) {
        before_write(world, to, stream);
        before_read(world, from, stream);
        issue_copy(world, to, from, offset, bytes, stream);
        memcpy(to->model + offset, from->model + offset, bytes);
        after_read(world, from, stream);
        after_write(world, to, stream);
    }
    if (draw(world, 40) == 0)
        assert_cuda(drv->cuStreamSynchronize(world->streams[draw(world, STREAMS)]));
}

/* Returns how often the data was not the model's. */
static unsigned run_world(uint64_t seed, unsigned leave_out)
{
    static struct world world;
    world = (struct world){.random = seed, .leave_out = leave_out};
    world.device = device_create(REGIONS * REGION_BYTES);
    world.host = host_create(SLOTS * REGION_BYTES);
    device_set(world.device, 0, REGIONS * REGION_BYTES);
    memset(world.host, 0, SLOTS * REGION_BYTES);
    for (int i = 0; i < STREAMS; i++)
        world.streams[i] = stream_create();
    for (int i = 0; i < REGIONS; i++) {
        struct region *region = &world.regions[i];
        int slot = i - (REGIONS - SLOTS);
        region->address = slot < 0 ? world.device + (CUdeviceptr)i * REGION_BYTES
                                   : (uintptr_t)world.host + (CUdeviceptr)slot * REGION_BYTES;
        region->writer = -1;
        region->written = event_create();
        for (int j = 0; j < STREAMS; j++)
            region->read[j] = event_create();
    }
    for (int i = 0; i < STEPS; i++)
        step(&world);
    assert_cuda(drv->cuCtxSynchronize());
    for (int i = 0; i < REGIONS; i++) {
        static unsigned char seen[REGION_BYTES];
        struct region *region = &world.regions[i];
        if (i < REGIONS - SLOTS)
            device_read(seen, region->address, REGION_BYTES);
        else
            memcpy(seen, (void *)(uintptr_t)region->address, REGION_BYTES);
        world.wrong += memcmp(seen, region->model, REGION_BYTES) != 0;
        assert_cuda(drv->cuEventDestroy(region->written));
        for (int j = 0; j < STREAMS; j++)
            assert_cuda(drv->cuEventDestroy(region->read[j]));
    }
    for (int i = 0; i < STREAMS; i++)
        assert_cuda(drv->cuStreamDestroy(world.streams[i]));
    assert_cuda(drv->cuMemFree(world.device));
    assert_cuda(drv->cuMemFreeHost(world.host));
    return world.wrong;
}

/* ---- several threads ---- */

#define THREADS 4

/* Returns NULL if every byte came back. */
static void *upload_and_read_back(void *argument)
{
    unsigned char byte = (unsigned char)(uintptr_t)argument;
    void *failed = argument;
    CUstream stream;
    CUevent event;
    CUdeviceptr address;
    void *memory;
    if (drv->cuCtxSetCurrent(context_of_device_0) ||
        drv->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) ||
        drv->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING))
        return failed;
    for (int i = 0; i < 100; i++) {
        if (drv->cuMemAlloc(&address, PAIR_BYTES) || drv->cuMemHostAlloc(&memory, PAIR_BYTES, 0))
            return failed;
        memset(memory, byte, PAIR_BYTES);
        if (drv->cuMemcpyHtoDAsync(address, memory, PAIR_BYTES, stream) ||
            drv->cuEventRecord(event, stream) || drv->cuEventSynchronize(event))
            return failed;
        memset(memory, 0, PAIR_BYTES);
        if (drv->cuMemcpyDtoHAsync(memory, address, PAIR_BYTES, stream) ||
            drv->cuStreamSynchronize(stream))
            return failed;
        if (((unsigned char *)memory)[0] != byte ||
            ((unsigned char *)memory)[PAIR_BYTES - 1] != byte)
            return failed;
        if (drv->cuMemFreeHost(memory) || drv->cuMemFree(address))
            return failed;
    }
    return drv->cuEventDestroy(event) || drv->cuStreamDestroy(stream) ? failed : NULL;
}

static void threads_with_streams_of_their_own_do_not_disturb_each_other(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(orders); i++) {
        pthread_t threads[THREADS];
        configure(orders[i]);
        for (uintptr_t j = 0; j < THREADS; j++)
            assert_int_equal(
                pthread_create(&threads[j], NULL, upload_and_read_back, (void *)(j + 1)), 0);
        for (size_t j = 0; j < THREADS; j++) {
            void *failed;
            assert_int_equal(pthread_join(threads[j], &failed), 0);
            assert_null(failed);
        }
    }
}

static uint64_t chosen_seed(void)
{
    const char *given = getenv("TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : monotonic_ns() / 1000 % 1000000;
    print_message("TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static void random_operations_end_as_in_the_model(void **state)
{
    (void)state;
    uint64_t seed = chosen_seed();
    for (uint64_t i = 0; i < 4; i++) {
        for (size_t j = 0; j < ARRAY_SIZE(orders); j++) {
            configure(orders[j]);
            unsigned wrong = run_world(seed + i, 0);
            if (wrong)
                fail_msg("TEST_SEED=%llu, %s: %u regions differ", (unsigned long long)(seed + i),
                         orders[j], wrong);
        }
    }
}

static void random_operations_without_some_waits_are_caught(void **state)
{
    (void)state;
    if (UNDER_TSAN)
        skip();
    uint64_t seed = chosen_seed();
    for (size_t j = 0; j < 2; j++) {
        configure(orders[j]);
        unsigned caught = 0;
        for (uint64_t i = 0; i < 5; i++)
            caught += run_world(seed + i, 10) > 0;
        print_message("%s: caught in %u of 5 runs\n", orders[j], caught);
        assert_true(caught > 0);
    }
}

static int open_one(void **state)
{
    (void)state;
    return open_devices(1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, finish)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(work_runs_only_when_it_is_waited_for_in_order_sync),
        TEST(polling_gets_there),
        TEST(an_event_never_recorded_is_complete),
        TEST(a_wait_means_the_record_at_the_call),
        TEST(destroying_a_stream_or_event_loses_no_work),
        TEST(work_of_a_destroyed_stream_runs_unasked),
        TEST(a_destroyed_handle_never_means_another_object),
        TEST(pageable_sources_are_read_at_the_call),
        TEST(bandwidth_and_latency_take_time),
        TEST(reusing_staging_before_its_fence_is_caught),
        TEST(a_missing_event_wait_is_caught),
        TEST(a_readback_seen_before_its_fence_is_caught),
        TEST(threads_with_streams_of_their_own_do_not_disturb_each_other),
        TEST(random_operations_end_as_in_the_model),
        TEST(random_operations_without_some_waits_are_caught),
    };
    return cmocka_run_group_tests(tests, open_one, NULL);
}
