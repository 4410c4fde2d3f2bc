/*
 * One option: how it is named, read from text, checked and written back. What the options of
 * residentfs are stands in table.c; INI, -o, --help and .resident/config all work from that table.
 * No state here; messages are one line without a newline.
 */
#ifndef RESIDENTFS_CONF_OPTION_H
#define RESIDENTFS_CONF_OPTION_H

#include "core/util.h"

/* The C type of the field that each reads into, in brackets. */
enum conf_type {
    CONF_BOOL,    /* [bool] on or off */
    CONF_INTEGER, /* [uint32_t] decimal */
    CONF_OCTAL,   /* [uint32_t] file mode bits */
    CONF_SIZE,    /* [uint64_t] bytes, see core/size_text.h */
    CONF_BUDGET,  /* [struct budget_setting] */
    CONF_ENUM,    /* [int, or an enum without negative values] index into choices */
    CONF_STRING,  /* [char *, owned] printable, or NULL when empty */
    CONF_SECONDS, /* [double] */
};

enum conf_flags {
    CONF_ADVANCED = 1 << 0, /* rarely needed */
    CONF_TEST = 1 << 1,     /* for tests */
};

struct conf_option {
    const char *name;
    const char *section; /* of the INI file */
    enum conf_type type;
    size_t offset;              /* of the field in the struct that options are read into */
    const char *default_text;   /* NULL: found at run time, and default_note says how */
    const char *default_note;   /* for help, instead of default_text; or NULL */
    const char *metavar;        /* for help; NULL for enums and bools, which show their choices */
    const char *help;           /* one line */
    uint64_t min, max;          /* INTEGER, OCTAL, SIZE, SECONDS */
    uint64_t multiple;          /* SIZE: the value is a multiple of this; 0 for any */
    const char *const *choices; /* ENUM: NULL-terminated */
    unsigned flags;
};

/*
 * Reads TEXT into the field of BASE. On failure returns -EINVAL (or -ENOMEM), leaves the field as
 * it was and writes to MESSAGE what was wrong and what is allowed, such as "not in 0..256".
 */
errint_t conf_option_set(const struct conf_option *option, void *base, const char *text,
                         char *message, size_t message_bytes);

/* The field of BASE as text that conf_option_set takes back. Owned by the caller; NULL without
 * memory. */
char *conf_option_get(const struct conf_option *option, const void *base);

/* What is allowed: "0..256", "off|on", "64KiB..32MiB, a multiple of 4KiB". Returns OUT. */
char *conf_option_range(const struct conf_option *option, char *out, size_t out_bytes);

/* True when the name alone means on and no_NAME means off: bools, and enums that have both. */
bool conf_option_is_switch(const struct conf_option *option);

/* Frees what the field owns. */
void conf_option_finish(const struct conf_option *option, void *base);

/* The candidate that was most likely meant by WORD, or NULL when none is near. */
const char *conf_nearest(const char *word, const char *const *candidates, size_t count);

#endif
