#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/share/cuda.h"
#include "core/share/resident.h"

#define UNIT_BYTES        (2 * MIB)
#define RESERVE_MIN_BYTES (64 * MIB)

/* A chunk of the file, imported. */
struct chunk {
    uint64_t offset, length; /* bytes */
    CUmemGenericAllocationHandle handle;
};

struct chunks {
    struct chunk *items; /* by offset, without gaps from 0 on, once fetched; owned */
    size_t count, capacity;
};

struct resident_mapping {
    int socket;
    struct share_context context;
    CUdeviceptr address;
    uint64_t reserved_bytes; /* of addresses; 0: none */
    uint64_t length;         /* of the file */
    struct chunks chunks;    /* each mapped at address + offset */
    bool read_only;
    atomic_uint holds; /* who will call resident_unmap */
    pid_t process;
};

/* -- chunks ------------------------------------------------------------------------------------ */

static const struct chunk *chunk_at(const struct chunks *chunks, uint64_t offset)
{
    for (size_t i = 0; i < chunks->count; i++)
        if (chunks->items[i].offset == offset)
            return &chunks->items[i];
    return NULL;
}

static errint_t chunks_add(struct chunks *chunks, struct chunk chunk)
{
    if (chunks->count == chunks->capacity) {
        size_t capacity = chunks->capacity ? chunks->capacity * 2 : 16;
        struct chunk *items = realloc(chunks->items, capacity * sizeof(*items));
        if (!items)
            return share_fail(-ENOMEM, "no host memory");
        chunks->items = items;
        chunks->capacity = capacity;
    }
    chunks->items[chunks->count++] = chunk;
    return 0;
}

static void chunks_release(const struct driver *driver, struct chunks *chunks)
{
    for (size_t i = 0; i < chunks->count; i++)
        driver->cuMemRelease(chunks->items[i].handle);
    free(chunks->items);
    *chunks = (struct chunks){0};
}

/* Imports what a reply brought, and closes its descriptors. */
static errint_t import(const struct driver *driver, const struct share_reply *reply,
                       const int *descriptors, struct chunks *fresh)
{
    errint_t error = 0;

    for (size_t i = 0; i < reply->chunk_count; i++) {
        struct chunk chunk = {reply->chunks[i].offset, reply->chunks[i].length, 0};
        if (error == 0) {
            CUresult result = driver->cuMemImportFromShareableHandle(
                &chunk.handle, (void *)(intptr_t)descriptors[i],
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
            if (result != CUDA_SUCCESS)
                error = share_cuda_fail(driver, result, "cuMemImportFromShareableHandle");
            else
                error = chunks_add(fresh, chunk);
            if (result == CUDA_SUCCESS && error < 0)
                driver->cuMemRelease(chunk.handle);
        }
        close(descriptors[i]);
    }
    return error;
}

/* Gets the chunks of [0, mapped_length) that the mapping has not. */
static errint_t fetch(struct resident_mapping *mapping, uint64_t mapped_length,
                      struct chunks *fresh)
{
    uint64_t at = 0;

    while (at < mapped_length) {
        const struct chunk *own = chunk_at(&mapping->chunks, at);
        if (!own)
            own = chunk_at(fresh, at);
        if (own) {
            at += own->length;
            continue;
        }
        struct share_request request = share_request_of(SHARE_CHUNKS);
        struct share_reply reply;
        int descriptors[SHARE_CHUNKS_MAX];
        request.offset = at;
        request.length = mapped_length - at;
        for (size_t i = 0; i < mapping->chunks.count; i++) /* up to the next one it has */
            if (mapping->chunks.items[i].offset > at)
                request.length = MIN(request.length, mapping->chunks.items[i].offset - at);
        errint_t error = share_ask(mapping->socket, &request, NULL, 0, &reply, descriptors);
        if (error == 0)
            error = import(mapping->context.driver, &reply, descriptors, fresh);
        if (error < 0)
            return error;
        const struct chunk *first = chunk_at(fresh, at);
        if (!first || first->length == 0 || first->length % UNIT_BYTES)
            return share_fail(-EPROTO, "residentfs left out the chunk at byte %llu",
                              (unsigned long long)at);
    }
    return 0;
}

/* -- addresses --------------------------------------------------------------------------------- */

static void unmap(const struct driver *driver, CUdeviceptr base, const struct chunks *chunks,
                  size_t count)
{
    for (size_t i = 0; i < count; i++)
        driver->cuMemUnmap(base + chunks->items[i].offset, chunks->items[i].length);
}

/* All or none of them. */
static errint_t map(struct resident_mapping *mapping, CUdeviceptr base, const struct chunks *chunks,
                    bool *read_only)
{
    const struct driver *driver = mapping->context.driver;
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = mapping->context.device},
        .flags = *read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    const char *call = "cuMemMap";
    CUresult result = CUDA_SUCCESS;
    size_t mapped = 0;

    for (; result == CUDA_SUCCESS && mapped < chunks->count; mapped++) {
        const struct chunk *chunk = &chunks->items[mapped];
        result = driver->cuMemMap(base + chunk->offset, chunk->length, 0, chunk->handle, 0);
        if (result != CUDA_SUCCESS)
            break;
        call = "cuMemSetAccess";
        result = driver->cuMemSetAccess(base + chunk->offset, chunk->length, &access, 1);
        if (result != CUDA_SUCCESS && *read_only) {
            /* Not every driver can have memory that kernels only read. */
            *read_only = false;
            access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            result = driver->cuMemSetAccess(base + chunk->offset, chunk->length, &access, 1);
        }
    }
    if (result == CUDA_SUCCESS)
        return 0;
    unmap(driver, base, chunks, MIN(mapped + 1, chunks->count));
    return share_cuda_fail(driver, result, call);
}

/* Room for the file to grow in, so that its address can stay; just enough if that is refused. */
static errint_t reserve(const struct driver *driver, uint64_t mapped_length, CUdeviceptr *base,
                        uint64_t *reserved_bytes)
{
    *reserved_bytes = MAX(2 * mapped_length, RESERVE_MIN_BYTES);
    CUresult result = driver->cuMemAddressReserve(base, *reserved_bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS) {
        *reserved_bytes = mapped_length;
        result = driver->cuMemAddressReserve(base, *reserved_bytes, 0, 0, 0);
    }
    return result == CUDA_SUCCESS ? 0 : share_cuda_fail(driver, result, "cuMemAddressReserve");
}

/* Maps FRESH besides what is mapped, at another address if need be; takes its chunks over. */
static errint_t place(struct resident_mapping *mapping, uint64_t mapped_length,
                      struct chunks *fresh)
{
    const struct driver *driver = mapping->context.driver;
    struct chunks all = {0};
    errint_t error = 0;

    if (fresh->count == 0)
        return 0;
    for (size_t i = 0; error == 0 && i < mapping->chunks.count; i++)
        error = chunks_add(&all, mapping->chunks.items[i]);
    for (size_t i = 0; error == 0 && i < fresh->count; i++)
        error = chunks_add(&all, fresh->items[i]);
    if (error == 0 && mapped_length <= mapping->reserved_bytes) {
        error = map(mapping, mapping->address, fresh, &mapping->read_only);
    } else if (error == 0) {
        CUdeviceptr base;
        uint64_t reserved_bytes = 0;
        if (atomic_load(&mapping->holds) > 1)
            error = share_fail(-EBUSY, "the file has outgrown its addresses, which arrays and "
                                       "tensors use: drop them first, or map the file once more");
        else
            error = reserve(driver, mapped_length, &base, &reserved_bytes);
        if (error == 0) {
            error = map(mapping, base, &all, &mapping->read_only);
            if (error < 0)
                driver->cuMemAddressFree(base, reserved_bytes);
        }
        if (error == 0) {
            driver->cuCtxSynchronize();
            unmap(driver, mapping->address, &mapping->chunks, mapping->chunks.count);
            if (mapping->reserved_bytes > 0)
                driver->cuMemAddressFree(mapping->address, mapping->reserved_bytes);
            mapping->address = base;
            mapping->reserved_bytes = reserved_bytes;
        }
    }
    if (error < 0) {
        free(all.items);
        return error;
    }
    free(mapping->chunks.items);
    mapping->chunks = all;
    free(fresh->items);
    *fresh = (struct chunks){0};
    return 0;
}

static errint_t take_over(struct resident_mapping *mapping, const struct share_reply *reply)
{
    struct chunks fresh = {0};
    errint_t error = share_context_enter(&mapping->context);

    if (error < 0)
        return error;
    error = fetch(mapping, reply->mapped_length, &fresh);
    if (error == 0)
        error = place(mapping, reply->mapped_length, &fresh);
    chunks_release(mapping->context.driver, &fresh);
    share_context_leave(&mapping->context);
    if (error == 0)
        mapping->length = reply->length;
    return error;
}

/* -- the interface ----------------------------------------------------------------------------- */

/* A descriptor that is open for reading and writing: FD itself (*own is -1), or *own, to be closed.
 */
static errint_t writable(int fd, int *own)
{
    char path[40];
    int flags = fcntl(fd, F_GETFL);

    *own = -1;
    if (flags < 0)
        return share_fail(-EBADF, "%d is not an open file", fd);
    if ((flags & O_ACCMODE) == O_RDWR && !(flags & O_PATH))
        return 0;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    *own = open(path, O_RDWR | O_CLOEXEC | (flags & O_DIRECT));
    if (*own < 0)
        return share_fail(-errno,
                          "memory that is shared can be written, so writing the file must be "
                          "allowed: %s",
                          strerror(errno));
    return 0;
}

static errint_t begin(struct resident_mapping *mapping, int fd)
{
    struct share_request request = share_request_of(SHARE_MAP);
    struct share_reply reply;
    const struct driver *driver;

    errint_t error = share_connect(fd, &mapping->socket);
    if (error < 0)
        return error;
    error = share_ask(mapping->socket, &request, &fd, 1, &reply, NULL);
    if (error < 0)
        return error;
    reply.driver[sizeof(reply.driver) - 1] = 0;
    error = share_driver(reply.driver, &driver);
    if (error < 0)
        return error;
    mapping->context.driver = driver;
    error = share_find_device(driver, reply.device_uuid, &mapping->context.device);
    return error < 0 ? error : take_over(mapping, &reply);
}

int resident_map(int fd, unsigned int flags, struct resident_mapping **out)
{
    int own;

    if (flags & ~RESIDENT_READ_ONLY)
        return share_fail(-EINVAL, "flags 0x%x are not known", flags);
    errint_t error = writable(fd, &own);
    if (error < 0)
        return error;
    struct resident_mapping *mapping = calloc(1, sizeof(*mapping));
    if (mapping) {
        mapping->socket = -1;
        mapping->process = getpid();
        atomic_init(&mapping->holds, 1);
        mapping->read_only = (flags & RESIDENT_READ_ONLY) || own >= 0;
        error = begin(mapping, own >= 0 ? own : fd);
        if (error == 0)
            *out = mapping;
        else
            resident_unmap(mapping);
    } else {
        error = share_fail(-ENOMEM, "no host memory");
    }
    if (own >= 0)
        close(own);
    return error;
}

int resident_map_path(const char *path, unsigned int flags, struct resident_mapping **out)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_DIRECT);

    if (fd < 0)
        return share_fail(-errno, "%s: %s", path, strerror(errno));
    errint_t error = resident_map(fd, flags, out);
    close(fd);
    return error;
}

int resident_remap(struct resident_mapping *mapping)
{
    struct share_request request = share_request_of(SHARE_MAP);
    struct share_reply reply;
    errint_t error = share_ask(mapping->socket, &request, NULL, 0, &reply, NULL);

    return error < 0 ? error : take_over(mapping, &reply);
}

int resident_sync(struct resident_mapping *mapping)
{
    struct share_request request = share_request_of(SHARE_SYNC);
    struct share_reply reply;

    return share_ask(mapping->socket, &request, NULL, 0, &reply, NULL);
}

int resident_unmap(struct resident_mapping *mapping)
{
    if (!mapping || atomic_fetch_sub(&mapping->holds, 1) > 1)
        return 0;
    const struct driver *driver = mapping->context.driver;
    errint_t error = 0;
    if (mapping->process != getpid()) {
        /* Neither the memory nor the conversation is this process's. */
        close(mapping->socket);
        free(mapping->chunks.items);
        free(mapping);
        return 0;
    }
    if (mapping->reserved_bytes > 0) {
        error = share_context_enter(&mapping->context);
        driver->cuCtxSynchronize();
        unmap(driver, mapping->address, &mapping->chunks, mapping->chunks.count);
        driver->cuMemAddressFree(mapping->address, mapping->reserved_bytes);
        chunks_release(driver, &mapping->chunks);
        share_context_leave(&mapping->context);
    }
    share_context_release(&mapping->context);
    if (mapping->socket >= 0)
        share_disconnect(mapping->socket);
    free(mapping);
    return error;
}

void resident_hold(struct resident_mapping *mapping)
{
    atomic_fetch_add(&mapping->holds, 1);
}

uint64_t resident_address(const struct resident_mapping *mapping)
{
    return mapping->address;
}

size_t resident_length(const struct resident_mapping *mapping)
{
    return mapping->length;
}

int resident_device(const struct resident_mapping *mapping)
{
    return mapping->context.device;
}

int resident_is_read_only(const struct resident_mapping *mapping)
{
    return mapping->read_only;
}
