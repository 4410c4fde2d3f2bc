#include <string.h>

#include "conf/internal.h"

/* Of names and values in the list of options. */
#define LEFT_COLUMNS 28

static const char usage[] =
    "Usage: residentfs DEVICE MOUNTPOINT [-o OPT[,OPT...]] [-f] [-d] [--config FILE]\n"
    "       residentfs --list-devices | --check-config | --help | --version\n"
    "\n"
    "Shows GPU memory as files: each file under MOUNTPOINT is one buffer in VRAM.\n"
    "\n"
    "DEVICE:\n"
    "  cuda:0               a GPU by its CUDA index\n"
    "  cuda:GPU-<uuid>      a GPU by its UUID (nvidia-smi -L)\n"
    "  cuda:<pci bus id>    a GPU by its place, such as cuda:0000:65:00.0\n"
    "  cuda:all             every GPU (not yet: one device a mount)\n"
    "  emulated             no GPU: host memory that behaves like one; for trying and testing\n"
    "  emulated:<count>     several of those (not yet, but for --list-devices and a count of 1)\n"
    "\n"
    "Arguments:\n"
    "  -o OPT[,OPT...]      options, see below; also those of mount(8), such as ro and noexec\n"
    "  -f                   stay in the foreground\n"
    "  -d                   foreground, and log everything\n"
    "  --config FILE        read FILE instead of " CONF_DEFAULT_PATH "\n"
    "  --check-config       read the configuration, say what is wrong with it, mount nothing\n"
    "  --list-devices       show which devices there are\n"
    "  --help, --version\n"
    "\n"
    "Options, by section of the INI file. In -o, a switch alone means on and no_SWITCH means off.\n"
    "-o wins over the INI file.\n";

static const char exit_codes[] =
    "\n"
    "Exit codes:\n"
    "  0  mounted and usable (with -f: unmounted)\n"
    "  1  could not mount; one line on stderr says why and what to do\n"
    "  2  wrong command line or configuration; one line on stderr says where\n"
    "  69 with -f and on_device_lost=exit: the device was lost\n"
    "\n"
    "Unmount: fusermount3 -u MOUNTPOINT, or umount MOUNTPOINT. The buffers are freed.\n";

static void print_option(FILE *out, const struct conf_option *option)
{
    char range[160], left[256];
    const char *default_text = option->default_text ? option->default_text : option->default_note;

    conf_option_range(option, range, sizeof(range));
    snprintf(left, sizeof(left), "%s=%s", option->name, option->metavar ? option->metavar : range);
    /* What is too long for the left column has a line of its own. */
    if (strlen(left) > LEFT_COLUMNS) {
        fprintf(out, "  %s\n", left);
        left[0] = '\0';
    }
    fprintf(out, "  %-*s %s\n", LEFT_COLUMNS, left, option->help);
    fprintf(out, "  %-*s ", LEFT_COLUMNS, "");
    if (option->metavar)
        fprintf(out, "%s; ", range);
    fprintf(out, "default %s", default_text);
    if (option->default_text && option->default_note)
        fprintf(out, " (%s)", option->default_note);
    if (option->flags & (CONF_ADVANCED | CONF_TEST))
        fprintf(out, "; %s", option->flags & CONF_TEST ? "for tests" : "advanced");
    fputc('\n', out);
}

void conf_print_help(FILE *out)
{
    size_t count;
    const struct conf_option *options = conf_options(&count);

    fputs(usage, out);
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || strcmp(options[i].section, options[i - 1].section) != 0)
            fprintf(out, "\n[%s]\n", options[i].section);
        print_option(out, &options[i]);
    }
    fputs(exit_codes, out);
}
