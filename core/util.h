/*
 * Small helpers that every module uses: cleanup attributes, rounding, checked arithmetic.
 * Nothing here allocates or locks.
 */
#ifndef RESIDENTFS_CORE_UTIL_H
#define RESIDENTFS_CORE_UTIL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* A function that returns errint_t returns 0 or a negative errno. */
typedef int errint_t;

#define ARRAY_SIZE(a)    (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b)        ((a) < (b) ? (a) : (b))
#define MAX(a, b)        ((a) > (b) ? (a) : (b))

#define KIB              ((uint64_t)1024)
#define MIB              (1024 * KIB)
#define GIB              (1024 * MIB)

#define CACHE_LINE_BYTES 64

static inline void cleanup_freep(void *p)
{
    free(*(void **)p);
}

static inline void cleanup_fdp(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

#define cleanup_free __attribute__((cleanup(cleanup_freep)))
#define cleanup_fd   __attribute__((cleanup(cleanup_fdp)))

/* Hands the pointer on and forgets it, so that cleanup_free leaves it alone. */
static inline void *steal_pointer_(void *p)
{
    void **pp = p, *value = *pp;
    *pp = NULL;
    return value;
}
#define steal_pointer(pp) ((__typeof__(*(pp)))steal_pointer_(pp))

static inline int steal_fd(int *fd)
{
    int value = *fd;
    *fd = -1;
    return value;
}

/* ALIGN must be a power of two; the caller has excluded overflow. */
static inline uint64_t align_up(uint64_t value, uint64_t align)
{
    return (value + align - 1) & ~(align - 1);
}

static inline uint64_t align_down(uint64_t value, uint64_t align)
{
    return value & ~(align - 1);
}

/* CLOCK_MONOTONIC in nanoseconds. */
static inline uint64_t monotonic_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* A number of the calling thread, for spreading threads over stripes: counts up from 0. */
static inline unsigned int thread_number(void)
{
    static _Atomic unsigned int next;
    static _Thread_local unsigned int number = UINT32_MAX;

    if (number == UINT32_MAX)
        number = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed);
    return number;
}

/* Tells the processor that this is a loop that waits, for some tenths of a microsecond. */
static inline void processor_pause(void)
{
    for (unsigned int i = 0; i < 10; i++) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#else
        __asm__ volatile("" ::: "memory");
#endif
    }
}

#endif
