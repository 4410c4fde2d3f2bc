/* Faults by rule: which call fails, how, for how long, and what is left undone. Timeout: 120 s. */
#include "emulated_fixture.h"

#include <fcntl.h>

static struct {
    CUstream stream;
    CUevent event;
    CUdeviceptr address;
    unsigned char *host;
} on;

static int start_with_stream(void **state)
{
    if (start(state))
        return -1;
    on.stream = stream_create();
    on.event = event_create();
    on.address = device_create(4096);
    on.host = host_create(4096);
    return 0;
}

static int finish_with_stream(void **state)
{
    configure(DEFAULTS);
    drv->cuCtxSynchronize(); /* a failure that was never reported */
    /* DMA of an unproven stream or a lost device comes to its end without anybody knowing. */
    uint64_t limit_ns = monotonic_ns() + 10000000000u;
    while (stats().queued && monotonic_ns() < limit_ns)
        usleep(1000);
    assert_int_equal(stats().queued, 0);
    assert_cuda(drv->cuMemFree(on.address));
    assert_cuda(drv->cuMemFreeHost(on.host));
    assert_cuda(drv->cuEventDestroy(on.event));
    assert_cuda(drv->cuStreamDestroy(on.stream));
    return finish(state);
}

static void the_nth_call_fails_without_effect(void **state)
{
    (void)state;
    CUdeviceptr first, second, third;
    uint64_t bytes = stats().physical_bytes, calls = call_count("cuMemAlloc");
    configure("fault=cuMemAlloc:2:CUDA_ERROR_OUT_OF_MEMORY");
    assert_cuda(drv->cuMemAlloc(&first, 4096));
    assert_cuda_fails(drv->cuMemAlloc(&second, 4096), CUDA_ERROR_OUT_OF_MEMORY);
    assert_cuda(drv->cuMemAlloc(&third, 4096));
    assert_int_equal(stats().physical_bytes, bytes + 8192);
    assert_int_equal(call_count("cuMemAlloc"), calls + 3);
    assert_int_equal(call_count("cuNothing"), 0);
    assert_cuda(drv->cuMemFree(first));
    assert_cuda(drv->cuMemFree(third));
}

static void every_call_from_the_nth_on_fails(void **state)
{
    (void)state;
    CUdeviceptr first, second;
    configure("fault=cuMemAlloc:2+:2");
    assert_cuda(drv->cuMemAlloc(&first, 4096));
    for (int i = 0; i < 5; i++)
        assert_cuda_fails(drv->cuMemAlloc(&second, 4096), CUDA_ERROR_OUT_OF_MEMORY);
    configure("fault=none");
    assert_cuda(drv->cuMemAlloc(&second, 4096));
    assert_cuda(drv->cuMemFree(first));
    assert_cuda(drv->cuMemFree(second));
}

static void a_lost_device_fails_everything(void **state)
{
    (void)state;
    CUdeviceptr address;
    size_t free_bytes, total_bytes;
    configure("fault=cuStreamSynchronize:1:719:sticky");
    assert_cuda(drv->cuMemsetD8Async(on.address, 1, 4096, on.stream));
    assert_cuda(drv->cuEventRecord(on.event, on.stream));
    assert_cuda_fails(drv->cuStreamSynchronize(on.stream), CUDA_ERROR_LAUNCH_FAILED);
    assert_cuda_fails(drv->cuStreamSynchronize(on.stream), CUDA_ERROR_LAUNCH_FAILED);
    assert_cuda_fails(drv->cuEventQuery(on.event), CUDA_ERROR_LAUNCH_FAILED);
    assert_cuda_fails(drv->cuMemFree(on.address), CUDA_ERROR_LAUNCH_FAILED);
    assert_cuda_fails(drv->cuMemAlloc(&address, 4096), CUDA_ERROR_LAUNCH_FAILED);
    assert_cuda_fails(drv->cuMemGetInfo(&free_bytes, &total_bytes), CUDA_ERROR_LAUNCH_FAILED);
    assert_cuda_fails(drv->cuMemcpyHtoDAsync(on.address, on.host, 4096, on.stream),
                      CUDA_ERROR_LAUNCH_FAILED);
    int count;
    assert_cuda(drv->cuDeviceGetCount(&count));
}

static void a_late_fault_leaves_the_copy_undone_and_is_reported_once(void **state)
{
    (void)state;
    unsigned char seen;
    device_set(on.address, 1, 4096);
    configure("fault=cuMemsetD8Async:1:700:late");
    assert_cuda(drv->cuMemsetD8Async(on.address, 2, 4096, on.stream));
    assert_cuda_fails(drv->cuStreamSynchronize(on.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_cuda(drv->cuStreamSynchronize(on.stream));
    device_read(&seen, on.address, 1);
    assert_int_equal(seen, 1);
}

static void a_late_fault_is_reported_by_the_event_that_covers_it(void **state)
{
    (void)state;
    CUevent before = event_create();
    configure("fault=cuMemsetD8Async:2:700:late");
    assert_cuda(drv->cuMemsetD8Async(on.address, 2, 4096, on.stream));
    assert_cuda(drv->cuEventRecord(before, on.stream));
    assert_cuda(drv->cuMemsetD8Async(on.address, 3, 4096, on.stream));
    assert_cuda(drv->cuEventRecord(on.event, on.stream));
    assert_cuda(drv->cuEventSynchronize(before));
    assert_cuda_fails(drv->cuEventSynchronize(on.event), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_cuda(drv->cuEventSynchronize(on.event));
    assert_cuda(drv->cuStreamSynchronize(on.stream));
    assert_cuda(drv->cuEventDestroy(before));
}

static void a_late_fault_outlives_an_event_that_nobody_asked(void **state)
{
    (void)state;
    CUevent event = event_create();
    configure("order=eager;fault=cuMemsetD8Async:1:700:late");
    assert_cuda(drv->cuMemsetD8Async(on.address, 2, 4096, on.stream));
    assert_cuda(drv->cuEventRecord(event, on.stream));
    while (stats().queued > 0)
        usleep(1000);
    assert_cuda(drv->cuEventRecord(event, on.stream));
    assert_cuda(drv->cuEventDestroy(event));
    assert_cuda_fails(drv->cuStreamSynchronize(on.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_cuda(drv->cuStreamSynchronize(on.stream));
}

static unsigned char look(const unsigned char *at)
{
    return __atomic_load_n(at, __ATOMIC_RELAXED);
}

/* The readback is not over when the synchronisation fails: it destroys what was put in its place.
 */
static void unproven_dma_runs_after_the_failed_synchronisation(void **state)
{
    (void)state;
    if (UNDER_TSAN)
        skip();
    device_set(on.address, 0x44, 4096);
    configure("scribble=off");
    configure("fault=cuMemcpyDtoHAsync:1:719:unproven");
    assert_cuda(drv->cuMemcpyDtoHAsync(on.host, on.address, 4096, on.stream));
    assert_cuda_fails(drv->cuStreamSynchronize(on.stream), CUDA_ERROR_LAUNCH_FAILED);
    memset(on.host, 0x22, 4096);
    assert_int_equal(look(on.host), 0x22);
    uint64_t limit_ns = monotonic_ns() + 5000000000u;
    while (look(on.host) != 0x44 && monotonic_ns() < limit_ns)
        usleep(1000);
    assert_int_equal(look(on.host), 0x44);
    assert_cuda_fails(drv->cuStreamSynchronize(on.stream), CUDA_ERROR_LAUNCH_FAILED);
    assert_cuda_fails(drv->cuStreamQuery(on.stream), CUDA_ERROR_LAUNCH_FAILED);
}

static void a_stream_that_waits_for_an_unproven_one_gets_there(void **state)
{
    (void)state;
    CUstream other = stream_create();
    configure("fault=cuMemsetD8Async:1:719:unproven");
    assert_cuda(drv->cuMemsetD8Async(on.address, 1, 4096, on.stream));
    assert_cuda(drv->cuEventRecord(on.event, on.stream));
    assert_cuda(drv->cuStreamWaitEvent(other, on.event, 0));
    assert_cuda(drv->cuStreamSynchronize(other));
    assert_cuda(drv->cuEventSynchronize(on.event));
    assert_cuda_fails(drv->cuStreamSynchronize(on.stream), CUDA_ERROR_LAUNCH_FAILED);
    assert_cuda(drv->cuStreamDestroy(other));
}

static void an_event_on_an_unproven_stream_fails_until_it_is_over(void **state)
{
    (void)state;
    configure("order=sync;fault=cuEventSynchronize:1:719:unproven");
    assert_cuda(drv->cuMemsetD8Async(on.address, 1, 4096, on.stream));
    assert_cuda(drv->cuEventRecord(on.event, on.stream));
    assert_cuda_fails(drv->cuEventSynchronize(on.event), CUDA_ERROR_LAUNCH_FAILED);
    assert_cuda_fails(drv->cuStreamSynchronize(on.stream), CUDA_ERROR_LAUNCH_FAILED);
}

static void a_delay_only_delays(void **state)
{
    (void)state;
    configure("fault=cuEventQuery:1:0:delay=20000");
    uint64_t started_ns = monotonic_ns();
    assert_cuda(drv->cuEventQuery(on.event));
    assert_true(monotonic_ns() - started_ns >= 20000000);
}

static void a_rule_can_wait_for_a_file(void **state)
{
    (void)state;
    char path[] = "/tmp/emulated-fault-XXXXXX", text[128];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    unlink(path);
    snprintf(text, sizeof(text), "fault=cuEventQuery:2:999:when=%s", path);
    configure(text);
    for (int i = 0; i < 5; i++)
        assert_cuda(drv->cuEventQuery(on.event));
    close(open(path, O_CREAT | O_WRONLY, 0600));
    assert_cuda(drv->cuEventQuery(on.event));
    assert_cuda_fails(drv->cuEventQuery(on.event), CUDA_ERROR_UNKNOWN);
    assert_cuda(drv->cuEventQuery(on.event));
    unlink(path);
}

static int open_one(void **state)
{
    (void)state;
    return open_devices(1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start_with_stream, finish_with_stream)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_nth_call_fails_without_effect),
        TEST(every_call_from_the_nth_on_fails),
        TEST(a_lost_device_fails_everything),
        TEST(a_late_fault_leaves_the_copy_undone_and_is_reported_once),
        TEST(a_late_fault_is_reported_by_the_event_that_covers_it),
        TEST(a_late_fault_outlives_an_event_that_nobody_asked),
        TEST(unproven_dma_runs_after_the_failed_synchronisation),
        TEST(a_stream_that_waits_for_an_unproven_one_gets_there),
        TEST(an_event_on_an_unproven_stream_fails_until_it_is_over),
        TEST(a_delay_only_delays),
        TEST(a_rule_can_wait_for_a_file),
    };
    return cmocka_run_group_tests(tests, open_one, NULL);
}
