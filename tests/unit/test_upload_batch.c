/* Fusion of uploads, against a memory that writes are applied to one by one. Timeout: 60 s. */
#include "fixture.h"

#include "core/upload_batch.h"

#define SPAN    4096 /* of an extent in the model */
#define BASE    0x7000000000u
#define STAGING (64 * KIB)

/* Only their addresses matter. */
static char target_names[2];
#define TARGET(i) ((struct upload_target *)(void *)&target_names[i])

struct world {
    struct upload_batch batch;
    unsigned char staging[STAGING];
};

static struct world *world_new(size_t capacity)
{
    struct world *world = calloc(1, sizeof(*world));

    assert_int_equal(upload_batch_init(&world->batch), 0);
    upload_batch_set_staging(&world->batch, world->staging, 0, capacity);
    return world;
}

static void world_free(struct world *world)
{
    upload_batch_finish(&world->batch);
    free(world);
}

static void add(struct world *world, size_t target, uint64_t extent, uint64_t at, const char *text)
{
    assert_true(
        upload_batch_add(&world->batch, TARGET(target), extent, BASE + at, text, strlen(text)));
}

static void expect(const struct world *world, size_t index, uint64_t at, const char *text)
{
    const struct upload_interval *interval = &world->batch.intervals[index];

    assert_true(index < world->batch.count);
    assert_int_equal(interval->address, BASE + at);
    assert_int_equal(interval->length, strlen(text));
    assert_memory_equal(interval->bytes, text, strlen(text));
}

static void a_write_that_touches_the_one_before_extends_it(void **unused)
{
    (void)unused;
    struct world *world = world_new(STAGING);

    add(world, 0, 1, 100, "abc");
    add(world, 0, 1, 103, "def");
    assert_int_equal(world->batch.count, 1);
    expect(world, 0, 100, "abcdef");
    assert_int_equal(world->batch.used, 6);
    world_free(world);
}

static void a_write_that_ends_where_the_one_before_begins_is_put_in_front(void **unused)
{
    (void)unused;
    struct world *world = world_new(STAGING);

    add(world, 0, 1, 103, "def");
    add(world, 0, 1, 100, "abc");
    assert_int_equal(world->batch.count, 1);
    expect(world, 0, 100, "abcdef");
    world_free(world);
}

static void where_writes_overlap_the_later_bytes_win(void **unused)
{
    (void)unused;
    struct world *world = world_new(STAGING);

    add(world, 0, 1, 100, "aaaa");
    add(world, 0, 1, 102, "BBBB");
    expect(world, 0, 100, "aaBBBB");
    add(world, 0, 1, 98, "CCC");
    expect(world, 0, 98, "CCCaBBBB");
    add(world, 0, 1, 100, "dd");
    expect(world, 0, 98, "CCddBBBB");
    assert_int_equal(world->batch.count, 1);
    world_free(world);
}

static void a_write_that_covers_the_one_before_replaces_it(void **unused)
{
    (void)unused;
    struct world *world = world_new(STAGING);

    add(world, 0, 1, 100, "aaaa");
    add(world, 0, 1, 98, "BBBBBBBB");
    assert_int_equal(world->batch.count, 1);
    expect(world, 0, 98, "BBBBBBBB");
    assert_int_equal(world->batch.used, 8);
    add(world, 0, 1, 98, "CCCCCCCC");
    expect(world, 0, 98, "CCCCCCCC");
    assert_int_equal(world->batch.used, 8);
    world_free(world);
}

static void gaps_are_never_bridged(void **unused)
{
    (void)unused;
    struct world *world = world_new(STAGING);

    add(world, 0, 1, 100, "abc");
    add(world, 0, 1, 104, "def");
    add(world, 0, 1, 96, "xyz");
    assert_int_equal(world->batch.count, 3);
    expect(world, 0, 100, "abc");
    expect(world, 1, 104, "def");
    expect(world, 2, 96, "xyz");
    world_free(world);
}

static void the_tail_collapses_backwards_when_a_write_closes_the_gap_in_front(void **unused)
{
    (void)unused;
    struct world *world = world_new(STAGING);

    add(world, 0, 1, 100, "aa");
    add(world, 0, 1, 104, "bb");
    add(world, 0, 1, 108, "cc");
    assert_int_equal(world->batch.count, 3);
    add(world, 0, 1, 106, "dd"); /* with "cc", and that with "bb" */
    assert_int_equal(world->batch.count, 2);
    expect(world, 1, 104, "bbddcc");
    add(world, 0, 1, 101, "eee");
    assert_int_equal(world->batch.count, 1);
    expect(world, 0, 100, "aeeebbddcc");
    assert_int_equal(world->batch.used, 10);
    world_free(world);
}

static void the_tail_collapses_backwards_when_it_grows_up_to_an_earlier_one(void **unused)
{
    (void)unused;
    struct world *world = world_new(STAGING);

    add(world, 0, 1, 110, "later");
    add(world, 0, 1, 100, "abcde");
    assert_int_equal(world->batch.count, 2);
    add(world, 0, 1, 105, "fghij");
    assert_int_equal(world->batch.count, 1);
    expect(world, 0, 100, "abcdefghijlater");
    /* And over it: the later bytes win. */
    add(world, 0, 1, 90, "w");
    add(world, 0, 1, 91, "0123456789A");
    assert_int_equal(world->batch.count, 1);
    expect(world, 0, 90, "w0123456789Acdefghijlater");
    world_free(world);
}

static void order_is_kept_although_a_later_write_touches_an_earlier_one(void **unused)
{
    (void)unused;
    struct world *world = world_new(STAGING);

    add(world, 0, 1, 100, "aaa");
    add(world, 0, 1, 200, "bbb");
    add(world, 0, 1, 102, "ccc"); /* overlaps the first, but not the one before it */
    assert_int_equal(world->batch.count, 3);
    expect(world, 0, 100, "aaa");
    expect(world, 1, 200, "bbb");
    expect(world, 2, 102, "ccc");
    assert_true(upload_batch_overlaps(&world->batch));
    world_free(world);
}

static void writes_of_other_targets_and_extents_are_never_merged(void **unused)
{
    (void)unused;
    struct world *world = world_new(STAGING);

    add(world, 0, 1, 100, "aa");
    add(world, 1, 1, 102, "bb");
    add(world, 1, 2, 104, "cc");
    assert_int_equal(world->batch.count, 3);
    assert_false(upload_batch_overlaps(&world->batch));
    world_free(world);
}

static void overlaps_are_seen_and_touching_is_none(void **unused)
{
    (void)unused;
    struct world *world = world_new(STAGING);

    assert_false(upload_batch_overlaps(&world->batch));
    add(world, 0, 1, 100, "aaaa");
    add(world, 1, 2, 300, "bbbb");
    add(world, 0, 1, 104, "cccc");
    add(world, 1, 2, 296, "dddd");
    assert_int_equal(world->batch.count, 4);
    assert_false(upload_batch_overlaps(&world->batch));
    add(world, 0, 1, 107, "e");
    assert_int_equal(world->batch.count, 5);
    assert_true(upload_batch_overlaps(&world->batch));
    upload_batch_clear(&world->batch);
    assert_false(upload_batch_overlaps(&world->batch));
    world_free(world);
}

static void a_write_without_room_changes_nothing(void **unused)
{
    (void)unused;
    struct world *world = world_new(8);

    add(world, 0, 1, 100, "abcdef");
    assert_int_equal(upload_batch_room(&world->batch), 2);
    assert_false(upload_batch_add(&world->batch, TARGET(0), 1, BASE + 200, "xyz", 3));
    assert_false(upload_batch_add(&world->batch, TARGET(0), 1, BASE + 106, "xyz", 3));
    assert_false(upload_batch_add(&world->batch, TARGET(0), 1, BASE + 97, "xyz", 3));
    assert_int_equal(world->batch.count, 1);
    expect(world, 0, 100, "abcdef");
    /* What fits still goes in; a length of 0 always does. */
    add(world, 0, 1, 104, "wxyz");
    expect(world, 0, 100, "abcdwxyz");
    assert_int_equal(upload_batch_room(&world->batch), 0);
    assert_true(upload_batch_add(&world->batch, TARGET(0), 1, BASE, "", 0));
    add(world, 0, 1, 100, "ABCDEFGH");
    expect(world, 0, 100, "ABCDEFGH");
    world_free(world);
}

static void nothing_is_added_without_staging(void **unused)
{
    (void)unused;
    struct upload_batch batch;

    assert_int_equal(upload_batch_init(&batch), 0);
    assert_int_equal(upload_batch_room(&batch), 0);
    assert_false(upload_batch_add(&batch, TARGET(0), 1, BASE, "a", 1));
    upload_batch_finish(&batch);
}

static void a_batch_holds_so_many_intervals_and_no_more(void **unused)
{
    (void)unused;
    struct world *world = world_new(STAGING);

    for (uint64_t i = 0; i < UPLOAD_BATCH_INTERVALS; i++)
        add(world, 0, 1, i * 2, "x");
    assert_int_equal(world->batch.count, UPLOAD_BATCH_INTERVALS);
    assert_false(upload_batch_add(&world->batch, TARGET(0), 1, BASE + 5000, "y", 1));
    /* One that merges still fits. */
    add(world, 0, 1, UPLOAD_BATCH_INTERVALS * 2 - 1, "z");
    upload_batch_clear(&world->batch);
    assert_int_equal(upload_batch_room(&world->batch), STAGING - UPLOAD_BATCH_INTERVALS - 1);
    world_free(world);
}

static void a_dropped_target_leaves_the_others_as_they_were(void **unused)
{
    (void)unused;
    struct world *world = world_new(STAGING);

    add(world, 0, 1, 100, "aa");
    add(world, 1, 2, 500, "bb");
    add(world, 0, 1, 102, "cc");
    upload_batch_drop(&world->batch, TARGET(1));
    assert_int_equal(world->batch.count, 2);
    expect(world, 0, 100, "aa");
    expect(world, 1, 102, "cc");
    /* What is dropped lies between them in staging: a merge must not take its bytes in. */
    add(world, 0, 1, 98, "ddEEEE");
    add(world, 0, 1, 200, "f");
    upload_batch_drop(&world->batch, TARGET(0));
    assert_int_equal(world->batch.count, 0);
    add(world, 0, 1, 201, "g");
    expect(world, 0, 201, "g");
    world_free(world);
}

static void a_merge_that_moves_too_much_is_left_as_two(void **unused)
{
    (void)unused;
    size_t big = UPLOAD_BATCH_MOVE_BYTES + 10;
    struct upload_batch batch;
    unsigned char *staging = malloc(4 * big), *bytes = malloc(big);

    assert_int_equal(upload_batch_init(&batch), 0);
    upload_batch_set_staging(&batch, staging, 0, 4 * big);
    memset(bytes, 1, big);
    assert_true(upload_batch_add(&batch, TARGET(0), 1, BASE + 100, bytes, big));
    memset(bytes, 2, big);
    assert_true(upload_batch_add(&batch, TARGET(0), 1, BASE, bytes, 100));
    assert_int_equal(batch.count, 2);
    assert_false(upload_batch_overlaps(&batch));
    upload_batch_finish(&batch);
    free(staging);
    free(bytes);
}

/* -- random writes ----------------------------------------------------------------------------- */

struct model {
    unsigned char now[SPAN];     /* every write at once */
    unsigned char applied[SPAN]; /* what the batches copied */
};

static void apply(const struct upload_batch *batch, struct model *model, bool any_order)
{
    for (size_t i = 0; i < batch->count; i++) {
        const struct upload_interval *interval =
            &batch->intervals[any_order ? batch->count - 1 - i : i];
        assert_true(interval->length > 0);
        assert_true(interval->bytes >= batch->base &&
                    interval->bytes + interval->length <= batch->base + batch->used);
        memcpy(model->applied + (interval->address - BASE), interval->bytes, interval->length);
    }
}

static bool really_overlaps(const struct upload_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        for (size_t j = 0; j < i; j++) {
            const struct upload_interval *a = &batch->intervals[i], *b = &batch->intervals[j];
            if (a->address < b->address + b->length && b->address < a->address + a->length)
                return true;
        }
    return false;
}

static void random_writes_end_up_as_if_applied_one_by_one(void **unused)
{
    (void)unused;
    uint64_t state = fixture_seed();
    struct world *world = world_new(STAGING);
    struct model *model = calloc(1, sizeof(*model));
    unsigned int merged = 0, in_any_order = 0, refused = 0;

    for (unsigned int step = 0; step < 200000; step++) {
        unsigned char bytes[64];
        uint64_t range = fixture_random(&state) % 4 == 0 ? SPAN : 96;
        size_t length = 1 + fixture_random(&state) % sizeof(bytes);
        uint64_t at = fixture_random(&state) % (range - MIN(range - 1, length));
        for (size_t i = 0; i < length; i++)
            bytes[i] = (unsigned char)fixture_random(&state);
        size_t count = world->batch.count;
        if (!upload_batch_add(&world->batch, TARGET(0), 1, BASE + at, bytes, length)) {
            refused++;
            assert_true(count == UPLOAD_BATCH_INTERVALS ||
                        upload_batch_room(&world->batch) < length);
            apply(&world->batch, model, false);
            upload_batch_set_staging(&world->batch, world->staging, 0,
                                     1 + fixture_random(&state) % STAGING);
            continue;
        }
        merged += world->batch.count <= count;
        memcpy(model->now + at, bytes, length);
        if (fixture_random(&state) % 8 == 0) {
            bool overlaps = upload_batch_overlaps(&world->batch);
            assert_int_equal(overlaps, really_overlaps(&world->batch));
            in_any_order += !overlaps && world->batch.count > 1;
            apply(&world->batch, model, !overlaps);
            upload_batch_clear(&world->batch);
            if (memcmp(model->now, model->applied, sizeof(model->now)) != 0)
                fail_msg("step %u: the bytes differ", step);
        }
    }
    print_message("%u merged, %u batches in any order, %u refused\n", merged, in_any_order,
                  refused);
    assert_true(merged > 1000 && in_any_order > 1000 && refused > 100);
    free(model);
    world_free(world);
}

/* The writes of a target that is dropped must not be seen, those of the other one must. */
static void random_drops_never_touch_the_bytes_of_the_other_target(void **unused)
{
    (void)unused;
    uint64_t state = fixture_seed();

    for (unsigned int round = 0; round < 20000; round++) {
        struct world *world = world_new(2 * KIB);
        unsigned char now[2][256] = {{0}}, applied[2][256] = {{0}};
        for (unsigned int step = 0; step < 24; step++) {
            size_t target = fixture_random(&state) % 2;
            size_t length = 1 + fixture_random(&state) % 24;
            uint64_t at = fixture_random(&state) % (128 - length);
            unsigned char bytes[24];
            memset(bytes, (int)(step + 1), length);
            if (fixture_random(&state) % 10 == 0) {
                upload_batch_drop(&world->batch, TARGET(1));
                memset(now[1], 0, sizeof(now[1]));
            }
            if (upload_batch_add(&world->batch, TARGET(target), target, BASE + target * 256 + at,
                                 bytes, length))
                memcpy(now[target] + at, bytes, length);
        }
        for (size_t i = 0; i < world->batch.count; i++) {
            const struct upload_interval *interval = &world->batch.intervals[i];
            size_t target = interval->extent_id;
            memcpy(applied[target] + (interval->address - BASE - target * 256), interval->bytes,
                   interval->length);
        }
        if (memcmp(now, applied, sizeof(now)) != 0)
            fail_msg("round %u: the bytes differ", round);
        world_free(world);
    }
}

/* What is reserved is copied later, in any order, while others add. */
static void random_reservations_end_up_as_if_copied_at_once(void **unused)
{
    (void)unused;
    uint64_t state = fixture_seed();
    struct world *world = world_new(STAGING);
    struct model *model = calloc(1, sizeof(*model));
    struct {
        unsigned char *to, bytes[64];
        size_t length;
    } late[4];
    size_t late_count = 0;
    unsigned int reserved = 0, beside = 0, merged = 0;

    for (unsigned int step = 0; step < 300000; step++) {
        unsigned char bytes[64], *to = NULL;
        size_t length = 1 + fixture_random(&state) % sizeof(bytes), count = world->batch.count;
        uint64_t at = fixture_random(&state) % (160 - length);
        const struct upload_interval *last = &world->batch.intervals[MAX(count, 1u) - 1];
        if (count > 0 && fixture_random(&state) % 3 == 0)
            at = MIN(last->address - BASE + last->length, SPAN - length);
        for (size_t i = 0; i < length; i++)
            bytes[i] = (unsigned char)fixture_random(&state);
        if (late_count < ARRAY_SIZE(late) && fixture_random(&state) % 3 == 0)
            to = upload_batch_reserve(&world->batch, TARGET(0), 1, BASE + at, length);
        bool added = to || upload_batch_add(&world->batch, TARGET(0), 1, BASE + at, bytes, length);
        if (to) {
            late[late_count].to = to;
            late[late_count].length = length;
            memcpy(late[late_count++].bytes, bytes, length);
            reserved++;
        } else if (added && late_count > 0) {
            beside++;
        } else if (added) {
            merged += world->batch.count <= count;
        }
        if (added)
            memcpy(model->now + at, bytes, length);
        bool close = !added || fixture_random(&state) % 32 == 0;
        assert_int_equal(upload_batch_is_whole(&world->batch), late_count == 0);
        while (late_count > 0 && (close || fixture_random(&state) % 3 == 0)) {
            size_t i = fixture_random(&state) % late_count;
            memcpy(late[i].to, late[i].bytes, late[i].length);
            late[i] = late[--late_count];
            upload_batch_copied(&world->batch);
        }
        if (close) {
            assert_int_equal(upload_batch_overlaps(&world->batch), really_overlaps(&world->batch));
            apply(&world->batch, model, false);
            upload_batch_set_staging(&world->batch, world->staging, 0, STAGING);
            if (memcmp(model->now, model->applied, sizeof(model->now)) != 0)
                fail_msg("step %u: the bytes differ", step);
        }
    }
    print_message("%u reserved, %u added beside them, %u merged\n", reserved, beside, merged);
    assert_true(reserved > 1000 && beside > 1000 && merged > 1000);
    free(model);
    world_free(world);
}

static void a_reservation_extends_the_last_or_stands_alone(void **unused)
{
    (void)unused;
    struct world *world = world_new(20);

    add(world, 0, 1, 100, "abc");
    unsigned char *to = upload_batch_reserve(&world->batch, TARGET(0), 1, BASE + 103, 3);
    assert_ptr_equal(to, world->staging + 3);
    assert_false(upload_batch_is_whole(&world->batch));
    /* It would have to overwrite what may be on its way. */
    add(world, 0, 1, 104, "XY");
    add(world, 0, 1, 106, "Z");
    assert_int_equal(world->batch.count, 2);
    memcpy(to, "def", 3);
    upload_batch_copied(&world->batch);
    assert_true(upload_batch_is_whole(&world->batch));
    expect(world, 0, 100, "abcdef");
    expect(world, 1, 104, "XYZ");
    /* Now it is worth merging, which is not for the caller to copy. */
    assert_null(upload_batch_reserve(&world->batch, TARGET(0), 1, BASE + 104, 3));
    assert_null(upload_batch_reserve(&world->batch, TARGET(0), 1, BASE + 500, 12));
    assert_null(upload_batch_reserve(&world->batch, TARGET(0), 1, BASE + 500, 0));
    assert_int_equal(world->batch.used, 9);
    assert_true(upload_batch_is_whole(&world->batch));
    assert_non_null(upload_batch_reserve(&world->batch, TARGET(1), 1, BASE + 107, 11));
    assert_int_equal(world->batch.count, 3);
    upload_batch_copied(&world->batch);
    world_free(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_write_that_touches_the_one_before_extends_it),
        cmocka_unit_test(a_write_that_ends_where_the_one_before_begins_is_put_in_front),
        cmocka_unit_test(where_writes_overlap_the_later_bytes_win),
        cmocka_unit_test(a_write_that_covers_the_one_before_replaces_it),
        cmocka_unit_test(gaps_are_never_bridged),
        cmocka_unit_test(the_tail_collapses_backwards_when_a_write_closes_the_gap_in_front),
        cmocka_unit_test(the_tail_collapses_backwards_when_it_grows_up_to_an_earlier_one),
        cmocka_unit_test(order_is_kept_although_a_later_write_touches_an_earlier_one),
        cmocka_unit_test(writes_of_other_targets_and_extents_are_never_merged),
        cmocka_unit_test(overlaps_are_seen_and_touching_is_none),
        cmocka_unit_test(a_write_without_room_changes_nothing),
        cmocka_unit_test(nothing_is_added_without_staging),
        cmocka_unit_test(a_batch_holds_so_many_intervals_and_no_more),
        cmocka_unit_test(a_dropped_target_leaves_the_others_as_they_were),
        cmocka_unit_test(a_merge_that_moves_too_much_is_left_as_two),
        cmocka_unit_test(random_writes_end_up_as_if_applied_one_by_one),
        cmocka_unit_test(a_reservation_extends_the_last_or_stands_alone),
        cmocka_unit_test(random_reservations_end_up_as_if_copied_at_once),
        cmocka_unit_test(random_drops_never_touch_the_bytes_of_the_other_target),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
