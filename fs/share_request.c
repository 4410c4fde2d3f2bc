/* What a program that shares memory asks for, and what comes of it. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>

#include "core/log.h"
#include "fs/session.h"
#include "fs/share.h"

#define CLOSE_WAITS   20
#define CLOSE_WAIT_NS 5000000

static errint_t __attribute__((format(printf, 4, 5)))
fail(char *text, size_t text_bytes, errint_t error, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, text_bytes, format, arguments);
    va_end(arguments);
    return error;
}

errint_t share_request_parse(const void *message, size_t size, size_t descriptors,
                             struct share_request *request, char *text, size_t text_bytes)
{
    struct share_request given;

    if (size != sizeof(given))
        return fail(text, text_bytes, -EPROTO,
                    "a message of %zu bytes; requests of protocol version %d have %zu", size,
                    SHARE_VERSION, sizeof(given));
    memcpy(&given, message, sizeof(given));
    if (given.magic != SHARE_MAGIC)
        return fail(text, text_bytes, -EPROTO, "a message that is no request of this protocol");
    *request = given;
    if (given.version != SHARE_VERSION)
        return fail(text, text_bytes, -EPROTONOSUPPORT,
                    "protocol version %u; this residentfs speaks version %d: use the libresident "
                    "that came with it",
                    given.version, SHARE_VERSION);
    if (given.reserved != 0)
        return fail(text, text_bytes, -EPROTO, "reserved bytes are not 0");
    if (given.operation < SHARE_MAP || given.operation > SHARE_ATTACH)
        return fail(text, text_bytes, -EPROTO, "operation %u is not known", given.operation);
    if (given.operation == SHARE_ATTACH && given.memory_kind != SHARE_MEMORY_IPC &&
        given.memory_kind != SHARE_MEMORY_DESCRIPTOR)
        return fail(text, text_bytes, -EPROTO, "memory of kind %u is not known", given.memory_kind);
    size_t most = given.operation == SHARE_MAP ? 1 : 0;
    if (given.operation == SHARE_ATTACH)
        most = given.memory_kind == SHARE_MEMORY_IPC ? 1 : 2;
    if (descriptors > most || (given.operation == SHARE_ATTACH && descriptors != most))
        return fail(text, text_bytes, -EPROTO, "%zu descriptors; operation %u has %zu", descriptors,
                    given.operation, most);
    return 0;
}

/* -- which file -------------------------------------------------------------------------------- */

static void describe(struct share_client *client, struct inode *inode, const char *what)
{
    cleanup_free char *path = namespace_path(client->fs, inode);

    log_info("share: %s %s process %d (%s) of user %u", path ? path : "?", what, (int)client->pid,
             client->command, (unsigned int)client->uid);
}

/* With a reference. What the descriptor shows is what the caller was allowed to do when he got it.
 */
static errint_t find_file(struct share_client *client, int descriptor, struct inode **out,
                          char *text, size_t text_bytes)
{
    int flags = fcntl(descriptor, F_GETFL);
    uint64_t ino;

    if (flags < 0 || (flags & O_PATH))
        return fail(text, text_bytes, -EBADF, "the descriptor has no file open");
    if (!share_descriptor_ino(client->share, descriptor, &ino))
        return fail(text, text_bytes, -ENOTSUP, "the descriptor is not of a file on %s",
                    client->fs->conf->mountpoint);
    if (virtual_is(ino))
        return fail(text, text_bytes, -EINVAL, "files in .resident have no memory to share");
    if ((flags & O_ACCMODE) != O_RDWR)
        return fail(text, text_bytes, -EACCES,
                    "the file is not open for reading and writing: memory that is shared can be "
                    "written, so that is what must be allowed");
    *out = inode_table_get(client->fs->inodes, ino);
    if (!*out)
        return fail(text, text_bytes, -ESTALE, "there is no file with inode number %llu",
                    (unsigned long long)ino);
    if ((*out)->type == S_IFREG)
        return 0;
    inode_unref(client->fs->inodes, *out, 1);
    return fail(text, text_bytes, -EINVAL, "only regular files have memory to share");
}

/* -- mapping ----------------------------------------------------------------------------------- */

static errint_t explain(struct share_client *client, errint_t error, char *text, size_t text_bytes)
{
    struct budget_report budget;

    switch (error) {
    case -ENODATA:
        return fail(text, text_bytes, error, "the file is empty: there is nothing to map");
    case -ENOSPC:
        device_get_budget_report(client->fs->device, &budget);
        return fail(text, text_bytes, error,
                    "every byte of a file that is mapped needs memory, its holes too: %llu bytes "
                    "are available",
                    (unsigned long long)budget.available_bytes);
    case -EOPNOTSUPP:
        return fail(text, text_bytes, error, "the driver does not let this device share memory");
    case -EPERM:
        return fail(text, text_bytes, error, "the file's memory is another process's already");
    case -EBUSY:
        return fail(text, text_bytes, error,
                    "the file is open through the page cache, which would not see what kernels "
                    "write: open it with O_DIRECT, or mount with cache=off");
    case -EIO:
        return fail(text, text_bytes, error,
                    "the device or a copy to the file has failed: see .resident/log");
    default:
        return fail(text, text_bytes, error, "%s", strerror(-error));
    }
}

static errint_t prepare(struct share_client *client, struct inode *inode, struct share_reply *reply)
{
    /* First, since dirty pages of a memory-mapped file are written now. */
    session_forget_pages(client->fs->session, inode->ino);
    errint_t error = buffer_share_prepare(inode->buffer, &reply->length, &reply->mapped_length);

    /* Files that are gone may have had the memory still. */
    if (error == -ENOSPC && inode_table_settle(client->fs->inodes))
        error = buffer_share_prepare(inode->buffer, &reply->length, &reply->mapped_length);
    return error;
}

/* The kernel tells of a close only afterwards: who closed just now may still count. */
static errint_t begin_sharing(struct inode *inode)
{
    errint_t error = inode_share_begin(inode);

    for (unsigned int i = 0; error == -EBUSY && i < CLOSE_WAITS; i++) {
        nanosleep(&(struct timespec){.tv_nsec = CLOSE_WAIT_NS}, NULL);
        error = inode_share_begin(inode);
    }
    return error;
}

static errint_t begin_mapping(struct share_client *client, struct inode *inode,
                              struct share_reply *reply)
{
    struct residentfs *fs = client->fs;
    errint_t error = begin_sharing(inode);

    if (error < 0)
        return error;
    error = buffer_share_begin(inode->buffer);
    if (error == -ENOSPC && inode_table_settle(fs->inodes))
        error = buffer_share_begin(inode->buffer);
    if (error == 0) {
        error = prepare(client, inode, reply);
        if (error < 0)
            buffer_share_end(inode->buffer);
    }
    if (error < 0) {
        inode_share_end(inode);
        return error;
    }
    inode_opened(fs->inodes, inode, false);
    return 0;
}

static errint_t serve_map(struct share_client *client, const int *descriptors, size_t count,
                          struct share_reply *reply)
{
    const struct device_identity *device = device_identity(client->fs->device);
    struct inode *inode = client->inode;
    char *text = reply->message;
    size_t text_bytes = sizeof(reply->message);
    errint_t error;

    if (client->kind == SHARE_CLIENT_ATTACHES ||
        (client->kind == SHARE_CLIENT_MAPS) != (count == 0))
        return fail(text, text_bytes, -EINVAL,
                    "a connection shares one file, whose descriptor comes with its first request");
    if (client->kind == SHARE_CLIENT_NEW) {
        error = find_file(client, descriptors[0], &inode, text, text_bytes);
        if (error < 0)
            return error;
        error = begin_mapping(client, inode, reply);
        if (error < 0) {
            inode_unref(client->fs->inodes, inode, 1);
            return explain(client, error, text, text_bytes);
        }
        describe(client, inode, "is mapped by");
    } else {
        error = prepare(client, inode, reply);
        if (error < 0)
            return explain(client, error, text, text_bytes);
    }
    share_client_set(client, SHARE_CLIENT_MAPS, inode, reply->mapped_length);
    memcpy(reply->device_uuid, device->uuid_bytes, sizeof(reply->device_uuid));
    snprintf(reply->driver, sizeof(reply->driver), "%s", device->driver);
    return 0;
}

static errint_t serve_chunks(struct share_client *client, const struct share_request *request,
                             struct share_reply *reply, int *sent)
{
    struct buffer_share_chunk chunks[SHARE_CHUNKS_MAX];
    uint64_t end;

    if (client->kind != SHARE_CLIENT_MAPS)
        return fail(reply->message, sizeof(reply->message), -EINVAL, "no file has been mapped");
    if (__builtin_add_overflow(request->offset, request->length, &end))
        end = UINT64_MAX;
    ssize_t count = buffer_share_export(client->inode->buffer, request->offset,
                                        MIN(end, client->length), chunks, ARRAY_SIZE(chunks));
    if (count < 0)
        return explain(client, (errint_t)count, reply->message, sizeof(reply->message));
    for (size_t i = 0; i < (size_t)count; i++) {
        reply->chunks[i] = (struct share_chunk){chunks[i].offset, chunks[i].length};
        sent[i] = chunks[i].descriptor;
    }
    reply->chunk_count = (uint32_t)count;
    return 0;
}

static errint_t serve_sync(struct share_client *client, struct share_reply *reply)
{
    if (client->kind == SHARE_CLIENT_NEW)
        return fail(reply->message, sizeof(reply->message), -EINVAL, "no file is shared");
    /* First, since dirty pages of a memory-mapped file are written now. */
    session_forget_pages(client->fs->session, client->inode->ino);
    errint_t error = buffer_flush(client->inode->buffer);
    if (error < 0)
        return explain(client, error, reply->message, sizeof(reply->message));
    reply->length = buffer_length_bytes(client->inode->buffer);
    return 0;
}

/* -- attaching --------------------------------------------------------------------------------- */

static errint_t serve_attach(struct share_client *client, const struct share_request *request,
                             const int *descriptors, struct share_reply *reply)
{
    struct residentfs *fs = client->fs;
    const struct device_identity *device = device_identity(fs->device);
    char *text = reply->message;
    size_t text_bytes = sizeof(reply->message);
    struct buffer_memory memory = {
        .kind =
            request->memory_kind == SHARE_MEMORY_IPC ? BUFFER_MEMORY_IPC : BUFFER_MEMORY_DESCRIPTOR,
        .offset = request->offset,
        .length = request->length,
        .allocation_bytes = request->allocation_length,
        .descriptor = descriptors[request->memory_kind == SHARE_MEMORY_IPC ? 0 : 1],
    };
    struct inode *inode;

    if (client->kind != SHARE_CLIENT_NEW)
        return fail(text, text_bytes, -EINVAL, "a connection shares one file");
    if (memcmp(request->device_uuid, device->uuid_bytes, sizeof(request->device_uuid)) != 0)
        return fail(text, text_bytes, -ENODEV,
                    "the memory is of another device than the file system, which is on %s (%s)",
                    device->name, device->uuid);
    errint_t error = find_file(client, descriptors[0], &inode, text, text_bytes);
    if (error < 0)
        return error;
    memcpy(memory.ipc_handle, request->ipc_handle, sizeof(memory.ipc_handle));
    error = begin_sharing(inode);
    if (error < 0) {
        explain(client, error, text, text_bytes);
    } else {
        error = buffer_attach(inode->buffer, &memory, text, text_bytes);
        if (error < 0)
            inode_share_end(inode);
    }
    if (error < 0) {
        inode_unref(fs->inodes, inode, 1);
        return error;
    }
    inode_opened(fs->inodes, inode, false);
    share_client_set(client, SHARE_CLIENT_ATTACHES, inode, memory.length);
    session_forget_attributes(fs->session, inode->ino);
    session_forget_pages(fs->session, inode->ino);
    describe(client, inode, "shows memory of");
    reply->length = memory.length;
    return 0;
}

/* -- all --------------------------------------------------------------------------------------- */

void share_request_serve(struct share_client *client, const struct share_request *request,
                         const int *descriptors, size_t count, struct share_reply *reply, int *sent)
{
    errint_t error = -EPROTO;

    switch (request->operation) {
    case SHARE_MAP:
        error = serve_map(client, descriptors, count, reply);
        break;
    case SHARE_CHUNKS:
        error = serve_chunks(client, request, reply, sent);
        break;
    case SHARE_SYNC:
        error = serve_sync(client, reply);
        break;
    case SHARE_ATTACH:
        error = serve_attach(client, request, descriptors, reply);
        break;
    }
    reply->error = error;
}

void share_client_end(struct share_client *client)
{
    struct residentfs *fs = client->fs;
    struct inode *inode = client->inode;
    enum share_client_kind kind = client->kind;

    if (kind == SHARE_CLIENT_NEW)
        return;
    if (kind == SHARE_CLIENT_MAPS) {
        buffer_share_end(inode->buffer);
        describe(client, inode, "is no longer mapped by");
    } else {
        buffer_detach(inode->buffer);
        describe(client, inode, "gives EIO from now on and can be deleted: it showed memory of");
    }
    session_forget_pages(fs->session, inode->ino);
    share_client_set(client, SHARE_CLIENT_NEW, NULL, 0);
    inode_share_end(inode);
    inode_closed(fs->inodes, inode, false);
    inode_unref(fs->inodes, inode, 1);
}
