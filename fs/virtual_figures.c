#include <time.h>

#include "fs/virtual_text.h"

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
