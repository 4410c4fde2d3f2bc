#include "fs/progress.h"

#include "core/util.h"

#define MARK_NS UINT64_C(1000000000)

/* What may be under way at once, read ahead or asynchronous, comes in any order. */
#define SLACK_BYTES (16 * MIB)

static uint64_t get(_Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

static void set(_Atomic uint64_t *value, uint64_t to)
{
    atomic_store_explicit(value, to, memory_order_relaxed);
}

static void set_mark(struct progress_mark *mark, uint64_t ns, uint64_t bytes)
{
    set(&mark->bytes, bytes);
    set(&mark->ns, ns);
}

/* The rate counts from here on. */
static void start_marks(struct progress *progress, uint64_t ns, uint64_t bytes)
{
    set_mark(&progress->older, ns, bytes);
    set_mark(&progress->newer, ns, bytes);
}

/* Of several threads one moves the marks on. */
static void move_marks(struct progress *progress, uint64_t newer_ns, uint64_t ns, uint64_t bytes)
{
    uint64_t newer_bytes = get(&progress->newer.bytes);

    if (!atomic_compare_exchange_strong_explicit(&progress->newer.ns, &newer_ns, ns,
                                                 memory_order_relaxed, memory_order_relaxed))
        return;
    set(&progress->newer.bytes, bytes);
    set_mark(&progress->older, newer_ns, newer_bytes);
}

void progress_count(struct progress *progress, uint64_t offset, uint64_t length, uint64_t began_ns)
{
    uint64_t last_ns = get(&progress->last_ns), newer_ns = get(&progress->newer.ns);
    uint64_t front = get(&progress->front), end = offset + length, bytes;

    if (offset == 0) {
        front = 0;
        set(&progress->front, 0);
        set(&progress->bytes, 0);
        atomic_store_explicit(&progress->scattered, false, memory_order_relaxed);
        start_marks(progress, began_ns, 0);
        newer_ns = began_ns;
    } else if (began_ns > last_ns + PROGRESS_IDLE_NS) {
        start_marks(progress, began_ns, get(&progress->bytes));
        newer_ns = began_ns;
    }
    if (offset > front + SLACK_BYTES || end + SLACK_BYTES < front)
        atomic_store_explicit(&progress->scattered, true, memory_order_relaxed);
    if (end > front)
        set(&progress->front, end);
    bytes = atomic_fetch_add_explicit(&progress->bytes, length, memory_order_relaxed) + length;
    set(&progress->last_ns, began_ns);
    if (began_ns > newer_ns + MARK_NS)
        move_marks(progress, newer_ns, began_ns, bytes);
}

bool progress_get_report(struct progress *progress, uint64_t now_ns, struct progress_report *report)
{
    uint64_t last_ns = get(&progress->last_ns), front = get(&progress->front);
    uint64_t since_ns = get(&progress->older.ns), before = get(&progress->older.bytes);
    uint64_t bytes = get(&progress->bytes);

    *report = (struct progress_report){.bytes = bytes, .front = front};
    if (last_ns == 0 || now_ns > last_ns + PROGRESS_IDLE_NS)
        return false;
    if (bytes > before && now_ns > since_ns)
        report->bytes_each_second =
            (uint64_t)((double)(bytes - before) * 1e9 / (double)(now_ns - since_ns));
    report->sequential = !atomic_load_explicit(&progress->scattered, memory_order_relaxed) &&
                         bytes <= front + SLACK_BYTES && front <= bytes + SLACK_BYTES;
    return true;
}
