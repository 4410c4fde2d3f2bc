/*
 * fsop: file system calls that a shell cannot make, for the shell tests.
 *
 *   fsop [-u UID] [-g GID] CALL ARGUMENT… [: CALL ARGUMENT…]…
 *
 * Calls run one after another in one process. Open files are numbered from 0 in the order in which
 * the calls opened them. A call that has a value prints it; a failing call prints the name of its
 * errno and ends the run with status 1. "-CALL" prints 0 or the name of the errno and goes on
 * either way. Data is printed with unprintable bytes as \xHH. Offsets and lengths take the suffixes
 * K, M, G, T. A time is SECONDS.NANOSECONDS, "now" or "omit". Usage errors end with status 2.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/falloc.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "fsop.h"

#define FILES_MAX 256

static int files[FILES_MAX];
static int file_count;

__attribute__((noreturn, format(printf, 1, 2))) static void usage(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "fsop: ");
    vfprintf(stderr, format, list);
    fprintf(stderr, "\n");
    va_end(list);
    exit(2);
}

struct word {
    const char *name;
    long long value;
};

static const struct word errnos[] = {
#define E(x)  \
    {         \
#x, x \
    }
    E(EPERM),   E(ENOENT),       E(EIO),        E(ENXIO),     E(EBADF),        E(EAGAIN),
    E(ENOMEM),  E(EACCES),       E(EFAULT),     E(EBUSY),     E(EEXIST),       E(EXDEV),
    E(ENODEV),  E(ENOTDIR),      E(EISDIR),     E(EINVAL),    E(EMFILE),       E(ENOTTY),
    E(ETXTBSY), E(EFBIG),        E(ENOSPC),     E(ESPIPE),    E(EROFS),        E(EMLINK),
    E(ERANGE),  E(ENAMETOOLONG), E(ENOSYS),     E(ENOTEMPTY), E(ELOOP),        E(ENODATA),
    E(E2BIG),   E(EOVERFLOW),    E(EOPNOTSUPP), E(ESTALE),    E(ECONNREFUSED), E(ENOTCONN),
    E(EINTR),   E(ECONNABORTED), E(EADDRINUSE), E(EDQUOT),
#undef E
};

static const char *errno_name(int error)
{
    static char number[32];
    for (size_t i = 0; i < sizeof errnos / sizeof *errnos; i++)
        if (errnos[i].value == error)
            return errnos[i].name;
    snprintf(number, sizeof number, "errno-%d", error);
    return number;
}

/* Turns "A,B,C" into the words' values or-ed together. */
static long long flags_of(const char *text, const struct word *words, size_t count)
{
    long long value = 0;
    char copy[512];
    snprintf(copy, sizeof copy, "%s", text);
    for (char *save = NULL, *part = strtok_r(copy, ",|", &save); part;
         part = strtok_r(NULL, ",|", &save)) {
        size_t i = 0;
        while (i < count && strcmp(words[i].name, part) != 0)
            i++;
        if (i == count)
            usage("unknown flag %s", part);
        value |= words[i].value;
    }
    return value;
}

#define FLAGS_OF(text, words) flags_of(text, words, sizeof(words) / sizeof *(words))

long long number_of(const char *text)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 0);
    if (end == text || errno)
        usage("not a number: %s", text);
    int shift = 0;
    switch (*end) {
    case 'K':
        shift = 10;
        break;
    case 'M':
        shift = 20;
        break;
    case 'G':
        shift = 30;
        break;
    case 'T':
        shift = 40;
        break;
    default:
        break;
    }
    if (shift)
        end++;
    if (*end)
        usage("not a number: %s", text);
    return value * (1LL << shift);
}

static mode_t mode_of(const char *text)
{
    return (mode_t)strtoul(text, NULL, 8);
}

int file_of(const char *text)
{
    long long number = number_of(text);
    if (number < 0 || number >= file_count)
        usage("no open file %s", text);
    return files[number];
}

static int keep_file(int file)
{
    if (file < 0)
        return -1;
    if (file_count == FILES_MAX)
        usage("too many open files");
    files[file_count++] = file;
    return 0;
}

static void print_data(const unsigned char *data, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (isprint(data[i]) && data[i] != '\\')
            putchar(data[i]);
        else
            printf("\\x%02x", data[i]);
    }
    putchar('\n');
}

static struct timespec time_of(const char *text)
{
    struct timespec time = {0};
    if (strcmp(text, "now") == 0) {
        time.tv_nsec = UTIME_NOW;
    } else if (strcmp(text, "omit") == 0) {
        time.tv_nsec = UTIME_OMIT;
    } else {
        char *end;
        time.tv_sec = strtoll(text, &end, 10);
        if (*end == '.') {
            char digits[10] = "000000000";
            for (int i = 0; i < 9 && isdigit((unsigned char)end[1 + i]); i++)
                digits[i] = end[1 + i];
            time.tv_nsec = strtol(digits, NULL, 10);
        }
    }
    return time;
}

/* ---- open files ---- */

static const struct word open_flags[] = {
    {"O_RDONLY", O_RDONLY},   {"O_WRONLY", O_WRONLY},       {"O_RDWR", O_RDWR},
    {"O_CREAT", O_CREAT},     {"O_EXCL", O_EXCL},           {"O_TRUNC", O_TRUNC},
    {"O_APPEND", O_APPEND},   {"O_DIRECTORY", O_DIRECTORY}, {"O_NOFOLLOW", O_NOFOLLOW},
    {"O_TMPFILE", O_TMPFILE}, {"O_NONBLOCK", O_NONBLOCK},   {"O_SYNC", O_SYNC},
    {"O_DSYNC", O_DSYNC},     {"O_DIRECT", O_DIRECT},       {"O_PATH", O_PATH},
    {"O_NOATIME", O_NOATIME},
};

static int call_open(char **a, int n)
{
    return keep_file(open(a[0], (int)FLAGS_OF(a[1], open_flags), n > 2 ? mode_of(a[2]) : 0));
}

/* reopen FILE FLAGS: the file again, through /proc. */
static int call_reopen(char **a, int n)
{
    (void)n;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file_of(a[0]));
    return keep_file(open(path, (int)FLAGS_OF(a[1], open_flags)));
}

static int call_dup(char **a, int n)
{
    (void)n;
    return keep_file(dup(file_of(a[0])));
}

static int call_close(char **a, int n)
{
    (void)n;
    int file = file_of(a[0]);
    files[number_of(a[0])] = -1;
    return close(file);
}

static int call_write(char **a, int n)
{
    (void)n;
    ssize_t done = write(file_of(a[0]), a[1], strlen(a[1]));
    if (done >= 0 && (size_t)done != strlen(a[1]))
        printf("short:%zd\n", done);
    return done < 0 ? -1 : 0;
}

static int call_pwrite(char **a, int n)
{
    (void)n;
    ssize_t done = pwrite(file_of(a[0]), a[2], strlen(a[2]), number_of(a[1]));
    if (done >= 0 && (size_t)done != strlen(a[2]))
        printf("short:%zd\n", done);
    return done < 0 ? -1 : 0;
}

static const struct word rwf_flags[] = {
    {"0", 0},
    {"RWF_APPEND", RWF_APPEND},
    {"RWF_DSYNC", RWF_DSYNC},
    {"RWF_SYNC", RWF_SYNC},
};

static int call_pwritev2(char **a, int n)
{
    (void)n;
    struct iovec vector = {a[3], strlen(a[3])};
    ssize_t done =
        pwritev2(file_of(a[0]), &vector, 1, number_of(a[1]), (int)FLAGS_OF(a[2], rwf_flags));
    return done < 0 ? -1 : 0;
}

static int print_read(int file, long long offset, size_t length)
{
    unsigned char *data = malloc(length ? length : 1);
    if (!data)
        return -1;
    ssize_t done = offset < 0 ? read(file, data, length) : pread(file, data, length, offset);
    if (done >= 0)
        print_data(data, (size_t)done);
    free(data);
    return done < 0 ? -1 : 0;
}

static int call_read(char **a, int n)
{
    (void)n;
    return print_read(file_of(a[0]), -1, (size_t)number_of(a[1]));
}

static int call_pread(char **a, int n)
{
    (void)n;
    return print_read(file_of(a[0]), number_of(a[1]), (size_t)number_of(a[2]));
}

/* pread whose offset may be anything, also negative; prints the number of bytes. */
static int call_preadcount(char **a, int n)
{
    (void)n;
    size_t length = (size_t)number_of(a[2]);
    unsigned char *data = malloc(length ? length : 1);
    if (!data)
        return -1;
    ssize_t done = pread(file_of(a[0]), data, length, number_of(a[1]));
    free(data);
    if (done < 0)
        return -1;
    printf("%zd\n", done);
    return 0;
}

/* fill FILE OFFSET LENGTH BYTE: writes until all is written or a call fails; prints what one call
 * took if it was short. */
static int call_fill(char **a, int n)
{
    (void)n;
    long long offset = number_of(a[1]), length = number_of(a[2]);
    size_t piece = length < (1 << 20) ? (size_t)length : 1 << 20;
    unsigned char *data = malloc(piece ? piece : 1);
    if (!data)
        return -1;
    memset(data, (int)number_of(a[3]), piece);
    while (length > 0) {
        size_t now = (long long)piece < length ? piece : (size_t)length;
        ssize_t done = pwrite(file_of(a[0]), data, now, offset);
        if (done <= 0) {
            free(data);
            return -1;
        }
        offset += done;
        length -= done;
    }
    free(data);
    return 0;
}

/* writeonce FILE OFFSET LENGTH BYTE: one pwrite; prints how many bytes it took. */
static int call_writeonce(char **a, int n)
{
    (void)n;
    size_t length = (size_t)number_of(a[2]);
    unsigned char *data = malloc(length ? length : 1);
    if (!data)
        return -1;
    memset(data, (int)number_of(a[3]), length);
    ssize_t done = pwrite(file_of(a[0]), data, length, number_of(a[1]));
    free(data);
    if (done < 0)
        return -1;
    printf("%zd\n", done);
    return 0;
}

/* check FILE OFFSET LENGTH BYTE: prints "same", or the first offset at which the file differs. */
static int call_check(char **a, int n)
{
    (void)n;
    long long offset = number_of(a[1]), end = offset + number_of(a[2]);
    int byte = (int)number_of(a[3]);
    static unsigned char data[1 << 20];
    while (offset < end) {
        size_t want = end - offset < (long long)sizeof data ? (size_t)(end - offset) : sizeof data;
        ssize_t done = pread(file_of(a[0]), data, want, offset);
        if (done < 0)
            return -1;
        if (done == 0) {
            printf("end of file at %lld\n", offset);
            return 0;
        }
        for (ssize_t i = 0; i < done; i++) {
            if (data[i] != byte) {
                printf("differs at %lld: 0x%02x\n", offset + i, data[i]);
                return 0;
            }
        }
        offset += done;
    }
    puts("same");
    return 0;
}

static int call_lseek(char **a, int n)
{
    (void)n;
    static const struct word whence[] = {
        {"set", SEEK_SET},   {"cur", SEEK_CUR},   {"end", SEEK_END},
        {"data", SEEK_DATA}, {"hole", SEEK_HOLE},
    };
    off_t offset = lseek(file_of(a[0]), number_of(a[1]), (int)FLAGS_OF(a[2], whence));
    if (offset < 0)
        return -1;
    printf("%lld\n", (long long)offset);
    return 0;
}

static int call_ftruncate(char **a, int n)
{
    (void)n;
    return ftruncate(file_of(a[0]), number_of(a[1]));
}

static int call_truncate(char **a, int n)
{
    (void)n;
    return truncate(a[0], number_of(a[1]));
}

static const struct word fallocate_flags[] = {
    {"0", 0},
    {"KEEP_SIZE", FALLOC_FL_KEEP_SIZE},
    {"PUNCH_HOLE", FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE},
    {"PUNCH_ALONE", FALLOC_FL_PUNCH_HOLE},
    {"ZERO_RANGE", FALLOC_FL_ZERO_RANGE},
    {"COLLAPSE_RANGE", FALLOC_FL_COLLAPSE_RANGE},
    {"INSERT_RANGE", FALLOC_FL_INSERT_RANGE},
};

static int call_fallocate(char **a, int n)
{
    (void)n;
    return fallocate(file_of(a[0]), (int)FLAGS_OF(a[1], fallocate_flags), number_of(a[2]),
                     number_of(a[3]));
}

static int call_copy_file_range(char **a, int n)
{
    (void)n;
    off_t from = number_of(a[1]), to = number_of(a[3]);
    ssize_t done =
        copy_file_range(file_of(a[0]), &from, file_of(a[2]), &to, (size_t)number_of(a[4]), 0);
    if (done < 0)
        return -1;
    printf("%zd\n", done);
    return 0;
}

static int call_sendfile(char **a, int n)
{
    (void)n;
    off_t from = number_of(a[1]);
    ssize_t done = sendfile(file_of(a[2]), file_of(a[0]), &from, (size_t)number_of(a[3]));
    if (done < 0)
        return -1;
    printf("%zd\n", done);
    return 0;
}

static int call_fsync(char **a, int n)
{
    (void)n;
    return fsync(file_of(a[0]));
}

static int call_fdatasync(char **a, int n)
{
    (void)n;
    return fdatasync(file_of(a[0]));
}

static int call_syncfs(char **a, int n)
{
    (void)n;
    return syncfs(file_of(a[0]));
}

static int call_flock(char **a, int n)
{
    (void)n;
    static const struct word kinds[] = {{"sh", LOCK_SH}, {"ex", LOCK_EX}, {"un", LOCK_UN}};
    return flock(file_of(a[0]), (int)FLAGS_OF(a[1], kinds) | LOCK_NB);
}

/* ofdlock FILE rd|wr|un START LENGTH */
static int call_ofdlock(char **a, int n)
{
    (void)n;
    static const struct word kinds[] = {{"rd", F_RDLCK}, {"wr", F_WRLCK}, {"un", F_UNLCK}};
    struct flock lock = {.l_type = (short)FLAGS_OF(a[1], kinds),
                         .l_whence = SEEK_SET,
                         .l_start = number_of(a[2]),
                         .l_len = number_of(a[3])};
    return fcntl(file_of(a[0]), F_OFD_SETLK, &lock);
}

/* ---- mappings ---- */

static sigjmp_buf bus_jump;

static void bus_handler(int number)
{
    (void)number;
    siglongjmp(bus_jump, 1);
}

static unsigned char *map_of(char **a, int protection, int flags, size_t length, size_t *skip)
{
    off_t offset = number_of(a[1]);
    *skip = (size_t)(offset % 4096);
    void *map = mmap(NULL, length + *skip, protection, flags, file_of(a[0]), offset - (off_t)*skip);
    return map == MAP_FAILED ? NULL : map;
}

/* mmapread FILE OFFSET LENGTH: prints the data, or SIGBUS. */
static int call_mmapread(char **a, int n)
{
    (void)n;
    size_t length = (size_t)number_of(a[2]), skip;
    unsigned char *map = map_of(a, PROT_READ, MAP_SHARED, length, &skip);
    if (!map)
        return -1;
    signal(SIGBUS, bus_handler);
    if (sigsetjmp(bus_jump, 1)) {
        puts("SIGBUS");
    } else {
        unsigned char copy[65536];
        if (length > sizeof copy)
            usage("mmapread: at most %zu bytes", sizeof copy);
        memcpy(copy, map + skip, length);
        print_data(copy, length);
    }
    signal(SIGBUS, SIG_DFL);
    return munmap(map, length + skip);
}

static int map_write(char **a, int flags)
{
    size_t length = strlen(a[2]), skip;
    unsigned char *map = map_of(a, PROT_READ | PROT_WRITE, flags, length, &skip);
    if (!map)
        return -1;
    memcpy(map + skip, a[2], length);
    int result = msync(map, length + skip, MS_SYNC);
    if (munmap(map, length + skip) < 0)
        result = -1;
    return result;
}

static int call_mmapwrite(char **a, int n)
{
    (void)n;
    return map_write(a, MAP_SHARED);
}

static int call_mmapprivate(char **a, int n)
{
    (void)n;
    return map_write(a, MAP_PRIVATE);
}

/* ---- names ---- */

static int call_unlink(char **a, int n)
{
    (void)n;
    return unlink(a[0]);
}

static int call_rmdir(char **a, int n)
{
    (void)n;
    return rmdir(a[0]);
}

static int call_mkdir(char **a, int n)
{
    return mkdir(a[0], n > 1 ? mode_of(a[1]) : 0777);
}

static int call_rename(char **a, int n)
{
    (void)n;
    return rename(a[0], a[1]);
}

static int call_renameat2(char **a, int n)
{
    (void)n;
    static const struct word words[] = {{"0", 0},
                                        {"NOREPLACE", RENAME_NOREPLACE},
                                        {"EXCHANGE", RENAME_EXCHANGE},
                                        {"WHITEOUT", RENAME_WHITEOUT}};
    return renameat2(AT_FDCWD, a[0], AT_FDCWD, a[1], (unsigned)FLAGS_OF(a[2], words));
}

static int call_link(char **a, int n)
{
    (void)n;
    return link(a[0], a[1]);
}

static int call_linkfile(char **a, int n)
{
    (void)n;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file_of(a[0]));
    return linkat(AT_FDCWD, path, AT_FDCWD, a[1], AT_SYMLINK_FOLLOW);
}

/* linkempty FILE PATH: the other way to give an open file a name; needs CAP_DAC_READ_SEARCH. */
static int call_linkempty(char **a, int n)
{
    (void)n;
    return linkat(file_of(a[0]), "", AT_FDCWD, a[1], AT_EMPTY_PATH);
}

#define HANDLE_BYTES 128 /* MAX_HANDLE_SZ of all kernels so far */

/* savehandle PATH HOSTFILE: the handle of a file, as NFS servers keep it. */
static int call_savehandle(char **a, int n)
{
    (void)n;
    union {
        struct file_handle handle;
        char bytes[sizeof(struct file_handle) + HANDLE_BYTES];
    } of = {.handle.handle_bytes = HANDLE_BYTES};
    int mount_id, file;
    if (name_to_handle_at(AT_FDCWD, a[0], &of.handle, &mount_id, 0) < 0 ||
        (file = open(a[1], O_WRONLY | O_CREAT | O_TRUNC, 0600)) < 0)
        return -1;
    return write(file, &of, sizeof of) == sizeof of ? close(file) : -1;
}

/* openhandle HOSTFILE FLAGS: of the mount that the working directory is in. */
static int call_openhandle(char **a, int n)
{
    (void)n;
    union {
        struct file_handle handle;
        char bytes[sizeof(struct file_handle) + HANDLE_BYTES];
    } of;
    int file = open(a[0], O_RDONLY), mount = open(".", O_RDONLY | O_DIRECTORY);
    if (file < 0 || mount < 0 || read(file, &of, sizeof of) != sizeof of || close(file) < 0)
        return -1;
    int opened = open_by_handle_at(mount, &of.handle, (int)FLAGS_OF(a[1], open_flags));
    int error = errno;
    close(mount);
    errno = error;
    return keep_file(opened);
}

static int call_symlink(char **a, int n)
{
    (void)n;
    return symlink(a[0], a[1]);
}

static int call_readlink(char **a, int n)
{
    (void)n;
    char target[PATH_MAX + 1];
    ssize_t length = readlink(a[0], target, sizeof target);
    if (length < 0)
        return -1;
    print_data((unsigned char *)target, (size_t)length);
    return 0;
}

static int call_mknod(char **a, int n)
{
    static const struct word types[] = {
        {"file", S_IFREG}, {"fifo", S_IFIFO},  {"socket", S_IFSOCK},
        {"char", S_IFCHR}, {"block", S_IFBLK}, {"dir", S_IFDIR},
    };
    dev_t device = n > 4 ? makedev((unsigned)number_of(a[3]), (unsigned)number_of(a[4])) : 0;
    return mknod(a[0], (mode_t)FLAGS_OF(a[1], types) | mode_of(a[2]), device);
}

/* socket PATH: binds a stream socket, connects to it, sends a word through it and prints the word.
 */
static int call_socket(char **a, int n)
{
    (void)n;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", a[0]);
    int server = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    if (server < 0 || client < 0 || bind(server, (void *)&address, sizeof address) < 0 ||
        listen(server, 1) < 0 || connect(client, (void *)&address, sizeof address) < 0)
        return -1;
    int peer = accept(server, NULL, NULL);
    char word[8] = {0};
    if (peer < 0 || write(client, "word", 4) != 4 || read(peer, word, 4) != 4)
        return -1;
    puts(word);
    return 0;
}

static int open_socket(const char *path, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(address->sun_path, sizeof address->sun_path, "%s", path);
    return socket(AF_UNIX, SOCK_STREAM, 0);
}

/* listen PATH: binds a stream socket and prints what the first client sends. */
static int call_listen(char **a, int n)
{
    (void)n;
    struct sockaddr_un address;
    int server = open_socket(a[0], &address);
    if (server < 0 || bind(server, (void *)&address, sizeof address) < 0 || listen(server, 1) < 0)
        return -1;
    int peer = accept(server, NULL, NULL);
    return peer < 0 ? -1 : print_read(peer, -1, 64);
}

/* connect PATH WORD: sends a word to who listens there. */
static int call_connect(char **a, int n)
{
    (void)n;
    struct sockaddr_un address;
    int client = open_socket(a[0], &address);
    if (client < 0 || connect(client, (void *)&address, sizeof address) < 0)
        return -1;
    return write(client, a[1], strlen(a[1])) < 0 ? -1 : close(client);
}

/* ---- attributes ---- */

static int call_chmod(char **a, int n)
{
    (void)n;
    return chmod(a[0], mode_of(a[1]));
}

static int call_fchmod(char **a, int n)
{
    (void)n;
    return fchmod(file_of(a[0]), mode_of(a[1]));
}

static int call_chown(char **a, int n)
{
    (void)n;
    return chown(a[0], (uid_t)number_of(a[1]), (gid_t)number_of(a[2]));
}

static int call_fchown(char **a, int n)
{
    (void)n;
    return fchown(file_of(a[0]), (uid_t)number_of(a[1]), (gid_t)number_of(a[2]));
}

static int call_lchown(char **a, int n)
{
    (void)n;
    return lchown(a[0], (uid_t)number_of(a[1]), (gid_t)number_of(a[2]));
}

static int call_utimens(char **a, int n)
{
    (void)n;
    struct timespec times[2] = {time_of(a[1]), time_of(a[2])};
    return utimensat(AT_FDCWD, a[0], times, 0);
}

static int call_lutimens(char **a, int n)
{
    (void)n;
    struct timespec times[2] = {time_of(a[1]), time_of(a[2])};
    return utimensat(AT_FDCWD, a[0], times, AT_SYMLINK_NOFOLLOW);
}

static int call_futimens(char **a, int n)
{
    (void)n;
    struct timespec times[2] = {time_of(a[1]), time_of(a[2])};
    return futimens(file_of(a[0]), times);
}

static int call_access(char **a, int n)
{
    (void)n;
    int mode = 0;
    for (const char *c = a[1]; *c; c++)
        mode |= *c == 'r' ? R_OK : *c == 'w' ? W_OK : *c == 'x' ? X_OK : F_OK;
    return faccessat(AT_FDCWD, a[0], mode, AT_EACCESS);
}

static void print_fields(const struct stat *s, char **fields, int count)
{
    for (int i = 0; i < count; i++) {
        const char *f = fields[i];
        if (i)
            putchar(' ');
        if (strcmp(f, "type") == 0)
            fputs(S_ISREG(s->st_mode)    ? "file"
                  : S_ISDIR(s->st_mode)  ? "dir"
                  : S_ISLNK(s->st_mode)  ? "link"
                  : S_ISFIFO(s->st_mode) ? "fifo"
                  : S_ISSOCK(s->st_mode) ? "socket"
                  : S_ISCHR(s->st_mode)  ? "char"
                  : S_ISBLK(s->st_mode)  ? "block"
                                         : "unknown",
                  stdout);
        else if (strcmp(f, "mode") == 0)
            printf("%04o", s->st_mode & 07777);
        else if (strcmp(f, "uid") == 0)
            printf("%u", s->st_uid);
        else if (strcmp(f, "gid") == 0)
            printf("%u", s->st_gid);
        else if (strcmp(f, "nlink") == 0)
            printf("%lu", (unsigned long)s->st_nlink);
        else if (strcmp(f, "size") == 0)
            printf("%lld", (long long)s->st_size);
        else if (strcmp(f, "blocks") == 0)
            printf("%lld", (long long)s->st_blocks);
        else if (strcmp(f, "ino") == 0)
            printf("%llu", (unsigned long long)s->st_ino);
        else if (strcmp(f, "rdev") == 0)
            printf("%u:%u", major(s->st_rdev), minor(s->st_rdev));
        else if (strcmp(f, "atime") == 0)
            printf("%lld.%09ld", (long long)s->st_atim.tv_sec, s->st_atim.tv_nsec);
        else if (strcmp(f, "mtime") == 0)
            printf("%lld.%09ld", (long long)s->st_mtim.tv_sec, s->st_mtim.tv_nsec);
        else if (strcmp(f, "ctime") == 0)
            printf("%lld.%09ld", (long long)s->st_ctim.tv_sec, s->st_ctim.tv_nsec);
        else
            usage("no field %s", f);
    }
    putchar('\n');
}

static int call_stat(char **a, int n)
{
    struct stat s;
    if (stat(a[0], &s) < 0)
        return -1;
    print_fields(&s, a + 1, n - 1);
    return 0;
}

static int call_lstat(char **a, int n)
{
    struct stat s;
    if (lstat(a[0], &s) < 0)
        return -1;
    print_fields(&s, a + 1, n - 1);
    return 0;
}

static int call_fstat(char **a, int n)
{
    struct stat s;
    if (fstat(file_of(a[0]), &s) < 0)
        return -1;
    print_fields(&s, a + 1, n - 1);
    return 0;
}

static int call_setxattr(char **a, int n)
{
    static const struct word words[] = {
        {"0", 0}, {"CREATE", XATTR_CREATE}, {"REPLACE", XATTR_REPLACE}};
    return setxattr(a[0], a[1], a[2], strlen(a[2]), n > 3 ? (int)FLAGS_OF(a[3], words) : 0);
}

/* setxattrsize PATH NAME SIZE: a value of SIZE times 'v'. */
static int call_setxattrsize(char **a, int n)
{
    (void)n;
    size_t size = (size_t)number_of(a[2]);
    char *value = malloc(size + 1);
    if (!value)
        return -1;
    memset(value, 'v', size);
    int result = setxattr(a[0], a[1], value, size, 0);
    free(value);
    return result;
}

/* getxattr PATH NAME [SIZE]: with SIZE 0 prints the length of the value. */
static int call_getxattr(char **a, int n)
{
    static char value[65537];
    size_t size = n > 2 ? (size_t)number_of(a[2]) : sizeof value;
    ssize_t length = getxattr(a[0], a[1], value, size < sizeof value ? size : sizeof value);
    if (length < 0)
        return -1;
    if (size == 0)
        printf("%zd\n", length);
    else
        print_data((unsigned char *)value, (size_t)length);
    return 0;
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* listxattr PATH: the user.* names, sorted, with commas between. */
static int call_listxattr(char **a, int n)
{
    (void)n;
    static char list[65537];
    char *names[4096];
    size_t count = 0;
    ssize_t length = listxattr(a[0], list, sizeof list);
    if (length < 0)
        return -1;
    for (char *name = list; name < list + length && count < 4096; name += strlen(name) + 1)
        if (strncmp(name, "user.", 5) == 0)
            names[count++] = name;
    qsort(names, count, sizeof *names, compare_names);
    for (size_t i = 0; i < count; i++)
        printf("%s%s", i ? "," : "", names[i]);
    putchar('\n');
    return 0;
}

static int call_removexattr(char **a, int n)
{
    (void)n;
    return removexattr(a[0], a[1]);
}

/* ---- several processes ---- */

/* appenders PATH PROCESSES RECORDS: each process appends records of 40 bytes; prints what is in the
 * file: "whole N" records that are intact and in the order of their process, then the size. */
static int call_appenders(char **a, int n)
{
    (void)n;
    long long processes = number_of(a[1]), records = number_of(a[2]);
    for (long long p = 0; p < processes; p++) {
        pid_t child = fork();
        if (child < 0)
            return -1;
        if (child == 0) {
            int file = open(a[0], O_WRONLY | O_APPEND | O_CREAT, 0644);
            for (long long r = 0; r < records; r++) {
                char record[64];
                snprintf(record, sizeof record, "<%08lld %08lld %018lld>\n", p, r, p * 7919 + r);
                if (write(file, record, 40) != 40)
                    _exit(1);
            }
            _exit(close(file) < 0);
        }
    }
    for (long long p = 0; p < processes; p++) {
        int status;
        if (wait(&status) < 0)
            return -1;
        if (status)
            puts("a process failed");
    }
    FILE *file = fopen(a[0], "r");
    if (!file)
        return -1;
    long long *next = calloc((size_t)processes, sizeof *next), whole = 0;
    char line[64];
    while (fread(line, 1, 40, file) == 40) {
        long long p, r, sum;
        line[40] = 0;
        if (sscanf(line, "<%lld %lld %lld>", &p, &r, &sum) != 3 || p < 0 || p >= processes ||
            next[p] != r || sum != p * 7919 + r)
            continue;
        next[p]++;
        whole++;
    }
    struct stat s;
    if (fstat(fileno(file), &s) < 0)
        return -1;
    printf("whole %lld size %lld\n", whole, (long long)s.st_size);
    free(next);
    fclose(file);
    return 0;
}

/* fork CALL…: the rest of the line up to the next ":" is one call made by a child with the same
 * open files. */
static int run_one(char **words, int count);

static int call_fork(char **a, int n)
{
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        return -1;
    if (child == 0) {
        int status = run_one(a, n);
        fflush(stdout);
        _exit(status);
    }
    int status;
    return waitpid(child, &status, 0) < 0 ? -1 : 0;
}

/* timed CALL…: one call, then the microseconds that it took. */
static int call_timed(char **a, int n)
{
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    int status = run_one(a, n);
    clock_gettime(CLOCK_MONOTONIC, &after);
    if (status)
        exit(status);
    printf("%lld\n",
           (after.tv_sec - before.tv_sec) * 1000000LL + (after.tv_nsec - before.tv_nsec) / 1000);
    return 0;
}

/* ---- the process ---- */

static int call_umask(char **a, int n)
{
    (void)n;
    umask(mode_of(a[0]));
    return 0;
}

static int call_chdir(char **a, int n)
{
    (void)n;
    return chdir(a[0]);
}

/* tick: returns when the clock that file systems take times from has moved on. */
static int call_tick(char **a, int n)
{
    (void)a;
    (void)n;
    struct timespec first, now;
    clock_gettime(CLOCK_REALTIME_COARSE, &first);
    for (int moved = 0; moved < 2;) {
        struct timespec pause = {0, 1000000};
        nanosleep(&pause, NULL);
        clock_gettime(CLOCK_REALTIME_COARSE, &now);
        if (now.tv_sec != first.tv_sec || now.tv_nsec != first.tv_nsec) {
            moved++;
            first = now;
        }
    }
    return 0;
}

/* waitline: waits until a line comes on standard input, for tests that act between two calls; "say
 * WORD" tells them where we are. */
static int call_waitline(char **a, int n)
{
    (void)a;
    (void)n;
    char line[64];
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) {
        errno = EIO;
        return -1;
    }
    return 0;
}

static int call_say(char **a, int n)
{
    (void)n;
    puts(a[0]);
    fflush(stdout);
    return 0;
}

static const struct call {
    const char *name;
    int least;
    int most;
    int (*run)(char **arguments, int count);
} calls[] = {
    {"open", 2, 3, call_open},
    {"dup", 1, 1, call_dup},
    {"reopen", 2, 2, call_reopen},
    {"close", 1, 1, call_close},
    {"write", 2, 2, call_write},
    {"pwrite", 3, 3, call_pwrite},
    {"pwritev2", 4, 4, call_pwritev2},
    {"read", 2, 2, call_read},
    {"pread", 3, 3, call_pread},
    {"preadcount", 3, 3, call_preadcount},
    {"fill", 4, 4, call_fill},
    {"writeonce", 4, 4, call_writeonce},
    {"check", 4, 4, call_check},
    {"lseek", 3, 3, call_lseek},
    {"ftruncate", 2, 2, call_ftruncate},
    {"truncate", 2, 2, call_truncate},
    {"fallocate", 4, 4, call_fallocate},
    {"copy_file_range", 5, 5, call_copy_file_range},
    {"sendfile", 4, 4, call_sendfile},
    {"fsync", 1, 1, call_fsync},
    {"fdatasync", 1, 1, call_fdatasync},
    {"syncfs", 1, 1, call_syncfs},
    {"flock", 2, 2, call_flock},
    {"ofdlock", 4, 4, call_ofdlock},
    {"mmapread", 3, 3, call_mmapread},
    {"mmapwrite", 3, 3, call_mmapwrite},
    {"mmapprivate", 3, 3, call_mmapprivate},
    {"unlink", 1, 1, call_unlink},
    {"rmdir", 1, 1, call_rmdir},
    {"mkdir", 1, 2, call_mkdir},
    {"rename", 2, 2, call_rename},
    {"renameat2", 3, 3, call_renameat2},
    {"link", 2, 2, call_link},
    {"linkfile", 2, 2, call_linkfile},
    {"linkempty", 2, 2, call_linkempty},
    {"savehandle", 2, 2, call_savehandle},
    {"openhandle", 2, 2, call_openhandle},
    {"symlink", 2, 2, call_symlink},
    {"readlink", 1, 1, call_readlink},
    {"mknod", 3, 5, call_mknod},
    {"socket", 1, 1, call_socket},
    {"listen", 1, 1, call_listen},
    {"connect", 2, 2, call_connect},
    {"chmod", 2, 2, call_chmod},
    {"fchmod", 2, 2, call_fchmod},
    {"chown", 3, 3, call_chown},
    {"lchown", 3, 3, call_lchown},
    {"fchown", 3, 3, call_fchown},
    {"utimens", 3, 3, call_utimens},
    {"lutimens", 3, 3, call_lutimens},
    {"futimens", 3, 3, call_futimens},
    {"access", 2, 2, call_access},
    {"stat", 2, 16, call_stat},
    {"lstat", 2, 16, call_lstat},
    {"fstat", 2, 16, call_fstat},
    {"setxattr", 3, 4, call_setxattr},
    {"setxattrsize", 3, 3, call_setxattrsize},
    {"getxattr", 2, 3, call_getxattr},
    {"listxattr", 1, 1, call_listxattr},
    {"removexattr", 2, 2, call_removexattr},
    {"createmany", 2, 2, call_createmany},
    {"listmany", 2, 3, call_listmany},
    {"unlinkwhilelisting", 2, 2, call_unlinkwhilelisting},
    {"renamewhilelisting", 2, 2, call_renamewhilelisting},
    {"unlinkmany", 2, 2, call_unlinkmany},
    {"churn", 2, 3, call_churn},
    {"seekdir", 1, 1, call_seekdir},
    {"seekdeleted", 2, 2, call_seekdeleted},
    {"listfile", 1, 1, call_listfile},
    {"deep", 2, 2, call_deep},
    {"appenders", 3, 3, call_appenders},
    {"fork", 1, 16, call_fork},
    {"timed", 1, 16, call_timed},
    {"umask", 1, 1, call_umask},
    {"chdir", 1, 1, call_chdir},
    {"tick", 0, 0, call_tick},
    {"waitline", 0, 0, call_waitline},
    {"say", 1, 1, call_say},
};

/* Returns 0 to go on, 1 if the run ends here. */
static int run_one(char **words, int count)
{
    const char *name = words[0];
    bool go_on = *name == '-';
    name += go_on;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (strcmp(calls[i].name, name) != 0)
            continue;
        if (count - 1 < calls[i].least || count - 1 > calls[i].most)
            usage("%s takes %d to %d arguments", name, calls[i].least, calls[i].most);
        errno = 0;
        if (calls[i].run(words + 1, count - 1) < 0) {
            puts(errno_name(errno));
            return !go_on;
        }
        if (go_on)
            puts("0");
        return 0;
    }
    usage("no call %s", name);
}

int main(int argc, char **argv)
{
    int first = 1;
    long long user = -1, group = -1;
    while (first + 1 < argc && argv[first][0] == '-' && strchr("ug", argv[first][1]) &&
           argv[first][1] && !argv[first][2]) {
        *(argv[first][1] == 'u' ? &user : &group) = number_of(argv[first + 1]);
        first += 2;
    }
    if (group >= 0 &&
        (setgroups(0, NULL) < 0 || setresgid((gid_t)group, (gid_t)group, (gid_t)group) < 0))
        usage("cannot become group %lld: %s", group, strerror(errno));
    if (user >= 0 &&
        (setgroups(0, NULL) < 0 || setresuid((uid_t)user, (uid_t)user, (uid_t)user) < 0))
        usage("cannot become user %lld: %s", user, strerror(errno));
    if (first >= argc)
        usage("fsop [-u UID] [-g GID] CALL ARGUMENT… [: CALL ARGUMENT…]…");
    while (first < argc) {
        int last = first;
        while (last < argc && strcmp(argv[last], ":") != 0)
            last++;
        if (last == first)
            usage("empty call");
        if (run_one(argv + first, last - first))
            return 1;
        first = last + 1;
    }
    return 0;
}
