#include "core/readback_plan.h"

#include <errno.h>

struct sorted_range {
    struct readback_range range;
    size_t request;
};

static int compare_ranges(const void *a, const void *b)
{
    const struct sorted_range *x = a, *y = b;

    if (x->range.extent_id != y->range.extent_id)
        return x->range.extent_id > y->range.extent_id ? 1 : -1;
    if (x->range.address != y->range.address)
        return x->range.address > y->range.address ? 1 : -1;
    return (x->request > y->request) - (x->request < y->request);
}

/* Extends the last copy by the range if they touch or overlap; they come in order of address. */
static bool extend_copy(struct readback_copy *copy, const struct readback_range *range)
{
    uint64_t copy_end = copy->address + copy->length;
    uint64_t range_end = range->address + range->length;

    if (range->extent_id != copy->extent_id || range->address < copy->address ||
        range->address > copy_end)
        return false;
    if (range_end > copy_end)
        copy->length = (size_t)(range_end - copy->address);
    return true;
}

errint_t readback_plan_init(struct readback_plan *plan, const struct readback_range *ranges,
                            size_t count)
{
    cleanup_free struct sorted_range *sorted = calloc(count ? count : 1, sizeof(*sorted));
    size_t nonempty = 0;
    bool in_order = true;

    *plan = (struct readback_plan){.view_count = count};
    plan->copies = calloc(count ? count : 1, sizeof(*plan->copies));
    plan->views = calloc(count ? count : 1, sizeof(*plan->views));
    if (!sorted || !plan->copies || !plan->views) {
        readback_plan_finish(plan);
        return -ENOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t end;
        if (ranges[i].length == 0)
            continue;
        if (__builtin_add_overflow(ranges[i].address, ranges[i].length, &end)) {
            readback_plan_finish(plan);
            return -EOVERFLOW;
        }
        sorted[nonempty] = (struct sorted_range){.range = ranges[i], .request = i};
        in_order = in_order &&
                   (nonempty == 0 || compare_ranges(&sorted[nonempty - 1], &sorted[nonempty]) < 0);
        nonempty++;
    }
    if (!in_order)
        qsort(sorted, nonempty, sizeof(*sorted), compare_ranges);

    for (size_t i = 0; i < nonempty; i++) {
        const struct readback_range *range = &sorted[i].range;
        struct readback_copy *copy = plan->copies + plan->copy_count;
        if (plan->copy_count > 0 && extend_copy(copy - 1, range)) {
            copy--;
        } else {
            *copy = (struct readback_copy){
                .extent_id = range->extent_id, .address = range->address, .length = range->length};
            plan->copy_count++;
        }
        plan->views[sorted[i].request] =
            (struct readback_view){.copy = (size_t)(copy - plan->copies),
                                   .offset = (size_t)(range->address - copy->address),
                                   .length = range->length};
    }
    for (size_t i = 0; i < plan->copy_count; i++) {
        plan->copies[i].host_offset = plan->host_bytes;
        if (__builtin_add_overflow(plan->host_bytes, plan->copies[i].length, &plan->host_bytes)) {
            readback_plan_finish(plan);
            return -EOVERFLOW;
        }
    }
    return 0;
}

void readback_plan_finish(struct readback_plan *plan)
{
    free(plan->copies);
    free(plan->views);
    *plan = (struct readback_plan){0};
}

errint_t readback_plan_validate(const struct readback_plan *plan,
                                const struct readback_range *ranges, size_t count)
{
    size_t host_bytes = 0;

    if (plan->view_count != count)
        return -EINVAL;
    for (size_t i = 0; i < plan->copy_count; i++) {
        if (plan->copies[i].length == 0 || plan->copies[i].host_offset != host_bytes)
            return -EINVAL;
        if (__builtin_add_overflow(host_bytes, plan->copies[i].length, &host_bytes))
            return -EINVAL;
    }
    if (host_bytes != plan->host_bytes)
        return -EINVAL;
    for (size_t i = 0; i < count; i++) {
        const struct readback_view *view = &plan->views[i];
        if (view->length != ranges[i].length)
            return -EINVAL;
        if (view->length == 0)
            continue;
        if (view->copy >= plan->copy_count)
            return -EINVAL;
        const struct readback_copy *copy = &plan->copies[view->copy];
        if (view->offset > copy->length || view->length > copy->length - view->offset ||
            copy->extent_id != ranges[i].extent_id ||
            copy->address + view->offset != ranges[i].address)
            return -EINVAL;
    }
    return 0;
}
