/*
 * Those who started the daemon learn how it goes: the process that the user started waits until it
 * is usable, or says in one line why it is not; a service manager (NOTIFY_SOCKET, see sd_notify(3))
 * learns the same, and that the daemon lives.
 */
#ifndef RESIDENTFS_FS_STARTUP_H
#define RESIDENTFS_FS_STARTUP_H

#include <sys/un.h>

#include "core/util.h"

struct startup {
    int report_fd; /* to the waiting parent; -1: there is none */
    bool keep_stderr;
    char step[128]; /* what is being done; "" for nothing */
    uint64_t step_since_ns;

    /* The service manager. */
    int notify_fd; /* -1: there is none */
    struct sockaddr_un notify_address;
    socklen_t notify_address_bytes;
    uint64_t watchdog_ns; /* it wants a sign of life within; 0: it does not */
    uint64_t signed_ns;   /* when it got the last one */
};

/*
 * Returns in the process that is to serve: this one in the foreground, else a child in a session of
 * its own. The parent does not return; it exits as the child reports. Call before any thread and
 * any CUDA. keep_stderr: the log goes there.
 */
errint_t startup_begin(struct startup *startup, bool foreground, bool keep_stderr);

/* What is done next, as in "opening cuda:0"; shown if it takes long. */
void startup_step(struct startup *startup, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Usable: lets the parent go, and the terminal. False: the parent is gone, so nobody wants it. */
bool startup_succeeded(struct startup *startup);

/* Says why not, to the user. */
void startup_failed(struct startup *startup, const char *message);

/* A sign of life for the watchdog, if one is due. */
void startup_alive(struct startup *startup);

/* How long the daemon may be without progress before it must give no sign of life; 0: for ever. */
uint64_t startup_patience_ns(const struct startup *startup);

/* The end begins. */
void startup_ending(struct startup *startup, const char *why);

/* Whatever was reached. */
void startup_finish(struct startup *startup);

#endif
