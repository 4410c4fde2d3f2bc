/*
 * The other transport: requests that the kernel delivers by io_uring, one queue and one thread of
 * libfuse's a processor, pinned to it. A thread of ours runs libfuse's loop meanwhile, for what
 * still comes through the descriptor (INIT, FORGET, the end). Handlers run on all of them; a
 * thread's first request makes it a worker (ring_adopt_thread), without a receive buffer: the bytes
 * of a request are where libfuse has the kernel put them, see struct ring_payload.
 *
 * Private to the transport. The main thread calls everything but what says otherwise.
 */
#ifndef RESIDENTFS_FS_RING_H
#define RESIDENTFS_FS_RING_H

#include <semaphore.h>

#include "fs/worker.h"

struct ring {
    struct residentfs *fs;
    struct fuse_session *fuse;
    int ended_fd; /* the session's */

    pthread_t thread; /* in libfuse's loop */
    bool running;     /* it is to be joined */
    bool stuck;       /* it does not end */
    sem_t stage;      /* posted when INIT is answered, and when the loop has ended */
    _Atomic bool stopping;
    _Atomic bool serves; /* a request has come by io_uring */

    pthread_mutex_t mutex;  /* covers the list; a leaf */
    struct worker *workers; /* adopted; through next_adopted */

    _Atomic unsigned int payloads; /* taken over */
    _Atomic uint64_t payload_bytes;
    _Atomic bool pageable; /* some of them are not page-locked */
};

/*
 * Whether io_uring is to be asked of libfuse: fs->ring_depth and ring_reason. Before mounting.
 * -EOPNOTSUPP: the configuration insists and it is impossible; message says why, in one line.
 */
errint_t ring_choose(struct residentfs *fs, char *message, size_t message_bytes);

void ring_init(struct ring *ring, struct residentfs *fs, struct fuse_session *fuse, int ended_fd);

/* Has INIT answered, and serves from then on. On failure MESSAGE holds one line. */
errint_t ring_start(struct ring *ring, char *message, size_t message_bytes);

/* Called in the handler of INIT. */
void ring_init_answered(struct ring *ring);

/* How many requests have come, each thread's first left out. */
uint64_t ring_received(struct ring *ring);

/* Waits until no handler runs; libfuse's buffers are gone then. False: one is stuck. */
bool ring_stop(struct ring *ring, uint64_t deadline_ns);

/* Fences and frees the payloads. After ring_stop. */
void ring_finish(struct ring *ring);

/* The calling thread of libfuse's may use the device from now on. At the start of any handler. */
void ring_adopt_thread(struct ring *ring, fuse_req_t req);

/*
 * Shorter writes are copied to staging: the upload has to be waited for before the reply, which
 * costs more. Emulated driver, copied against waited for: 64 KiB 1.6-2.1, 128 KiB 1.9, 256 KiB 1.3,
 * 1 MiB 0.95, of eight streams 0.7; on an H200 256 KiB take about 12 us to be there, or twice that
 * to be copied.
 */
#define RING_DIRECT_MIN_BYTES (256 * KIB)

/* -- payloads: fs/ring_payload.c --------------------------------------------------------------- */

/*
 * Where libfuse has the kernel put the bytes of a WRITE, and takes the bytes for a READ from
 * without a copy. libfuse frees that memory as it likes, and uses it for the next request as soon
 * as this one is answered: no memory for DMA. So memory of ours, page-locked at an address of ours,
 * is shown in its place. Belongs to the thread of its queue.
 */
struct ring_payload {
    struct ring_payload *next; /* of the worker */
    char *address;             /* libfuse's; constant */
    size_t length;
    struct pinned_memory memory; /* what is shown there; bytes NULL: still libfuse's own */
    struct upload_fence fence;   /* of an upload out of memory; initialised if there is memory */
};

/*
 * That of a request, taken over if that can be: as many as the cap of staging has room for. The
 * first KEEP bytes stay. NULL: the request is none of io_uring's, or there is no memory.
 */
struct ring_payload *ring_payload_take(struct worker *worker, fuse_req_t req, size_t keep);

/* A copy may use the memory for ever: it is put aside, libfuse gets other memory. */
void ring_payload_quarantine(struct worker *worker, struct ring_payload *payload);

/* Waits for the upload out of it, and quarantines it when its end cannot be proven. */
void ring_payload_fence(struct worker *worker, struct ring_payload *payload);

/* All of a worker, at the end. libfuse's memory is gone. */
void ring_payloads_finish(struct worker *worker);

#endif
