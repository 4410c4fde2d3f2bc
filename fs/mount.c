#include "fs/mount.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "core/log.h"

#define FUSE_DEVICE   "/dev/fuse"
#define FUSERMOUNT    "fusermount3"
#define MESSAGE_BYTES 512
/* libfuse knows the option nodiratime since then. */
#define NODIRATIME_SINCE FUSE_MAKE_VERSION(3, 17)

/* libfuse's log function gets no user data. Only the thread that mounts reads it, after the call.
 */
static struct {
    pthread_mutex_t mutex; /* covers the text */
    char text[MESSAGE_BYTES];
} last_error = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* -- before ------------------------------------------------------------------------------------ */

/* Looks for a residentfs among the mounts. PATH as the kernel shows it. */
static bool is_residentfs_mounted(const char *path)
{
    FILE *file = fopen("/proc/self/mounts", "re");
    char line[PATH_MAX + 512];
    bool found = false;

    if (!file)
        return false;
    while (!found && fgets(line, sizeof(line), file)) {
        char *state, *at, *type;

        if (strtok_r(line, " ", &state) && (at = strtok_r(NULL, " ", &state)) &&
            (type = strtok_r(NULL, " ", &state)))
            found = strcmp(at, path) == 0 && strcmp(type, "fuse.residentfs") == 0;
    }
    fclose(file);
    return found;
}

/*
 * A residentfs whose daemon is gone (killed, say) is of use to nobody: its mount is taken away, so
 * that the next start works. Anything else there, dead or alive, is left alone. The mount point
 * itself does not answer, so its name is put together from that of its parent.
 */
static bool remove_dead_mount(const char *mountpoint)
{
    cleanup_free char *copy = strdup(mountpoint);
    char path[PATH_MAX], parent[PATH_MAX];

    if (!copy)
        return false;
    while (strlen(copy) > 1 && copy[strlen(copy) - 1] == '/')
        copy[strlen(copy) - 1] = '\0';
    char *slash = strrchr(copy, '/');
    const char *name = slash ? slash + 1 : copy;
    if (slash)
        *slash = '\0';
    if (!realpath(!slash  ? "."
                  : *copy ? copy
                          : "/",
                  parent) ||
        snprintf(path, sizeof(path), "%s/%s", strcmp(parent, "/") == 0 ? "" : parent, name) >=
            (int)sizeof(path) ||
        !is_residentfs_mounted(path))
        return false;
    if (umount2(path, MNT_DETACH) < 0) {
        pid_t child;
        int status = -1;
        const char *arguments[] = {FUSERMOUNT, "-u", "-z", "-q", path, NULL};
        if (posix_spawnp(&child, FUSERMOUNT, NULL, NULL, (char *const *)arguments, environ) != 0 ||
            waitpid(child, &status, 0) < 0 || status != 0)
            return false;
    }
    log_info("mount point %s: a mount that had lost its daemon was removed", mountpoint);
    return true;
}

static errint_t check_directory(const char *mountpoint, char **resolved, char *message,
                                size_t message_bytes)
{
    struct stat st;
    int error = 0;

    if (stat(mountpoint, &st) < 0 && errno == ENOTCONN)
        remove_dead_mount(mountpoint);
    *resolved = realpath(mountpoint, NULL);
    if (!*resolved || stat(*resolved, &st) < 0)
        error = errno;
    switch (error) {
    case 0:
        break;
    case ENOENT:
        snprintf(message, message_bytes, "mount point %s does not exist; make it with: mkdir -p %s",
                 mountpoint, mountpoint);
        return -error;
    case ENOTCONN:
        snprintf(message, message_bytes,
                 "mount point %s: the file system that is mounted there has lost its daemon; first "
                 "unmount it: " FUSERMOUNT " -u %s",
                 mountpoint, mountpoint);
        return -error;
    default:
        snprintf(
            message, message_bytes,
            "mount point %s is not accessible to uid %u: %s; choose another directory, or mount "
            "as a user who may enter it",
            mountpoint, geteuid(), strerror(error));
        return -error;
    }
    if (!S_ISDIR(st.st_mode)) {
        snprintf(message, message_bytes, "mount point %s is not a directory; choose a directory",
                 mountpoint);
        return -ENOTDIR;
    }
    if (geteuid() != 0 && access(*resolved, W_OK) < 0) {
        snprintf(message, message_bytes,
                 "mount point %s: uid %u may not write there, which mounting needs; choose a "
                 "directory of your own, or mount as root",
                 mountpoint, geteuid());
        return -EACCES;
    }
    return 0;
}

/* Only residentfs over residentfs: another file system may be mounted over with good reason. */
static errint_t check_not_mounted(const char *resolved, char *message, size_t message_bytes)
{
    if (!is_residentfs_mounted(resolved))
        return 0;
    snprintf(message, message_bytes,
             "mount point %s: a residentfs is mounted there already; unmount it first (umount %s), "
             "or choose another directory",
             resolved, resolved);
    return -EBUSY;
}

static bool is_in_path(const char *program)
{
    const char *path = getenv("PATH");
    char candidate[PATH_MAX];

    for (path = path ? path : "/usr/bin:/bin"; *path;) {
        size_t length = strcspn(path, ":");

        snprintf(candidate, sizeof(candidate), "%.*s/%s", (int)length, path, program);
        if (access(candidate, X_OK) == 0)
            return true;
        path += length + (path[length] == ':');
    }
    return false;
}

static errint_t check_permission(char *message, size_t message_bytes)
{
    int fd = open(FUSE_DEVICE, O_RDWR | O_CLOEXEC);

    if (fd < 0) {
        int error = errno;

        if (error == ENOENT || error == ENODEV || error == ENXIO)
            snprintf(message, message_bytes,
                     "no " FUSE_DEVICE " (%s); load the kernel's module: modprobe fuse; give a "
                     "container the device: --device " FUSE_DEVICE " --cap-add SYS_ADMIN",
                     strerror(error));
        else
            snprintf(message, message_bytes,
                     FUSE_DEVICE " cannot be opened by uid %u: %s; its mode should be 0666; give a "
                                 "container the device: --device " FUSE_DEVICE,
                     geteuid(), strerror(error));
        return -error;
    }
    close(fd);
    if (geteuid() != 0 && !is_in_path(FUSERMOUNT)) {
        snprintf(message, message_bytes,
                 "uid %u may not mount without " FUSERMOUNT ", which is not in PATH; install it "
                 "(Debian: apt install fuse3), or mount as root",
                 geteuid());
        return -EPERM;
    }
    return 0;
}

errint_t mount_check(const char *mountpoint, char **resolved, char *message, size_t message_bytes)
{
    cleanup_free char *path = NULL;
    errint_t error = check_directory(mountpoint, &path, message, message_bytes);

    if (error == 0)
        error = check_not_mounted(path, message, message_bytes);
    if (error == 0)
        error = check_permission(message, message_bytes);
    if (error == 0)
        *resolved = steal_pointer(&path);
    return error;
}

/* -- libfuse's messages ------------------------------------------------------------------------ */

static _Atomic bool expecting_refusal;

void mount_expect_refusal(bool expect)
{
    expecting_refusal = expect;
}

static __attribute__((format(printf, 2, 0))) void on_fuse_log(enum fuse_log_level level,
                                                              const char *format, va_list args)
{
    char text[MESSAGE_BYTES];
    size_t length;

    vsnprintf(text, sizeof(text), format, args);
    length = strlen(text);
    while (length > 0 && text[length - 1] == '\n')
        text[--length] = '\0';
    if (length == 0)
        return;
    if (level > FUSE_LOG_INFO || expecting_refusal) {
        log_debug("libfuse: %s", text);
        return;
    }
    if (level > FUSE_LOG_ERR) {
        log_info("libfuse: %s", text);
        return;
    }
    log_warning("libfuse: %s", text);
    pthread_mutex_lock(&last_error.mutex);
    memcpy(last_error.text, text, length + 1);
    pthread_mutex_unlock(&last_error.mutex);
}

/*
 * Helper programs write to stderr, which belongs to the one line of ours: they get a file instead.
 * Returns the descriptor of it, or -1.
 */
static int capture_stderr(int *saved)
{
    int fd = memfd_create("stderr", MFD_CLOEXEC);

    *saved = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    if (fd >= 0 && *saved >= 0)
        dup2(fd, STDERR_FILENO);
    return fd;
}

/* The last line of it, in TEXT. */
static void release_stderr(int fd, int saved, char *text, size_t text_bytes)
{
    ssize_t length = 0;
    char *newline;

    if (saved >= 0) {
        dup2(saved, STDERR_FILENO);
        close(saved);
    }
    if (fd >= 0) {
        off_t size = lseek(fd, 0, SEEK_END);
        off_t start = MAX(size - (off_t)text_bytes + 1, 0);

        length = pread(fd, text, text_bytes - 1, start);
        close(fd);
    }
    length = MAX(length, 0);
    while (length > 0 && text[length - 1] == '\n')
        length--;
    text[length] = '\0';
    newline = strrchr(text, '\n');
    if (newline)
        memmove(text, newline + 1, strlen(newline + 1) + 1);
}

/* -- mounting ---------------------------------------------------------------------------------- */

static errint_t add_option(struct fuse_args *args, const char *name, const char *value)
{
    cleanup_free char *option = NULL;

    if (asprintf(&option, "-o%s%s%s", name, value ? "=" : "", value ? value : "") < 0)
        return -ENOMEM;
    return fuse_opt_add_arg(args, option) < 0 ? -ENOMEM : 0;
}

static errint_t add_ring_options(unsigned int depth, struct fuse_args *args)
{
    char text[16];
    errint_t error = add_option(args, "io_uring", NULL);

    snprintf(text, sizeof(text), "%u", depth);
    return error < 0 ? error : add_option(args, "io_uring_q_depth", text);
}

static errint_t add_options(const struct residentfs *fs, struct fuse_args *args)
{
    const struct conf *conf = fs->conf;
    errint_t error = fuse_opt_add_arg(args, "residentfs") < 0 ? -ENOMEM : 0;

    if (error == 0)
        error = add_option(args, "fsname", conf->device.text);
    if (error == 0)
        error = add_option(args, "subtype", "residentfs");
    if (error == 0)
        error = add_option(args, "default_permissions", NULL);
    if (error == 0 && conf_allows_other(conf))
        error = add_option(args, "allow_other", NULL);
    if (error == 0 && conf->debug)
        error = add_option(args, "debug", NULL);
    if (error == 0 && fs->ring_depth > 0)
        error = add_ring_options(fs->ring_depth, args);
    for (size_t i = 0; error == 0 && i < conf->mount_options_count; i++) {
        const char *option = conf->mount_options[i];

        if (strcmp(option, "nodiratime") == 0 && fuse_version() < NODIRATIME_SINCE)
            log_info("mount option nodiratime is left out: libfuse %s does not know it",
                     fuse_pkgversion());
        else
            error = add_option(args, option, NULL);
    }
    return error;
}

static void explain(const struct conf *conf, const char *said, char *message, size_t message_bytes)
{
    const char *hint = "see the log for what libfuse said";

    if (strstr(said, "user_allow_other"))
        hint = "mount with -o allow_other=off, or have root put user_allow_other into "
               "/etc/fuse.conf";
    else if (geteuid() == 0)
        hint = "mounting needs CAP_SYS_ADMIN (containers: --cap-add SYS_ADMIN, and perhaps "
               "--security-opt apparmor=unconfined)";
    else if (strstr(said, FUSERMOUNT) || said[0] == '\0')
        hint = "mount as root, or see that " FUSERMOUNT " is set-user-ID root";
    snprintf(message, message_bytes, "mounting on %s failed%s%s; %s", conf->mountpoint,
             said[0] ? ": " : "", said, hint);
}

struct fuse_session *mount_create(struct residentfs *fs, const struct fuse_lowlevel_ops *ops,
                                  char *message, size_t message_bytes)
{
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    struct fuse_session *fuse;
    char said[MESSAGE_BYTES];
    int fd, saved, result;

    fuse_set_log_func(on_fuse_log);
    if (add_options(fs, &args) < 0) {
        fuse_opt_free_args(&args);
        snprintf(message, message_bytes, "out of memory");
        return NULL;
    }
    fuse = fuse_session_new(&args, ops, sizeof(*ops), fs);
    fuse_opt_free_args(&args);
    if (!fuse) {
        snprintf(message, message_bytes, "libfuse %s refused the mount options: %s",
                 fuse_pkgversion(), last_error.text);
        return NULL;
    }
    fd = capture_stderr(&saved);
    result = fuse_session_mount(fuse, fs->conf->mountpoint);
    release_stderr(fd, saved, said, sizeof(said));
    if (result == 0) {
        if (said[0])
            log_info("while mounting: %s", said);
        return fuse;
    }
    explain(fs->conf, said[0] ? said : last_error.text, message, message_bytes);
    fuse_session_destroy(fuse);
    return NULL;
}

void mount_destroy(struct fuse_session *fuse)
{
    if (!fuse)
        return;
    fuse_session_unmount(fuse);
    fuse_session_destroy(fuse);
}
