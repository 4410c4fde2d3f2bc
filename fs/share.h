/*
 * Sharing memory with CUDA programs: a UNIX socket, and a thread for each program that is
 * connected to it (core/share/protocol.h is what is said there). A connection shares one file, of
 * which it holds a reference like an opener's, until the program closes it or dies.
 *
 * Locks: share.mutex covers the list of clients, and in each of them what others may look at; it is
 * taken with no other lock held, and none but inode locks is taken with it held.
 */
#ifndef RESIDENTFS_FS_SHARE_H
#define RESIDENTFS_FS_SHARE_H

#include "core/share/protocol.h"
#include "fs/residentfs.h"

struct share;

/* Before any worker runs: fs->share. NULL and errno. */
struct share *share_create(struct residentfs *fs);

/*
 * Listens on a socket whose name has the device number of the mount in it. After the session has
 * started. On failure nobody can connect, and MESSAGE holds one line.
 */
errint_t share_start(struct share *share, char *message, size_t message_bytes);

/*
 * Ends all sharing and waits for it: programs keep the memory that they have mapped, without the
 * file. While the workers still run, or after the connection to the kernel has ended. NULL is fine.
 * False: a thread has not ended for seconds; it may still use everything. Closing a descriptor that
 * a program sent waits for that file's file system, for good perhaps.
 */
bool share_stop(struct share *share);

/* After share_stop, when no worker runs. NULL is fine. */
void share_destroy(struct share *share);

/* What is below is for any thread, and takes NULL for SHARE. */

#define SHARE_PATH_BYTES 108 /* of sockaddr_un */

/* An absolute path; empty while nobody can connect. */
void share_get_socket_path(struct share *share, char path[SHARE_PATH_BYTES]);

/*
 * Who shares the inode, for people: "4711:python3,4712:train", "-" if nobody. Allocated; NULL when
 * memory is short.
 */
char *share_clients_text(struct share *share, uint64_t ino);

struct share_report {
    uint64_t mappings, attachments; /* connections of each kind */
    uint64_t mapped_bytes, attached_bytes;
};
void share_get_report(struct share *share, struct share_report *report);

/* -- private to share*.c ----------------------------------------------------------------------- */

enum share_client_kind { SHARE_CLIENT_NEW, SHARE_CLIENT_MAPS, SHARE_CLIENT_ATTACHES };

struct share_client {
    struct share_client *next, *previous; /* under share.mutex */
    struct share *share;
    struct residentfs *fs;
    int socket;
    pid_t pid; /* as the daemon sees it; 0: not in its pid namespace */
    uid_t uid;
    char command[17]; /* printable */

    /* Changed by the client's own thread, with share.mutex held. */
    enum share_client_kind kind;
    struct inode *inode; /* kind is not NEW: a reference, counted as an opener */
    uint64_t length;     /* bytes that were mapped or attached last */
};

/*
 * Whether MESSAGE of SIZE bytes with DESCRIPTORS descriptors is a request that this version knows:
 * 0 and *request, or a negative errno and one line. Looks at nothing else.
 */
errint_t share_request_parse(const void *message, size_t size, size_t descriptors,
                             struct share_request *request, char *text, size_t text_bytes);

/*
 * Does what is asked; the reply's error and message are set. Descriptors to be sent are put into
 * SENT, SHARE_CHUNKS_MAX of them at most, and are the caller's to close; DESCRIPTORS stay the
 * caller's.
 */
void share_request_serve(struct share_client *client, const struct share_request *request,
                         const int *descriptors, size_t count, struct share_reply *reply,
                         int *sent);

/* The client is gone: gives back what it shared. */
void share_client_end(struct share_client *client);

void share_client_set(struct share_client *client, enum share_client_kind kind, struct inode *inode,
                      uint64_t length);

/* Whether the file that DESCRIPTOR has open is on this mount; *ino is its number. */
bool share_descriptor_ino(const struct share *share, int descriptor, uint64_t *ino);

#endif
