/*
 * Sizes as text: "4096", "64MiB", "12g". Pure functions, any thread.
 */
#ifndef RESIDENTFS_CORE_SIZE_TEXT_H
#define RESIDENTFS_CORE_SIZE_TEXT_H

#include "core/util.h"

/* Room for any size as text, with the NUL. */
#define SIZE_TEXT_BYTES 32

/*
 * Reads LENGTH characters: decimal digits, then nothing (bytes) or K, M, G, T in either case, or
 * KiB, MiB, GiB, TiB, all powers of 1024. Nothing may stand before, between or after. -EINVAL: not
 * a size. -ERANGE: more than UINT64_MAX bytes. *BYTES is set only on success.
 */
errint_t size_text_parse(const char *text, size_t length, uint64_t *bytes);

/* Exact, in the largest unit that divides BYTES, so that size_text_parse gives BYTES back. Returns
 * OUT. */
char *size_text_format(uint64_t bytes, char out[SIZE_TEXT_BYTES]);

#endif
