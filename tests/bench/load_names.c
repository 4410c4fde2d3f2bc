#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/bench/io_load.h"

/* The client's folder; its descriptor is kept in client->state, plus one. */
static errint_t open_folder(struct load_client *client, bool make)
{
    char path[PATH_MAX];
    int fd;

    snprintf(path, sizeof(path), "%s/d%u", client->load->target, client->index);
    if (make && mkdir(path, 0755) < 0 && errno != EEXIST)
        return -errno;
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    client->state = (void *)(intptr_t)(fd + 1);
    return 0;
}

static int folder(const struct load_client *client)
{
    return (int)(intptr_t)client->state - 1;
}

static errint_t prepare_new(struct load_client *client)
{
    return open_folder(client, true);
}

static errint_t prepare(struct load_client *client)
{
    return open_folder(client, false);
}

static void finish(struct load_client *client)
{
    if (client->state)
        close(folder(client));
}

static void finish_and_remove(struct load_client *client)
{
    char path[PATH_MAX];

    finish(client);
    snprintf(path, sizeof(path), "%s/d%u", client->load->target, client->index);
    rmdir(path);
}

/* Of the count= files of all clients. */
static uint64_t own_files(const struct load_client *client)
{
    return client->load->parameters.count / client->load->parameters.clients;
}

static errint_t for_each_file(struct load_client *client, int (*call)(int folder, const char *name))
{
    uint64_t begin = client->load->start_ns;

    for (uint64_t n = 0; n < own_files(client); n++) {
        char name[24];

        snprintf(name, sizeof(name), "%llu", (unsigned long long)n);
        if (call(folder(client), name) < 0)
            return -errno;
        load_count(client, &begin, 0);
    }
    return 0;
}

static int create_file(int at, const char *name)
{
    int fd = openat(at, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);

    return fd < 0 ? -1 : close(fd);
}

static int stat_file(int at, const char *name)
{
    struct stat st;

    return fstatat(at, name, &st, 0);
}

static int unlink_file(int at, const char *name)
{
    return unlinkat(at, name, 0);
}

static errint_t run_create(struct load_client *client)
{
    return for_each_file(client, create_file);
}

static errint_t run_stat(struct load_client *client)
{
    return for_each_file(client, stat_file);
}

static errint_t run_unlink(struct load_client *client)
{
    return for_each_file(client, unlink_file);
}

/* A request is an entry. All files of the client must be there, and nothing else. */
static errint_t run_readdir(struct load_client *client)
{
    DIR *directory = fdopendir(dup(folder(client)));
    uint64_t begin = client->load->start_ns;
    struct dirent *entry;

    if (!directory)
        return -errno;
    while ((entry = readdir(directory)))
        if (entry->d_name[0] != '.')
            load_count(client, &begin, 0);
    closedir(directory);
    return client->requests == own_files(client) ? 0 : -EIO;
}

const struct load_kind load_name_kinds[] = {
    {"create", prepare_new, run_create, finish},
    {"stat", prepare, run_stat, finish},
    {"readdir", prepare, run_readdir, finish},
    {"unlink", prepare, run_unlink, finish_and_remove},
    {0},
};
