#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/util.h"
#include "tests/bench/histogram.h"

static struct histogram histogram, other;

static int empty(void **state)
{
    (void)state;
    memset(&histogram, 0, sizeof(histogram));
    memset(&other, 0, sizeof(other));
    return 0;
}

static void test_nothing_has_no_percentiles(void **state)
{
    (void)state;
    assert_int_equal(histogram_percentile(&histogram, 500), 0);
    assert_int_equal(histogram_percentile(&histogram, 1000), 0);
}

static void test_one_time_is_every_percentile(void **state)
{
    (void)state;
    histogram_add(&histogram, 100000007);
    for (unsigned int parts = 1; parts <= 1000; parts++)
        assert_in_range(histogram_percentile(&histogram, parts), 100000007 - 100000007 / 64,
                        100000007);
}

/* Ranks are rounded up: of 1 … N, p50 is the (N/2)-th. Below 64 ns buckets are exact. */
static void test_ranks_are_exact_for_small_times(void **state)
{
    (void)state;
    for (uint64_t ns = 1; ns <= 10; ns++)
        histogram_add(&histogram, ns);
    assert_int_equal(histogram_percentile(&histogram, 1), 1);
    assert_int_equal(histogram_percentile(&histogram, 100), 1);
    assert_int_equal(histogram_percentile(&histogram, 101), 2);
    assert_int_equal(histogram_percentile(&histogram, 500), 5);
    assert_int_equal(histogram_percentile(&histogram, 900), 9);
    assert_int_equal(histogram_percentile(&histogram, 990), 10);
    assert_int_equal(histogram_percentile(&histogram, 999), 10);
}

static void test_one_slow_request_in_a_thousand_is_the_maximum_only(void **state)
{
    (void)state;
    for (int i = 0; i < 999; i++)
        histogram_add(&histogram, 50);
    histogram_add(&histogram, 9000000);
    assert_int_equal(histogram_percentile(&histogram, 999), 50);
    assert_in_range(histogram_percentile(&histogram, 1000), 9000000 - 9000000 / 64, 9000000);
    assert_int_equal(histogram.max_ns, 9000000);
    histogram_add(&histogram, 9000000);
    assert_in_range(histogram_percentile(&histogram, 999), 9000000 - 9000000 / 64, 9000000);
}

static void test_every_magnitude_has_a_bucket(void **state)
{
    (void)state;
    for (unsigned int bit = 0; bit < 64; bit++)
        for (int step = -1; step <= 1; step++) {
            uint64_t ns = ((uint64_t)1 << bit) + (uint64_t)step;

            empty(NULL);
            histogram_add(&histogram, ns);
            assert_in_range(histogram_percentile(&histogram, 500), ns - ns / 64, ns);
        }
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Against the sorted times, merged out of two halves. */
static void test_percentiles_of_random_times_are_those_of_the_sorted_times(void **state)
{
    static uint64_t times[20011];
    uint64_t seed = 12345;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(times); i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        times[i] = (seed >> 20) >> (seed >> 59); /* many magnitudes */
        histogram_add(i % 2 ? &histogram : &other, times[i]);
    }
    histogram_merge(&histogram, &other);
    assert_int_equal(histogram.total, ARRAY_SIZE(times));
    qsort(times, ARRAY_SIZE(times), sizeof(times[0]), compare);
    for (unsigned int parts = 1; parts <= 1000; parts++) {
        size_t rank = (ARRAY_SIZE(times) * parts + 999) / 1000;
        uint64_t exact = times[rank - 1];

        assert_in_range(histogram_percentile(&histogram, parts), exact - exact / 64,
                        exact + exact / 64);
    }
    assert_int_equal(histogram.max_ns, times[ARRAY_SIZE(times) - 1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_nothing_has_no_percentiles, empty),
        cmocka_unit_test_setup(test_one_time_is_every_percentile, empty),
        cmocka_unit_test_setup(test_ranks_are_exact_for_small_times, empty),
        cmocka_unit_test_setup(test_one_slow_request_in_a_thousand_is_the_maximum_only, empty),
        cmocka_unit_test_setup(test_every_magnitude_has_a_bucket, empty),
        cmocka_unit_test_setup(test_percentiles_of_random_times_are_those_of_the_sorted_times,
                               empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
