#include <string.h>

#include "conf/internal.h"

static bool write_options(FILE *out, const struct conf *conf)
{
    size_t count;
    const struct conf_option *options = conf_options(&count);

    for (size_t i = 0; i < count; i++) {
        cleanup_free char *value = conf_option_get(&options[i], conf);

        if (!value)
            return false;
        if (i == 0 || strcmp(options[i].section, options[i - 1].section) != 0)
            fprintf(out, "%s[%s]\n", i ? "\n" : "", options[i].section);
        fprintf(out, "%s = %s\n", options[i].name, value);
    }
    return true;
}

char *conf_dump_ini(const struct conf *conf, size_t *length)
{
    char *text = NULL;
    size_t text_length = 0;
    FILE *out = open_memstream(&text, &text_length);
    bool complete;

    if (!out)
        return NULL;
    complete = write_options(out, conf);
    if (fclose(out) != 0 || !complete) {
        free(text);
        return NULL;
    }
    if (length)
        *length = text_length;
    return text;
}
