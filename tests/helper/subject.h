/*
 * What helpers of the shell tests share that are lists of subjects. A subject makes its FILE anew
 * and prints "as expected", each thing that was not so, or "not here: WHY" where the kernel has no
 * such thing, with status 0 in all of these; with status 1 the call that failed and why, if it is
 * one that the subject needs.
 */
#ifndef RESIDENTFS_TESTS_HELPER_SUBJECT_H
#define RESIDENTFS_TESTS_HELPER_SUBJECT_H

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/xattr.h>
#include <unistd.h>

#define PAGE 4096

static bool unexpected;

__attribute__((format(printf, 2, 3))) static inline void expect(bool holds, const char *format, ...)
{
    if (holds)
        return;
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    putchar('\n');
    unexpected = true;
}

__attribute__((noreturn)) static inline void fail(const char *what)
{
    printf("%s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(1);
}

__attribute__((noreturn)) static inline void not_here(const char *what)
{
    printf("not here: %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(0);
}

#define MUST(call)       \
    do {                 \
        if ((call) < 0)  \
            fail(#call); \
    } while (0)

static inline int fresh(const char *path, int flags)
{
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | flags, 0644);
    if (file < 0)
        fail("open");
    return file;
}

/* Bytes that tell where they belong, aligned to a page. */
static inline unsigned char *pattern(size_t length, unsigned int seed)
{
    unsigned char *bytes = aligned_alloc(PAGE, (length + PAGE) & ~(size_t)(PAGE - 1));
    if (!bytes)
        fail("aligned_alloc");
    for (size_t i = 0; i < length; i++)
        bytes[i] = (unsigned char)((i * 31 + (i >> 8) * 7 + seed) % 251 + 1);
    return bytes;
}

/* The file has these bytes there. */
static inline void holds(int file, off_t offset, const unsigned char *bytes, size_t length,
                         const char *what)
{
    unsigned char *seen = pattern(length, 0);
    size_t done = 0;
    while (done < length) {
        ssize_t now = pread(file, seen + done, length - done, offset + (off_t)done);
        if (now <= 0)
            break;
        done += (size_t)now;
    }
    expect(done == length, "%s: only %zu of %zu bytes", what, done, length);
    for (size_t i = 0; i < done; i++)
        if (seen[i] != bytes[i]) {
            expect(false, "%s: byte %zu is 0x%02x, not 0x%02x", what, i, seen[i], bytes[i]);
            break;
        }
    free(seen);
}

/* Bytes that are not on the device; 0 where there is no such thing. */
static inline long long dirty_bytes(int file)
{
    char value[32] = "0";
    if (fgetxattr(file, "user.resident.dirty_bytes", value, sizeof value - 1) < 0 &&
        errno != ENODATA && errno != EOPNOTSUPP)
        fail("user.resident.dirty_bytes");
    return atoll(value);
}

struct subject {
    const char *name;
    void (*run)(char **arguments); /* the file's path and what follows it; NULL at the end */
};

static inline int run_subject(const struct subject *subjects, size_t count, int argc, char **argv)
{
    for (size_t i = 0; argc >= 3 && i < count; i++) {
        if (strcmp(subjects[i].name, argv[1]) != 0)
            continue;
        setvbuf(stdout, NULL, _IOLBF, 0);
        subjects[i].run(argv + 2);
        if (!unexpected)
            puts("as expected");
        fflush(stdout);
        _exit(0); /* what a subject allocates is there until now; that is no leak */
    }
    fprintf(stderr, "usage: %s SUBJECT FILE [ARGUMENT...]; no such subject\n", argv[0]);
    return 2;
}

#endif
