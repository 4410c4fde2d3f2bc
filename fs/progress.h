/*
 * How far reading and writing of an open file has come, for .resident/status. Counted by each
 * request with relaxed atomics in the open file alone: no lock, nothing that other files share.
 * Several threads on one open file may blur the figures; they are for people.
 */
#ifndef RESIDENTFS_FS_PROGRESS_H
#define RESIDENTFS_FS_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Nothing for longer: not busy any more; what comes then has a rate of its own. */
#define PROGRESS_IDLE_NS UINT64_C(2000000000)

/* One direction of an open file. Zero-initialised memory is valid. */
struct progress {
    _Atomic uint64_t bytes;   /* since the last request at offset 0 */
    _Atomic uint64_t front;   /* the furthest end of a request since then, bytes from the start */
    _Atomic uint64_t last_ns; /* when the last request began; 0: there was none */
    _Atomic bool scattered;   /* a request was far from the front: there is no order */
    /* Two points in the past, a second or more apart while it is busy, for the rate. */
    struct progress_mark {
        _Atomic uint64_t ns, bytes;
    } older, newer;
};

/* A request for [offset, offset + length) that began at BEGAN_NS (monotonic_ns) was done. */
void progress_count(struct progress *progress, uint64_t offset, uint64_t length, uint64_t began_ns);

struct progress_report {
    uint64_t bytes, front;      /* as above */
    uint64_t bytes_each_second; /* over the last one or two seconds; 0: not known */
    bool sequential;            /* from the start on, each byte once: bytes is how far it is */
};

/* False: nothing was going on within PROGRESS_IDLE_NS before NOW_NS. */
bool progress_get_report(struct progress *progress, uint64_t now_ns,
                         struct progress_report *report);

#endif
