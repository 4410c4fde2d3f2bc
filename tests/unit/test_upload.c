/*
 * Uploads and streams when the driver fails: what is proven complete goes on, what is not is
 * quarantined and never touched again. Timeout: 120 s.
 */
#include "fixture.h"

#include <errno.h>
#include <pthread.h>

#include "core/buffer_internal.h"
#include "core/driver/driver.h"

/* Nothing is submitted before it is asked for, and everything goes through one queue. */
static struct device_options quiet(void)
{
    return (struct device_options){
        .budget = {.kind = BUDGET_AUTO},
        .staging_bytes = 1 * MIB,
        .upload_streams = 1,
        .flush_interval_ms = 3600 * 1000,
        .direct_threshold_bytes = 64 * KIB,
    };
}

static struct device *open_quiet(const char *settings)
{
    struct device_options options = quiet();

    return fixture_open(settings, &options);
}

static uint64_t counter(struct device *device, enum telemetry_counter which)
{
    struct telemetry_snapshot snapshot;

    telemetry_take_snapshot(device_telemetry(device), &snapshot);
    return snapshot.counters[which];
}

static uint64_t resident(struct device *device)
{
    struct budget_report report;

    device_get_budget_report(device, &report);
    return report.resident_bytes;
}

static enum buffer_state state_of(struct buffer *buffer)
{
    struct buffer_report report;

    buffer_get_report(buffer, &report);
    return report.state;
}

/* What an unproven failure leaves behind on purpose; everything else must be gone. */
static void close_with_quarantine(struct device *device, uint64_t streams, uint64_t physical)
{
    device_close(device);
    struct residentfs_emulated_stats stats = fixture_stats();
    for (unsigned int i = 0; i < 2000 && stats.queued > 0; i++) {
        usleep(1000);
        stats = fixture_stats();
    }
    assert_int_equal(stats.queued, 0);
    assert_int_equal(stats.streams, streams);
    assert_int_equal(stats.physical_bytes, physical);
    assert_int_equal(stats.contexts, 0);
    assert_int_equal(stats.hazards, 0);
}

/* What earlier tests left in quarantine. */
static struct residentfs_emulated_stats before;

static int remember(void **unused)
{
    (void)unused;
    before = fixture_stats();
    return 0;
}

/* -- errors that are proven complete ----------------------------------------------------------- */

static void a_refused_upload_is_told_to_its_buffer_and_no_other(void **unused)
{
    (void)unused;
    struct device *device = open_quiet("memory=64MiB;batch=off");
    struct buffer *a = filled(device, 1, 1, 5000), *b = filled(device, 2, 2, 5000);
    uint64_t a_cursor = buffer_error_sample(a), b_cursor = buffer_error_sample(b);

    fixture_configure("fault=cuMemcpyHtoDAsync:2:1");
    assert_int_equal(buffer_write(b, 0, "bbbb", 4, NULL), 4);
    assert_int_equal(buffer_write(a, 100, "aaaa", 4, NULL), 4);
    assert_int_equal(buffer_flush(b), 0);
    assert_int_equal(buffer_error_check(b, &b_cursor), 0);
    assert_int_equal(buffer_error_check(a, &a_cursor), -EIO);
    assert_int_equal(buffer_error_check(a, &a_cursor), 0);
    assert_int_equal(state_of(a), BUFFER_OK);
    expect_all(a, 0, 1, 5000);
    expect_all(b, 0, 'b', 4);
    expect_all(b, 4, 2, 4996);
    assert_int_equal(counter(device, TELEMETRY_QUARANTINED_STREAMS), 0);
    assert_int_equal(counter(device, TELEMETRY_ERRORS_UPLOAD), 1);
    /* Written again, it is there. */
    assert_int_equal(buffer_write(a, 100, "aaaa", 4, NULL), 4);
    expect_all(a, 100, 'a', 4);
    assert_int_equal(buffer_error_check(a, &a_cursor), 0);
    buffer_destroy(a);
    buffer_destroy(b);
    fixture_close(device);
}

static void a_write_does_not_fail_because_of_another_buffers_upload(void **unused)
{
    (void)unused;
    struct device_options options = quiet();
    options.flush_interval_ms = 0;
    options.direct_threshold_bytes = 4096;
    struct device *device = fixture_open("memory=64MiB;batch=off", &options);
    struct buffer *a = filled(device, 1, 1, 5000), *b = filled(device, 2, 2, 5000);
    uint64_t a_cursor = buffer_error_sample(a), b_cursor = buffer_error_sample(b);

    /* The write of b submits, and meets the failure of an upload of a. */
    fixture_configure("fault=cuMemcpyHtoDAsync:1:1:late");
    assert_int_equal(buffer_write(a, 0, "aaaa", 4, NULL), 4);
    fixture_configure("fault=cuMemcpyHtoDAsync:1:1");
    assert_int_equal(buffer_write(a, 100, "aaaa", 4, NULL), 4);
    assert_int_equal(buffer_write(b, 0, "bbbb", 4, NULL), 4);
    buffer_flush(a);
    buffer_flush(b);
    assert_int_equal(buffer_error_check(a, &a_cursor), -EIO);
    if (state_of(b) == BUFFER_OK && buffer_error_check(b, &b_cursor) == 0)
        expect_all(b, 0, 'b', 4);
    buffer_destroy(a);
    buffer_destroy(b);
    device_close(device);
}

static void a_late_failure_is_told_to_every_buffer_it_may_concern(void **unused)
{
    (void)unused;
    struct device *device = open_quiet("memory=64MiB;batch=off");
    struct buffer *a = filled(device, 1, 1, 5000), *b = filled(device, 2, 2, 5000);
    struct buffer *c = filled(device, 3, 3, 5000);
    uint64_t cursors[3] = {buffer_error_sample(a), buffer_error_sample(b), buffer_error_sample(c)};

    fixture_configure("fault=cuMemcpyHtoDAsync:1:1:late");
    assert_int_equal(buffer_write(a, 0, "aaaa", 4, NULL), 4);
    assert_int_equal(buffer_write(b, 0, "bbbb", 4, NULL), 4);
    buffer_flush(b);
    assert_int_equal(buffer_error_check(a, &cursors[0]), -EIO);
    assert_int_equal(buffer_error_check(b, &cursors[1]), -EIO);
    assert_int_equal(buffer_error_check(c, &cursors[2]), 0);
    assert_int_equal(counter(device, TELEMETRY_ERRORS_FENCE), 1);
    assert_int_equal(counter(device, TELEMETRY_QUARANTINED_STREAMS), 0);
    expect_all(a, 0, 1, 5000);
    buffer_destroy(a);
    buffer_destroy(b);
    buffer_destroy(c);
    fixture_close(device);
}

static void a_late_failure_spares_what_was_not_submitted_yet(void **unused)
{
    (void)unused;
    struct device *device = open_quiet("memory=64MiB;order=sync");
    struct buffer *a = filled(device, 1, 1, 100000), *b = filled(device, 2, 2, 5000);
    uint64_t a_cursor = buffer_error_sample(a), b_cursor = buffer_error_sample(b);
    struct pinned_memory memory;
    struct upload_fence fence;

    assert_int_equal(pinned_memory_init(device, &memory, 100000), 0);
    assert_int_equal(upload_fence_init(device, &fence), 0);
    fixture_configure("fault=cuMemcpyHtoDAsync:1:1:late");
    assert_int_equal(buffer_write(a, 0, memory.bytes, 100000, &fence), 100000);
    assert_int_equal(buffer_write(b, 0, "bbbb", 4, NULL), 4);
    assert_int_equal(upload_fence_wait(&fence), 0);
    assert_int_equal(buffer_error_check(a, &a_cursor), -EIO);
    assert_int_equal(buffer_flush(b), 0);
    assert_int_equal(buffer_error_check(b, &b_cursor), 0);
    expect_all(b, 0, 'b', 4);
    upload_fence_finish(&fence);
    pinned_memory_finish(device, &memory);
    buffer_destroy(a);
    buffer_destroy(b);
    fixture_close(device);
}

/* Who asks first is told of the failure, and it must not stop there. */
static void asking_whether_a_direct_upload_is_done_does_not_hide_its_failure(void **unused)
{
    (void)unused;
    struct device *device = open_quiet("memory=64MiB");
    struct buffer *buffer = filled(device, 1, 1, 100000);
    uint64_t cursor = buffer_error_sample(buffer);
    struct pinned_memory memory;
    struct upload_fence fence;

    assert_int_equal(pinned_memory_init(device, &memory, 100000), 0);
    assert_int_equal(upload_fence_init(device, &fence), 0);
    assert_true(upload_fence_is_done(&fence));
    fixture_configure("fault=cuMemcpyHtoDAsync:1:1:late");
    assert_int_equal(buffer_write(buffer, 0, memory.bytes, 100000, &fence), 100000);
    for (unsigned int i = 0; i < 5000 && !upload_fence_is_done(&fence); i++)
        usleep(1000);
    assert_true(upload_fence_is_done(&fence));
    assert_int_equal(upload_fence_wait(&fence), 0);
    assert_int_equal(buffer_flush(buffer), 0);
    assert_int_equal(buffer_error_check(buffer, &cursor), -EIO);
    upload_fence_finish(&fence);
    pinned_memory_finish(device, &memory);
    buffer_destroy(buffer);
    fixture_close(device);
}

/* Copies that still run, or were never submitted, and then the memory goes. */
static void memory_is_given_back_only_after_its_uploads(void **unused)
{
    (void)unused;
    struct device *device = open_quiet("memory=64MiB;order=sync;hazard=abort");
    unsigned char *bytes = malloc(6 * MIB);

    memset(bytes, 5, 6 * MIB);
    for (unsigned int i = 0; i < 6; i++) {
        struct buffer *buffer = filled(device, i, 1, 6 * MIB);
        uint64_t cursor = buffer_error_sample(buffer);
        assert_int_equal(buffer_write(buffer, 0, bytes, 6 * MIB - i % 2 * 100, NULL),
                         6 * MIB - i % 2 * 100);
        assert_int_equal(buffer_write(buffer, 0, "few", 3, NULL), 3);
        if (i / 2 == 0)
            assert_int_equal(buffer_punch(buffer, 0, 6 * MIB), 0);
        else if (i / 2 == 1)
            assert_int_equal(buffer_truncate(buffer, 0), 0);
        if (i / 2 < 2) {
            assert_int_equal(resident(device), 0);
            /* What was pending has no place to go to any more. */
            assert_int_equal(buffer_flush(buffer), 0);
            assert_int_equal(buffer_error_check(buffer, &cursor), 0);
            assert_int_equal(buffer_write(buffer, 100, "new", 3, NULL), 3);
            expect_all(buffer, 0, 0, 100);
        }
        buffer_destroy(buffer);
        assert_int_equal(resident(device), 0);
    }
    free(bytes);
    fixture_close(device);
}

/* Foreign bytes: fresh memory of the emulated driver is never zero. */
static void memory_whose_zeroing_failed_late_never_shows_what_was_there(void **unused)
{
    (void)unused;
    struct device *device = open_quiet("memory=64MiB");
    const uint64_t lengths[] = {1 * MIB, 3 * MIB, 10000};

    for (size_t i = 0; i < ARRAY_SIZE(lengths); i++) {
        struct buffer *buffer = buffer_create(device, i);
        uint64_t cursor = buffer_error_sample(buffer);
        unsigned char *back = malloc(lengths[i]);
        fixture_configure("fault=none;fault=cuMemsetD8Async:1:1:late");
        assert_int_equal(buffer_write(buffer, lengths[i] - 4, "xxxx", 4, NULL), 4);
        buffer_flush(buffer);
        assert_int_equal(buffer_error_check(buffer, &cursor), -EIO);
        ssize_t got = buffer_read(buffer, 0, back, lengths[i]);
        if (got >= 0) {
            assert_int_equal(got, lengths[i]);
            for (uint64_t at = 0; at < lengths[i] - 4; at++)
                if (back[at] != 0)
                    fail_msg("byte %llu of %llu shows %02x", (unsigned long long)at,
                             (unsigned long long)lengths[i], back[at]);
        } else {
            assert_int_equal(got, -EIO);
        }
        free(back);
        buffer_destroy(buffer);
    }
    fixture_configure("fault=none");
    fixture_close(device);
}

static void a_move_that_failed_late_keeps_the_old_memory(void **unused)
{
    (void)unused;
    struct device *device = open_quiet("memory=64MiB");
    const struct {
        uint64_t length, grown;
    } cases[] = {{4000, 8000}, {500 * KIB, 3 * MIB}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct buffer *buffer = filled(device, i, 0x33, cases[i].length);
        uint64_t cursor = buffer_error_sample(buffer);
        fixture_configure("fault=none;fault=cuMemcpyDtoDAsync:1:1:late");
        ssize_t done = buffer_write(buffer, cases[i].grown - 1, "x", 1, NULL);
        buffer_flush(buffer);
        if (done >= 0 && buffer_error_check(buffer, &cursor) == 0)
            fail_msg("nobody was told");
        expect_all(buffer, 0, 0x33, cases[i].length);
        buffer_destroy(buffer);
    }
    /* Carving a chunk in two, and moving into less memory. */
    struct buffer *buffer = filled(device, 9, 0x44, 12 * MIB);
    fixture_configure("fault=none;fault=cuMemcpyDtoDAsync:1:1:late");
    errint_t err = buffer_punch(buffer, 4 * MIB, 2 * MIB);
    assert_true(err == 0 || err == -EIO);
    expect_all(buffer, 0, 0x44, 4 * MIB);
    expect_all(buffer, 6 * MIB, 0x44, 6 * MIB);
    buffer_destroy(buffer);
    buffer = filled(device, 10, 0x55, 900 * KIB);
    assert_int_equal(buffer_truncate(buffer, 100 * KIB), 0);
    fixture_configure("fault=none;fault=cuMemcpyDtoDAsync:1:1:late");
    buffer_truncate(buffer, 1000);
    expect_all(buffer, 0, 0x55, 1000);
    buffer_destroy(buffer);
    fixture_configure("fault=none");
    fixture_close(device);
}

static void a_copy_that_failed_late_is_not_reported_as_done(void **unused)
{
    (void)unused;
    struct device *device = open_quiet("memory=64MiB");
    struct buffer *a = filled(device, 1, 1, 50000), *b = filled(device, 2, 2, 50000);

    fixture_configure("fault=cuMemcpyDtoDAsync:1:1:late");
    assert_int_equal(buffer_copy(a, 0, b, 0, 50000), -EIO);
    fixture_configure("fault=none;fault=cuMemcpyDtoDAsync:1:1");
    assert_int_equal(buffer_copy(a, 0, b, 0, 50000), -EIO);
    fixture_configure("fault=none");
    assert_int_equal(buffer_copy(a, 0, b, 0, 50000), 50000);
    expect_all(b, 0, 1, 50000);
    fixture_configure("fault=cuMemcpyDtoDAsync:1:1:late");
    assert_int_equal(buffer_copy(a, 0, b, 60000, 50000), -EIO);
    fixture_configure("fault=none");
    assert_int_equal(buffer_length_bytes(b), 50000);
    assert_int_equal(buffer_truncate(b, 110000), 0);
    expect_all(b, 50000, 0, 60000);
    buffer_destroy(a);
    buffer_destroy(b);
    fixture_close(device);
}

/* Into memory that was allocated beyond the end: that stays, and does not show what was copied. */
static void a_copy_that_failed_late_is_taken_back(void **unused)
{
    (void)unused;
    struct device *device = open_quiet("memory=64MiB");

    for (unsigned int refused = 0; refused < 2; refused++) {
        struct buffer *a = filled(device, 1, 1, 50000), *b = filled(device, 2, 2, 50000);
        struct buffer_report first, last;
        assert_int_equal(buffer_allocate(b, 0, 8 * MIB, true), 0);
        assert_int_equal(buffer_flush(b), 0);
        buffer_get_report(b, &first);
        fixture_configure("fault=none;fault=cuMemcpyDtoDAsync:1:1:late");
        if (refused)
            fixture_configure("fault=cuMemsetD8Async:1:1");
        assert_int_equal(buffer_copy(a, 0, b, 50000, 50000), -EIO);
        fixture_configure("fault=none");
        buffer_get_report(b, &last);
        assert_int_equal(last.resident_bytes, first.resident_bytes);
        /* Without zeros to put there, it stays what it is: part of the file. */
        assert_int_equal(buffer_length_bytes(b), refused ? 100000 : 50000);
        expect_all(b, 0, 2, 50000);
        assert_int_equal(buffer_truncate(b, 50000), 0);
        assert_int_equal(buffer_truncate(b, 100000), 0);
        expect_all(b, 50000, 0, 50000);
        buffer_destroy(a);
        buffer_destroy(b);
    }
    fixture_close(device);
}

/* The flusher asks the stream too, and may be the one that the failure is told to. */
static void a_read_behind_a_failure_that_another_thread_met_is_an_error(void **unused)
{
    (void)unused;
    struct device_options options = quiet();
    options.flush_interval_ms = 1;
    struct device *device = fixture_open("memory=64MiB;latency=3000000", &options);
    struct buffer *buffer = filled(device, 1, 1, 8192);
    struct pinned_memory reply;
    unsigned int failed = 0;

    assert_int_equal(pinned_memory_init(device, &reply, 4096), 0);
    for (unsigned int i = 0; i < 60; i++) {
        fixture_configure("fault=none");
        unsigned char *back = reply.bytes, byte = (unsigned char)(i % 200 + 2);
        memset(back, 0, 4096);
        assert_int_equal(buffer_write(buffer, 0, &byte, 1, NULL), 1);
        fixture_configure("fault=cuMemcpyDtoHAsync:1:1:late");
        ssize_t got = buffer_read(buffer, 4096, back, 4096);
        if (got >= 0)
            for (size_t at = 0; at < 4096; at++)
                if (back[at] != 1)
                    fail_msg("read %u succeeded and shows %02x", i, back[at]);
        failed += got < 0;
    }
    print_message("%u reads failed\n", failed);
    assert_true(failed > 0);
    fixture_configure("fault=none;latency=0");
    pinned_memory_finish(device, &reply);
    buffer_destroy(buffer);
    fixture_close(device);
}

/* Bytes that a write did not return for must not show when the file gets longer. */
static void a_growing_write_that_failed_leaves_zeros_past_the_end(void **unused)
{
    (void)unused;
    struct device *device = open_quiet("memory=64MiB;batch=off");
    struct buffer *buffer = filled(device, 1, 1, 1000);
    unsigned char *bytes = malloc(3 * MIB), *back = malloc(3 * MIB);
    struct pinned_memory memory;
    struct upload_fence fence;

    memset(bytes, 0x66, 3 * MIB);
    /* Staging holds a part of it: that is uploaded before more staging is refused. */
    fixture_configure("fault=cuEventCreate:1+:1");
    ssize_t done = buffer_write(buffer, 1000, bytes, 3 * MIB - 1000, NULL);
    fixture_configure("fault=none");
    assert_int_equal(done, -EIO);
    uint64_t length = buffer_length_bytes(buffer);
    assert_int_equal(length, 1000 + MAX(done, 0));
    assert_int_equal(buffer_truncate(buffer, 3 * MIB), 0);
    expect_all(buffer, length, 0, 3 * MIB - length);
    buffer_destroy(buffer);

    buffer = filled(device, 2, 1, 1000);
    assert_int_equal(pinned_memory_init(device, &memory, 4 * MIB), 0);
    assert_int_equal(upload_fence_init(device, &fence), 0);
    memset(memory.bytes, 0x66, 4 * MIB);
    fixture_configure("fault=cuMemcpyHtoDAsync:1:1");
    done = buffer_write(buffer, 1000, memory.bytes, 4 * MIB, &fence);
    assert_int_equal(done, -EIO);
    assert_int_equal(upload_fence_wait(&fence), 0);
    assert_int_equal(buffer_length_bytes(buffer), 1000);
    assert_int_equal(buffer_truncate(buffer, 4 * MIB), 0);
    expect_all(buffer, 1000, 0, 4 * MIB - 1000);
    upload_fence_finish(&fence);
    pinned_memory_finish(device, &memory);
    buffer_destroy(buffer);
    free(bytes);
    free(back);
    fixture_close(device);
}

static void without_an_event_a_direct_upload_is_fenced_by_its_stream(void **unused)
{
    (void)unused;
    struct device *device = open_quiet("memory=64MiB");
    struct buffer *buffer = filled(device, 1, 1, 300000);
    struct pinned_memory memory;
    struct upload_fence fence;

    assert_int_equal(pinned_memory_init(device, &memory, 1 * MIB), 0);
    assert_int_equal(upload_fence_init(device, &fence), 0);
    memset(memory.bytes, 9, 300000);
    fixture_configure("fault=cuEventRecord:1:1");
    assert_int_equal(buffer_write(buffer, 0, memory.bytes, 300000, &fence), 300000);
    assert_int_equal(upload_fence_wait(&fence), 0);
    memset(memory.bytes, 0xee, 300000);
    expect_all(buffer, 0, 9, 300000);
    upload_fence_finish(&fence);
    pinned_memory_finish(device, &memory);
    buffer_destroy(buffer);
    fixture_close(device);
}

static void a_failed_readback_whose_stream_is_proven_returns_the_stream(void **unused)
{
    (void)unused;
    struct device *device = open_quiet("memory=64MiB");
    struct buffer *buffer = filled(device, 1, 1, 10000);
    unsigned char back[100];

    assert_int_equal(buffer_read(buffer, 0, back, 100), 100);
    uint64_t streams = fixture_stats().streams;
    const char *faults[] = {"fault=none;fault=cuMemcpyDtoHAsync:1:1",
                            "fault=none;fault=cuMemcpyDtoHAsync:1:1:late",
                            "fault=none;fault=cuStreamSynchronize:1:1"};
    for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
        fixture_configure(faults[i]);
        assert_int_equal(buffer_read(buffer, 0, back, 100), -EIO);
        assert_int_equal(fixture_stats().streams, streams);
        expect_all(buffer, 0, 1, 10000);
    }
    assert_int_equal(counter(device, TELEMETRY_ERRORS_READBACK), 3);
    assert_int_equal(counter(device, TELEMETRY_QUARANTINED_STREAMS), 0);
    assert_int_equal(state_of(buffer), BUFFER_OK);
    buffer_destroy(buffer);
    fixture_close(device);
}

/* -- errors whose completion is unproven ------------------------------------------------------- */

static void an_unproven_readback_quarantines_stream_and_memory(void **unused)
{
    (void)unused;
    struct device *device = open_quiet("memory=64MiB;hazard=abort");
    struct buffer *buffer = filled(device, 1, 1, 3 * MIB), *other = filled(device, 2, 2, 3 * MIB);
    struct pinned_memory reply;

    assert_int_equal(pinned_memory_init(device, &reply, 3 * MIB), 0);
    fixture_configure("fault=cuMemcpyDtoHAsync:1:1:unproven");
    assert_int_equal(buffer_read(buffer, 0, reply.bytes, 3 * MIB), -ENOTRECOVERABLE);
    pinned_memory_quarantine(device, &reply);
    assert_int_equal(counter(device, TELEMETRY_QUARANTINED_STREAMS), 1);
    assert_int_equal(state_of(buffer), BUFFER_FAILED);
    unsigned char back;
    assert_int_equal(buffer_read(buffer, 0, &back, 1), -EIO);
    assert_int_equal(buffer_write(buffer, 0, "x", 1, NULL), -EIO);
    expect_all(other, 0, 2, 3 * MIB);
    /* Freed at once: the copy that still reads it must find it. */
    buffer_destroy(buffer);
    assert_int_equal(resident(device), 4 * MIB + 4 * MIB);
    buffer_destroy(other);
    assert_int_equal(resident(device), 4 * MIB);
    close_with_quarantine(device, before.streams + 1, before.physical_bytes + 4 * MIB);
}

static void an_unproven_readback_of_shared_copies_quarantines_the_memory_too(void **unused)
{
    (void)unused;
    struct device *device = open_quiet("memory=64MiB;hazard=abort");
    struct buffer *buffer = filled(device, 1, 1, 3 * MIB);
    unsigned char back[200];
    struct buffer_range ranges[2] = {{0, 100, back}, {50, 100, back + 100}};
    size_t done[2];

    fixture_configure("fault=cuMemcpyDtoHAsync:1:1:unproven");
    assert_int_equal(buffer_read_ranges(buffer, ranges, 2, done), -EIO);
    assert_int_equal(state_of(buffer), BUFFER_FAILED);
    buffer_destroy(buffer);
    assert_int_equal(resident(device), 4 * MIB);
    close_with_quarantine(device, before.streams + 1, before.physical_bytes + 4 * MIB);
}

static void after_an_unproven_upload_the_queue_goes_on_with_a_new_stream(void **unused)
{
    (void)unused;
    struct device *device = open_quiet("memory=64MiB;hazard=abort;batch=off");
    struct buffer *lost = filled(device, 1, 1, 3 * MIB), *clean = filled(device, 2, 2, 3 * MIB);
    uint64_t lost_cursor = buffer_error_sample(lost), second = lost_cursor;
    uint64_t clean_cursor = buffer_error_sample(clean);
    uint64_t streams = fixture_stats().streams;

    fixture_configure("fault=cuMemcpyHtoDAsync:1:1:unproven");
    assert_int_equal(buffer_write(lost, 0, "lost", 4, NULL), 4);
    buffer_flush(lost);
    assert_int_equal(buffer_error_check(lost, &lost_cursor), -EIO);
    assert_int_equal(buffer_error_check(lost, &lost_cursor), 0);
    assert_int_equal(buffer_error_check(lost, &second), -EIO);
    assert_int_equal(buffer_error_check(clean, &clean_cursor), 0);
    assert_int_equal(state_of(lost), BUFFER_FAILED);
    assert_int_equal(state_of(clean), BUFFER_OK);
    assert_int_equal(counter(device, TELEMETRY_QUARANTINED_STREAMS), 1);
    assert_int_equal(fixture_stats().streams, streams + 1);

    /* Late DMA from the old staging arrives while the new one is written and read. */
    unsigned char *bytes = malloc(3 * MIB);
    for (unsigned int i = 0; i < 40; i++) {
        memset(bytes, (int)(10 + i), 3 * MIB);
        assert_int_equal(buffer_write(clean, 0, bytes, 3 * MIB, NULL), 3 * MIB);
        expect_all(clean, 0, (int)(10 + i), 3 * MIB);
        usleep(2000);
    }
    free(bytes);
    /* Until it is truncated to 0 the failed one gives EIO; then it is as new. */
    unsigned char back;
    assert_int_equal(buffer_read(lost, 0, &back, 1), -EIO);
    assert_int_equal(buffer_truncate(lost, 10), -EIO);
    assert_int_equal(buffer_punch(lost, 0, 10), -EIO);
    assert_int_equal(buffer_allocate(lost, 0, 10, false), -EIO);
    assert_int_equal(buffer_copy(lost, 0, clean, 0, 10), -EIO);
    assert_int_equal(buffer_truncate(lost, 0), 0);
    assert_int_equal(state_of(lost), BUFFER_OK);
    assert_int_equal(buffer_write(lost, 0, "new!", 4, NULL), 4);
    expect_all(lost, 0, 'n', 1);
    buffer_destroy(lost);
    buffer_destroy(clean);
    assert_int_equal(resident(device), 4 * MIB);
    assert_true(counter(device, TELEMETRY_QUARANTINED_BYTES) > 4 * MIB);
    close_with_quarantine(device, before.streams + 1, before.physical_bytes + 4 * MIB);
}

static void an_unproven_direct_upload_says_that_its_memory_is_lost(void **unused)
{
    (void)unused;
    struct device *device = open_quiet("memory=64MiB;hazard=abort");
    struct buffer *buffer = filled(device, 1, 1, 1 * MIB);
    struct pinned_memory memory;
    struct upload_fence fence;

    for (unsigned int i = 0; i < 2; i++) {
        assert_int_equal(pinned_memory_init(device, &memory, 1 * MIB), 0);
        assert_int_equal(upload_fence_init(device, &fence), 0);
        memset(memory.bytes, 9, MIB);
        fixture_configure("fault=none");
        assert_int_equal(buffer_allocate(buffer, 0, 1 * MIB, false), 0);
        assert_int_equal(buffer_flush(buffer), 0);
        fixture_configure(i == 0 ? "fault=cuMemcpyHtoDAsync:1:1:unproven"
                                 : "fault=cuMemcpyHtoDAsync:2:1;"
                                   "fault=cuStreamSynchronize:1:1:unproven");
        ssize_t done = buffer_write(buffer, 0, memory.bytes, 300000, &fence);
        if (i == 1) {
            /* Refused behind one that runs: neither can be proven. */
            assert_int_equal(done, 300000);
            assert_int_equal(buffer_write(buffer, 400000, memory.bytes, 300000, &fence), -EIO);
        }
        assert_true(fence.pending);
        assert_int_equal(upload_fence_wait(&fence), -EIO);
        pinned_memory_quarantine(device, &memory);
        upload_fence_finish(&fence);
        assert_int_equal(state_of(buffer), BUFFER_FAILED);
        fixture_configure("fault=none");
        assert_int_equal(buffer_truncate(buffer, 0), 0);
        assert_int_equal(buffer_write(buffer, 0, "x", 1, NULL), 1);
        assert_int_equal(buffer_flush(buffer), 0);
    }
    buffer_destroy(buffer);
    assert_int_equal(counter(device, TELEMETRY_QUARANTINED_STREAMS), 2);
    device_close(device);
}

/* Late DMA reads the source: it must not be given away either. */
static void an_unproven_copy_keeps_the_memory_of_both_buffers(void **unused)
{
    (void)unused;
    struct device *device = open_quiet("memory=64MiB;hazard=abort");
    struct buffer *a = filled(device, 1, 1, 3 * MIB), *b = filled(device, 2, 2, 3 * MIB);

    fixture_configure("fault=cuMemcpyDtoDAsync:1:1:unproven");
    assert_int_equal(buffer_copy(a, 0, b, 0, 3 * MIB), -EIO);
    assert_int_equal(state_of(b), BUFFER_FAILED);
    buffer_destroy(a);
    buffer_destroy(b);
    assert_int_equal(resident(device), 8 * MIB);
    close_with_quarantine(device, before.streams + 1, before.physical_bytes + 8 * MIB);
}

static void an_unproven_move_keeps_the_old_and_the_new_memory(void **unused)
{
    (void)unused;
    struct device *device = open_quiet("memory=64MiB;hazard=abort");
    struct buffer *buffer = filled(device, 1, 1, 500 * KIB);

    fixture_configure("fault=cuMemcpyDtoDAsync:1:1:unproven");
    assert_int_equal(buffer_write(buffer, 2 * MIB, "x", 1, NULL), -EIO);
    assert_int_equal(state_of(buffer), BUFFER_FAILED);
    assert_int_equal(buffer_length_bytes(buffer), 500 * KIB);
    buffer_destroy(buffer);
    assert_int_equal(resident(device), 4 * MIB); /* the block's chunk, and the new one */
    close_with_quarantine(device, before.streams + 1, before.physical_bytes + 4 * MIB);
}

static void a_queue_without_a_stream_gets_one_when_it_can(void **unused)
{
    (void)unused;
    struct device *device = open_quiet("memory=64MiB;hazard=abort;batch=off");
    struct buffer *lost = filled(device, 1, 1, 5000), *clean = filled(device, 2, 2, 5000);

    fixture_configure("fault=cuMemcpyHtoDAsync:1:1:unproven;fault=cuStreamCreate:1:2;"
                      "fault=cuStreamCreate:2:2");
    assert_int_equal(buffer_write(lost, 0, "lost", 4, NULL), 4);
    buffer_flush(lost);
    assert_int_equal(buffer_write(clean, 0, "bbbb", 4, NULL), -EIO);
    assert_int_equal(device_flush(device), 0);
    assert_int_equal(buffer_write(clean, 0, "bbbb", 4, NULL), 4);
    expect_all(clean, 0, 'b', 4);
    buffer_destroy(lost);
    buffer_destroy(clean);
    device_close(device);
}

/* -- a lost device ----------------------------------------------------------------------------- */

static void after_the_device_is_lost_everything_fails_at_once_and_ends(void **unused)
{
    (void)unused;
    const char *faults[] = {
        "fault=cuMemcpyHtoDAsync:1:700:sticky", "fault=cuEventSynchronize:1:700:sticky",
        "fault=cuMemcpyDtoHAsync:1:214:sticky", "fault=cuMemGetInfo:1:46:sticky",
        "fault=cuStreamSynchronize:1:719:sticky"};

    for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
        struct device *device = open_quiet("memory=64MiB;hazard=abort;batch=off");
        struct buffer *a = filled(device, 1, 1, 3 * MIB), *b = filled(device, 2, 2, 5000);
        struct pinned_memory memory;
        struct upload_fence fence;
        unsigned char back[100];
        char reason[200];
        uint64_t cursor = buffer_error_sample(a);

        assert_int_equal(pinned_memory_init(device, &memory, 1 * MIB), 0);
        assert_int_equal(upload_fence_init(device, &fence), 0);
        assert_int_equal(buffer_write(a, 0, memory.bytes, 1 * MIB, &fence), 1 * MIB);
        assert_int_equal(buffer_write(a, MIB, "tail", 4, NULL), 4);
        fixture_configure(faults[i]);
        buffer_flush(a);
        buffer_read(b, 0, back, 100);
        buffer_write(b, 5 * MIB, "grow", 4, NULL);
        assert_true(device_is_lost(device));
        device_get_lost_reason(device, reason, sizeof(reason));
        assert_non_null(strstr(reason, "CUDA_ERROR"));

        uint64_t start = monotonic_ns();
        assert_true(upload_fence_is_done(&fence));
        assert_int_equal(upload_fence_wait(&fence), -EIO);
        pinned_memory_quarantine(device, &memory);
        upload_fence_finish(&fence);
        assert_int_equal(buffer_write(b, 0, "x", 1, NULL), -EIO);
        assert_int_equal(buffer_write(b, 9 * MIB, "x", 1, NULL), -EIO);
        assert_int_equal(buffer_read(b, 0, back, 1), -EIO);
        assert_int_equal(buffer_flush(b), -EIO);
        assert_int_equal(device_flush(device), -EIO);
        assert_int_equal(buffer_copy(a, 0, b, 0, 100), -EIO);
        assert_int_equal(buffer_truncate(b, 10), -EIO);
        /* From the third on its uploads were through before the device was lost. */
        assert_int_equal(buffer_error_check(a, &cursor), i < 2 ? -EIO : 0);
        /* Metadata, and going away. */
        assert_int_equal(buffer_length_bytes(a), 3 * MIB);
        assert_int_equal(buffer_seek_data(a, 0), 0);
        assert_int_equal(buffer_truncate(b, 0), 0);
        buffer_trim(a);
        buffer_destroy(a);
        buffer_destroy(b);
        assert_int_equal(resident(device), 0);
        device_close(device);
        if (monotonic_ns() - start > 2000000000u)
            fail_msg("took %llu ms", (unsigned long long)(monotonic_ns() - start) / 1000000);
        fixture_configure("fault=none");
    }
}

/* -- staging ----------------------------------------------------------------------------------- */

struct writer {
    struct device *device;
    struct buffer *buffer;
    unsigned int index;
    bool wrong;
};

#define WRITERS     16
#define WRITER_PART (700 * KIB)

static void *write_part(void *data)
{
    struct writer *writer = data;
    unsigned char *bytes = malloc(WRITER_PART);

    device_attach_thread(writer->device);
    for (unsigned int i = 0; i < 6; i++) {
        memset(bytes, (int)(writer->index * 7 + i), WRITER_PART);
        writer->wrong |= buffer_write(writer->buffer, writer->index * WRITER_PART, bytes,
                                      WRITER_PART, NULL) != WRITER_PART;
        memset(bytes, 0xee, WRITER_PART);
    }
    free(bytes);
    return NULL;
}

static void write_with_many(const char *settings)
{
    struct device_options options = quiet();
    options.staging_bytes = 512 * KIB;
    options.upload_streams = 2;
    options.flush_interval_ms = 2;
    struct device *device = fixture_open(settings, &options);
    struct buffer *buffers[2] = {buffer_create(device, 1), buffer_create(device, 2)};
    struct writer writers[WRITERS];
    pthread_t threads[WRITERS];
    struct telemetry_snapshot snapshot;

    for (unsigned int i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){device, buffers[i % 2], i, false};
        assert_int_equal(pthread_create(&threads[i], NULL, write_part, &writers[i]), 0);
    }
    for (unsigned int i = 0; i < WRITERS; i++) {
        pthread_join(threads[i], NULL);
        assert_false(writers[i].wrong);
    }
    telemetry_take_snapshot(device_telemetry(device), &snapshot);
    /* All of it is used before anybody waits, and never more. */
    assert_in_range(snapshot.staging_peak_bytes, 256 * KIB + 1, 512 * KIB);
    for (unsigned int i = 0; i < WRITERS; i++)
        expect_all(buffers[i % 2], i * WRITER_PART, (int)(i * 7 + 5), WRITER_PART);
    buffer_destroy(buffers[0]);
    buffer_destroy(buffers[1]);
    fixture_configure("fault=none;latency=0;bandwidth=0");
    device_close(device);
}

static void staging_stays_within_its_cap_while_many_writers_wait(void **unused)
{
    (void)unused;
    write_with_many("memory=128MiB;order=random;bandwidth=400MiB;hazard=abort");
    write_with_many("memory=128MiB;order=sync;hazard=abort");
}

static void without_page_locked_memory_writes_and_reads_are_still_right(void **unused)
{
    (void)unused;
    write_with_many("memory=128MiB;order=random;pinned=0;hazard=abort");
    write_with_many("memory=128MiB;order=random;pinned=256KiB;hazard=abort");
    struct device *device = open_quiet("memory=64MiB;pinned=0");
    struct pinned_memory memory;

    assert_int_equal(pinned_memory_init(device, &memory, 1 * MIB), 0);
    assert_false(memory.page_locked);
    assert_true(device_is_degraded(device));
    pinned_memory_finish(device, &memory);
    fixture_configure("pinned=1TiB");
    device_close(device);
}

/* -- telemetry --------------------------------------------------------------------------------- */

static void transfers_are_counted_after_their_fence_and_after_fusion(void **unused)
{
    (void)unused;
    struct device *device = open_quiet("memory=64MiB;order=sync");
    struct buffer *a = filled(device, 1, 1, 400000), *b = filled(device, 2, 2, 400000);
    struct pinned_memory memory[2];
    struct upload_fence fences[2];
    uint64_t bytes = counter(device, TELEMETRY_H2D_BYTES);
    uint64_t operations = counter(device, TELEMETRY_H2D_OPERATIONS);
    uint64_t requests = counter(device, TELEMETRY_UPLOAD_REQUESTS);

    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(pinned_memory_init(device, &memory[i], 1 * MIB), 0);
        assert_int_equal(upload_fence_init(device, &fences[i]), 0);
        memset(memory[i].bytes, 9, 300000);
        assert_int_equal(buffer_write(i ? b : a, 0, memory[i].bytes, 300000, &fences[i]), 300000);
        assert_true(fences[i].pending);
    }
    assert_int_equal(counter(device, TELEMETRY_H2D_BYTES), bytes);
    /* The one behind it is not proven by the fence of the first. */
    assert_int_equal(upload_fence_wait(&fences[0]), 0);
    assert_int_equal(counter(device, TELEMETRY_H2D_BYTES), bytes + 300000);
    assert_int_equal(device_dirty_bytes(device), 300000);
    assert_int_equal(upload_fence_wait(&fences[1]), 0);
    assert_int_equal(counter(device, TELEMETRY_H2D_BYTES), bytes + 600000);
    assert_int_equal(device_dirty_bytes(device), 0);

    assert_int_equal(buffer_write(a, 0, "abc", 3, NULL), 3);
    assert_int_equal(buffer_write(a, 3, "def", 3, NULL), 3);
    assert_int_equal(buffer_write(a, 1, "xy", 2, NULL), 2);
    assert_int_equal(device_dirty_bytes(device), 8);
    assert_int_equal(counter(device, TELEMETRY_H2D_BYTES), bytes + 600000);
    assert_int_equal(buffer_flush(a), 0);
    assert_int_equal(counter(device, TELEMETRY_H2D_BYTES), bytes + 600006);
    assert_int_equal(counter(device, TELEMETRY_H2D_OPERATIONS), operations + 3);
    assert_int_equal(counter(device, TELEMETRY_UPLOAD_REQUESTS), requests + 5);
    for (size_t i = 0; i < 2; i++) {
        upload_fence_finish(&fences[i]);
        pinned_memory_finish(device, &memory[i]);
    }
    buffer_destroy(a);
    buffer_destroy(b);
    fixture_close(device);
}

/* -- threads ----------------------------------------------------------------------------------- */

static void a_thread_that_attaches_to_a_device_uses_that_one(void **unused)
{
    (void)unused;
    struct device *first = open_quiet("memory=64MiB");
    struct device_options options = quiet();
    struct device *second = NULL;
    struct device_selector selector = {.driver = DEVICE_DRIVER_EMULATED,
                                       .select = DEVICE_SELECT_INDEX,
                                       .index = 1,
                                       .text = "emulated:1"};
    char message[512] = "";
    struct budget_report report;

    assert_int_equal(device_attach_thread(first), 0);
    assert_int_equal(device_open(&selector, &options, &second, message, sizeof(message)), 0);
    for (unsigned int i = 0; i < 2; i++) {
        struct device *device = i ? second : first, *other = i ? first : second;
        assert_int_equal(device_attach_thread(device), 0);
        struct buffer *buffer = filled(device, 1, 5, 3 * MIB);
        expect_all(buffer, 0, 5, 3 * MIB);
        device_get_budget_report(device, &report);
        assert_int_equal(report.total_bytes - report.free_bytes, 4 * MIB);
        assert_int_equal(device_attach_thread(other), 0);
        device_get_budget_report(other, &report);
        assert_int_equal(report.total_bytes - report.free_bytes, 0);
        assert_int_equal(device_attach_thread(device), 0);
        buffer_destroy(buffer);
    }
    assert_int_equal(device_attach_thread(second), 0);
    device_close(second);
    assert_int_equal(device_attach_thread(first), 0);
    device_close(first);
    /* The same context again: a thread does not take it for still set. */
    first = open_quiet("memory=64MiB");
    assert_int_equal(device_attach_thread(first), 0);
    struct buffer *buffer = filled(first, 1, 6, 1000);
    expect_all(buffer, 0, 6, 1000);
    buffer_destroy(buffer);
    device_close(first);
}

int main(void)
{
    setenv("RESIDENTFS_EMULATED", "devices=2", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refused_upload_is_told_to_its_buffer_and_no_other),
        cmocka_unit_test(a_late_failure_is_told_to_every_buffer_it_may_concern),
        cmocka_unit_test(a_late_failure_spares_what_was_not_submitted_yet),
        cmocka_unit_test(asking_whether_a_direct_upload_is_done_does_not_hide_its_failure),
        cmocka_unit_test(memory_is_given_back_only_after_its_uploads),
        cmocka_unit_test(memory_whose_zeroing_failed_late_never_shows_what_was_there),
        cmocka_unit_test(a_move_that_failed_late_keeps_the_old_memory),
        cmocka_unit_test(a_copy_that_failed_late_is_not_reported_as_done),
        cmocka_unit_test(a_copy_that_failed_late_is_taken_back),
        cmocka_unit_test(a_read_behind_a_failure_that_another_thread_met_is_an_error),
        cmocka_unit_test(a_growing_write_that_failed_leaves_zeros_past_the_end),
        cmocka_unit_test(without_an_event_a_direct_upload_is_fenced_by_its_stream),
        cmocka_unit_test(a_failed_readback_whose_stream_is_proven_returns_the_stream),
        cmocka_unit_test(transfers_are_counted_after_their_fence_and_after_fusion),
        cmocka_unit_test(a_thread_that_attaches_to_a_device_uses_that_one),
        cmocka_unit_test(staging_stays_within_its_cap_while_many_writers_wait),
        cmocka_unit_test(without_page_locked_memory_writes_and_reads_are_still_right),
        /* From here on something stays in quarantine. */
        cmocka_unit_test_setup(a_write_does_not_fail_because_of_another_buffers_upload, remember),
        cmocka_unit_test_setup(an_unproven_readback_quarantines_stream_and_memory, remember),
        cmocka_unit_test_setup(an_unproven_readback_of_shared_copies_quarantines_the_memory_too,
                               remember),
        cmocka_unit_test_setup(after_an_unproven_upload_the_queue_goes_on_with_a_new_stream,
                               remember),
        cmocka_unit_test_setup(an_unproven_direct_upload_says_that_its_memory_is_lost, remember),
        cmocka_unit_test_setup(an_unproven_copy_keeps_the_memory_of_both_buffers, remember),
        cmocka_unit_test_setup(an_unproven_move_keeps_the_old_and_the_new_memory, remember),
        cmocka_unit_test_setup(a_queue_without_a_stream_gets_one_when_it_can, remember),
        cmocka_unit_test_setup(after_the_device_is_lost_everything_fails_at_once_and_ends,
                               remember),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
