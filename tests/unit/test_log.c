#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "core/log.h"
#include "core/util.h"

/* How often WHAT is in the log. */
static unsigned int count_of(const char *what)
{
    size_t length;
    cleanup_free char *text = log_snapshot(&length);
    unsigned int count = 0;

    assert_non_null(text);
    for (const char *at = text; (at = strstr(at, what)); at++)
        count++;
    return count;
}

static void a_storm_of_one_kind_is_cut_and_counted(void **state)
{
    const struct timespec pause = {.tv_nsec = 50000000};
    uint64_t until_ns = monotonic_ns() + (LOG_BURST_SECONDS + 10) * UINT64_C(1000000000);
    char expected[128];

    (void)state;
    for (unsigned int i = 0; i < 100; i++)
        log_warning("storm number %u", i);
    log_warning("another thing");
    assert_int_equal(count_of("storm number"), LOG_BURST_EVENTS);
    assert_int_equal(count_of("another thing"), 1);
    log_tick();
    assert_int_equal(count_of("were left out"), 0);
    while (count_of("were left out") == 0 && monotonic_ns() < until_ns) {
        nanosleep(&pause, NULL);
        log_tick();
    }
    snprintf(expected, sizeof(expected),
             "%d more like this within %d s were left out, the last: storm number 99",
             100 - LOG_BURST_EVENTS, LOG_BURST_SECONDS);
    assert_int_equal(count_of(expected), 1);
    log_warning("storm number %u", 100);
    log_tick();
    assert_int_equal(count_of("warning: storm number"), LOG_BURST_EVENTS + 1);
    assert_int_equal(count_of("were left out"), 1);
}

static void nothing_is_left_out_at_level_debug(void **state)
{
    (void)state;
    log_set_level(LOG_LEVEL_DEBUG);
    for (unsigned int i = 0; i < 100; i++)
        log_debug("all of it, %u", i);
    log_set_level(LOG_LEVEL_INFO);
    assert_int_equal(count_of("all of it"), 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_storm_of_one_kind_is_cut_and_counted),
        cmocka_unit_test(nothing_is_left_out_at_level_debug),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
