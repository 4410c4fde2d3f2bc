/*
 * Handlers of open regular files. Bytes go between the worker's page-locked memory and the inode's
 * buffer; no lock is held meanwhile. A handler answers exactly once.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <string.h>

#include "core/log.h"
#include "fs/residentfs.h"
#include "fs/session.h"

#define COPY_LENGTH_MAX ((size_t)UINT32_MAX & ~(size_t)4095)

static struct residentfs *fs_of(fuse_req_t req)
{
    return session_request(req);
}

static struct open_file *open_file_of(const struct fuse_file_info *fi)
{
    return (struct open_file *)(uintptr_t)fi->fh;
}

static struct telemetry *telemetry_of(const struct residentfs *fs)
{
    return device_telemetry(fs->device);
}

static bool is_for_writing(int flags)
{
    return (flags & O_ACCMODE) != O_RDONLY;
}

/* Whether to try again what failed for want of memory: files that are gone may have had it still.
 */
static bool memory_came_back(struct residentfs *fs, int64_t result)
{
    return result == -ENOSPC && inode_table_settle(fs->inodes);
}

/* -- open and close ---------------------------------------------------------------------------- */

static struct open_file *open_file_create(struct residentfs *fs, struct inode *inode, int flags)
{
    struct open_file *file = calloc(1, sizeof(*file));

    if (!file) {
        errno = ENOMEM;
        return NULL;
    }
    inode_opened(fs->inodes, inode, is_for_writing(flags));
    inode_ref(inode, 1);
    file->inode = inode;
    file->flags = flags;
    file->error_cursor = buffer_error_sample(inode->buffer);
    readahead_init(&file->readahead);
    handle_list_add(&fs->open_files, &file->handle);
    return file;
}

static void open_file_destroy(struct residentfs *fs, struct open_file *file)
{
    struct inode *inode = file->inode;

    handle_list_remove(&fs->open_files, &file->handle);
    readahead_finish(&file->readahead, inode->buffer);
    if (file->cached)
        inode_cache_end(inode);
    inode_closed(fs->inodes, inode, is_for_writing(file->flags));
    inode_unref(fs->inodes, inode, 1);
    free(file);
}

void data_finish(struct residentfs *fs)
{
    while (fs->open_files.first)
        open_file_destroy(fs, (struct open_file *)fs->open_files.first);
}

static void fill_file_info(const struct residentfs *fs, struct open_file *file,
                           struct fuse_file_info *fi)
{
    file->cached = fs->conf->cache == CONF_CACHE_ON && !(file->flags & O_DIRECT) &&
                   inode_cache_begin(file->inode);
    fi->fh = (uintptr_t)file;
    fi->direct_io = !file->cached;
    fi->keep_cache = file->cached;
#ifdef HAVE_FUSE_PARALLEL_DIRECT_WRITES
    fi->parallel_direct_writes = !file->cached;
#endif
}

static void changed_by(struct inode *inode, fuse_req_t req)
{
    if (inode_modified(inode, namespace_author(req, inode)))
        session_forget_attributes(fs_of(req)->session, inode->ino);
}

/* Replies with an open file that was just made, whose one lookup is given to the kernel. */
static void reply_created(fuse_req_t req, struct inode *inode, const struct fuse_entry_param *entry,
                          struct fuse_file_info *fi)
{
    struct residentfs *fs = fs_of(req);
    struct open_file *file = open_file_create(fs, inode, fi->flags);

    if (!file) {
        inode_forget(fs->inodes, inode, 1);
        fuse_reply_err(req, ENOMEM);
        return;
    }
    fill_file_info(fs, file, fi);
    if (fuse_reply_create(req, entry, fi) < 0) {
        /* The caller was interrupted: the kernel knows of neither. */
        open_file_destroy(fs, file);
        inode_forget(fs->inodes, inode, 1);
    }
}

/* The directory of a request that makes a file. NULL: replied. */
static struct inode *directory_to_create_in(fuse_req_t req, fuse_ino_t ino)
{
    struct inode *directory = virtual_is(ino) ? NULL : inode_table_find(fs_of(req)->inodes, ino);

    if (!directory)
        fuse_reply_err(req, virtual_is(ino) ? EPERM : ESTALE);
    return directory;
}

/* NAME NULL: without one; LINKABLE: it may get one. */
static void create_file(fuse_req_t req, fuse_ino_t parent_ino, const char *name, mode_t mode,
                        bool linkable, struct fuse_file_info *fi)
{
    struct residentfs *fs = fs_of(req);
    struct inode *parent = directory_to_create_in(req, parent_ino), *inode;
    struct fuse_entry_param entry = {0};
    errint_t error;

    if (!parent)
        return;
    mode = S_IFREG | (mode & 07777);
    if (name)
        error = namespace_create(fs, req, parent, name, mode, 0, &inode, &entry);
    else
        error = namespace_create_nameless(fs, req, parent, mode, linkable, &inode, &entry);
    if (error < 0)
        fuse_reply_err(req, -error);
    else
        reply_created(req, inode, &entry, fi);
}

static void data_create(fuse_req_t req, fuse_ino_t parent_ino, const char *name, mode_t mode,
                        struct fuse_file_info *fi)
{
    create_file(req, parent_ino, name, mode, true, fi);
}

#ifdef HAVE_FUSE_TMPFILE
static void data_tmpfile(fuse_req_t req, fuse_ino_t parent_ino, mode_t mode,
                         struct fuse_file_info *fi)
{
    create_file(req, parent_ino, NULL, mode, !(fi->flags & O_EXCL), fi);
}
#endif

static void data_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct residentfs *fs = fs_of(req);
    struct inode *inode;
    struct open_file *file;

    if (virtual_is(ino)) {
        virtual_open(req, ino, fi);
        return;
    }
    inode = inode_table_find(fs->inodes, ino);
    if (!inode || inode->type != S_IFREG) {
        fuse_reply_err(req, inode ? ENXIO : ESTALE);
        return;
    }
    file = open_file_create(fs, inode, fi->flags);
    if (!file) {
        fuse_reply_err(req, errno);
        return;
    }
    if (fi->flags & O_TRUNC) {
        errint_t error = buffer_truncate(inode->buffer, 0);

        if (error < 0) {
            open_file_destroy(fs, file);
            fuse_reply_err(req, -error);
            return;
        }
        changed_by(inode, req);
    }
    fill_file_info(fs, file, fi);
    if (fuse_reply_open(req, fi) < 0)
        open_file_destroy(fs, file);
}

static void data_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    if (virtual_is(ino)) {
        virtual_release(req, ino, fi);
        return;
    }
    open_file_destroy(fs_of(req), open_file_of(fi));
    fuse_reply_err(req, 0);
}

/* -- reading ----------------------------------------------------------------------------------- */

static void accessed(const struct residentfs *fs, struct open_file *file)
{
    if (!(file->flags & O_NOATIME))
        namespace_accessed(fs, file->inode);
}

static void has_read(struct residentfs *fs, struct open_file *file, uint64_t offset,
                     uint64_t length, uint64_t began_ns)
{
    accessed(fs, file);
    progress_count(&file->read, offset, length, began_ns);
    telemetry_observe_ns(telemetry_of(fs), TELEMETRY_READ_SECONDS, monotonic_ns() - began_ns);
}

/* Whether it had been read ahead, and is answered. */
static bool answer_read_ahead(fuse_req_t req, struct open_file *file, size_t size, off_t offset,
                              uint64_t began_ns)
{
    const void *bytes;
    size_t length;

    if (worker_answers_in_place(worker_current(), size) ||
        !readahead_begin(&file->readahead, file->inode->buffer, (uint64_t)offset, size, &bytes,
                         &length))
        return false;
    has_read(fs_of(req), file, (uint64_t)offset, length, began_ns);
    fuse_reply_buf(req, bytes, length);
    readahead_end(&file->readahead, file->inode->buffer, (uint64_t)offset, size);
    return true;
}

static void data_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                      struct fuse_file_info *fi)
{
    struct residentfs *fs = fs_of(req);
    struct worker *worker = worker_current();
    struct open_file *file;
    struct reply_memory memory;
    cleanup_free char *own = NULL;
    uint64_t began_ns = monotonic_ns();
    ssize_t length;

    if (virtual_is(ino)) {
        virtual_read(req, ino, size, offset, fi);
        return;
    }
    file = open_file_of(fi);
    if (answer_read_ahead(req, file, size, offset, began_ns))
        return;
    worker_reply_memory(worker, req, &memory);
    if (size > memory.capacity) {
        /* The kernel asks for no more than it negotiated; a short answer would mean the end. */
        memory.bytes = own = malloc(size);
        memory.answer = own;
        if (!own) {
            fuse_reply_err(req, ENOMEM);
            return;
        }
    }
    length = buffer_read(file->inode->buffer, (uint64_t)offset, memory.bytes, size);
    if (length == -ENOTRECOVERABLE) {
        /* The copy may still write to the memory: it is nobody's any more. */
        if (own)
            (void)steal_pointer(&own);
        else
            worker_quarantine_reply(worker, req);
        length = -EIO;
    }
    if (length < 0) {
        fuse_reply_err(req, (int)-length);
        return;
    }
    has_read(fs, file, (uint64_t)offset, (uint64_t)length, began_ns);
    fuse_reply_buf(req, memory.answer, (size_t)length);
}

static void data_lseek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence,
                       struct fuse_file_info *fi)
{
    struct buffer *buffer;
    int64_t found;

    if (virtual_is(ino)) {
        fuse_reply_err(req, EINVAL);
        return;
    }
    buffer = open_file_of(fi)->inode->buffer;
    if (offset < 0)
        found = -ENXIO;
    else if (whence == SEEK_DATA)
        found = buffer_seek_data(buffer, (uint64_t)offset);
    else if (whence == SEEK_HOLE)
        found = buffer_seek_hole(buffer, (uint64_t)offset);
    else
        found = -EINVAL;
    if (found < 0)
        fuse_reply_err(req, (int)-found);
    else
        fuse_reply_lseek(req, found);
}

/* -- writing ----------------------------------------------------------------------------------- */

/*
 * An upload that failed after its write returned: once for each open file. Not for its next write:
 * the kernel cuts large writes into several requests, and when one after the first fails, its
 * caller sees a short write and no error.
 */
static errint_t take_deferred_error(struct open_file *file)
{
    uint64_t before = file->error_cursor, after = before;
    errint_t error = buffer_error_check(file->inode->buffer, &after);

    if (after != before && !atomic_compare_exchange_strong(&file->error_cursor, &before, after))
        return 0; /* another call on this file reports it */
    return error;
}

static errint_t flush(struct open_file *file)
{
    if (buffer_is_dirty(file->inode->buffer))
        worker_takes_long(worker_current());
    errint_t now = buffer_flush(file->inode->buffer);
    errint_t deferred = take_deferred_error(file); /* a failure now is also one of these */

    return deferred < 0 ? deferred : now;
}

static void data_write(fuse_req_t req, fuse_ino_t ino, const char *bytes, size_t size, off_t offset,
                       struct fuse_file_info *fi)
{
    struct residentfs *fs = fs_of(req);
    struct worker *worker = worker_current();
    struct open_file *file;
    struct upload_fence *fence = NULL;
    uint64_t began_ns = monotonic_ns();
    errint_t error;
    ssize_t length;

    if (virtual_is(ino)) {
        virtual_write(req, ino, bytes, size, offset, fi);
        return;
    }
    file = open_file_of(fi);
    if (size >= device_direct_threshold_bytes(fs->device))
        fence = worker_receive_fence(worker, req, &bytes, size);
    length = buffer_write(file->inode->buffer, (uint64_t)offset, bytes, size, fence);
    if (memory_came_back(fs, length))
        length = buffer_write(file->inode->buffer, (uint64_t)offset, bytes, size, fence);
    worker_upload_submitted(worker, req, fence);
    if (length < 0) {
        fuse_reply_err(req, (int)-length);
        return;
    }
    progress_count(&file->written, (uint64_t)offset, (uint64_t)length, began_ns);
    if (length > 0 && !fi->writepage)
        changed_by(file->inode, req);
    else if (length > 0) /* out of a mapping: the kernel does not say whose */
        inode_touch(file->inode, INODE_TOUCH_MTIME | INODE_TOUCH_CTIME);
    if (fi->flags & O_DSYNC) { /* O_SYNC includes it */
        error = flush(file);
        if (error < 0) {
            fuse_reply_err(req, -error);
            return;
        }
    }
    telemetry_observe_ns(telemetry_of(fs), TELEMETRY_WRITE_SECONDS, monotonic_ns() - began_ns);
    fuse_reply_write(req, (size_t)length);
}

static void data_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    if (virtual_is(ino))
        fuse_reply_err(req, 0);
    else
        fuse_reply_err(req, -flush(open_file_of(fi)));
}

static void data_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    uint64_t began_ns = monotonic_ns();
    errint_t error;

    (void)datasync; /* there is no other storage for the rest */
    if (virtual_is(ino)) {
        fuse_reply_err(req, 0);
        return;
    }
    error = flush(open_file_of(fi));
    telemetry_observe_ns(telemetry_of(fs_of(req)), TELEMETRY_FSYNC_SECONDS,
                         monotonic_ns() - began_ns);
    fuse_reply_err(req, -error);
}

/* -- space ------------------------------------------------------------------------------------- */

/* Memory is made sure of before anything is lost. */
static errint_t zero_range(struct buffer *buffer, uint64_t offset, uint64_t length,
                           bool keep_length)
{
    errint_t error = buffer_allocate(buffer, offset, length, keep_length);

    if (error == 0)
        error = buffer_punch(buffer, offset, length);
    if (error == 0)
        error = buffer_allocate(buffer, offset, length, keep_length);
    return error;
}

static errint_t allocate(struct buffer *buffer, int mode, uint64_t offset, uint64_t length)
{
    switch (mode) {
    case 0:
    case FALLOC_FL_KEEP_SIZE:
        return buffer_allocate(buffer, offset, length, mode == FALLOC_FL_KEEP_SIZE);
    case FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE:
        return buffer_punch(buffer, offset, length);
    case FALLOC_FL_ZERO_RANGE:
    case FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE:
        return zero_range(buffer, offset, length, (mode & FALLOC_FL_KEEP_SIZE) != 0);
    default:
        return -EOPNOTSUPP;
    }
}

static void data_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
                           struct fuse_file_info *fi)
{
    struct inode *inode;
    errint_t error;

    if (virtual_is(ino)) {
        fuse_reply_err(req, EOPNOTSUPP);
        return;
    }
    if (offset < 0 || length <= 0) {
        fuse_reply_err(req, EINVAL);
        return;
    }
    if (offset > INT64_MAX - length) {
        fuse_reply_err(req, EFBIG);
        return;
    }
    inode = open_file_of(fi)->inode;
    worker_takes_long(worker_current());
    error = allocate(inode->buffer, mode, (uint64_t)offset, (uint64_t)length);
    if (memory_came_back(fs_of(req), error))
        error = allocate(inode->buffer, mode, (uint64_t)offset, (uint64_t)length);
    if (error == 0)
        changed_by(inode, req);
    fuse_reply_err(req, -error);
}

static void data_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t offset_in,
                                 struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t offset_out,
                                 struct fuse_file_info *fi_out, size_t length, int flags)
{
    struct inode *source, *destination;
    ssize_t copied;

    /* The kernel then copies through user space by itself. */
    if (virtual_is(ino_in) || virtual_is(ino_out)) {
        fuse_reply_err(req, EOPNOTSUPP);
        return;
    }
    if (flags != 0 || offset_in < 0 || offset_out < 0) {
        fuse_reply_err(req, EINVAL);
        return;
    }
    source = open_file_of(fi_in)->inode;
    destination = open_file_of(fi_out)->inode;
    if (buffer_device(source->buffer) != buffer_device(destination->buffer)) {
        fuse_reply_err(req, EXDEV);
        return;
    }
    worker_takes_long(worker_current());
    copied = buffer_copy(source->buffer, (uint64_t)offset_in, destination->buffer,
                         (uint64_t)offset_out, MIN(length, COPY_LENGTH_MAX));
    if (memory_came_back(fs_of(req), copied))
        copied = buffer_copy(source->buffer, (uint64_t)offset_in, destination->buffer,
                             (uint64_t)offset_out, MIN(length, COPY_LENGTH_MAX));
    if (copied < 0) {
        fuse_reply_err(req, (int)-copied);
        return;
    }
    if (copied > 0) {
        accessed(fs_of(req), open_file_of(fi_in));
        changed_by(destination, req);
    }
    fuse_reply_write(req, (size_t)copied);
}

void data_operations(struct fuse_lowlevel_ops *ops)
{
    ops->create = data_create;
#ifdef HAVE_FUSE_TMPFILE
    ops->tmpfile = data_tmpfile;
#endif
    ops->open = data_open;
    ops->read = data_read;
    ops->write = data_write;
    ops->flush = data_flush;
    ops->release = data_release;
    ops->fsync = data_fsync;
    ops->fallocate = data_fallocate;
    ops->lseek = data_lseek;
    ops->copy_file_range = data_copy_file_range;
}
