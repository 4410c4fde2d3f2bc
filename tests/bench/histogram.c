#include "tests/bench/histogram.h"

#include <stddef.h>

#define STEP_BITS 6 /* of HISTOGRAM_STEPS */

/* Below HISTOGRAM_STEPS each value has a bucket; above, the STEP_BITS after the highest choose. */
static size_t bucket_of(uint64_t ns)
{
    if (ns < HISTOGRAM_STEPS)
        return (size_t)ns;
    int shift = 63 - __builtin_clzll(ns) - STEP_BITS;
    return (size_t)shift * HISTOGRAM_STEPS + (size_t)(ns >> shift);
}

static uint64_t bucket_middle(size_t bucket)
{
    if (bucket < 2 * HISTOGRAM_STEPS)
        return bucket;
    size_t shift = bucket / HISTOGRAM_STEPS - 1;
    uint64_t start = (uint64_t)(bucket - shift * HISTOGRAM_STEPS) << shift;
    return start + ((uint64_t)1 << shift) / 2;
}

void histogram_add(struct histogram *histogram, uint64_t ns)
{
    histogram->counts[bucket_of(ns)]++;
    histogram->total++;
    if (ns > histogram->max_ns)
        histogram->max_ns = ns;
}

void histogram_merge(struct histogram *into, const struct histogram *from)
{
    for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++)
        into->counts[i] += from->counts[i];
    into->total += from->total;
    if (from->max_ns > into->max_ns)
        into->max_ns = from->max_ns;
}

uint64_t histogram_percentile(const struct histogram *histogram, unsigned int parts)
{
    /* Rounded up, without overflow. */
    uint64_t rank =
        histogram->total / 1000 * parts + (histogram->total % 1000 * parts + 999) / 1000;
    uint64_t seen = 0;

    for (size_t i = 0; i < HISTOGRAM_BUCKETS && rank > 0; i++) {
        seen += histogram->counts[i];
        if (seen >= rank) {
            uint64_t middle = bucket_middle(i);
            return middle < histogram->max_ns ? middle : histogram->max_ns;
        }
    }
    return 0;
}
