/*
 * Buffers against a model in host memory, on an emulated device that runs copies late and out of
 * order: whatever the sequence of calls, the bytes are those of the model, and memory is given
 * back.
 */
#include "tests/unit/fixture.h"

#include <errno.h>
#include <pthread.h>

#include "core/buffer.h"

#define MODEL_BYTES (9 * MIB)
#define PERIOD      (size_t)16381 /* of what is written: no page looks like the one before */

struct model {
    unsigned char *bytes;
    uint64_t length;
};

static void fill(unsigned char *bytes, size_t length, uint64_t *state)
{
    for (size_t i = 0; i < length; i++)
        bytes[i] = (unsigned char)fixture_random(state);
}

static void check(struct buffer *buffer, const struct model *model, unsigned char *scratch,
                  unsigned int step)
{
    assert_int_equal(buffer_length_bytes(buffer), model->length);
    memset(scratch, 0x77, MODEL_BYTES);
    ssize_t got = buffer_read(buffer, 0, scratch, MODEL_BYTES);
    if (got != (ssize_t)model->length)
        fail_msg("step %u: read %zd of %llu", step, got, (unsigned long long)model->length);
    if (memcmp(scratch, model->bytes, model->length) == 0)
        return;
    for (uint64_t i = 0; i < model->length; i++)
        if (scratch[i] != model->bytes[i])
            fail_msg("step %u: byte %llu is %02x, not %02x", step, (unsigned long long)i,
                     scratch[i], model->bytes[i]);
}

static uint64_t random_offset(uint64_t *state, uint64_t limit)
{
    uint64_t offset = fixture_random(state) % limit;

    return fixture_random(state) % 3 == 0 ? align_down(offset, 4 * KIB) : offset;
}

/* Mostly small ranges, sometimes huge ones. */
static uint64_t random_length(uint64_t *state, uint64_t limit)
{
    static const uint64_t sizes[] = {100, 5000, 70000, 300000, 3 * MIB};
    uint64_t length = 1 + fixture_random(state) % sizes[fixture_random(state) % ARRAY_SIZE(sizes)];

    return MIN(length, limit);
}

static void random_steps(struct device *device, uint64_t state, unsigned int steps)
{
    struct buffer *buffers[2];
    struct model models[2];
    struct pinned_memory pinned[2], reply;
    struct upload_fence fences[2];
    unsigned char *scratch;

    assert_int_equal(pinned_memory_init(device, &reply, MODEL_BYTES), 0);
    scratch = reply.bytes;
    for (size_t i = 0; i < 2; i++) {
        buffers[i] = buffer_create(device, i + 1);
        models[i] = (struct model){.bytes = calloc(1, MODEL_BYTES)};
        assert_int_equal(pinned_memory_init(device, &pinned[i], 4 * MIB), 0);
        assert_int_equal(upload_fence_init(device, &fences[i]), 0);
    }
    /* A file's life differs with its size: some runs stay small. */
    uint64_t limit = fixture_random(&state) % 2 ? MODEL_BYTES : 800 * KIB;
    for (unsigned int step = 0; step < steps; step++) {
        size_t which = fixture_random(&state) % 2;
        struct buffer *buffer = buffers[which];
        struct model *model = &models[which];
        uint64_t offset = random_offset(&state, limit);
        uint64_t length = random_length(&state, limit - offset);
        unsigned int slot = fixture_random(&state) % 2;
        unsigned char *bytes = pinned[slot].bytes;

        switch (fixture_random(&state) % 12) {
        default:
            assert_int_equal(upload_fence_wait(&fences[slot]), 0);
            fill(bytes, MIN(length, PERIOD), &state);
            for (uint64_t i = PERIOD; i < length; i += PERIOD)
                memcpy(bytes + i, bytes, MIN(length - i, PERIOD));
            ssize_t done = buffer_write(buffer, offset, bytes, length,
                                        fixture_random(&state) % 4 ? &fences[slot] : NULL);
            assert_int_equal(done, length);
            memcpy(model->bytes + offset, bytes, length);
            model->length = MAX(model->length, offset + length);
            /* The bytes were taken over: unless a fence says otherwise, they may change now. */
            if (!fences[slot].pending)
                memset(bytes, 0xee, length);
            break;
        case 0:
            offset = fixture_random(&state) % 4 ? offset : 0;
            assert_int_equal(buffer_truncate(buffer, offset), 0);
            if (offset < model->length)
                memset(model->bytes + offset, 0, model->length - offset);
            model->length = offset;
            break;
        case 1:
            assert_int_equal(buffer_punch(buffer, offset, length), 0);
            memset(model->bytes + offset, 0, length);
            break;
        case 2:
            assert_int_equal(buffer_allocate(buffer, offset, length, step % 2), 0);
            if (step % 2 == 0)
                model->length = MAX(model->length, offset + length);
            break;
        case 3:
            assert_int_equal(buffer_flush(buffer), 0);
            break;
        case 4:
            buffer_trim(buffer);
            break;
        case 5: {
            struct model *source = &models[fixture_random(&state) % 2];
            uint64_t from = random_offset(&state, limit);
            length = MIN(length, limit - from);
            uint64_t clipped = from >= source->length ? 0 : MIN(length, source->length - from);
            uint64_t distance = from > offset ? from - offset : offset - from;
            bool overlap = source == model && distance < clipped;
            ssize_t copied = buffer_copy(buffers[source - models], from, buffer, offset, length);
            assert_int_equal(copied, overlap ? -EINVAL : (ssize_t)clipped);
            if (copied > 0) {
                memmove(model->bytes + offset, source->bytes + from, clipped);
                model->length = MAX(model->length, offset + clipped);
            }
            break;
        }
        case 6: {
            ssize_t got = buffer_read(buffer, offset, scratch, length);
            uint64_t want = offset >= model->length ? 0 : MIN(length, model->length - offset);
            assert_int_equal(got, want);
            assert_memory_equal(scratch, model->bytes + offset, want);
            break;
        }
        case 7: {
            struct buffer_range ranges[3];
            size_t got[3];
            for (size_t i = 0; i < 3; i++)
                ranges[i] = (struct buffer_range){offset + i * 3000, MIN(length, 9000u),
                                                  scratch + i * 10000};
            assert_int_equal(buffer_read_ranges(buffer, ranges, 3, got), 0);
            for (size_t i = 0; i < 3; i++) {
                uint64_t at = ranges[i].offset;
                uint64_t want = at >= model->length ? 0 : MIN(ranges[i].length, model->length - at);
                assert_int_equal(got[i], want);
                assert_memory_equal(ranges[i].bytes, model->bytes + at, want);
            }
            break;
        }
        }
        if (fixture_random(&state) % 16 == 0)
            check(buffer, model, scratch, step);
    }
    for (size_t i = 0; i < 2; i++) {
        check(buffers[i], &models[i], scratch, steps);
        buffer_trim(buffers[i]);
        check(buffers[i], &models[i], scratch, steps);
        buffer_destroy(buffers[i]);
        free(models[i].bytes);
        assert_int_equal(upload_fence_wait(&fences[i]), 0);
        upload_fence_finish(&fences[i]);
        pinned_memory_finish(device, &pinned[i]);
    }
    pinned_memory_finish(device, &reply);
}

static void run_model(const char *settings, unsigned int rounds, unsigned int steps)
{
    unsigned int seed = fixture_seed();
    struct device *device = fixture_open(settings, NULL);
    struct budget_report report;

    for (unsigned int round = 0; round < rounds; round++) {
        random_steps(device, seed + round * 7919u, steps);
        device_get_budget_report(device, &report);
        assert_int_equal(report.resident_bytes, 0);
        if (fixture_is_emulated())
            assert_int_equal(report.free_bytes, report.total_bytes);
    }
    fixture_close(device);
}

static void random_sequences_match_the_model_with_reordered_copies(void **unused)
{
    (void)unused;
    run_model("memory=256MiB;order=random", 6, 300);
}

static void random_sequences_match_the_model_with_copies_at_synchronisation(void **unused)
{
    (void)unused;
    run_model("memory=256MiB;order=sync", 6, 300);
}

static void random_sequences_match_the_model_without_batched_copies(void **unused)
{
    (void)unused;
    run_model("memory=256MiB;order=random;batch=off", 3, 300);
}

static void a_write_past_the_budget_is_short_and_then_refused(void **unused)
{
    (void)unused;
    if (!fixture_is_emulated())
        skip();
    struct device *device = fixture_open("memory=16MiB", NULL);
    struct buffer *buffer = buffer_create(device, 1);
    unsigned char *bytes = malloc(20 * MIB), *back = malloc(20 * MIB);

    for (size_t i = 0; i < 20 * MIB; i++)
        bytes[i] = (unsigned char)(i * 31 + i / 4096);
    ssize_t done = buffer_write(buffer, 0, bytes, 20 * MIB, NULL);
    /* 90 % of 16 MiB are 14.4 MiB: seven chunks of 2 MiB; live free memory shrinks that. */
    if (done <= 0 || done > (ssize_t)(14 * MIB))
        fail_msg("wrote %zd", done);
    assert_int_equal(buffer_length_bytes(buffer), done);
    assert_int_equal(buffer_write(buffer, (uint64_t)done, bytes, 4096, NULL), -ENOSPC);
    assert_int_equal(buffer_length_bytes(buffer), done);
    assert_int_equal(buffer_read(buffer, 0, back, 20 * MIB), done);
    assert_memory_equal(back, bytes, done);
    assert_int_equal(buffer_allocate(buffer, 0, 15 * MIB, false), -ENOSPC);
    assert_int_equal(buffer_length_bytes(buffer), done);
    assert_int_equal(buffer_read(buffer, 0, back, 20 * MIB), done);
    assert_memory_equal(back, bytes, done);
    buffer_destroy(buffer);
    fixture_close(device);
    free(bytes);
    free(back);
}

static void ranges_past_the_largest_length_are_refused(void **unused)
{
    (void)unused;
    struct device *device = fixture_open("memory=64MiB", NULL);
    struct buffer *buffer = buffer_create(device, 1);
    char byte = 'x', back;

    assert_int_equal(buffer_write(buffer, UINT64_MAX, &byte, 1, NULL), -EFBIG);
    assert_int_equal(buffer_write(buffer, INT64_MAX, &byte, 1, NULL), -EFBIG);
    assert_int_equal(buffer_write(buffer, INT64_MAX - 1, &byte, 1, NULL), 1);
    assert_int_equal(buffer_length_bytes(buffer), INT64_MAX);
    assert_int_equal(buffer_read(buffer, INT64_MAX - 1, &back, 1), 1);
    assert_int_equal(back, 'x');
    assert_int_equal(buffer_read(buffer, 12345, &back, 1), 1);
    assert_int_equal(back, 0);
    assert_int_equal(buffer_truncate(buffer, (uint64_t)INT64_MAX + 1), -EFBIG);
    assert_int_equal(buffer_punch(buffer, INT64_MAX, INT64_MAX), -EFBIG);
    struct buffer_report report;
    buffer_get_report(buffer, &report);
    assert_int_equal(report.resident_bytes, 2 * MIB);
    buffer_destroy(buffer);
    fixture_close(device);
}

static void a_failed_upload_is_reported_once_to_each_opener(void **unused)
{
    (void)unused;
    if (!fixture_is_emulated())
        skip();
    struct device *device = fixture_open("fault=cuMemcpyHtoDAsync:1:1:late", NULL);
    struct buffer *buffer = buffer_create(device, 1);
    uint64_t first = buffer_error_sample(buffer), second = first;

    assert_int_equal(buffer_write(buffer, 0, "hello", 5, NULL), 5);
    buffer_flush(buffer);
    assert_int_equal(buffer_error_check(buffer, &first), -EIO);
    assert_int_equal(buffer_error_check(buffer, &first), 0);
    assert_int_equal(buffer_error_check(buffer, &second), -EIO);
    assert_int_equal(buffer_error_check(buffer, &second), 0);
    buffer_destroy(buffer);
    fixture_close(device);
}

struct writer {
    struct device *device;
    struct buffer *buffer;
    unsigned int index;
    uint64_t seed;
};

#define WRITERS      4
#define WRITER_BYTES (3 * MIB + 4321)

static void *write_and_verify(void *data)
{
    struct writer *writer = data;
    uint64_t state = writer->seed, base = writer->index * WRITER_BYTES;
    unsigned char *model = calloc(1, WRITER_BYTES), *back = malloc(WRITER_BYTES);
    uintptr_t wrong = 0;

    device_attach_thread(writer->device);
    for (unsigned int i = 0; i < 200 && !wrong; i++) {
        uint64_t offset = fixture_random(&state) % WRITER_BYTES;
        uint64_t length = random_length(&state, WRITER_BYTES - offset);
        memset(model + offset, (int)fixture_random(&state), length);
        wrong |= buffer_write(writer->buffer, base + offset, model + offset, length, NULL) !=
                 (ssize_t)length;
        if (i % 8 == 0)
            wrong |= buffer_flush(writer->buffer) != 0;
        if (i % 4 == 0) {
            ssize_t got = buffer_read(writer->buffer, base + offset, back, length);
            wrong |= got != (ssize_t)length || memcmp(back, model + offset, length) != 0;
        }
    }
    free(model);
    free(back);
    return (void *)wrong;
}

static void writers_of_disjoint_parts_each_read_their_own_bytes(void **unused)
{
    (void)unused;
    struct device *device = fixture_open("memory=256MiB;order=random", NULL);
    struct buffer *buffer = buffer_create(device, 1);
    struct writer writers[WRITERS];
    pthread_t threads[WRITERS];
    unsigned int seed = fixture_seed();

    for (unsigned int i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){device, buffer, i, seed + i};
        assert_int_equal(pthread_create(&threads[i], NULL, write_and_verify, &writers[i]), 0);
    }
    for (unsigned int i = 0; i < WRITERS; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    buffer_destroy(buffer);
    fixture_close(device);
}

struct watcher {
    struct buffer *buffer;
    uint64_t least_bytes;
    _Atomic bool stop;
};

static void *watch_resident_bytes(void *data)
{
    struct watcher *watcher = data;
    struct buffer_report report;
    uintptr_t wrong = 0;

    while (!watcher->stop) {
        buffer_get_report(watcher->buffer, &report);
        wrong |= report.resident_bytes < watcher->least_bytes;
    }
    return (void *)wrong;
}

/* st_blocks comes from it: du and tar -S would be misled. */
static void a_buffer_never_looks_smaller_than_it_is_while_slack_is_given_back(void **unused)
{
    (void)unused;
    struct device *device = fixture_open("fill=off;order=eager", NULL);

    for (unsigned int round = 0; round < 10; round++) {
        struct buffer *buffer = buffer_create(device, 1);
        struct watcher watcher = {.buffer = buffer, .least_bytes = 2 * MIB};
        pthread_t thread;
        void *wrong;

        /* One chunk, which every shrink moves into a smaller one. */
        assert_int_equal(buffer_allocate(buffer, 0, 64 * MIB, false), 0);
        assert_int_equal(pthread_create(&thread, NULL, watch_resident_bytes, &watcher), 0);
        for (uint64_t length = 62 * MIB; length >= 2 * MIB; length -= 2 * MIB)
            assert_int_equal(buffer_truncate(buffer, length), 0);
        watcher.stop = true;
        pthread_join(thread, &wrong);
        assert_null(wrong);
        buffer_destroy(buffer);
    }
    fixture_close(device);
}

/* -- fairness ---------------------------------------------------------------------------------- */

#define READERS 6

struct reader {
    struct device *device;
    struct buffer *buffer;
    _Atomic bool *stop;
};

static void *read_until_stopped(void *data)
{
    struct reader *reader = data;
    struct pinned_memory reply;

    device_attach_thread(reader->device);
    if (pinned_memory_init(reader->device, &reply, 4096) < 0)
        return NULL;
    while (!atomic_load(reader->stop))
        buffer_read(reader->buffer, 0, reply.bytes, 4096);
    pinned_memory_finish(reader->device, &reply);
    return NULL;
}

struct grower {
    struct device *device;
    struct buffer *buffer;
    _Atomic unsigned int done;
};

#define GROWTHS 20

static void *grow_and_shrink(void *data)
{
    struct grower *grower = data;

    device_attach_thread(grower->device);
    for (unsigned int i = 0; i < GROWTHS; i++) {
        buffer_write(grower->buffer, 10000 + i * 1000, "x", 1, NULL);
        buffer_truncate(grower->buffer, 5000);
        atomic_fetch_add(&grower->done, 1);
    }
    return NULL;
}

static void readers_do_not_keep_a_buffer_from_growing_and_shrinking(void **unused)
{
    (void)unused;
    /* Each read takes so long that there is always one under way. */
    struct device *device = fixture_open("memory=64MiB;order=eager;latency=1000000", NULL);
    struct buffer *buffer = buffer_create(device, 1);
    _Atomic bool stop = false;
    struct reader reader = {device, buffer, &stop};
    struct grower grower = {device, buffer, 0};
    pthread_t readers[READERS], thread;
    unsigned int done = 0;

    assert_int_equal(buffer_truncate(buffer, 5000), 0);
    assert_int_equal(buffer_write(buffer, 0, "bytes", 5, NULL), 5);
    assert_int_equal(buffer_flush(buffer), 0);
    for (size_t i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&readers[i], NULL, read_until_stopped, &reader), 0);
    assert_int_equal(pthread_create(&thread, NULL, grow_and_shrink, &grower), 0);
    for (unsigned int i = 0; i < 1500 && done < GROWTHS; i++) {
        usleep(10000);
        done = atomic_load(&grower.done);
    }
    atomic_store(&stop, true);
    for (size_t i = 0; i < READERS; i++)
        pthread_join(readers[i], NULL);
    pthread_join(thread, NULL);
    print_message("%u of %u while others read\n", done, GROWTHS);
    assert_int_equal(done, GROWTHS);
    buffer_destroy(buffer);
    fixture_configure("latency=0");
    fixture_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_sequences_match_the_model_with_reordered_copies),
        cmocka_unit_test(random_sequences_match_the_model_with_copies_at_synchronisation),
        cmocka_unit_test(random_sequences_match_the_model_without_batched_copies),
        cmocka_unit_test(a_write_past_the_budget_is_short_and_then_refused),
        cmocka_unit_test(ranges_past_the_largest_length_are_refused),
        cmocka_unit_test(a_failed_upload_is_reported_once_to_each_opener),
        cmocka_unit_test(a_buffer_never_looks_smaller_than_it_is_while_slack_is_given_back),
        cmocka_unit_test(writers_of_disjoint_parts_each_read_their_own_bytes),
        cmocka_unit_test(readers_do_not_keep_a_buffer_from_growing_and_shrinking),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
