/* Bytes that are nobody's business afterwards. Timeout: 60 s. */
#include "fixture.h"

#include "core/buffer.h"
#include "core/device_internal.h"

/* What is found in chunks at the moment at which they are unmapped, which comes before freeing. */
static struct {
    CUresult (*unmap)(CUdeviceptr address, size_t bytes);
    const struct driver *driver;
    CUstream stream;
    unsigned int chunks, with_secret;
} watch;

static const char secret[] = "a secret that must not be found in memory that was given back";

static CUresult watching_unmap(CUdeviceptr address, size_t bytes)
{
    cleanup_free char *content = malloc(bytes);

    assert_int_equal(watch.driver->cuMemcpyDtoHAsync(content, address, bytes, watch.stream), 0);
    assert_int_equal(watch.driver->cuStreamSynchronize(watch.stream), 0);
    watch.chunks++;
    watch.with_secret += memmem(content, bytes, secret, sizeof(secret)) != NULL;
    return watch.unmap(address, bytes);
}

static struct device *open_watched(bool scrub, const char *settings)
{
    struct device_options options = {
        .budget = {.kind = BUDGET_AUTO},
        .staging_bytes = 1 * MIB,
        .upload_streams = 2,
        .flush_interval_ms = 5,
        .direct_threshold_bytes = 64 * KIB,
        .scrub = scrub,
    };
    struct device *device = fixture_open(settings, &options);

    memset(&watch, 0, sizeof(watch));
    watch.driver = device->driver;
    watch.unmap = device->driver->cuMemUnmap;
    assert_int_equal(device->driver->cuStreamCreate(&watch.stream, CU_STREAM_NON_BLOCKING), 0);
    device->driver->cuMemUnmap = watching_unmap;
    return device;
}

static void close_watched(struct device *device)
{
    device->driver->cuMemUnmap = watch.unmap;
    assert_int_equal(device->driver->cuStreamDestroy(watch.stream), 0);
    fixture_close(device);
}

/* Small and large, deleted, shrunk and punched. */
static void write_and_delete(struct device *device)
{
    static const uint64_t offsets[] = {0, 5000, 3 * MIB, 9 * MIB};

    for (size_t i = 0; i < ARRAY_SIZE(offsets); i++) {
        struct buffer *buffer = buffer_create(device, i);
        assert_int_equal(buffer_write(buffer, offsets[i], secret, sizeof(secret), NULL),
                         sizeof(secret));
        assert_int_equal(buffer_write(buffer, 20 * MIB, secret, sizeof(secret), NULL),
                         sizeof(secret));
        if (i % 2 == 0)
            assert_int_equal(buffer_truncate(buffer, offsets[i]), 0);
        else
            assert_int_equal(buffer_punch(buffer, 0, 21 * MIB), 0);
        buffer_destroy(buffer);
    }
}

static void with_scrub_nothing_is_left_in_memory_that_goes_back(void **unused)
{
    (void)unused;
    struct device *device = open_watched(true, "");

    write_and_delete(device);
    assert_true(watch.chunks >= 4);
    assert_int_equal(watch.with_secret, 0);
    close_watched(device);
}

/* So that the test above can fail. */
static void without_scrub_it_would_be_found(void **unused)
{
    (void)unused;
    struct device *device = open_watched(false, "");

    write_and_delete(device);
    assert_true(watch.with_secret > 0);
    close_watched(device);
}

static void memory_that_a_program_may_have_mapped_is_left_alone(void **unused)
{
    (void)unused;
    struct device *device = open_watched(true, "");
    struct buffer *buffer = buffer_create(device, 1);
    struct buffer_share_chunk chunk;
    uint64_t length, mapped_length;

    assert_int_equal(buffer_write(buffer, 0, secret, sizeof(secret), NULL), sizeof(secret));
    assert_int_equal(buffer_share_begin(buffer), 0);
    assert_int_equal(buffer_share_prepare(buffer, &length, &mapped_length), 0);
    assert_int_equal(buffer_share_export(buffer, 0, mapped_length, &chunk, 1), 1);
    close(chunk.descriptor);
    watch.chunks = watch.with_secret = 0;
    buffer_destroy(buffer);
    assert_int_equal(watch.chunks, 1);
    assert_int_equal(watch.with_secret, 1);
    close_watched(device);
}

/* A scrub that fails must neither free what a memset may still write to, nor hang. */
static void a_scrub_that_fails_is_survived(void **unused)
{
    (void)unused;
    struct device *device = open_watched(true, "");
    struct buffer *buffer = buffer_create(device, 1);

    assert_int_equal(buffer_write(buffer, 0, secret, sizeof(secret), NULL), sizeof(secret));
    assert_int_equal(buffer_flush(buffer), 0);
    fixture_configure("fault=cuMemsetD8Async:1:1");
    buffer_destroy(buffer);
    fixture_configure("fault=none");
    assert_int_equal(watch.chunks, 1);
    close_watched(device);
}

/* The flags of the mapping that ADDRESS is in, of /proc/self/smaps. */
static void find_flags(const void *address, char *flags, size_t flags_bytes)
{
    FILE *maps = fopen("/proc/self/smaps", "re");
    char line[512];
    bool inside = false;

    flags[0] = 0;
    assert_non_null(maps);
    while (fgets(line, sizeof(line), maps)) {
        uintptr_t from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = (uintptr_t)address >= from && (uintptr_t)address < to;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0)
            snprintf(flags, flags_bytes, "%s", line + 8);
    }
    fclose(maps);
}

static void staging_is_left_out_of_core_dumps(void **unused)
{
    (void)unused;
    struct device *device = fixture_open("", NULL);
    struct pinned_memory small, large;
    char flags[512];

    assert_int_equal(pinned_memory_init(device, &small, 4 * KIB), 0);
    assert_int_equal(pinned_memory_init(device, &large, 4 * MIB), 0);
    find_flags(small.bytes, flags, sizeof(flags));
    assert_non_null(strstr(flags, " dd"));
    find_flags(large.bytes, flags, sizeof(flags));
    assert_non_null(strstr(flags, " dd"));
    pinned_memory_finish(device, &small);
    pinned_memory_finish(device, &large);
    fixture_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_scrub_nothing_is_left_in_memory_that_goes_back),
        cmocka_unit_test(without_scrub_it_would_be_found),
        cmocka_unit_test(memory_that_a_program_may_have_mapped_is_left_alone),
        cmocka_unit_test(a_scrub_that_fails_is_survived),
        cmocka_unit_test(staging_is_left_out_of_core_dumps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
