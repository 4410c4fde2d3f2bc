/*
 * Mounting and unmounting through libfuse: what can be known to be wrong before, and one line that
 * says what to do when it goes wrong. libfuse's own messages go to the event log.
 */
#ifndef RESIDENTFS_FS_MOUNT_H
#define RESIDENTFS_FS_MOUNT_H

#include "fs/residentfs.h"

/*
 * Looks at MOUNTPOINT, /dev/fuse and the right to mount, without changing anything. On success
 * *RESOLVED is the absolute path, owned by the caller; else MESSAGE holds one line.
 */
errint_t mount_check(const char *mountpoint, char **resolved, char *message, size_t message_bytes);

/* A mounted session that no request has been answered of yet, or NULL and one line in MESSAGE. */
struct fuse_session *mount_create(struct residentfs *fs, const struct fuse_lowlevel_ops *ops,
                                  char *message, size_t message_bytes);

/* Whether what libfuse has to say is only for those who debug: it is asked for what it may lack. */
void mount_expect_refusal(bool expect);

/* Unmounts (lazily: names that are in use stay until they are not) and frees. NULL is fine. */
void mount_destroy(struct fuse_session *fuse);

#endif
