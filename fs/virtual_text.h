/*
 * What the files in .resident say. Each function gives the text as of now, with what it shows taken
 * at one time; the caller frees it. NULL: no memory. *length leaves out the NUL.
 */
#ifndef RESIDENTFS_FS_VIRTUAL_TEXT_H
#define RESIDENTFS_FS_VIRTUAL_TEXT_H

#include "fs/residentfs.h"
#include "fs/session.h"
#include "fs/share.h"

/* READER decides which files it names. */
char *virtual_text_status(struct residentfs *fs, uid_t reader, size_t *length);
char *virtual_text_budget(struct residentfs *fs, size_t *length);
char *virtual_text_metrics(struct residentfs *fs, size_t *length);
char *virtual_text_telemetry(struct residentfs *fs, size_t *length);
char *virtual_text_buffers(struct residentfs *fs, size_t *length);
char *virtual_text_config(struct residentfs *fs, size_t *length);
/* The path of the share socket, a line; empty when nobody can connect. */
char *virtual_text_socket(struct residentfs *fs, size_t *length);
char *virtual_text_version(struct residentfs *fs, size_t *length);

/* -- private to virtual_*.c -------------------------------------------------------------------- */

struct virtual_figures {
    const struct device_identity *device;
    char label[32]; /* "cuda:0" */
    struct budget_report budget;
    struct telemetry_snapshot telemetry;
    uint64_t dirty_bytes;
    uint64_t inodes, files, failed_files;
    bool lost, degraded;
    char lost_reason[160];
    struct session_report transport;
    struct share_report share;
    double uptime_seconds;
};

struct size_shown {
    char text[32];
};
/* For people: "1.5 GiB". */
struct size_shown virtual_show_size(uint64_t bytes);

/* Lines of status: the biggest files that are busy; of READER's, unless that is root or the owner.
 */
void virtual_print_busy(FILE *out, struct residentfs *fs, uid_t reader);

void virtual_figures_take(struct residentfs *fs, struct virtual_figures *figures);

/* For a quoted string of JSON or of a Prometheus label; control characters become '?'. */
void virtual_print_quoted(FILE *out, const char *text);

/* Closes OUT, an open_memstream into *TEXT. Returns *TEXT, or frees it and returns NULL. */
char *virtual_text_finish(FILE *out, char **text);

#endif
