/*
 * hostile: what a user without rights can do to a file system in great numbers, for the shell
 * tests.
 *
 *   hostile open PATH COUNT        opens it COUNT times at once, 10000 in a process, then closes
 * all hostile missing FOLDER COUNT   looks up COUNT names that are not there hostile create FOLDER
 * COUNT    makes COUNT empty files, as many as it can hostile xattrs PATH BYTES      sets
 * attributes of BYTES each until that fails hostile storm FOLDER COUNT     COUNT times, in each of
 * four processes: makes, renames, swaps, links and unlinks the same few names and lists them
 * meanwhile; then whether what is listed is there, and the counts of links are right
 *
 * Prints how many times it went well and, if one failed, the errno's name; "storm" what was wrong.
 * -u UID in front: as that user, without groups.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define OPEN_PER_PROCESS 10000
#define STORM_PROCESSES  4
#define STORM_NAMES      12

struct opened {
    unsigned long done;
    int error;
};

static void tell(unsigned long done, int error)
{
    if (error)
        printf("%lu %s\n", done, strerrorname_np(error));
    else
        printf("%lu\n", done);
}

/* Opens it as often as it can, COUNT times at most, tells READY how often, and holds on to that
 * until HOLD ends. */
static int open_and_hold(const char *path, unsigned long count, int ready, int hold)
{
    struct opened opened = {0, 0};

    while (opened.done < count && !opened.error) {
        opened.error = open(path, O_RDONLY) < 0 ? errno : 0;
        opened.done += !opened.error;
    }
    if (write(ready, &opened, sizeof(opened)) != sizeof(opened))
        return 1;
    return read(hold, &opened, 1) == 0 ? 0 : 1;
}

static int open_many(const char *path, unsigned long count)
{
    unsigned long processes = (count + OPEN_PER_PROCESS - 1) / OPEN_PER_PROCESS, done = 0;
    int ready[2], hold[2], error = 0;
    struct opened opened;

    if (pipe(ready) < 0 || pipe(hold) < 0)
        return 2;
    for (unsigned long i = 0; i < processes; i++) {
        if (fork() == 0) {
            close(hold[1]);
            exit(open_and_hold(path, count / processes, ready[1], hold[0]));
        }
    }
    close(ready[1]);
    for (unsigned long i = 0;
         i < processes && read(ready[0], &opened, sizeof(opened)) == sizeof(opened); i++) {
        done += opened.done;
        error = opened.error ? opened.error : error;
    }
    tell(done, error);
    fflush(stdout);
    /* Whoever reads this may look around meanwhile, and ends it. */
    if (getenv("HOLD"))
        while (getchar() != EOF)
            ;
    close(hold[1]);
    while (wait(NULL) > 0)
        ;
    return 0;
}

static int look_up_missing(const char *folder, unsigned long count)
{
    struct stat status;
    char path[300];
    unsigned long done = 0;

    while (done < count) {
        snprintf(path, sizeof(path), "%s/missing.%lu", folder, done);
        if (stat(path, &status) == 0 || errno != ENOENT)
            break;
        done++;
    }
    tell(done, 0);
    return 0;
}

static int create_many(const char *folder, unsigned long count)
{
    char path[300];
    unsigned long done = 0;
    int error = 0;

    while (done < count && !error) {
        snprintf(path, sizeof(path), "%s/file.%lu", folder, done);
        int descriptor = open(path, O_CREAT | O_EXCL | O_WRONLY, 0644);
        error = descriptor < 0 ? errno : 0;
        if (!error && ++done)
            close(descriptor);
    }
    tell(done, error);
    return 0;
}

static int set_xattrs(const char *path, size_t bytes)
{
    char name[64], *value = calloc(1, bytes + 1);
    unsigned long done = 0;
    int error = 0;

    while (value && !error) {
        snprintf(name, sizeof(name), "user.hostile.%lu", done);
        error = setxattr(path, name, value, bytes, 0) < 0 ? errno : 0;
        done += !error;
    }
    free(value);
    tell(done, error);
    return 0;
}

/* -- storm ------------------------------------------------------------------------------------- */

static const char *storm_folder;

static void storm_path(char path[300], unsigned int which)
{
    snprintf(path, 300, "%s/%s%u", storm_folder, which % 2 ? "one/" : "two/", which % STORM_NAMES);
}

/* Those that lose a race are told so; anything else is an error. */
static int is_expected(int result)
{
    return result == 0 || errno == ENOENT || errno == EEXIST || errno == ENOTEMPTY ||
           errno == EISDIR || errno == ENOTDIR || errno == EINVAL || errno == EPERM ||
           errno == EBUSY;
}

static int list(const char *name, int check)
{
    char path[300];
    struct dirent *entry;
    struct stat status;
    int bad = 0;

    snprintf(path, sizeof(path), "%s/%s", storm_folder, name);
    DIR *directory = opendir(path);
    if (!directory)
        return 1;
    while ((entry = readdir(directory)))
        if (check && (fstatat(dirfd(directory), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0 ||
                      (entry->d_name[0] != '.' && status.st_ino != entry->d_ino))) {
            printf("%s/%s is listed and not there\n", name, entry->d_name);
            bad = 1;
        }
    closedir(directory);
    return bad;
}

static int storm_process(unsigned int seed, unsigned long count)
{
    char from[300], to[300];
    int result, descriptor;

    for (unsigned long i = 0; i < count; i++) {
        storm_path(from, (unsigned int)rand_r(&seed));
        storm_path(to, (unsigned int)rand_r(&seed));
        switch (rand_r(&seed) % 8) {
        case 0:
            descriptor = open(from, O_CREAT | O_WRONLY, 0644);
            result = descriptor < 0 ? -1 : close(descriptor);
            break;
        case 1:
            result = mkdir(from, 0755);
            break;
        case 2:
            result = unlink(from);
            break;
        case 3:
            result = link(from, to);
            break;
        case 4:
            result = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE);
            break;
        case 5:
            result = list("one", 0);
            break;
        default:
            result = rename(from, to);
            break;
        }
        if (!is_expected(result)) {
            printf("%s\n", strerrorname_np(errno));
            return 1;
        }
    }
    return 0;
}

/* The names of each file that are there are as many as it counts. */
static int check_links(void)
{
    struct stat status[2 * STORM_NAMES];
    char path[300];
    unsigned int count = 0;
    int bad = 0;

    for (unsigned int i = 0; i < 2 * STORM_NAMES; i++) {
        snprintf(path, sizeof(path), "%s/%s%u", storm_folder, i % 2 ? "one/" : "two/", i / 2);
        if (lstat(path, &status[count]) == 0 && S_ISREG(status[count].st_mode))
            count++;
    }
    for (unsigned int i = 0; i < count; i++) {
        unsigned int names = 0;
        for (unsigned int j = 0; j < count; j++)
            names += status[j].st_ino == status[i].st_ino;
        if (names != status[i].st_nlink) {
            printf("%u names, %u counted\n", names, (unsigned int)status[i].st_nlink);
            bad = 1;
        }
    }
    return bad;
}

static int storm(const char *folder, unsigned long count)
{
    char path[300];
    int status, bad = 0;

    storm_folder = folder;
    snprintf(path, sizeof(path), "%s/one", folder);
    bad |= mkdir(path, 0755) < 0;
    snprintf(path, sizeof(path), "%s/two", folder);
    bad |= mkdir(path, 0755) < 0;
    for (unsigned int i = 0; i < STORM_PROCESSES; i++) {
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0)
            exit(storm_process(i + 1, count));
    }
    while (wait(&status) > 0)
        bad |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    bad |= list("one", 1) | list("two", 1) | check_links();
    if (!bad)
        tell(count, 0);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 3 && strcmp(argv[1], "-u") == 0) {
        uid_t uid = (uid_t)strtoul(argv[2], NULL, 10);
        if (setgroups(0, NULL) < 0 || setgid(uid) < 0 || setuid(uid) < 0) {
            perror("hostile");
            return 2;
        }
        argv += 2;
        argc -= 2;
    }
    if (argc != 4) {
        fprintf(stderr, "usage: hostile [-u UID] open|missing|create|xattrs|storm PATH NUMBER\n");
        return 2;
    }
    unsigned long number = strtoul(argv[3], NULL, 10);
    if (strcmp(argv[1], "open") == 0)
        return open_many(argv[2], number);
    if (strcmp(argv[1], "missing") == 0)
        return look_up_missing(argv[2], number);
    if (strcmp(argv[1], "create") == 0)
        return create_many(argv[2], number);
    if (strcmp(argv[1], "xattrs") == 0)
        return set_xattrs(argv[2], number);
    if (strcmp(argv[1], "storm") == 0)
        return storm(argv[2], number);
    fprintf(stderr, "hostile: no %s\n", argv[1]);
    return 2;
}
