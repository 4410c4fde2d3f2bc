/*
 * A thread of the transport and the memory that it works with. Private to the transport; handlers
 * see fs/session.h.
 */
#ifndef RESIDENTFS_FS_WORKER_H
#define RESIDENTFS_FS_WORKER_H

#include <pthread.h>
#include <semaphore.h>

#include "fs/session.h"

/*
 * Headers of a WRITE, struct fuse_in_header and struct fuse_write_in of the kernel's protocol: the
 * payload comes after them, and is to be page-aligned.
 */
#define WORKER_WRITE_HEADER_BYTES 80
#define WORKER_PAGE_BYTES         4096
/* One of which an upload may hold while the other one receives. */
#define WORKER_RECEIVE_BUFFERS 2

struct receive_buffer {
    struct pinned_memory memory; /* a page that ends in the headers, then the payload */
    struct upload_fence fence;   /* of an upload out of memory */
};

/* All of it belongs to its own thread while that runs. */
struct worker {
    struct session *session;
    struct device *device;
    pthread_t thread;
    int channel;  /* where its requests are read and answered: its own, or the session's */
    bool running; /* the thread is to be joined; the main thread's */
    struct receive_buffer receive[WORKER_RECEIVE_BUFFERS];
    unsigned int receive_count;
    unsigned int current;      /* the one that was received into last */
    unsigned int spare_waits;  /* waits for a request, in a row, while another one listened too */
    bool comes_soon;           /* the last request that was waited for came within busy_poll= */
    _Atomic uint64_t requests; /* received so far; others read it */
    sem_t wake;                /* posted to end its sleep */
    struct worker *next_asleep;
    struct pinned_memory reply;
    /* A thread of libfuse's that serves requests of io_uring has what follows, and nothing above
     * but the device and the count of requests. */
    struct ring *ring; /* NULL: it is none */
    struct worker *next_adopted;
    struct ring_payload *payloads; /* that it has met */
};

/* How much memory a worker takes. */
size_t worker_receive_length(uint64_t max_write_bytes);
size_t worker_reply_length(uint64_t max_write_bytes);

/*
 * Takes the buffers; fewer receive buffers than WORKER_RECEIVE_BUFFERS when memory is short.
 * -ENOMEM: not even the least, and nothing is held.
 */
errint_t worker_init(struct worker *worker, struct session *session, struct device *device,
                     uint64_t max_write_bytes);

/* Waits for uploads out of the buffers; what cannot be proven done is quarantined. */
void worker_finish(struct worker *worker);

/* For the calling thread: what worker_current gives. */
void worker_set_current(struct worker *worker);

/*
 * A receive buffer that no upload reads, waiting for one if needed; the one that was received into
 * last, if it may be: that is in the cache.
 * NULL: an unproven upload took the last one, and there is no memory for another one now.
 */
struct receive_buffer *worker_next_receive_buffer(struct worker *worker);

/* A request was received into it. */
void worker_received(struct worker *worker, const struct receive_buffer *buffer);

/* Where a request is to be read to, and how much fits. */
void *receive_buffer_bytes(const struct receive_buffer *buffer, size_t *capacity);

#endif
