/* What .resident/status says of files that are being read or written right now. */
#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "fs/virtual_text.h"

#define SHOWN_MAX   5
#define SHOWN_BYTES (16 * MIB) /* smaller ones are done before anybody looks */

struct busy_file {
    struct inode *inode; /* a reference */
    struct progress_report progress;
    uint64_t length_bytes; /* of the file */
    bool writes;
};

/* Biggest first. */
struct busy_files {
    struct busy_file shown[SHOWN_MAX];
    size_t count, left_out;
    uint64_t now_ns;
};

/*
 * A writer's end is known when the length was there before it: what it writes itself only ever
 * makes it as long as it has come.
 */
static bool end_is_known(const struct busy_file *file)
{
    return file->progress.sequential &&
           (!file->writes || file->length_bytes > file->progress.front);
}

static uint64_t size_of(const struct busy_file *file)
{
    return end_is_known(file) ? MAX(file->length_bytes, file->progress.bytes)
                              : file->progress.bytes;
}

/* As .resident/buffers, but that users see their own files. */
static bool may_see(const struct residentfs *fs, struct inode *inode, uid_t reader)
{
    uid_t uid;

    if (reader == 0 || reader == fs->owner_uid)
        return true;
    pthread_mutex_lock(&inode->mutex);
    uid = inode->uid;
    pthread_mutex_unlock(&inode->mutex);
    return uid == reader;
}

static void consider(struct busy_files *files, struct residentfs *fs, struct inode *inode,
                     struct progress *progress, bool writes, uid_t reader)
{
    struct busy_file file = {.inode = inode, .writes = writes};
    size_t at;

    if (!progress_get_report(progress, files->now_ns, &file.progress))
        return;
    file.length_bytes = buffer_length_bytes(inode->buffer);
    if (size_of(&file) < SHOWN_BYTES || !may_see(fs, inode, reader))
        return;
    for (at = files->count; at > 0 && size_of(&files->shown[at - 1]) < size_of(&file); at--) {
        if (at < SHOWN_MAX)
            files->shown[at] = files->shown[at - 1];
    }
    if (at < SHOWN_MAX)
        files->shown[at] = file;
    if (files->count < SHOWN_MAX)
        files->count++;
    else
        files->left_out++;
}

static void take(struct busy_files *files, struct residentfs *fs, uid_t reader)
{
    struct handle_list *list = &fs->open_files;

    files->now_ns = monotonic_ns();
    pthread_mutex_lock(&list->mutex);
    for (struct handle *handle = list->first; handle; handle = handle->next) {
        struct open_file *file = (struct open_file *)handle;

        consider(files, fs, file->inode, &file->written, true, reader);
        consider(files, fs, file->inode, &file->read, false, reader);
    }
    for (size_t i = 0; i < files->count; i++)
        inode_ref(files->shown[i].inode, 1);
    pthread_mutex_unlock(&list->mutex);
}

static void print_time_left(FILE *out, uint64_t seconds)
{
    if (seconds >= 3600)
        fprintf(out, ", %" PRIu64 " h %02" PRIu64 " min left", seconds / 3600, seconds / 60 % 60);
    else if (seconds >= 60)
        fprintf(out, ", %" PRIu64 " min %02" PRIu64 " s left", seconds / 60, seconds % 60);
    else
        fprintf(out, ", %" PRIu64 " s left", seconds);
}

static void print_file(FILE *out, struct residentfs *fs, const struct busy_file *file, uid_t reader)
{
    const struct progress_report *progress = &file->progress;
    const char *verb = file->writes ? "written" : "read";
    cleanup_free char *path = namespace_path(fs, file->inode);
    const char *name = path ? path : "?";

    if (end_is_known(file))
        fprintf(out, "%s of %s %s", virtual_show_size(progress->bytes).text,
                virtual_show_size(file->length_bytes).text, verb);
    else
        fprintf(out, "%s %s so far", virtual_show_size(progress->bytes).text, verb);
    if (progress->bytes_each_second > 0) {
        fprintf(out, ", %s/s", virtual_show_size(progress->bytes_each_second).text);
        if (end_is_known(file) && progress->bytes < file->length_bytes)
            print_time_left(
                out, (file->length_bytes - progress->bytes) / progress->bytes_each_second + 1);
    }
    /* Others than the owner know the file, but perhaps not the directories that it is in. */
    if (reader != 0 && reader != fs->owner_uid && strrchr(name, '/'))
        name = strrchr(name, '/') + 1;
    fprintf(out, ": %s\n", name);
}

void virtual_print_busy(FILE *out, struct residentfs *fs, uid_t reader)
{
    struct busy_files files = {.count = 0};

    take(&files, fs, reader);
    for (size_t i = 0; i < files.count; i++) {
        fputs(i == 0 ? "busy       " : "           ", out);
        print_file(out, fs, &files.shown[i], reader);
        inode_unref(fs->inodes, files.shown[i].inode, 1);
    }
    if (files.left_out > 0)
        fprintf(out, "           and %zu more\n", files.left_out);
}
