/* Counters, histograms and the staging gauge. Timeout: 60 s. */
#include "fixture.h"

#include <pthread.h>

#include "core/telemetry.h"

static struct telemetry *telemetry_new(void)
{
    struct telemetry *telemetry = aligned_alloc(64, sizeof(*telemetry));

    memset(telemetry, 0, sizeof(*telemetry));
    return telemetry;
}

#define THREADS 20 /* more than there are stripes */
#define ROUNDS  5000

static void *record_much(void *data)
{
    for (unsigned int i = 0; i < ROUNDS; i++) {
        telemetry_add(data, TELEMETRY_H2D_BYTES, 3);
        telemetry_add(data, TELEMETRY_H2D_OPERATIONS, 1);
        telemetry_observe_ns(data, TELEMETRY_READ_SECONDS, 5000);
        telemetry_staging_changed(data, 100);
        telemetry_staging_changed(data, -100);
    }
    return NULL;
}

static void a_snapshot_is_the_sum_over_all_threads(void **unused)
{
    (void)unused;
    struct telemetry *telemetry = telemetry_new();
    struct telemetry_snapshot snapshot;
    pthread_t threads[THREADS];

    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, record_much, telemetry), 0);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    telemetry_take_snapshot(telemetry, &snapshot);
    assert_int_equal(snapshot.counters[TELEMETRY_H2D_BYTES], 3 * THREADS * ROUNDS);
    assert_int_equal(snapshot.counters[TELEMETRY_H2D_OPERATIONS], THREADS * ROUNDS);
    assert_int_equal(snapshot.counters[TELEMETRY_D2H_BYTES], 0);
    assert_int_equal(snapshot.buckets[TELEMETRY_READ_SECONDS][3], THREADS * ROUNDS);
    assert_int_equal(snapshot.sum_ns[TELEMETRY_READ_SECONDS], (uint64_t)5000 * THREADS * ROUNDS);
    assert_int_equal(snapshot.staging_bytes, 0);
    assert_in_range(snapshot.staging_peak_bytes, 100, 100 * THREADS);
    free(telemetry);
}

static void *add_half_of_all(void *data)
{
    telemetry_add(data, TELEMETRY_D2H_BYTES, UINT64_MAX / 2 + 1);
    return NULL;
}

static void a_counter_that_would_overflow_stops(void **unused)
{
    (void)unused;
    struct telemetry *telemetry = telemetry_new();
    struct telemetry_snapshot snapshot;
    pthread_t threads[3];

    telemetry_add(telemetry, TELEMETRY_H2D_BYTES, UINT64_MAX - 1);
    telemetry_add(telemetry, TELEMETRY_H2D_BYTES, 1);
    telemetry_add(telemetry, TELEMETRY_H2D_BYTES, 1);
    telemetry_add(telemetry, TELEMETRY_H2D_BYTES, UINT64_MAX);
    telemetry_observe_ns(telemetry, TELEMETRY_WRITE_SECONDS, UINT64_MAX);
    telemetry_observe_ns(telemetry, TELEMETRY_WRITE_SECONDS, UINT64_MAX);
    /* Neither does the sum of the stripes. */
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, add_half_of_all, telemetry), 0);
    for (size_t i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    telemetry_take_snapshot(telemetry, &snapshot);
    assert_int_equal(snapshot.counters[TELEMETRY_H2D_BYTES], UINT64_MAX);
    assert_int_equal(snapshot.counters[TELEMETRY_D2H_BYTES], UINT64_MAX);
    assert_int_equal(snapshot.sum_ns[TELEMETRY_WRITE_SECONDS], UINT64_MAX);
    assert_int_equal(snapshot.buckets[TELEMETRY_WRITE_SECONDS][TELEMETRY_BUCKETS - 1], 2);
    free(telemetry);
}

static void a_latency_falls_into_the_bucket_whose_bound_holds_it(void **unused)
{
    (void)unused;
    struct telemetry *telemetry = telemetry_new();
    struct telemetry_snapshot before, after;

    telemetry_take_snapshot(telemetry, &before);
    for (size_t i = 0; i < TELEMETRY_BUCKETS; i++) {
        uint64_t bound = (uint64_t)1000 << i; /* ns */
        const struct {
            uint64_t ns;
            size_t bucket;
        } cases[] = {
            {bound, i},
            {bound - 1, i},
            {bound + 1, MIN(i + 1, (size_t)TELEMETRY_BUCKETS - 1)},
            {bound / 2 + 1, i},
        };
        for (size_t c = 0; c < ARRAY_SIZE(cases); c++) {
            telemetry_observe_ns(telemetry, TELEMETRY_FSYNC_SECONDS, cases[c].ns);
            telemetry_take_snapshot(telemetry, &after);
            for (size_t b = 0; b < TELEMETRY_BUCKETS; b++)
                if (after.buckets[TELEMETRY_FSYNC_SECONDS][b] -
                        before.buckets[TELEMETRY_FSYNC_SECONDS][b] !=
                    (b == cases[c].bucket))
                    fail_msg("%llu ns: bucket %zu", (unsigned long long)cases[c].ns, b);
            before = after;
        }
    }
    telemetry_observe_ns(telemetry, TELEMETRY_FSYNC_SECONDS, 0);
    telemetry_take_snapshot(telemetry, &after);
    assert_int_equal(after.buckets[TELEMETRY_FSYNC_SECONDS][0],
                     before.buckets[TELEMETRY_FSYNC_SECONDS][0] + 1);
    free(telemetry);
}

static void the_staging_peak_is_the_most_there_has_been(void **unused)
{
    (void)unused;
    struct telemetry *telemetry = telemetry_new();
    struct telemetry_snapshot snapshot;

    telemetry_staging_changed(telemetry, 1000);
    telemetry_staging_changed(telemetry, 500);
    telemetry_staging_changed(telemetry, -1200);
    telemetry_staging_changed(telemetry, 400);
    telemetry_take_snapshot(telemetry, &snapshot);
    assert_int_equal(snapshot.staging_bytes, 700);
    assert_int_equal(snapshot.staging_peak_bytes, 1500);
    free(telemetry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_snapshot_is_the_sum_over_all_threads),
        cmocka_unit_test(a_counter_that_would_overflow_stops),
        cmocka_unit_test(a_latency_falls_into_the_bucket_whose_bound_holds_it),
        cmocka_unit_test(the_staging_peak_is_the_most_there_has_been),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
