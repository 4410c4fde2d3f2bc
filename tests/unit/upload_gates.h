/*
 * The driver's calls of uploads, watched and held up; and what tests do with other threads while
 * they are.
 */
#ifndef RESIDENTFS_TESTS_UPLOAD_GATES_H
#define RESIDENTFS_TESTS_UPLOAD_GATES_H

#include "fixture.h"

#include <pthread.h>
#include <time.h>

#include "core/buffer_internal.h"

#define PAGE         4096
#define SUBMIT_BYTES (512 * KIB) /* as core/upload.c has it */
#define PATIENCE_MS  100         /* within which what needs not wait is done, if it can be */
#define LIMIT_MS     20000       /* in which everything is */

/* -- the driver's calls, watched and held up --------------------------------------------------- */

static struct driver real;

static struct gate {
    _Atomic bool closed;
    _Atomic unsigned int entered; /* calls so far */
    _Atomic unsigned int allowed; /* which of them may pass when it is closed; 0: none */
} batch_gate, copy_gate, fence_gate;

static struct gate told_gate; /* for who was told of a failure */

static _Atomic bool query_waits; /* whoever asks finds the stream done */
static _Atomic unsigned int submitting;
static _Atomic bool overlapped; /* two submissions at once, or the stream used during one */

static inline void sleep_ms(unsigned int ms)
{
    struct timespec time = {0, (long)ms * 1000000};

    nanosleep(&time, NULL);
}

static inline void gate_pass(struct gate *gate)
{
    unsigned int number = atomic_fetch_add(&gate->entered, 1) + 1;

    for (unsigned int i = 0; i < LIMIT_MS; i++) {
        if (!atomic_load(&gate->closed) || number == atomic_load(&gate->allowed))
            return;
        sleep_ms(1);
    }
}

static inline void gate_expect(struct gate *gate, unsigned int entered)
{
    for (unsigned int i = 0; i < LIMIT_MS && atomic_load(&gate->entered) < entered; i++)
        sleep_ms(1);
    assert_int_equal(atomic_load(&gate->entered), entered);
}

static inline CUresult watched_batch(CUdeviceptr *destinations, CUdeviceptr *sources, size_t *sizes,
                                     size_t count, CUmemcpyAttributes *attributes, size_t *starts,
                                     size_t attribute_count, size_t *failed, CUstream stream)
{
    if (atomic_fetch_add(&submitting, 1) > 0)
        overlapped = true;
    gate_pass(&batch_gate);
    CUresult result = real.cuMemcpyBatchAsync(destinations, sources, sizes, count, attributes,
                                              starts, attribute_count, failed, stream);
    atomic_fetch_sub(&submitting, 1);
    return result;
}

static inline CUresult watched_copy(CUdeviceptr destination, const void *source, size_t bytes,
                                    CUstream stream)
{
    if (atomic_fetch_add(&submitting, 1) > 0)
        overlapped = true;
    gate_pass(&copy_gate);
    CUresult result = real.cuMemcpyHtoDAsync(destination, source, bytes, stream);
    atomic_fetch_sub(&submitting, 1);
    return result;
}

static inline CUresult watched_query(CUstream stream)
{
    if (atomic_load(&submitting) > 0)
        overlapped = true;
    if (atomic_load(&query_waits))
        real.cuStreamSynchronize(stream);
    return real.cuStreamQuery(stream);
}

static inline CUresult watched_wait(CUevent event)
{
    gate_pass(&fence_gate);
    CUresult result = real.cuEventSynchronize(event);
    if (result != CUDA_SUCCESS)
        gate_pass(&told_gate);
    return result;
}

/* Who only asks is held up, too, when it was told of a failure. */
static inline CUresult watched_event_query(CUevent event)
{
    CUresult result = real.cuEventQuery(event);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
        gate_pass(&told_gate);
    return result;
}

static inline CUresult watched_record(CUevent event, CUstream stream)
{
    if (atomic_load(&submitting) > 0)
        overlapped = true;
    return real.cuEventRecord(event, stream);
}

static inline struct device *open_watched(const char *settings, struct device_options *options)
{
    struct device_options quiet = {
        .budget = {.kind = BUDGET_AUTO},
        .staging_bytes = 4 * MIB,
        .upload_streams = 1,
        .flush_interval_ms = 3600 * 1000,
        .direct_threshold_bytes = 1 * MIB,
    };
    struct device *device = fixture_open(settings, options ? options : &quiet);

    real = *device->driver;
    if (real.cuMemcpyBatchAsync)
        device->driver->cuMemcpyBatchAsync = watched_batch;
    device->driver->cuMemcpyHtoDAsync = watched_copy;
    device->driver->cuStreamQuery = watched_query;
    device->driver->cuEventSynchronize = watched_wait;
    device->driver->cuEventQuery = watched_event_query;
    device->driver->cuEventRecord = watched_record;
    struct gate *gates[] = {&batch_gate, &copy_gate, &fence_gate, &told_gate};
    for (size_t i = 0; i < ARRAY_SIZE(gates); i++) {
        atomic_store(&gates[i]->closed, false);
        atomic_store(&gates[i]->entered, 0);
        atomic_store(&gates[i]->allowed, 0);
    }
    atomic_store(&query_waits, false);
    atomic_store(&submitting, 0);
    atomic_store(&overlapped, false);
    return device;
}

static inline void check_watched(void)
{
    if (atomic_load(&overlapped))
        fail_msg("the stream was used while a batch was being submitted");
}

/* -- something that another thread does -------------------------------------------------------- */

struct task {
    pthread_t thread;
    struct device *device;
    struct buffer *buffer, *other;
    int64_t (*run)(struct task *task);
    int64_t result;
    _Atomic bool done;
};

static inline void *task_main(void *data)
{
    struct task *task = data;

    device_attach_thread(task->device);
    task->result = task->run(task);
    atomic_store(&task->done, true);
    return NULL;
}

static inline void task_start(struct task *task, struct device *device, struct buffer *buffer,
                              struct buffer *other, int64_t (*run)(struct task *task))
{
    *task = (struct task){.device = device, .buffer = buffer, .other = other, .run = run};
    assert_int_equal(pthread_create(&task->thread, NULL, task_main, task), 0);
}

static inline bool task_is_done_within(const struct task *task, unsigned int ms)
{
    for (unsigned int i = 0; i < ms && !atomic_load(&task->done); i++)
        sleep_ms(1);
    return atomic_load(&task->done);
}

static inline int64_t task_finish(struct task *task)
{
    pthread_join(task->thread, NULL);
    return task->result;
}

/* Which byte it saw, in all of the page. */
static inline int64_t read_page(struct task *task)
{
    unsigned char back[PAGE];
    ssize_t got = buffer_read(task->buffer, 0, back, PAGE);

    for (size_t i = 1; got == PAGE && i < PAGE; i++)
        if (back[i] != back[0])
            return -1;
    return got == PAGE ? back[0] : got;
}

static inline int64_t flush(struct task *task)
{
    return buffer_flush(task->buffer);
}

static inline int64_t tick(struct task *task)
{
    upload_queue_tick(task->buffer->target.queue, 0);
    return 0;
}

#endif
