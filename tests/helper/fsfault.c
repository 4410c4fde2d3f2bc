/*
 * fsfault: one injected failure of the driver at a time, through a mounted file system.
 *
 *   fsfault DAEMON FOLDER POSITIONS KIND [ENTRY…]
 *
 * For each entry point of the driver that the workload calls (or those named), and for each of its
 * calls (POSITIONS all; else at most that many of them, ever further apart), DAEMON is mounted
 * below FOLDER with the emulated driver, that one call fails, and a process works on the mount,
 * with a model of what it may see. KIND is how it fails:
 *
 *   refused   at once: out of memory, an invalid value, another error, in turn
 *   late      the copy is accepted and not carried out; a later synchronisation says so
 *   unproven  the stream cannot be synchronised any more, and DMA goes on for a while
 *   lost      for good: the device is lost
 *   ending    at once, while files are deleted and the mount ends
 *
 * Prints "ENTRY COUNT" for each, COUNT being the failures injected, and what went wrong as
 * "bad: …" lines, with how to repeat it. Ends with 1 if anything did. MOUNT_OPTIONS are added to
 * the mount's; FAULT_AT=N: position N only.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "core/driver/cuda_entry_points.h"
#include "core/util.h"

#define FILE_BYTES      (6 * MIB)
#define FILES           3
#define WITNESSES       2
#define CASE_SECONDS    60
#define UNMOUNT_SECONDS 5
#define PAYLOAD_BYTES   (3 * MIB)
#define MEMORY          "128MiB"
#define OWN_BYTES       16 /* each file has that many byte values of its own */
#define SETTLE_SECONDS  10
#define SHARED_BYTES    (4 * MIB) /* of chunks in which a block is quarantined */

enum kind { REFUSED, LATE, UNPROVEN, LOST, ENDING, KINDS };

static const char *const kind_names[] = {"refused", "late", "unproven", "lost", "ending"};

static const char *const entries[] = {
#define NAME(name, suffix, asked, need, parameters) #name,
    CUDA_ENTRY_POINTS(NAME)
#undef NAME
};

static const char *daemon_program;
static char mountpoint[4096], armed[4200], acted[4200], messages[4200], daemons[4200];
static const char *fault_entry; /* NULL: none */
static enum kind fault_kind;

/* In the case's process. */
#define CHECK(condition, ...)                                        \
    do {                                                             \
        if (!(condition)) {                                          \
            printf("bad: fsfault.c:%d: %s: ", __LINE__, #condition); \
            printf(__VA_ARGS__);                                     \
            printf("\n");                                            \
            fflush(stdout);                                          \
            _exit(1);                                                \
        }                                                            \
    } while (0)

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static bool is_lost(void)
{
    return fault_kind == LOST && exists(acted);
}

static void arm(void)
{
    close(open(armed, O_WRONLY | O_CREAT, 0644));
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

/* -- the model --------------------------------------------------------------------------------- */

/*
 * A byte is known, or, since a failure, any that the file ever had. What was written since the last
 * fsync that found nothing wrong may be lost, but only if an fsync says so and the log says which.
 */
enum { CALL_FAILED = 1, TOLD };

struct file {
    const char *name;
    unsigned char first; /* of its bytes, of which there are OWN_BYTES; besides 0 */
    unsigned char *bytes;
    unsigned char *unknown; /* CALL_FAILED or TOLD, else 0 */
    bool *unflushed;
    uint64_t length;
    int writer, witnesses[WITNESSES];
    unsigned int told[1 + WITNESSES]; /* by fsync and close, of each description */
};

static struct file files[FILES];
static unsigned char *payload, *reply;
static unsigned int failures; /* calls that failed */

static void check_error(const char *call)
{
    failures++;
    CHECK(errno == EIO || errno == ENOSPC || errno == ENOMEM, "%s: %s", call, strerror(errno));
}

static void doubt(struct file *file, uint64_t offset, uint64_t length)
{
    if (offset < FILE_BYTES)
        memset(file->unknown + offset, CALL_FAILED, MIN(length, FILE_BYTES - offset));
}

static char *text_of(const char *path)
{
    char full[4400], *text = calloc(1, 1 << 20);
    snprintf(full, sizeof(full), "%s/%s", mountpoint, path);
    int descriptor = open(full, O_RDONLY);
    size_t length = 0;
    ssize_t part;

    CHECK(descriptor >= 0, "%s: %s", path, strerror(errno));
    while ((part = read(descriptor, text + length, (1 << 20) - 1 - length)) > 0)
        length += (size_t)part;
    CHECK(part == 0, "%s: %s", path, strerror(errno));
    close(descriptor);
    return text;
}

static uint64_t figure(const char *name)
{
    char *text = text_of(".resident/telemetry.json"), key[80];

    snprintf(key, sizeof(key), "\"%s\": ", name);
    char *found = strstr(text, key);
    CHECK(found, "no %s", name);
    uint64_t value = strtoull(found + strlen(key), NULL, 10);
    free(text);
    return value;
}

static void file_open(struct file *file, const char *name, unsigned char first)
{
    *file = (struct file){.name = name,
                          .first = first,
                          .bytes = calloc(1, FILE_BYTES),
                          .unknown = calloc(1, FILE_BYTES),
                          .unflushed = calloc(1, FILE_BYTES)};
    file->writer = open(name, O_RDWR | O_CREAT | O_EXCL, 0644);
    CHECK(file->writer >= 0, "%s: %s", name, strerror(errno));
    for (size_t i = 0; i < WITNESSES; i++) {
        file->witnesses[i] = open(name, i ? O_RDWR : O_RDONLY);
        CHECK(file->witnesses[i] >= 0, "%s: %s", name, strerror(errno));
    }
}

static void check_length(const struct file *file)
{
    struct stat status;

    CHECK(fstat(file->writer, &status) == 0, "%s", strerror(errno));
    CHECK((uint64_t)status.st_size == file->length, "%s: %lld, not %llu", file->name,
          (long long)status.st_size, (unsigned long long)file->length);
}

/* A write that is short or fails is not tried again. */
static void file_write(struct file *file, uint64_t offset, size_t length)
{
    static unsigned int turn;
    unsigned char byte = (unsigned char)(file->first + turn++ % OWN_BYTES);

    memset(payload, byte, length);
    ssize_t done = pwrite(file->writer, payload, length, (off_t)offset);
    if (done < 0)
        check_error("write");
    CHECK(done != 0 && done <= (ssize_t)length, "%zd", done);
    if (done < (ssize_t)length) {
        failures++;
        doubt(file, offset, length);
    }
    if (done > 0) {
        memset(file->bytes + offset, byte, (size_t)done);
        memset(file->unflushed + offset, true, (size_t)done);
        file->length = MAX(file->length, offset + (uint64_t)done);
    }
    check_length(file);
}

static bool told(struct file *file, size_t which, int result)
{
    if (result == 0)
        return false;
    check_error("fsync or close");
    file->told[which]++;
    return true;
}

/* Each description is told of what was lost, once. */
static void file_sync(struct file *file)
{
    bool lost = told(file, 0, fsync(file->writer));
    bool witness = told(file, 1, fsync(file->witnesses[0]));

    CHECK(told(file, 2, fdatasync(file->witnesses[1])) == witness, "one of two was told");
    for (size_t i = 0; i < WITNESSES && !exists(armed) && !is_lost(); i++)
        CHECK(fsync(file->witnesses[i]) == 0, "%s: told twice: %s", file->name, strerror(errno));
    if (lost || witness)
        for (uint64_t i = 0; i < FILE_BYTES; i++)
            if (file->unflushed[i] && !file->unknown[i])
                file->unknown[i] = TOLD;
    memset(file->unflushed, false, FILE_BYTES);
}

/* The log names ranges that hold it. */
static bool is_named(const struct file *file, const char *log, uint64_t at)
{
    struct stat status;
    char start[80];
    unsigned long long first, end;

    CHECK(fstat(file->writer, &status) == 0, "%s", strerror(errno));
    snprintf(start, sizeof(start), "buffer %llu: an upload in ", (unsigned long long)status.st_ino);
    for (const char *line = log; (line = strstr(line, start)); line++)
        if (sscanf(line + strlen(start), "[%llu, %llu)", &first, &end) == 2 && at >= first &&
            at < end)
            return true;
    return false;
}

static void check_bytes(const struct file *file, uint64_t offset, size_t length)
{
    char *log = NULL;

    if (memcmp(reply, file->bytes + offset, length) == 0)
        return;
    for (size_t i = 0; i < length; i++) {
        uint64_t at = offset + i;
        bool own = reply[i] == 0 || (reply[i] >= file->first && reply[i] < file->first + OWN_BYTES);
        CHECK(own, "%s: byte %llu is %02x, which was never written to it", file->name,
              (unsigned long long)at, reply[i]);
        if (reply[i] == file->bytes[at])
            continue;
        CHECK(file->unknown[at] || file->unflushed[at], "%s: byte %llu is %02x, not %02x",
              file->name, (unsigned long long)at, reply[i], file->bytes[at]);
        if (file->unknown[at] == TOLD && !log)
            log = text_of(".resident/log");
        CHECK(file->unknown[at] != TOLD || is_named(file, log, at),
              "%s: byte %llu is lost and the log does not say so", file->name,
              (unsigned long long)at);
    }
    free(log);
}

static bool is_given_up(const struct file *file)
{
    char state[32] = "";

    CHECK(fgetxattr(file->writer, "user.resident.state", state, sizeof(state) - 1) > 0, "%s",
          strerror(errno));
    return strcmp(state, "failed") == 0;
}

/* MUST: nothing fails any more, so it may only if the device is lost or the file given up. */
static void file_read(struct file *file, uint64_t offset, size_t length, bool must)
{
    uint64_t want = offset >= file->length ? 0 : MIN(length, file->length - offset), done = 0;
    int pieces = 0;

    while (done < want) {
        ssize_t got = pread(file->writer, reply + done, want - done, (off_t)(offset + done));
        if (got < 0) {
            check_error("read");
            CHECK(!must || is_lost() || is_given_up(file), "%s: %s", file->name, strerror(errno));
            return;
        }
        CHECK(got > 0 && ++pieces < 10, "%s: end at %llu", file->name,
              (unsigned long long)(offset + done));
        done += (uint64_t)got;
    }
    check_bytes(file, offset, done);
}

static void file_truncate(struct file *file, uint64_t length)
{
    uint64_t old = file->length;
    int result = ftruncate(file->writer, (off_t)length);

    if (result < 0) {
        check_error("truncate");
        doubt(file, MIN(length, old), FILE_BYTES);
    } else {
        file->length = length;
    }
    check_length(file);
    if (length < old) {
        if (result == 0)
            memset(file->unknown + length, 0, FILE_BYTES - length);
        memset(file->bytes + length, 0, FILE_BYTES - length);
        memset(file->unflushed + length, result == 0, old - length);
    }
}

static void file_allocate(struct file *file, int mode, uint64_t offset, uint64_t length)
{
    int result = fallocate(file->writer, mode, (off_t)offset, (off_t)length);

    if (result < 0)
        check_error("fallocate");
    if (mode == 0) {
        if (result == 0)
            file->length = MAX(file->length, offset + length);
    } else {
        memset(file->bytes + offset, 0, length);
        memset(file->unflushed + offset, true, length);
        if (result < 0)
            doubt(file, offset, length);
    }
    check_length(file);
}

static void file_copy(struct file *from, struct file *to, uint64_t offset, size_t length)
{
    struct stat status;
    off_t in = 0, out = (off_t)offset;
    ssize_t done = copy_file_range(from->writer, &in, to->writer, &out, length, 0);

    if (done < 0)
        check_error("copy_file_range");
    if (done < (ssize_t)length)
        doubt(to, offset, length);
    CHECK(fstat(to->writer, &status) == 0, "%s", strerror(errno));
    if (done > 0)
        to->length = MAX(to->length, offset + (uint64_t)done);
    CHECK((uint64_t)status.st_size == to->length, "%lld bytes, not %llu", (long long)status.st_size,
          (unsigned long long)to->length);
    for (uint64_t i = 0; i < (uint64_t)MAX(done, 0); i++) {
        to->bytes[offset + i] = from->bytes[i];
        to->unknown[offset + i] = from->unknown[i] || from->unflushed[i] ? CALL_FAILED : 0;
        to->unflushed[offset + i] = true;
    }
}

/* -- the workload ------------------------------------------------------------------------------ */

static void command(const char *path, const char *text)
{
    int descriptor = open(path, O_WRONLY);

    CHECK(descriptor >= 0, "%s: %s", path, strerror(errno));
    if (write(descriptor, text, strlen(text)) < 0)
        check_error(path);
    CHECK(close(descriptor) == 0, "%s: %s", path, strerror(errno));
}

/* What needs no device must not fail. */
static void names(void)
{
    struct statfs space;
    struct dirent *entry;
    int seen = 0;

    CHECK(mkdir("d", 0755) == 0 && rename("a", "d/a2") == 0 && link("d/a2", "l") == 0 &&
              symlink("l", "s") == 0 && unlink("l") == 0 && unlink("s") == 0 &&
              rename("d/a2", "a") == 0 && chmod("a", 0600) == 0 && rmdir("d") == 0,
          "%s", strerror(errno));
    CHECK(statfs(".", &space) == 0 && space.f_blocks > 0, "%s", strerror(errno));
    DIR *directory = opendir(".");
    CHECK(directory, "%s", strerror(errno));
    while ((entry = readdir(directory)))
        seen += entry->d_name[0] != '.';
    closedir(directory);
    CHECK(seen == FILES, "%d names", seen);
}

static void work(void)
{
    struct file *a = &files[0], *b = &files[1], *other = &files[2];

    file_write(a, 0, 3000);
    file_write(a, 3000, 3000);
    file_write(a, 50000, 100);
    file_read(a, 0, 60000, false);
    file_write(a, 100 * KIB, 300 * KIB);
    file_sync(a);
    file_write(b, 10, 700);
    file_write(a, 2 * MIB, 3 * MIB - 7);
    file_write(a, 10, 10);
    file_write(a, 2000, 300 * KIB);
    file_write(a, 700 * KIB, 1500 * KIB);
    file_read(a, 0, FILE_BYTES, false);
    file_sync(a);
    names();
    file_allocate(b, 0, 0, 5 * MIB);
    file_copy(a, b, 1000, 4 * MIB);
    file_allocate(a, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1 * MIB, 2 * MIB + 500);
    file_allocate(b, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 2 * MIB, 1 * MIB + 4321);
    file_sync(b);
    command(".resident/budget", "80%");
    file_read(b, 0, FILE_BYTES, false);
    free(text_of(".resident/status"));
    free(text_of(".resident/metrics"));
    free(text_of(".resident/buffers"));
    file_truncate(a, 200 * KIB + 5);
    file_truncate(a, 1 * MIB);
    file_write(a, 150 * KIB, 900 * KIB);
    command(".resident/flush", "1");
    file_read(a, 0, 2 * MIB, false);
    file_write(b, 4 * MIB, 2 * MIB);
    file_write(other, 30000, 20);
    file_read(other, 0, 40000, false);
    for (size_t i = 0; i < FILES; i++)
        file_sync(&files[i]);
    command(".resident/budget", "auto");
}

/* -- after it ---------------------------------------------------------------------------------- */

static void check_told(const struct file *file)
{
    /* One failure: each description is told at most once, and if one is, all are. */
    if (fault_kind == REFUSED || fault_kind == LATE)
        for (size_t i = 0; i < 1 + WITNESSES; i++)
            CHECK(file->told[i] <= 1, "%s: description %zu was told %u times", file->name, i,
                  file->told[i]);
    CHECK(file->told[0] >= file->told[1], "%s: the writer was told %u times, who only waits %u",
          file->name, file->told[0], file->told[1]);
}

static void use_again(struct file *file)
{
    char back[6] = "";

    CHECK(ftruncate(file->writer, 0) == 0, "%s cannot be emptied: %s", file->name, strerror(errno));
    if (is_lost())
        return;
    CHECK(pwrite(file->writer, "again", 5, 0) == 5, "%s: %s", file->name, strerror(errno));
    CHECK(fsync(file->writer) == 0, "%s: %s", file->name, strerror(errno));
    CHECK(pread(file->writer, back, 5, 0) == 5 && memcmp(back, "again", 5) == 0, "%s", back);
}

static void check_lost_said(void)
{
    char *status = text_of(".resident/status"), *log = text_of(".resident/log");

    CHECK((figure("device_lost") == 1) == is_lost(), "device_lost");
    CHECK((strstr(status, "LOST") != NULL) == is_lost(), "status");
    CHECK((strstr(log, " is lost: ") != NULL) == is_lost(), "log");
    free(status);
    free(log);
}

static void check_memory_back(uint64_t staging_before)
{
    uint64_t end_ns = monotonic_ns() + (uint64_t)SETTLE_SECONDS * 1000000000;
    bool release = fault_entry && (strcmp(fault_entry, "cuMemRelease") == 0 ||
                                   strcmp(fault_entry, "cuMemUnmap") == 0 ||
                                   strcmp(fault_entry, "cuMemAddressFree") == 0);

    uint64_t resident, quarantined;

    do {
        resident = figure("resident_bytes");
        quarantined = figure("quarantined_bytes");
        /* The kernel lets go of what is closed and deleted in its own time. */
    } while ((resident > (quarantined ? quarantined + SHARED_BYTES : 0) || figure("files") > 0 ||
              figure("inodes") > 1) &&
             monotonic_ns() < end_ns);
    CHECK(resident <= (quarantined ? quarantined + SHARED_BYTES : 0),
          "%llu bytes are resident, %llu quarantined", (unsigned long long)resident,
          (unsigned long long)quarantined);
    CHECK(figure("files") == 0 && figure("inodes") == 1 && figure("failed_files") == 0, "files");
    CHECK(figure("dirty_bytes") == 0, "dirty");
    if (fault_kind == REFUSED || fault_kind == LATE)
        CHECK((quarantined == 0 && figure("quarantined_streams") == 0) || release,
              "%llu bytes quarantined", (unsigned long long)quarantined);
    /* 0: the driver was just asked in vain. */
    uint64_t unused = figure("device_memory_free_bytes");
    if (!is_lost() && !release && unused > 0)
        CHECK(figure("device_memory_bytes") - unused <= resident,
              "the device has less free than the budget says");
    if (quarantined == 0)
        CHECK(figure("staging_bytes") <= staging_before + 64 * MIB, "staging");
}

static void client(void)
{
    CHECK(chdir(mountpoint) == 0, "%s", strerror(errno));
    payload = malloc(PAYLOAD_BYTES);
    reply = malloc(FILE_BYTES);
    uint64_t staging = figure("staging_bytes");
    file_open(&files[0], "a", 0x10);
    file_open(&files[1], "b", 0x10); /* gets bytes of the first one */
    file_open(&files[2], "other", 0x40);
    /* Its bytes lie in the memory that the others will get. */
    file_write(&files[2], 0, PAYLOAD_BYTES);
    file_truncate(&files[2], 0);
    file_write(&files[2], 0, 20000);
    file_sync(&files[2]);
    CHECK(failures == 0, "before the fault");

    if (fault_kind != ENDING)
        arm();
    work();
    unlink(armed);
    for (size_t i = 0; i < FILES; i++)
        file_sync(&files[i]);
    check_lost_said();
    for (size_t i = 0; i < FILES; i++) {
        file_read(&files[i], 0, FILE_BYTES, true);
        check_told(&files[i]);
    }
    for (size_t i = 0; i < FILES; i++)
        use_again(&files[i]);
    CHECK(fault_kind != ENDING || failures == 0, "%u calls failed without a fault", failures);
    if (fault_kind == ENDING)
        arm();
    for (size_t i = 0; i < FILES; i++) {
        for (size_t w = 0; w < WITNESSES; w++)
            CHECK(close(files[i].witnesses[w]) == 0 || is_lost(), "%s", strerror(errno));
        CHECK(close(files[i].writer) == 0 || is_lost(), "%s", strerror(errno));
        CHECK(unlink(files[i].name) == 0, "%s", strerror(errno));
    }
    check_memory_back(staging);
    CHECK(exists(acted) || failures == 0, "%u calls failed without a fault", failures);
    exit(0);
}

/* -- one case ---------------------------------------------------------------------------------- */

__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    printf("bad: ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}

static void remember_daemon(pid_t pid)
{
    FILE *list = fopen(daemons, "a");

    if (list) {
        fprintf(list, "%d\n", (int)pid);
        fclose(list);
    }
}

static pid_t start_daemon(const char *settings)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        int output = open(messages, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        dup2(output, STDOUT_FILENO);
        dup2(output, STDERR_FILENO);
        char options[512];
        const char *more = getenv("MOUNT_OPTIONS");
        snprintf(options, sizeof(options), "workers=2,staging=8MiB,flush_interval=1000%s%s",
                 more && *more ? "," : "", more ? more : "");
        setenv("RESIDENTFS_EMULATED", settings, 1);
        execl(daemon_program, daemon_program, "emulated", mountpoint, "-f", "-o", options,
              (char *)NULL);
        _exit(127);
    }
    remember_daemon(pid);
    return pid;
}

/* True when it ended within that time; *STATUS is as of waitpid. */
static bool ended(pid_t pid, int *status, int seconds)
{
    uint64_t end_ns = monotonic_ns() + (uint64_t)seconds * 1000000000;

    while (monotonic_ns() < end_ns) {
        if (waitpid(pid, status, WNOHANG) == pid)
            return true;
        nap();
    }
    return false;
}

static bool wait_for_mount(pid_t daemon, dev_t before)
{
    uint64_t end_ns = monotonic_ns() + (uint64_t)CASE_SECONDS * 1000000000;
    struct stat status;
    int ignored;

    while (monotonic_ns() < end_ns) {
        if (stat(mountpoint, &status) == 0 && status.st_dev != before)
            return true;
        if (waitpid(daemon, &ignored, WNOHANG) != 0)
            return false;
        nap();
    }
    return false;
}

static bool run_client(void)
{
    int status = 0;

    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        client();
    if (!ended(pid, &status, CASE_SECONDS)) {
        complain("hangs");
        kill(pid, SIGKILL);
        return false; /* the daemon's end frees it */
    }
    if (WIFSIGNALED(status))
        complain("signal %d", WTERMSIG(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* What sanitizers and assertions say does not always change how a program ends. */
static bool is_accused(void)
{
    char line[1000];
    bool found = false;
    FILE *file = fopen(messages, "r");

    while (file && !found && fgets(line, sizeof(line), file))
        found = strstr(line, "Sanitizer") || strstr(line, "runtime error:");
    if (file)
        fclose(file);
    return found;
}

static bool end_daemon(pid_t pid)
{
    int status = 0;
    bool held = true;

    if (umount2(mountpoint, 0) < 0) {
        complain("unmount: %s", strerror(errno));
        umount2(mountpoint, MNT_DETACH);
        held = false;
    }
    bool done = ended(pid, &status, UNMOUNT_SECONDS);
    /* A mount namespace that somebody made meanwhile has the mount, too, until its place goes. */
    if (!done && (rmdir(mountpoint) < 0 || mkdir(mountpoint, 0755) < 0))
        complain("%s: %s", mountpoint, strerror(errno));
    if (!done && !ended(pid, &status, CASE_SECONDS)) {
        complain("the daemon hangs at its end");
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        return false;
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        complain("the daemon ended with %s %d", WIFEXITED(status) ? "status" : "signal",
                 WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
        return false;
    }
    if (is_accused()) {
        complain("a sanitizer has found something");
        return false;
    }
    return held;
}

/* Whether the case held. */
static bool run_case(const char *rules)
{
    struct stat status;
    char settings[16384];

    unlink(armed);
    unlink(acted);
    snprintf(settings, sizeof(settings), "memory=" MEMORY ";seed=7;order=random;%s", rules);
    if (stat(mountpoint, &status) < 0) {
        complain("%s: %s", mountpoint, strerror(errno));
        return false;
    }
    pid_t daemon = start_daemon(settings);
    if (!wait_for_mount(daemon, status.st_dev)) {
        complain("did not mount");
        kill(daemon, SIGKILL);
        waitpid(daemon, NULL, 0);
        umount2(mountpoint, MNT_DETACH);
        return false;
    }
    bool held = run_client();
    held = end_daemon(daemon) && held;
    unlink(armed);
    return held;
}

/* -- every case -------------------------------------------------------------------------------- */

static void show_messages(const char *rules)
{
    char line[400];
    FILE *file = fopen(messages, "r");

    complain("with RESIDENTFS_EMULATED=\"%s\"; the daemon said:", rules);
    while (file && fgets(line, sizeof(line), file))
        printf("bad:     %s%s", line, strchr(line, '\n') ? "" : "\n");
    if (file)
        fclose(file);
}

static bool concerns(enum kind kind, const char *entry)
{
    bool copy = strncmp(entry, "cuMemcpy", 8) == 0 || strncmp(entry, "cuMemset", 8) == 0;

    if (kind == LATE)
        return copy;
    if (kind == UNPROVEN)
        return copy || strstr(entry, "Synchronize") || strstr(entry, "Query");
    return true;
}

/* True when the failure came about. */
static bool inject(const char *entry, enum kind kind, uint64_t nth, bool *held)
{
    static const char *const results[] = {"2", "1", "304"}, *const lost[] = {"719", "999"};
    static const char *const options[] = {"", ":late", ":unproven", ":sticky", ""};
    char rules[12000];

    fault_entry = entry;
    fault_kind = kind;
    snprintf(rules, sizeof(rules), "fault=%s:%llu:%s%s:when=%s:acted=%s", entry,
             (unsigned long long)nth, kind == LOST ? lost[nth % 2] : results[nth % 3],
             options[kind], armed, acted);
    *held = run_case(rules);
    if (!*held)
        show_messages(rules);
    return exists(acted);
}

static unsigned int inject_all(const char *entry, enum kind kind, uint64_t positions,
                               bool *all_held)
{
    unsigned int injected = 0;
    uint64_t nth = 1, step = 1, only = 0;
    bool held, came = true;

    if (getenv("FAULT_AT"))
        only = nth = strtoull(getenv("FAULT_AT"), NULL, 10);
    for (uint64_t i = 0; came && (positions == 0 || i < positions) && !(only && i); i++) {
        came = inject(entry, kind, nth, &held);
        injected += came;
        *all_held = *all_held && held;
        nth += positions == 0 ? 1 : step;
        step += i % 2; /* 1 2 3 5 7 10 13 17 … */
    }
    return injected;
}

int main(int argc, char **argv)
{
    enum kind kind = REFUSED;
    bool all_held = true;

    if (argc < 5) {
        fprintf(stderr, "usage: fsfault DAEMON FOLDER POSITIONS KIND [ENTRY…]\n");
        return 2;
    }
    daemon_program = argv[1];
    snprintf(mountpoint, sizeof(mountpoint), "%s/mnt", argv[2]);
    snprintf(armed, sizeof(armed), "%s/armed", argv[2]);
    snprintf(acted, sizeof(acted), "%s/acted", argv[2]);
    snprintf(messages, sizeof(messages), "%s/messages", argv[2]);
    snprintf(daemons, sizeof(daemons), "%s/daemons", argv[2]);
    mkdir(mountpoint, 0755);
    uint64_t positions = strtoull(argv[3], NULL, 10);
    while (kind < KINDS && strcmp(kind_names[kind], argv[4]) != 0)
        kind++;
    if (kind == KINDS) {
        fprintf(stderr, "fsfault: no kind %s\n", argv[4]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < ARRAY_SIZE(entries); i++) {
        bool named = argc == 5;
        for (int n = 5; n < argc; n++)
            named = named || strcmp(argv[n], entries[i]) == 0;
        if (!named || !concerns(kind, entries[i]))
            continue;
        unsigned int injected = inject_all(entries[i], kind, positions, &all_held);
        if (injected > 0)
            printf("%s %u\n", entries[i], injected);
    }
    return all_held ? 0 : 1;
}
