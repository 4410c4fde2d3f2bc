#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/budget_setting.h"

static errint_t parse(const char *text, struct budget_setting *setting)
{
    return budget_setting_parse(text, strlen(text), setting);
}

static void test_reads_every_form(void **state)
{
    static const struct {
        const char *text;
        enum budget_kind kind;
        uint64_t value;
    } cases[] = {
        {"auto", BUDGET_AUTO, 0},
        {"auto\n", BUDGET_AUTO, 0},
        {"1%", BUDGET_PERCENT, 1},
        {"80%\n", BUDGET_PERCENT, 80},
        {"100%", BUDGET_PERCENT, 100},
        {"007%", BUDGET_PERCENT, 7},
        {"1", BUDGET_BYTES, 1},
        {"4096\n", BUDGET_BYTES, 4096},
        {"12GiB", BUDGET_BYTES, 12 * GIB},
        {"12G", BUDGET_BYTES, 12 * GIB},
        {"12g", BUDGET_BYTES, 12 * GIB},
        {"3k", BUDGET_BYTES, 3 * KIB},
        {"3KiB", BUDGET_BYTES, 3 * KIB},
        {"5M", BUDGET_BYTES, 5 * MIB},
        {"2TiB", BUDGET_BYTES, 2048 * GIB},
        {"18446744073709551615", BUDGET_BYTES, UINT64_MAX},
        {"16777215TiB", BUDGET_BYTES, UINT64_C(16777215) << 40},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct budget_setting setting = {.value = 99};

        print_message("# %s\n", cases[i].text);
        assert_int_equal(parse(cases[i].text, &setting), 0);
        assert_int_equal(setting.kind, cases[i].kind);
        assert_int_equal(setting.value, cases[i].value);
    }
}

static void test_refuses_everything_else_and_leaves_the_setting(void **state)
{
    static const char *const cases[] = {
        "",
        "\n",
        " ",
        "auto\n\n",
        "auto ",
        " auto",
        "Auto",
        "0",
        "0%",
        "101%",
        "1000%",
        "%",
        "%%",
        "-1",
        "-1%",
        "+1",
        "1.5GiB",
        "1e9",
        "0x10",
        "12GB",
        "12 GiB",
        "12gib",
        "12Gi",
        "12GiBs",
        "12GiB%",
        "1%\n\n",
        "\n1%",
        "K",
        "KiB",
        "80%x",
        "80 %",
        "0GiB",
        "1\r\n",
        "inf",
        "nan",
        "1P",
        "1\t",
        "12%GiB",
        "autoauto",
        "aut",
        "18446744073709551616",
        "16777216TiB",
        "99999999999999999999999999999999999999",
        "\xff",
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct budget_setting setting = {.kind = BUDGET_PERCENT, .value = 33};

        print_message("# \"%s\"\n", cases[i]);
        assert_int_equal(parse(cases[i], &setting), -EINVAL);
        assert_int_equal(setting.kind, BUDGET_PERCENT);
        assert_int_equal(setting.value, 33);
    }
}

static void test_reads_only_the_length_it_was_given(void **state)
{
    struct budget_setting setting;
    const char with_nul[] = {'8', '\0', '%'};

    (void)state;
    assert_int_equal(budget_setting_parse("80%x", 3, &setting), 0);
    assert_int_equal(setting.value, 80);
    assert_int_equal(budget_setting_parse("12345", 2, &setting), 0);
    assert_int_equal(setting.value, 12);
    assert_int_equal(budget_setting_parse("1", 0, &setting), -EINVAL);
    assert_int_equal(budget_setting_parse(with_nul, sizeof(with_nul), &setting), -EINVAL);
    assert_int_equal(budget_setting_parse("8\0", 2, &setting), -EINVAL);
}

static void assert_comes_back(struct budget_setting setting)
{
    char text[BUDGET_SETTING_TEXT_BYTES];
    struct budget_setting again;

    assert_ptr_equal(budget_setting_format(&setting, text), text);
    assert_int_equal(parse(text, &again), 0);
    assert_int_equal(again.kind, setting.kind);
    assert_int_equal(again.value, setting.value);
}

static void test_what_is_formatted_parses_back(void **state)
{
    (void)state;
    assert_comes_back((struct budget_setting){.kind = BUDGET_AUTO});
    for (uint64_t percent = 1; percent <= 100; percent++)
        assert_comes_back((struct budget_setting){.kind = BUDGET_PERCENT, .value = percent});
    for (unsigned bit = 0; bit < 64; bit++) {
        uint64_t value = UINT64_C(1) << bit;

        assert_comes_back((struct budget_setting){.kind = BUDGET_BYTES, .value = value});
        assert_comes_back((struct budget_setting){.kind = BUDGET_BYTES, .value = value | 1});
        assert_comes_back((struct budget_setting){.kind = BUDGET_BYTES, .value = value - 1 + !bit});
    }
    assert_comes_back((struct budget_setting){.kind = BUDGET_BYTES, .value = UINT64_MAX});
}

static void test_sizes_print_in_the_largest_exact_unit(void **state)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {{0, "0"},
                 {1, "1"},
                 {1023, "1023"},
                 {1024, "1KiB"},
                 {1025, "1025"},
                 {MIB, "1MiB"},
                 {1536 * KIB, "1536KiB"},
                 {GIB, "1GiB"},
                 {2048 * GIB, "2TiB"},
                 {UINT64_MAX, "18446744073709551615"}};
    char text[SIZE_TEXT_BYTES];
    uint64_t bytes;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_string_equal(size_text_format(cases[i].bytes, text), cases[i].text);
    assert_int_equal(size_text_parse("16777216TiB", 11, &bytes), -ERANGE);
    assert_int_equal(size_text_parse("12GB", 4, &bytes), -EINVAL);
}

/* Texts made of the characters that the parsers look at: either refused, or read the same again. */
static void test_random_text_never_confuses_the_parser(void **state)
{
    static const char alphabet[] = "0123456789KMGTiBkmgt%auto\n -+.\0";
    const char *given = getenv("SEED");
    unsigned seed = given ? (unsigned)strtoul(given, NULL, 0) : (unsigned)monotonic_ns();
    unsigned accepted = 0;

    (void)state;
    print_message("# SEED=%u\n", seed);
    srand(seed);
    for (unsigned i = 0; i < 300000; i++) {
        size_t length = (size_t)rand() % 8;
        /* Exactly as long as the text, so that a sanitizer sees any read beyond it. */
        char *text = malloc(length ? length : 1);
        struct budget_setting setting;

        assert_non_null(text);
        for (size_t j = 0; j < length; j++)
            text[j] = alphabet[(size_t)rand() % (sizeof(alphabet) - 1)];
        if (budget_setting_parse(text, length, &setting) == 0) {
            accepted++;
            assert_comes_back(setting);
        }
        free(text);
    }
    assert_in_range(accepted, 1, 299999);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_every_form),
        cmocka_unit_test(test_refuses_everything_else_and_leaves_the_setting),
        cmocka_unit_test(test_reads_only_the_length_it_was_given),
        cmocka_unit_test(test_what_is_formatted_parses_back),
        cmocka_unit_test(test_sizes_print_in_the_largest_exact_unit),
        cmocka_unit_test(test_random_text_never_confuses_the_parser),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
