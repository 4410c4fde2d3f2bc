/* Copies a man page, with the table of options in the place of the line @OPTIONS@. Runs in the
 * build. */
#include <errno.h>
#include <string.h>

#include "conf/conf.h"

/* Text as mdoc takes it: no control line, no escape. */
static void print_text(const char *text)
{
    if (*text == '.' || *text == '\'')
        fputs("\\&", stdout);
    for (; *text; text++) {
        if (*text == '\\')
            fputs("\\e", stdout);
        else
            putchar(*text);
    }
}

static void print_option(const struct conf_option *option)
{
    char range[160];

    conf_option_range(option, range, sizeof(range));
    printf(".It Cm %s Ns = Ns ", option->name);
    if (option->metavar)
        printf("Ar %s\n", option->metavar);
    else
        printf("Cm %s\n", range);
    print_text(option->help);
    fputs(".\n", stdout);
    if (option->metavar) {
        fputs("Allowed: ", stdout);
        print_text(range);
        fputs(".\n", stdout);
    }
    fputs("Default: ", stdout);
    if (option->default_text)
        print_text(option->default_text);
    if (option->default_note)
        printf(option->default_text ? " (%s)" : "%s", option->default_note);
    fputs(".\n", stdout);
    if (option->flags & CONF_ADVANCED)
        fputs("Rarely needed.\n", stdout);
    if (option->flags & CONF_TEST)
        fputs("For tests.\n", stdout);
}

static void print_options(void)
{
    size_t count;
    const struct conf_option *options = conf_options(&count);

    for (size_t i = 0; i < count; i++) {
        if (i == 0 || strcmp(options[i].section, options[i - 1].section) != 0)
            printf("%s.Ss Section %s\n.Bl -tag -width Ds\n", i == 0 ? "" : ".El\n",
                   options[i].section);
        print_option(&options[i]);
    }
    fputs(".El\n", stdout);
}

int main(int argc, char **argv)
{
    char line[1024];
    FILE *page = argc == 2 ? fopen(argv[1], "re") : NULL;

    if (!page) {
        fprintf(stderr, "usage: fill_options PAGE: %s\n", strerror(errno));
        return 1;
    }
    while (fgets(line, sizeof(line), page)) {
        if (strcmp(line, "@OPTIONS@\n") == 0)
            print_options();
        else
            fputs(line, stdout);
    }
    return ferror(page) || fclose(page) != 0 || fflush(stdout) != 0;
}
