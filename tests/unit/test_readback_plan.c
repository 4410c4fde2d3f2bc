/* Fusion of readbacks, against a model memory; plans that do not add up. Timeout: 60 s. */
#include "fixture.h"

#include <errno.h>

#include "core/readback_plan.h"

#define BASE 0x100000u
#define SPAN 512

static void plan_of(struct readback_plan *plan, const struct readback_range *ranges, size_t count)
{
    assert_int_equal(readback_plan_init(plan, ranges, count), 0);
    assert_int_equal(plan->view_count, count);
    assert_int_equal(readback_plan_validate(plan, ranges, count), 0);
}

static void requests_that_touch_or_overlap_share_a_copy(void **unused)
{
    (void)unused;
    const struct readback_range ranges[] = {
        {1, BASE, 10}, {1, BASE + 10, 5}, {1, BASE + 12, 10}, {1, BASE + 30, 4}, {2, BASE + 34, 4}};
    struct readback_plan plan;

    plan_of(&plan, ranges, ARRAY_SIZE(ranges));
    assert_int_equal(plan.copy_count, 3);
    assert_int_equal(plan.copies[0].address, BASE);
    assert_int_equal(plan.copies[0].length, 22);
    assert_int_equal(plan.copies[1].address, BASE + 30);
    assert_int_equal(plan.copies[1].host_offset, 22);
    assert_int_equal(plan.copies[2].extent_id, 2);
    assert_int_equal(plan.host_bytes, 30);
    assert_int_equal(plan.views[2].copy, 0);
    assert_int_equal(plan.views[2].offset, 12);
    readback_plan_finish(&plan);
}

static void a_gap_of_one_byte_is_not_bridged(void **unused)
{
    (void)unused;
    const struct readback_range ranges[] = {{1, BASE, 10}, {1, BASE + 11, 5}};
    struct readback_plan plan;

    plan_of(&plan, ranges, ARRAY_SIZE(ranges));
    assert_int_equal(plan.copy_count, 2);
    assert_int_equal(plan.host_bytes, 15);
    readback_plan_finish(&plan);
}

static void requests_out_of_order_are_sorted_and_views_stay_in_their_order(void **unused)
{
    (void)unused;
    const struct readback_range ranges[] = {
        {2, BASE, 4}, {1, BASE + 8, 8}, {1, BASE, 8}, {1, BASE + 8, 8}};
    struct readback_plan plan;

    plan_of(&plan, ranges, ARRAY_SIZE(ranges));
    assert_int_equal(plan.copy_count, 2);
    assert_int_equal(plan.copies[0].extent_id, 1);
    assert_int_equal(plan.copies[0].length, 16);
    assert_int_equal(plan.views[0].copy, 1);
    assert_int_equal(plan.views[1].offset, 8);
    assert_int_equal(plan.views[2].offset, 0);
    assert_int_equal(plan.views[3].offset, 8);
    readback_plan_finish(&plan);
}

static void a_request_within_the_one_before_adds_no_bytes(void **unused)
{
    (void)unused;
    const struct readback_range ranges[] = {{1, BASE, 100}, {1, BASE + 10, 5}, {1, BASE + 99, 1}};
    struct readback_plan plan;

    plan_of(&plan, ranges, ARRAY_SIZE(ranges));
    assert_int_equal(plan.copy_count, 1);
    assert_int_equal(plan.copies[0].length, 100);
    readback_plan_finish(&plan);
}

static void empty_requests_get_empty_views_and_never_a_copy(void **unused)
{
    (void)unused;
    const struct readback_range ranges[] = {
        {9, UINT64_MAX, 0}, {1, BASE, 4}, {1, BASE + 4, 0}, {1, BASE + 4, 4}};
    struct readback_plan plan;

    plan_of(&plan, ranges, ARRAY_SIZE(ranges));
    assert_int_equal(plan.copy_count, 1);
    assert_int_equal(plan.views[0].length, 0);
    assert_int_equal(plan.views[2].length, 0);
    readback_plan_finish(&plan);

    plan_of(&plan, ranges, 1);
    assert_int_equal(plan.copy_count, 0);
    assert_int_equal(plan.host_bytes, 0);
    readback_plan_finish(&plan);

    plan_of(&plan, NULL, 0);
    assert_int_equal(plan.copy_count, 0);
    readback_plan_finish(&plan);
}

static void ranges_that_wrap_around_are_refused(void **unused)
{
    (void)unused;
    const struct readback_range wraps[] = {{1, BASE, 4}, {1, UINT64_MAX - 3, 5}};
    const struct readback_range too_many[] = {{1, 16, SIZE_MAX - 32}, {2, 16, SIZE_MAX - 32}};
    struct readback_plan plan;

    assert_int_equal(readback_plan_init(&plan, wraps, 2), -EOVERFLOW);
    assert_int_equal(readback_plan_init(&plan, too_many, 2), -EOVERFLOW);
}

/* Memory of three extents that are far apart, and what the copies of a plan would bring. */
static void random_requests_show_the_bytes_of_the_model(void **unused)
{
    (void)unused;
    uint64_t state = fixture_seed();
    unsigned char memory[3][SPAN];
    unsigned int shared = 0, unordered = 0;

    for (size_t i = 0; i < sizeof(memory); i++)
        memory[i / SPAN][i % SPAN] = (unsigned char)fixture_random(&state);
    for (unsigned int round = 0; round < 30000; round++) {
        struct readback_range ranges[24];
        size_t count = fixture_random(&state) % ARRAY_SIZE(ranges), nonempty = 0, asked = 0;
        bool covered[3][SPAN] = {{false}}, sequential = fixture_random(&state) % 4 == 0;
        uint64_t at = 0;
        for (size_t i = 0; i < count; i++) {
            uint64_t extent = sequential ? 1 : fixture_random(&state) % 3;
            size_t length = fixture_random(&state) % (fixture_random(&state) % 4 ? 20 : 200);
            if (sequential)
                length = MIN(length, SPAN - 1 - at);
            uint64_t offset = sequential ? at : fixture_random(&state) % (SPAN - length);
            ranges[i] = (struct readback_range){extent, BASE + extent * 100000 + offset, length};
            at = offset + length;
            nonempty += length > 0;
            memset(covered[extent] + offset, true, length);
        }
        struct readback_plan plan;
        plan_of(&plan, ranges, count);
        for (size_t i = 0; i < sizeof(covered); i++)
            asked += covered[i / SPAN][i % SPAN];
        /* Each byte once, and none that nobody asked for. */
        assert_int_equal(plan.host_bytes, asked);
        assert_true(plan.copy_count <= nonempty);
        shared += plan.copy_count < nonempty;
        unordered += !sequential;

        unsigned char *host = malloc(plan.host_bytes + 1);
        for (size_t i = 0; i < plan.copy_count; i++) {
            const struct readback_copy *copy = &plan.copies[i];
            memcpy(host + copy->host_offset,
                   memory[copy->extent_id] + (copy->address - BASE - copy->extent_id * 100000),
                   copy->length);
            if (i > 0 && copy[-1].extent_id == copy->extent_id)
                assert_true(copy[-1].address + copy[-1].length < copy->address);
        }
        for (size_t i = 0; i < count; i++) {
            const struct readback_view *view = &plan.views[i];
            assert_int_equal(view->length, ranges[i].length);
            if (view->length > 0)
                assert_memory_equal(host + plan.copies[view->copy].host_offset + view->offset,
                                    memory[ranges[i].extent_id] +
                                        (ranges[i].address - BASE - ranges[i].extent_id * 100000),
                                    view->length);
        }
        free(host);
        readback_plan_finish(&plan);
    }
    print_message("%u plans shared copies, %u were not in order\n", shared, unordered);
    assert_true(shared > 1000 && unordered > 1000);
}

static void a_plan_that_does_not_add_up_is_refused(void **unused)
{
    (void)unused;
    const struct readback_range ranges[] = {{1, BASE, 10}, {1, BASE + 10, 5}, {2, BASE + 30, 4}};
    struct readback_plan plan;

    plan_of(&plan, ranges, 3);
#define REFUSED(field, value)                                          \
    do {                                                               \
        __typeof__(field) kept = (field);                              \
        (field) = (value);                                             \
        if (readback_plan_validate(&plan, ranges, 3) != -EINVAL)       \
            fail_msg("accepted with " #field " = " #value);            \
        (field) = kept;                                                \
        assert_int_equal(readback_plan_validate(&plan, ranges, 3), 0); \
    } while (0)
    REFUSED(plan.view_count, 2);
    REFUSED(plan.view_count, 4);
    REFUSED(plan.host_bytes, 18);
    REFUSED(plan.host_bytes, 20);
    REFUSED(plan.copy_count, 1);
    REFUSED(plan.copies[0].length, 0);
    REFUSED(plan.copies[0].length, 14);
    REFUSED(plan.copies[0].length, SIZE_MAX);
    REFUSED(plan.copies[0].host_offset, 1);
    REFUSED(plan.copies[1].host_offset, 0);
    REFUSED(plan.copies[1].host_offset, 16);
    REFUSED(plan.copies[0].extent_id, 2);
    REFUSED(plan.copies[0].address, BASE + 1);
    REFUSED(plan.copies[0].address, BASE - 1);
    REFUSED(plan.views[0].copy, 1);
    REFUSED(plan.views[0].copy, 2);
    REFUSED(plan.views[2].copy, SIZE_MAX);
    REFUSED(plan.views[0].length, 9);
    REFUSED(plan.views[1].length, 0);
    REFUSED(plan.views[1].offset, 9);
    REFUSED(plan.views[1].offset, 11);
    REFUSED(plan.views[1].offset, SIZE_MAX);
    /* Lengths that wrap around to the right sum. */
    plan.copies[0].length += SIZE_MAX / 2 + 1;
    plan.copies[1].host_offset += SIZE_MAX / 2 + 1;
    plan.copies[1].length += SIZE_MAX / 2 + 1;
    assert_int_equal(readback_plan_validate(&plan, ranges, 3), -EINVAL);
    readback_plan_finish(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_that_touch_or_overlap_share_a_copy),
        cmocka_unit_test(a_gap_of_one_byte_is_not_bridged),
        cmocka_unit_test(requests_out_of_order_are_sorted_and_views_stay_in_their_order),
        cmocka_unit_test(a_request_within_the_one_before_adds_no_bytes),
        cmocka_unit_test(empty_requests_get_empty_views_and_never_a_copy),
        cmocka_unit_test(ranges_that_wrap_around_are_refused),
        cmocka_unit_test(random_requests_show_the_bytes_of_the_model),
        cmocka_unit_test(a_plan_that_does_not_add_up_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
