/*
 * A load on one file, for measuring: THREADS descriptors read or write BLOCK bytes at a time, each
 * in its own part of the file in order, or anywhere in it (random). Prints GB/s and requests/s;
 * writes include the fsync at the end.
 *
 *   io_load FILE read|write seq|random BLOCK THREADS FILE_BYTES TOTAL_BYTES
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct load {
    const char *path;
    bool write, random;
    size_t block;
    uint64_t start, span, bytes; /* of the file; moved by this thread */
    uint64_t seed;
    int error;
};

static double now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void *run(void *data)
{
    struct load *load = data;
    int fd = open(load->path, load->write ? O_WRONLY : O_RDONLY);
    char *bytes = aligned_alloc(4096, load->block);

    if (fd < 0 || !bytes) {
        load->error = errno;
        return NULL;
    }
    memset(bytes, 'x', load->block);
    for (uint64_t done = 0; done < load->bytes && !load->error; done += load->block) {
        uint64_t at = done % load->span;
        if (load->random) {
            load->seed = load->seed * 6364136223846793005u + 1442695040888963407u;
            at = (load->seed >> 20) % (load->span / load->block) * load->block;
        }
        ssize_t n = load->write ? pwrite(fd, bytes, load->block, (off_t)(load->start + at))
                                : pread(fd, bytes, load->block, (off_t)(load->start + at));
        if (n != (ssize_t)load->block)
            load->error = n < 0 ? errno : EIO;
    }
    if (load->write && fsync(fd) < 0)
        load->error = errno;
    close(fd);
    free(bytes);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 8) {
        fprintf(stderr, "usage: io_load FILE read|write seq|random BLOCK THREADS FILE_BYTES "
                        "TOTAL_BYTES\n");
        return 2;
    }
    bool write = strcmp(argv[2], "write") == 0, random = strcmp(argv[3], "random") == 0;
    size_t block = strtoull(argv[4], NULL, 10);
    unsigned int threads = (unsigned int)strtoul(argv[5], NULL, 10);
    uint64_t file_bytes = strtoull(argv[6], NULL, 10), total = strtoull(argv[7], NULL, 10);
    struct load *loads = calloc(threads, sizeof(*loads));
    pthread_t *ids = calloc(threads, sizeof(*ids));

    if (!loads || !ids || block == 0 || threads == 0 || file_bytes / threads < block)
        return 2;
    int fd = open(argv[1], O_RDWR | O_CREAT, 0644);
    if (fd < 0) {
        perror(argv[1]);
        return 1;
    }
    close(fd);
    double begin = now();
    for (unsigned int i = 0; i < threads; i++) {
        uint64_t part = file_bytes / threads / block * block;
        loads[i] = (struct load){.path = argv[1],
                                 .write = write,
                                 .random = random,
                                 .block = block,
                                 .start = random ? 0 : i * part,
                                 .span = random ? file_bytes : part,
                                 .bytes = total / threads / block * block,
                                 .seed = 88172645463325252u + i * 7919u};
        pthread_create(&ids[i], NULL, run, &loads[i]);
    }
    int error = 0;
    uint64_t moved = 0;
    for (unsigned int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        error = error ? error : loads[i].error;
        moved += loads[i].bytes;
    }
    double seconds = now() - begin;
    if (error) {
        fprintf(stderr, "io_load: %s: %s\n", argv[1], strerror(error));
        return 1;
    }
    printf("%7.2f GB/s %9.0f requests/s\n", (double)moved / seconds / 1e9,
           (double)moved / (double)block / seconds);
    free(loads);
    free(ids);
    return 0;
}
