/* .resident/metrics and .resident/telemetry.json: the same figures, from the same tables. */
#include <inttypes.h>

#include "fs/virtual_text.h"

/* Counters of one metric; of several, KIND tells them apart. */
struct counter {
    const char *metric; /* without residentfs_ and _total */
    const char *help;   /* of the first with this metric */
    const char *kind;   /* or NULL */
    enum telemetry_counter counter;
};

static const struct counter counters[] = {
    {"upload_bytes", "Bytes copied host to device, after fusion, fence proven.", NULL,
     TELEMETRY_H2D_BYTES},
    {"upload_copies", "Copies host to device, after fusion.", NULL, TELEMETRY_H2D_OPERATIONS},
    {"upload_requests", "Writes accepted, before fusion.", NULL, TELEMETRY_UPLOAD_REQUESTS},
    {"readback_bytes", "Bytes copied device to host, after fusion, fence proven.", NULL,
     TELEMETRY_D2H_BYTES},
    {"readback_copies", "Copies device to host, after fusion.", NULL, TELEMETRY_D2H_OPERATIONS},
    {"readback_requests", "Ranges asked for, before fusion.", NULL, TELEMETRY_READBACK_REQUESTS},
    {"device_copy_bytes", "Bytes copied on the device.", NULL, TELEMETRY_D2D_BYTES},
    {"readahead_hits", "Ranges asked for that had been read ahead.", NULL,
     TELEMETRY_READAHEAD_HITS},
    {"sync_points", "Fences waited for.", NULL, TELEMETRY_SYNC_POINTS},
    {"allocated_bytes", "Device memory ever taken from the driver.", NULL,
     TELEMETRY_ALLOCATED_BYTES},
    {"pool_hits", "Streams and staging taken from a pool.", NULL, TELEMETRY_POOL_HITS},
    {"pool_misses", "Streams and staging that had to be created.", NULL, TELEMETRY_POOL_MISSES},
    {"quarantined_streams", "Streams whose completion could not be proven.", NULL,
     TELEMETRY_QUARANTINED_STREAMS},
    {"quarantined_bytes", "Staging and device memory never to be used again.", NULL,
     TELEMETRY_QUARANTINED_BYTES},
    {"errors", "Operations that failed or were refused.", "upload", TELEMETRY_ERRORS_UPLOAD},
    {"errors", NULL, "readback", TELEMETRY_ERRORS_READBACK},
    {"errors", NULL, "allocation", TELEMETRY_ERRORS_ALLOCATION},
    {"errors", NULL, "budget", TELEMETRY_ERRORS_BUDGET},
    {"errors", NULL, "fence", TELEMETRY_ERRORS_FENCE},
};

_Static_assert(ARRAY_SIZE(counters) == TELEMETRY_COUNTERS, "a counter is not shown");

static const struct {
    const char *metric, *help;
} histograms[TELEMETRY_HISTOGRAMS] = {
    [TELEMETRY_READ_SECONDS] = {"read_seconds", "How long reads took."},
    [TELEMETRY_WRITE_SECONDS] = {"write_seconds", "How long writes took until they were accepted."},
    [TELEMETRY_FSYNC_SECONDS] = {"fsync_seconds", "How long fsync took."},
};

struct gauge {
    const char *metric, *help;
    uint64_t value;
};

#define GAUGES 18

static void get_gauges(const struct virtual_figures *f, struct gauge gauges[GAUGES])
{
    const struct gauge values[] = {
        {"device_memory_bytes", "Memory of the device.", f->budget.total_bytes},
        {"device_memory_free_bytes", "Memory of the device that nobody uses.",
         f->budget.free_bytes},
        {"budget_limit_bytes", "What resident buffers may take now.", f->budget.limit_bytes},
        {"budget_available_bytes", "What resident buffers may still take.",
         f->budget.available_bytes},
        {"resident_bytes", "Device memory that resident buffers take.", f->budget.resident_bytes},
        {"dirty_bytes", "Bytes accepted and not yet fenced.", f->dirty_bytes},
        {"staging_bytes", "Host memory that exists for copies.", f->telemetry.staging_bytes},
        {"staging_peak_bytes", "The most host memory for copies that existed.",
         f->telemetry.staging_peak_bytes},
        {"files", "Regular files, unlinked ones that are open included.", f->files},
        {"failed_files", "Regular files that give EIO until they are truncated.", f->failed_files},
        {"inodes", "Files of all types.", f->inodes},
        {"mappings", "Mappings of files by CUDA programs.", f->share.mappings},
        {"mapped_bytes", "Bytes of files in these mappings.", f->share.mapped_bytes},
        {"attachments", "Buffers of CUDA programs that are shown as files.", f->share.attachments},
        {"attached_bytes", "Bytes of these buffers.", f->share.attached_bytes},
        {"workers", "Threads that serve requests.", f->transport.workers},
        {"device_lost", "1 when every operation on data fails.", f->lost},
        {"device_degraded", "1 when something is less than it could be.", f->degraded},
    };

    _Static_assert(ARRAY_SIZE(values) == GAUGES, "GAUGES is not their number");
    for (size_t i = 0; i < GAUGES; i++)
        gauges[i] = values[i];
}

/* The upper bound of bucket I, which is not the last. */
static double bucket_seconds(unsigned int i)
{
    return (double)(UINT64_C(1) << i) / 1e6;
}

/* -- Prometheus -------------------------------------------------------------------------------- */

static void print_head(FILE *out, const char *metric, const char *suffix, const char *help,
                       const char *type)
{
    fprintf(out, "# HELP residentfs_%s%s %s\n# TYPE residentfs_%s%s %s\n", metric, suffix, help,
            metric, suffix, type);
}

static void print_info(FILE *out, const struct virtual_figures *f)
{
    print_head(out, "device_info", "", "The device; always 1.", "gauge");
    fprintf(out, "residentfs_device_info{device=\"%s\",name=", f->label);
    virtual_print_quoted(out, f->device->name);
    fprintf(out, ",uuid=");
    virtual_print_quoted(out, f->device->uuid);
    fprintf(out, ",pci_bus_id=");
    virtual_print_quoted(out, f->device->pci_bus_id);
    fprintf(out, "} 1\n");
}

static void print_histogram(FILE *out, const struct virtual_figures *f, unsigned int which)
{
    const char *metric = histograms[which].metric;
    uint64_t count = 0;

    print_head(out, metric, "", histograms[which].help, "histogram");
    for (unsigned int i = 0; i < TELEMETRY_BUCKETS; i++) {
        char bound[32] = "+Inf";

        count += f->telemetry.buckets[which][i];
        if (i + 1 < TELEMETRY_BUCKETS)
            snprintf(bound, sizeof(bound), "%.9g", bucket_seconds(i));
        fprintf(out, "residentfs_%s_bucket{device=\"%s\",le=\"%s\"} %" PRIu64 "\n", metric,
                f->label, bound, count);
    }
    fprintf(out, "residentfs_%s_sum{device=\"%s\"} %.9g\n", metric, f->label,
            (double)f->telemetry.sum_ns[which] / 1e9);
    fprintf(out, "residentfs_%s_count{device=\"%s\"} %" PRIu64 "\n", metric, f->label, count);
}

char *virtual_text_metrics(struct residentfs *fs, size_t *length)
{
    struct virtual_figures f;
    struct gauge gauges[GAUGES];
    char *text = NULL;
    FILE *out = open_memstream(&text, length);

    if (!out)
        return NULL;
    virtual_figures_take(fs, &f);
    get_gauges(&f, gauges);
    print_info(out, &f);
    for (size_t i = 0; i < GAUGES; i++) {
        print_head(out, gauges[i].metric, "", gauges[i].help, "gauge");
        fprintf(out, "residentfs_%s{device=\"%s\"} %" PRIu64 "\n", gauges[i].metric, f.label,
                gauges[i].value);
    }
    for (size_t i = 0; i < ARRAY_SIZE(counters); i++) {
        const struct counter *c = &counters[i];

        if (c->help)
            print_head(out, c->metric, "_total", c->help, "counter");
        fprintf(out, "residentfs_%s_total{device=\"%s\"", c->metric, f.label);
        if (c->kind)
            fprintf(out, ",kind=\"%s\"", c->kind);
        fprintf(out, "} %" PRIu64 "\n", f.telemetry.counters[c->counter]);
    }
    for (unsigned int i = 0; i < TELEMETRY_HISTOGRAMS; i++)
        print_histogram(out, &f, i);
    return virtual_text_finish(out, &text);
}

/* -- JSON -------------------------------------------------------------------------------------- */

static void print_json_device(FILE *out, const struct virtual_figures *f)
{
    fprintf(out, "  \"device\": {\"device\": \"%s\", \"name\": ", f->label);
    virtual_print_quoted(out, f->device->name);
    fprintf(out, ", \"uuid\": ");
    virtual_print_quoted(out, f->device->uuid);
    fprintf(out, ", \"pci_bus_id\": ");
    virtual_print_quoted(out, f->device->pci_bus_id);
    fprintf(out, ", \"lost_reason\": ");
    virtual_print_quoted(out, f->lost_reason);
    fprintf(out, "},\n");
}

static void print_json_histogram(FILE *out, const struct virtual_figures *f, unsigned int which)
{
    uint64_t count = 0;

    fprintf(out, "    \"%s\": {\"buckets\": [", histograms[which].metric);
    for (unsigned int i = 0; i < TELEMETRY_BUCKETS; i++) {
        count += f->telemetry.buckets[which][i];
        if (i + 1 < TELEMETRY_BUCKETS)
            fprintf(out, "{\"le\": %.9g, \"count\": %" PRIu64 "}, ", bucket_seconds(i), count);
        else
            fprintf(out, "{\"le\": null, \"count\": %" PRIu64 "}]", count);
    }
    fprintf(out, ", \"sum\": %.9g, \"count\": %" PRIu64 "}%s\n",
            (double)f->telemetry.sum_ns[which] / 1e9, count,
            which + 1 < TELEMETRY_HISTOGRAMS ? "," : "");
}

char *virtual_text_telemetry(struct residentfs *fs, size_t *length)
{
    struct virtual_figures f;
    struct gauge gauges[GAUGES];
    char *text = NULL;
    FILE *out = open_memstream(&text, length);

    if (!out)
        return NULL;
    virtual_figures_take(fs, &f);
    get_gauges(&f, gauges);
    fprintf(out, "{\n");
    print_json_device(out, &f);
    for (size_t i = 0; i < GAUGES; i++)
        fprintf(out, "  \"%s\": %" PRIu64 ",\n", gauges[i].metric, gauges[i].value);
    fprintf(out, "  \"counters\": {\n");
    for (size_t i = 0; i < ARRAY_SIZE(counters); i++)
        fprintf(out, "    \"%s%s%s\": %" PRIu64 "%s\n", counters[i].metric,
                counters[i].kind ? "_" : "", counters[i].kind ? counters[i].kind : "",
                f.telemetry.counters[counters[i].counter], i + 1 < ARRAY_SIZE(counters) ? "," : "");
    fprintf(out, "  },\n  \"histograms\": {\n");
    for (unsigned int i = 0; i < TELEMETRY_HISTOGRAMS; i++)
        print_json_histogram(out, &f, i);
    fprintf(out, "  }\n}\n");
    return virtual_text_finish(out, &text);
}
