#include <time.h>

#include "fs/virtual_text.h"

#define TRAFFIC_WINDOW_NS UINT64_C(1000000000)

static void count_inode(struct inode *inode, void *data)
{
    struct virtual_figures *figures = data;
    struct buffer_report report;

    if (inode->type != S_IFREG)
        return;
    figures->files++;
    buffer_get_report(inode->buffer, &report);
    if (report.state == BUFFER_FAILED)
        figures->failed_files++;
}

void virtual_figures_take(struct residentfs *fs, struct virtual_figures *figures)
{
    struct device *device = fs->device;

    *figures = (struct virtual_figures){.device = device_identity(device)};
    snprintf(figures->label, sizeof(figures->label), "%s:%d", figures->device->driver,
             figures->device->index);
    device_get_budget_report(device, &figures->budget);
    telemetry_take_snapshot(device_telemetry(device), &figures->telemetry);
    figures->dirty_bytes = device_dirty_bytes(device);
    figures->inodes = inode_table_count(fs->inodes);
    inode_table_walk(fs->inodes, count_inode, figures);
    figures->lost = device_is_lost(device);
    figures->degraded = device_is_degraded(device);
    device_get_lost_reason(device, figures->lost_reason, sizeof(figures->lost_reason));
    session_get_report(fs->session, &figures->transport);
    share_get_report(fs->share, &figures->share);
    figures->uptime_seconds = difftime(time(NULL), fs->started);
}

static uint64_t rate_of(uint64_t total, uint64_t *before, uint64_t passed_ns)
{
    double bytes = (double)(total - *before);

    *before = total;
    return (uint64_t)(bytes * 1e9 / (double)passed_ns);
}

void virtual_tick(struct residentfs *fs)
{
    struct traffic *traffic = &fs->traffic;
    uint64_t now_ns = monotonic_ns(), passed_ns = now_ns - traffic->sampled_ns;
    struct telemetry_snapshot snapshot;

    if (passed_ns < TRAFFIC_WINDOW_NS)
        return;
    telemetry_take_snapshot(device_telemetry(fs->device), &snapshot);
    traffic->upload_rate =
        rate_of(snapshot.counters[TELEMETRY_H2D_BYTES], &traffic->uploaded_bytes, passed_ns);
    traffic->readback_rate =
        rate_of(snapshot.counters[TELEMETRY_D2H_BYTES], &traffic->read_back_bytes, passed_ns);
    traffic->device_copy_rate =
        rate_of(snapshot.counters[TELEMETRY_D2D_BYTES], &traffic->device_copied_bytes, passed_ns);
    traffic->sampled_ns = now_ns;
}

void virtual_print_quoted(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\')
            fputc('\\', out);
        fputc(c < ' ' || c == 127 ? '?' : c, out);
    }
    fputc('"', out);
}

char *virtual_text_finish(FILE *out, char **text)
{
    bool good = !ferror(out);

    good &= fclose(out) == 0;
    if (good)
        return *text;
    free(*text);
    return NULL;
}
