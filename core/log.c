#include "core/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>
#include <time.h>

#include "core/util.h"

#define LOG_RING_EVENTS 512
#define LOG_EVENT_BYTES 480

struct log_record {
    struct timespec when;
    enum log_level level;
    char text[LOG_EVENT_BYTES];
};

/* The mutex covers all of it. */
static struct {
    pthread_mutex_t mutex;
    enum log_sink sink;
    enum log_level level;
    size_t next, count;
    struct log_record ring[LOG_RING_EVENTS];
} log_state = {.mutex = PTHREAD_MUTEX_INITIALIZER, .level = LOG_LEVEL_INFO};

static const char *const level_names[] = {"error", "warning", "info", "debug"};
static const int level_priorities[] = {LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG};

void log_set_sink(enum log_sink sink)
{
    pthread_mutex_lock(&log_state.mutex);
    log_state.sink = sink;
    if (sink == LOG_SINK_SYSLOG)
        openlog("residentfs", LOG_PID, LOG_DAEMON);
    pthread_mutex_unlock(&log_state.mutex);
}

void log_set_level(enum log_level level)
{
    pthread_mutex_lock(&log_state.mutex);
    log_state.level = level;
    pthread_mutex_unlock(&log_state.mutex);
}

void log_event(enum log_level level, const char *format, ...)
{
    struct log_record record = {.level = level};
    va_list args;

    clock_gettime(CLOCK_REALTIME, &record.when);
    va_start(args, format);
    int length = vsnprintf(record.text, sizeof(record.text), format, args);
    va_end(args);
    if (length >= (int)sizeof(record.text))
        memcpy(record.text + sizeof(record.text) - 4, "...", 4);
    for (char *c = record.text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';

    pthread_mutex_lock(&log_state.mutex);
    if (level <= log_state.level) {
        log_state.ring[log_state.next] = record;
        log_state.next = (log_state.next + 1) % LOG_RING_EVENTS;
        log_state.count = MIN(log_state.count + 1, (size_t)LOG_RING_EVENTS);
        if (log_state.sink == LOG_SINK_SYSLOG)
            syslog(level_priorities[level], "%s", record.text);
        else
            fprintf(stderr, "residentfs: %s: %s\n", level_names[level], record.text);
    }
    pthread_mutex_unlock(&log_state.mutex);
}

char *log_snapshot(size_t *length)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, length);

    if (!out)
        return NULL;
    pthread_mutex_lock(&log_state.mutex);
    size_t first = (log_state.next + LOG_RING_EVENTS - log_state.count) % LOG_RING_EVENTS;
    for (size_t i = 0; i < log_state.count; i++) {
        const struct log_record *r = &log_state.ring[(first + i) % LOG_RING_EVENTS];
        struct tm tm;
        char stamp[32];
        gmtime_r(&r->when.tv_sec, &tm);
        strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &tm);
        fprintf(out, "%s.%03ldZ %s: %s\n", stamp, r->when.tv_nsec / 1000000, level_names[r->level],
                r->text);
    }
    pthread_mutex_unlock(&log_state.mutex);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
