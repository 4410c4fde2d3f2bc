/*
 * The transport: receives requests from the kernel on several threads and hands each to libfuse's
 * low-level dispatcher. Each worker owns its receive buffers (page-locked, hugepage-backed, placed
 * so that the payload of a WRITE is page-aligned) and one reply buffer; an upload may take a
 * receive buffer over until its fence, and the worker goes on with another one.
 *
 * Everything here but the part for handlers is called by the main thread.
 */
#ifndef RESIDENTFS_FS_SESSION_H
#define RESIDENTFS_FS_SESSION_H

#include "fs/residentfs.h"

/* -- for handlers ------------------------------------------------------------------------------ */

/*
 * The mount that a request is of. Every handler begins with it, as it may be the first one on a
 * thread of libfuse's, which can use the device from then on.
 */
struct residentfs *session_request(fuse_req_t req);

/* What a worker lends to the handler that it is calling; one per thread. */
struct worker;

/* The worker of the calling thread; NULL outside of a handler, and while INIT is answered. */
struct worker *worker_current(void);

/*
 * The worker is about to do something that takes long: another one is to listen to the kernel
 * meanwhile. NULL is fine.
 */
void worker_takes_long(struct worker *worker);

/*
 * The fence of the memory that holds the current request's payload of LENGTH bytes, and its address
 * for DMA; NULL when it is not page-locked, or there is no worker.
 */
struct upload_fence *worker_receive_fence(struct worker *worker, fuse_req_t req, const char **bytes,
                                          size_t length);

/*
 * Uploads with that fence have been submitted: waits for them if the kernel may write to the memory
 * once the request is answered. Before the reply; a NULL fence is fine.
 */
void worker_upload_submitted(struct worker *worker, fuse_req_t req, struct upload_fence *fence);

/* Memory for a reply, valid until that; the same bytes at two addresses, perhaps. */
struct reply_memory {
    void *bytes;        /* to be read into */
    const char *answer; /* to be given to fuse_reply_buf */
    size_t capacity;    /* 0: there is none */
};

/* NULL is fine: none. */
void worker_reply_memory(struct worker *worker, fuse_req_t req, struct reply_memory *memory);

/* Whether a reply of SIZE bytes costs a copy unless its bytes are in reply_memory. */
bool worker_answers_in_place(const struct worker *worker, size_t size);

/*
 * The kernel asks anew for the attributes of the inode: for a change that it does not expect of the
 * request at hand. Before the reply.
 */
void session_forget_attributes(struct session *session, uint64_t ino);

/*
 * The kernel drops what it has of the file in the page cache, waiting for what it is reading into
 * there: not to be called by a handler.
 */
void session_forget_pages(struct session *session, uint64_t ino);

/* A copy may write to the reply memory for ever: it is put aside, and other memory takes its place
 * (none while memory is short: the capacity is 0 then). */
void worker_quarantine_reply(struct worker *worker, fuse_req_t req);

/* -- for main ---------------------------------------------------------------------------------- */

/* init: what is asked of the kernel, and recorded in struct residentfs. */
void session_operations(struct fuse_lowlevel_ops *ops);

/*
 * What libfuse is to be asked for, before mounting. On failure message holds one line: the
 * configuration asks for what is impossible.
 */
errint_t session_choose_transport(struct residentfs *fs, char *message, size_t message_bytes);

/* Called by init. */
void session_init_answered(struct session *session);

/* Of a mounted FUSE: borrowed until session_destroy. NULL: no memory or descriptors. */
struct session *session_create(struct residentfs *fs, struct fuse_session *fuse);

/*
 * Answers the kernel's INIT, then starts the workers. On failure message holds one line, and
 * session_destroy is still needed.
 */
errint_t session_start(struct session *session, char *message, size_t message_bytes);

/* Becomes readable when the session has ended by itself: unmounted or aborted. */
int session_ended_fd(const struct session *session);
/* To be called now and then: helps when all workers that are awake are held up by the device. */
void session_tick(struct session *session);

/* For how long requests have been waiting without one being taken, as the ticks saw it. */
uint64_t session_held_up_ns(const struct session *session);

/* Waits until no handler runs. False: one is stuck, and nothing it may use can be freed. */
bool session_stop(struct session *session);

/* Fences and frees the buffers. After session_stop. NULL is fine. */
void session_destroy(struct session *session);

struct session_report {
    bool channels;                /* each worker has a descriptor of its own (clone_fd) */
    bool io_uring;                /* or else through the descriptor */
    unsigned int workers;         /* io_uring: queues, each with a thread of libfuse's */
    unsigned int receive_buffers; /* of all workers; io_uring: that have been used so far */
    uint64_t buffer_bytes;        /* receive and reply buffers together */
    bool page_locked;             /* all of them */
};

/* After session_start; any thread. */
void session_get_report(const struct session *session, struct session_report *report);

#endif
