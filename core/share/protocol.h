/*
 * What a CUDA program and the daemon say to each other over the share socket, version 1.
 *
 * A SOCK_SEQPACKET UNIX socket; its path is the value of the extended attribute
 * user.resident.socket of every file, and the content of .resident/socket. The program sends one
 * struct share_request, whole, and gets one struct share_reply, whole, in turn. Both ends are on
 * one machine: integers have its byte order. Bytes that have no meaning are 0.
 *
 * One connection shares one file. It begins with SHARE_MAP or SHARE_ATTACH, which carries the
 * program's open file descriptor of it (SCM_RIGHTS): that is the proof of what it may do, and it
 * must be open for reading and writing, since CUDA cannot hand out memory that is read-only for
 * its importer. Closing the connection, or dying, ends the sharing. After an error the connection
 * stays usable, but for one that the daemon closes: a message that is not of this protocol.
 *
 *   SHARE_MAP     descriptors: the file the first time, none later (then it looks anew: the file
 *                 may have grown). Every byte of the file gets memory, every upload is fenced.
 *                 Reply: length, mapped_length, device, driver.
 *   SHARE_CHUNKS  the chunks that begin in [offset, offset + length), at most SHARE_CHUNKS_MAX of
 *                 them, in order; after SHARE_MAP. Reply: chunks, and for each a descriptor to be
 *                 imported as CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR. Chunks stay where they
 *                 are for as long as the connection lives; together they are [0, mapped_length).
 *   SHARE_SYNC    what was written through the file is on the device; what the page cache has of
 *                 the file is dropped. After SHARE_MAP or SHARE_ATTACH. Reply: length.
 *   SHARE_ATTACH  descriptors: an empty file, and for SHARE_MEMORY_DESCRIPTOR the memory. The
 *                 program's memory is the file's content from now on: LENGTH bytes from OFFSET on
 *                 of an allocation of ALLOCATION_LENGTH bytes on DEVICE_UUID.
 */
#ifndef RESIDENTFS_CORE_SHARE_PROTOCOL_H
#define RESIDENTFS_CORE_SHARE_PROTOCOL_H

#include <stdint.h>

#define SHARE_MAGIC           0x31465352u /* "RSF1" */
#define SHARE_VERSION         1
#define SHARE_CHUNKS_MAX      64
#define SHARE_DESCRIPTORS_MAX 2 /* in a request */
#define SHARE_MESSAGE_BYTES   256
#define SHARE_SOCKET_XATTR    "user.resident.socket"

enum share_operation { SHARE_MAP = 1, SHARE_CHUNKS, SHARE_SYNC, SHARE_ATTACH };

enum share_memory_kind {
    SHARE_MEMORY_IPC = 1,        /* ipc_handle is a CUipcMemHandle */
    SHARE_MEMORY_DESCRIPTOR = 2, /* the second descriptor is an exported allocation */
};

struct share_request {
    uint32_t magic;
    uint16_t version;
    uint16_t operation;   /* enum share_operation */
    uint32_t memory_kind; /* SHARE_ATTACH: enum share_memory_kind */
    uint32_t reserved;
    uint64_t offset, length;    /* SHARE_CHUNKS, SHARE_ATTACH: bytes */
    uint64_t allocation_length; /* SHARE_ATTACH: bytes */
    uint8_t device_uuid[16];    /* SHARE_ATTACH */
    uint8_t ipc_handle[64];     /* SHARE_ATTACH with SHARE_MEMORY_IPC */
};

struct share_chunk {
    uint64_t offset, length; /* in the file, bytes; multiples of 2 MiB */
};

struct share_reply {
    uint32_t magic;
    uint16_t version;
    uint16_t operation;     /* as asked */
    int32_t error;          /* 0 or a negative errno; then only message has a meaning */
    uint32_t chunk_count;   /* SHARE_CHUNKS */
    uint64_t length;        /* of the file, bytes */
    uint64_t mapped_length; /* SHARE_MAP: bytes, a multiple of 2 MiB, >= length */
    uint8_t device_uuid[16];
    char driver[16];                   /* "cuda" or "emulated"; terminated */
    char message[SHARE_MESSAGE_BYTES]; /* with error: what, how much, what to do; terminated */
    struct share_chunk chunks[SHARE_CHUNKS_MAX];
};

_Static_assert(sizeof(struct share_request) == 120, "part of the protocol");
_Static_assert(sizeof(struct share_reply) == 1344, "part of the protocol");

#endif
