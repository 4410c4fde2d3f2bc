/*
 * One connection to the daemon, and the text of the last error. Private to libresident. Functions
 * return 0 or a negative errno, and then have set the text.
 */
#ifndef RESIDENTFS_CORE_SHARE_CONNECTION_H
#define RESIDENTFS_CORE_SHARE_CONNECTION_H

#include "core/share/protocol.h"
#include "core/util.h"

/* Sets what resident_error() gives in this thread; returns ERROR. */
errint_t share_fail(errint_t error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Connects to the daemon whose file FILE has open. *SOCKET is the caller's to close. */
errint_t share_connect(int file, int *socket);

/* Closes the connection once the daemon has ended what it shares; waits some seconds at most. */
void share_disconnect(int socket);

/* An empty request of OPERATION. */
struct share_request share_request_of(enum share_operation operation);

/*
 * Sends REQUEST with COUNT descriptors and waits for the reply. RECEIVED, for SHARE_CHUNKS_MAX of
 * them, gets the reply's chunk_count descriptors, the caller's to close; NULL: none are expected.
 * What the daemon answers with an error is returned, with its text.
 */
errint_t share_ask(int socket, const struct share_request *request, const int *descriptors,
                   size_t count, struct share_reply *reply, int *received);

#endif
