/*
 * Faults by rule: fault=ENTRY:NTH[+]:RESULT[:sticky][:late][:unproven][:delay=US][:when=PATH]
 *                 [:acted=PATH]
 *
 * The NTH call (from 1; with +, each from there on) of the entry point (no version suffix) returns
 * RESULT, a number or a name, without effect; 0 only delays.
 *
 *   sticky    the device is lost: from now on every entry point that touches it returns RESULT;
 *             queued DMA stops or runs on for a while
 *   late      of a copy or memset: it is accepted, not carried out, and RESULT comes once, from the
 *             next synchronisation or query that covers it
 *   unproven  of a copy, memset, synchronisation or query: synchronising the stream fails from now
 *             on, and what is queued runs 50 ms after it has failed
 *   delay     microseconds before the call goes on
 *   when      the rule counts and acts only while PATH exists
 *   acted     PATH is made when the rule acts
 */
#include "core/driver/emulated/emulated.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

struct rule {
    struct rule *next;
    enum entry entry;
    uint64_t nth;
    bool onwards;
    CUresult result; /* CUDA_SUCCESS: a delay only */
    bool sticky, late, unproven;
    uint64_t delay_us;
    char *when;  /* owned; NULL: always */
    char *acted; /* owned; NULL: nothing is made */
    uint64_t seen;
};

static struct rule *rules;

static void rule_free(struct rule *rule)
{
    free(rule->when);
    free(rule->acted);
    free(rule);
}

static bool set_path(char **path, const char *text)
{
    free(*path);
    *path = *text ? strdup(text) : NULL;
    return *path;
}

static bool parse_entry(const char *text, enum entry *entry)
{
    for (int i = 0; i < ENTRY_COUNT; i++) {
        if (!strcmp(entry_names[i], text)) {
            *entry = (enum entry)i;
            return true;
        }
    }
    fprintf(stderr, "residentfs-emulated: no entry point is called '%s'\n", text);
    return false;
}

static bool parse_nth(const char *text, struct rule *rule)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    rule->nth = strtoull(text, &end, 10);
    rule->onwards = *end == '+';
    return rule->nth && !end[rule->onwards];
}

static bool parse_option(const char *text, struct rule *rule)
{
    char *end;
    if (!strcmp(text, "sticky"))
        return rule->sticky = true;
    if (!strcmp(text, "late"))
        return rule->late = true;
    if (!strcmp(text, "unproven"))
        return rule->unproven = true;
    if (!strncmp(text, "delay=", 6)) {
        rule->delay_us = strtoull(text + 6, &end, 10);
        return end != text + 6 && !*end;
    }
    if (!strncmp(text, "when=", 5))
        return set_path(&rule->when, text + 5);
    if (!strncmp(text, "acted=", 6))
        return set_path(&rule->acted, text + 6);
    return false;
}

static bool parse_rule(char *text, struct rule *rule)
{
    char *rest = text;
    const char *entry = strsep(&rest, ":"), *nth = strsep(&rest, ":"), *result = strsep(&rest, ":");
    if (!entry || !nth || !result || !parse_entry(entry, &rule->entry) || !parse_nth(nth, rule))
        return false;
    if (strcmp(result, "0") && config_parse_result(result, &rule->result))
        return false;
    const char *option;
    while ((option = strsep(&rest, ":"))) {
        if (!parse_option(option, rule))
            return false;
    }
    return true;
}

CUresult fault_add(const char *text)
{
    cleanup_free char *copy = strdup(text);
    struct rule *rule = calloc(1, sizeof(*rule));
    if (!copy || !rule || !parse_rule(copy, rule)) {
        if (rule)
            rule_free(rule);
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct rule **end = &rules;
    while (*end)
        end = &(*end)->next;
    *end = rule;
    return CUDA_SUCCESS;
}

void fault_clear(void)
{
    while (rules) {
        struct rule *rule = rules;
        rules = rule->next;
        rule_free(rule);
    }
    for (unsigned i = 0; i < MAX_DEVICES; i++)
        emulated.devices[i].lost = CUDA_SUCCESS;
}

static bool rule_applies(struct rule *rule, enum entry entry)
{
    if (rule->entry != entry)
        return false;
    if (rule->when && access(rule->when, F_OK)) {
        rule->seen = 0;
        return false;
    }
    rule->seen++;
    return rule->seen == rule->nth || (rule->onwards && rule->seen > rule->nth);
}

static void tell(const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (file >= 0)
        close(file);
}

CUresult fault_check(enum entry entry, struct verdict *verdict, uint64_t *delay_us)
{
    CUresult result = CUDA_SUCCESS;
    emulated.calls[entry]++;
    for (struct rule *rule = rules; rule; rule = rule->next) {
        if (!rule_applies(rule, entry))
            continue;
        if (rule->acted)
            tell(rule->acted);
        *delay_us += rule->delay_us;
        if (!rule->result)
            continue;
        if (rule->unproven) {
            verdict->unproven = rule->result;
        } else if (rule->late) {
            verdict->late = rule->result;
        } else {
            result = rule->result;
            if (rule->sticky) {
                struct device *device = current_device();
                device_lose(device ? device : &emulated.devices[0], rule->result);
            }
        }
    }
    return result;
}

/* Queued DMA of a lost device stops, or runs on for a while: nobody can know. */
void device_lose(struct device *device, CUresult result)
{
    device->lost = result;
    if (!emulated.initialised)
        return;
    uint64_t later_ns = monotonic_ns() + UNPROVEN_NS;
    for (struct stream *stream = emulated.all_streams; stream; stream = stream->next_all) {
        if (stream->device != device->ordinal)
            continue;
        stream->allowed = stream->submitted;
        for (struct op *op = stream->head; op; op = op->next) {
            if (op->running)
                continue;
            op->not_before_ns = later_ns;
            op->cancelled = op->cancelled || random_below(2);
        }
    }
    pthread_cond_broadcast(&device->work);
    pthread_cond_broadcast(&device->done);
}
