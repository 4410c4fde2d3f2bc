/*
 * What counts as proven while others ask the driver, which tells a failure once, to whoever asks
 * first. Timeout: 60 s.
 */
#include "upload_gates.h"

#include <errno.h>

#include "core/upload_internal.h"

static int64_t write_page(struct buffer *buffer, int byte)
{
    unsigned char bytes[PAGE];

    memset(bytes, byte, sizeof(bytes));
    ssize_t done = buffer_write(buffer, 0, bytes, PAGE, NULL);
    return done == PAGE ? 0 : done;
}

static struct pinned_memory direct_memory;
static struct upload_fence direct_fence;

static int64_t write_and_flush(struct task *task)
{
    int64_t result = write_page(task->buffer, 4);

    return result < 0 ? result : buffer_flush(task->buffer);
}

static int64_t write_and_read(struct task *task)
{
    int64_t result = write_page(task->buffer, 4);

    return result < 0 ? result : read_page(task);
}

/* The driver refuses it: the queue handles that as a failure of its own. */
static int64_t copy_refused(struct task *task)
{
    CUdeviceptr address = task->buffer->extents.items[0].address;

    return upload_queue_copy(task->buffer->target.queue, &task->buffer->target, address,
                             address + PAGE / 2, PAGE / 2);
}

static int64_t direct_wait(struct task *task)
{
    (void)task;
    return upload_fence_wait(&direct_fence);
}

static int64_t direct_query(struct task *task)
{
    for (unsigned int i = 0; i < LIMIT_MS && !upload_fence_is_done(&direct_fence); i++)
        sleep_ms(1);
    return direct_wait(task);
}

static void direct_start(struct buffer *buffer)
{
    struct upload_place place = {99, buffer->extents.items[0].address, 0};

    assert_int_equal(pinned_memory_init(buffer->device, &direct_memory, PAGE), 0);
    assert_int_equal(upload_fence_init(buffer->device, &direct_fence), 0);
    memset(direct_memory.bytes, 3, PAGE);
    assert_int_equal(upload_queue_direct(buffer->target.queue, &buffer->target, place,
                                         direct_memory.bytes, PAGE, &direct_fence),
                     0);
}

/* The task waits for it, and is held up on its way to the driver; the gate is closed from now on.
 */
static void direct_hold(struct task *waits, struct buffer *buffer)
{
    unsigned int entered = atomic_load(&fence_gate.entered);

    direct_start(buffer);
    atomic_store(&fence_gate.closed, true);
    task_start(waits, buffer->device, buffer, NULL, direct_wait);
    gate_expect(&fence_gate, entered + 1);
}

static void direct_finish(struct device *device)
{
    assert_int_equal(upload_fence_wait(&direct_fence), 0);
    upload_fence_finish(&direct_fence);
    pinned_memory_finish(device, &direct_memory);
}

enum lost_operation { LOST_ZEROS, LOST_BYTES, LOST_DIRECT };

/* Something is lost; who was TOLD has not said so yet when others ASK. */
static void be_told_late(int64_t (*told)(struct task *task), enum lost_operation operation,
                         int64_t (*ask)(struct task *task))
{
    struct device *device = open_watched("order=random", NULL);
    struct buffer *lost = filled(device, 1, 1, PAGE), *other = filled(device, 2, 2, PAGE);
    uint64_t cursor = buffer_error_sample(lost);
    struct task tasks[2];

    fixture_configure(operation == LOST_ZEROS ? "fault=cuMemsetD8Async:1:1:late"
                                              : "fault=cuMemcpyHtoDAsync:1:1:late");
    if (ask == copy_refused)
        fixture_configure("fault=cuMemcpyDtoDAsync:1:1");
    atomic_store(&told_gate.closed, true);
    if (operation == LOST_ZEROS) {
        assert_int_equal(buffer_truncate(lost, 0), 0);
        assert_int_equal(buffer_allocate(lost, 0, PAGE, false), 0);
    } else if (operation == LOST_BYTES) {
        assert_int_equal(write_page(lost, 3), 0);
    } else {
        direct_start(lost);
    }
    task_start(&tasks[0], device, lost, NULL, told);
    gate_expect(&told_gate, 1);
    atomic_store(&query_waits, true);
    task_start(&tasks[1], device, other, NULL, ask);
    bool early = task_is_done_within(&tasks[1], PATIENCE_MS);
    bool dirty = buffer_is_dirty(lost);
    atomic_store(&told_gate.closed, false);
    task_finish(&tasks[0]);
    task_finish(&tasks[1]);
    assert_true(dirty);
    assert_true(!early || ask == tick || ask == copy_refused);
    assert_int_equal(buffer_error_check(lost, &cursor), -EIO);
    assert_int_equal(buffer_error_check(lost, &cursor), 0);
    assert_false(buffer_is_dirty(lost));
    if (operation == LOST_ZEROS)
        expect_all(lost, 0, 0, PAGE);
    if (operation == LOST_DIRECT)
        direct_finish(device);
    fixture_configure("fault=none");
    buffer_destroy(lost);
    buffer_destroy(other);
    check_watched();
    fixture_close(device);
}

static void nothing_is_proven_while_somebody_may_know_of_a_failure(void **unused)
{
    (void)unused;
    int64_t (*const ask[])(struct task * task) = {tick, write_and_flush, write_and_read,
                                                  copy_refused};

    for (size_t i = 0; i < ARRAY_SIZE(ask); i++) {
        be_told_late(flush, LOST_ZEROS, ask[i]);
        be_told_late(flush, LOST_BYTES, ask[i]);
        be_told_late(direct_wait, LOST_DIRECT, ask[i]);
        be_told_late(direct_query, LOST_DIRECT, ask[i]);
    }
}

/* Ticks, and finds that all has ended. */
static void expect_ended(struct device *device, struct buffer *buffer)
{
    struct task task;

    atomic_store(&query_waits, true);
    task_start(&task, device, buffer, NULL, tick);
    assert_int_equal(task_finish(&task), 0);
    atomic_store(&query_waits, false);
}

/* What ended is proven once those are back who waited then: not later, and no sooner. */
static void what_has_ended_is_proven_when_those_who_waited_are_back(void **unused)
{
    (void)unused;
    struct device *device = open_watched("order=random", NULL);
    struct buffer *buffers[] = {filled(device, 1, 1, PAGE), filled(device, 2, 2, PAGE)};
    unsigned int entered = atomic_load(&fence_gate.entered);
    struct task waits, flushes;

    direct_hold(&waits, buffers[0]);
    expect_ended(device, buffers[0]);
    bool dirty = buffer_is_dirty(buffers[0]);
    task_start(&flushes, device, buffers[1], NULL, write_and_flush);
    gate_expect(&fence_gate, entered + 2);
    expect_ended(device, buffers[1]);
    atomic_store(&fence_gate.allowed, entered + 1);
    assert_int_equal(task_finish(&waits), 0);
    bool clean = !buffer_is_dirty(buffers[0]), other_dirty = buffer_is_dirty(buffers[1]);
    atomic_store(&fence_gate.closed, false);
    assert_int_equal(task_finish(&flushes), 0);
    assert_true(dirty);
    assert_true(clean);
    assert_true(other_dirty);
    for (size_t i = 0; i < 2; i++) {
        assert_false(buffer_is_dirty(buffers[i]));
        buffer_destroy(buffers[i]);
    }
    direct_finish(device);
    check_watched();
    fixture_close(device);
}

/* All who come while somebody waits for the stream are served by the next one who does. */
static void one_thread_asks_for_all_who_came_meanwhile(void **unused)
{
    (void)unused;
    struct device *device = open_watched("order=random", NULL);
    struct buffer *buffers[6];
    struct task flushes[6];

    for (unsigned int i = 0; i < ARRAY_SIZE(buffers); i++)
        buffers[i] = filled(device, i + 1, 1, PAGE);
    unsigned int entered = atomic_load(&fence_gate.entered);
    atomic_store(&fence_gate.closed, true);
    for (size_t i = 0; i < ARRAY_SIZE(buffers); i++) {
        task_start(&flushes[i], device, buffers[i], NULL, write_and_flush);
        gate_expect(&fence_gate, entered + 1);
    }
    bool early = task_is_done_within(&flushes[5], PATIENCE_MS);
    atomic_store(&fence_gate.closed, false);
    for (size_t i = 0; i < ARRAY_SIZE(buffers); i++)
        assert_int_equal(task_finish(&flushes[i]), 0);
    assert_false(early);
    assert_int_equal(atomic_load(&fence_gate.entered), entered + 2);
    for (size_t i = 0; i < ARRAY_SIZE(buffers); i++) {
        assert_false(buffer_is_dirty(buffers[i]));
        expect_all(buffers[i], 0, 4, PAGE);
        buffer_destroy(buffers[i]);
    }
    check_watched();
    fixture_close(device);
}

/* So many pages that a batch is submitted. */
static int64_t write_until_submitted(struct task *task)
{
    static const unsigned char bytes[PAGE] = {1};

    for (uint64_t offset = 0; offset < 2 * SUBMIT_BYTES; offset += 2 * PAGE)
        if (buffer_write(task->buffer, offset, bytes, PAGE, NULL) != PAGE)
            return -1;
    return 0;
}

/* A batch that is only on its way to the stream is not in it yet. */
static void the_next_one_asks_when_nothing_is_in_flight(void **unused)
{
    (void)unused;
    struct device *device = open_watched("order=random", NULL);
    struct buffer *buffers[] = {filled(device, 1, 1, PAGE), filled(device, 2, 2, PAGE),
                                filled(device, 3, 3, 2 * SUBMIT_BYTES)};
    unsigned int fences = atomic_load(&fence_gate.entered);
    unsigned int batches = atomic_load(&batch_gate.entered);
    struct task flushes[2], submits;

    atomic_store(&fence_gate.closed, true);
    for (size_t i = 0; i < 2; i++) {
        task_start(&flushes[i], device, buffers[i], NULL, write_and_flush);
        gate_expect(&fence_gate, fences + 1);
    }
    task_is_done_within(&flushes[1], PATIENCE_MS);
    atomic_store(&batch_gate.closed, true);
    task_start(&submits, device, buffers[2], NULL, write_until_submitted);
    gate_expect(&batch_gate, batches + 1);
    atomic_store(&fence_gate.closed, false);
    assert_int_equal(task_finish(&flushes[0]), 0);
    bool early = task_is_done_within(&flushes[1], PATIENCE_MS);
    atomic_store(&batch_gate.closed, false);
    assert_int_equal(task_finish(&flushes[1]), 0);
    assert_int_equal(task_finish(&submits), 0);
    assert_false(early);
    check_watched();
    for (size_t i = 0; i < ARRAY_SIZE(buffers); i++)
        buffer_destroy(buffers[i]);
    fixture_close(device);
}

/* Who has asked, and waits for another one to come back, is in nobody's way. */
static void the_next_one_asks_while_the_last_one_waits_for_others(void **unused)
{
    (void)unused;
    struct device *device = open_watched("order=random", NULL);
    struct buffer *buffers[] = {filled(device, 1, 1, PAGE), filled(device, 2, 2, PAGE),
                                filled(device, 3, 3, PAGE)};
    unsigned int entered = atomic_load(&fence_gate.entered);
    struct task tasks[3];

    direct_hold(&tasks[0], buffers[0]);
    task_start(&tasks[1], device, buffers[1], NULL, write_and_flush);
    gate_expect(&fence_gate, entered + 2);
    task_start(&tasks[2], device, buffers[2], NULL, write_and_flush);
    task_is_done_within(&tasks[2], PATIENCE_MS);
    atomic_store(&fence_gate.allowed, entered + 2);
    gate_expect(&fence_gate, entered + 3);
    bool early = task_is_done_within(&tasks[1], PATIENCE_MS);
    atomic_store(&fence_gate.closed, false);
    for (size_t i = 0; i < ARRAY_SIZE(tasks); i++)
        assert_int_equal(task_finish(&tasks[i]), 0);
    assert_false(early);
    for (size_t i = 0; i < ARRAY_SIZE(buffers); i++) {
        assert_false(buffer_is_dirty(buffers[i]));
        buffer_destroy(buffers[i]);
    }
    direct_finish(device);
    check_watched();
    fixture_close(device);
}

/* A fence that was found done is asked about again when another copy is made with it. */
static void a_fence_that_is_used_again_is_waited_for(void **unused)
{
    (void)unused;
    struct device *device = open_watched("order=random", NULL);
    struct buffer *buffer = filled(device, 1, 1, PAGE);
    struct upload_place place = {99, buffer->extents.items[0].address, 0};
    unsigned int entered = atomic_load(&fence_gate.entered);

    direct_start(buffer);
    for (unsigned int i = 0; i < LIMIT_MS && !upload_fence_is_done(&direct_fence); i++)
        sleep_ms(1);
    for (unsigned int i = 0; i < 2; i++) {
        assert_int_equal(upload_fence_is_done(&direct_fence), true);
        assert_int_equal(atomic_load(&fence_gate.entered), entered);
    }
    assert_int_equal(upload_queue_direct(buffer->target.queue, &buffer->target, place,
                                         direct_memory.bytes, PAGE, &direct_fence),
                     0);
    assert_int_equal(upload_fence_wait(&direct_fence), 0);
    assert_int_equal(atomic_load(&fence_gate.entered), entered + 1);
    direct_finish(device);
    expect_all(buffer, 0, 3, PAGE);
    buffer_destroy(buffer);
    check_watched();
    fixture_close(device);
}

/* The driver has no events: a writer without room goes on, though nothing can be proven now. */
static int64_t write_more_than_the_staging(struct task *task)
{
    static const unsigned char bytes[256 * KIB] = {1};

    return buffer_write(task->buffer, 0, bytes, sizeof(bytes), NULL);
}

static void a_writer_without_events_does_not_wait_for_who_waits(void **unused)
{
    (void)unused;
    struct device_options options = {.budget = {.kind = BUDGET_AUTO},
                                     .staging_bytes = 128 * KIB,
                                     .upload_streams = 1,
                                     .flush_interval_ms = 3600 * 1000,
                                     .direct_threshold_bytes = 1 * MIB};
    struct device *device = open_watched("order=sync", &options);
    struct buffer *buffers[] = {filled(device, 1, 1, PAGE), filled(device, 2, 2, 512 * KIB)};
    struct task waits, writes;

    direct_hold(&waits, buffers[0]);
    fixture_configure("fault=cuEventRecord:2+:1");
    task_start(&writes, device, buffers[1], NULL, write_more_than_the_staging);
    bool early = task_is_done_within(&writes, LIMIT_MS / 2);
    atomic_store(&fence_gate.closed, false);
    assert_int_equal(task_finish(&waits), 0);
    assert_int_equal(task_finish(&writes), 256 * KIB);
    assert_true(early);
    fixture_configure("fault=none");
    for (size_t i = 0; i < 2; i++)
        buffer_destroy(buffers[i]);
    direct_finish(device);
    check_watched();
    fixture_close(device);
}

static int64_t write_and_flush_all(struct task *task)
{
    int64_t result = write_page(task->buffer, 4);

    return result < 0 ? result : device_flush(task->device);
}

/* A failure is one for all on whose behalf the driver was asked. */
static void a_flush_that_another_thread_made_fails_with_it(void **unused)
{
    (void)unused;
    struct device *device = open_watched("order=random", NULL);
    struct buffer *buffers[] = {filled(device, 1, 1, PAGE), filled(device, 2, 2, PAGE)};
    unsigned int entered = atomic_load(&fence_gate.entered);
    struct task flushes[2];

    fixture_configure("fault=cuMemcpyHtoDAsync:1:1:late");
    atomic_store(&fence_gate.closed, true);
    for (size_t i = 0; i < 2; i++) {
        task_start(&flushes[i], device, buffers[i], NULL, write_and_flush_all);
        gate_expect(&fence_gate, entered + 1);
    }
    task_is_done_within(&flushes[1], PATIENCE_MS);
    atomic_store(&fence_gate.closed, false);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(task_finish(&flushes[i]), -EIO);
    fixture_configure("fault=none");
    for (size_t i = 0; i < 2; i++)
        buffer_destroy(buffers[i]);
    check_watched();
    fixture_close(device);
}

/* Who waits for another one to come back is told, too, when that one's failure ends in quarantine.
 */
static void who_waits_for_proof_is_told_of_a_quarantine(void **unused)
{
    (void)unused;
    struct device *device = open_watched("order=random", NULL);
    struct buffer *buffers[] = {filled(device, 1, 1, PAGE), filled(device, 2, 2, PAGE)};
    uint64_t cursors[] = {buffer_error_sample(buffers[0]), buffer_error_sample(buffers[1])};
    unsigned int entered = atomic_load(&fence_gate.entered);
    struct task waits, flushes;

    direct_hold(&waits, buffers[0]);
    task_start(&flushes, device, buffers[1], NULL, write_and_flush);
    gate_expect(&fence_gate, entered + 2);
    atomic_store(&fence_gate.allowed, entered + 2);
    bool early = task_is_done_within(&flushes, PATIENCE_MS);
    fixture_configure("fault=cuEventSynchronize:1:1:unproven");
    struct upload_mark lost = direct_fence.mark;
    atomic_store(&fence_gate.closed, false);
    int64_t waited = task_finish(&waits);
    task_finish(&flushes);
    fixture_configure("fault=none");
    assert_false(early);
    assert_int_equal(waited, -EIO);
    pinned_memory_quarantine(device, &direct_memory);
    upload_fence_finish(&direct_fence);
    /* What was proven before stays so. */
    struct upload_queue *queue = buffers[0]->target.queue;
    struct upload_mark proven = lost;
    proven.sequence--;
    pthread_mutex_lock(&queue->mutex);
    bool is_lost = !upload_is_proven(queue, &lost), is_proven = upload_is_proven(queue, &proven);
    pthread_mutex_unlock(&queue->mutex);
    assert_true(is_lost);
    assert_true(is_proven);
    for (size_t i = 0; i < 2; i++) {
        struct buffer_report report;
        buffer_get_report(buffers[i], &report);
        assert_int_equal(report.state, BUFFER_FAILED);
        assert_int_equal(buffer_error_check(buffers[i], &cursors[i]), -EIO);
        assert_int_equal(buffer_truncate(buffers[i], 0), 0);
        assert_int_equal(write_page(buffers[i], 5), 0);
        expect_all(buffers[i], 0, 5, PAGE);
        buffer_destroy(buffers[i]);
    }
    check_watched();
    device_close(device);
}

/* Who still waits for a stream that is quarantined holds up nothing on the new one. */
static void a_new_stream_does_not_wait_for_those_of_the_old_one(void **unused)
{
    (void)unused;
    struct device *device = open_watched("order=random", NULL);
    struct buffer *buffers[] = {filled(device, 1, 1, PAGE), filled(device, 2, 2, PAGE)};
    unsigned int entered = atomic_load(&fence_gate.entered);
    struct task waits, fails, flushes;

    direct_hold(&waits, buffers[0]);
    fixture_configure("fault=cuEventSynchronize:1:1:unproven");
    task_start(&fails, device, buffers[1], NULL, write_and_flush);
    gate_expect(&fence_gate, entered + 2);
    atomic_store(&fence_gate.allowed, entered + 2);
    task_finish(&fails);
    fixture_configure("fault=none");
    assert_int_equal(buffer_truncate(buffers[1], 0), 0);
    task_start(&flushes, device, buffers[1], NULL, write_and_flush);
    gate_expect(&fence_gate, entered + 3);
    atomic_store(&fence_gate.allowed, entered + 3);
    bool early = task_is_done_within(&flushes, LIMIT_MS / 2);
    bool clean = !buffer_is_dirty(buffers[1]);
    atomic_store(&fence_gate.closed, false);
    task_finish(&flushes);
    assert_int_equal(task_finish(&waits), -EIO);
    pinned_memory_quarantine(device, &direct_memory);
    upload_fence_finish(&direct_fence);
    assert_true(early);
    assert_true(clean);
    expect_all(buffers[1], 0, 4, PAGE);
    for (size_t i = 0; i < 2; i++)
        buffer_destroy(buffers[i]);
    check_watched();
    device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_proven_while_somebody_may_know_of_a_failure),
        cmocka_unit_test(what_has_ended_is_proven_when_those_who_waited_are_back),
        cmocka_unit_test(one_thread_asks_for_all_who_came_meanwhile),
        cmocka_unit_test(the_next_one_asks_when_nothing_is_in_flight),
        cmocka_unit_test(the_next_one_asks_while_the_last_one_waits_for_others),
        cmocka_unit_test(a_fence_that_is_used_again_is_waited_for),
        cmocka_unit_test(a_writer_without_events_does_not_wait_for_who_waits),
        cmocka_unit_test(a_flush_that_another_thread_made_fails_with_it),
        /* These leave something in quarantine. */
        cmocka_unit_test(who_waits_for_proof_is_told_of_a_quarantine),
        cmocka_unit_test(a_new_stream_does_not_wait_for_those_of_the_old_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
