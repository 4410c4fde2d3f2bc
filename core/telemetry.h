/*
 * Counters and latency histograms of one device. An operation is recorded after its fence, never
 * before. Any thread may record at any time: counters are striped over cache lines and relaxed; a
 * snapshot is their sum, each counter by itself exact. A counter that would overflow stops at
 * UINT64_MAX.
 */
#ifndef RESIDENTFS_CORE_TELEMETRY_H
#define RESIDENTFS_CORE_TELEMETRY_H

#include <stdint.h>

enum telemetry_counter {
    TELEMETRY_H2D_BYTES,           /* host to device, after fusion, fence proven */
    TELEMETRY_H2D_OPERATIONS,      /* copies, after fusion */
    TELEMETRY_D2H_BYTES,           /* device to host, after fusion, fence proven */
    TELEMETRY_D2H_OPERATIONS,      /* copies, after fusion */
    TELEMETRY_D2D_BYTES,           /* device to device */
    TELEMETRY_UPLOAD_REQUESTS,     /* writes before fusion */
    TELEMETRY_READBACK_REQUESTS,   /* ranges asked for, before fusion */
    TELEMETRY_READAHEAD_HITS,      /* ranges that had been read ahead */
    TELEMETRY_SYNC_POINTS,         /* fences waited for */
    TELEMETRY_ALLOCATED_BYTES,     /* device memory ever taken from the driver */
    TELEMETRY_POOL_HITS,           /* stream or staging taken from a pool */
    TELEMETRY_POOL_MISSES,         /* stream or staging that had to be created */
    TELEMETRY_QUARANTINED_STREAMS, /* streams whose completion could not be proven */
    TELEMETRY_QUARANTINED_BYTES,   /* staging and device bytes never to be used again */
    TELEMETRY_ERRORS_UPLOAD,       /* uploads that failed */
    TELEMETRY_ERRORS_READBACK,     /* readbacks that failed */
    TELEMETRY_ERRORS_ALLOCATION,   /* device memory refused by the driver */
    TELEMETRY_ERRORS_BUDGET,       /* requests refused by the budget */
    TELEMETRY_ERRORS_FENCE,        /* fences that failed */
    TELEMETRY_COUNTERS
};

enum telemetry_histogram {
    TELEMETRY_READ_SECONDS,
    TELEMETRY_WRITE_SECONDS,
    TELEMETRY_FSYNC_SECONDS,
    TELEMETRY_HISTOGRAMS
};

/* Bucket i counts latencies <= 2^i microseconds; the last one everything longer. */
#define TELEMETRY_BUCKETS 24
#define TELEMETRY_STRIPES 16

struct telemetry_stripe {
    _Alignas(64) _Atomic uint64_t counters[TELEMETRY_COUNTERS];
    _Atomic uint64_t buckets[TELEMETRY_HISTOGRAMS][TELEMETRY_BUCKETS];
    _Atomic uint64_t sum_ns[TELEMETRY_HISTOGRAMS];
};

/* Zero-initialised memory is a valid telemetry. */
struct telemetry {
    struct telemetry_stripe stripes[TELEMETRY_STRIPES];
    _Atomic uint64_t staging_bytes;      /* gauge: page-locked or pageable staging that exists */
    _Atomic uint64_t staging_peak_bytes; /* the most it has been */
};

struct telemetry_snapshot {
    uint64_t counters[TELEMETRY_COUNTERS];
    uint64_t buckets[TELEMETRY_HISTOGRAMS][TELEMETRY_BUCKETS]; /* not cumulative */
    uint64_t sum_ns[TELEMETRY_HISTOGRAMS];
    uint64_t staging_bytes, staging_peak_bytes;
};

void telemetry_add(struct telemetry *telemetry, enum telemetry_counter counter, uint64_t amount);
void telemetry_observe_ns(struct telemetry *telemetry, enum telemetry_histogram histogram,
                          uint64_t ns);
/* Adds (or with a negative amount removes) staging memory. */
void telemetry_staging_changed(struct telemetry *telemetry, int64_t bytes);
void telemetry_take_snapshot(struct telemetry *telemetry, struct telemetry_snapshot *snapshot);

#endif
