/*
 * Clients that put load on something at the same time, and what came of it: the part that the
 * loads on files (io_load) and on the bus (bus_load) share. A load is measured from the moment when
 * all clients are ready until the last one is done.
 */
#ifndef RESIDENTFS_TESTS_BENCH_LOAD_H
#define RESIDENTFS_TESTS_BENCH_LOAD_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/util.h"
#include "tests/bench/histogram.h"

#define LOAD_CLIENTS_MAX 64

/* What a load takes; KEY=VALUE of the command line. Sizes may have a unit: 64KiB. */
struct load_parameters {
    uint64_t block;     /* bytes per request */
    uint64_t file;      /* bytes of a file */
    uint64_t clients;   /* threads, each with descriptors of its own */
    uint64_t count;     /* of requests in a round, or of files */
    uint64_t fence;     /* copies on the bus before one waits */
    uint64_t ms;        /* how long; 0: the whole file once */
    uint64_t random;    /* 1: anywhere in the file instead of in order */
    uint64_t many;      /* 1: a file for each client instead of one for all */
    uint64_t sync_each; /* 1: fsync after each write, not only at the end */
    uint64_t fresh;     /* 1: copy into a new file */
};

struct load_client;

struct load_kind {
    const char *name;
    /* Before the clock starts. 0 or a negative errno; finish is called in any case. NULL: none. */
    errint_t (*prepare)(struct load_client *client);
    /* 0 or a negative errno. */
    errint_t (*run)(struct load_client *client);
    void (*finish)(struct load_client *client);
};

struct load {
    const struct load_kind *kind;
    struct load_parameters parameters;
    const char *target;        /* the folder, or the device */
    void *context;             /* of the kind; NULL otherwise */
    pthread_barrier_t barrier; /* of the clients and the main thread: start and end */
    pthread_barrier_t round;   /* of the clients, for rounds within run */
    uint64_t start_ns;         /* valid in run */
    _Atomic bool stop;         /* for rounds: no more */
    _Atomic bool failed;       /* some client could not prepare: run is not called */
};

struct load_client {
    struct load *load;
    unsigned int index;
    pthread_t thread;
    errint_t error;
    void *state;              /* of the kind */
    uint64_t bytes, requests; /* done */
    struct histogram latency; /* of requests */
    struct histogram sync;    /* of the fsyncs after a round */
};

/* Counts a request that began at *BEGIN_NS, and sets that to now. */
void load_count(struct load_client *client, uint64_t *begin_ns, uint64_t bytes);

/* Whether the time for the load is over. */
bool load_is_over(const struct load *load, uint64_t now_ns);

/*
 * Fills PARAMETERS from KEY=VALUE arguments; what is not named stays. False, with a message on
 * stderr: no such key, or not a number.
 */
bool load_parse(struct load_parameters *parameters, int count, char **arguments);

/*
 * Runs it with LOAD's kind, parameters, target and context. Prints one line of JSON and returns
 * EXIT_SUCCESS, or a message on stderr and EXIT_FAILURE.
 */
int load_run(struct load *load);

#endif
