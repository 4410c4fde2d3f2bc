/* Queues of operations: submission, what may run, waiting, and misuse of what is queued. */
#include "core/driver/emulated/emulated.h"

#include <stdarg.h>
#include <stdio.h>

#define HELD_AT_MOST_NS 1000000000u

struct op *op_create(enum op_kind kind, enum entry entry, size_t transfer_count)
{
    struct op *op = calloc(1, sizeof(*op));
    if (!op)
        return NULL;
    op->kind = kind;
    op->entry = entry;
    if (transfer_count) {
        op->transfers = calloc(transfer_count, sizeof(*op->transfers));
        if (!op->transfers) {
            free(op);
            return NULL;
        }
    }
    op->transfer_count = transfer_count;
    return op;
}

static void side_finish(struct side *side)
{
    for (size_t i = 0; i < side->segment_count; i++)
        physical_unref(side->segments[i].physical);
    free(side->segments);
}

void op_free(struct op *op)
{
    if (!op)
        return;
    for (size_t i = 0; i < op->transfer_count; i++) {
        side_finish(&op->transfers[i].destination);
        side_finish(&op->transfers[i].source);
        free(op->transfers[i].staged);
    }
    free(op->transfers);
    if (op->record)
        record_unref(op->record);
    free(op);
}

struct stream *stream_find(CUstream handle)
{
    return handle_find(&emulated.streams, (uintptr_t)handle);
}

void stream_ref(struct stream *stream)
{
    stream->refs++;
}

/* Who has not asked has not been told: another one that covers it will be. */
static void failure_drop(struct failure **failure)
{
    if (*failure && !--(*failure)->refs)
        free(*failure);
    *failure = NULL;
}

void stream_unref(struct stream *stream)
{
    if (--stream->refs)
        return;
    struct stream **link = &emulated.all_streams;
    while (*link != stream)
        link = &(*link)->next_all;
    *link = stream->next_all;
    failure_drop(&stream->failure);
    free(stream);
}

void record_unref(struct record *record)
{
    if (--record->refs)
        return;
    failure_drop(&record->failure);
    stream_unref(record->stream);
    free(record);
}

CUresult failure_report(struct failure **failure)
{
    struct failure *found = *failure;
    if (!found)
        return CUDA_SUCCESS;
    CUresult result = found->reported ? CUDA_SUCCESS : found->result;
    found->reported = true;
    failure_drop(failure);
    return result;
}

void failure_add(struct failure **failure, CUresult result)
{
    if (*failure && !(*failure)->reported)
        return;
    failure_drop(failure);
    struct failure *added = calloc(1, sizeof(*added));
    if (!added)
        return;
    *added = (struct failure){.refs = 1, .result = result};
    *failure = added;
}

void failure_copy(struct failure **to, struct failure *from)
{
    *to = from;
    if (from)
        from->refs++;
}

/* Most run at once; some late. */
static uint64_t random_start_ns(void)
{
    if (emulated.config.order != ORDER_RANDOM || random_below(4))
        return 0;
    return monotonic_ns() + random_below(200000);
}

CUresult stream_submit(struct stream *stream, struct op *op)
{
    struct device *device = &emulated.devices[stream->device];
    if (!device->engine_started && !engine_start(device)) {
        op_free(op);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    op->serial = ++stream->submitted;
    op->not_before_ns =
        stream->unproven && !stream->held ? monotonic_ns() + UNPROVEN_NS : random_start_ns();
    if (stream->tail)
        stream->tail->next = op;
    else
        stream->head = op;
    stream->tail = op;
    stream_ref(stream);
    emulated.queued++;
    if (emulated.config.order != ORDER_SYNC || stream->unproven)
        stream->allowed = stream->submitted;
    pthread_cond_signal(&device->work);
    return CUDA_SUCCESS;
}

static bool any_held(void)
{
    for (struct stream *stream = emulated.all_streams; stream; stream = stream->next_all) {
        if (stream->held)
            return true;
    }
    return false;
}

void stream_demand(struct stream *stream, uint64_t serial)
{
    stream_release_held(stream);
    if (stream->allowed >= serial && !any_held())
        return;
    stream->allowed = MAX(stream->allowed, serial);
    for (struct op *op = stream->head; op && op->serial <= serial; op = op->next) {
        if (op->kind == OP_WAIT && !op->record->done)
            stream_demand(op->record->stream, op->record->serial);
    }
    pthread_cond_broadcast(&emulated.devices[stream->device].work);
}

void stream_make_unproven(struct stream *stream, CUresult result)
{
    if (stream->unproven)
        return;
    stream->unproven = result;
    stream->held = true;
    stream->held_until_ns = monotonic_ns() + HELD_AT_MOST_NS;
    pthread_cond_broadcast(&emulated.devices[stream->device].done);
}

void stream_release_held(struct stream *stream)
{
    if (!stream->held)
        return;
    uint64_t later_ns = monotonic_ns() + UNPROVEN_NS;
    stream->held = false;
    stream->allowed = stream->submitted;
    for (struct op *op = stream->head; op; op = op->next)
        op->not_before_ns = later_ns;
    pthread_cond_broadcast(&emulated.devices[stream->device].work);
}

CUresult stream_wait(struct stream *stream, uint64_t serial)
{
    struct device *device = &emulated.devices[stream->device];
    CUresult result;
    stream_ref(stream);
    for (;;) {
        if (device->lost) {
            result = device->lost;
            break;
        }
        if (stream->unproven) {
            stream_release_held(stream);
            result = stream->unproven;
            break;
        }
        if (stream->completed >= serial) {
            result = failure_report(&stream->failure);
            break;
        }
        stream_demand(stream, serial);
        pthread_cond_wait(&device->done, &emulated.lock);
    }
    stream_unref(stream);
    return result;
}

static bool overlap(uint64_t a, size_t a_bytes, uint64_t b, size_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

/* The side of TRANSFER that touches the range, or NULL. */
static const struct side *transfer_touches(const struct transfer *transfer, uint64_t start,
                                           size_t bytes, bool is_device)
{
    const struct side *destination = &transfer->destination, *source = &transfer->source;
    if (destination->address && destination->is_device == is_device &&
        overlap(destination->address, transfer->bytes, start, bytes))
        return destination;
    if (source->address && source->is_device == is_device && !transfer->staged &&
        overlap(source->address, transfer->bytes, start, bytes))
        return source;
    return NULL;
}

static const struct transfer *op_touches(const struct op *op, uint64_t start, size_t bytes,
                                         bool is_device, const struct side **side)
{
    for (size_t i = 0; i < op->transfer_count; i++) {
        *side = transfer_touches(&op->transfers[i], start, bytes, is_device);
        if (*side)
            return &op->transfers[i];
    }
    return NULL;
}

bool host_range_is_queued(uint64_t start, size_t bytes)
{
    const struct side *side;
    for (struct stream *stream = emulated.all_streams; stream; stream = stream->next_all) {
        for (struct op *op = stream->head; op; op = op->next) {
            if (op_touches(op, start, bytes, false, &side))
                return true;
        }
    }
    return false;
}

void hazard_report(const char *format, ...)
{
    va_list arguments;
    emulated.hazards++;
    fputs("residentfs-emulated: hazard: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    if (emulated.config.hazard_aborts)
        abort();
}

/* Returns true if the lock was dropped, so that the queues must be looked at again. */
static bool hazard_cancel(struct stream *stream, struct op *op)
{
    op->cancelled = true;
    if (!op->running)
        return false;
    uint64_t serial = op->serial;
    stream_ref(stream);
    while (stream->completed < serial)
        pthread_cond_wait(&emulated.devices[stream->device].done, &emulated.lock);
    stream_unref(stream);
    return true;
}

void hazard_check(enum entry entry, uint64_t start, size_t bytes, bool is_device)
{
again:
    for (struct stream *stream = emulated.all_streams; stream; stream = stream->next_all) {
        for (struct op *op = stream->head; op; op = op->next) {
            const struct side *side;
            const struct transfer *transfer;
            if (op->cancelled || !(transfer = op_touches(op, start, bytes, is_device, &side)))
                continue;
            hazard_report("%s of [0x%llx, 0x%llx) while a queued %s on stream %llu still touches "
                          "[0x%llx, 0x%llx)",
                          entry_names[entry], (unsigned long long)start,
                          (unsigned long long)(start + bytes), entry_names[op->entry],
                          (unsigned long long)stream->id, (unsigned long long)side->address,
                          (unsigned long long)(side->address + transfer->bytes));
            if (hazard_cancel(stream, op))
                goto again;
        }
    }
}
