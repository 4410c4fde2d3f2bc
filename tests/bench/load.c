#include "tests/bench/load.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "core/size_text.h"

void load_count(struct load_client *client, uint64_t *begin_ns, uint64_t bytes)
{
    uint64_t now = monotonic_ns();

    histogram_add(&client->latency, now - *begin_ns);
    client->requests++;
    client->bytes += bytes;
    *begin_ns = now;
}

bool load_is_over(const struct load *load, uint64_t now_ns)
{
    return now_ns - load->start_ns >= load->parameters.ms * 1000000;
}

bool load_parse(struct load_parameters *parameters, int count, char **arguments)
{
    const struct {
        const char *key;
        uint64_t *value;
    } keys[] = {
        {"block", &parameters->block},     {"file", &parameters->file},
        {"clients", &parameters->clients}, {"count", &parameters->count},
        {"fence", &parameters->fence},     {"ms", &parameters->ms},
        {"random", &parameters->random},   {"many", &parameters->many},
        {"fresh", &parameters->fresh},     {"sync_each", &parameters->sync_each},
    };

    for (int i = 0; i < count; i++) {
        const char *value = strchr(arguments[i], '=');
        bool known = false;

        for (size_t k = 0; value && k < ARRAY_SIZE(keys); k++)
            if (strlen(keys[k].key) == (size_t)(value - arguments[i]) &&
                strncmp(keys[k].key, arguments[i], (size_t)(value - arguments[i])) == 0)
                known = size_text_parse(value + 1, strlen(value + 1), keys[k].value) == 0;
        if (!known) {
            fprintf(stderr, "wrong parameter: %s\n", arguments[i]);
            return false;
        }
    }
    if (parameters->clients == 0 || parameters->clients > LOAD_CLIENTS_MAX ||
        parameters->block == 0) {
        fprintf(stderr, "clients is 1 to %d, block at least 1\n", LOAD_CLIENTS_MAX);
        return false;
    }
    return true;
}

static void *run_client(void *data)
{
    struct load_client *client = data;
    struct load *load = client->load;

    if (load->kind->prepare)
        client->error = load->kind->prepare(client);
    if (client->error < 0)
        load->failed = true;
    pthread_barrier_wait(&load->barrier); /* all are ready */
    pthread_barrier_wait(&load->barrier); /* the clock runs */
    if (!load->failed)
        client->error = load->kind->run(client);
    pthread_barrier_wait(&load->barrier);
    if (load->kind->finish)
        load->kind->finish(client);
    return NULL;
}

static double processor_seconds(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void print_percentiles(const char *prefix, const struct histogram *histogram)
{
    printf(", \"%sp50_us\": %.3f, \"%sp99_us\": %.3f, \"%sp999_us\": %.3f, \"%smax_us\": %.3f",
           prefix, (double)histogram_percentile(histogram, 500) / 1e3, prefix,
           (double)histogram_percentile(histogram, 990) / 1e3, prefix,
           (double)histogram_percentile(histogram, 999) / 1e3, prefix,
           (double)histogram->max_ns / 1e3);
}

static int report(const struct load *load, struct load_client *clients, double seconds, double cpu)
{
    struct load_client *sum = &clients[0];

    for (unsigned int i = 0; i < load->parameters.clients; i++) {
        if (clients[i].error < 0) {
            fprintf(stderr, "%s on %s: %s\n", load->kind->name, load->target,
                    strerror(-clients[i].error));
            return EXIT_FAILURE;
        }
        if (i == 0)
            continue;
        sum->bytes += clients[i].bytes;
        sum->requests += clients[i].requests;
        histogram_merge(&sum->latency, &clients[i].latency);
        histogram_merge(&sum->sync, &clients[i].sync);
    }
    printf("{\"load\": \"%s\", \"bytes\": %llu, \"requests\": %llu, \"seconds\": %.6f, "
           "\"cpu_seconds\": %.6f",
           load->kind->name, (unsigned long long)sum->bytes, (unsigned long long)sum->requests,
           seconds, cpu);
    print_percentiles("", &sum->latency);
    if (sum->sync.total > 0)
        print_percentiles("fsync_", &sum->sync);
    printf("}\n");
    return EXIT_SUCCESS;
}

int load_run(struct load *load)
{
    unsigned int count = (unsigned int)load->parameters.clients;
    struct load_client *clients = calloc(count, sizeof(*clients));
    double cpu;
    uint64_t end_ns;
    int status;

    if (!clients)
        return EXIT_FAILURE;
    pthread_barrier_init(&load->barrier, NULL, count + 1);
    pthread_barrier_init(&load->round, NULL, count);
    for (unsigned int i = 0; i < count; i++) {
        clients[i].load = load;
        clients[i].index = i;
        if (pthread_create(&clients[i].thread, NULL, run_client, &clients[i]) != 0) {
            fprintf(stderr, "cannot start %u threads\n", count);
            exit(EXIT_FAILURE); /* the others wait for it */
        }
    }
    pthread_barrier_wait(&load->barrier);
    cpu = processor_seconds();
    load->start_ns = monotonic_ns();
    pthread_barrier_wait(&load->barrier);
    pthread_barrier_wait(&load->barrier);
    end_ns = monotonic_ns();
    cpu = processor_seconds() - cpu;
    for (unsigned int i = 0; i < count; i++)
        pthread_join(clients[i].thread, NULL);
    status = report(load, clients, (double)(end_ns - load->start_ns) / 1e9, cpu);
    pthread_barrier_destroy(&load->barrier);
    pthread_barrier_destroy(&load->round);
    free(clients);
    return status;
}
