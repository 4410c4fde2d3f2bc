/*
 * The transport: receives requests from the kernel on several threads and hands each to libfuse's
 * low-level dispatcher. Each worker owns its receive buffers (page-locked, hugepage-backed, placed
 * so that the payload of a WRITE is page-aligned) and one reply buffer; an upload may take a
 * receive buffer over until its fence, and the worker goes on with another one.
 */
#ifndef RESIDENTFS_FS_SESSION_H
#define RESIDENTFS_FS_SESSION_H

#include "fs/residentfs.h"

/* What a worker lends to the handler that it is calling; one per thread. */
struct worker;

/* The worker of the calling thread; NULL outside of a handler. */
struct worker *worker_current(void);

/* The fence of the receive buffer that holds the current request's payload. */
struct upload_fence *worker_receive_fence(struct worker *worker);

/* Page-locked memory for a reply of up to *capacity bytes. Valid until the handler returns. */
void *worker_reply_bytes(struct worker *worker, size_t *capacity);

#endif
