/*
 * Times counted in buckets whose width is at most 1/64 of their value, for percentiles of any
 * number of requests in fixed memory. Nothing is allocated or locked: one per thread, merged later.
 */
#ifndef RESIDENTFS_TESTS_BENCH_HISTOGRAM_H
#define RESIDENTFS_TESTS_BENCH_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_STEPS   64 /* buckets for each power of two */
#define HISTOGRAM_BUCKETS (59 * HISTOGRAM_STEPS)

/* All zeros is an empty one. */
struct histogram {
    uint64_t counts[HISTOGRAM_BUCKETS];
    uint64_t total;
    uint64_t max_ns; /* exact */
};

void histogram_add(struct histogram *histogram, uint64_t ns);
void histogram_merge(struct histogram *into, const struct histogram *from);

/*
 * The least time that PARTS of 1000 of all times do not exceed: 500 is the median, 999 p99.9. Off
 * by less than 1/64, and never above the largest time. 0 when there are none. PARTS is 1 to 1000.
 */
uint64_t histogram_percentile(const struct histogram *histogram, unsigned int parts);

#endif
