/* The budget's arithmetic and its concurrent use. Timeout: 60 s. */
#include "fixture.h"

#include <errno.h>
#include <pthread.h>

#include "core/budget.h"

static const struct budget_setting automatic = {.kind = BUDGET_AUTO};

static struct budget_setting percent(uint64_t value)
{
    return (struct budget_setting){.kind = BUDGET_PERCENT, .value = value};
}

static struct budget_setting bytes(uint64_t value)
{
    return (struct budget_setting){.kind = BUDGET_BYTES, .value = value};
}

static void the_limit_is_that_of_the_contract(void **unused)
{
    (void)unused;
    assert_int_equal(budget_ceiling_bytes(10000, automatic), 9000);
    assert_int_equal(budget_limit_bytes(9000, 1000, 0), 900);
    assert_int_equal(budget_limit_bytes(9000, 8000, 2000), 9000);
    assert_int_equal(budget_limit_bytes(9000, 0, 2000), 2000);
    /* Floors, and what is resident already stays within the limit. */
    assert_int_equal(budget_ceiling_bytes(19, automatic), 17);
    assert_int_equal(budget_limit_bytes(17, 19, 0), 17);
    assert_int_equal(budget_limit_bytes(9000, 19, 100), 117);
    assert_int_equal(budget_limit_bytes(9000, 5000, 9000), 9000);
    assert_int_equal(budget_limit_bytes(9000, 5000, 9500), 9500);
}

static void a_setting_lowers_the_ceiling_and_never_raises_it(void **unused)
{
    (void)unused;
    assert_int_equal(budget_ceiling_bytes(10000, bytes(4321)), 4321);
    assert_int_equal(budget_ceiling_bytes(10000, bytes(9001)), 9000);
    assert_int_equal(budget_ceiling_bytes(10000, bytes(UINT64_MAX)), 9000);
    assert_int_equal(budget_ceiling_bytes(10000, bytes(0)), 0);
    assert_int_equal(budget_ceiling_bytes(10000, percent(50)), 5000);
    assert_int_equal(budget_ceiling_bytes(10000, percent(100)), 9000);
    assert_int_equal(budget_ceiling_bytes(10000, percent(91)), 9000);
    assert_int_equal(budget_ceiling_bytes(10001, percent(33)), 3300);
}

static void nothing_overflows_at_the_largest_sizes(void **unused)
{
    (void)unused;
    uint64_t ceiling = budget_ceiling_bytes(UINT64_MAX, automatic);
    struct budget budget;
    struct budget_report report;

    assert_int_equal(ceiling, UINT64_MAX / 10 * 9 + UINT64_MAX % 10 * 9 / 10);
    assert_int_equal(budget_ceiling_bytes(UINT64_MAX, percent(100)), ceiling);
    assert_int_equal(budget_limit_bytes(ceiling, UINT64_MAX, 0), ceiling);
    assert_int_equal(budget_limit_bytes(ceiling, UINT64_MAX, ceiling - 1), ceiling);
    assert_int_equal(budget_limit_bytes(ceiling, UINT64_MAX, UINT64_MAX), UINT64_MAX);

    budget_init(&budget, UINT64_MAX, bytes(UINT64_MAX));
    assert_int_equal(budget_reserve(&budget, UINT64_MAX, UINT64_MAX), -ENOSPC);
    assert_int_equal(budget_reserve(&budget, 1000, UINT64_MAX), 0);
    assert_int_equal(budget_reserve(&budget, UINT64_MAX - 500, UINT64_MAX), -ENOSPC);
    budget_get_report(&budget, UINT64_MAX, &report);
    assert_int_equal(report.resident_bytes, 1000);
    assert_true(report.limit_bytes >= report.resident_bytes);
    assert_int_equal(report.available_bytes, report.limit_bytes - 1000);
}

static void a_refused_reservation_reserves_nothing(void **unused)
{
    (void)unused;
    struct budget budget;
    struct budget_report report;

    budget_init(&budget, 10000, automatic);
    assert_int_equal(budget_reserve(&budget, 901, 1000), -ENOSPC);
    budget_get_report(&budget, 1000, &report);
    assert_int_equal(report.resident_bytes, 0);
    assert_int_equal(report.available_bytes, 900);
    assert_int_equal(budget_reserve(&budget, 900, 1000), 0);
    assert_int_equal(budget_reserve(&budget, 1, 0), -ENOSPC);
    budget_release(&budget, 900);
    budget_get_report(&budget, 10000, &report);
    assert_int_equal(report.resident_bytes, 0);
    assert_int_equal(report.limit_bytes, 9000);
}

static void a_setting_below_what_is_resident_refuses_more_and_takes_nothing_away(void **unused)
{
    (void)unused;
    struct budget budget;
    struct budget_report report;

    budget_init(&budget, 10000, automatic);
    assert_int_equal(budget_reserve(&budget, 5000, 10000), 0);
    budget_set(&budget, percent(30));
    budget_get_report(&budget, 10000, &report);
    assert_int_equal(report.setting.kind, BUDGET_PERCENT);
    assert_int_equal(report.setting.value, 30);
    assert_int_equal(report.limit_bytes, 5000);
    assert_int_equal(report.available_bytes, 0);
    assert_int_equal(budget_reserve(&budget, 1, 10000), -ENOSPC);
    budget_release(&budget, 3000);
    assert_int_equal(budget_reserve(&budget, 1000, 10000), 0);
    assert_int_equal(budget_reserve(&budget, 1, 10000), -ENOSPC);
    budget_set(&budget, automatic);
    assert_int_equal(budget_reserve(&budget, 6000, 10000), 0);
}

static void random_reservations_match_a_model(void **unused)
{
    (void)unused;
    uint64_t state = fixture_seed();

    for (unsigned int round = 0; round < 200; round++) {
        uint64_t total = fixture_random(&state) % 100000, resident = 0;
        struct budget_setting setting = automatic;
        struct budget budget;
        budget_init(&budget, total, setting);
        for (unsigned int step = 0; step < 500; step++) {
            uint64_t amount = fixture_random(&state) % (total / 4 + 2);
            uint64_t free_bytes = fixture_random(&state) % (total + 1);
            if (fixture_random(&state) % 16 == 0) {
                setting = fixture_random(&state) % 2 ? percent(1 + fixture_random(&state) % 100)
                                                     : bytes(fixture_random(&state) % (total + 1));
                budget_set(&budget, setting);
            }
            uint64_t ceiling = total * 9 / 10;
            if (setting.kind == BUDGET_BYTES)
                ceiling = MIN(ceiling, setting.value);
            if (setting.kind == BUDGET_PERCENT)
                ceiling = MIN(ceiling, total * setting.value / 100);
            uint64_t limit = resident >= ceiling
                                 ? resident
                                 : resident + MIN(ceiling - resident, free_bytes * 9 / 10);
            bool fits = resident + amount <= limit;
            assert_int_equal(budget_reserve(&budget, amount, free_bytes), fits ? 0 : -ENOSPC);
            resident += fits ? amount : 0;
            if (resident > 0 && fixture_random(&state) % 3 == 0) {
                uint64_t back = fixture_random(&state) % (resident + 1);
                budget_release(&budget, back);
                resident -= back;
            }
        }
    }
}

struct taker {
    struct budget *budget;
    uint64_t seed, held;
    _Atomic uint64_t *most;
};

#define SHARED_TOTAL 1000000

static void *take_and_give(void *data)
{
    struct taker *taker = data;
    uint64_t state = taker->seed;
    struct budget_report report;

    for (unsigned int i = 0; i < 20000; i++) {
        uint64_t amount = fixture_random(&state) % (SHARED_TOTAL / 3);
        if (budget_reserve(taker->budget, amount, SHARED_TOTAL) == 0)
            taker->held += amount;
        budget_get_report(taker->budget, SHARED_TOTAL, &report);
        uint64_t most = atomic_load(taker->most);
        while (report.resident_bytes > most &&
               !atomic_compare_exchange_weak(taker->most, &most, report.resident_bytes))
            ;
        if (fixture_random(&state) % 2) {
            budget_release(taker->budget, taker->held);
            taker->held = 0;
        }
    }
    return NULL;
}

static void concurrent_reservations_never_exceed_the_limit(void **unused)
{
    (void)unused;
    unsigned int seed = fixture_seed();
    struct budget budget;
    struct taker takers[4];
    pthread_t threads[4];
    _Atomic uint64_t most = 0;
    uint64_t held = 0;
    struct budget_report report;

    budget_init(&budget, SHARED_TOTAL, automatic);
    for (unsigned int i = 0; i < 4; i++) {
        takers[i] = (struct taker){&budget, seed + i, 0, &most};
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, &takers[i]), 0);
    }
    for (unsigned int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        held += takers[i].held;
    }
    budget_get_report(&budget, SHARED_TOTAL, &report);
    print_message("at most %llu of %d\n", (unsigned long long)most, SHARED_TOTAL * 9 / 10);
    assert_int_equal(report.resident_bytes, held);
    assert_true(most <= SHARED_TOTAL * 9 / 10);
    assert_true(most > SHARED_TOTAL / 2);
}

struct holder {
    struct budget *budget;
    _Atomic unsigned int *holders;
    uint64_t until_ns;
    unsigned int together;
};

static void *hold_half(void *data)
{
    struct holder *holder = data;

    /* Long enough that the threads really run at the same time, on a busy machine too. */
    for (unsigned int i = 0; i % 1024 != 0 || monotonic_ns() < holder->until_ns; i++) {
        if (budget_reserve(holder->budget, SHARED_TOTAL / 2, SHARED_TOTAL) < 0)
            continue;
        holder->together += atomic_fetch_add(holder->holders, 1) > 0;
        atomic_fetch_sub(holder->holders, 1);
        budget_release(holder->budget, SHARED_TOTAL / 2);
    }
    return NULL;
}

static void two_threads_never_get_what_is_there_once(void **unused)
{
    (void)unused;
    struct budget budget;
    struct holder holders[3];
    pthread_t threads[3];
    _Atomic unsigned int holding = 0;
    uint64_t until_ns = monotonic_ns() + 2000000000u;

    budget_init(&budget, SHARED_TOTAL, automatic);
    for (size_t i = 0; i < 3; i++) {
        holders[i] = (struct holder){&budget, &holding, until_ns, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, hold_half, &holders[i]), 0);
    }
    for (size_t i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(holders[i].together, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_limit_is_that_of_the_contract),
        cmocka_unit_test(a_setting_lowers_the_ceiling_and_never_raises_it),
        cmocka_unit_test(nothing_overflows_at_the_largest_sizes),
        cmocka_unit_test(a_refused_reservation_reserves_nothing),
        cmocka_unit_test(a_setting_below_what_is_resident_refuses_more_and_takes_nothing_away),
        cmocka_unit_test(random_reservations_match_a_model),
        cmocka_unit_test(concurrent_reservations_never_exceed_the_limit),
        cmocka_unit_test(two_threads_never_get_what_is_there_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
