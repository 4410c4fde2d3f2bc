/*
 * .resident: a directory that is reachable by name and not listed in its parent. A file in it is a
 * snapshot of text taken when it was opened, or takes a command in one write.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "core/log.h"
#include "fs/virtual_text.h"

#define VIRTUAL_DIRECTORY_NAME ".resident"
#define VIRTUAL_BLOCK_BYTES    4096
#define SETTING_SHOWN_BYTES    40
/* Of all open snapshots. Root and the owner get theirs however many others have. */
#define SNAPSHOTS_MAX_BYTES (16 * MIB)

/* An open virtual file; fi->fh points to it. */
struct virtual_file {
    struct handle handle;
    char *text; /* NULL: not open for reading */
    size_t length;
};

struct virtual_entry {
    const char *name;
    mode_t mode;
    /* What is read; NULL: nothing can be. The second where it depends on who reads. */
    char *(*text)(struct residentfs *fs, size_t *length);
    char *(*text_for)(struct residentfs *fs, uid_t reader, size_t *length);
    /* The errno of a command that was written, and a negative errno if it was refused. */
    errint_t (*command)(struct residentfs *fs, const char *bytes, size_t size);
};

static char *log_text(struct residentfs *fs, size_t *length)
{
    (void)fs;
    return log_snapshot(length);
}

static errint_t set_budget(struct residentfs *fs, const char *bytes, size_t size)
{
    struct budget_setting setting;
    char text[BUDGET_SETTING_TEXT_BYTES];
    errint_t error = budget_setting_parse(bytes, size, &setting);

    if (error < 0) {
        size_t shown = MIN(size, SETTING_SHOWN_BYTES);

        while (shown > 0 && bytes[shown - 1] == '\n')
            shown--;
        log_warning(".resident/budget: \"%.*s\" is not a budget: expected %s, in one write; "
                    "nothing was changed",
                    (int)shown, bytes, BUDGET_SETTING_FORMS);
        return -EINVAL;
    }
    budget_set(device_budget(fs->device), setting);
    log_info("budget set to %s", budget_setting_format(&setting, text));
    return 0;
}

static errint_t flush_device(struct residentfs *fs, const char *bytes, size_t size)
{
    (void)bytes;
    (void)size;
    return device_flush(fs->device);
}

/* Their numbers follow that of the directory, in this order. */
static const struct virtual_entry entries[] = {
    {"status", 0444, NULL, virtual_text_status, NULL},
    {"budget", 0644, virtual_text_budget, NULL, set_budget},
    {"metrics", 0444, virtual_text_metrics, NULL, NULL},
    {"telemetry.json", 0444, virtual_text_telemetry, NULL, NULL},
    {"buffers", 0400, virtual_text_buffers, NULL, NULL},
    {"config", 0400, virtual_text_config, NULL, NULL},
    {"log", 0400, log_text, NULL, NULL},
    {"flush", 0200, NULL, NULL, flush_device},
    {"socket", 0444, virtual_text_socket, NULL, NULL},
    {"version", 0444, virtual_text_version, NULL, NULL},
};

#define FIRST_FILE_INO ((uint64_t)INODE_VIRTUAL_BASE + 1)

static const struct virtual_entry *entry_of(uint64_t ino)
{
    if (ino < FIRST_FILE_INO || ino - FIRST_FILE_INO >= ARRAY_SIZE(entries))
        return NULL;
    return &entries[ino - FIRST_FILE_INO];
}

static bool is_readable(const struct virtual_entry *entry)
{
    return entry->text || entry->text_for;
}

static struct virtual_file *virtual_file_of(const struct fuse_file_info *fi)
{
    return (struct virtual_file *)(uintptr_t)fi->fh;
}

bool virtual_is(uint64_t ino)
{
    return ino >= INODE_VIRTUAL_BASE && ino < INODE_FIRST_FREE;
}

bool virtual_is_writable(uint64_t ino)
{
    const struct virtual_entry *entry = entry_of(ino);

    return entry && entry->command;
}

uint64_t virtual_lookup(uint64_t parent_ino, const char *name)
{
    if (parent_ino == INODE_ROOT)
        return strcmp(name, VIRTUAL_DIRECTORY_NAME) == 0 ? INODE_VIRTUAL_BASE : 0;
    if (parent_ino != INODE_VIRTUAL_BASE)
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(entries); i++) {
        if (strcmp(name, entries[i].name) == 0)
            return FIRST_FILE_INO + i;
    }
    return 0;
}

/* Sizes are 0, as in /proc: what is read is made at open. */
void virtual_stat(struct residentfs *fs, uint64_t ino, struct stat *st)
{
    const struct virtual_entry *entry = entry_of(ino);

    memset(st, 0, sizeof(*st));
    st->st_ino = ino;
    st->st_mode = entry ? S_IFREG | entry->mode : S_IFDIR | 0555;
    st->st_nlink = entry ? 1 : 2;
    st->st_uid = fs->owner_uid;
    st->st_gid = fs->owner_gid;
    st->st_blksize = VIRTUAL_BLOCK_BYTES;
    clock_gettime(CLOCK_REALTIME_COARSE, &st->st_mtim);
    st->st_atim = st->st_ctim = st->st_mtim;
}

/* Whether there may be this snapshot, too; virtual_file_destroy takes it back. */
static bool count_snapshot(fuse_req_t req, struct residentfs *fs, size_t length)
{
    uid_t uid = fuse_req_ctx(req)->uid;
    uint64_t before = atomic_fetch_add(&fs->virtual_bytes, length);

    if (before + length <= SNAPSHOTS_MAX_BYTES || uid == 0 || uid == fs->owner_uid)
        return true;
    atomic_fetch_sub(&fs->virtual_bytes, length);
    return false;
}

static void virtual_file_destroy(struct residentfs *fs, struct virtual_file *file)
{
    atomic_fetch_sub(&fs->virtual_bytes, file->length);
    handle_list_remove(&fs->open_virtual, &file->handle);
    free(file->text);
    free(file);
}

void virtual_finish(struct residentfs *fs)
{
    while (fs->open_virtual.first)
        virtual_file_destroy(fs, (struct virtual_file *)fs->open_virtual.first);
}

void virtual_open(fuse_req_t req, uint64_t ino, struct fuse_file_info *fi)
{
    struct residentfs *fs = session_request(req);
    const struct virtual_entry *entry = entry_of(ino);
    bool reads = (fi->flags & O_ACCMODE) != O_WRONLY;
    bool writes = (fi->flags & O_ACCMODE) != O_RDONLY;
    struct virtual_file *file;

    if (!entry) {
        fuse_reply_err(req, ENOENT);
        return;
    }
    /* Of others than root the kernel has asked the mode. */
    if ((reads && !is_readable(entry)) || (writes && !entry->command)) {
        fuse_reply_err(req, EACCES);
        return;
    }
    file = calloc(1, sizeof(*file));
    inode_table_settle(fs->inodes);
    if (file && reads)
        file->text = entry->text ? entry->text(fs, &file->length)
                                 : entry->text_for(fs, fuse_req_ctx(req)->uid, &file->length);
    if (!file || (reads && !file->text)) {
        free(file);
        fuse_reply_err(req, ENOMEM);
        return;
    }
    if (!count_snapshot(req, fs, file->length)) {
        free(file->text);
        free(file);
        fuse_reply_err(req, ENFILE);
        return;
    }
    handle_list_add(&fs->open_virtual, &file->handle);
    fi->fh = (uintptr_t)file;
    fi->direct_io = 1; /* the size is not known to the kernel */
    if (fuse_reply_open(req, fi) < 0)
        virtual_file_destroy(fs, file);
}

void virtual_read(fuse_req_t req, uint64_t ino, size_t size, off_t offset,
                  struct fuse_file_info *fi)
{
    const struct virtual_file *file = virtual_file_of(fi);
    cleanup_free char *part = NULL;

    (void)ino;
    if (!file->text || offset < 0 || (size_t)offset >= file->length) {
        fuse_reply_buf(req, NULL, 0);
        return;
    }
    /* A copy: once the reader has its answer, another worker may release the file before this one
     * is out of the reply. */
    size = MIN(size, file->length - (size_t)offset);
    part = malloc(size);
    if (!part) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    memcpy(part, file->text + offset, size);
    fuse_reply_buf(req, part, size);
}

void virtual_write(fuse_req_t req, uint64_t ino, const char *bytes, size_t size, off_t offset,
                   struct fuse_file_info *fi)
{
    struct residentfs *fs = session_request(req);
    const struct virtual_entry *entry = entry_of(ino);
    errint_t error;

    (void)fi;
    if (!entry || !entry->command) {
        fuse_reply_err(req, EACCES);
        return;
    }
    if (offset != 0) {
        log_warning(".resident/%s: a write at offset %lld was refused: expected one write at the "
                    "start, then close",
                    entry->name, (long long)offset);
        fuse_reply_err(req, EINVAL);
        return;
    }
    error = entry->command(fs, bytes, size);
    if (error < 0)
        fuse_reply_err(req, -error);
    else
        fuse_reply_write(req, size);
}

void virtual_release(fuse_req_t req, uint64_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    virtual_file_destroy(session_request(req), virtual_file_of(fi));
    fuse_reply_err(req, 0);
}

/* The entry at POSITION of the listing: itself, its parent, then the files. */
static const char *listed_at(uint64_t position, uint64_t *ino)
{
    if (position == 0) {
        *ino = INODE_VIRTUAL_BASE;
        return ".";
    }
    if (position == 1) {
        *ino = INODE_ROOT;
        return "..";
    }
    *ino = FIRST_FILE_INO + position - 2;
    return position - 2 < ARRAY_SIZE(entries) ? entries[position - 2].name : NULL;
}

void virtual_readdir(fuse_req_t req, uint64_t ino, size_t size, off_t offset, bool plus)
{
    struct residentfs *fs = session_request(req);
    cleanup_free char *bytes = malloc(size);
    size_t used = 0;
    uint64_t position = offset < 0 ? 0 : (uint64_t)offset, entry_ino;
    const char *name;

    if (ino != INODE_VIRTUAL_BASE) {
        fuse_reply_err(req, ENOTDIR);
        return;
    }
    if (!bytes) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    while ((name = listed_at(position, &entry_ino))) {
        struct fuse_entry_param entry = {0};
        off_t next = (off_t)++position;
        size_t length;

        if (virtual_is(entry_ino)) {
            virtual_stat(fs, entry_ino, &entry.attr);
        } else {
            entry.attr.st_ino = entry_ino;
            entry.attr.st_mode = S_IFDIR;
        }
        if (position > 2) /* the kernel takes no lookups on "." and ".." */
            entry.ino = entry_ino;
        entry.attr_timeout = fs->conf->attr_timeout_s;
        entry.entry_timeout = fs->conf->entry_timeout_s;
        length = plus ? fuse_add_direntry_plus(req, bytes + used, size - used, name, &entry, next)
                      : fuse_add_direntry(req, bytes + used, size - used, name, &entry.attr, next);
        if (length > size - used)
            break;
        used += length;
    }
    fuse_reply_buf(req, bytes, used);
}
