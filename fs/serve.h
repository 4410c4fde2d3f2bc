/*
 * One mount from start to end: device, files, transport; then waiting for a signal or for the
 * unmount, and everything back in the reverse order.
 */
#ifndef RESIDENTFS_FS_SERVE_H
#define RESIDENTFS_FS_SERVE_H

#include "conf/conf.h"
#include "fs/startup.h"

/* Reports to STARTUP. Returns the exit code; CONF_EXIT_OK: it was usable, and has ended cleanly. */
enum conf_exit serve(const struct conf *conf, struct startup *startup);

#endif
