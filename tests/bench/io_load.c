/*
 * Puts load on files and prints what came of it as one line of JSON.
 *
 *   io_load LOAD FOLDER [KEY=VALUE…]
 *
 *   read, write   block= file= clients= ms= random= many= sync_each=; a write ends with an fsync,
 *                 which counts; ms=0 goes through the file once, and makes it if it is new
 *   scattered     rounds of count= writes of block= bytes, by all clients, and one fsync
 *   copy          copy_file_range of file "0" to "1000", block= bytes a call; fresh=1: a new file
 *   create, stat, readdir, unlink
 *                 count= files, empty, in a folder for each client
 */
#include "tests/bench/io_load.h"

#include <stdio.h>
#include <string.h>

static const struct load_kind *search(const struct load_kind *kinds, const char *name)
{
    for (; kinds->name; kinds++)
        if (strcmp(kinds->name, name) == 0)
            return kinds;
    return NULL;
}

int main(int argc, char **argv)
{
    static struct load load = {
        .parameters = {.block = MIB, .file = 64 * MIB, .clients = 1, .count = 1024}};

    if (argc >= 3) {
        load.kind = search(load_data_kinds, argv[1]);
        if (!load.kind)
            load.kind = search(load_name_kinds, argv[1]);
        load.target = argv[2];
    }
    if (!load.kind || !load_parse(&load.parameters, argc - 3, argv + 3)) {
        fprintf(stderr,
                "usage: io_load read|write|scattered|copy|create|stat|readdir|unlink FOLDER "
                "[KEY=VALUE...]\n");
        return 2;
    }
    return load_run(&load);
}
