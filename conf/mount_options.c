/*
 * -o: options of residentfs from the table, and the ones that mount(8), fstab and mount.fuse put
 * there, which are collected for the kernel, or dropped because they say something to somebody
 * else.
 */
#include <errno.h>
#include <string.h>

#include "conf/internal.h"

/* Of one group at most one word is in force: the last. */
enum group {
    ACCESS,
    SETUID,
    DEVICES,
    EXECUTE,
    SYNCHRONOUS,
    DIRECTORY_SYNC,
    ACCESS_TIME,
    DIRECTORY_ACCESS_TIME
};

static const struct {
    const char *name;
    enum group group;
    bool passed; /* libfuse takes the word; the others undo one of their group, or are ours */
} kernel_options[] = {
    {"rw", ACCESS, true},
    {"ro", ACCESS, true},
    {"suid", SETUID, true},
    {"nosuid", SETUID, true},
    {"dev", DEVICES, true},
    {"nodev", DEVICES, true},
    {"exec", EXECUTE, true},
    {"noexec", EXECUTE, true},
    {"async", SYNCHRONOUS, true},
    {"sync", SYNCHRONOUS, true},
    {"dirsync", DIRECTORY_SYNC, true},
    {"noatime", ACCESS_TIME, true},
    {"atime", ACCESS_TIME, false},
    {"relatime", ACCESS_TIME, false},
    {"strictatime", ACCESS_TIME, false},
    {"nodiratime", DIRECTORY_ACCESS_TIME, true},
    {"diratime", DIRECTORY_ACCESS_TIME, false},
};

/* For mount(8), systemd or a person; or set by the daemon itself. '*' at the end: any rest. */
static const char *const dropped_options[] = {
    "user",    "user=*",   "users",     "owner",
    "group",   "auto",     "noauto",    "nofail",
    "_netdev", "defaults", "x-*",       "comment=*",
    "X-*",     "fsname=*", "subtype=*", "default_permissions",
    "nouser",  "nousers",  "noowner",   "nogroup",
};

static int find_kernel_option(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(kernel_options); i++) {
        if (strcmp(kernel_options[i].name, name) == 0)
            return (int)i;
    }
    return -1;
}

static bool is_dropped(const char *word)
{
    for (size_t i = 0; i < ARRAY_SIZE(dropped_options); i++) {
        const char *pattern = dropped_options[i];
        size_t length = strlen(pattern);

        if (pattern[length - 1] == '*' ? strncmp(word, pattern, length - 1) == 0
                                       : strcmp(word, pattern) == 0)
            return true;
    }
    return false;
}

/* What the daemon itself goes by. */
static void note_access_times(struct conf *conf, const char *name)
{
    if (strcmp(name, "noatime") == 0)
        conf->atime = CONF_ATIME_NONE;
    else if (strcmp(name, "strictatime") == 0)
        conf->atime = CONF_ATIME_STRICT;
    else if (strcmp(name, "atime") == 0 || strcmp(name, "relatime") == 0)
        conf->atime = CONF_ATIME_RELATIME; /* the kernel's default */
    else if (strcmp(name, "nodiratime") == 0)
        conf->no_directory_atime = true;
    else if (strcmp(name, "diratime") == 0)
        conf->no_directory_atime = false;
}

static errint_t add_kernel_option(struct conf *conf, int which)
{
    size_t kept = 0;

    for (size_t i = 0; i < conf->mount_options_count; i++) {
        int other = find_kernel_option(conf->mount_options[i]);

        if (kernel_options[other].group == kernel_options[which].group)
            free(conf->mount_options[i]);
        else
            conf->mount_options[kept++] = conf->mount_options[i];
    }
    conf->mount_options_count = kept;
    note_access_times(conf, kernel_options[which].name);
    if (!kernel_options[which].passed)
        return 0;
    if (!conf->mount_options) {
        conf->mount_options = calloc(ARRAY_SIZE(kernel_options), sizeof(*conf->mount_options));
        if (!conf->mount_options)
            return -ENOMEM;
    }
    conf->mount_options[kept] = strdup(kernel_options[which].name);
    if (!conf->mount_options[kept])
        return -ENOMEM;
    conf->mount_options_count++;
    return 0;
}

static errint_t refuse_unknown(const char *word, const char *name, char *message,
                               size_t message_bytes)
{
    const char *names[CONF_MAX_NAMES];
    size_t count = conf_option_names(NULL, names);
    const char *near;

    for (size_t i = 0; i < ARRAY_SIZE(kernel_options) && count < CONF_MAX_NAMES; i++)
        names[count++] = kernel_options[i].name;
    near = conf_nearest(name, names, count);
    if (near)
        conf_message(message, message_bytes, "-o %s: unknown option \"%s\"; did you mean \"%s\"?",
                     word, name, near);
    else
        conf_message(message, message_bytes,
                     "-o %s: unknown option \"%s\"; residentfs --help lists them", word, name);
    return -EINVAL;
}

/* NAME or no_NAME without a value. */
static errint_t read_bare(struct conf *conf, const char *word, char *message, size_t message_bytes)
{
    bool negated = strncmp(word, "no_", 3) == 0;
    const char *name = negated ? word + 3 : word;
    const struct conf_option *option = conf_find_option(name);
    char why[CONF_MESSAGE_BYTES];

    if (!option)
        return refuse_unknown(word, name, message, message_bytes);
    if (!conf_option_is_switch(option)) {
        char range[160];

        conf_message(message, message_bytes, "-o %s: %s needs a value: %s", word, name,
                     conf_option_range(option, range, sizeof(range)));
        return -EINVAL;
    }
    return conf_option_set(option, conf, negated ? "off" : "on", why, sizeof(why));
}

static errint_t read_word(struct conf *conf, char *word, char *message, size_t message_bytes)
{
    int kernel_option = find_kernel_option(word);
    const struct conf_option *option;
    char *equals;
    char why[CONF_MESSAGE_BYTES];
    errint_t error;

    if (kernel_option >= 0) {
        error = add_kernel_option(conf, kernel_option);
        if (error < 0)
            conf_message(message, message_bytes, "-o %s: out of memory", word);
        return error;
    }
    if (strcmp(word, "remount") == 0) {
        conf_message(message, message_bytes,
                     "-o remount: not supported: options are fixed at mount; unmount and mount "
                     "again (the budget can be changed in .resident/budget)");
        return -EINVAL;
    }
    if (is_dropped(word))
        return 0;
    equals = strchr(word, '=');
    if (!equals)
        return read_bare(conf, word, message, message_bytes);

    *equals = '\0';
    option = conf_find_option(word);
    if (!option) {
        cleanup_free char *name = strdup(word);

        *equals = '=';
        return refuse_unknown(word, name ? name : "", message, message_bytes);
    }
    error = conf_option_set(option, conf, equals + 1, why, sizeof(why));
    *equals = '=';
    if (error < 0)
        conf_message(message, message_bytes, "-o %s: %s", word, why);
    return error;
}

errint_t conf_read_mount_options(struct conf *conf, const char *text, char *message,
                                 size_t message_bytes)
{
    cleanup_free char *word = malloc(strlen(text) + 1);

    if (!word) {
        conf_message(message, message_bytes, "out of memory");
        return -ENOMEM;
    }
    /* Commas part options; a backslash takes the character after it as it is, like libfuse. */
    for (;;) {
        size_t length = 0;
        errint_t error;

        while (*text && *text != ',') {
            if (*text == '\\' && text[1])
                text++;
            word[length++] = *text++;
        }
        word[length] = '\0';
        if (length > 0) {
            error = read_word(conf, word, message, message_bytes);
            if (error < 0)
                return error;
        }
        if (*text == '\0')
            return 0;
        text++;
    }
}
