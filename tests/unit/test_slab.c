/* Blocks of small device memory, against a model of what is taken. Timeout: 60 s. */
#include "fixture.h"

#include <errno.h>

#include "core/slab.h"

static uint64_t resident(struct device *device)
{
    struct budget_report report;

    device_get_budget_report(device, &report);
    return report.resident_bytes;
}

static void a_block_is_the_power_of_two_that_holds_the_bytes(void **unused)
{
    (void)unused;
    assert_int_equal(slab_block_bytes(1), 4 * KIB);
    assert_int_equal(slab_block_bytes(4 * KIB), 4 * KIB);
    assert_int_equal(slab_block_bytes(4 * KIB + 1), 8 * KIB);
    for (uint64_t size = 8 * KIB; size <= SLAB_BLOCK_MAX_BYTES; size *= 2) {
        assert_int_equal(slab_block_bytes(size), size);
        assert_int_equal(slab_block_bytes(size - 1), size);
        assert_int_equal(slab_block_bytes(size / 2 + 1), size);
    }
}

static void halves_of_a_chunk_become_whole_again_and_it_is_given_back(void **unused)
{
    (void)unused;
    struct device *device = fixture_open("memory=64MiB", NULL);
    struct slab_block small[512], large[2];

    for (unsigned int round = 0; round < 3; round++) {
        for (size_t i = 0; i < 512; i++)
            assert_int_equal(slab_allocate(device, 1, &small[i]), 0);
        assert_int_equal(resident(device), 2 * MIB);
        /* Every second one first: nothing can join before the others go. */
        for (size_t i = 0; i < 512; i += 2)
            slab_free(device, &small[i]);
        assert_int_equal(slab_allocate(device, 8 * KIB, &large[0]), 0);
        assert_int_equal(resident(device), 4 * MIB);
        slab_free(device, &large[0]);
        for (size_t i = 1; i < 511; i += 2)
            slab_free(device, &small[i]);
        assert_int_equal(slab_allocate(device, 1 * MIB, &large[0]), 0);
        assert_int_equal(resident(device), 2 * MIB);
        slab_free(device, &small[511]);
        assert_int_equal(slab_allocate(device, 1 * MIB, &large[1]), 0);
        assert_int_equal(resident(device), 2 * MIB);
        slab_free(device, &large[0]);
        slab_free(device, &large[1]);
        assert_int_equal(resident(device), 0);
    }
    fixture_close(device);
}

#define BLOCKS 400

static void check_no_overlap(const struct slab_block *blocks, const struct slab_block *added)
{
    for (const struct slab_block *other = blocks; other < blocks + BLOCKS; other++)
        if (other != added && other->slab && added->address < other->address + other->length &&
            other->address < added->address + added->length)
            fail_msg("[%llx, +%llu) overlaps [%llx, +%llu)", (unsigned long long)added->address,
                     (unsigned long long)added->length, (unsigned long long)other->address,
                     (unsigned long long)other->length);
}

static size_t chunks_in_use(const struct slab_block *blocks)
{
    size_t count = 0;

    for (size_t i = 0; i < BLOCKS; i++) {
        bool seen = !blocks[i].slab;
        for (size_t j = 0; j < i && !seen; j++)
            seen = blocks[j].slab == blocks[i].slab;
        count += !seen;
    }
    return count;
}

static void random_blocks_never_overlap_and_empty_chunks_go_back(void **unused)
{
    (void)unused;
    uint64_t state = fixture_seed();
    struct device *device = fixture_open("memory=24MiB", NULL);
    struct slab_block blocks[BLOCKS] = {0};
    unsigned int refused = 0;

    for (unsigned int step = 0; step < 30000; step++) {
        struct slab_block *block = &blocks[fixture_random(&state) % BLOCKS];
        if (block->slab) {
            slab_free(device, block);
            *block = (struct slab_block){0};
        } else {
            uint64_t bytes = 1 + fixture_random(&state) % (4 * KIB << fixture_random(&state) % 9);
            errint_t err = slab_allocate(device, bytes, block);
            if (err < 0) {
                assert_int_equal(err, -ENOSPC);
                *block = (struct slab_block){0};
                refused++;
                /* Make room again. */
                for (size_t i = 0; i < BLOCKS; i += 2)
                    if (blocks[i].slab) {
                        slab_free(device, &blocks[i]);
                        blocks[i] = (struct slab_block){0};
                    }
                continue;
            }
            assert_int_equal(block->length, slab_block_bytes(bytes));
            assert_int_equal(block->address % block->length, 0);
            check_no_overlap(blocks, block);
        }
        if (step % 64 == 0) {
            assert_int_equal(resident(device), chunks_in_use(blocks) * 2 * MIB);
            assert_int_equal(fixture_stats().physical_bytes, resident(device));
        }
    }
    print_message("%u refused\n", refused);
    assert_true(refused > 0);
    for (size_t i = 0; i < BLOCKS; i++)
        if (blocks[i].slab)
            slab_free(device, &blocks[i]);
    assert_int_equal(resident(device), 0);
    fixture_close(device);
}

static void no_memory_is_enospc_and_leaves_nothing_reserved(void **unused)
{
    (void)unused;
    struct device *device = fixture_open("memory=64MiB;fault=cuMemCreate:2:2", NULL);
    struct slab_block block;

    /* The first cuMemCreate was that of device_open's trial. */
    assert_int_equal(slab_allocate(device, 100, &block), -ENOSPC);
    assert_int_equal(resident(device), 0);
    fixture_configure("fault=none;fault=cuMemMap:1:1");
    assert_int_equal(slab_allocate(device, 100, &block), -EIO);
    fixture_configure("fault=none;fault=cuMemSetAccess:1:1");
    assert_int_equal(slab_allocate(device, 100, &block), -EIO);
    fixture_configure("fault=none;fault=cuMemAddressReserve:1:2");
    assert_int_equal(slab_allocate(device, 100, &block), -ENOSPC);
    assert_int_equal(resident(device), 0);
    assert_int_equal(fixture_stats().physical_bytes, 0);
    assert_int_equal(fixture_stats().reservations, 0);
    assert_int_equal(slab_allocate(device, 100, &block), 0);
    slab_free(device, &block);
    fixture_close(device);
}

static void a_quarantined_block_is_never_used_again(void **unused)
{
    (void)unused;
    struct device *device = fixture_open("memory=64MiB", NULL);
    struct slab_block lost, blocks[600];
    struct telemetry_snapshot snapshot;

    assert_int_equal(slab_allocate(device, 64 * KIB, &lost), 0);
    slab_quarantine(device, &lost);
    for (size_t i = 0; i < 600; i++) {
        assert_int_equal(slab_allocate(device, 4 * KIB, &blocks[i]), 0);
        assert_true(blocks[i].address + blocks[i].length <= lost.address ||
                    blocks[i].address >= lost.address + lost.length);
    }
    for (size_t i = 0; i < 600; i++)
        slab_free(device, &blocks[i]);
    /* Its chunk stays in the budget: the memory is not there for anybody. */
    assert_int_equal(resident(device), 2 * MIB);
    telemetry_take_snapshot(device_telemetry(device), &snapshot);
    assert_int_equal(snapshot.counters[TELEMETRY_QUARANTINED_BYTES], 64 * KIB);
    device_close(device);
    assert_int_equal(fixture_stats().physical_bytes, 2 * MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_is_the_power_of_two_that_holds_the_bytes),
        cmocka_unit_test(halves_of_a_chunk_become_whole_again_and_it_is_given_back),
        cmocka_unit_test(random_blocks_never_overlap_and_empty_chunks_go_back),
        cmocka_unit_test(no_memory_is_enospc_and_leaves_nothing_reserved),
        /* Last: what is in quarantine stays. */
        cmocka_unit_test(a_quarantined_block_is_never_used_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
