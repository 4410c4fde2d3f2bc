/* The files of .resident that are for people, or one `key value` a line. */
#include "fs/virtual_text.h"

#include <inttypes.h>
#include <string.h>
#include <sys/utsname.h>

#include "fs/version.h"

#define BAR_WIDTH 40

/* Raised when something in a virtual file is taken away or changes its meaning. */
#define VIRTUAL_FORMAT 1

struct size_shown virtual_show_size(uint64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    struct size_shown shown;
    double value = (double)bytes;
    size_t unit = 0;

    while (value >= 1024 && unit + 1 < ARRAY_SIZE(units)) {
        value /= 1024;
        unit++;
    }
    snprintf(shown.text, sizeof(shown.text), unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return shown;
}

/* -- status ------------------------------------------------------------------------------------ */

static void print_bar(FILE *out, uint64_t part, uint64_t whole)
{
    unsigned int filled = 0;

    if (whole > 0)
        filled = (unsigned int)((double)MIN(part, whole) / (double)whole * BAR_WIDTH + 0.5);
    fputc('[', out);
    for (unsigned int i = 0; i < BAR_WIDTH; i++)
        fputc(i < filled ? '#' : '-', out);
    fputc(']', out);
}

static void print_device(FILE *out, const struct residentfs *fs, const struct virtual_figures *f)
{
    const struct device_identity *device = f->device;
    uint64_t up = f->uptime_seconds > 0 ? (uint64_t)f->uptime_seconds : 0;

    fprintf(out, "device     %s, %s, %s", f->label, device->name,
            virtual_show_size(device->total_bytes).text);
    if (device->uuid[0])
        fprintf(out, ", %s", device->uuid);
    if (device->pci_bus_id[0])
        fprintf(out, ", %s", device->pci_bus_id);
    fprintf(out, "\nmounted    %s, for %" PRIu64 " h %02" PRIu64 " min %02" PRIu64 " s\n",
            fs->conf->mountpoint, up / 3600, up / 60 % 60, up % 60);
}

static void print_budget(FILE *out, const struct virtual_figures *f)
{
    const struct budget_report *budget = &f->budget;
    char setting[BUDGET_SETTING_TEXT_BYTES];

    fprintf(out, "budget     ");
    print_bar(out, budget->resident_bytes, budget->limit_bytes);
    fprintf(out, " %s of %s\n", virtual_show_size(budget->resident_bytes).text,
            virtual_show_size(budget->limit_bytes).text);
    fprintf(out, "           %s available, setting %s; %s of the device's memory free\n",
            virtual_show_size(budget->available_bytes).text,
            budget_setting_format(&budget->setting, setting),
            virtual_show_size(budget->free_bytes).text);
}

static void print_sharing(FILE *out, const struct residentfs *fs, const struct virtual_figures *f)
{
    char path[SHARE_PATH_BYTES];

    share_get_socket_path(fs->share, path);
    if (!path[0]) {
        fprintf(out, "shared     off\n");
        return;
    }
    fprintf(out, "shared     %" PRIu64 " mappings of %s by CUDA programs", f->share.mappings,
            virtual_show_size(f->share.mapped_bytes).text);
    fprintf(out, "; %" PRIu64 " buffers of theirs, %s, shown as files\n", f->share.attachments,
            virtual_show_size(f->share.attached_bytes).text);
}

static void print_traffic(FILE *out, const struct residentfs *fs, const struct virtual_figures *f)
{
    const uint64_t *counters = f->telemetry.counters;

    fprintf(out, "buffers    %" PRIu64 " files, %" PRIu64 " inodes\n", f->files, f->inodes);
    fprintf(out, "dirty      %s accepted, not yet fenced\n",
            virtual_show_size(f->dirty_bytes).text);
    fprintf(out, "uploads    %s in %" PRIu64 " copies, of %" PRIu64 " writes\n",
            virtual_show_size(counters[TELEMETRY_H2D_BYTES]).text,
            counters[TELEMETRY_H2D_OPERATIONS], counters[TELEMETRY_UPLOAD_REQUESTS]);
    fprintf(out, "readbacks  %s in %" PRIu64 " copies, of %" PRIu64 " ranges\n",
            virtual_show_size(counters[TELEMETRY_D2H_BYTES]).text,
            counters[TELEMETRY_D2H_OPERATIONS], counters[TELEMETRY_READBACK_REQUESTS]);
    fprintf(out, "on device  %s copied\n", virtual_show_size(counters[TELEMETRY_D2D_BYTES]).text);
    fprintf(out, "now        %s/s up, %s/s back, %s/s on the device\n",
            virtual_show_size(fs->traffic.upload_rate).text,
            virtual_show_size(fs->traffic.readback_rate).text,
            virtual_show_size(fs->traffic.device_copy_rate).text);
    fprintf(out, "staging    %s of host memory, at most %s so far\n",
            virtual_show_size(f->telemetry.staging_bytes).text,
            virtual_show_size(f->telemetry.staging_peak_bytes).text);
    fprintf(out,
            "errors     %" PRIu64 " upload, %" PRIu64 " readback, %" PRIu64 " allocation, %" PRIu64
            " fence; %" PRIu64 " requests past the budget\n",
            counters[TELEMETRY_ERRORS_UPLOAD], counters[TELEMETRY_ERRORS_READBACK],
            counters[TELEMETRY_ERRORS_ALLOCATION], counters[TELEMETRY_ERRORS_FENCE],
            counters[TELEMETRY_ERRORS_BUDGET]);
}

static void print_health(FILE *out, const struct virtual_figures *f)
{
    const uint64_t *counters = f->telemetry.counters;
    bool quarantined =
        counters[TELEMETRY_QUARANTINED_STREAMS] || counters[TELEMETRY_QUARANTINED_BYTES];

    fprintf(out, "health     ");
    if (f->lost)
        fprintf(out,
                "LOST: %s\n"
                "           reads and writes give EIO from now on, names still work; unmount, see\n"
                "           `dmesg` and `nvidia-smi` for the cause, and start residentfs again\n",
                f->lost_reason);
    else if (f->failed_files > 0 || quarantined)
        fprintf(out, "copies have failed; .resident/log says which and why\n");
    else if (f->degraded)
        fprintf(out, "degraded: works, with less than it could; .resident/log says what and why\n");
    else
        fprintf(out, "ok\n");
    if (f->failed_files > 0)
        fprintf(out,
                "           %" PRIu64 " files give EIO (\"failed\" in .resident/buffers): truncate "
                "them to 0 or\n"
                "           delete them\n",
                f->failed_files);
    if (quarantined)
        fprintf(out,
                "           quarantined for good: %" PRIu64 " streams, %s; unmount to get the "
                "memory back\n",
                counters[TELEMETRY_QUARANTINED_STREAMS],
                virtual_show_size(counters[TELEMETRY_QUARANTINED_BYTES]).text);
}

static void print_transport(FILE *out, const struct residentfs *fs, const struct virtual_figures *f)
{
    fprintf(out, "transport  libfuse %s, ", fuse_pkgversion());
    if (f->transport.io_uring)
        fprintf(out, "io_uring, %u queues with %u buffers so far, ", f->transport.workers,
                f->transport.receive_buffers);
    else
        fprintf(out, "%u workers with %u receive buffers, ", f->transport.workers,
                f->transport.receive_buffers);
    fprintf(out, "requests of up to %s\n", virtual_show_size(fs->max_write_bytes).text);
    fprintf(out, "           %s, %s\n",
            f->transport.page_locked ? "page-locked host memory"
                                     : "pageable host memory (copies are slower)",
            fs->conf->cache == CONF_CACHE_ON ? "page cache on"
            : fs->parallel_writes            ? "direct I/O, parallel writes"
                                             : "direct I/O, writes to one file one after the other "
                                               "(libfuse 3.14.1 and newer can do more)");
    if (!f->transport.io_uring && !f->transport.channels)
        fprintf(out, "           workers share one FUSE descriptor: libfuse was built without "
                     "enable-custom-io, or few descriptors may be open (ulimit -n)\n");
    if (fs->max_write_bytes < fs->conf->max_write_bytes)
        fprintf(out,
                "           requests of %s, as configured, take libfuse 3.17, Linux 6.13 and "
                "%" PRIu64 " in /proc/sys/fs/fuse/max_pages_limit\n",
                virtual_show_size(fs->conf->max_write_bytes).text,
                fs->conf->max_write_bytes / 4096);
    if (fs->ring_reason[0])
        fprintf(out, "           without io_uring, which makes small requests faster: %s\n",
                fs->ring_reason);
    if (strcmp(f->device->driver, "emulated") == 0)
        fprintf(out, "note       the device is emulated: everything here is in host memory\n");
}

char *virtual_text_status(struct residentfs *fs, uid_t reader, size_t *length)
{
    struct virtual_figures f;
    char *text = NULL;
    FILE *out = open_memstream(&text, length);

    if (!out)
        return NULL;
    virtual_figures_take(fs, &f);
    print_device(out, fs, &f);
    print_budget(out, &f);
    print_sharing(out, fs, &f);
    print_traffic(out, fs, &f);
    virtual_print_busy(out, fs, reader);
    print_health(out, &f);
    print_transport(out, fs, &f);
    return virtual_text_finish(out, &text);
}

/* -- the others -------------------------------------------------------------------------------- */

char *virtual_text_budget(struct residentfs *fs, size_t *length)
{
    struct budget_report report;
    char setting[BUDGET_SETTING_TEXT_BYTES];
    char *text = NULL;
    int printed;

    device_get_budget_report(fs->device, &report);
    printed =
        asprintf(&text,
                 "total %" PRIu64 "\nfree %" PRIu64 "\nlimit %" PRIu64 "\nresident %" PRIu64
                 "\navailable %" PRIu64 "\nsetting %s\n",
                 report.total_bytes, report.free_bytes, report.limit_bytes, report.resident_bytes,
                 report.available_bytes, budget_setting_format(&report.setting, setting));
    if (printed < 0)
        return NULL;
    *length = (size_t)printed;
    return text;
}

struct buffers_table {
    struct residentfs *fs;
    FILE *out;
    char device[32];
};

static void print_buffer(struct inode *inode, void *data)
{
    struct buffers_table *table = data;
    struct buffer_report report;
    cleanup_free char *path = NULL, *clients = NULL;

    if (inode->type != S_IFREG)
        return;
    buffer_get_report(inode->buffer, &report);
    path = namespace_path(table->fs, inode);
    clients = share_clients_text(table->fs->share, inode->ino);
    fprintf(
        table->out, "%-8" PRIu64 " %15" PRIu64 " %15" PRIu64 " %12" PRIu64 " %-12s %-8s %-8s %s\n",
        inode->ino, report.length_bytes, report.resident_bytes, report.dirty_bytes, table->device,
        buffer_state_name(report.state), clients ? clients : "?", path ? path : "?");
}

char *virtual_text_buffers(struct residentfs *fs, size_t *length)
{
    struct buffers_table table = {.fs = fs};
    const struct device_identity *device = device_identity(fs->device);
    char *text = NULL;

    table.out = open_memstream(&text, length);
    if (!table.out)
        return NULL;
    snprintf(table.device, sizeof(table.device), "%s:%d", device->driver, device->index);
    fprintf(table.out, "%-8s %15s %15s %12s %-12s %-8s %-8s %s\n", "inode", "size", "resident",
            "dirty", "device", "state", "shared", "path");
    inode_table_walk(fs->inodes, print_buffer, &table);
    return virtual_text_finish(table.out, &text);
}

char *virtual_text_socket(struct residentfs *fs, size_t *length)
{
    char path[SHARE_PATH_BYTES], *text = NULL;

    share_get_socket_path(fs->share, path);
    int printed = path[0] ? asprintf(&text, "%s\n", path) : asprintf(&text, "%s", "");
    if (printed < 0)
        return NULL;
    *length = (size_t)printed;
    return text;
}

/* With the budget as it is now, so that it can be fed back. */
char *virtual_text_config(struct residentfs *fs, size_t *length)
{
    struct conf conf = *fs->conf;
    struct budget_report report;

    device_get_budget_report(fs->device, &report);
    conf.budget = report.setting;
    return conf_dump_ini(&conf, length);
}

char *virtual_text_version(struct residentfs *fs, size_t *length)
{
    const struct device_identity *device = device_identity(fs->device);
    struct session_report transport;
    struct utsname kernel;
    char *text = NULL;
    FILE *out = open_memstream(&text, length);

    if (!out)
        return NULL;
    session_get_report(fs->session, &transport);
    uname(&kernel);
    fprintf(out, "version %s\n", RESIDENTFS_VERSION);
    fprintf(out, "build %s\n", RESIDENTFS_BUILD);
    fprintf(out, "driver %s\n", device->driver);
    fprintf(out, "driver_version %d.%d\n", device->driver_version / 1000,
            device->driver_version % 1000 / 10);
    fprintf(out, "device %s:%d\n", device->driver, device->index);
    fprintf(out, "device_name %s\n", device->name);
    fprintf(out, "device_uuid %s\n", device->uuid);
    fprintf(out, "device_pci_bus_id %s\n", device->pci_bus_id);
    fprintf(out, "libfuse_build %d.%d\n", FUSE_MAJOR_VERSION, FUSE_MINOR_VERSION);
    fprintf(out, "libfuse %s\n", fuse_pkgversion());
    fprintf(out, "kernel %s\n", kernel.release);
    fprintf(out, "kernel_protocol %u.%u\n", fs->connection.proto_major, fs->connection.proto_minor);
    fprintf(out, "transport %s\n", transport.io_uring ? "io_uring" : "descriptor");
    if (fs->ring_reason[0])
        fprintf(out, "io_uring_needs %s\n", fs->ring_reason);
    fprintf(out, "workers %u\n", transport.workers);
    fprintf(out, "clone_fd %s\n", transport.channels ? "yes" : "no");
    fprintf(out, "receive_buffers %u\n", transport.receive_buffers);
    fprintf(out, "page_locked %s\n", transport.page_locked ? "yes" : "no");
    fprintf(out, "max_write %" PRIu64 "\n", fs->max_write_bytes);
    fprintf(out, "max_background %u\n", fs->connection.max_background);
    fprintf(out, "cache %s\n", fs->conf->cache == CONF_CACHE_ON ? "on" : "off");
    fprintf(out, "parallel_direct_writes %s\n", fs->parallel_writes ? "yes" : "no");
    fprintf(out, "mmap %s\n",
            fs->direct_mmap || fs->conf->cache == CONF_CACHE_ON ? "yes" : "private only");
    fprintf(out, "o_tmpfile %s\n", fs->nameless_files ? "yes" : "no");
    fprintf(out, "birth_times %s\n", fs->birth_times ? "yes" : "no");
    fprintf(out, "format %d\n", VIRTUAL_FORMAT);
    return virtual_text_finish(out, &text);
}
