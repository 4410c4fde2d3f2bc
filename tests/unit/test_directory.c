/*
 * Directories: random sequences against a model, listings that go on while entries come and go,
 * and a million entries in linear time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>

#include "fs/directory.h"

static uint64_t random_state;

static uint64_t random_next(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static size_t random_below(size_t limit)
{
    return (size_t)(random_next() % limit);
}

/* TEST_SEED repeats a run. */
static void seed_random(const char *test)
{
    const char *given = getenv("TEST_SEED");
    random_state = given ? strtoull(given, NULL, 0) : monotonic_ns() | 1;
    print_message("%s: TEST_SEED=%llu\n", test, (unsigned long long)random_state);
}

static struct inode *fake_inode(size_t number)
{
    return (struct inode *)(uintptr_t)(16 * (number + 1));
}

/* -- against a model --------------------------------------------------------------------------- */

#define NAMES   600
#define READERS 4

struct model_name {
    char text[32];
    struct inode *inode; /* NULL: not there */
    uint64_t cookie;
};

/* A listing in progress. must_see: was there when it began, and has been ever since. */
struct reader {
    uint64_t cookie;
    bool must_see[NAMES];
    uint64_t seen_cookie[NAMES]; /* 0: not seen */
};

struct model {
    struct directory *directory;
    struct model_name names[NAMES];
    size_t count;
    struct reader readers[READERS];
};

static void reader_start(struct model *model, struct reader *reader)
{
    memset(reader, 0, sizeof(*reader));
    for (size_t i = 0; i < NAMES; i++)
        reader->must_see[i] = model->names[i].inode != NULL;
}

static void reader_finish(struct model *model, struct reader *reader)
{
    for (size_t i = 0; i < NAMES; i++)
        if (reader->must_see[i] && !reader->seen_cookie[i])
            fail_msg("entry %s was there throughout and was not listed", model->names[i].text);
    reader_start(model, reader);
}

/* Lists at most COUNT entries and checks each against the model. */
static void reader_step(struct model *model, struct reader *reader, size_t count)
{
    size_t position = directory_seek(model->directory, reader->cookie);
    while (count--) {
        struct directory_entry *entry = directory_next(model->directory, &position);
        if (!entry) {
            reader_finish(model, reader);
            return;
        }
        size_t number = (size_t)strtoul(strrchr(entry->name, '-') + 1, NULL, 10);
        assert_true(number < NAMES);
        assert_string_equal(entry->name, model->names[number].text);
        assert_ptr_equal(entry->inode, model->names[number].inode);
        assert_int_equal(entry->cookie, model->names[number].cookie);
        assert_true(entry->cookie > reader->cookie);
        if (reader->seen_cookie[number] == entry->cookie)
            fail_msg("entry %s was listed twice", entry->name);
        reader->seen_cookie[number] = entry->cookie;
        reader->cookie = entry->cookie;
    }
}

static void model_insert(struct model *model, size_t number)
{
    struct model_name *name = &model->names[number];
    struct directory_entry *entry = NULL;
    struct inode *inode = fake_inode(random_below(1000));

    int error = directory_insert(model->directory, name->text, inode, &entry);
    assert_non_null(entry);
    assert_string_equal(entry->name, name->text);
    if (name->inode) {
        assert_int_equal(error, -EEXIST);
        assert_ptr_equal(entry->inode, name->inode);
        return;
    }
    assert_int_equal(error, 0);
    assert_true(entry->cookie > DIRECTORY_COOKIE_DOTDOT);
    name->inode = inode;
    name->cookie = entry->cookie;
    model->count++;
}

static void model_remove(struct model *model, size_t number)
{
    struct model_name *name = &model->names[number];
    struct directory_entry *entry = directory_find(model->directory, name->text);

    assert_int_equal(entry != NULL, name->inode != NULL);
    if (!entry)
        return;
    directory_remove(model->directory, entry);
    assert_null(directory_at(model->directory, name->cookie));
    name->inode = NULL;
    model->count--;
    for (size_t i = 0; i < READERS; i++)
        model->readers[i].must_see[number] = false;
}

/* As the handler does it: over an entry that is there, its slot gets the inode. */
static void model_rename(struct model *model, size_t from, size_t to)
{
    if (from == to || !model->names[from].inode)
        return;
    struct inode *inode = model->names[from].inode;
    model_insert(model, to);
    struct directory_entry *entry = directory_find(model->directory, model->names[to].text);
    entry->inode = model->names[to].inode = inode;
    model_remove(model, from);
}

static void model_check(struct model *model)
{
    assert_int_equal(directory_count(model->directory), model->count);
    size_t number = random_below(NAMES);
    const struct model_name *name = &model->names[number];
    struct directory_entry *entry = directory_find(model->directory, name->text);
    assert_ptr_equal(entry ? entry->inode : NULL, name->inode);
    if (entry)
        assert_ptr_equal(directory_at(model->directory, name->cookie), entry);
}

static void random_sequences_agree_with_a_model(void **state)
{
    (void)state;
    static struct model model;
    seed_random("random_sequences_agree_with_a_model");

    memset(&model, 0, sizeof(model));
    model.directory = directory_create();
    assert_non_null(model.directory);
    for (size_t i = 0; i < NAMES; i++)
        snprintf(model.names[i].text, sizeof(model.names[i].text), "%.*s-%zu", (int)(i % 12),
                 "directorynam", i);

    for (size_t step = 0; step < 400000; step++) {
        /* It fills and empties in turn, so that it grows, compacts and shrinks. */
        bool filling = step / 5000 % 2 == 0;
        size_t choice = random_below(10);
        if (choice < (filling ? 5 : 1))
            model_insert(&model, random_below(NAMES));
        else if (choice < 6)
            model_remove(&model, random_below(NAMES));
        else if (choice < 8)
            model_rename(&model, random_below(NAMES), random_below(NAMES));
        else
            reader_step(&model, &model.readers[random_below(READERS)], 1 + random_below(60));
        model_check(&model);
    }
    for (size_t i = 0; i < NAMES; i++)
        model_remove(&model, i);
    assert_int_equal(directory_count(model.directory), 0);
    directory_destroy(model.directory);
}

/* -- single behaviours ------------------------------------------------------------------------- */

static void names_up_to_255_bytes(void **state)
{
    (void)state;
    struct directory *directory = directory_create();
    struct directory_entry *entry = NULL;
    char name[258];

    memset(name, 'n', sizeof(name));
    name[256] = '\0';
    assert_int_equal(directory_insert(directory, name, fake_inode(1), &entry), -ENAMETOOLONG);
    assert_null(directory_find(directory, name));
    name[255] = '\0';
    assert_int_equal(directory_insert(directory, name, fake_inode(1), &entry), 0);
    assert_ptr_equal(directory_find(directory, name), entry);
    directory_destroy(directory);
}

static void an_empty_directory_lists_nothing(void **state)
{
    (void)state;
    struct directory *directory = directory_create();
    size_t position = directory_seek(directory, 0);

    assert_null(directory_next(directory, &position));
    assert_null(directory_find(directory, "a"));
    assert_null(directory_at(directory, 3));
    assert_null(directory_at(directory, 0));
    position = directory_seek(directory, UINT64_MAX);
    assert_null(directory_next(directory, &position));
    directory_destroy(directory);
}

static void cookies_are_never_given_again(void **state)
{
    (void)state;
    struct directory *directory = directory_create();
    uint64_t last = 0;

    for (int i = 0; i < 1000; i++) {
        struct directory_entry *entry;
        assert_int_equal(directory_insert(directory, "same", fake_inode(1), &entry), 0);
        assert_true(entry->cookie > last);
        last = entry->cookie;
        directory_remove(directory, entry);
    }
    directory_destroy(directory);
}

/* -- a million --------------------------------------------------------------------------------- */

#define MANY 1000000

static void fill(struct directory *directory, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct directory_entry *entry;
        char name[32];
        snprintf(name, sizeof(name), "entry-%zu", i);
        assert_int_equal(directory_insert(directory, name, fake_inode(i), &entry), 0);
    }
    assert_int_equal(directory_count(directory), count);
}

/* In pieces, each from the cookie where the last one ended, as the kernel asks. */
static size_t list(struct directory *directory, size_t piece)
{
    uint64_t cookie = 0;
    size_t listed = 0;

    for (;;) {
        struct directory_entry *entry;
        size_t position = directory_seek(directory, cookie), in_piece = 0;
        while (in_piece < piece && (entry = directory_next(directory, &position))) {
            cookie = entry->cookie;
            in_piece++;
        }
        listed += in_piece;
        if (in_piece < piece)
            return listed;
    }
}

static void delete_by_name(struct directory *directory, bool backwards)
{
    for (size_t i = 0; i < MANY; i++) {
        char name[32];
        snprintf(name, sizeof(name), "entry-%zu", backwards ? MANY - 1 - i : i);
        directory_remove(directory, directory_find(directory, name));
    }
}

/* Always the first one of a fresh listing, or the last. */
static void delete_ends(struct directory *directory, bool from_back)
{
    uint64_t last = directory_seek(directory, UINT64_MAX);
    while (directory_count(directory)) {
        size_t position = directory_seek(directory, 0);
        if (from_back) {
            position = directory_seek(directory, UINT64_MAX) - 1;
            assert_true(position < last);
        }
        struct directory_entry *entry = directory_next(directory, &position);
        assert_non_null(entry);
        directory_remove(directory, entry);
    }
}

/* Deletes all but every tenth while listing in pieces. */
static void delete_while_listing(struct directory *directory)
{
    uint64_t cookie = 0;
    size_t seen = 0;
    struct directory_entry *entry;

    for (;;) {
        size_t position = directory_seek(directory, cookie);
        if (!(entry = directory_next(directory, &position)))
            break;
        cookie = entry->cookie;
        if (seen++ % 10)
            directory_remove(directory, entry);
    }
    assert_int_equal(seen, MANY);
    assert_int_equal(directory_count(directory), MANY / 10);
}

/* Were any of it quadratic, it would take hours; the limit leaves room for sanitizers. */
static void a_million_entries_in_linear_time(void **state)
{
    (void)state;
    uint64_t start = monotonic_ns();
    struct directory *directory = directory_create();

    fill(directory, MANY);
    assert_int_equal(list(directory, 100), MANY);
    delete_by_name(directory, false);
    fill(directory, MANY);
    delete_by_name(directory, true);
    fill(directory, MANY);
    delete_ends(directory, false);
    fill(directory, MANY);
    delete_ends(directory, true);
    fill(directory, MANY);
    delete_while_listing(directory);
    assert_int_equal(list(directory, 7), MANY / 10);
    directory_destroy(directory);

    uint64_t seconds = (monotonic_ns() - start) / 1000000000u;
    print_message("a million entries five times: %llu s\n", (unsigned long long)seconds);
    assert_true(seconds < 120);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_sequences_agree_with_a_model),
        cmocka_unit_test(names_up_to_255_bytes),
        cmocka_unit_test(an_empty_directory_lists_nothing),
        cmocka_unit_test(cookies_are_never_given_again),
        cmocka_unit_test(a_million_entries_in_linear_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
