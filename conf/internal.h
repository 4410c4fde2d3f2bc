/* What the files of conf/ share with each other and with nobody else. */
#ifndef RESIDENTFS_CONF_INTERNAL_H
#define RESIDENTFS_CONF_INTERNAL_H

#include "conf/conf.h"

/* One line into MESSAGE: control characters, which may come from the user's text, become '?'. */
void conf_message(char *message, size_t message_bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The option called NAME, or NULL. */
const struct conf_option *conf_find_option(const char *name);

/* Most names that conf_option_names gives. */
#define CONF_MAX_NAMES 128

/* Names of the options of SECTION (NULL: of all). Returns how many. */
size_t conf_option_names(const char *section, const char *names[CONF_MAX_NAMES]);

/* The sections, each once. Returns how many. */
size_t conf_section_names(const char *names[CONF_MAX_NAMES]);

/* Reads PATH into CONF. REQUIRED: a file that is not there is an error. *FOUND: it was there. */
errint_t conf_read_ini(struct conf *conf, const char *path, bool required, bool *found,
                       char *message, size_t message_bytes);

/* Reads the text of one -o. */
errint_t conf_read_mount_options(struct conf *conf, const char *text, char *message,
                                 size_t message_bytes);

#endif
