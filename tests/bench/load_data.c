#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/bench/io_load.h"

#define COPY_NUMBER 1000
/* From one scattered write to the next of the same round, at least: so that none touch. */
#define SCATTER_GAP 2

struct data_client {
    int fd, copy_fd;
    char *bytes;
    uint64_t start, span; /* the part of the file that is this client's; multiples of the block */
    uint64_t seed;
};

static int open_file(const struct load *load, unsigned int number, int flags)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/%u", load->target, number);
    int fd = open(path, flags | O_CLOEXEC, 0644);
    return fd < 0 ? -errno : fd;
}

static errint_t prepare(struct load_client *client, int flags)
{
    const struct load_parameters *parameters = &client->load->parameters;
    struct data_client *data = calloc(1, sizeof(*data));
    uint64_t block = parameters->block;

    client->state = data;
    if (!data)
        return -ENOMEM;
    data->copy_fd = -1;
    data->fd = open_file(client->load, parameters->many ? client->index + 1 : 0, flags);
    if (data->fd < 0)
        return data->fd;
    if (posix_memalign((void **)&data->bytes, 4096, block) != 0)
        return -ENOMEM;
    memset(data->bytes, 'a' + (int)client->index % 26, block);
    data->seed = 88172645463325252u + client->index * 7919u;
    data->span = parameters->file / block * block;
    if (!parameters->many && !parameters->random) {
        data->span = parameters->file / parameters->clients / block * block;
        data->start = client->index * data->span;
    }
    return data->span > 0 ? 0 : -EINVAL;
}

static errint_t prepare_read(struct load_client *client)
{
    return prepare(client, O_RDONLY);
}

static errint_t prepare_write(struct load_client *client)
{
    return prepare(client, O_WRONLY | O_CREAT);
}

static void finish(struct load_client *client)
{
    struct data_client *data = client->state;

    if (!data)
        return;
    if (data->fd >= 0)
        close(data->fd);
    if (data->copy_fd >= 0)
        close(data->copy_fd);
    free(data->bytes);
    free(data);
}

/* -- read, write ------------------------------------------------------------------------------- */

static errint_t run_requests(struct load_client *client, bool write)
{
    const struct load *load = client->load;
    const struct load_parameters *parameters = &load->parameters;
    struct data_client *data = client->state;
    uint64_t block = parameters->block, blocks = data->span / block, begin = load->start_ns;

    for (uint64_t n = 0; parameters->ms ? !load_is_over(load, begin) : n < blocks; n++) {
        uint64_t at = n % blocks;
        if (parameters->random) {
            data->seed = data->seed * 6364136223846793005u + 1442695040888963407u;
            at = (data->seed >> 20) % blocks;
        }
        off_t offset = (off_t)(data->start + at * block);
        ssize_t done = write ? pwrite(data->fd, data->bytes, block, offset)
                             : pread(data->fd, data->bytes, block, offset);
        if (done != (ssize_t)block)
            return done < 0 ? -errno : -EIO;
        if (write && parameters->sync_each && fsync(data->fd) < 0)
            return -errno;
        load_count(client, &begin, block);
    }
    if (write && fsync(data->fd) < 0)
        return -errno;
    return 0;
}

static errint_t run_read(struct load_client *client)
{
    return run_requests(client, false);
}

static errint_t run_write(struct load_client *client)
{
    return run_requests(client, true);
}

/* -- scattered --------------------------------------------------------------------------------- */

/* A client's part of a round. Slots are visited in an order that jumps about the whole file. */
static errint_t write_scattered(struct load_client *client, uint64_t round)
{
    const struct load_parameters *parameters = &client->load->parameters;
    struct data_client *data = client->state;
    uint64_t slots = parameters->file / (SCATTER_GAP * parameters->block);
    uint64_t step = slots * 5 / 8 | 1;
    uint64_t begin = monotonic_ns();

    for (uint64_t n = client->index; n < parameters->count; n += parameters->clients) {
        uint64_t slot = (n + round) * step % slots;
        ssize_t done = pwrite(data->fd, data->bytes, parameters->block,
                              (off_t)(slot * SCATTER_GAP * parameters->block));
        if (done != (ssize_t)parameters->block)
            return done < 0 ? -errno : -EIO;
        load_count(client, &begin, parameters->block);
    }
    return 0;
}

/* The rounds of all clients go together: the first one syncs when all have written. */
static errint_t run_scattered(struct load_client *client)
{
    struct load *load = client->load;
    errint_t error = 0;

    if (load->parameters.file / (SCATTER_GAP * load->parameters.block) < load->parameters.count)
        return -EINVAL; /* all alike: nobody waits for another one */
    for (uint64_t round = 0; !load->stop; round++) {
        if (error == 0)
            error = write_scattered(client, round);
        pthread_barrier_wait(&load->round);
        if (client->index == 0) {
            uint64_t begin = monotonic_ns(), end;
            if (fsync(((struct data_client *)client->state)->fd) < 0 && error == 0)
                error = -errno;
            end = monotonic_ns();
            histogram_add(&client->sync, end - begin);
            load->stop = load_is_over(load, end);
        }
        pthread_barrier_wait(&load->round);
    }
    return error;
}

/* -- copy -------------------------------------------------------------------------------------- */

static errint_t prepare_copy(struct load_client *client)
{
    const struct load_parameters *parameters = &client->load->parameters;
    struct data_client *data = calloc(1, sizeof(*data));

    client->state = data;
    if (!data)
        return -ENOMEM;
    data->copy_fd = -1;
    data->fd = open_file(client->load, 0, O_RDONLY);
    if (data->fd < 0)
        return data->fd;
    data->copy_fd = open_file(client->load, COPY_NUMBER,
                              O_WRONLY | O_CREAT | (parameters->fresh ? O_TRUNC : 0));
    data->span = parameters->file;
    return data->copy_fd < 0 ? data->copy_fd : 0;
}

static errint_t run_copy(struct load_client *client)
{
    const struct load *load = client->load;
    const struct load_parameters *parameters = &load->parameters;
    struct data_client *data = client->state;
    uint64_t begin = load->start_ns, at = 0;

    while (at < data->span) {
        off_t from = (off_t)at, to = (off_t)at;
        ssize_t done = copy_file_range(data->fd, &from, data->copy_fd, &to,
                                       MIN(parameters->block, data->span - at), 0);
        if (done <= 0)
            return done < 0 ? -errno : -EIO;
        load_count(client, &begin, (uint64_t)done);
        at += (uint64_t)done;
        if (parameters->ms && load_is_over(load, begin))
            break;
        if (parameters->ms && at == data->span)
            at = 0;
    }
    return fsync(data->copy_fd) < 0 ? -errno : 0;
}

const struct load_kind load_data_kinds[] = {
    {"read", prepare_read, run_read, finish},
    {"write", prepare_write, run_write, finish},
    {"scattered", prepare_write, run_scattered, finish},
    {"copy", prepare_copy, run_copy, finish},
    {0},
};
