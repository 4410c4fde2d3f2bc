#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/device_selector.h"

#define UUID "GPU-12345678-9abc-def0-1234-56789abcdef0"

static void test_reads_every_form(void **state)
{
    static const struct {
        const char *text;
        struct device_selector expected;
    } cases[] = {
        {"cuda:0", {DEVICE_DRIVER_CUDA, DEVICE_SELECT_INDEX, .index = 0}},
        {"cuda:17", {DEVICE_DRIVER_CUDA, DEVICE_SELECT_INDEX, .index = 17}},
        {"cuda:1023", {DEVICE_DRIVER_CUDA, DEVICE_SELECT_INDEX, .index = 1023}},
        {"cuda:all", {DEVICE_DRIVER_CUDA, DEVICE_SELECT_ALL}},
        {"cuda:" UUID, {DEVICE_DRIVER_CUDA, DEVICE_SELECT_UUID, .id = UUID}},
        {"cuda:GPU-12345678-9ABC-DEF0-1234-56789ABCDEF0",
         {DEVICE_DRIVER_CUDA, DEVICE_SELECT_UUID, .id = UUID}},
        {"cuda:0000:65:00.0", {DEVICE_DRIVER_CUDA, DEVICE_SELECT_PCI, .id = "0000:65:00.0"}},
        {"cuda:65:00.1", {DEVICE_DRIVER_CUDA, DEVICE_SELECT_PCI, .id = "0000:65:00.1"}},
        {"cuda:65:00", {DEVICE_DRIVER_CUDA, DEVICE_SELECT_PCI, .id = "0000:65:00.0"}},
        {"cuda:0001:AF:00", {DEVICE_DRIVER_CUDA, DEVICE_SELECT_PCI, .id = "0001:af:00.0"}},
        {"cuda:00000000:C1:00.0",
         {DEVICE_DRIVER_CUDA, DEVICE_SELECT_PCI, .id = "00000000:c1:00.0"}},
        {"emulated", {DEVICE_DRIVER_EMULATED, DEVICE_SELECT_INDEX, .count = 1}},
        {"emulated:1", {DEVICE_DRIVER_EMULATED, DEVICE_SELECT_ALL, .count = 1}},
        {"emulated:64", {DEVICE_DRIVER_EMULATED, DEVICE_SELECT_ALL, .count = 64}},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const struct device_selector *expected = &cases[i].expected;
        struct device_selector selector;

        print_message("# %s\n", cases[i].text);
        assert_int_equal(device_selector_parse(cases[i].text, &selector), 0);
        assert_int_equal(selector.driver, expected->driver);
        assert_int_equal(selector.select, expected->select);
        assert_int_equal(selector.index, expected->index);
        assert_int_equal(selector.count, expected->count);
        assert_string_equal(selector.id, expected->id);
        assert_string_equal(selector.text, cases[i].text);
    }
}

static void test_refuses_everything_else(void **state)
{
    static const char *const cases[] = {
        "",
        "cuda",
        "cuda:",
        "cuda:-1",
        "cuda:1024",
        "cuda:+1",
        "cuda: 0",
        "cuda:0 ",
        "cuda:0x1",
        "cuda:ALL",
        "CUDA:0",
        "cuda:GPU-",
        "cuda:" UUID "0",
        "cuda:GPU-12345678",
        "cuda:65:0",
        "cuda:g5:00.0",
        "cuda:65:00.",
        "cuda:65:00.00",
        "cuda:000:65:00.0",
        "emulated:",
        "emulated:0",
        "emulated:65",
        "emulated:-1",
        "emulated:1x",
        "emulated1",
        "Emulated",
        "nvidia:0",
        "0",
        "/dev/nvidia0",
        "cuda:99999999999999999999",
        "emulated:4294967297",
        "cuda:4294967296",
        "cuda:0000000000000000000000000000000000000000000000000000000000000000000000000000000000",
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct device_selector selector = {.index = 5};

        print_message("# \"%s\"\n", cases[i]);
        assert_int_equal(device_selector_parse(cases[i], &selector), -EINVAL);
        assert_int_equal(selector.index, 5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_every_form),
        cmocka_unit_test(test_refuses_everything_else),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
