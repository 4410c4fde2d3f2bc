/*
 * A resident buffer: the VRAM behind one file. It has a length, and the ranges of it that were
 * written have memory on the device; the rest are holes and read as zeros. Knows nothing of files.
 *
 * Any thread (attached with device_attach_thread) may call any function on one buffer at the same
 * time, except buffer_destroy. Within a buffer: what begins after a call returned takes effect
 * after it. A read sees every write that returned before it.
 *
 * Errors: negative errno. -ENOSPC: budget or device memory. -EFBIG: past BUFFER_LENGTH_MAX.
 * -EIO: the copy failed, or the device is lost. -EINVAL: a range that overflows.
 */
#ifndef RESIDENTFS_CORE_BUFFER_H
#define RESIDENTFS_CORE_BUFFER_H

#include <stdint.h>
#include <sys/types.h>

#include "core/device.h"

struct buffer;

#define BUFFER_LENGTH_MAX INT64_MAX

enum buffer_state {
    BUFFER_OK,
    BUFFER_FAILED, /* an unproven copy may still write to it: reads and writes give EIO until it is
                      truncated to 0 */
    BUFFER_ATTACHED, /* its memory is another process's */
    BUFFER_DETACHED, /* it was, and is gone: EIO for good */
};

/* "ok", "failed", "attached", "detached". */
const char *buffer_state_name(enum buffer_state state);

struct buffer_report {
    uint64_t length_bytes;
    uint64_t resident_bytes; /* device memory that it takes, slack included */
    uint64_t attached_bytes; /* another process's memory that it shows; not in resident_bytes */
    unsigned int shares;     /* of buffer_share_begin */
    uint64_t dirty_bytes;    /* accepted but not fenced */
    enum buffer_state state;
};

/*
 * An upload that reads its source in place. The owner of page-locked memory keeps one with it,
 * and must not touch or free the memory between a buffer_write that returned with pending set and
 * upload_fence_wait. One at a time: wait before the next buffer_write that uses it.
 */
struct upload_fence {
    struct device *device;
    struct upload_queue *queue;
    void *event; /* CUevent */
    struct upload_mark {
        uint64_t epoch, sequence, bytes, operations;
    } mark; /* a point in the queue's stream; private to core/ */
    bool pending;
    bool done; /* its copies have ended, as the driver said; private to core/ */
};

errint_t upload_fence_init(struct device *device, struct upload_fence *fence);
void upload_fence_finish(struct upload_fence *fence);
/* True when a wait would not block. */
bool upload_fence_is_done(struct upload_fence *fence);
/*
 * 0: the copy is done, the memory may be reused. -EIO: completion is unproven: the memory must be
 * quarantined and the fence initialised anew.
 */
errint_t upload_fence_wait(struct upload_fence *fence);

/* NULL and errno ENOMEM. ID is for messages (the inode number). */
struct buffer *buffer_create(struct device *device, uint64_t id);

/* Pending uploads are dropped, submitted ones fenced, memory given back. NULL is fine. */
void buffer_destroy(struct buffer *buffer);

uint64_t buffer_length_bytes(const struct buffer *buffer);

/*
 * Writes; grows the buffer when the range ends past its length. Returns how many bytes were
 * accepted: fewer than asked when memory ran out on the way (at least 1), else an error.
 *
 * fence NULL: the bytes are copied to staging before this returns. Otherwise BYTES is page-locked
 * memory that *fence belongs to; the copy may be made in place, and then fence->pending is set.
 */
ssize_t buffer_write(struct buffer *buffer, uint64_t offset, const void *bytes, size_t length,
                     struct upload_fence *fence);

/*
 * Reads at most LENGTH bytes; fewer at the end, 0 past it. BYTES should be page-locked (pageable
 * memory works, slower). The data is there when this returns. -ENOTRECOVERABLE: to the user that is
 * EIO; a copy may still write to BYTES, which must be quarantined (pinned_memory_quarantine).
 */
ssize_t buffer_read(struct buffer *buffer, uint64_t offset, void *bytes, size_t length);

/*
 * Reads several ranges of one buffer behind one fence. Ranges that touch or overlap are copied
 * once. Each is clipped at the buffer's end; done[i] is how many bytes range i got. 0 or an error
 * as of buffer_read (then no range counts as read).
 */
struct buffer_range {
    uint64_t offset;
    size_t length;
    void *bytes;
};
errint_t buffer_read_ranges(struct buffer *buffer, const struct buffer_range *ranges, size_t count,
                            size_t *done);

/* Sets the length. Shrinking gives back memory and zeroes the rest of the last block. */
errint_t buffer_truncate(struct buffer *buffer, uint64_t length);

/*
 * Takes memory for the whole range, zeroed where there was none. Grows the length to the end of
 * the range unless keep_length. All or nothing: -ENOSPC leaves the buffer as it was.
 */
errint_t buffer_allocate(struct buffer *buffer, uint64_t offset, uint64_t length, bool keep_length);

/* The range reads as zeros afterwards; whole chunks in it are given back. Length stays. */
errint_t buffer_punch(struct buffer *buffer, uint64_t offset, uint64_t length);

/*
 * The first offset >= OFFSET that is data (or, for hole, in a hole; the end of the buffer counts
 * as one). -ENXIO past the end, or when no data follows.
 */
int64_t buffer_seek_data(struct buffer *buffer, uint64_t offset);
int64_t buffer_seek_hole(struct buffer *buffer, uint64_t offset);

/*
 * Copies on the device; holes of the source become holes or zeros. Both on one device. Ranges
 * within one buffer must not overlap (-EINVAL). Returns how many bytes were copied (fewer at the
 * source's end or when memory runs out).
 */
ssize_t buffer_copy(struct buffer *source, uint64_t source_offset, struct buffer *destination,
                    uint64_t destination_offset, size_t length);

/* Whether an upload is pending or not proven complete: a flush would wait. */
bool buffer_is_dirty(const struct buffer *buffer);

/* Submits and fences the pending uploads of this buffer. Does not report earlier failures. */
errint_t buffer_flush(struct buffer *buffer);

/* Gives back slack: memory past the last byte beyond what the granularity demands. At close. */
void buffer_trim(struct buffer *buffer);

/*
 * Deferred errors, like the kernel's errseq: an opener keeps a cursor from buffer_error_sample;
 * buffer_error_check gives a negative errno once for each failure since, and moves the cursor.
 */
uint64_t buffer_error_sample(struct buffer *buffer);
errint_t buffer_error_check(struct buffer *buffer, uint64_t *cursor);

/* -- memory shared with other processes (buffer_share.c) ----------------------------------------
 */

/*
 * While a buffer is shared, the memory that it has stays where it is: what would give some back
 * (truncate, punch, trim) only zeroes it. Small buffers are moved to a chunk of their own, that
 * nothing else is in, now or later. Each begin that succeeded is followed by an end.
 * -EOPNOTSUPP: the device cannot export memory; -EPERM: attached; -ENOSPC, -EIO.
 */
errint_t buffer_share_begin(struct buffer *buffer);
void buffer_share_end(struct buffer *buffer);

/*
 * Of a shared buffer: gives memory to every byte, and fences every upload. *length is that of the
 * buffer, *mapped_length where its last chunk ends. -ENODATA: it is empty. -ENOSPC: holes.
 */
errint_t buffer_share_prepare(struct buffer *buffer, uint64_t *length, uint64_t *mapped_length);

/*
 * Exports the chunks that begin in [offset, end), at most COUNT, in order. Returns how many. The
 * descriptors are the caller's to close.
 */
struct buffer_share_chunk {
    uint64_t offset, length; /* bytes, multiples of 2 MiB */
    int descriptor;          /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */
};
ssize_t buffer_share_export(struct buffer *buffer, uint64_t offset, uint64_t end,
                            struct buffer_share_chunk *chunks, size_t count);

/* Another process's device memory. */
struct buffer_memory {
    enum { BUFFER_MEMORY_IPC, BUFFER_MEMORY_DESCRIPTOR } kind;
    uint64_t offset, length;   /* bytes of the allocation that are meant */
    uint64_t allocation_bytes; /* BUFFER_MEMORY_DESCRIPTOR */
    uint8_t ipc_handle[64];    /* BUFFER_MEMORY_IPC: CUipcMemHandle */
    int descriptor;            /* BUFFER_MEMORY_DESCRIPTOR: borrowed */
};

/*
 * An empty buffer, not shared, becomes attached: it has MEMORY's bytes and its length, and cannot
 * grow, shrink or be punched (-EPERM). MESSAGE holds one line when it fails: -EEXIST: not empty;
 * -EINVAL, -ENODEV, -EIO, -ENOMEM.
 */
errint_t buffer_attach(struct buffer *buffer, const struct buffer_memory *memory, char *message,
                       size_t message_bytes);

/* Lets go of the memory, after all that is under way. Every later read and write gives -EIO. */
void buffer_detach(struct buffer *buffer);

void buffer_get_report(struct buffer *buffer, struct buffer_report *report);
struct device *buffer_device(const struct buffer *buffer);

#endif
