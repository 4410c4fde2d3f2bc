/* What is accepted as configuration can be written down and read again. */
#ifndef RESIDENTFS_TESTS_CONF_ROUNDTRIP_H
#define RESIDENTFS_TESTS_CONF_ROUNDTRIP_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "conf/conf.h"

/* An INI file with these bytes; its path, until the descriptor is closed. */
static inline int fuzz_file(const void *bytes, size_t size, char path[40])
{
    int file = memfd_create("fuzz", 0);

    if (file < 0 || write(file, bytes, size) != (ssize_t)size)
        abort();
    snprintf(path, 40, "/proc/self/fd/%d", file);
    return file;
}

/* CONFIG is a path; OPTIONS the text of -o, or NULL. */
static inline errint_t fuzz_parse(const char *config, const char *options, struct conf *conf,
                                  char *message, size_t message_bytes)
{
    char *words[8] = {(char *)"residentfs", (char *)"emulated", (char *)"/tmp",  (char *)"--config",
                      (char *)config,       (char *)"-o",       (char *)options, NULL};

    return conf_parse(options ? 7 : 5, words, conf, message, message_bytes);
}

static inline void fuzz_roundtrip(const char *config, const char *options)
{
    struct conf conf = {0}, again = {0};
    char message[CONF_MESSAGE_BYTES] = "", path[40];
    errint_t error = fuzz_parse(config, options, &conf, message, sizeof(message));

    if (error < 0) {
        if (!message[0] || !memchr(message, 0, sizeof(message)) || strchr(message, '\n'))
            abort();
        return;
    }
    size_t length = 0, length_again = 0;
    char *dump = conf_dump_ini(&conf, &length);
    int file = fuzz_file(dump, length, path);
    if (fuzz_parse(path, NULL, &again, message, sizeof(message)) < 0) {
        fprintf(stderr, "%s\n%s\n", message, dump);
        abort();
    }
    char *dump_again = conf_dump_ini(&again, &length_again);
    if (length != length_again || memcmp(dump, dump_again, length) != 0) {
        fprintf(stderr, "%s\nis not\n%s\n", dump, dump_again);
        abort();
    }
    close(file);
    free(dump);
    free(dump_again);
    conf_finish(&conf);
    conf_finish(&again);
}

#endif
