/*
 * Going into the background: the process that the user started waits until the daemon is usable, or
 * says in one line why it is not.
 */
#ifndef RESIDENTFS_FS_STARTUP_H
#define RESIDENTFS_FS_STARTUP_H

#include "core/util.h"

struct startup {
    int report_fd; /* to the waiting parent; -1: there is none */
    bool keep_stderr;
};

/*
 * Returns in the process that is to serve: this one in the foreground, else a child in a session of
 * its own. The parent does not return; it exits as the child reports. Call before any thread and
 * any CUDA. keep_stderr: the log goes there.
 */
errint_t startup_begin(struct startup *startup, bool foreground, bool keep_stderr);

/* Usable: lets the parent go, and the terminal. False: the parent is gone, so nobody wants it. */
bool startup_succeeded(struct startup *startup);

/* Says why not, to the user. */
void startup_failed(struct startup *startup, const char *message);

#endif
