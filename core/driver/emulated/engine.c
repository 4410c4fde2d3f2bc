/* The engine threads: pick a stream whose first operation may run, run it, tell who waits. */
#include "core/driver/emulated/emulated.h"

#include <signal.h>
#include <string.h>

/* Two a device, so that independent streams really overlap. */
#define ENGINES_PER_DEVICE 2

/* The lock is not held here. */
static void copy_bytes(const struct transfer *transfer)
{
    const struct side *to = &transfer->destination, *from = &transfer->source;
    struct segment to_host = {to->host, transfer->bytes, NULL};
    struct segment from_host = {transfer->staged ? transfer->staged : from->host, transfer->bytes,
                                NULL};
    const struct segment *to_segment = to->is_device ? to->segments : &to_host;
    const struct segment *from_segment = from->is_device ? from->segments : &from_host;
    size_t left = transfer->bytes, to_offset = 0, from_offset = 0;
    while (left) {
        size_t step = MIN(to_segment->bytes - to_offset, from_segment->bytes - from_offset);
        memmove(to_segment->alias + to_offset, from_segment->alias + from_offset, step);
        left -= step;
        to_offset += step;
        from_offset += step;
        if (to_offset == to_segment->bytes) {
            to_segment++;
            to_offset = 0;
        }
        if (from_offset == from_segment->bytes) {
            from_segment++;
            from_offset = 0;
        }
    }
}

static void set_bytes(const struct op *op)
{
    const struct side *to = &op->transfers[0].destination;
    for (size_t i = 0; i < to->segment_count; i++) {
        const struct segment *segment = &to->segments[i];
        if (op->set_width == 1) {
            memset(segment->alias, (int)op->set_value, segment->bytes);
            continue;
        }
        for (size_t at = 0; at < segment->bytes; at += sizeof(op->set_value))
            memcpy(segment->alias + at, &op->set_value, sizeof(op->set_value));
    }
}

static void sleep_until(uint64_t ns)
{
    struct timespec until = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL))
        ;
}

/* The order among the copies of one call is anything. */
static void shuffle(struct op *op)
{
    for (size_t i = op->transfer_count; i > 1; i--) {
        size_t other = random_below(i);
        struct transfer swapped = op->transfers[i - 1];
        op->transfers[i - 1] = op->transfers[other];
        op->transfers[other] = swapped;
    }
}

static void move_bytes(struct op *op)
{
    uint64_t latency_ns = emulated.config.latency_ns, bandwidth = emulated.config.bandwidth;
    uint64_t bytes = 0;
    shuffle(op);
    op->running = true;
    pthread_mutex_unlock(&emulated.lock);
    uint64_t started_ns = latency_ns || bandwidth ? monotonic_ns() : 0;
    for (size_t i = 0; i < op->transfer_count; i++) {
        bytes += op->transfers[i].bytes;
        if (op->kind == OP_COPY)
            copy_bytes(&op->transfers[i]);
        else
            set_bytes(op);
    }
    uint64_t transfer_ns = bandwidth ? (uint64_t)((double)bytes * 1e9 / (double)bandwidth) : 0;
    if (latency_ns || transfer_ns)
        sleep_until(started_ns + latency_ns + transfer_ns);
    pthread_mutex_lock(&emulated.lock);
    op->running = false;
}

static void wake_all(void)
{
    for (unsigned i = 0; i < emulated.config.devices; i++)
        pthread_cond_broadcast(&emulated.devices[i].work);
}

static void run(struct device *device, struct stream *stream, struct op *op)
{
    bool moves = op->kind == OP_COPY || op->kind == OP_SET;
    if (moves && !op->fault && !op->cancelled)
        move_bytes(op);
    if (op->fault)
        failure_add(&stream->failure, op->fault);
    if (op->kind == OP_RECORD) {
        op->record->done = true;
        failure_copy(&op->record->failure, stream->failure);
        wake_all();
    }
    stream->head = op->next;
    if (!stream->head)
        stream->tail = NULL;
    stream->completed = op->serial;
    emulated.queued--;
    op_free(op);
    stream_unref(stream);
    pthread_cond_broadcast(&device->done);
}

/* A stream whose first operation may run now, at random; or NULL and when to look again. */
static struct stream *pick(const struct device *device, uint64_t *wake_ns)
{
    struct stream *picked = NULL;
    uint64_t now_ns = monotonic_ns(), candidates = 0;
    *wake_ns = UINT64_MAX;
    for (struct stream *stream = emulated.all_streams; stream; stream = stream->next_all) {
        struct op *op = stream->head;
        if (!op || stream->device != device->ordinal || op->running)
            continue;
        if (stream->held) {
            if (now_ns >= stream->held_until_ns)
                stream_release_held(stream);
            *wake_ns = MIN(*wake_ns, stream->held ? stream->held_until_ns : now_ns + UNPROVEN_NS);
            continue;
        }
        if (op->serial > stream->allowed || (op->kind == OP_WAIT && !op->record->done))
            continue;
        if (op->not_before_ns > now_ns) {
            *wake_ns = MIN(*wake_ns, op->not_before_ns);
            continue;
        }
        if (!random_below(++candidates))
            picked = stream;
    }
    return picked;
}

static void *engine(void *argument)
{
    struct device *device = argument;
    pthread_mutex_lock(&emulated.lock);
    for (;;) {
        uint64_t wake_ns;
        struct stream *stream = pick(device, &wake_ns);
        if (stream) {
            run(device, stream, stream->head);
        } else if (wake_ns == UINT64_MAX) {
            pthread_cond_wait(&device->work, &emulated.lock);
        } else {
            struct timespec until = {(time_t)(wake_ns / 1000000000u),
                                     (long)(wake_ns % 1000000000u)};
            pthread_cond_timedwait(&device->work, &emulated.lock, &until);
        }
    }
    return NULL;
}

bool engine_start(struct device *device)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    int started = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    for (int i = 0; i < ENGINES_PER_DEVICE; i++) {
        pthread_t thread;
        if (!pthread_create(&thread, &attributes, engine, device)) {
            pthread_setname_np(thread, "emulated-gpu");
            started++;
        }
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    device->engine_started = started > 0;
    return device->engine_started;
}
