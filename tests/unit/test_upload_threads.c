/*
 * Many threads that write, read, shorten and flush through one upload queue, while the driver is
 * slow or fails. Timeout: 120 s.
 */
#include "upload_gates.h"

#define THREADS 6
#define AREA    (400 * KIB) /* of each in the shared buffer */

struct worker {
    pthread_t thread;
    struct device *device;
    struct buffer *shared, *own;
    unsigned int index;
    uint64_t random, until_ns;
    bool faults; /* a failure may happen: then what is read is checked after a clean flush only */
    char wrong[200];
};

#define WRONG(worker, ...) snprintf((worker)->wrong, sizeof((worker)->wrong), __VA_ARGS__)

static void fill_random(unsigned char *bytes, size_t length, uint64_t *state)
{
    for (size_t i = 0; i < length; i++)
        bytes[i] =
            i % 64 ? (unsigned char)(bytes[i - 1] + 1) : (unsigned char)fixture_random(state);
}

/* One area of the shared buffer, or the whole of the own one. */
static void work_on(struct worker *worker, struct buffer *buffer, uint64_t base,
                    unsigned char *model, unsigned char *bytes)
{
    uint64_t *random = &worker->random, cursor = buffer_error_sample(buffer);
    static const size_t lengths[] = {1, 100, PAGE, PAGE, PAGE, 5000, 20 * KIB, 64 * KIB, 128 * KIB};

    for (unsigned int i = 0; i < 8; i++) {
        size_t length = lengths[fixture_random(random) % ARRAY_SIZE(lengths)];
        uint64_t at = fixture_random(random) % (AREA - length);
        if (fixture_random(random) % 2)
            at = align_down(at, PAGE);
        fill_random(bytes, length, random);
        ssize_t done = buffer_write(buffer, base + at, bytes, length, NULL);
        if (done != (ssize_t)length) {
            if (!worker->faults)
                WRONG(worker, "a write of %zu bytes: %zd", length, done);
            break;
        }
        memcpy(model + at, bytes, length);
        memset(bytes, 0xee, length);
    }
    if (worker->faults || fixture_random(random) % 4 == 0) {
        errint_t err = buffer_flush(buffer);
        if (err < 0 && !worker->faults)
            WRONG(worker, "a flush: %d", err);
    }
    ssize_t got = buffer_read(buffer, base, bytes, AREA);
    bool failed = buffer_error_check(buffer, &cursor) < 0;
    if (worker->faults && (got < 0 || failed)) {
        memset(model, 0, AREA);
        while (worker->wrong[0] == 0 && buffer_write(buffer, base, model, AREA, NULL) != AREA)
            if (monotonic_ns() > worker->until_ns + 20000000000u)
                WRONG(worker, "it cannot be written any more");
        return;
    }
    if (got != AREA)
        WRONG(worker, "a read: %zd", got);
    for (size_t i = 0; i < AREA && worker->wrong[0] == 0; i++)
        if (bytes[i] != model[i])
            WRONG(worker, "byte %zu is %02x, not %02x", i, bytes[i], model[i]);
}

static void *work(void *data)
{
    struct worker *worker = data;
    unsigned char *bytes = calloc(1, AREA), *models[2] = {calloc(1, AREA), calloc(1, AREA)};

    device_attach_thread(worker->device);
    while (monotonic_ns() < worker->until_ns && worker->wrong[0] == 0) {
        work_on(worker, worker->shared, worker->index * AREA, models[0], bytes);
        if (worker->wrong[0] == 0)
            work_on(worker, worker->own, 0, models[1], bytes);
        if (worker->wrong[0] == 0 && fixture_random(&worker->random) % 3 == 0) {
            uint64_t length = fixture_random(&worker->random) % 2 ? AREA / 3 : 0;
            if (buffer_truncate(worker->own, length) < 0 ||
                buffer_truncate(worker->own, AREA) < 0) {
                if (!worker->faults)
                    WRONG(worker, "a truncate");
            } else {
                memset(models[1] + length, 0, AREA - length);
            }
        }
    }
    free(bytes);
    free(models[0]);
    free(models[1]);
    return NULL;
}

static void run_workers(const char *settings, const char *fault, uint64_t staging, unsigned int ms)
{
    struct device_options options = {
        .budget = {.kind = BUDGET_AUTO},
        .staging_bytes = staging,
        .upload_streams = 1,
        .flush_interval_ms = 1,
        .direct_threshold_bytes = 1 * MIB,
    };
    struct device *device = open_watched(settings, &options);
    struct buffer *shared = filled(device, 100, 0, THREADS * AREA);
    struct worker workers[THREADS];
    uint64_t seed = fixture_seed();

    fixture_configure(fault);
    for (unsigned int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.device = device,
                                     .shared = shared,
                                     .own = filled(device, i, 0, AREA),
                                     .index = i,
                                     .random = seed + i,
                                     .until_ns = monotonic_ns() + (uint64_t)ms * 1000000,
                                     .faults = strstr(fault, ":1;") != NULL};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (unsigned int i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    for (unsigned int i = 0; i < THREADS; i++)
        if (workers[i].wrong[0])
            fail_msg("%s %s: thread %u: %s", settings, fault, i, workers[i].wrong);
    fixture_configure("fault=none");
    struct telemetry_snapshot snapshot;
    telemetry_take_snapshot(device_telemetry(device), &snapshot);
    assert_in_range(snapshot.staging_peak_bytes, 1, staging);
    for (unsigned int i = 0; i < THREADS; i++)
        buffer_destroy(workers[i].own);
    buffer_destroy(shared);
    check_watched();
    fixture_close(device);
}

#define SLOW "fault=cuMemcpyBatchAsync:1+:0:delay=300;"

static void many_threads_find_their_own_bytes_while_the_driver_is_slow(void **unused)
{
    (void)unused;
    run_workers("order=random", SLOW, 8 * MIB, 1200);
    run_workers("order=sync", SLOW, 2 * MIB, 800);
    run_workers("order=eager;latency=2000000", SLOW, 512 * KIB, 800);
    run_workers("order=random;batch=off", "fault=cuMemcpyHtoDAsync:1+:0:delay=50", 2 * MIB, 500);
}

static void many_threads_survive_a_batch_that_fails_wherever_it_is(void **unused)
{
    (void)unused;
    char fault[200];

    for (unsigned int i = 1; i <= 12; i++) {
        snprintf(fault, sizeof(fault), SLOW "fault=cuMemcpyBatchAsync:%u:1;", i);
        run_workers("order=random", fault, 2 * MIB, 100);
    }
    run_workers("order=random", SLOW "fault=cuEventRecord:3:1;", 1 * MIB, 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_threads_find_their_own_bytes_while_the_driver_is_slow),
        cmocka_unit_test(many_threads_survive_a_batch_that_fails_wherever_it_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
