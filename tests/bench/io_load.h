/*
 * The loads of io_load, on files in a folder that is the load's target. Files that carry bytes are
 * called "0" (the one that all clients share), "1", "2", … (one for each client) and "1000" (the
 * copy); files that are only names are in folders "d0", "d1", …, one for each client.
 */
#ifndef RESIDENTFS_TESTS_BENCH_IO_LOAD_H
#define RESIDENTFS_TESTS_BENCH_IO_LOAD_H

#include "tests/bench/load.h"

/* read, write, scattered, copy; ended by one without a name. */
extern const struct load_kind load_data_kinds[];
/* create, stat, readdir, unlink; likewise. */
extern const struct load_kind load_name_kinds[];

#endif
