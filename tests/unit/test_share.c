/*
 * Buffers that share their chunks with other processes, and show memory of theirs, on an emulated
 * device that runs copies late and out of order. Here the other process is this one: the chunks are
 * imported and mapped a second time, and must be the same bytes as the buffer whatever is done to
 * it.
 */
#include "tests/unit/fixture.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "core/buffer.h"
#include "core/device_internal.h"

#define MODEL_BYTES (9 * MIB)
#define UNIT_BYTES  (2 * MIB)
#define PERIOD      (uint64_t)16381

/* -- the other side ---------------------------------------------------------------------------- */

/* What a client has of a buffer: chunks in a row at ADDRESS. */
struct view {
    struct device *device;
    CUdeviceptr address;
    CUstream stream;
    CUmemGenericAllocationHandle handles[64];
    uint64_t offsets[64], lengths[64];
    size_t count;
};

static void check_cuda(const struct view *view, CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS)
        fail_msg("%s: %s", call, driver_error_name(view->device->driver, result));
}
#define CUDA(view, call) check_cuda(view, (view)->device->driver->call, #call)

static void view_init(struct view *view, struct device *device)
{
    *view = (struct view){.device = device};
    CUDA(view, cuMemAddressReserve(&view->address, 64 * UNIT_BYTES, 0, 0, 0));
    CUDA(view, cuStreamCreate(&view->stream, CU_STREAM_NON_BLOCKING));
}

static void view_finish(struct view *view)
{
    for (size_t i = 0; i < view->count; i++) {
        CUDA(view, cuMemUnmap(view->address + view->offsets[i], view->lengths[i]));
        CUDA(view, cuMemRelease(view->handles[i]));
    }
    CUDA(view, cuMemAddressFree(view->address, 64 * UNIT_BYTES));
    CUDA(view, cuStreamDestroy(view->stream));
}

static bool view_has(const struct view *view, uint64_t offset, uint64_t length)
{
    for (size_t i = 0; i < view->count; i++)
        if (view->offsets[i] == offset) {
            assert_int_equal(view->lengths[i], length); /* chunks stay as they are */
            return true;
        }
    return false;
}

/* Prepares the buffer, and maps the chunks that the view has not. Returns the buffer's length. */
static uint64_t view_take(struct view *view, struct buffer *buffer)
{
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, view->device->cuda_device},
                              CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    struct buffer_share_chunk chunks[3];
    uint64_t length = 0, mapped = 0, at = 0;

    assert_int_equal(buffer_share_prepare(buffer, &length, &mapped), 0);
    assert_true(mapped >= length && mapped % UNIT_BYTES == 0);
    while (at < mapped) {
        ssize_t count = buffer_share_export(buffer, at, mapped, chunks, ARRAY_SIZE(chunks));
        assert_true(count > 0);
        for (ssize_t i = 0; i < count; i++) {
            assert_int_equal(chunks[i].offset, at);
            assert_true(chunks[i].length > 0 && chunks[i].length % UNIT_BYTES == 0);
            at += chunks[i].length;
            if (!view_has(view, chunks[i].offset, chunks[i].length)) {
                size_t n = view->count++;
                view->offsets[n] = chunks[i].offset;
                view->lengths[n] = chunks[i].length;
                CUDA(view, cuMemImportFromShareableHandle(
                               &view->handles[n], (void *)(intptr_t)chunks[i].descriptor,
                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
                CUdeviceptr place = view->address + chunks[i].offset;
                CUDA(view, cuMemMap(place, chunks[i].length, 0, view->handles[n], 0));
                CUDA(view, cuMemSetAccess(place, chunks[i].length, &access, 1));
            }
            close(chunks[i].descriptor);
        }
    }
    return length;
}

static void view_read(struct view *view, uint64_t offset, void *bytes, size_t length)
{
    CUDA(view, cuMemcpyDtoHAsync(bytes, view->address + offset, length, view->stream));
    CUDA(view, cuStreamSynchronize(view->stream));
}

static void view_write(struct view *view, uint64_t offset, const void *bytes, size_t length)
{
    CUDA(view, cuMemcpyHtoDAsync(view->address + offset, bytes, length, view->stream));
    CUDA(view, cuStreamSynchronize(view->stream));
}

static void assert_same(const unsigned char *got, const unsigned char *want, uint64_t length,
                        const char *what, unsigned int step)
{
    if (memcmp(got, want, length) == 0)
        return;
    for (uint64_t i = 0; i < length; i++)
        if (got[i] != want[i])
            fail_msg("step %u: %s: byte %llu is %02x, not %02x", step, what, (unsigned long long)i,
                     got[i], want[i]);
}

static void put(struct buffer *buffer, uint64_t offset, unsigned char value, size_t length)
{
    unsigned char *bytes = malloc(length);

    memset(bytes, value, length);
    assert_int_equal(buffer_write(buffer, offset, bytes, length, NULL), length);
    free(bytes);
}

/* -- sharing ----------------------------------------------------------------------------------- */

/* Never 0, and no page like the one before. */
static void fill(unsigned char *bytes, uint64_t length, uint64_t *state)
{
    uint64_t own = MIN(length, PERIOD);

    for (uint64_t i = 0; i < own; i++)
        bytes[i] = (unsigned char)(fixture_random(state) | 1);
    for (uint64_t i = own; i < length; i += PERIOD)
        memcpy(bytes + i, bytes, MIN(length - i, PERIOD));
}

static void random_steps(struct device *device, uint64_t state, unsigned int steps)
{
    struct buffer *buffer = buffer_create(device, 1);
    unsigned char *model = calloc(1, MODEL_BYTES), *scratch = malloc(MODEL_BYTES);
    unsigned char *bytes = malloc(MODEL_BYTES);
    uint64_t length = 0;
    struct view view;
    bool shared = false;

    view_init(&view, device);
    uint64_t limit = fixture_random(&state) % 3 ? MODEL_BYTES : 500 * KIB;
    for (unsigned int step = 0; step < steps; step++) {
        uint64_t offset = fixture_random(&state) % limit;
        uint64_t count = 1 + fixture_random(&state) % (fixture_random(&state) % 2 ? 5000 : 3 * MIB);

        count = MIN(count, limit - offset);
        switch (fixture_random(&state) % 10) {
        default:
            fill(bytes, count, &state);
            assert_int_equal(buffer_write(buffer, offset, bytes, count, NULL), count);
            memcpy(model + offset, bytes, count);
            length = MAX(length, offset + count);
            break;
        case 0:
            if (fixture_random(&state) % 4 == 0)
                offset = 0;
            assert_int_equal(buffer_truncate(buffer, offset), 0);
            if (offset < length)
                memset(model + offset, 0, length - offset);
            length = offset;
            break;
        case 1:
            assert_int_equal(buffer_punch(buffer, offset, count), 0);
            memset(model + offset, 0, count);
            break;
        case 2:
            assert_int_equal(buffer_allocate(buffer, offset, count, step % 2), 0);
            if (step % 2 == 0)
                length = MAX(length, offset + count);
            break;
        case 3:
            buffer_trim(buffer);
            break;
        case 4: /* the program writes */
            if (!shared || length == 0)
                break;
            view_take(&view, buffer);
            offset %= length;
            count = MIN(count, length - offset);
            fill(bytes, count, &state);
            view_write(&view, offset, bytes, count);
            memcpy(model + offset, bytes, count);
            break;
        case 5:
            if (!shared && length > 0) {
                assert_int_equal(buffer_share_begin(buffer), 0);
                shared = true;
            } else if (shared && fixture_random(&state) % 4 == 0) {
                view_finish(&view);
                view_init(&view, device);
                buffer_share_end(buffer);
                shared = false;
            }
            break;
        }
        assert_int_equal(buffer_length_bytes(buffer), length);
        /* The mapping first: reading the buffer would wait for what is under way. */
        if (shared && length > 0) {
            assert_int_equal(view_take(&view, buffer), length);
            memset(scratch, 0x77, length);
            view_read(&view, 0, scratch, length);
            assert_same(scratch, model, length, "the mapping", step);
        }
        assert_int_equal(buffer_read(buffer, 0, scratch, MODEL_BYTES), length);
        assert_same(scratch, model, length, "the buffer", step);
    }
    if (shared)
        buffer_share_end(buffer);
    view_finish(&view);
    buffer_destroy(buffer);
    free(model);
    free(scratch);
    free(bytes);
}

static void test_random(void **unused)
{
    unsigned int seed = fixture_seed();
    (void)unused;
    for (unsigned int i = 0; i < 12; i++) {
        struct device *device = fixture_open("", NULL);
        random_steps(device, seed + i, 60);
        fixture_close(device);
    }
}

/* What a small buffer's block had around it is never in the chunk, and nothing comes to it. */
static void test_small(void **unused)
{
    struct device *device = fixture_open("", NULL);
    struct buffer *neighbours[8], *small = buffer_create(device, 1);
    unsigned char *chunk = malloc(UNIT_BYTES);
    struct view view;
    (void)unused;

    for (size_t i = 0; i < 4; i++) {
        neighbours[i] = buffer_create(device, 2 + i);
        put(neighbours[i], 0, 0xaa, 5000);
    }
    put(small, 0, 0x11, 3000);
    view_init(&view, device);
    assert_int_equal(buffer_share_begin(small), 0);
    view_take(&view, small);
    for (size_t i = 4; i < 8; i++) {
        neighbours[i] = buffer_create(device, 2 + i);
        put(neighbours[i], 0, 0xaa, 5000);
        assert_int_equal(buffer_flush(neighbours[i]), 0);
    }
    view_read(&view, 0, chunk, UNIT_BYTES);
    for (size_t i = 0; i < UNIT_BYTES; i++)
        assert_int_equal(chunk[i], i < 3000 ? 0x11 : 0);
    memset(chunk, 0xcc, UNIT_BYTES);
    view_write(&view, 0, chunk, UNIT_BYTES);
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(buffer_read(neighbours[i], 0, chunk, 5000), 5000);
        for (size_t k = 0; k < 5000; k++)
            assert_int_equal(chunk[k], 0xaa);
        buffer_destroy(neighbours[i]);
    }
    view_finish(&view);
    buffer_share_end(small);
    /* It goes back into a block; what the program left behind the end does not show. */
    assert_int_equal(buffer_truncate(small, 100000), 0);
    assert_int_equal(buffer_read(small, 0, chunk, 100000), 100000);
    for (size_t i = 0; i < 3000; i++)
        assert_int_equal(chunk[i], 0xcc);
    buffer_destroy(small);
    free(chunk);
    fixture_close(device);
}

/* Written between begin and prepare, an empty buffer must not be in a block. */
static void test_empty_written(void **unused)
{
    struct device *device = fixture_open("", NULL);
    struct buffer *buffer = buffer_create(device, 1), *neighbour = buffer_create(device, 2);
    uint64_t length, mapped;
    unsigned char byte;
    struct view view;
    (void)unused;

    put(neighbour, 0, 0xaa, 5000);
    view_init(&view, device);
    assert_int_equal(buffer_share_begin(buffer), 0);
    assert_int_equal(buffer_share_prepare(buffer, &length, &mapped), -ENODATA);
    put(buffer, 0, 0x11, 100);
    assert_int_equal(view_take(&view, buffer), 100);
    view_read(&view, 50, &byte, 1);
    assert_int_equal(byte, 0x11);
    view_write(&view, 60, "\x22", 1);
    assert_int_equal(buffer_read(buffer, 60, &byte, 1), 1);
    assert_int_equal(byte, 0x22);
    view_finish(&view);
    buffer_share_end(buffer);
    buffer_destroy(buffer);
    buffer_destroy(neighbour);
    fixture_close(device);
}

static void test_export_ranges(void **unused)
{
    struct device *device = fixture_open("", NULL);
    struct buffer *buffer = buffer_create(device, 1);
    struct buffer_share_chunk chunks[8];
    struct buffer_report report;
    uint64_t length, mapped;
    (void)unused;

    put(buffer, 0, 1, 100);
    assert_int_equal(buffer_share_export(buffer, 0, UINT64_MAX, chunks, 8), -EINVAL);
    assert_int_equal(buffer_share_begin(buffer), 0);
    buffer_get_report(buffer, &report);
    assert_int_equal(report.resident_bytes, UNIT_BYTES);
    assert_int_equal(buffer_share_prepare(buffer, &length, &mapped), 0);
    assert_int_equal(mapped, UNIT_BYTES);
    assert_int_equal(buffer_share_export(buffer, 1, UINT64_MAX, chunks, 8), 0);
    assert_int_equal(buffer_share_export(buffer, 0, 0, chunks, 8), 0);
    assert_int_equal(buffer_share_export(buffer, UNIT_BYTES, UINT64_MAX, chunks, 8), 0);
    assert_int_equal(buffer_share_export(buffer, 0, 1, chunks, 8), 1);
    close(chunks[0].descriptor);
    buffer_share_end(buffer);
    buffer_destroy(buffer);
    fixture_close(device);
}

static void test_memory_stays(void **unused)
{
    struct device *device = fixture_open("", NULL);
    struct buffer *buffer = buffer_create(device, 1);
    struct buffer_report report;
    struct view view;
    (void)unused;

    put(buffer, 0, 1, 5 * MIB);
    view_init(&view, device);
    assert_int_equal(buffer_share_begin(buffer), 0);
    assert_int_equal(buffer_share_begin(buffer), 0);
    view_take(&view, buffer);
    buffer_get_report(buffer, &report);
    uint64_t before = report.resident_bytes;
    assert_int_equal(report.shares, 2);
    assert_int_equal(buffer_truncate(buffer, 0), 0);
    buffer_trim(buffer);
    buffer_share_end(buffer);
    buffer_trim(buffer);
    buffer_get_report(buffer, &report);
    assert_int_equal(report.resident_bytes, before);
    view_finish(&view);
    buffer_share_end(buffer);
    buffer_get_report(buffer, &report);
    assert_int_equal(report.resident_bytes, 0);
    buffer_destroy(buffer);
    fixture_close(device);
}

static void test_no_room(void **unused)
{
    struct device *device = fixture_open("memory=64MiB", NULL);
    struct buffer *sparse = buffer_create(device, 1);
    struct buffer_report before, after;
    uint64_t length, mapped;
    (void)unused;

    assert_int_equal(buffer_truncate(sparse, 200 * MIB), 0);
    put(sparse, 100 * MIB, 1, 10);
    buffer_get_report(sparse, &before);
    assert_int_equal(buffer_share_begin(sparse), 0);
    assert_int_equal(buffer_share_prepare(sparse, &length, &mapped), -ENOSPC);
    buffer_share_end(sparse);
    buffer_get_report(sparse, &after);
    assert_true(after.resident_bytes <= MAX(before.resident_bytes, UNIT_BYTES));
    buffer_destroy(sparse);
    fixture_close(device);
}

/* Writers, a program that maps and looks, one that truncates. */
struct race {
    struct device *device;
    struct buffer *buffer;
    _Atomic bool stop;
};

static void *race_writer(void *data)
{
    struct race *race = data;
    unsigned char *bytes = malloc(MIB);

    device_attach_thread(race->device);
    memset(bytes, 0x55, MIB);
    for (uint64_t i = 0; !race->stop; i++)
        if (buffer_write(race->buffer, i % 7 * MIB, bytes, MIB - i % 1000, NULL) <= 0)
            fail_msg("a write failed");
    free(bytes);
    return NULL;
}

static void *race_changer(void *data)
{
    struct race *race = data;

    device_attach_thread(race->device);
    for (uint64_t i = 0; !race->stop; i++) {
        assert_int_equal(buffer_truncate(race->buffer, i % 5 * MIB), 0);
        assert_int_equal(buffer_punch(race->buffer, i % 3 * MIB, MIB), 0);
        buffer_trim(race->buffer);
        struct buffer_report report;
        buffer_get_report(race->buffer, &report);
    }
    return NULL;
}

static void test_threads(void **unused)
{
    struct device *device = fixture_open("", NULL);
    struct race race = {.device = device, .buffer = buffer_create(device, 1)};
    pthread_t threads[3];
    (void)unused;

    pthread_create(&threads[0], NULL, race_writer, &race);
    pthread_create(&threads[1], NULL, race_writer, &race);
    pthread_create(&threads[2], NULL, race_changer, &race);
    for (unsigned int i = 0; i < 60; i++) {
        struct buffer_share_chunk chunks[16];
        uint64_t length, mapped;

        assert_int_equal(buffer_share_begin(race.buffer), 0);
        errint_t error = buffer_share_prepare(race.buffer, &length, &mapped);
        assert_true(error == 0 || error == -ENODATA);
        ssize_t count =
            error == 0 ? buffer_share_export(race.buffer, 0, mapped, chunks, ARRAY_SIZE(chunks))
                       : 0;
        assert_true(count >= 0);
        while (count > 0)
            close(chunks[--count].descriptor);
        buffer_share_end(race.buffer);
    }
    race.stop = true;
    for (size_t i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    buffer_destroy(race.buffer);
    fixture_close(device);
}

/* -- attaching --------------------------------------------------------------------------------- */

/* Memory of a "program": exported here, so that it can be imported. */
struct own {
    CUmemGenericAllocationHandle handle;
    int descriptor;
    struct view view; /* of it */
};

static void own_init(struct own *own, struct device *device, uint64_t bytes)
{
    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {CU_MEM_LOCATION_TYPE_DEVICE, device->cuda_device},
    };
    CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    struct view *view = &own->view;

    view_init(view, device);
    CUDA(view, cuMemCreate(&view->handles[0], bytes, &properties, 0));
    CUDA(view, cuMemMap(view->address, bytes, 0, view->handles[0], 0));
    CUDA(view, cuMemSetAccess(view->address, bytes, &access, 1));
    view->lengths[0] = bytes;
    view->offsets[0] = 0;
    view->count = 1;
    CUDA(view, cuMemExportToShareableHandle(&own->descriptor, view->handles[0],
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

static void own_finish(struct own *own)
{
    close(own->descriptor);
    view_finish(&own->view);
}

static void test_attach(void **unused)
{
    struct device *device = fixture_open("", NULL);
    struct buffer *buffer = buffer_create(device, 1), *other = buffer_create(device, 2);
    struct buffer_report report;
    char message[256] = "";
    struct own own;
    (void)unused;

    own_init(&own, device, 4 * MIB);
    struct buffer_memory memory = {
        .kind = BUFFER_MEMORY_DESCRIPTOR,
        .offset = 1000,
        .length = 3 * MIB,
        .allocation_bytes = 4 * MIB,
        .descriptor = own.descriptor,
    };
    view_write(&own.view, 1000, "own", 3);
    assert_int_equal(buffer_attach(buffer, &memory, message, sizeof(message)), 0);
    char text[8] = "";
    assert_int_equal(buffer_read(buffer, 0, text, 3), 3);
    assert_string_equal(text, "own");
    put(buffer, 3 * MIB - 2, 0x33, 2);
    assert_int_equal(buffer_flush(buffer), 0);
    view_read(&own.view, 1000 + 3 * MIB - 2, text, 3);
    assert_int_equal(text[1], 0x33);
    assert_true(text[2] != 0x33);
    buffer_get_report(buffer, &report);
    assert_int_equal(report.state, BUFFER_ATTACHED);
    assert_int_equal(report.length_bytes, 3 * MIB);
    assert_int_equal(report.attached_bytes, 3 * MIB);
    assert_int_equal(report.resident_bytes, 0);
    assert_int_equal(buffer_truncate(buffer, 0), -EPERM);
    assert_int_equal(buffer_truncate(buffer, 3 * MIB + 1), -EPERM);
    assert_int_equal(buffer_truncate(buffer, 3 * MIB), 0);
    assert_int_equal(buffer_punch(buffer, 0, MIB), -EPERM);
    assert_int_equal(buffer_allocate(buffer, 0, MIB, true), -EPERM);
    assert_int_equal(buffer_write(buffer, 3 * MIB, "x", 1, NULL), -EPERM);
    assert_int_equal(buffer_write(buffer, 3 * MIB - 1, "xy", 2, NULL), 1);
    assert_int_equal(buffer_share_begin(buffer), -EPERM);
    assert_int_equal(buffer_attach(buffer, &memory, message, sizeof(message)), -EEXIST);
    put(other, 0, 1, 10);
    assert_int_equal(buffer_attach(other, &memory, message, sizeof(message)), -EEXIST);
    assert_int_equal(buffer_truncate(other, 0), 0);
    assert_int_equal(buffer_share_begin(other), 0);
    assert_int_equal(buffer_attach(other, &memory, message, sizeof(message)), -EEXIST);
    buffer_share_end(other);
    buffer_trim(buffer);
    buffer_detach(buffer);
    assert_int_equal(buffer_read(buffer, 0, text, 3), -EIO);
    assert_int_equal(buffer_write(buffer, 0, text, 3, NULL), -EIO);
    assert_int_equal(buffer_flush(buffer), 0);
    assert_int_equal(buffer_length_bytes(buffer), 3 * MIB);
    buffer_get_report(buffer, &report);
    assert_int_equal(report.state, BUFFER_DETACHED);
    assert_int_equal(report.attached_bytes, 0);
    buffer_destroy(buffer);
    buffer_destroy(other);
    own_finish(&own);
    fixture_close(device);
}

static void test_attach_ranges(void **unused)
{
    struct device *device = fixture_open("", NULL);
    static const struct {
        uint64_t offset, length, allocation;
    } bad[] = {
        {0, 4 * MIB + 1, 4 * MIB},
        {4 * MIB, 1, 4 * MIB},
        {4 * MIB + 1, 1, 4 * MIB},
        {UINT64_MAX, 1, 4 * MIB},
        {1, UINT64_MAX, 4 * MIB},
        {UINT64_MAX - 1, UINT64_MAX - 1, 4 * MIB},
        {0, 0, 4 * MIB},
        {0, 1, 0},
        {0, 1, 4 * MIB + 1},
        {5 * MIB, 1, 8 * MIB}, /* more than the allocation really has */
        {0, 1, UINT64_MAX - (UNIT_BYTES - 1)},
    };
    char message[256];
    struct own own;
    (void)unused;

    own_init(&own, device, 4 * MIB);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct buffer *buffer = buffer_create(device, i);
        struct buffer_memory memory = {
            .kind = BUFFER_MEMORY_DESCRIPTOR,
            .offset = bad[i].offset,
            .length = bad[i].length,
            .allocation_bytes = bad[i].allocation,
            .descriptor = own.descriptor,
        };
        message[0] = 0;
        assert_int_equal(buffer_attach(buffer, &memory, message, sizeof(message)), -EINVAL);
        assert_true(message[0] != 0);
        assert_int_equal(buffer_length_bytes(buffer), 0);
        put(buffer, 0, 1, 10); /* as if nothing had been */
        buffer_destroy(buffer);
    }
    own_finish(&own);
    fixture_close(device);
}

static void *race_reader(void *data)
{
    struct race *race = data;
    unsigned char *bytes = malloc(MIB);
    ssize_t done = 0;

    device_attach_thread(race->device);
    for (uint64_t i = 0; done >= 0; i++)
        done = i % 2 ? buffer_read(race->buffer, 0, bytes, MIB)
                     : buffer_write(race->buffer, i % 3 * MIB, bytes, MIB, NULL);
    free(bytes);
    return (void *)(intptr_t)done;
}

/* Detached under readers and writers: each ends with EIO, and nothing touches the memory then. */
static void test_detach_race(void **unused)
{
    (void)unused;
    for (unsigned int round = 0; round < 20; round++) {
        struct device *device = fixture_open("", NULL);
        struct race race = {.device = device, .buffer = buffer_create(device, 1)};
        pthread_t threads[3];
        char message[256];
        struct own own;

        own_init(&own, device, 4 * MIB);
        struct buffer_memory memory = {
            .kind = BUFFER_MEMORY_DESCRIPTOR,
            .length = 4 * MIB,
            .allocation_bytes = 4 * MIB,
            .descriptor = own.descriptor,
        };
        assert_int_equal(buffer_attach(race.buffer, &memory, message, sizeof(message)), 0);
        for (size_t i = 0; i < 3; i++)
            pthread_create(&threads[i], NULL, race_reader, &race);
        usleep(1000 * (round % 5));
        buffer_detach(race.buffer);
        own_finish(&own);
        for (size_t i = 0; i < 3; i++) {
            void *result;
            pthread_join(threads[i], &result);
            assert_int_equal((intptr_t)result, -EIO);
        }
        buffer_destroy(race.buffer);
        fixture_close(device);
    }
}

/* Without an end: as when the owner of the last reference destroys it. */
static void test_destroy_attached(void **unused)
{
    struct device *device = fixture_open("", NULL);
    struct buffer *buffer = buffer_create(device, 1);
    char message[256];
    struct own own;
    (void)unused;

    own_init(&own, device, 2 * MIB);
    struct buffer_memory memory = {
        .kind = BUFFER_MEMORY_DESCRIPTOR,
        .length = 2 * MIB,
        .allocation_bytes = 2 * MIB,
        .descriptor = own.descriptor,
    };
    assert_int_equal(buffer_attach(buffer, &memory, message, sizeof(message)), 0);
    put(buffer, 0, 1, MIB);
    buffer_destroy(buffer);
    own_finish(&own);
    fixture_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),           cmocka_unit_test(test_small),
        cmocka_unit_test(test_empty_written),    cmocka_unit_test(test_export_ranges),
        cmocka_unit_test(test_memory_stays),     cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_threads),          cmocka_unit_test(test_attach),
        cmocka_unit_test(test_attach_ranges),    cmocka_unit_test(test_detach_race),
        cmocka_unit_test(test_destroy_attached),
    };
    if (!fixture_is_emulated())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
