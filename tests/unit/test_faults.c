/*
 * Every entry point of the driver that a scripted workload calls fails once, at every position (or
 * at a sample of them: FAULT_POSITIONS, 0 for all), at once, late, unproven or for good. Each case
 * is a process of its own, so that nothing that one leaves behind is seen by the next. Timeout:
 * 500 s.
 */
#include "fixture.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "core/buffer.h"
#include "core/driver/cuda_entry_points.h"

static const char *const entries[] = {
#define NAME(name, suffix, asked, need, parameters) #name,
    CUDA_ENTRY_POINTS(NAME)
#undef NAME
};

#define ENTRIES      ARRAY_SIZE(entries)
#define FILE_BYTES   (6 * MIB)
#define CASE_SECONDS 30
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DEFAULT_CALLS 2
#else
#define DEFAULT_CALLS 5
#endif

/* Written by the case's process. */
static uint64_t *calls;

/* In a case's process an assertion cannot jump back to cmocka. */
#define CHECK(condition, ...)                                      \
    do {                                                           \
        if (!(condition)) {                                        \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            printf(__VA_ARGS__);                                   \
            printf("\n");                                          \
            fflush(stdout);                                        \
            _exit(1);                                              \
        }                                                          \
    } while (0)

static uint64_t call_count(const char *entry)
{
    uint64_t (*count)(const char *) =
        (uint64_t(*)(const char *))fixture_hook("residentfs_emulated_call_count");

    return count(entry);
}

/* -- the workload ------------------------------------------------------------------------------ */

/* A byte of the model is known, or since a failure it is one of those that the file ever had. */
struct file {
    struct buffer *buffer;
    unsigned char first, last; /* the bytes that were ever written to it, besides 0 */
    unsigned char *bytes;
    bool *unknown, *unflushed;
    uint64_t length;
    uint64_t cursors[2];
    unsigned int errors[2]; /* that each opener was told */
};

struct run {
    struct device *device;
    struct file files[3];
    struct pinned_memory payload, reply;
    struct upload_fence fence;
    bool usable; /* payload and fence are */
    unsigned int failures;
};

static void check_errno(struct run *run, int64_t result)
{
    if (result >= 0)
        return;
    run->failures++;
    CHECK(result == -EIO || result == -ENOSPC || result == -ENOMEM, "%lld", (long long)result);
}

static void doubt(struct file *file, uint64_t offset, uint64_t length)
{
    memset(file->unknown + offset, true, MIN(length, FILE_BYTES - offset));
}

static void file_open(struct run *run, size_t index, unsigned char first)
{
    struct file *file = &run->files[index];

    *file = (struct file){.buffer = buffer_create(run->device, index + 1),
                          .first = first,
                          .last = (unsigned char)(first + 15),
                          .bytes = calloc(1, FILE_BYTES),
                          .unknown = calloc(1, FILE_BYTES),
                          .unflushed = calloc(1, FILE_BYTES)};
    CHECK(file->buffer, "no buffer");
    for (size_t i = 0; i < 2; i++)
        file->cursors[i] = buffer_error_sample(file->buffer);
}

static void payload_init(struct run *run)
{
    errint_t err = pinned_memory_init(run->device, &run->payload, 3 * MIB);

    CHECK(err == 0, "%d", err);
    err = upload_fence_init(run->device, &run->fence);
    check_errno(run, err);
    run->usable = err == 0;
}

static void payload_wait(struct run *run)
{
    if (!run->usable || upload_fence_wait(&run->fence) == 0)
        return;
    run->failures++;
    pinned_memory_quarantine(run->device, &run->payload);
    upload_fence_finish(&run->fence);
    payload_init(run);
}

static void file_write(struct run *run, size_t index, uint64_t offset, size_t length, bool direct)
{
    struct file *file = &run->files[index];
    static unsigned int turn;
    unsigned char byte = (unsigned char)(file->first + turn++ % 16);

    payload_wait(run);
    memset(run->payload.bytes, byte, length);
    ssize_t done = buffer_write(file->buffer, offset, run->payload.bytes, length,
                                direct && run->usable ? &run->fence : NULL);
    check_errno(run, done);
    CHECK(done <= (ssize_t)length && done != 0, "%zd", done);
    if (done < (ssize_t)length)
        doubt(file, offset, length);
    if (done > 0) {
        memset(file->bytes + offset, byte, (size_t)done);
        memset(file->unflushed + offset, true, (size_t)done);
        file->length = MAX(file->length, offset + (uint64_t)done);
    }
    /* Taken over, unless a fence says otherwise. */
    if (!run->fence.pending)
        memset(run->payload.bytes, 0xee, length);
    CHECK(buffer_length_bytes(file->buffer) == file->length, "%llu, not %llu",
          (unsigned long long)buffer_length_bytes(file->buffer), (unsigned long long)file->length);
}

/* Both openers ask; who is told once is not told again. */
static void file_flush(struct run *run, size_t index)
{
    struct file *file = &run->files[index];
    errint_t err = buffer_flush(file->buffer);

    check_errno(run, err);
    for (size_t i = 0; i < 2; i++) {
        errint_t told = buffer_error_check(file->buffer, &file->cursors[i]);
        check_errno(run, told);
        file->errors[i] += told < 0;
        err = err < 0 ? err : told;
        CHECK(buffer_error_check(file->buffer, &file->cursors[i]) == 0, "told twice");
    }
    CHECK(file->errors[0] == file->errors[1], "%u and %u", file->errors[0], file->errors[1]);
    for (uint64_t i = 0; err < 0 && i < FILE_BYTES; i++)
        file->unknown[i] |= file->unflushed[i];
    memset(file->unflushed, false, FILE_BYTES);
}

static void check_bytes(const struct file *file, uint64_t offset, const unsigned char *bytes,
                        size_t length)
{
    if (memcmp(bytes, file->bytes + offset, length) == 0)
        return;
    for (size_t i = 0; i < length; i++) {
        uint64_t at = offset + i;
        bool own = bytes[i] == 0 || (bytes[i] >= file->first && bytes[i] <= file->last);
        CHECK(own, "byte %llu is %02x, which was never written", (unsigned long long)at, bytes[i]);
        /* What was accepted but not flushed may be lost, which the flush will say. */
        CHECK(bytes[i] == file->bytes[at] || file->unknown[at] || file->unflushed[at],
              "byte %llu is %02x, not %02x", (unsigned long long)at, bytes[i], file->bytes[at]);
    }
}

/* At the end, with faults gone, a read must succeed unless the buffer is given up. */
static void file_read(struct run *run, size_t index, uint64_t offset, size_t length, bool must)
{
    struct file *file = &run->files[index];
    struct buffer_report report;
    ssize_t got = buffer_read(file->buffer, offset, run->reply.bytes, length);

    if (got == -ENOTRECOVERABLE) {
        run->failures++;
        pinned_memory_quarantine(run->device, &run->reply);
        CHECK(pinned_memory_init(run->device, &run->reply, FILE_BYTES) == 0, "no memory");
        return;
    }
    check_errno(run, got);
    buffer_get_report(file->buffer, &report);
    CHECK(got >= 0 || !must || device_is_lost(run->device) || report.state == BUFFER_FAILED, "%zd",
          got);
    if (got < 0)
        return;
    uint64_t want = offset >= file->length ? 0 : MIN(length, file->length - offset);
    CHECK((uint64_t)got == want, "%zd", got);
    check_bytes(file, offset, run->reply.bytes, (size_t)got);
}

static void file_read_ranges(struct run *run, size_t index)
{
    struct file *file = &run->files[index];
    unsigned char *bytes = run->reply.bytes;
    struct buffer_range ranges[3] = {
        {100, 5000, bytes}, {3000, 9000, bytes + 10000}, {2 * MIB - 50, 100, bytes + 20000}};
    size_t done[3];
    errint_t err = buffer_read_ranges(file->buffer, ranges, 3, done);

    check_errno(run, err);
    for (size_t i = 0; err == 0 && i < 3; i++)
        check_bytes(file, ranges[i].offset, ranges[i].bytes, done[i]);
}

static void file_truncate(struct run *run, size_t index, uint64_t length)
{
    struct file *file = &run->files[index];
    errint_t err = buffer_truncate(file->buffer, length);
    uint64_t old = file->length;

    check_errno(run, err);
    file->length = err < 0 ? old : length;
    CHECK(buffer_length_bytes(file->buffer) == file->length, "length");
    if (length < old) {
        if (err < 0)
            doubt(file, length, old - length);
        else
            memset(file->unknown + length, false, FILE_BYTES - length);
        memset(file->bytes + length, 0, FILE_BYTES - length);
        memset(file->unflushed + length, err == 0, old - length);
    }
}

static void file_punch(struct run *run, size_t index, uint64_t offset, uint64_t length)
{
    struct file *file = &run->files[index];
    errint_t err = buffer_punch(file->buffer, offset, length);

    check_errno(run, err);
    memset(file->bytes + offset, 0, length);
    memset(file->unflushed + offset, true, length);
    if (err < 0)
        doubt(file, offset, length);
}

static void file_allocate(struct run *run, size_t index, uint64_t offset, uint64_t length)
{
    struct file *file = &run->files[index];
    errint_t err = buffer_allocate(file->buffer, offset, length, false);

    check_errno(run, err);
    if (err == 0)
        file->length = MAX(file->length, offset + length);
    CHECK(buffer_length_bytes(file->buffer) == file->length, "length");
}

static void file_copy(struct run *run, size_t from, size_t to, uint64_t offset, size_t length)
{
    struct file *source = &run->files[from], *file = &run->files[to];
    ssize_t done = buffer_copy(source->buffer, 0, file->buffer, offset, length);

    check_errno(run, done);
    if (done < (ssize_t)length)
        doubt(file, offset, length);
    file->length = MAX(file->length, MIN(buffer_length_bytes(file->buffer), offset + length));
    for (uint64_t i = 0; i < (uint64_t)MAX(done, 0); i++) {
        file->bytes[offset + i] = source->bytes[i];
        file->unknown[offset + i] = source->unknown[i] || source->unflushed[i];
        file->unflushed[offset + i] = true;
    }
}

static void work(struct run *run)
{
    unsigned char first = 0x10;

    CHECK(pinned_memory_init(run->device, &run->reply, FILE_BYTES) == 0, "no memory");
    payload_init(run);
    file_open(run, 0, first);
    file_open(run, 1, first);
    file_open(run, 2, 0x40);
    /* Another file's bytes lie in the memory that the others will get. */
    file_write(run, 2, 0, 3 * MIB, true);
    file_write(run, 2, 100, 1000, false);
    file_flush(run, 2);
    file_truncate(run, 2, 0);
    file_write(run, 2, 0, 20000, false);

    file_write(run, 0, 0, 3000, false);
    file_write(run, 0, 3000, 3000, false);
    file_write(run, 0, 50000, 100, false);
    file_read(run, 0, 0, 60000, false);
    file_write(run, 0, 100 * KIB, 300 * KIB, true);
    file_flush(run, 0);
    file_write(run, 1, 10, 700, false);
    file_write(run, 0, 3 * MIB, 1 * MIB + 77, true);
    file_write(run, 0, 10, 10, false);
    file_write(run, 0, 2000, 300 * KIB, false);
    file_write(run, 0, 700 * KIB, 1500 * KIB, false);
    file_read_ranges(run, 0);
    file_read(run, 0, 0, FILE_BYTES, false);
    file_flush(run, 0);
    file_allocate(run, 1, 0, 5 * MIB);
    file_copy(run, 0, 1, 1000, 4 * MIB);
    file_punch(run, 0, 1 * MIB, 2 * MIB + 500);
    file_punch(run, 1, 2 * MIB, 2 * MIB);
    file_flush(run, 1);
    file_read(run, 1, 0, FILE_BYTES, false);
    file_truncate(run, 0, 200 * KIB + 5);
    file_truncate(run, 0, 1 * MIB);
    buffer_trim(run->files[0].buffer);
    file_write(run, 0, 150 * KIB, 900 * KIB, false);
    buffer_trim(run->files[1].buffer);
    file_read(run, 0, 0, 2 * MIB, false);
    file_flush(run, 0);
    file_flush(run, 1);
    file_flush(run, 2);
    check_errno(run, device_flush(run->device));
    payload_wait(run);
}

static void finish(struct run *run)
{
    for (size_t i = 0; i < 3; i++) {
        struct file *file = &run->files[i];
        file_flush(run, i);
        file_read(run, i, 0, FILE_BYTES, true);
        /* Whatever happened, an empty file is as new, while there is a device. */
        CHECK(buffer_truncate(file->buffer, 0) == 0, "cannot be emptied");
        if (!device_is_lost(run->device)) {
            char back[5] = "";
            CHECK(buffer_write(file->buffer, 0, "again", 5, NULL) == 5, "cannot be written again");
            CHECK(buffer_read(file->buffer, 0, back, 5) == 5 && !memcmp(back, "again", 5), "%.5s",
                  back);
        }
        buffer_destroy(file->buffer);
        free(file->bytes);
        free(file->unknown);
        free(file->unflushed);
    }
    payload_wait(run);
    if (run->usable && device_is_lost(run->device) && run->fence.pending)
        pinned_memory_quarantine(run->device, &run->payload);
    upload_fence_finish(&run->fence);
    pinned_memory_finish(run->device, &run->payload);
    pinned_memory_finish(run->device, &run->reply);
}

/* -- one case ---------------------------------------------------------------------------------- */

/* One that is left, because giving it back is what failed. */
static bool excused(const char *fault, const char *entry)
{
    return strstr(fault, entry) != NULL;
}

static void check_nothing_left(const char *fault)
{
    struct residentfs_emulated_stats stats = fixture_stats();
    bool release = excused(fault, "cuMemUnmap") || excused(fault, "cuMemRelease") ||
                   excused(fault, "cuMemAddressFree");

    CHECK(stats.streams <= excused(fault, "cuStreamDestroy"), "%llu streams",
          (unsigned long long)stats.streams);
    CHECK(stats.events <= excused(fault, "cuEventDestroy"), "%llu events",
          (unsigned long long)stats.events);
    CHECK(stats.physical_bytes == 0 || release, "%llu bytes",
          (unsigned long long)stats.physical_bytes);
    CHECK(stats.handles <= release, "%llu handles", (unsigned long long)stats.handles);
    CHECK(stats.reservations <= release, "%llu reservations",
          (unsigned long long)stats.reservations);
    CHECK(stats.mappings <= release, "%llu mappings", (unsigned long long)stats.mappings);
    CHECK(stats.host_ranges <= excused(fault, "cuMemHostUnregister"), "%llu host ranges",
          (unsigned long long)stats.host_ranges);
    CHECK(stats.queued == 0, "%llu queued", (unsigned long long)stats.queued);
}

static void run_case(const char *order, const char *fault)
{
    struct device_options options = {
        .budget = {.kind = BUDGET_AUTO},
        .staging_bytes = 1 * MIB,
        .upload_streams = 1,
        .flush_interval_ms = 3600 * 1000, /* the same calls each time */
        .direct_threshold_bytes = 64 * KIB,
    };
    struct device_selector selector = {
        .driver = DEVICE_DRIVER_EMULATED, .select = DEVICE_SELECT_INDEX, .text = "emulated"};
    struct run run = {0};
    char message[512] = "";

    alarm(CASE_SECONDS);
    fixture_configure(FIXTURE_DEFAULTS);
    fixture_configure(order);
    fixture_configure(fault);
    errint_t err = device_open(&selector, &options, &run.device, message, sizeof(message));
    if (err < 0) {
        CHECK(strlen(message) > 10, "no message");
        fixture_configure("fault=none");
        if (!strstr(fault, "sticky"))
            check_nothing_left(fault);
        CHECK(fixture_stats().contexts <= excused(fault, "cuDevicePrimaryCtxRelease"), "context");
        exit(0);
    }
    work(&run);
    if (!device_is_lost(run.device))
        fixture_configure("fault=none");
    finish(&run);

    struct telemetry_snapshot snapshot;
    struct budget_report report;
    telemetry_take_snapshot(device_telemetry(run.device), &snapshot);
    device_get_budget_report(run.device, &report);
    bool quarantine = snapshot.counters[TELEMETRY_QUARANTINED_BYTES] > 0 ||
                      snapshot.counters[TELEMETRY_QUARANTINED_STREAMS] > 0;
    bool lost = device_is_lost(run.device);
    if (!quarantine || lost)
        CHECK(report.resident_bytes == 0, "%llu", (unsigned long long)report.resident_bytes);
    CHECK(quarantine || strstr(fault, "sticky") || strstr(fault, "unproven") || !lost, "lost");
    for (size_t i = 0; i < ENTRIES; i++)
        calls[i] = call_count(entries[i]);
    device_close(run.device);
    for (size_t i = 0; i < ENTRIES; i++)
        calls[i] = MAX(calls[i], call_count(entries[i]));
    if (!quarantine && !lost)
        check_nothing_left(fault);
    CHECK(fixture_stats().contexts <= excused(fault, "cuDevicePrimaryCtxRelease"), "context");
    CHECK(fixture_stats().hazards == 0, "hazards");
    if (strcmp(fault, "fault=none") == 0)
        CHECK(run.failures == 0, "%u calls failed", run.failures);
    exit(0);
}

/* Returns whether the case held; shows what it printed if not. */
static bool case_holds(const char *order, const char *fault)
{
    FILE *output = tmpfile();
    int status = 0;

    fflush(stdout);
    fflush(stderr);
    pid_t child = fork();
    if (child == 0) {
        dup2(fileno(output), STDOUT_FILENO);
        dup2(fileno(output), STDERR_FILENO);
        run_case(order, fault);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    bool held = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!held) {
        char line[400];
        printf("%s;%s: %s %d\n", order, fault, WIFSIGNALED(status) ? "signal" : "status",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        rewind(output);
        while (fgets(line, sizeof(line), output))
            printf("    %s", line);
    }
    fclose(output);
    return held;
}

/* -- every case -------------------------------------------------------------------------------- */

static uint64_t limit_of_positions(void)
{
    const char *text = getenv("FAULT_POSITIONS");
    uint64_t limit = text ? strtoull(text, NULL, 10) : DEFAULT_CALLS;

    return limit ? limit : UINT64_MAX;
}

static bool is_copy(const char *entry)
{
    return strncmp(entry, "cuMemcpy", 8) == 0 || strncmp(entry, "cuMemset", 8) == 0;
}

static bool is_fence(const char *entry)
{
    return strstr(entry, "Synchronize") || strstr(entry, "Query");
}

/* WHICH says for which entry points; RESULT is the rest of the rule. */
static void inject(const char *order, const char *result, bool (*which)(const char *))
{
    uint64_t state = fixture_seed(), limit = limit_of_positions();
    uint64_t counts[ENTRIES];
    unsigned int cases = 0, failed = 0;
    char fault[128];

    assert_true(case_holds(order, "fault=none"));
    memcpy(counts, calls, sizeof(counts));
    for (size_t i = 0; i < ENTRIES; i++) {
        if (counts[i] == 0 || (which && !which(entries[i])))
            continue;
        for (uint64_t nth = 1; nth <= counts[i]; nth++) {
            /* The first ones, the last one, and some between. */
            bool some = nth <= limit / 2 || nth == counts[i] ||
                        fixture_random(&state) % counts[i] < limit / 2;
            if (counts[i] > limit && !some)
                continue;
            snprintf(fault, sizeof(fault), "fault=%s:%llu:%s", entries[i], (unsigned long long)nth,
                     result);
            cases++;
            failed += !case_holds(order, fault);
        }
    }
    print_message("%u faults injected, %u were not survived\n", cases, failed);
    assert_true(cases > 0);
    assert_int_equal(failed, 0);
}

static void each_call_may_fail_with_an_invalid_value(void **unused)
{
    (void)unused;
    inject("order=random", "CUDA_ERROR_INVALID_VALUE", NULL);
}

static void each_call_may_fail_for_want_of_memory_without_batched_copies(void **unused)
{
    (void)unused;
    inject("order=sync;batch=off", "CUDA_ERROR_OUT_OF_MEMORY", NULL);
}

static void each_call_may_lose_the_device(void **unused)
{
    (void)unused;
    inject("order=random", "CUDA_ERROR_ILLEGAL_ADDRESS:sticky", NULL);
}

static void each_copy_may_fail_late(void **unused)
{
    (void)unused;
    inject("order=random", "CUDA_ERROR_INVALID_VALUE:late", is_copy);
}

static void each_copy_may_stay_unproven(void **unused)
{
    (void)unused;
    inject("order=random", "CUDA_ERROR_INVALID_VALUE:unproven", is_copy);
}

static void each_fence_may_stay_unproven(void **unused)
{
    (void)unused;
    inject("order=random", "CUDA_ERROR_INVALID_VALUE:unproven", is_fence);
}

/* FAULT_CASE="fault=..." runs one case in this process, for a debugger. */
int main(void)
{
    calls = mmap(NULL, sizeof(*calls) * ENTRIES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                 -1, 0);
    if (getenv("FAULT_CASE"))
        run_case(getenv("FAULT_ORDER") ? getenv("FAULT_ORDER") : "order=random",
                 getenv("FAULT_CASE"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_may_fail_with_an_invalid_value),
        cmocka_unit_test(each_call_may_fail_for_want_of_memory_without_batched_copies),
        cmocka_unit_test(each_call_may_lose_the_device),
        cmocka_unit_test(each_copy_may_fail_late),
        cmocka_unit_test(each_copy_may_stay_unproven),
        cmocka_unit_test(each_fence_may_stay_unproven),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
