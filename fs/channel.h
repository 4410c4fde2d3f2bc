/*
 * Channels: a worker's own descriptor of the FUSE connection. The kernel keeps requests that were
 * read, until they are answered, with the descriptor that they were read from; with one for all,
 * workers wait there for each other's. Needs a libfuse that lets replies be written by us
 * (fuse_session_custom_io; builds of 3.18 may leave it out).
 */
#ifndef RESIDENTFS_FS_CHANNEL_H
#define RESIDENTFS_FS_CHANNEL_H

#include <stdbool.h>

struct fuse_session;

/*
 * Has libfuse write each reply to the channel of the worker that is at it (worker_channel). After
 * INIT, before workers run. False: libfuse cannot; there are no channels then.
 */
bool channels_begin(struct fuse_session *fuse);

/* A channel of the session's connection, not blocking; the caller closes it. Or a negative errno.
 */
int channel_open(struct fuse_session *fuse);

#endif
