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
#define LOG_SOURCES     64
#define LOG_SHOWN_BYTES 80

struct log_record {
    struct timespec when;
    enum log_level level;
    char text[LOG_EVENT_BYTES];
};

/* Events of one format, as far as they are counted. */
struct log_source {
    const char *format; /* NULL: none */
    enum log_level level;
    uint64_t since_ns;
    unsigned int count, left_out;
    char last[LOG_SHOWN_BYTES]; /* text of the last one that was left out */
};

/* The mutex covers all of it. */
static struct {
    pthread_mutex_t mutex;
    enum log_sink sink;
    enum log_level level;
    size_t next, count;
    struct log_record ring[LOG_RING_EVENTS];
    struct log_source sources[LOG_SOURCES]; /* by format; who collides takes the place over */
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

/* The mutex is held. */
static void record_event(const struct log_record *record)
{
    log_state.ring[log_state.next] = *record;
    log_state.next = (log_state.next + 1) % LOG_RING_EVENTS;
    log_state.count = MIN(log_state.count + 1, (size_t)LOG_RING_EVENTS);
    if (log_state.sink == LOG_SINK_SYSLOG)
        syslog(level_priorities[record->level], "%s", record->text);
    else if (log_state.sink == LOG_SINK_JOURNAL)
        fprintf(stderr, "<%d>%s\n", level_priorities[record->level], record->text);
    else
        fprintf(stderr, "residentfs: %s: %s\n", level_names[record->level], record->text);
}

/* The mutex is held. The count begins anew. */
static void end_burst(struct log_source *source)
{
    struct log_record record = {.level = source->level};

    if (source->left_out > 0) {
        clock_gettime(CLOCK_REALTIME, &record.when);
        snprintf(record.text, sizeof(record.text),
                 "%u more like this within %d s were left out, the last: %s", source->left_out,
                 LOG_BURST_SECONDS, source->last);
        record_event(&record);
    }
    *source = (struct log_source){0};
}

static bool is_over(const struct log_source *source, uint64_t now_ns)
{
    return now_ns - source->since_ns >= LOG_BURST_SECONDS * UINT64_C(1000000000);
}

/* The mutex is held. True: one too many. */
static bool is_left_out(const char *format, const struct log_record *record)
{
    uint64_t hash = ((uintptr_t)format * UINT64_C(0x9e3779b97f4a7c15)) >> 32;
    struct log_source *source = &log_state.sources[hash % LOG_SOURCES];
    uint64_t now_ns = monotonic_ns();

    if (source->format != format || is_over(source, now_ns)) {
        end_burst(source);
        source->format = format;
        source->since_ns = now_ns;
        source->level = record->level;
    }
    if (++source->count <= LOG_BURST_EVENTS || log_state.level == LOG_LEVEL_DEBUG)
        return false;
    source->left_out++;
    snprintf(source->last, sizeof(source->last), "%.*s", LOG_SHOWN_BYTES - 1, record->text);
    return true;
}

void log_tick(void)
{
    uint64_t now_ns = monotonic_ns();

    pthread_mutex_lock(&log_state.mutex);
    for (size_t i = 0; i < LOG_SOURCES; i++)
        if (log_state.sources[i].left_out > 0 && is_over(&log_state.sources[i], now_ns))
            end_burst(&log_state.sources[i]);
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
    if (level <= log_state.level && !is_left_out(format, &record))
        record_event(&record);
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
