/* Streams and events. */
#include "core/driver/emulated/emulated.h"

/* A null stream is never right in residentfs: it is a hazard, and no stream. */
static struct stream *stream_given(CUstream handle, enum entry entry)
{
    if (!handle) {
        hazard_report("%s on the null stream", entry_names[entry]);
        return NULL;
    }
    return stream_find(handle);
}

CUresult cuStreamCreate(CUstream *handle, unsigned int flags)
{
    CUresult result = enter(ENTRY_cuStreamCreate, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    if (!handle || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
        return leave(CUDA_ERROR_INVALID_VALUE);
    struct stream *stream = calloc(1, sizeof(*stream));
    if (!stream)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    uint64_t added = handle_add(&emulated.streams, stream);
    if (!added) {
        free(stream);
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    stream->refs = 1;
    stream->id = ++emulated.next_id;
    stream->device = current_device()->ordinal;
    stream->next_all = emulated.all_streams;
    emulated.all_streams = stream;
    *handle = (CUstream)(uintptr_t)added;
    return leave(CUDA_SUCCESS);
}

/* What is queued still runs. */
CUresult cuStreamDestroy_v2(CUstream handle)
{
    CUresult result = enter(ENTRY_cuStreamDestroy, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    struct stream *stream = stream_given(handle, ENTRY_cuStreamDestroy);
    if (!stream)
        return leave(CUDA_ERROR_INVALID_HANDLE);
    stream_demand(stream, stream->submitted);
    handle_remove(&emulated.streams, (uintptr_t)handle);
    stream_unref(stream);
    return leave(CUDA_SUCCESS);
}

CUresult cuStreamSynchronize(CUstream handle)
{
    struct verdict verdict;
    CUresult result =
        enter(ENTRY_cuStreamSynchronize, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, &verdict);
    if (result)
        return result;
    struct stream *stream = stream_given(handle, ENTRY_cuStreamSynchronize);
    if (!stream)
        return leave(CUDA_ERROR_INVALID_HANDLE);
    if (verdict.unproven)
        stream_make_unproven(stream, verdict.unproven);
    return leave(stream_wait(stream, stream->submitted));
}

CUresult cuStreamQuery(CUstream handle)
{
    struct verdict verdict;
    CUresult result =
        enter(ENTRY_cuStreamQuery, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, &verdict);
    if (result)
        return result;
    struct stream *stream = stream_given(handle, ENTRY_cuStreamQuery);
    if (!stream)
        return leave(CUDA_ERROR_INVALID_HANDLE);
    if (verdict.unproven)
        stream_make_unproven(stream, verdict.unproven);
    if (stream->unproven || stream->completed == stream->submitted)
        return leave(stream_wait(stream, stream->submitted));
    stream_demand(stream, stream->submitted);
    return leave(CUDA_ERROR_NOT_READY);
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned int flags)
{
    CUresult result =
        enter(ENTRY_cuStreamWaitEvent, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    struct stream *stream = stream_given(handle, ENTRY_cuStreamWaitEvent);
    struct event *event = handle_find(&emulated.events, (uintptr_t)event_handle);
    if (!stream || !event)
        return leave(CUDA_ERROR_INVALID_HANDLE);
    if (flags)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (!event->latest || event->latest->done)
        return leave(CUDA_SUCCESS);
    struct op *op = op_create(OP_WAIT, ENTRY_cuStreamWaitEvent, 0);
    if (!op)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    op->record = event->latest;
    op->record->refs++;
    return leave(stream_submit(stream, op));
}

/* Waits for everything that was submitted to the device before the call. */
CUresult cuCtxSynchronize(void)
{
    CUresult result =
        enter(ENTRY_cuCtxSynchronize, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    struct device *device = current_device();
    struct waited {
        struct stream *stream;
        uint64_t serial;
    } *waited = NULL;
    size_t count = 0, capacity = 0;
    for (struct stream *stream = emulated.all_streams; stream; stream = stream->next_all) {
        if (stream->device != device->ordinal)
            continue;
        if (!reserve_element(&waited, &capacity, count, sizeof(*waited))) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        stream_ref(stream);
        waited[count++] = (struct waited){stream, stream->submitted};
    }
    for (size_t i = 0; i < count; i++) {
        CUresult one = stream_wait(waited[i].stream, waited[i].serial);
        if (!result)
            result = one;
        stream_unref(waited[i].stream);
    }
    free(waited);
    return leave(result);
}

CUresult cuEventCreate(CUevent *handle, unsigned int flags)
{
    CUresult result = enter(ENTRY_cuEventCreate, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    if (!handle || flags & ~(unsigned)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING))
        return leave(CUDA_ERROR_INVALID_VALUE);
    struct event *event = calloc(1, sizeof(*event));
    if (!event)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    uint64_t added = handle_add(&emulated.events, event);
    if (!added) {
        free(event);
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    event->id = ++emulated.next_id;
    event->device = current_device()->ordinal;
    *handle = (CUevent)(uintptr_t)added;
    return leave(CUDA_SUCCESS);
}

/* A record that is queued still completes, and who waits for it is not disturbed. */
CUresult cuEventDestroy_v2(CUevent handle)
{
    CUresult result = enter(ENTRY_cuEventDestroy, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    struct event *event = handle_find(&emulated.events, (uintptr_t)handle);
    if (!event)
        return leave(CUDA_ERROR_INVALID_HANDLE);
    handle_remove(&emulated.events, (uintptr_t)handle);
    if (event->latest)
        record_unref(event->latest);
    free(event);
    return leave(CUDA_SUCCESS);
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle)
{
    CUresult result = enter(ENTRY_cuEventRecord, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, NULL);
    if (result)
        return result;
    struct stream *stream = stream_given(stream_handle, ENTRY_cuEventRecord);
    struct event *event = handle_find(&emulated.events, (uintptr_t)handle);
    if (!stream || !event || event->device != stream->device)
        return leave(CUDA_ERROR_INVALID_HANDLE);
    struct op *op = op_create(OP_RECORD, ENTRY_cuEventRecord, 0);
    struct record *record = calloc(1, sizeof(*record));
    if (!op || !record) {
        free(record);
        op_free(op);
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    stream_ref(stream);
    *record = (struct record){.refs = 2, .stream = stream};
    op->record = record;
    result = stream_submit(stream, op);
    if (result) {
        record_unref(record);
        return leave(result);
    }
    record->serial = stream->submitted;
    if (event->latest)
        record_unref(event->latest);
    event->latest = record;
    return leave(CUDA_SUCCESS);
}

static CUresult record_wait(struct record *record, bool may_wait)
{
    struct stream *stream = record->stream;
    struct device *device = &emulated.devices[stream->device];
    CUresult result;
    record->refs++;
    for (;;) {
        if (device->lost) {
            result = device->lost;
            break;
        }
        if (record->done) {
            result = failure_report(&record->failure);
            break;
        }
        if (stream->unproven) {
            stream_release_held(stream);
            result = stream->unproven;
            break;
        }
        stream_demand(stream, record->serial);
        if (!may_wait) {
            result = CUDA_ERROR_NOT_READY;
            break;
        }
        pthread_cond_wait(&device->done, &emulated.lock);
    }
    record_unref(record);
    return result;
}

static CUresult event_wait(enum entry entry, CUevent handle, bool may_wait)
{
    struct verdict verdict;
    CUresult result = enter(entry, NEEDS_CONTEXT | NEEDS_INIT | NEEDS_DEVICE, &verdict);
    if (result)
        return result;
    struct event *event = handle_find(&emulated.events, (uintptr_t)handle);
    if (!event)
        return leave(CUDA_ERROR_INVALID_HANDLE);
    if (!event->latest)
        return leave(CUDA_SUCCESS);
    if (verdict.unproven) {
        stream_make_unproven(event->latest->stream, verdict.unproven);
        stream_release_held(event->latest->stream);
        return leave(verdict.unproven);
    }
    return leave(record_wait(event->latest, may_wait));
}

CUresult cuEventQuery(CUevent handle)
{
    return event_wait(ENTRY_cuEventQuery, handle, false);
}

CUresult cuEventSynchronize(CUevent handle)
{
    return event_wait(ENTRY_cuEventSynchronize, handle, true);
}
