/*
 * Writers that gather while a batch is held up on its way to the driver, and those who have to wait
 * for it. Timeout: 120 s.
 */
#include "upload_gates.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>

/* Every other page from OFFSET on. */
static int64_t write_pages(struct buffer *buffer, uint64_t offset, int byte, unsigned int pages)
{
    unsigned char bytes[PAGE];

    memset(bytes, byte, sizeof(bytes));
    for (unsigned int i = 0; i < pages; i++) {
        ssize_t done = buffer_write(buffer, offset + (uint64_t)i * 2 * PAGE, bytes, PAGE, NULL);
        if (done != PAGE)
            return done;
    }
    return 0;
}

static void expect_pages(struct buffer *buffer, uint64_t offset, int byte, unsigned int pages)
{
    for (unsigned int i = 0; i < pages; i++)
        expect_all(buffer, offset + (uint64_t)i * 2 * PAGE, byte, PAGE);
}

/* So many that the last one submits. */
static int64_t write_until_submitted(struct task *task)
{
    return write_pages(task->buffer, 0, 7, SUBMIT_BYTES / PAGE);
}

/* A batch that is held up in the driver. It has the first page of SMALL. */
struct flight {
    struct device *device;
    struct buffer *large, *small, *third;
    struct task submitter;
};

static void flight_start_with(struct flight *flight, const char *settings)
{
    struct device *device = flight->device = open_watched(settings, NULL);

    flight->large = filled(device, 1, 1, 4 * MIB);
    flight->small = filled(device, 2, 2, 64 * KIB);
    flight->third = filled(device, 3, 3, 64 * KIB);
}

static void flight_take_off(struct flight *flight)
{
    unsigned int entered = atomic_load(&batch_gate.entered);

    assert_int_equal(write_pages(flight->small, 0, 22, 1), 0);
    atomic_store(&batch_gate.closed, true);
    task_start(&flight->submitter, flight->device, flight->large, NULL, write_until_submitted);
    gate_expect(&batch_gate, entered + 1);
}

static void flight_land(struct flight *flight)
{
    atomic_store(&batch_gate.closed, false);
    assert_int_equal(task_finish(&flight->submitter), 0);
}

static void flight_finish(struct flight *flight)
{
    fixture_configure("fault=none");
    assert_int_equal(device_flush(flight->device), 0);
    expect_pages(flight->large, 0, 7, SUBMIT_BYTES / PAGE);
    buffer_destroy(flight->large);
    buffer_destroy(flight->small);
    buffer_destroy(flight->third);
    check_watched();
    fixture_close(flight->device);
}

/* -- who goes on ------------------------------------------------------------------------------- */

/* Pages that are in flight, too, and a long one. */
static int64_t gather_much(struct task *task)
{
    unsigned char *bytes = malloc(64 * KIB);
    int64_t result = write_pages(task->buffer, PAGE, 8, 50);

    if (result == 0)
        result = write_pages(task->buffer, 0, 9, 10);
    memset(bytes, 10, 64 * KIB);
    if (result == 0 && buffer_write(task->buffer, 2 * MIB, bytes, 64 * KIB, NULL) != 64 * KIB)
        result = -1;
    memset(bytes, 0xee, 64 * KIB);
    free(bytes);
    return result == 0 ? write_pages(task->other, PAGE, 11, 3) : result;
}

/* Into the rest of a block, and where that is too little, into the next one. */
static void gathering_goes_on_during_a_submission(void **unused)
{
    (void)unused;
    static const char *const settings[] = {"order=random", "order=sync", "order=eager"};
    static const unsigned int before[] = {0, 64, 128}; /* pages in the block */

    for (size_t i = 0; i < ARRAY_SIZE(before) * ARRAY_SIZE(settings); i++) {
        struct flight flight;
        struct task task;
        unsigned int pages = before[i % ARRAY_SIZE(before)];
        flight_start_with(&flight, settings[i / ARRAY_SIZE(before)]);
        assert_int_equal(write_pages(flight.large, 1 * MIB, 6, pages), 0);
        assert_int_equal(buffer_flush(flight.large), 0);
        flight_take_off(&flight);
        unsigned int entered = atomic_load(&batch_gate.entered);
        task_start(&task, flight.device, flight.large, flight.small, gather_much);
        bool done = task_is_done_within(&task, LIMIT_MS / 2);
        bool alone = atomic_load(&batch_gate.entered) == entered;
        flight_land(&flight);
        assert_int_equal(task_finish(&task), 0);
        if (!done || !alone)
            fail_msg("%s, %s", done ? "writers go on" : "writers wait for the driver",
                     alone ? "one submission" : "two submissions at a time");
        expect_pages(flight.large, PAGE, 8, 50);
        expect_pages(flight.large, 0, 9, 10);
        expect_pages(flight.large, 10 * 2 * PAGE, 7, SUBMIT_BYTES / PAGE - 10);
        expect_all(flight.large, 2 * MIB, 10, 64 * KIB);
        expect_pages(flight.large, 1 * MIB, 6, pages);
        expect_pages(flight.small, PAGE, 11, 3);
        expect_all(flight.small, 0, 22, PAGE);
        assert_int_equal(write_pages(flight.large, 0, 7, 10), 0);
        flight_finish(&flight);
    }
}

/* -- who waits --------------------------------------------------------------------------------- */

static int64_t write_directly(struct task *task)
{
    struct pinned_memory memory;
    struct upload_fence fence;
    struct upload_place place = {1, task->buffer->extents.items[0].address, 0};

    if (pinned_memory_init(task->device, &memory, PAGE) < 0 ||
        upload_fence_init(task->device, &fence) < 0)
        return -ENOMEM;
    memset(memory.bytes, 30, PAGE);
    errint_t err = upload_queue_direct(task->buffer->target.queue, &task->buffer->target, place,
                                       memory.bytes, PAGE, &fence);
    upload_fence_wait(&fence);
    upload_fence_finish(&fence);
    pinned_memory_finish(task->device, &memory);
    return err;
}

static int64_t zero(struct task *task)
{
    return upload_queue_zero(task->buffer->target.queue, &task->buffer->target,
                             task->buffer->extents.items[0].address, PAGE);
}

static int64_t copy_over(struct task *task)
{
    return upload_queue_copy(task->buffer->target.queue, &task->buffer->target,
                             task->buffer->extents.items[0].address,
                             task->other->extents.items[0].address, PAGE);
}

static int64_t flush_all(struct task *task)
{
    return device_flush(task->device);
}

static int64_t empty(struct task *task)
{
    return buffer_truncate(task->buffer, 0);
}

static int64_t write_more_and_flush(struct task *task)
{
    int64_t result = write_pages(task->buffer, PAGE, 40, 2);

    return result < 0 ? result : buffer_flush(task->buffer);
}

/* Everything in the stream, or about it, comes behind what is in flight. */
static void what_uses_the_stream_comes_behind_what_is_in_flight(void **unused)
{
    (void)unused;
    static const struct {
        const char *name;
        int64_t (*run)(struct task *task);
        int64_t result;
        int byte; /* that the first page has then; -1: none */
    } cases[] = {
        {"direct", write_directly, 0, 30},
        {"zero", zero, 0, 0},
        {"copy", copy_over, 0, 3},
        {"read", read_page, 22, 22},
        {"flush", flush, 0, 22},
        {"flush all", flush_all, 0, 22},
        {"truncate", empty, 0, -1},
        {"tick", tick, 0, 22},
        {"write and flush", write_more_and_flush, 0, 22},
    };
    static const char *const settings[] = {"order=random", "order=sync"};

    for (size_t i = 0; i < ARRAY_SIZE(cases) * ARRAY_SIZE(settings); i++) {
        size_t n = i % ARRAY_SIZE(cases);
        struct flight flight;
        struct task task;
        flight_start_with(&flight, settings[i / ARRAY_SIZE(cases)]);
        flight_take_off(&flight);
        task_start(&task, flight.device, flight.small, flight.third, cases[n].run);
        bool early = task_is_done_within(&task, PATIENCE_MS);
        bool dirty = buffer_is_dirty(flight.small);
        unsigned int entered = atomic_load(&batch_gate.entered);
        flight_land(&flight);
        int64_t result = task_finish(&task);
        if (early || !dirty || entered != 1)
            fail_msg("%s: %s", cases[n].name,
                     early    ? "did not wait"
                     : !dirty ? "took for proven what was not submitted"
                              : "went to the driver at the same time");
        if (result != cases[n].result)
            fail_msg("%s: %lld", cases[n].name, (long long)result);
        if (cases[n].byte >= 0)
            expect_all(flight.small, 0, cases[n].byte, PAGE);
        flight_finish(&flight);
    }
}

/* More intervals than a batch holds. */
static int64_t write_many_bytes(struct task *task)
{
    for (unsigned int i = 0; i < UPLOAD_BATCH_INTERVALS + 10; i++)
        if (buffer_write(task->buffer, 2 * MIB + i * 8, "few", 3, NULL) != 3)
            return -1;
    return 0;
}

static void a_batch_without_room_for_intervals_waits_for_the_first(void **unused)
{
    (void)unused;
    struct flight flight;
    struct task task;

    flight_start_with(&flight, "order=random");
    flight_take_off(&flight);
    unsigned int entered = atomic_load(&batch_gate.entered);
    task_start(&task, flight.device, flight.large, NULL, write_many_bytes);
    bool early = task_is_done_within(&task, PATIENCE_MS);
    bool alone = atomic_load(&batch_gate.entered) == entered;
    flight_land(&flight);
    assert_int_equal(task_finish(&task), 0);
    assert_false(early);
    assert_true(alone);
    for (unsigned int i = 0; i < UPLOAD_BATCH_INTERVALS + 10; i++) {
        expect_all(flight.large, 2 * MIB + i * 8, 'f', 1);
        expect_all(flight.large, 2 * MIB + i * 8 + 3, 1, 5);
    }
    flight_finish(&flight);
}

/* Two batches are full: the second is left to who comes next, and nobody waits for the first. */
static void a_second_full_batch_waits_for_the_first(void **unused)
{
    (void)unused;
    struct flight flight;
    struct task tasks[2];

    flight_start_with(&flight, "order=random");
    flight_take_off(&flight);
    for (size_t i = 0; i < 2; i++)
        task_start(&tasks[i], flight.device, flight.large, NULL, write_until_submitted);
    task_is_done_within(&tasks[0], PATIENCE_MS);
    assert_int_equal(atomic_load(&batch_gate.entered), 1);
    flight_land(&flight);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(task_finish(&tasks[i]), 0);
    flight_finish(&flight);
}

static int64_t write_one_page(struct task *task)
{
    return write_pages(task->buffer, 0, 50, 1);
}

/* flush_interval=0: nothing is left to who comes next. */
static void without_an_interval_every_write_is_submitted_when_it_returns(void **unused)
{
    (void)unused;
    struct device_options options = {
        .budget = {.kind = BUDGET_AUTO}, .staging_bytes = 1 * MIB, .upload_streams = 1};
    struct device *device = open_watched("order=random", &options);
    struct buffer *buffers[] = {filled(device, 1, 1, PAGE), filled(device, 2, 2, PAGE)};
    struct task tasks[2];
    unsigned int entered = atomic_load(&copy_gate.entered);

    atomic_store(&copy_gate.closed, true);
    task_start(&tasks[0], device, buffers[0], NULL, write_one_page);
    gate_expect(&copy_gate, entered + 1);
    task_start(&tasks[1], device, buffers[1], NULL, write_one_page);
    bool early = task_is_done_within(&tasks[1], PATIENCE_MS);
    atomic_store(&copy_gate.closed, false);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(task_finish(&tasks[i]), 0);
    assert_false(early);
    assert_int_equal(atomic_load(&copy_gate.entered), entered + 2);
    for (size_t i = 0; i < 2; i++) {
        expect_all(buffers[i], 0, 50, PAGE);
        buffer_destroy(buffers[i]);
    }
    check_watched();
    fixture_close(device);
}

/* -- bytes that are still being copied --------------------------------------------------------- */

/* The last page of the source faults, and stays away until it is let go. */
static unsigned char *slow_page;
static _Atomic bool slow_reached, slow_go;

static void on_fault(int number)
{
    (void)number;
    atomic_store(&slow_reached, true);
    for (unsigned int i = 0; i < LIMIT_MS && !atomic_load(&slow_go); i++)
        sleep_ms(1);
    mprotect(slow_page, PAGE, PROT_READ | PROT_WRITE);
}

static int64_t write_slowly(struct task *task)
{
    return buffer_write(task->buffer, 0, slow_page - (32 * KIB - PAGE), 32 * KIB, NULL);
}

static int64_t write_small_ones(struct task *task)
{
    int64_t result = write_pages(task->other, 0, 7, SUBMIT_BYTES / PAGE);

    return result < 0 ? result : buffer_flush(task->other);
}

static void a_batch_waits_for_bytes_that_are_still_being_copied(void **unused)
{
    (void)unused;
    struct device *device = open_watched("order=eager", NULL);
    struct buffer *buffer = filled(device, 1, 1, 4 * MIB), *other = filled(device, 2, 2, 4 * MIB);
    struct sigaction action = {.sa_handler = on_fault}, before;
    struct task slow, small;
    unsigned char *source =
        mmap(NULL, 32 * KIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(source != MAP_FAILED);
    memset(source, 5, 32 * KIB);
    slow_page = source + 32 * KIB - PAGE;
    atomic_store(&slow_reached, false);
    atomic_store(&slow_go, false);
    assert_int_equal(sigaction(SIGSEGV, &action, &before), 0);
    assert_int_equal(mprotect(slow_page, PAGE, PROT_NONE), 0);
    task_start(&slow, device, buffer, NULL, write_slowly);
    for (unsigned int i = 0; i < LIMIT_MS && !atomic_load(&slow_reached); i++)
        sleep_ms(1);
    assert_true(atomic_load(&slow_reached));
    task_start(&small, device, buffer, other, write_small_ones);
    /* They gather, but the batch, in which the slow one is, does not leave. */
    bool early = task_is_done_within(&small, PATIENCE_MS);
    unsigned int entered = atomic_load(&batch_gate.entered);
    atomic_store(&slow_go, true);
    assert_int_equal(task_finish(&slow), 32 * KIB);
    assert_int_equal(task_finish(&small), 0);
    sigaction(SIGSEGV, &before, NULL);
    assert_false(early);
    assert_int_equal(entered, 0);
    expect_all(buffer, 0, 5, 32 * KIB);
    expect_pages(other, 0, 7, SUBMIT_BYTES / PAGE);
    munmap(source, 32 * KIB);
    buffer_destroy(buffer);
    buffer_destroy(other);
    check_watched();
    fixture_close(device);
}

/* -- failures ---------------------------------------------------------------------------------- */

/*
 * The driver tells a failure once, and who was told has to wait for what is in flight. Nobody may
 * take the stream for proven meanwhile: neither the second fence, which relies on the first, nor
 * the tick that waits as well, nor (BY_TICK) the one that submitted it, nor (REFUSED) who handles a
 * failure of the batch.
 */
static void fail_a_fence_behind_a_flight(const char *settings, bool by_tick, bool refused)
{
    struct flight flight;
    struct task fences[2], ticks;
    struct pinned_memory memory;
    struct upload_fence direct;

    flight_start_with(&flight, settings);
    uint64_t cursor = buffer_error_sample(flight.third);
    struct upload_place place = {99, flight.third->extents.items[0].address, 0};
    fixture_configure("fault=cuMemcpyHtoDAsync:1:1:late");
    if (refused)
        fixture_configure("fault=cuMemcpyBatchAsync:1:1");
    /* Lost; there are two fences behind it. */
    assert_int_equal(pinned_memory_init(flight.device, &memory, PAGE), 0);
    assert_int_equal(upload_fence_init(flight.device, &direct), 0);
    assert_int_equal(upload_queue_direct(flight.third->target.queue, &flight.third->target, place,
                                         memory.bytes, PAGE, &direct),
                     0);
    assert_int_equal(write_pages(flight.small, 0, 22, 1), 0);
    atomic_store(&fence_gate.closed, true);
    unsigned int entered = atomic_load(&fence_gate.entered);
    for (unsigned int i = 0; i < 2; i++) {
        task_start(&fences[i], flight.device, i ? flight.small : flight.third, NULL, flush);
        gate_expect(&fence_gate, entered + 1);
    }
    task_is_done_within(&fences[1], 20);
    if (by_tick) {
        assert_int_equal(write_pages(flight.small, 0, 22, 2), 0);
        atomic_store(&batch_gate.closed, true);
        entered = atomic_load(&batch_gate.entered);
    } else {
        flight_take_off(&flight);
    }
    atomic_store(&query_waits, true);
    task_start(&ticks, flight.device, flight.small, NULL, tick);
    if (by_tick)
        gate_expect(&batch_gate, entered + 1);
    else
        task_is_done_within(&ticks, 20);
    atomic_store(&fence_gate.closed, false);
    bool early = task_is_done_within(&fences[0], PATIENCE_MS) || atomic_load(&fences[1].done);
    bool third_dirty = buffer_is_dirty(flight.third), small_dirty = buffer_is_dirty(flight.small);
    if (by_tick)
        atomic_store(&batch_gate.closed, false);
    else
        flight_land(&flight);
    for (unsigned int i = 0; i < 2; i++)
        task_finish(&fences[i]);
    task_finish(&ticks);
    assert_false(early);
    assert_true(third_dirty);
    assert_true(small_dirty);
    assert_int_equal(buffer_error_check(flight.third, &cursor), -EIO);
    upload_fence_wait(&direct);
    upload_fence_finish(&direct);
    pinned_memory_finish(flight.device, &memory);
    /* What was in flight may have been lost with it; written again, it is there. */
    fixture_configure("fault=none");
    assert_int_equal(write_pages(flight.large, 0, 7, SUBMIT_BYTES / PAGE), 0);
    flight_finish(&flight);
}

static void a_failed_fence_is_handled_behind_what_is_in_flight(void **unused)
{
    (void)unused;
    for (unsigned int i = 0; i < 18; i++)
        fail_a_fence_behind_a_flight(i % 2 ? "order=sync" : "order=random", i % 3 == 1, i % 3 == 2);
}

/* A batch fails, or its event, while others gather: both are told, or find their bytes. */
static void fail_in_flight(const char *fault, bool quarantined)
{
    struct flight flight;
    struct task more;

    flight_start_with(&flight, "order=random");
    uint64_t cursors[] = {buffer_error_sample(flight.large), buffer_error_sample(flight.small),
                          buffer_error_sample(flight.third)};
    fixture_configure(fault);
    flight_take_off(&flight);
    task_start(&more, flight.device, flight.third, NULL, write_more_and_flush);
    task_is_done_within(&more, 10);
    atomic_store(&batch_gate.closed, false);
    task_finish(&more);
    /* Its last writes may come after the failure. */
    int64_t submitted = task_finish(&flight.submitter);
    assert_true(submitted == 0 || (quarantined && submitted == -EIO));
    buffer_flush(flight.large);
    buffer_flush(flight.small);
    errint_t small = buffer_error_check(flight.small, &cursors[1]);
    errint_t third = buffer_error_check(flight.third, &cursors[2]);
    assert_int_equal(buffer_error_check(flight.large, &cursors[0]), -EIO);
    assert_int_equal(small, -EIO);
    struct buffer_report report;
    buffer_get_report(flight.small, &report);
    assert_int_equal(report.state, quarantined ? BUFFER_FAILED : BUFFER_OK);
    if (third == 0)
        expect_pages(flight.third, PAGE, 40, 2);
    fixture_configure("fault=none");
    if (quarantined) {
        assert_int_equal(buffer_truncate(flight.large, 0), 0);
        assert_int_equal(buffer_truncate(flight.small, 0), 0);
        assert_int_equal(buffer_write(flight.small, 0, "again", 5, NULL), 5);
        expect_all(flight.small, 0, 'a', 1);
        buffer_destroy(flight.large);
        buffer_destroy(flight.small);
        buffer_destroy(flight.third);
        check_watched();
        device_close(flight.device);
        return;
    }
    expect_all(flight.small, 0, 2, PAGE);
    assert_int_equal(write_pages(flight.large, 0, 7, SUBMIT_BYTES / PAGE), 0);
    flight_finish(&flight);
}

static void a_batch_that_fails_in_flight_is_told_to_those_in_it(void **unused)
{
    (void)unused;
    fail_in_flight("fault=cuMemcpyBatchAsync:1:1", false);
    fail_in_flight("fault=cuMemcpyBatchAsync:1:1:late", false);
}

static void a_batch_that_stays_unproven_in_flight_is_told_to_those_in_it(void **unused)
{
    (void)unused;
    fail_in_flight("fault=cuMemcpyBatchAsync:1:1:unproven", true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gathering_goes_on_during_a_submission),
        cmocka_unit_test(what_uses_the_stream_comes_behind_what_is_in_flight),
        cmocka_unit_test(a_batch_without_room_for_intervals_waits_for_the_first),
        cmocka_unit_test(a_second_full_batch_waits_for_the_first),
        cmocka_unit_test(without_an_interval_every_write_is_submitted_when_it_returns),
        cmocka_unit_test(a_batch_waits_for_bytes_that_are_still_being_copied),
        cmocka_unit_test(a_failed_fence_is_handled_behind_what_is_in_flight),
        cmocka_unit_test(a_batch_that_fails_in_flight_is_told_to_those_in_it),
        /* Leaves something in quarantine. */
        cmocka_unit_test(a_batch_that_stays_unproven_in_flight_is_told_to_those_in_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
