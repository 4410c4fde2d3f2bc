/* Submission of copies and memsets: every range is checked here, the bytes move later. */
#include "core/driver/emulated/emulated.h"

#include <string.h>

#define COPY_NEEDS (NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE)

static CUresult copy_stream(enum entry entry, CUstream handle, struct stream **stream)
{
    if (!handle) {
        hazard_report("%s on the null stream", entry_names[entry]);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *stream = stream_find(handle);
    if (!*stream || (*stream)->device != current_device()->ordinal)
        return CUDA_ERROR_INVALID_HANDLE;
    return CUDA_SUCCESS;
}

static CUresult side_resolve_host(struct side *side, const void *pointer, size_t bytes)
{
    uint64_t address = (uintptr_t)pointer;
    CUresult result = host_find(address, bytes, &side->pinned);
    if (result || !pointer || address_is_device(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&side->host, &pointer, sizeof(side->host));
    side->address = address;
    return CUDA_SUCCESS;
}

/* Reads the source now, so that the caller may do with it what it likes. */
static CUresult transfer_stage(struct transfer *transfer)
{
    transfer->staged = malloc(transfer->bytes);
    if (!transfer->staged)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(transfer->staged, transfer->source.host, transfer->bytes);
    return CUDA_SUCCESS;
}

/* What a reader sees who does not wait; not where something queued still uses the memory. */
static void transfer_scribble(const struct transfer *transfer)
{
    const struct side *to = &transfer->destination;
    if (!to->is_device && to->pinned && config_scribbles() &&
        !host_range_is_queued(to->address, transfer->bytes))
        memset(to->host, 0xdb, transfer->bytes);
}

/* Takes OP over. */
static CUresult copy_submit(struct stream *stream, struct op *op, const struct verdict *verdict)
{
    for (size_t i = 0; i < op->transfer_count; i++)
        transfer_scribble(&op->transfers[i]);
    op->fault = verdict->late;
    if (verdict->unproven)
        stream_make_unproven(stream, verdict->unproven);
    return stream_submit(stream, op);
}

/* A copy with one transfer, whose sides FROM and TO resolve. */
struct end {
    const void *host; /* NULL: device memory */
    CUdeviceptr address;
    int device; /* that must have access */
};

static CUresult side_resolve(struct side *side, const struct end *end, size_t bytes, bool write)
{
    if (end->host)
        return side_resolve_host(side, end->host, bytes);
    return side_resolve_device(side, end->address, bytes, end->device, write);
}

static CUresult copy_one(enum entry entry, const struct end *to, const struct end *from,
                         size_t bytes, CUstream handle, const struct verdict *verdict)
{
    struct stream *stream;
    CUresult result = copy_stream(entry, handle, &stream);
    if (result)
        return result;
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct op *op = op_create(OP_COPY, entry, 1);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct transfer *transfer = &op->transfers[0];
    transfer->bytes = bytes;
    result = side_resolve(&transfer->destination, to, bytes, true);
    if (!result)
        result = side_resolve(&transfer->source, from, bytes, false);
    if (!result && from->host && !transfer->source.pinned)
        result = transfer_stage(transfer);
    if (result) {
        op_free(op);
        return result;
    }
    /* A copy to pageable memory returns when it has been made. */
    bool waits = to->host && !transfer->destination.pinned;
    result = copy_submit(stream, op, verdict);
    if (!result && waits)
        result = stream_wait(stream, stream->submitted);
    return result;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr destination, const void *source, size_t bytes,
                              CUstream stream)
{
    struct verdict verdict;
    CUresult result = enter(ENTRY_cuMemcpyHtoDAsync, COPY_NEEDS, &verdict);
    if (result)
        return result;
    if (!source)
        return leave(CUDA_ERROR_INVALID_VALUE);
    struct end to = {NULL, destination, current_device()->ordinal};
    struct end from = {source, 0, 0};
    return leave(copy_one(ENTRY_cuMemcpyHtoDAsync, &to, &from, bytes, stream, &verdict));
}

CUresult cuMemcpyDtoHAsync_v2(void *destination, CUdeviceptr source, size_t bytes, CUstream stream)
{
    struct verdict verdict;
    CUresult result = enter(ENTRY_cuMemcpyDtoHAsync, COPY_NEEDS, &verdict);
    if (result)
        return result;
    if (!destination)
        return leave(CUDA_ERROR_INVALID_VALUE);
    struct end to = {destination, 0, 0};
    struct end from = {NULL, source, current_device()->ordinal};
    return leave(copy_one(ENTRY_cuMemcpyDtoHAsync, &to, &from, bytes, stream, &verdict));
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr destination, CUdeviceptr source, size_t bytes,
                              CUstream stream)
{
    struct verdict verdict;
    CUresult result = enter(ENTRY_cuMemcpyDtoDAsync, COPY_NEEDS, &verdict);
    if (result)
        return result;
    int device = current_device()->ordinal;
    struct end to = {NULL, destination, device}, from = {NULL, source, device};
    return leave(copy_one(ENTRY_cuMemcpyDtoDAsync, &to, &from, bytes, stream, &verdict));
}

CUresult cuMemcpyPeerAsync(CUdeviceptr destination, CUcontext destination_context,
                           CUdeviceptr source, CUcontext source_context, size_t bytes,
                           CUstream stream)
{
    struct verdict verdict;
    CUresult result = enter(ENTRY_cuMemcpyPeerAsync, COPY_NEEDS, &verdict);
    if (result)
        return result;
    struct device *to_device = device_of_context(destination_context);
    struct device *from_device = device_of_context(source_context);
    if (!to_device || !from_device || !to_device->retained || !from_device->retained)
        return leave(CUDA_ERROR_INVALID_CONTEXT);
    struct end to = {NULL, destination, to_device->ordinal};
    struct end from = {NULL, source, from_device->ordinal};
    return leave(copy_one(ENTRY_cuMemcpyPeerAsync, &to, &from, bytes, stream, &verdict));
}

static CUresult set_one(enum entry entry, CUdeviceptr address, uint32_t value, unsigned width,
                        size_t count, CUstream handle, const struct verdict *verdict)
{
    struct stream *stream;
    CUresult result = copy_stream(entry, handle, &stream);
    if (result)
        return result;
    if (!count || count > SIZE_MAX / width || address % width)
        return CUDA_ERROR_INVALID_VALUE;
    struct op *op = op_create(OP_SET, entry, 1);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->set_value = value;
    op->set_width = width;
    op->transfers[0].bytes = count * width;
    result = side_resolve_device(&op->transfers[0].destination, address, count * width,
                                 current_device()->ordinal, true);
    if (result) {
        op_free(op);
        return result;
    }
    return copy_submit(stream, op, verdict);
}

CUresult cuMemsetD8Async(CUdeviceptr destination, unsigned char value, size_t count,
                         CUstream stream)
{
    struct verdict verdict;
    CUresult result = enter(ENTRY_cuMemsetD8Async, COPY_NEEDS, &verdict);
    if (result)
        return result;
    return leave(set_one(ENTRY_cuMemsetD8Async, destination, value, 1, count, stream, &verdict));
}

CUresult cuMemsetD32Async(CUdeviceptr destination, unsigned int value, size_t count,
                          CUstream stream)
{
    struct verdict verdict;
    CUresult result = enter(ENTRY_cuMemsetD32Async, COPY_NEEDS, &verdict);
    if (result)
        return result;
    return leave(set_one(ENTRY_cuMemsetD32Async, destination, value, 4, count, stream, &verdict));
}

static bool attributes_valid(const CUmemcpyAttributes *attributes, const size_t *starts,
                             size_t attribute_count, size_t count)
{
    if (!attributes || !starts || !attribute_count || attribute_count > count || starts[0])
        return false;
    for (size_t i = 0; i < attribute_count; i++) {
        if (attributes[i].srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
            attributes[i].srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY ||
            attributes[i].flags > CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)
            return false;
        if (starts[i] >= count || (i && starts[i] <= starts[i - 1]))
            return false;
    }
    return true;
}

/* An address is device memory if the driver made it so, else host memory. */
static CUresult side_resolve_any(struct side *side, CUdeviceptr address, size_t bytes, bool write)
{
    if (address_is_device(address, bytes))
        return side_resolve_device(side, address, bytes, current_device()->ordinal, write);
    return side_resolve_host(side, (const void *)(uintptr_t)address, bytes);
}

static CUresult batch_transfer(struct transfer *transfer, CUdeviceptr destination,
                               CUdeviceptr source, size_t bytes, CUmemcpySrcAccessOrder order)
{
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    transfer->bytes = bytes;
    CUresult result = side_resolve_any(&transfer->destination, destination, bytes, true);
    if (!result)
        result = side_resolve_any(&transfer->source, source, bytes, false);
    if (result || transfer->source.is_device)
        return result;
    bool now = order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL ||
               (order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY && !random_below(2));
    return now ? transfer_stage(transfer) : CUDA_SUCCESS;
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *destinations, CUdeviceptr *sources, size_t *sizes,
                            size_t count, CUmemcpyAttributes *attributes, size_t *attribute_starts,
                            size_t attribute_count, size_t *failed, CUstream handle)
{
    struct verdict verdict;
    CUresult result = enter(ENTRY_cuMemcpyBatchAsync, COPY_NEEDS, &verdict);
    if (failed)
        *failed = SIZE_MAX;
    if (result)
        return result;
    struct stream *stream;
    result = copy_stream(ENTRY_cuMemcpyBatchAsync, handle, &stream);
    if (result)
        return leave(result);
    if (!destinations || !sources || !sizes || !count ||
        !attributes_valid(attributes, attribute_starts, attribute_count, count))
        return leave(CUDA_ERROR_INVALID_VALUE);
    struct op *op = op_create(OP_COPY, ENTRY_cuMemcpyBatchAsync, count);
    if (!op)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    for (size_t i = 0, attribute = 0; i < count; i++) {
        if (attribute + 1 < attribute_count && attribute_starts[attribute + 1] == i)
            attribute++;
        result = batch_transfer(&op->transfers[i], destinations[i], sources[i], sizes[i],
                                attributes[attribute].srcAccessOrder);
        if (result) {
            if (failed)
                *failed = i;
            op_free(op);
            return leave(result);
        }
    }
    return leave(copy_submit(stream, op, &verdict));
}
