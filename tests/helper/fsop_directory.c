/* fsop: the calls on directories. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fsop.h"

/* createmany DIRECTORY COUNT */
int call_createmany(char **a, int n)
{
    (void)n;
    long long count = number_of(a[1]);
    int directory = open(a[0], O_RDONLY | O_DIRECTORY);
    if (directory < 0)
        return -1;
    for (long long i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "f%lld", i);
        int file = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL, 0644);
        if (file < 0)
            return -1;
        close(file);
    }
    return close(directory);
}

/* Reads the whole directory; counts names of createmany seen once, more than once, and never. Does
 * WHAT with each as it is seen. Prints "seen N repeated N missing N". */
enum do_with_each { ONLY_LIST, LOOK, UNLINK };

static int do_with(DIR *directory, const char *name, enum do_with_each what)
{
    struct stat s;
    switch (what) {
    case LOOK:
        return fstatat(dirfd(directory), name, &s, AT_SYMLINK_NOFOLLOW);
    case UNLINK:
        return unlinkat(dirfd(directory), name, 0);
    default:
        return 0;
    }
}

static int list_many(const char *path, long long count, enum do_with_each what)
{
    unsigned char *seen = calloc((size_t)count + 1, 1);
    DIR *directory = opendir(path);
    if (!directory || !seen)
        return -1;
    long long once = 0, repeated = 0, missing = 0;
    errno = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        long long number;
        if (sscanf(entry->d_name, "f%lld", &number) != 1 || number < 0 || number >= count)
            continue;
        if (seen[number]++)
            repeated++;
        else
            once++;
        if (seen[number] == 1 && do_with(directory, entry->d_name, what) < 0)
            return -1;
        errno = 0;
    }
    if (errno)
        return -1;
    for (long long i = 0; i < count; i++)
        missing += !seen[i];
    printf("seen %lld repeated %lld missing %lld\n", once, repeated, missing);
    free(seen);
    return closedir(directory);
}

/* Whether the last of N words asks for the attributes of each entry. */
static enum do_with_each look_or_not(char **a, int n)
{
    return n > 2 && strcmp(a[2], "stat") == 0 ? LOOK : ONLY_LIST;
}

/* listmany DIRECTORY COUNT [stat] */
int call_listmany(char **a, int n)
{
    return list_many(a[0], number_of(a[1]), look_or_not(a, n));
}

/* unlinkmany DIRECTORY COUNT: the last first. */
int call_unlinkmany(char **a, int n)
{
    (void)n;
    int directory = open(a[0], O_RDONLY | O_DIRECTORY);
    if (directory < 0)
        return -1;
    for (long long i = number_of(a[1]) - 1; i >= 0; i--) {
        char name[32];
        snprintf(name, sizeof name, "f%lld", i);
        if (unlinkat(directory, name, 0) < 0)
            return -1;
    }
    return close(directory);
}

int call_unlinkwhilelisting(char **a, int n)
{
    (void)n;
    return list_many(a[0], number_of(a[1]), UNLINK);
}

/* renamewhilelisting DIRECTORY COUNT: renames each entry that the listing tells of, and back. Fails
 * with ELOOP when it was told of more than four times as many as there are. */
int call_renamewhilelisting(char **a, int n)
{
    (void)n;
    long long limit = 4 * number_of(a[1]);
    DIR *directory = opendir(a[0]);
    if (!directory)
        return -1;
    errno = 0;
    for (struct dirent *entry; (entry = readdir(directory)); errno = 0) {
        if (entry->d_name[0] == '.')
            continue;
        if (limit-- == 0) {
            errno = ELOOP;
            return -1;
        }
        if (renameat(dirfd(directory), entry->d_name, dirfd(directory), "other") < 0 ||
            renameat(dirfd(directory), "other", dirfd(directory), entry->d_name) < 0)
            return -1;
    }
    return errno ? -1 : closedir(directory);
}

/* Creates, renames and removes names of its own, for ever; says so on READY once it does. */
static void churn(const char *path, int process, int ready)
{
    enum { KEPT = 50 };
    int directory = open(path, O_RDONLY | O_DIRECTORY);
    for (unsigned i = 0;; i++) {
        char name[32], other[40];
        snprintf(name, sizeof name, "other%d-%u", process, i);
        int file = openat(directory, name, O_WRONLY | O_CREAT, 0644);
        if (file < 0 || close(file) < 0)
            _exit(1);
        snprintf(other, sizeof other, "%s-renamed", name);
        if (i % 3 == 0 && renameat(directory, name, directory, other) < 0)
            _exit(1);
        if (i == 0 && write(ready, "", 1) != 1)
            _exit(1);
        if (i < KEPT)
            continue;
        snprintf(name, sizeof name, "other%d-%u%s", process, i - KEPT,
                 (i - KEPT) % 3 == 0 ? "-renamed" : "");
        if (unlinkat(directory, name, 0) < 0)
            _exit(1);
    }
}

/* churn DIRECTORY COUNT [stat]: lists f0…f(COUNT-1) five times while two other processes create,
 * rename and remove other names there. With stat, asks for the attributes of each entry, upon which
 * the kernel asks a FUSE for entries with attributes (readdirplus). */
int call_churn(char **a, int n)
{
    enum { CHURNERS = 2 };
    pid_t children[CHURNERS];
    int pipes[2];
    if (pipe(pipes) < 0)
        return -1;
    for (int i = 0; i < CHURNERS; i++) {
        children[i] = fork();
        if (children[i] < 0)
            return -1;
        if (children[i] == 0)
            churn(a[0], i, pipes[1]);
    }
    for (int i = 0; i < CHURNERS; i++) {
        char byte;
        if (read(pipes[0], &byte, 1) != 1)
            return -1;
    }
    int result = 0;
    for (int i = 0; i < 5 && result == 0; i++)
        result = list_many(a[0], number_of(a[1]), look_or_not(a, n));
    int error = errno;
    for (int i = 0; i < CHURNERS; i++) {
        int status;
        kill(children[i], SIGKILL);
        waitpid(children[i], &status, 0);
        if (!WIFSIGNALED(status))
            puts("another process could not create, rename and remove");
    }
    errno = error;
    return result;
}

/* seekdir DIRECTORY: notes telldir before each entry, then goes back to each place in reverse;
 * prints "same" if every place gives the entry that it gave before. Then rewinds and counts again.
 */
int call_seekdir(char **a, int n)
{
    (void)n;
    enum { MAX = 4096 };
    static long places[MAX];
    static char *names[MAX];
    DIR *directory = opendir(a[0]);
    if (!directory)
        return -1;
    int count = 0;
    for (;;) {
        places[count] = telldir(directory);
        struct dirent *entry = readdir(directory);
        if (!entry || count == MAX - 1)
            break;
        names[count++] = strdup(entry->d_name);
    }
    for (int i = count - 1; i >= 0; i--) {
        seekdir(directory, places[i]);
        struct dirent *entry = readdir(directory);
        if (!entry || strcmp(entry->d_name, names[i]) != 0) {
            printf("place %d gave %s instead of %s\n", i, entry ? entry->d_name : "the end",
                   names[i]);
            return closedir(directory);
        }
    }
    rewinddir(directory);
    int again = 0;
    while (readdir(directory))
        again++;
    if (again == count)
        printf("same %d\n", count);
    else
        printf("first %d, after rewinddir %d\n", count, again);
    return closedir(directory);
}

/* seekdeleted DIRECTORY COUNT: f0…f(COUNT-1) are there. Goes through them, removes every second one
 * that it has passed, goes back to the place after each of those, and prints "same" if what comes
 * there is what came there before, or the one after if that was removed. Then goes back to the
 * place of the first removed one: nothing that is left may be missing or come twice from there. */
int call_seekdeleted(char **a, int n)
{
    (void)n;
    enum { MAX = 4096 };
    static long places[MAX + 1];
    static char names[MAX][32];
    long long count = number_of(a[1]), got = 0;
    DIR *directory = opendir(a[0]);
    if (!directory || count > MAX)
        return -1;
    places[0] = telldir(directory);
    for (struct dirent *entry; got < count && (entry = readdir(directory));) {
        if (entry->d_name[0] == 'f')
            snprintf(names[got++], sizeof names[0], "%.31s", entry->d_name);
        places[got] = telldir(directory);
    }
    for (long long i = 0; i < got; i += 2)
        if (unlinkat(dirfd(directory), names[i], 0) < 0)
            return -1;
    for (long long i = got - 2; i >= 0; i--) {
        /* libc may still have the removed ones in its buffer: seekdir empties that. */
        seekdir(directory, places[i]);
        struct dirent *entry = readdir(directory);
        const char *expected = i % 2 ? names[i] : names[i + 1];
        if (!entry || strcmp(entry->d_name, expected) != 0) {
            printf("place %lld gave %s instead of %s\n", i, entry ? entry->d_name : "the end",
                   expected);
            return closedir(directory);
        }
    }
    seekdir(directory, places[0]);
    long long left = 0;
    for (struct dirent *entry; (entry = readdir(directory));)
        left += entry->d_name[0] == 'f';
    printf("same %lld\n", left);
    return closedir(directory);
}

/* listfile FILE: reads the open directory to its end. */
int call_listfile(char **a, int n)
{
    (void)n;
    DIR *directory = fdopendir(dup(file_of(a[0])));
    if (!directory)
        return -1;
    errno = 0;
    while (readdir(directory))
        ;
    return errno ? -1 : closedir(directory);
}

/* deep DIRECTORY DEPTH: makes a chain of directories by mkdirat, DEPTH long. */
int call_deep(char **a, int n)
{
    (void)n;
    int directory = open(a[0], O_RDONLY | O_DIRECTORY);
    for (long long i = number_of(a[1]); i > 0 && directory >= 0; i--) {
        if (mkdirat(directory, "dddddddddd", 0755) < 0)
            return -1;
        int next = openat(directory, "dddddddddd", O_RDONLY | O_DIRECTORY);
        close(directory);
        directory = next;
    }
    return directory < 0 ? -1 : close(directory);
}
