/*
 * The event log: the last events in a ring (shown as .resident/log) and, at the same time, on
 * stderr or syslog. Messages name the thing, the numbers and the way out. Any thread may call any
 * function here at any time; one mutex inside (a leaf: nothing is called with it held).
 */
#ifndef RESIDENTFS_CORE_LOG_H
#define RESIDENTFS_CORE_LOG_H

#include <stddef.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* JOURNAL: stderr, each line with its priority in front as journald takes it ("<3>..."). */
enum log_sink { LOG_SINK_STDERR, LOG_SINK_SYSLOG, LOG_SINK_JOURNAL };

/*
 * Of one kind of event (one format) no more than this in so much time, so that a storm neither
 * fills a disk nor drives all else out of the ring; then one line says how many were left out. At
 * level DEBUG nothing is.
 */
#define LOG_BURST_EVENTS  20
#define LOG_BURST_SECONDS 5

/* Where events go besides the ring. Starts as stderr. */
void log_set_sink(enum log_sink sink);

/* Events less urgent than LEVEL are dropped. Starts as INFO. */
void log_set_level(enum log_level level);

/* Records one event of one line: newlines and control characters are shown as '?'. */
void log_event(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* To be called now and then: says how many were left out when no more come. */
void log_tick(void);

#define log_error(...)   log_event(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_event(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...)    log_event(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)   log_event(LOG_LEVEL_DEBUG, __VA_ARGS__)

/*
 * The ring as text, oldest first, a line an event: "2026-11-30T12:00:00.123Z error: ...".
 * Returns memory that the caller frees, or NULL when memory is short; *length excludes the NUL.
 */
char *log_snapshot(size_t *length);

#endif
