#include "core/telemetry.h"

#include <stdatomic.h>
#include <string.h>

#include "core/util.h"

static struct telemetry_stripe *own_stripe(struct telemetry *telemetry)
{
    return &telemetry->stripes[thread_number() % TELEMETRY_STRIPES];
}

static uint64_t saturating_sum(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static void counter_add(_Atomic uint64_t *counter, uint64_t amount)
{
    uint64_t old = atomic_load_explicit(counter, memory_order_relaxed);

    while (!atomic_compare_exchange_weak_explicit(counter, &old, saturating_sum(old, amount),
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

void telemetry_add(struct telemetry *telemetry, enum telemetry_counter counter, uint64_t amount)
{
    if (amount)
        counter_add(&own_stripe(telemetry)->counters[counter], amount);
}

void telemetry_observe_ns(struct telemetry *telemetry, enum telemetry_histogram histogram,
                          uint64_t ns)
{
    struct telemetry_stripe *stripe = own_stripe(telemetry);
    uint64_t us = ns / 1000 + (ns % 1000 != 0);
    unsigned int bucket = us <= 1 ? 0 : 64 - (unsigned int)__builtin_clzll(us - 1);

    counter_add(&stripe->buckets[histogram][MIN(bucket, TELEMETRY_BUCKETS - 1)], 1);
    counter_add(&stripe->sum_ns[histogram], ns);
}

void telemetry_staging_changed(struct telemetry *telemetry, int64_t bytes)
{
    uint64_t now = atomic_fetch_add(&telemetry->staging_bytes, (uint64_t)bytes) + (uint64_t)bytes;
    uint64_t peak = atomic_load(&telemetry->staging_peak_bytes);

    while (now > peak && bytes > 0 &&
           !atomic_compare_exchange_weak(&telemetry->staging_peak_bytes, &peak, now))
        ;
}

void telemetry_take_snapshot(struct telemetry *telemetry, struct telemetry_snapshot *snapshot)
{
    memset(snapshot, 0, sizeof(*snapshot));
    for (size_t s = 0; s < TELEMETRY_STRIPES; s++) {
        const struct telemetry_stripe *stripe = &telemetry->stripes[s];
        for (size_t c = 0; c < TELEMETRY_COUNTERS; c++)
            snapshot->counters[c] = saturating_sum(snapshot->counters[c], stripe->counters[c]);
        for (size_t h = 0; h < TELEMETRY_HISTOGRAMS; h++) {
            for (size_t b = 0; b < TELEMETRY_BUCKETS; b++)
                snapshot->buckets[h][b] =
                    saturating_sum(snapshot->buckets[h][b], stripe->buckets[h][b]);
            snapshot->sum_ns[h] = saturating_sum(snapshot->sum_ns[h], stripe->sum_ns[h]);
        }
    }
    snapshot->staging_bytes = atomic_load(&telemetry->staging_bytes);
    snapshot->staging_peak_bytes = atomic_load(&telemetry->staging_peak_bytes);
}
