/*
 * Read-ahead: sequential readers are served out of it, it never shows what is not so any more, and
 * nothing is given back that it still reads. Timeout: 120 s.
 */
#include "fixture.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "core/buffer_internal.h"
#include "core/device_internal.h"
#include "core/driver/driver.h"
#include "core/readahead.h"
#include "tests/unit/under_tsan.h"

#define WINDOW_BYTES (64 * KIB)
#define BLOCK_BYTES  (4 * KIB)

static struct device *open_device(const char *settings, uint64_t staging_bytes)
{
    struct device_options options = {
        .budget = {.kind = BUDGET_AUTO},
        .staging_bytes = staging_bytes,
        .upload_streams = 1,
        .flush_interval_ms = 1,
        .direct_threshold_bytes = 64 * KIB,
        .readahead_bytes = WINDOW_BYTES,
    };

    return fixture_open(settings, &options);
}

static uint64_t counter(struct device *device, enum telemetry_counter which)
{
    struct telemetry_snapshot snapshot;

    telemetry_take_snapshot(device_telemetry(device), &snapshot);
    return snapshot.counters[which];
}

static unsigned char pattern(uint64_t offset)
{
    return (unsigned char)(offset * 7 + offset / 251);
}

/* On the device, and clean. */
static struct buffer *patterned(struct device *device, uint64_t id, size_t length)
{
    struct buffer *buffer = buffer_create(device, id);
    unsigned char *bytes = malloc(length);

    for (size_t i = 0; i < length; i++)
        bytes[i] = pattern(i);
    assert_int_equal(buffer_write(buffer, 0, bytes, length, NULL), length);
    assert_int_equal(buffer_flush(buffer), 0);
    free(bytes);
    return buffer;
}

/* As a file system does it. Returns what buffer_read does; *ahead: it had been read ahead. */
static ssize_t read_through(struct readahead *reader, struct buffer *buffer, uint64_t offset,
                            unsigned char *bytes, size_t length, bool *ahead)
{
    const void *found;
    size_t available;

    *ahead = readahead_begin(reader, buffer, offset, length, &found, &available);
    if (!*ahead)
        return buffer_read(buffer, offset, bytes, length);
    memcpy(bytes, found, available);
    readahead_end(reader, buffer, offset, length);
    return (ssize_t)available;
}

/* Reads on from *at, in blocks, and compares. Returns how many blocks had been read ahead. */
static unsigned int read_on(struct readahead *reader, struct buffer *buffer, uint64_t *at,
                            unsigned int blocks, size_t block)
{
    unsigned char bytes[WINDOW_BYTES];
    unsigned int hits = 0;

    for (unsigned int n = 0; n < blocks; n++) {
        bool ahead;
        ssize_t length = read_through(reader, buffer, *at, bytes, block, &ahead);
        assert_int_equal(length, MIN(block, buffer_length_bytes(buffer) - *at));
        for (ssize_t i = 0; i < length; i++)
            if (bytes[i] != pattern(*at + (uint64_t)i))
                fail_msg("byte %llu is %02x", (unsigned long long)*at + (unsigned long long)i,
                         bytes[i]);
        *at += (uint64_t)length;
        hits += ahead;
    }
    return hits;
}

static void a_sequential_reader_is_served_ahead_and_a_single_read_moves_its_own_bytes(void **unused)
{
    (void)unused;
    struct device *device = open_device("memory=64MiB", 1 * MIB);
    struct buffer *buffer = patterned(device, 1, 3 * MIB + 1000);
    struct readahead reader;
    uint64_t at = 1 * MIB;

    readahead_init(&reader);
    assert_int_equal(read_on(&reader, buffer, &at, 1, BLOCK_BYTES), 0);
    assert_int_equal(counter(device, TELEMETRY_D2H_BYTES), BLOCK_BYTES);
    assert_null(reader.slot);
    /* The second one in a row starts it. */
    assert_int_equal(read_on(&reader, buffer, &at, 1, BLOCK_BYTES), 0);
    assert_int_equal(read_on(&reader, buffer, &at, 1000, BLOCK_BYTES), 510 + 1);
    assert_int_equal(at, 3 * MIB + 1000);
    /* Of the rest of the file, each byte once. */
    readahead_finish(&reader, buffer);
    assert_int_equal(counter(device, TELEMETRY_D2H_BYTES), 2 * MIB + 1000);
    /* Reads as large as a window. */
    readahead_init(&reader);
    at = 0;
    assert_int_equal(read_on(&reader, buffer, &at, 48, WINDOW_BYTES), 46);
    readahead_finish(&reader, buffer);
    buffer_destroy(buffer);
    fixture_close(device);
}

static void random_and_odd_readers_get_the_right_bytes(void **unused)
{
    (void)unused;
    struct device *device = open_device("memory=64MiB", 1 * MIB);
    struct buffer *buffer = patterned(device, 1, 2 * MIB + 4321);
    uint64_t random = fixture_seed(), at = 0;
    struct readahead reader;
    unsigned int hits = 0;

    readahead_init(&reader);
    for (unsigned int run = 0; run < 300; run++) {
        size_t block = 1 + fixture_random(&random) % WINDOW_BYTES;
        if (run % 3 == 0)
            at = fixture_random(&random) % (2 * MIB + 5000);
        hits += read_on(&reader, buffer, &at, fixture_random(&random) % 20, block);
    }
    assert_true(hits > 100);
    /* Larger than a window, and nothing at all. */
    unsigned char *bytes = malloc(MIB);
    bool ahead;
    readahead_finish(&reader, buffer);
    readahead_init(&reader);
    for (at = 2 * MIB; at < 2 * MIB + 5000; at += 4000) /* nothing comes after the second one */
        read_through(&reader, buffer, at, bytes, 4000, &ahead);
    assert_null(reader.slot);
    for (at = 0; at < 2 * MIB; at += MIB)
        assert_int_equal(read_through(&reader, buffer, at, bytes, MIB, &ahead), MIB);
    assert_int_equal(read_through(&reader, buffer, 0, bytes, 0, &ahead), 0);
    assert_false(ahead);
    free(bytes);
    readahead_finish(&reader, buffer);
    buffer_destroy(buffer);
    fixture_close(device);
}

/* -- changes ----------------------------------------------------------------------------------- */

enum change { WRITE, WRITE_DIRECT, PUNCH, ZERO_BY_TRUNCATE, COPY, SHARE, CHANGES };

static void make_change(struct buffer *buffer, struct buffer *other, enum change change,
                        uint64_t offset, struct upload_fence *fence,
                        const struct pinned_memory *memory)
{
    switch (change) {
    case WRITE:
        assert_int_equal(buffer_write(buffer, offset, memory->bytes, BLOCK_BYTES, NULL),
                         BLOCK_BYTES);
        break;
    case WRITE_DIRECT:
        assert_int_equal(buffer_write(buffer, offset, memory->bytes, 64 * KIB, fence), 64 * KIB);
        break;
    case PUNCH:
        assert_int_equal(buffer_punch(buffer, offset, BLOCK_BYTES), 0);
        break;
    case ZERO_BY_TRUNCATE:
        assert_int_equal(buffer_truncate(buffer, offset), 0);
        assert_int_equal(buffer_truncate(buffer, 3 * MIB), 0);
        break;
    case COPY:
        assert_int_equal(buffer_copy(other, 0, buffer, offset, BLOCK_BYTES), BLOCK_BYTES);
        break;
    default:
        assert_int_equal(buffer_share_begin(buffer), 0);
        break;
    }
}

static void what_changed_after_it_was_read_ahead_shows(void **unused)
{
    (void)unused;
    static const unsigned char expected[] = {0xee, 0xee, 0, 0, 0xcc, 0};
    struct device *device = open_device("memory=64MiB", 1 * MIB);
    struct buffer *other = buffer_create(device, 99);
    struct pinned_memory memory;
    struct upload_fence fence;
    unsigned char bytes[BLOCK_BYTES];

    assert_int_equal(pinned_memory_init(device, &memory, 64 * KIB), 0);
    assert_int_equal(upload_fence_init(device, &fence), 0);
    memset(memory.bytes, 0xcc, memory.length);
    assert_int_equal(buffer_write(other, 0, memory.bytes, memory.length, NULL), memory.length);
    assert_int_equal(buffer_flush(other), 0);
    memset(memory.bytes, 0xee, memory.length);
    for (enum change change = 0; change < CHANGES; change++)
        for (unsigned int windows = 0; windows < 2; windows++) {
            struct buffer *buffer = patterned(device, change, 3 * MIB);
            struct readahead reader;
            uint64_t at = 0;
            bool ahead;

            readahead_init(&reader);
            /* Up to the last block of a window, with the next one read ahead, too. */
            assert_true(read_on(&reader, buffer, &at, windows ? 40 : 7, BLOCK_BYTES) > 0);
            /* Of a copy that meets the change nothing is shown; to ThreadSanitizer it is a race. */
            if (UNDER_TSAN)
                readahead_wait_all(buffer);
            make_change(buffer, other, change, at, &fence, &memory);
            assert_int_equal(read_through(&reader, buffer, at, bytes, BLOCK_BYTES, &ahead),
                             BLOCK_BYTES);
            assert_false(ahead);
            for (size_t i = 0; change != SHARE && i < BLOCK_BYTES; i++)
                if (bytes[i] != expected[change])
                    fail_msg("change %d: byte %zu is %02x", change, i, bytes[i]);
            /* Nothing of a shared buffer is read ahead: its memory changes unseen. */
            at += BLOCK_BYTES;
            if (change == SHARE) {
                assert_int_equal(read_on(&reader, buffer, &at, 20, BLOCK_BYTES), 0);
                buffer_share_end(buffer);
            }
            /* And then it goes on, once the change is on the device. */
            at = 2 * MIB;
            assert_int_equal(buffer_flush(buffer), 0);
            if (change != ZERO_BY_TRUNCATE)
                assert_true(read_on(&reader, buffer, &at, 20, BLOCK_BYTES) > 10);
            readahead_finish(&reader, buffer);
            buffer_destroy(buffer);
        }
    assert_int_equal(upload_fence_wait(&fence), 0);
    upload_fence_finish(&fence);
    pinned_memory_finish(device, &memory);
    buffer_destroy(other);
    fixture_close(device);
}

/* The emulated driver aborts when memory is taken away under a copy. */
/* A read in the middle of a write, while its bytes can be seen already. */
static struct {
    struct driver real;
    pthread_t writer;
    struct readahead *reader; /* NULL: none now */
    struct buffer *buffer;
    uint64_t at;
    bool asked, ahead;
} within;

static CUresult copy_and_read(CUdeviceptr to, const void *from, size_t length, CUstream stream)
{
    CUresult result = within.real.cuMemcpyHtoDAsync(to, from, length, stream);
    struct readahead *reader = within.reader;
    const void *bytes;
    size_t available;

    if (!pthread_equal(pthread_self(), within.writer) || !reader)
        return result;
    within.reader = NULL;
    within.asked = true;
    within.ahead =
        readahead_begin(reader, within.buffer, within.at, BLOCK_BYTES, &bytes, &available);
    if (within.ahead)
        readahead_end(reader, within.buffer, within.at, BLOCK_BYTES);
    return result;
}

static void what_is_being_changed_is_not_shown_as_it_was(void **unused)
{
    (void)unused;
    struct device *device = open_device("memory=64MiB", 4 * MIB);
    struct buffer *buffer = patterned(device, 1, 3 * MIB);
    static unsigned char bytes[768 * KIB]; /* submitted by who writes it, unless the flusher was */
    struct readahead reader;

    within = (typeof(within)){.real = *device->driver, .writer = pthread_self(), .buffer = buffer};
    device->driver->cuMemcpyHtoDAsync = copy_and_read;
    readahead_init(&reader);
    for (unsigned int i = 0; i < 100 && !within.asked; i++) {
        assert_int_equal(buffer_flush(buffer), 0);
        within.at = 0;
        assert_in_range(read_on(&reader, buffer, &within.at, 8, BLOCK_BYTES), 1, 8);
        within.reader = &reader;
        assert_int_equal(buffer_write(buffer, 2 * MIB, bytes, sizeof(bytes), NULL), sizeof(bytes));
    }
    within.reader = NULL;
    assert_true(within.asked);
    assert_false(within.ahead);
    readahead_finish(&reader, buffer);
    buffer_destroy(buffer);
    fixture_close(device);
}

static void memory_is_not_given_back_while_it_is_read_ahead(void **unused)
{
    (void)unused;
    /* Copies run only once they are waited for. */
    struct device *device = open_device("memory=64MiB;order=sync", 1 * MIB);

    for (unsigned int how = 0; how < 4; how++) {
        struct buffer *buffer = patterned(device, how, how < 2 ? 3 * MIB : 12 * BLOCK_BYTES);
        struct readahead reader;
        uint64_t at = 0;

        readahead_init(&reader);
        read_on(&reader, buffer, &at, 4, BLOCK_BYTES);
        assert_true(buffer->prefetches > 0);
        if (how == 0)
            assert_int_equal(buffer_truncate(buffer, 0), 0);
        else if (how == 1)
            assert_int_equal(buffer_punch(buffer, 0, 2 * MIB), 0);
        else if (how == 2) /* moves to a larger block, then to a chunk */
            assert_int_equal(buffer_allocate(buffer, 0, 3 * MIB, false), 0);
        if (how < 3)
            assert_int_equal(buffer->prefetches, 0);
        readahead_finish(&reader, buffer);
        buffer_destroy(buffer);
    }
    fixture_close(device);
}

/* -- many at once ------------------------------------------------------------------------------ */

#define STAMPED_BLOCKS 96
#define READERS        3

static struct stamps {
    struct device *device;
    struct buffer *buffer;
    _Atomic uint32_t published[STAMPED_BLOCKS]; /* a write of it has returned */
    _Atomic bool stop;
    _Atomic unsigned int hits, reads;
} stamps;

static void *stamp_writer(void *data)
{
    uint64_t random = (uint64_t)(uintptr_t)data;
    uint32_t block[BLOCK_BYTES / sizeof(uint32_t)];

    device_attach_thread(stamps.device);
    for (uint32_t stamp = 1; !stamps.stop; stamp++) {
        unsigned int n = fixture_random(&random) % STAMPED_BLOCKS;
        for (size_t i = 0; i < ARRAY_SIZE(block); i++)
            block[i] = stamp;
        if (buffer_write(stamps.buffer, (uint64_t)n * BLOCK_BYTES, block, BLOCK_BYTES, NULL) !=
            BLOCK_BYTES)
            abort();
        stamps.published[n] = stamp;
        if (stamp % 4 == 0) /* read-ahead begins when nothing is on its way */
            usleep(fixture_random(&random) % 4000);
    }
    return NULL;
}

static void *stamp_mover(void *data)
{
    (void)data;
    device_attach_thread(stamps.device);
    while (!stamps.stop) { /* takes memory at the end, and gives it back */
        if (buffer_allocate(stamps.buffer, STAMPED_BLOCKS * BLOCK_BYTES, 2 * MIB, true) < 0)
            abort();
        if (buffer_punch(stamps.buffer, STAMPED_BLOCKS * BLOCK_BYTES, 3 * MIB) < 0)
            abort();
        usleep(3000);
    }
    return NULL;
}

static void *stamp_reader(void *data)
{
    uint32_t block[BLOCK_BYTES / sizeof(uint32_t)];
    struct readahead reader;

    (void)data;
    device_attach_thread(stamps.device);
    readahead_init(&reader);
    while (!stamps.stop)
        for (unsigned int n = 0; n < STAMPED_BLOCKS; n++) {
            uint32_t at_least = stamps.published[n];
            bool ahead;
            if (read_through(&reader, stamps.buffer, (uint64_t)n * BLOCK_BYTES,
                             (unsigned char *)block, BLOCK_BYTES, &ahead) != BLOCK_BYTES)
                abort();
            for (size_t i = 0; i < ARRAY_SIZE(block); i++)
                if (block[i] < at_least) {
                    fprintf(stderr, "block %u: %u, though a write of %u had returned\n", n,
                            block[i], at_least);
                    abort();
                }
            stamps.hits += ahead;
            stamps.reads++;
        }
    readahead_finish(&reader, stamps.buffer);
    return NULL;
}

static void readers_never_see_less_than_what_was_written_before(void **unused)
{
    (void)unused;
    pthread_t threads[READERS + 2];

    /* Of what a copy met that is being written, nothing is shown; to ThreadSanitizer it is a race.
     */
    if (UNDER_TSAN)
        skip();
    stamps.device = open_device("memory=64MiB;latency=20000", 1 * MIB);
    stamps.buffer = buffer_create(stamps.device, 1);
    assert_int_equal(buffer_allocate(stamps.buffer, 0, STAMPED_BLOCKS * BLOCK_BYTES, false), 0);
    for (size_t i = 0; i < READERS; i++)
        pthread_create(&threads[i], NULL, stamp_reader, NULL);
    pthread_create(&threads[READERS], NULL, stamp_writer, (void *)(uintptr_t)fixture_seed());
    pthread_create(&threads[READERS + 1], NULL, stamp_mover, NULL);
    usleep(2000000);
    stamps.stop = true;
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        pthread_join(threads[i], NULL);
    print_message("%u of %u reads had been read ahead\n", stamps.hits, stamps.reads);
    assert_true(stamps.hits > 0);
    buffer_destroy(stamps.buffer);
    fixture_close(stamps.device);
}

/* -- memory for it ----------------------------------------------------------------------------- */

static unsigned int having_slots(const struct readahead *readers, size_t count)
{
    unsigned int having = 0;

    for (size_t i = 0; i < count; i++)
        having += readers[i].slot != NULL;
    return having;
}

static void windows_are_bounded_and_go_to_those_who_read(void **unused)
{
    (void)unused;
    struct device *device = open_device("memory=64MiB", 1 * MIB); /* four readers' windows */
    struct readahead readers[6];
    struct buffer *buffers[6];
    uint64_t at[6] = {0};

    for (size_t i = 0; i < ARRAY_SIZE(readers); i++) {
        buffers[i] = patterned(device, i, MIB);
        readahead_init(&readers[i]);
    }
    for (size_t i = 0; i < ARRAY_SIZE(readers); i++) {
        unsigned int hits = read_on(&readers[i], buffers[i], &at[i], 20, BLOCK_BYTES);
        if (i < 4)
            assert_true(hits > 0);
        assert_true(having_slots(readers, i + 1) <= 4);
    }
    struct telemetry_snapshot snapshot;
    telemetry_take_snapshot(device_telemetry(device), &snapshot);
    assert_true(snapshot.staging_bytes <= 2 * MIB);
    usleep(150000);
    for (size_t i = 0; i < ARRAY_SIZE(readers); i++) {
        assert_true(read_on(&readers[i], buffers[i], &at[i], 20, BLOCK_BYTES) > 0);
        assert_true(having_slots(readers, ARRAY_SIZE(readers)) <= 4);
        usleep(150000);
    }
    for (size_t i = 0; i < ARRAY_SIZE(readers); i++) {
        readahead_finish(&readers[i], buffers[i]);
        buffer_destroy(buffers[i]);
    }
    fixture_close(device);
}

static void without_page_locked_memory_reads_are_still_right(void **unused)
{
    (void)unused;
    struct device *device = open_device("memory=64MiB;pinned=0", 1 * MIB);
    struct buffer *buffer = patterned(device, 1, MIB);
    struct readahead reader;
    uint64_t at = 0;

    readahead_init(&reader);
    assert_int_equal(read_on(&reader, buffer, &at, 100, BLOCK_BYTES), 0);
    readahead_finish(&reader, buffer);
    buffer_destroy(buffer);
    fixture_close(device);
}

/* -- failures ---------------------------------------------------------------------------------- */

static void a_failure_of_it_is_nobodys_error(void **unused)
{
    (void)unused;
    static const char *const faults[] = {
        "fault=cuMemcpyDtoHAsync:2:1", "fault=cuMemcpyDtoHAsync:2:1:late",
        "fault=cuMemcpyDtoHAsync:4+:1", "fault=cuStreamCreate:2:2"};

    for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
        struct device *device = open_device("memory=64MiB", 1 * MIB);
        struct buffer *buffer = patterned(device, 1, MIB);
        struct readahead reader;
        uint64_t at = 0;

        readahead_init(&reader);
        fixture_configure(faults[i]);
        unsigned char bytes[BLOCK_BYTES];
        bool ahead;
        for (unsigned int n = 0; n < 20; n++, at += BLOCK_BYTES) {
            ssize_t length = read_through(&reader, buffer, at, bytes, BLOCK_BYTES, &ahead);
            /* A readback of its own that fails is one, of course. */
            if (length != -EIO || strchr(faults[i], '+') == NULL) {
                assert_int_equal(length, BLOCK_BYTES);
                assert_int_equal(bytes[17], pattern(at + 17));
            }
        }
        fixture_configure("fault=none");
        at = 0;
        read_on(&reader, buffer, &at, 256, BLOCK_BYTES);
        assert_int_equal(buffer->prefetches, 0);
        readahead_finish(&reader, buffer);
        buffer_destroy(buffer);
        fixture_close(device);
    }
}

/* Last: what it leaves behind stays. */
static void an_unproven_copy_takes_its_memory_and_the_buffer_with_it(void **unused)
{
    (void)unused;
    struct device *device = open_device("memory=64MiB", 1 * MIB);
    struct buffer *buffer = patterned(device, 1, 3 * MIB), *good = patterned(device, 2, MIB);
    struct readahead reader, another;
    unsigned char bytes[BLOCK_BYTES];
    uint64_t at = 0;
    bool ahead;

    readahead_init(&reader);
    readahead_init(&another);
    read_on(&reader, buffer, &at, 1, BLOCK_BYTES);
    fixture_configure("fault=cuMemcpyDtoHAsync:1:1:unproven"); /* the window's copy */
    ssize_t length = read_through(&reader, buffer, at, bytes, BLOCK_BYTES, &ahead);
    length = read_through(&reader, buffer, at + BLOCK_BYTES, bytes, BLOCK_BYTES, &ahead);
    assert_int_equal(length, -EIO);
    fixture_configure("fault=none");
    assert_int_equal(buffer->prefetches, 0);
    assert_int_equal(counter(device, TELEMETRY_QUARANTINED_BYTES) > 0, true);
    assert_null(reader.slot);
    at = 0;
    assert_true(read_on(&another, good, &at, 100, BLOCK_BYTES) > 50);
    /* Deleted, its memory is not given to anyone. */
    readahead_finish(&reader, buffer);
    readahead_finish(&another, good);
    buffer_destroy(buffer);
    assert_true(counter(device, TELEMETRY_QUARANTINED_BYTES) >= 4 * MIB);
    buffer_destroy(good);
    device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequential_reader_is_served_ahead_and_a_single_read_moves_its_own_bytes),
        cmocka_unit_test(random_and_odd_readers_get_the_right_bytes),
        cmocka_unit_test(what_changed_after_it_was_read_ahead_shows),
        cmocka_unit_test(what_is_being_changed_is_not_shown_as_it_was),
        cmocka_unit_test(memory_is_not_given_back_while_it_is_read_ahead),
        cmocka_unit_test(readers_never_see_less_than_what_was_written_before),
        cmocka_unit_test(windows_are_bounded_and_go_to_those_who_read),
        cmocka_unit_test(without_page_locked_memory_reads_are_still_right),
        cmocka_unit_test(a_failure_of_it_is_nobodys_error),
        cmocka_unit_test(an_unproven_copy_takes_its_memory_and_the_buffer_with_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
