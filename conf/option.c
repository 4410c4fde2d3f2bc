#include "conf/option.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/budget_setting.h"
#include "core/size_text.h"

/* An INI line must hold the name and the value; see ini.c. */
#define STRING_MAX_LENGTH 120

/* Nanoseconds: more digits would not come back from "%.9f" as the same double. */
#define SECONDS_MAX_DECIMALS 9

#define NAME_MAX_LENGTH      32

static void *field_of(const struct conf_option *option, void *base)
{
    return (char *)base + option->offset;
}

static const void *const_field_of(const struct conf_option *option, const void *base)
{
    return (const char *)base + option->offset;
}

static const char *const bool_choices[] = {"off", "on", NULL};

static const char *const *choices_of(const struct conf_option *option)
{
    return option->type == CONF_BOOL ? bool_choices : option->choices;
}

static size_t count_choices(const char *const *choices)
{
    size_t count = 0;

    while (choices[count])
        count++;
    return count;
}

/* Index of WORD in CHOICES, or -1. */
static int find_choice(const char *const *choices, const char *word)
{
    for (int i = 0; choices[i]; i++) {
        if (strcmp(choices[i], word) == 0)
            return i;
    }
    return -1;
}

bool conf_option_is_switch(const struct conf_option *option)
{
    if (option->type == CONF_BOOL)
        return true;
    return option->type == CONF_ENUM && find_choice(option->choices, "on") >= 0 &&
           find_choice(option->choices, "off") >= 0;
}

/* Digits of BASE only. -EINVAL: something else. -ERANGE: too large for 64 bits. */
static errint_t parse_digits(const char *text, unsigned base, uint64_t *value)
{
    uint64_t result = 0;
    bool overflow = false;

    if (*text == '\0')
        return -EINVAL;
    for (; *text; text++) {
        unsigned digit = (unsigned)(*text - '0');

        if (*text < '0' || digit >= base)
            return -EINVAL;
        overflow |= __builtin_mul_overflow(result, base, &result);
        overflow |= __builtin_add_overflow(result, digit, &result);
    }
    if (overflow)
        return -ERANGE;
    *value = result;
    return 0;
}

/* "3600", "0.25": strtod alone would also take "nan", "inf", "0x1p3" and blanks. */
static errint_t parse_seconds(const char *text, double *value)
{
    size_t whole = strspn(text, "0123456789");
    size_t decimals = 0;

    if (whole == 0 || whole > 15)
        return -EINVAL;
    if (text[whole] == '.') {
        decimals = strspn(text + whole + 1, "0123456789");
        if (decimals == 0 || decimals > SECONDS_MAX_DECIMALS)
            return -EINVAL;
        decimals++;
    }
    if (text[whole + decimals] != '\0')
        return -EINVAL;
    *value = strtod(text, NULL);
    return 0;
}

char *conf_option_range(const struct conf_option *option, char *out, size_t out_bytes)
{
    char low[SIZE_TEXT_BYTES], high[SIZE_TEXT_BYTES], step[SIZE_TEXT_BYTES];

    switch (option->type) {
    case CONF_BOOL:
    case CONF_ENUM: {
        const char *const *choices = choices_of(option);
        size_t at = 0;

        out[0] = '\0';
        for (size_t i = 0; choices[i] && at < out_bytes; i++)
            at += (size_t)snprintf(out + at, out_bytes - at, "%s%s", i ? "|" : "", choices[i]);
        break;
    }
    case CONF_INTEGER:
    case CONF_SECONDS:
        snprintf(out, out_bytes, "%" PRIu64 "..%" PRIu64, option->min, option->max);
        break;
    case CONF_OCTAL:
        snprintf(out, out_bytes, "%04" PRIo64 "..%04" PRIo64, option->min, option->max);
        break;
    case CONF_SIZE:
        snprintf(out, out_bytes, "%s..%s", size_text_format(option->min, low),
                 size_text_format(option->max, high));
        if (option->multiple > 1) {
            size_t at = strlen(out);

            snprintf(out + at, out_bytes - at, ", a multiple of %s",
                     size_text_format(option->multiple, step));
        }
        break;
    case CONF_BUDGET:
        snprintf(out, out_bytes, "%s", BUDGET_SETTING_FORMS);
        break;
    case CONF_STRING:
        snprintf(out, out_bytes, "up to %d characters", STRING_MAX_LENGTH);
        break;
    }
    return out;
}

static errint_t set_choice(const struct conf_option *option, void *base, const char *text,
                           char *message, size_t message_bytes)
{
    const char *const *choices = choices_of(option);
    int index = find_choice(choices, text);

    if (index < 0) {
        char range[160];
        const char *near = conf_nearest(text, choices, count_choices(choices));

        snprintf(message, message_bytes, "not one of %s%s%s%s",
                 conf_option_range(option, range, sizeof(range)), near ? "; did you mean \"" : "",
                 near ? near : "", near ? "\"?" : "");
        return -EINVAL;
    }
    if (option->type == CONF_BOOL)
        *(bool *)field_of(option, base) = index == 1;
    else
        *(int *)field_of(option, base) = index;
    return 0;
}

static bool is_plain_text(const char *text)
{
    size_t length = strlen(text);

    if (length > STRING_MAX_LENGTH)
        return false;
    if (length > 0 && (text[0] == ' ' || text[length - 1] == ' '))
        return false;
    for (size_t i = 0; i < length; i++) {
        /* ';' starts a comment in an INI file. */
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f || text[i] == ';')
            return false;
    }
    return true;
}

static errint_t set_string(const struct conf_option *option, void *base, const char *text,
                           char *message, size_t message_bytes)
{
    char **field = field_of(option, base);
    char *copy = NULL;

    if (!is_plain_text(text)) {
        snprintf(message, message_bytes,
                 "not plain text of at most %d characters (no control characters, no ';', no blank "
                 "at either end)",
                 STRING_MAX_LENGTH);
        return -EINVAL;
    }
    if (*text) {
        copy = strdup(text);
        if (!copy) {
            snprintf(message, message_bytes, "out of memory");
            return -ENOMEM;
        }
    }
    free(*field);
    *field = copy;
    return 0;
}

static bool in_range(const struct conf_option *option, uint64_t value)
{
    return value >= option->min && value <= option->max &&
           (option->multiple <= 1 || value % option->multiple == 0);
}

/* A number out of range, a negative one included, is told from what is no number at all. */
static errint_t refuse(const struct conf_option *option, const char *text, bool is_number,
                       const char *what, char *message, size_t message_bytes)
{
    char range[160];

    if (text[0] == '-' && text[1] >= '0' && text[1] <= '9')
        is_number = true;
    conf_option_range(option, range, sizeof(range));
    if (is_number)
        snprintf(message, message_bytes, "not in %s", range);
    else
        snprintf(message, message_bytes, "not %s; allowed: %s", what, range);
    return -EINVAL;
}

errint_t conf_option_set(const struct conf_option *option, void *base, const char *text,
                         char *message, size_t message_bytes)
{
    void *field = field_of(option, base);
    uint64_t number = 0;
    double seconds = 0;
    errint_t error;

    switch (option->type) {
    case CONF_BOOL:
    case CONF_ENUM:
        return set_choice(option, base, text, message, message_bytes);
    case CONF_STRING:
        return set_string(option, base, text, message, message_bytes);
    case CONF_INTEGER:
    case CONF_OCTAL:
        error = parse_digits(text, option->type == CONF_OCTAL ? 8 : 10, &number);
        if (error < 0 || !in_range(option, number))
            return refuse(option, text, error != -EINVAL,
                          option->type == CONF_OCTAL ? "an octal mode" : "a whole number", message,
                          message_bytes);
        *(uint32_t *)field = (uint32_t)number;
        return 0;
    case CONF_SIZE:
        error = size_text_parse(text, strlen(text), &number);
        if (error < 0 || !in_range(option, number))
            return refuse(option, text, error != -EINVAL,
                          "a size (bytes, or with K, M, G, T, KiB, MiB, GiB, TiB)", message,
                          message_bytes);
        *(uint64_t *)field = number;
        return 0;
    case CONF_SECONDS:
        error = parse_seconds(text, &seconds);
        if (error < 0 || seconds < (double)option->min || seconds > (double)option->max)
            return refuse(option, text, error != -EINVAL, "seconds, such as 3600 or 0.25", message,
                          message_bytes);
        *(double *)field = seconds;
        return 0;
    case CONF_BUDGET:
        /* The parser takes a newline at the end, for .resident/budget; here there is none to take.
         */
        if (strchr(text, '\n') || budget_setting_parse(text, strlen(text), field) < 0) {
            snprintf(message, message_bytes, "not %s", BUDGET_SETTING_FORMS);
            return -EINVAL;
        }
        return 0;
    }
    return -EINVAL;
}

static char *format_seconds(double seconds)
{
    char text[64];
    size_t length = (size_t)snprintf(text, sizeof(text), "%.*f", SECONDS_MAX_DECIMALS, seconds);

    while (text[length - 1] == '0')
        text[--length] = '\0';
    if (text[length - 1] == '.')
        text[--length] = '\0';
    return strdup(text);
}

char *conf_option_get(const struct conf_option *option, const void *base)
{
    const void *field = const_field_of(option, base);
    char text[SIZE_TEXT_BYTES];

    switch (option->type) {
    case CONF_BOOL:
        return strdup(bool_choices[*(const bool *)field]);
    case CONF_ENUM:
        return strdup(option->choices[*(const int *)field]);
    case CONF_INTEGER:
        snprintf(text, sizeof(text), "%" PRIu32, *(const uint32_t *)field);
        return strdup(text);
    case CONF_OCTAL:
        snprintf(text, sizeof(text), "%04" PRIo32, *(const uint32_t *)field);
        return strdup(text);
    case CONF_SIZE:
        return strdup(size_text_format(*(const uint64_t *)field, text));
    case CONF_BUDGET:
        return strdup(budget_setting_format(field, text));
    case CONF_SECONDS:
        return format_seconds(*(const double *)field);
    case CONF_STRING: {
        const char *value = *(char *const *)field;

        return strdup(value ? value : "");
    }
    }
    return NULL;
}

void conf_option_finish(const struct conf_option *option, void *base)
{
    if (option->type == CONF_STRING) {
        char **field = field_of(option, base);

        free(*field);
        *field = NULL;
    }
}

/* Insertions, deletions, substitutions and swaps of neighbours, each once a place. */
static size_t edit_distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    size_t rows[3][NAME_MAX_LENGTH + 1];
    size_t *before = rows[0], *previous = rows[1], *current = rows[2];

    for (size_t j = 0; j <= b_length; j++)
        previous[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t *spare = before;

        current[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t changed = previous[j - 1] + (a[i - 1] != b[j - 1]);

            current[j] = MIN(changed, MIN(previous[j], current[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                current[j] = MIN(current[j], before[j - 2] + 1);
        }
        before = previous;
        previous = current;
        current = spare;
    }
    return previous[b_length];
}

const char *conf_nearest(const char *word, const char *const *candidates, size_t count)
{
    size_t length = strlen(word);
    size_t limit = length <= 3 ? 1 : length <= 6 ? 2 : 3;
    const char *nearest = NULL;

    if (length == 0 || length > NAME_MAX_LENGTH)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t candidate_length = strlen(candidates[i]);
        size_t distance;

        if (candidate_length > NAME_MAX_LENGTH)
            continue;
        distance = edit_distance(word, length, candidates[i], candidate_length);
        /* A distance of the whole word means that nothing of it was kept. */
        if (distance <= limit && distance < MAX(length, candidate_length)) {
            limit = distance - (distance > 0);
            nearest = candidates[i];
            if (distance == 0)
                break;
        }
    }
    return nearest;
}
