#include "conf/conf.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>

#include "conf/internal.h"

void conf_message(char *message, size_t message_bytes, const char *format, ...)
{
    va_list arguments;

    if (message_bytes == 0)
        return;
    va_start(arguments, format);
    vsnprintf(message, message_bytes, format, arguments);
    va_end(arguments);
    for (; *message; message++) {
        if ((unsigned char)*message < ' ' || *message == 0x7f)
            *message = '?';
    }
}

const struct conf_option *conf_find_option(const char *name)
{
    size_t count;
    const struct conf_option *options = conf_options(&count);

    for (size_t i = 0; i < count; i++) {
        if (strcmp(options[i].name, name) == 0)
            return &options[i];
    }
    return NULL;
}

size_t conf_option_names(const char *section, const char *names[CONF_MAX_NAMES])
{
    size_t count, found = 0;
    const struct conf_option *options = conf_options(&count);

    for (size_t i = 0; i < count && found < CONF_MAX_NAMES; i++) {
        if (!section || strcmp(options[i].section, section) == 0)
            names[found++] = options[i].name;
    }
    return found;
}

size_t conf_section_names(const char *names[CONF_MAX_NAMES])
{
    size_t count, found = 0;
    const struct conf_option *options = conf_options(&count);

    for (size_t i = 0; i < count && found < CONF_MAX_NAMES; i++) {
        if (i == 0 || strcmp(options[i].section, options[i - 1].section) != 0)
            names[found++] = options[i].section;
    }
    return found;
}

errint_t conf_parse_size(const char *text, uint64_t *bytes)
{
    return size_text_parse(text, strlen(text), bytes);
}

errint_t conf_parse_budget(const char *text, struct budget_setting *setting)
{
    return budget_setting_parse(text, strlen(text), setting);
}

bool conf_allows_other(const struct conf *conf)
{
    if (conf->allow_other == CONF_SWITCH_AUTO)
        return geteuid() == 0;
    return conf->allow_other == CONF_SWITCH_ON;
}

/* systemd says which file it is whose lines it takes as those of the journal. */
static bool stderr_is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat st;

    return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
           fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device && st.st_ino == inode;
}

enum log_sink conf_log_sink(const struct conf *conf)
{
    switch (conf->log) {
    case CONF_LOG_STDERR:
        return LOG_SINK_STDERR;
    case CONF_LOG_SYSLOG:
        return LOG_SINK_SYSLOG;
    case CONF_LOG_JOURNAL:
        return LOG_SINK_JOURNAL;
    case CONF_LOG_AUTO:
        break;
    }
    if (!conf->foreground)
        return LOG_SINK_SYSLOG;
    return stderr_is_journal() ? LOG_SINK_JOURNAL : LOG_SINK_STDERR;
}

static errint_t set_defaults(struct conf *conf, char *message, size_t message_bytes)
{
    size_t count;
    const struct conf_option *options = conf_options(&count);

    conf->uid = getuid();
    conf->gid = getgid();
    for (size_t i = 0; i < count; i++) {
        char why[CONF_MESSAGE_BYTES];
        errint_t error;

        if (!options[i].default_text)
            continue;
        error = conf_option_set(&options[i], conf, options[i].default_text, why, sizeof(why));
        if (error < 0) {
            conf_message(message, message_bytes, "default of %s: %s", options[i].name, why);
            return error;
        }
    }
    return 0;
}

/* What the options say about each other. */
static errint_t check_together(const struct conf *conf, char *message, size_t message_bytes)
{
    char staging[SIZE_TEXT_BYTES], max_write[SIZE_TEXT_BYTES];

    if (conf->staging_bytes >= conf->max_write_bytes)
        return 0;
    conf_message(message, message_bytes,
                 "staging=%s is less than max_write=%s; one request must fit: raise staging or "
                 "lower max_write",
                 size_text_format(conf->staging_bytes, staging),
                 size_text_format(conf->max_write_bytes, max_write));
    return -EINVAL;
}

enum { OPTION_CONFIG = 256, OPTION_HELP, OPTION_VERSION, OPTION_LIST_DEVICES, OPTION_CHECK_CONFIG };

static const struct option long_options[] = {
    {"config", required_argument, NULL, OPTION_CONFIG},
    {"help", no_argument, NULL, OPTION_HELP},
    {"version", no_argument, NULL, OPTION_VERSION},
    {"list-devices", no_argument, NULL, OPTION_LIST_DEVICES},
    {"check-config", no_argument, NULL, OPTION_CHECK_CONFIG},
    {NULL, 0, NULL, 0},
};

/* What the command line says, before anything of it is believed. */
struct command_line {
    const char **mount_options; /* of each -o, in order */
    size_t mount_options_count;
    const char *config_path;
};

static errint_t refuse_argument(const char *word, char *message, size_t message_bytes)
{
    const char *names[ARRAY_SIZE(long_options)];
    size_t count = 0;
    const char *near = NULL;

    for (; long_options[count].name; count++)
        names[count] = long_options[count].name;
    if (strncmp(word, "--", 2) == 0)
        near = conf_nearest(word + 2, names, count);
    if (near)
        conf_message(message, message_bytes, "unknown argument \"%s\"; did you mean \"--%s\"?",
                     word, near);
    else
        conf_message(message, message_bytes, "unknown argument \"%s\"; see residentfs --help",
                     word);
    return -EINVAL;
}

/* The first of --help and --version wins; both win over the other actions. */
static void set_action(struct conf *conf, enum conf_action action)
{
    if (conf->action != CONF_ACTION_HELP && conf->action != CONF_ACTION_VERSION)
        conf->action = action;
}

/* mount(8) runs mount.TYPE: another command line, in which -f means to do all but mounting. */
static bool is_mount_helper(const char *program)
{
    const char *slash = strrchr(program, '/');

    return strncmp(slash ? slash + 1 : program, "mount.", strlen("mount.")) == 0;
}

static errint_t scan_mount_helper(int argc, char **argv, struct conf *conf,
                                  struct command_line *line, char *message, size_t message_bytes)
{
    int option;

    while ((option = getopt(argc, argv, ":o:t:N:sfnvhV")) != -1) {
        switch (option) {
        case 'o':
            line->mount_options[line->mount_options_count++] = optarg;
            break;
        case 'f':
            set_action(conf, CONF_ACTION_CHECK_CONFIG);
            break;
        case 'h':
            set_action(conf, CONF_ACTION_HELP);
            break;
        case 'V':
            set_action(conf, CONF_ACTION_VERSION);
            break;
        case 't': /* ours, or it would not be us */
        case 's': /* unknown options are errors still */
        case 'n': /* there is no mtab */
        case 'v':
            break;
        case 'N':
            conf_message(message, message_bytes,
                         "-N: mounting in another namespace is not supported; run mount there: "
                         "nsenter --mount=...");
            return -EINVAL;
        default:
            conf_message(message, message_bytes,
                         option == ':' ? "-%c needs a value" : "unknown argument \"-%c\"", optopt);
            return -EINVAL;
        }
    }
    return 0;
}

static errint_t scan(int argc, char **argv, struct conf *conf, struct command_line *line,
                     char *message, size_t message_bytes)
{
    int option;
    errint_t error = 0;

    optind = 0; /* of GNU: start afresh */
    opterr = 0;
    if (argc > 0 && is_mount_helper(argv[0]))
        return scan_mount_helper(argc, argv, conf, line, message, message_bytes);
    while (argc > 0 && (option = getopt_long(argc, argv, ":o:fdhV", long_options, NULL)) != -1) {
        switch (option) {
        case 'o':
            line->mount_options[line->mount_options_count++] = optarg;
            break;
        case 'f':
            conf->foreground = true;
            break;
        case 'd':
            conf->debug = true;
            conf->foreground = true;
            break;
        case OPTION_CONFIG:
            line->config_path = optarg;
            break;
        case 'h':
        case OPTION_HELP:
            set_action(conf, CONF_ACTION_HELP);
            break;
        case 'V':
        case OPTION_VERSION:
            set_action(conf, CONF_ACTION_VERSION);
            break;
        case OPTION_LIST_DEVICES:
            set_action(conf, CONF_ACTION_LIST_DEVICES);
            break;
        case OPTION_CHECK_CONFIG:
            set_action(conf, CONF_ACTION_CHECK_CONFIG);
            break;
        case ':':
            if (error == 0)
                conf_message(message, message_bytes, "\"%s\" needs a value; see residentfs --help",
                             argv[optind - 1]);
            error = -EINVAL;
            break;
        default:
            if (error == 0 && optopt > 0 && optopt < 256) {
                char word[] = {'-', (char)optopt, '\0'};

                error = refuse_argument(word, message, message_bytes);
            } else if (error == 0) {
                error = refuse_argument(argv[optind - 1], message, message_bytes);
            }
        }
    }
    return error;
}

static errint_t read_positionals(int argc, char **argv, struct conf *conf, char *message,
                                 size_t message_bytes)
{
    int count = argc > 0 ? argc - optind : 0;

    if (count > 2) {
        conf_message(message, message_bytes,
                     "unexpected argument \"%s\" after DEVICE and MOUNTPOINT", argv[optind + 2]);
        return -EINVAL;
    }
    if (count < 2 && conf->action == CONF_ACTION_MOUNT) {
        conf_message(message, message_bytes,
                     "%s; usage: residentfs DEVICE MOUNTPOINT [-o OPT,...] (see residentfs --help; "
                     "to try it without a GPU: residentfs emulated MOUNTPOINT)",
                     count ? "MOUNTPOINT is missing" : "DEVICE and MOUNTPOINT are missing");
        return -EINVAL;
    }
    if (count >= 1) {
        if (device_selector_parse(argv[optind], &conf->device) < 0) {
            conf_message(message, message_bytes, "unknown DEVICE \"%s\"; DEVICE is one of: %s",
                         argv[optind], DEVICE_SELECTOR_FORMS);
            return -EINVAL;
        }
        conf->has_device = true;
    }
    if (count == 2) {
        if (argv[optind + 1][0] == '\0') {
            conf_message(message, message_bytes, "MOUNTPOINT is empty");
            return -EINVAL;
        }
        conf->mountpoint = strdup(argv[optind + 1]);
        if (!conf->mountpoint) {
            conf_message(message, message_bytes, "out of memory");
            return -ENOMEM;
        }
    }
    return 0;
}

static errint_t read_options(struct conf *conf, const struct command_line *line, char *message,
                             size_t message_bytes)
{
    const char *path = line->config_path ? line->config_path : CONF_DEFAULT_PATH;
    bool found;
    errint_t error = set_defaults(conf, message, message_bytes);

    if (error < 0)
        return error;
    error = conf_read_ini(conf, path, line->config_path != NULL, &found, message, message_bytes);
    if (error < 0)
        return error;
    if (found) {
        conf->config_path = strdup(path);
        if (!conf->config_path) {
            conf_message(message, message_bytes, "out of memory");
            return -ENOMEM;
        }
    }
    for (size_t i = 0; i < line->mount_options_count; i++) {
        error = conf_read_mount_options(conf, line->mount_options[i], message, message_bytes);
        if (error < 0)
            return error;
    }
    if (conf->debug)
        conf->log_level = LOG_LEVEL_DEBUG;
    return check_together(conf, message, message_bytes);
}

errint_t conf_parse(int argc, char **argv, struct conf *conf, char *message, size_t message_bytes)
{
    cleanup_free const char **mount_options = calloc((size_t)argc + 1, sizeof(*mount_options));
    struct command_line line = {.mount_options = mount_options};
    errint_t error;

    *conf = (struct conf){.action = CONF_ACTION_MOUNT};
    if (!mount_options) {
        conf_message(message, message_bytes, "out of memory");
        return -ENOMEM;
    }
    error = scan(argc, argv, conf, &line, message, message_bytes);
    if (conf->action == CONF_ACTION_HELP || conf->action == CONF_ACTION_VERSION)
        return 0;
    if (error == 0)
        error = read_positionals(argc, argv, conf, message, message_bytes);
    if (error == 0)
        error = read_options(conf, &line, message, message_bytes);
    if (error < 0)
        conf_finish(conf);
    return error;
}

void conf_finish(struct conf *conf)
{
    size_t count;
    const struct conf_option *options = conf_options(&count);

    for (size_t i = 0; i < count; i++)
        conf_option_finish(&options[i], conf);
    for (size_t i = 0; i < conf->mount_options_count; i++)
        free(conf->mount_options[i]);
    free(conf->mount_options);
    free(conf->mountpoint);
    free(conf->config_path);
    *conf = (struct conf){0};
}
