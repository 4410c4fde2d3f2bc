/* Which ranges of a buffer have memory, and how large its chunks are. Timeout: 60 s. */
#include "fixture.h"

#include <errno.h>

#include "core/buffer_internal.h"

#define UNIT CHUNK_UNIT_BYTES

static void insert(struct extent_map *map, uint64_t offset, uint64_t length)
{
    struct extent extent = {.id = offset / UNIT + 1, .offset = offset, .length = length};

    assert_int_equal(extent_map_reserve(map), 0);
    extent_map_insert(map, extent_map_search(map, offset), &extent);
}

#define UNITS 64

static void random_maps_are_searched_as_a_model_says(void **unused)
{
    (void)unused;
    uint64_t state = fixture_seed();

    for (unsigned int round = 0; round < 300; round++) {
        struct extent_map map = {0};
        bool taken[UNITS] = {false};
        for (unsigned int step = 0; step < 60; step++) {
            uint64_t at = fixture_random(&state) % UNITS;
            uint64_t length = 1 + fixture_random(&state) % 6;
            bool free_there = at + length <= UNITS;
            for (uint64_t i = at; free_there && i < at + length; i++)
                free_there = !taken[i];
            if (free_there) {
                insert(&map, at * UNIT, length * UNIT);
                memset(taken + at, true, length);
            } else if (map.count > 0 && fixture_random(&state) % 2) {
                size_t index = fixture_random(&state) % map.count;
                memset(taken + map.items[index].offset / UNIT, false,
                       map.items[index].length / UNIT);
                extent_map_remove(&map, index);
            }
            uint64_t offset = fixture_random(&state) % (UNITS * UNIT);
            uint64_t span = 1 + fixture_random(&state) % (8 * UNIT);
            size_t found = extent_map_search(&map, offset);
            for (size_t i = 0; i < map.count; i++)
                assert_int_equal(extent_end(&map.items[i]) > offset, i >= found);
            bool covered = true;
            for (uint64_t i = offset / UNIT; i * UNIT < offset + span; i++)
                covered = covered && i < UNITS && taken[i];
            assert_int_equal(extent_map_covers(&map, offset, span), covered);
            assert_true(extent_map_covers(&map, offset, 0));
        }
        extent_map_finish(&map);
    }
}

static void a_chunk_never_reaches_into_the_next_extent(void **unused)
{
    (void)unused;
    struct extent_map map = {0};
    uint64_t run;

    insert(&map, 0, 64 * UNIT);
    insert(&map, 66 * UNIT, UNIT);
    assert_int_equal(extent_map_chunk_bytes(&map, 64 * UNIT, 64 * UNIT + 1, &run), 2 * UNIT);
    assert_int_equal(run, 64 * UNIT);
    assert_int_equal(extent_map_chunk_bytes(&map, 65 * UNIT, 65 * UNIT + 1, &run), UNIT);
    assert_int_equal(run, 0);
    assert_int_equal(extent_map_chunk_bytes(&map, 67 * UNIT, 200 * UNIT, &run), 64 * MIB);
    extent_map_finish(&map);
}

/* A file that grows by small writes: its memory is at most an eighth, and a chunk, above it. */
static void slack_stays_under_an_eighth_while_a_file_grows(void **unused)
{
    (void)unused;
    struct extent_map map = {0};
    uint64_t end = 0, memory = 0, chunks = 0;

    while (end < 8 * GIB) {
        end += 128 * KIB;
        while (memory < end) {
            struct extent extent = {.offset = memory};
            extent.length = extent_map_chunk_bytes(&map, memory, end, &extent.run);
            assert_int_equal(extent.length % UNIT, 0);
            assert_in_range(extent.length, UNIT, 64 * MIB);
            assert_int_equal(extent_map_reserve(&map), 0);
            extent_map_insert(&map, map.count, &extent);
            memory += extent.length;
            chunks++;
        }
        if (memory - end > MAX(end / 8, UNIT))
            fail_msg("%llu bytes of %llu are slack", (unsigned long long)(memory - end),
                     (unsigned long long)memory);
    }
    print_message("%llu chunks\n", (unsigned long long)chunks);
    assert_in_range(chunks, 128, 200);
    extent_map_finish(&map);
}

static uint64_t resident(struct buffer *buffer)
{
    struct buffer_report report;

    buffer_get_report(buffer, &report);
    return report.resident_bytes;
}

static void a_sparse_file_takes_memory_and_addresses_only_where_it_was_written(void **unused)
{
    (void)unused;
    struct device *device = fixture_open("memory=64MiB", NULL);
    struct buffer *buffer = buffer_create(device, 1);
    uint64_t state = fixture_seed();

    assert_int_equal(buffer_truncate(buffer, BUFFER_LENGTH_MAX), 0);
    assert_int_equal(resident(buffer), 0);
    for (unsigned int i = 0; i < 20; i++) {
        uint64_t at = ((uint64_t)(i + 1) << 57) + fixture_random(&state);
        assert_int_equal(buffer_write(buffer, at, &i, sizeof(i), NULL), sizeof(i));
        assert_int_equal(buffer_seek_data(buffer, at - 100 * MIB * (i > 0) - 4 * MIB),
                         align_down(at, UNIT));
        unsigned int back;
        assert_int_equal(buffer_read(buffer, at, &back, sizeof(back)), sizeof(back));
        assert_int_equal(back, i);
    }
    assert_in_range(resident(buffer), 20 * UNIT, 21 * UNIT);
    assert_int_equal(fixture_stats().reservations, resident(buffer) / UNIT);
    buffer_destroy(buffer);
    fixture_close(device);
}

static void slack_is_given_back_by_trim_and_kept_where_it_was_asked_for(void **unused)
{
    (void)unused;
    struct device *device = fixture_open("memory=256MiB", NULL);
    struct buffer *buffer = buffer_create(device, 1);
    unsigned char *bytes = malloc(MIB), back = 1;

    memset(bytes, 7, MIB);
    for (uint64_t at = 0; at < 67 * MIB; at += MIB)
        assert_int_equal(buffer_write(buffer, at, bytes, MIB, NULL), MIB);
    assert_true(resident(buffer) > 68 * MIB);
    buffer_trim(buffer);
    assert_int_equal(resident(buffer), 68 * MIB);
    assert_int_equal(buffer_allocate(buffer, 70 * MIB, 2 * MIB, true), 0);
    buffer_trim(buffer);
    assert_int_equal(resident(buffer), 70 * MIB);
    assert_int_equal(buffer_truncate(buffer, 67 * MIB + 1), 0);
    assert_int_equal(resident(buffer), 70 * MIB);
    assert_int_equal(buffer_truncate(buffer, 67 * MIB), 0);
    assert_int_equal(resident(buffer), 68 * MIB);
    assert_int_equal(buffer_read(buffer, 67 * MIB - 1, &back, 1), 1);
    assert_int_equal(back, 7);
    /* Down to a block, and to nothing. */
    assert_int_equal(buffer_truncate(buffer, 100), 0);
    assert_int_equal(resident(buffer), 4 * KIB);
    assert_int_equal(buffer_read(buffer, 99, &back, 1), 1);
    assert_int_equal(back, 7);
    assert_int_equal(buffer_truncate(buffer, 0), 0);
    assert_int_equal(resident(buffer), 0);
    free(bytes);
    buffer_destroy(buffer);
    fixture_close(device);
}

static void holes_and_data_are_found_where_they_are(void **unused)
{
    (void)unused;
    struct device *device = fixture_open("memory=64MiB", NULL);
    struct buffer *buffer = buffer_create(device, 1);

    assert_int_equal(buffer_seek_data(buffer, 0), -ENXIO);
    assert_int_equal(buffer_seek_hole(buffer, 0), -ENXIO);
    assert_int_equal(buffer_write(buffer, 4 * MIB + 100, "x", 1, NULL), 1);
    assert_int_equal(buffer_write(buffer, 9 * MIB, "y", 1, NULL), 1);
    uint64_t length = 9 * MIB + 1;
    assert_int_equal(buffer_seek_data(buffer, 0), 4 * MIB);
    assert_int_equal(buffer_seek_data(buffer, 4 * MIB + 5), 4 * MIB + 5);
    assert_int_equal(buffer_seek_data(buffer, 7 * MIB), 8 * MIB);
    assert_int_equal(buffer_seek_hole(buffer, 0), 0);
    assert_int_equal(buffer_seek_hole(buffer, 4 * MIB), 6 * MIB);
    /* The end counts as a hole, although there is memory behind it. */
    assert_int_equal(buffer_seek_hole(buffer, 8 * MIB), length);
    assert_int_equal(buffer_seek_data(buffer, length), -ENXIO);
    assert_int_equal(buffer_seek_hole(buffer, length), -ENXIO);
    assert_int_equal(buffer_truncate(buffer, 20 * MIB), 0);
    assert_int_equal(buffer_seek_hole(buffer, 8 * MIB), 10 * MIB);
    assert_int_equal(buffer_seek_data(buffer, 10 * MIB), -ENXIO);
    buffer_destroy(buffer);
    fixture_close(device);
}

static void an_allocation_that_fails_leaves_the_buffer_as_it_was(void **unused)
{
    (void)unused;
    struct device *device = fixture_open("memory=32MiB", NULL);
    struct buffer *buffer = buffer_create(device, 1);
    unsigned char byte = 7, back;

    assert_int_equal(buffer_write(buffer, 5 * MIB, &byte, 1, NULL), 1);
    uint64_t before = resident(buffer);
    assert_int_equal(buffer_allocate(buffer, 0, 60 * MIB, false), -ENOSPC);
    assert_int_equal(buffer_allocate(buffer, 4 * MIB, 60 * MIB, true), -ENOSPC);
    assert_int_equal(resident(buffer), before);
    assert_int_equal(fixture_stats().physical_bytes, before);
    assert_int_equal(buffer_length_bytes(buffer), 5 * MIB + 1);
    assert_int_equal(buffer_read(buffer, 5 * MIB, &back, 1), 1);
    assert_int_equal(back, 7);
    buffer_destroy(buffer);
    fixture_close(device);
}

/* Whatever the bytes were, what is past them reads as zeros once the file is longer again. */
static void a_tail_that_was_cut_off_never_shows_again(void **unused)
{
    (void)unused;
    struct device *device = fixture_open("memory=64MiB", NULL);
    uint64_t state = fixture_seed();
    unsigned char *bytes = malloc(6 * MIB), *back = malloc(6 * MIB);

    memset(bytes, 0x5a, 6 * MIB);
    for (unsigned int i = 0; i < 60; i++) {
        struct buffer *buffer = buffer_create(device, i);
        uint64_t limit = i % 3 == 0 ? 6 * MIB : i % 3 == 1 ? 900 * KIB : 5000;
        uint64_t length = 1 + fixture_random(&state) % limit;
        uint64_t cut = fixture_random(&state) % length;
        assert_int_equal(buffer_write(buffer, 0, bytes, length, NULL), length);
        assert_int_equal(buffer_truncate(buffer, cut), 0);
        if (i % 2)
            assert_int_equal(buffer_allocate(buffer, 0, length, true), 0);
        assert_int_equal(buffer_truncate(buffer, length), 0);
        assert_int_equal(buffer_read(buffer, 0, back, length), length);
        for (uint64_t at = 0; at < length; at++)
            if (back[at] != (at < cut ? 0x5a : 0))
                fail_msg("%llu of %llu, cut at %llu: %02x", (unsigned long long)at,
                         (unsigned long long)length, (unsigned long long)cut, back[at]);
        buffer_destroy(buffer);
    }
    free(bytes);
    free(back);
    fixture_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_maps_are_searched_as_a_model_says),
        cmocka_unit_test(a_chunk_never_reaches_into_the_next_extent),
        cmocka_unit_test(slack_stays_under_an_eighth_while_a_file_grows),
        cmocka_unit_test(a_sparse_file_takes_memory_and_addresses_only_where_it_was_written),
        cmocka_unit_test(slack_is_given_back_by_trim_and_kept_where_it_was_asked_for),
        cmocka_unit_test(holes_and_data_are_found_where_they_are),
        cmocka_unit_test(an_allocation_that_fails_leaves_the_buffer_as_it_was),
        cmocka_unit_test(a_tail_that_was_cut_off_never_shows_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
