/*
 * The list of extended attributes: Linux's errnos and limits, and random sequences against a
 * model.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <sys/xattr.h>

#include "fs/xattr_list.h"

static void set_get_remove(void **state)
{
    (void)state;
    struct xattr_list *list = NULL;
    char value[8] = "";

    assert_int_equal(xattr_list_get(list, "user.a", value, 8), -ENODATA);
    assert_int_equal(xattr_list_remove(list, "user.a"), -ENODATA);
    assert_int_equal(xattr_list_names(list, true, NULL, 0), 0);

    assert_int_equal(xattr_list_set(&list, "user.a", "12345", 5, 0), 0);
    assert_int_equal(xattr_list_get(list, "user.a", NULL, 0), 5);
    assert_int_equal(xattr_list_get(list, "user.a", value, 8), 5);
    assert_memory_equal(value, "12345", 5);
    assert_int_equal(xattr_list_get(list, "user.a", value, 5), 5);
    assert_int_equal(xattr_list_get(list, "user.a", value, 4), -ERANGE);
    assert_int_equal(xattr_list_get(list, "user.b", value, 8), -ENODATA);

    assert_int_equal(xattr_list_set(&list, "user.a", "xy", 2, 0), 0);
    assert_int_equal(xattr_list_get(list, "user.a", value, 8), 2);
    assert_memory_equal(value, "xy", 2);
    assert_int_equal(xattr_list_set(&list, "user.empty", NULL, 0, 0), 0);
    assert_int_equal(xattr_list_get(list, "user.empty", value, 8), 0);

    assert_int_equal(xattr_list_remove(list, "user.a"), 0);
    assert_int_equal(xattr_list_remove(list, "user.a"), -ENODATA);
    assert_int_equal(xattr_list_get(list, "user.a", value, 8), -ENODATA);
    xattr_list_destroy(list);
}

static void create_and_replace(void **state)
{
    (void)state;
    struct xattr_list *list = NULL;
    char value[8];

    assert_int_equal(xattr_list_set(&list, "user.a", "1", 1, XATTR_REPLACE), -ENODATA);
    assert_int_equal(xattr_list_set(&list, "user.a", "1", 1, XATTR_CREATE), 0);
    assert_int_equal(xattr_list_set(&list, "user.a", "2", 1, XATTR_CREATE), -EEXIST);
    assert_int_equal(xattr_list_get(list, "user.a", value, 8), 1);
    assert_int_equal(value[0], '1');
    assert_int_equal(xattr_list_set(&list, "user.a", "2", 1, XATTR_REPLACE), 0);
    assert_int_equal(xattr_list_get(list, "user.a", value, 8), 1);
    assert_int_equal(value[0], '2');
    assert_int_equal(xattr_list_set(&list, "user.a", "3", 1, 4), -EINVAL);
    xattr_list_destroy(list);
}

static void limits_are_those_of_linux(void **state)
{
    (void)state;
    struct xattr_list *list = NULL;
    static char value[XATTR_LIST_VALUE_MAX_BYTES + 1];
    char name[258] = "user.";

    memset(name + 5, 'n', sizeof(name) - 5);
    name[256] = '\0';
    assert_int_equal(xattr_list_set(&list, name, "1", 1, 0), -ERANGE);
    name[255] = '\0';
    assert_int_equal(xattr_list_set(&list, name, "1", 1, 0), 0);
    assert_int_equal(xattr_list_set(&list, "", "1", 1, 0), -ERANGE);

    assert_int_equal(xattr_list_set(&list, "user.v", value, XATTR_LIST_VALUE_MAX_BYTES + 1, 0),
                     -E2BIG);
    assert_int_equal(xattr_list_set(&list, "user.v", value, XATTR_LIST_VALUE_MAX_BYTES, 0), 0);
    assert_int_equal(xattr_list_get(list, "user.v", value, sizeof(value)),
                     XATTR_LIST_VALUE_MAX_BYTES);
    xattr_list_destroy(list);
}

static void an_inode_takes_so_much_and_no_more(void **state)
{
    (void)state;
    struct xattr_list *list = NULL;
    static char value[XATTR_LIST_VALUE_MAX_BYTES];
    char name[300];
    unsigned int count = 0;
    int error;

    do {
        snprintf(name, sizeof(name), "user.%u", count);
        error = xattr_list_set(&list, name, value, sizeof(value), 0);
        count++;
    } while (!error);
    assert_int_equal(error, -ENOSPC);
    assert_true(count > 8 && count <= XATTR_LIST_MAX_BYTES / sizeof(value) + 1);
    /* What is there may be made smaller or removed, and then there is room again. */
    assert_int_equal(xattr_list_set(&list, "user.0", "1", 1, XATTR_REPLACE), 0);
    assert_int_equal(xattr_list_set(&list, name, value, 1000, 0), 0);
    xattr_list_destroy(list);

    /* All names always fit into one listing. */
    list = NULL;
    count = 0;
    do {
        snprintf(name, sizeof(name), "user.%0200u", count++);
        error = xattr_list_set(&list, name, "", 0, 0);
    } while (!error);
    assert_int_equal(error, -ENOSPC);
    ssize_t length = xattr_list_names(list, true, NULL, 0);
    assert_true(length <= XATTR_LIST_NAMES_MAX_BYTES && length > XATTR_LIST_NAMES_MAX_BYTES - 300);
    xattr_list_destroy(list);
}

static void trusted_names_are_for_the_trusted(void **state)
{
    (void)state;
    struct xattr_list *list = NULL;
    char names[64];

    assert_int_equal(xattr_list_set(&list, "user.a", "1", 1, 0), 0);
    assert_int_equal(xattr_list_set(&list, "trusted.b", "1", 1, 0), 0);
    assert_int_equal(xattr_list_names(list, true, names, sizeof(names)), 7 + 10);
    assert_memory_equal(names, "user.a\0trusted.b", 17);
    assert_int_equal(xattr_list_names(list, true, names, 16), -ERANGE);
    assert_int_equal(xattr_list_names(list, false, names, 7), 7);
    assert_string_equal(names, "user.a");
    xattr_list_destroy(list);
}

#define MODEL_NAMES 40

static void random_sequences_agree_with_a_model(void **state)
{
    (void)state;
    const char *given = getenv("TEST_SEED");
    unsigned int seed =
        given ? (unsigned int)strtoul(given, NULL, 0) : (unsigned int)monotonic_ns();
    struct xattr_list *list = NULL;
    int model[MODEL_NAMES]; /* the value's length, or -1 */

    print_message("TEST_SEED=%u\n", seed);
    memset(model, -1, sizeof(model));
    for (int step = 0; step < 50000; step++) {
        int number = rand_r(&seed) % MODEL_NAMES, size = rand_r(&seed) % 300;
        static const int choices[] = {0, XATTR_CREATE, XATTR_REPLACE};
        int flags = choices[rand_r(&seed) % 3];
        char name[32], value[300], expected[300];

        snprintf(name, sizeof(name), "user.%d", number);
        if (rand_r(&seed) % 3) {
            memset(value, number + size, (size_t)size);
            int error = model[number] >= 0 && (flags & XATTR_CREATE)   ? -EEXIST
                        : model[number] < 0 && (flags & XATTR_REPLACE) ? -ENODATA
                                                                       : 0;
            assert_int_equal(xattr_list_set(&list, name, value, (size_t)size, flags), error);
            if (!error)
                model[number] = size;
        } else {
            assert_int_equal(xattr_list_remove(list, name), model[number] < 0 ? -ENODATA : 0);
            model[number] = -1;
        }

        number = rand_r(&seed) % MODEL_NAMES;
        snprintf(name, sizeof(name), "user.%d", number);
        ssize_t length = xattr_list_get(list, name, value, sizeof(value));
        assert_int_equal(length, model[number] < 0 ? -ENODATA : model[number]);
        if (length > 0) {
            memset(expected, number + (int)length, (size_t)length);
            assert_memory_equal(value, expected, (size_t)length);
        }
        ssize_t names = 0;
        for (int i = 0; i < MODEL_NAMES; i++)
            if (model[i] >= 0)
                names += i < 10 ? 7 : 8;
        assert_int_equal(xattr_list_names(list, false, NULL, 0), names);
    }
    xattr_list_destroy(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_get_remove),
        cmocka_unit_test(create_and_replace),
        cmocka_unit_test(limits_are_those_of_linux),
        cmocka_unit_test(an_inode_takes_so_much_and_no_more),
        cmocka_unit_test(trusted_names_are_for_the_trusted),
        cmocka_unit_test(random_sequences_agree_with_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
