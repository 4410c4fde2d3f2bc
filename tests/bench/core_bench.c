/*
 * What core/ alone can do on a device, without a file system in front of it: writes from
 * page-locked memory in place, gathered ones, in order and scattered, reads, growth, copies on the
 * device.
 *
 *   core_bench DEVICE [GIB]
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/buffer.h"

#define THREADS_MAX 16
#define WINDOW      (1 * MIB)
#define SCATTER     1000003 /* a prime, so that every place has its turn */

struct load {
    struct device *device;
    struct buffer *buffer;
    uint64_t start, bytes;
    size_t request;
    bool write, direct, scattered;
    long failures;
};

/* Where the Nth of COUNT requests is: one behind the other, or far from the one before. */
static uint64_t place_of(const struct load *load, uint64_t n, uint64_t count)
{
    return load->scattered ? n * SCATTER % count : n;
}

static void *run_load(void *data)
{
    struct load *load = data;
    struct pinned_memory memory[2];
    struct upload_fence fences[2];

    device_attach_thread(load->device);
    for (int i = 0; i < 2; i++) {
        if (pinned_memory_init(load->device, &memory[i], MAX(load->request, WINDOW)) < 0 ||
            upload_fence_init(load->device, &fences[i]) < 0)
            exit(1);
        memset(memory[i].bytes, i + 1, memory[i].length);
    }
    for (uint64_t n = 0, count = load->bytes / load->request; n < count; n++) {
        struct pinned_memory *m = &memory[n % 2];
        uint64_t at = place_of(load, n, count) * load->request;
        ssize_t done;
        if (load->write) {
            upload_fence_wait(&fences[n % 2]);
            done = buffer_write(load->buffer, load->start + at, m->bytes, load->request,
                                load->direct ? &fences[n % 2] : NULL);
        } else {
            done = buffer_read(load->buffer, load->start + at, m->bytes, load->request);
        }
        load->failures += done != (ssize_t)load->request;
    }
    if (load->write)
        load->failures += buffer_flush(load->buffer) != 0;
    for (int i = 0; i < 2; i++) {
        upload_fence_wait(&fences[i]);
        upload_fence_finish(&fences[i]);
        pinned_memory_finish(load->device, &memory[i]);
    }
    return NULL;
}

enum way { READ, DIRECT, GATHERED, SCATTERED_DIRECT, SCATTERED_GATHERED };

static void measure(struct device *device, struct buffer *buffer, const char *name, enum way way,
                    size_t request, int threads, uint64_t bytes)
{
    struct load loads[THREADS_MAX];
    pthread_t ids[THREADS_MAX];
    long failures = 0;
    uint64_t part = align_down(bytes / (uint64_t)threads, request), begin = monotonic_ns();

    for (int i = 0; i < threads; i++) {
        loads[i] = (struct load){.device = device,
                                 .buffer = buffer,
                                 .start = (uint64_t)i * part,
                                 .bytes = part,
                                 .request = request,
                                 .write = way != READ,
                                 .direct = way == DIRECT || way == SCATTERED_DIRECT,
                                 .scattered = way >= SCATTERED_DIRECT};
        pthread_create(&ids[i], NULL, run_load, &loads[i]);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        failures += loads[i].failures;
    }
    double seconds = (double)(monotonic_ns() - begin) / 1e9;
    double moved = (double)part * threads;
    printf("%-28s %2d threads  %8.2f GB/s  %9.0f requests/s%s\n", name, threads,
           moved / seconds / 1e9, moved / (double)request / seconds,
           failures ? "  FAILED REQUESTS" : "");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct device_selector selector;
    struct device_options options = {.staging_bytes = 64 * MIB,
                                     .upload_streams = 4,
                                     .flush_interval_ms = 5,
                                     .direct_threshold_bytes = 64 * KIB};
    struct device *device;
    char message[512];
    uint64_t bytes = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1) * GIB;

    if (argc < 2 || device_selector_parse(argv[1], &selector) < 0) {
        fprintf(stderr, "usage: core_bench DEVICE [GIB]; DEVICE: %s\n", DEVICE_SELECTOR_FORMS);
        return 2;
    }
    uint64_t begin = monotonic_ns();
    if (device_open(&selector, &options, &device, message, sizeof(message)) < 0) {
        fprintf(stderr, "core_bench: %s\n", message);
        return 1;
    }
    printf("%s, opened in %.2f s\n", device_identity(device)->name,
           (double)(monotonic_ns() - begin) / 1e9);
    for (int threads = 1; threads <= 8; threads *= 8) {
        struct buffer *buffer = buffer_create(device, 1);
        measure(device, buffer, "write 1 MiB, growing", DIRECT, MIB, threads, bytes);
        measure(device, buffer, "write 1 MiB, again", DIRECT, MIB, threads, bytes);
        measure(device, buffer, "read 1 MiB", READ, MIB, threads, bytes);
        measure(device, buffer, "write 64 KiB", DIRECT, 64 * KIB, threads, bytes);
        measure(device, buffer, "  scattered", SCATTERED_DIRECT, 64 * KIB, threads, bytes);
        measure(device, buffer, "  gathered", GATHERED, 64 * KIB, threads, bytes);
        measure(device, buffer, "  scattered, gathered", SCATTERED_GATHERED, 64 * KIB, threads,
                bytes);
        measure(device, buffer, "write 512 KiB, gathered", GATHERED, 512 * KIB, threads, bytes);
        measure(device, buffer, "write 4 KiB", GATHERED, 4 * KIB, threads, bytes / 8);
        measure(device, buffer, "  scattered", SCATTERED_GATHERED, 4 * KIB, threads, bytes / 8);
        measure(device, buffer, "read 4 KiB", READ, 4 * KIB, threads, bytes / 64);
        struct buffer *copy = buffer_create(device, 2);
        begin = monotonic_ns();
        ssize_t copied = buffer_copy(buffer, 0, copy, 0, bytes);
        double seconds = (double)(monotonic_ns() - begin) / 1e9;
        printf("%-28s             %8.2f GB/s\n", "copy to a new buffer",
               (double)copied / seconds / 1e9);
        begin = monotonic_ns();
        copied = buffer_copy(buffer, 0, copy, 0, bytes);
        seconds = (double)(monotonic_ns() - begin) / 1e9;
        printf("%-28s             %8.2f GB/s\n", "copy over it", (double)copied / seconds / 1e9);
        buffer_destroy(copy);
        buffer_destroy(buffer);
    }
    struct budget_report report;
    device_get_budget_report(device, &report);
    printf("resident bytes at the end: %llu\n", (unsigned long long)report.resident_bytes);
    device_close(device);
    return report.resident_bytes != 0;
}
