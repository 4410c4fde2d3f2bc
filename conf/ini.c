/*
 * The INI file. inih splits lines; everything that it would let pass in silence (lines longer than
 * its buffer, text after a section's ']', indented lines taken as continuations) is refused or
 * undone in the reader that feeds it, which also counts lines for the messages.
 */
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <string.h>
#include <sys/stat.h>

#include "conf/internal.h"

#define FILE_MAX_BYTES (1 * MIB)

struct reader {
    struct conf *conf;
    const char *path;
    const char *text, *end; /* what is left to read */
    unsigned line;          /* of the line handed out last */
    bool failed;            /* message is set; nothing more is read */
    char *message;
    size_t message_bytes;
};

#define reader_fail(reader, format, ...)                                                           \
    do {                                                                                           \
        (reader)->failed = true;                                                                   \
        conf_message((reader)->message, (reader)->message_bytes, "%s:%u: " format, (reader)->path, \
                     (reader)->line, __VA_ARGS__);                                                 \
    } while (0)

static const char *skip_blanks(const char *text, const char *end)
{
    while (text < end && (*text == ' ' || *text == '\t'))
        text++;
    return text;
}

/* START is at the '['. Sections without options never reach the handler, so they are checked here.
 */
static bool check_section(struct reader *reader, const char *start, const char *end)
{
    const char *names[CONF_MAX_NAMES];
    size_t count = conf_section_names(names);
    const char *close = memchr(start, ']', (size_t)(end - start));
    const char *after, *near;
    cleanup_free char *name = NULL;

    if (!close) {
        reader_fail(reader, "%s", "section without \"]\"");
        return false;
    }
    after = skip_blanks(close + 1, end);
    if (after < end && *after != ';' && *after != '#' && *after != '\r') {
        reader_fail(reader, "%s",
                    "text after the section's \"]\"; options stand on their own lines");
        return false;
    }
    name = strndup(start + 1, (size_t)(close - start - 1));
    if (!name) {
        reader_fail(reader, "%s", "out of memory");
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    near = conf_nearest(name, names, count);
    if (near)
        reader_fail(reader, "unknown section [%s]; did you mean [%s]?", name, near);
    else
        reader_fail(reader, "unknown section [%s]; residentfs --help lists them", name);
    return false;
}

/* fgets for inih: one line into OUT, or NULL at the end and after an error. */
static char *read_line(char *out, int out_bytes, void *stream)
{
    struct reader *reader = stream;
    const char *start, *end;
    size_t length;

    if (reader->failed || reader->text == reader->end)
        return NULL;
    reader->line++;
    end = memchr(reader->text, '\n', (size_t)(reader->end - reader->text));
    /* An indented line would be the continuation of the value before it. */
    start = skip_blanks(reader->text, end ? end : reader->end);
    reader->text = end ? end + 1 : reader->end;
    if (!end)
        end = reader->end;
    length = (size_t)(end - start);

    if (memchr(start, '\0', length)) {
        reader_fail(reader, "%s", "a NUL byte; this is not a text file");
        return NULL;
    }
    if (reader->line == 1 && length >= 3 && memcmp(start, "\xef\xbb\xbf", 3) == 0) {
        reader_fail(reader, "%s", "a byte order mark; save the file as UTF-8 without one");
        return NULL;
    }
    if (length > 0 && (*start == '#' || *start == ';'))
        length = 0;
    /* inih needs room for the newline and the NUL, and says to leave one more. */
    if (length + 3 > (size_t)out_bytes) {
        reader_fail(reader, "line of %zu characters; at most %d are read", length, out_bytes - 3);
        return NULL;
    }
    if (length > 0 && *start == '[' && !check_section(reader, start, end))
        return NULL;
    memcpy(out, start, length);
    out[length] = '\n';
    out[length + 1] = '\0';
    return out;
}

static void fail_unknown(struct reader *reader, const char *section, const char *name)
{
    const char *names[CONF_MAX_NAMES];
    const char *near = conf_nearest(name, names, conf_option_names(section, names));

    if (near) {
        reader_fail(reader, "unknown option \"%s\" in [%s]; did you mean \"%s\"?", name, section,
                    near);
        return;
    }
    near = conf_nearest(name, names, conf_option_names(NULL, names));
    if (near)
        reader_fail(reader, "unknown option \"%s\" in [%s]; did you mean \"%s\" in [%s]?", name,
                    section, near, conf_find_option(near)->section);
    else
        reader_fail(reader, "unknown option \"%s\" in [%s]; residentfs --help lists them", name,
                    section);
}

/* One name and value, from inih. Non-zero is success. */
static int handle(void *user, const char *section, const char *name, const char *value)
{
    struct reader *reader = user;
    const struct conf_option *option;
    char why[CONF_MESSAGE_BYTES];

    if (reader->failed)
        return 1;
    option = conf_find_option(name);
    if (section[0] == '\0')
        reader_fail(reader, "option \"%s\" before any section%s%s%s", name,
                    option ? "; it belongs in [" : "", option ? option->section : "",
                    option ? "]" : "");
    else if (!option)
        fail_unknown(reader, section, name);
    else if (strcmp(option->section, section) != 0)
        reader_fail(reader, "option \"%s\" belongs in [%s], not [%s]", name, option->section,
                    section);
    else if (conf_option_set(option, reader->conf, value, why, sizeof(why)) < 0)
        reader_fail(reader, "%s = %s: %s", name, value, why);
    return 1;
}

/* The whole file, owned by the caller. */
static errint_t read_file(const char *path, char **text, size_t *length)
{
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    cleanup_free char *buffer = NULL;
    struct stat st;
    size_t at = 0;

    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (S_ISDIR(st.st_mode))
        return -EISDIR;
    buffer = malloc(FILE_MAX_BYTES + 1);
    if (!buffer)
        return -ENOMEM;
    for (;;) {
        ssize_t got = read(fd, buffer + at, FILE_MAX_BYTES + 1 - at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        at += (size_t)got;
        if (at > FILE_MAX_BYTES)
            return -EFBIG;
    }
    *text = steal_pointer(&buffer);
    *length = at;
    return 0;
}

errint_t conf_read_ini(struct conf *conf, const char *path, bool required, bool *found,
                       char *message, size_t message_bytes)
{
    cleanup_free char *text = NULL;
    size_t length = 0;
    int result;
    errint_t error = read_file(path, &text, &length);
    struct reader reader = {
        .conf = conf, .path = path, .message = message, .message_bytes = message_bytes};

    *found = false;
    if (error == -ENOENT && !required)
        return 0;
    if (error < 0) {
        conf_message(message, message_bytes, "%s: %s", path, strerror(-error));
        return -EINVAL;
    }
    *found = true;
    reader.text = text;
    reader.end = text + length;
    result = ini_parse_stream(read_line, &reader, handle, &reader);
    /* inih goes on after a line that it cannot read; the earliest line is the one to name. */
    if (result > 0 && (!reader.failed || (unsigned)result < reader.line)) {
        reader.line = (unsigned)result;
        reader_fail(&reader, "%s", "neither [section] nor name = value");
    } else if (result < 0) {
        reader_fail(&reader, "%s", "out of memory");
    }
    return reader.failed ? -EINVAL : 0;
}
