/* The loader and the translation of results. Timeout: 30 s. */
#include "emulated_fixture.h"

#include "core/driver/cuda_error.h"

#include <errno.h>

#define LIBRARY_ENV "RESIDENTFS_EMULATED_LIBRARY"

static char message[512];

static bool every_required_entry_is_set(const struct driver *driver)
{
#define OPTIONAL 0
#define REQUIRED 1
#define ENTRY_SET(name, suffix, asked, need, parameters) \
    if (need && !driver->name) {                         \
        print_message("not resolved: %s\n", #name);      \
        return false;                                    \
    }
    CUDA_ENTRY_POINTS(ENTRY_SET)
#undef ENTRY_SET
#undef OPTIONAL
#undef REQUIRED
    return true;
}

static void opening_emulated_resolves_every_entry_point(void **state)
{
    (void)state;
    assert_true(every_required_entry_is_set(drv));
    assert_non_null(drv->cuMemcpyBatchAsync);
    assert_string_equal(drv->name, "emulated");
    assert_int_equal(drv->version, 12080);
}

static void opening_an_unknown_name_says_which_there_are(void **state)
{
    (void)state;
    struct driver *driver;
    assert_int_equal(driver_open("opencl", &driver, message, sizeof(message)), -EINVAL);
    assert_null(driver);
    assert_non_null(strstr(message, "'opencl'"));
    assert_non_null(strstr(message, "cuda or emulated"));
}

static void opening_cuda_without_a_driver_says_what_to_do(void **state)
{
    (void)state;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library) {
        dlclose(library);
        skip();
    }
    struct driver *driver;
    assert_int_equal(driver_open("cuda", &driver, message, sizeof(message)), -ENOENT);
    assert_null(driver);
    assert_non_null(strstr(message, "no CUDA driver: libcuda.so.1"));
    assert_non_null(strstr(message, "residentfs emulated MOUNTPOINT"));
    assert_null(strchr(message, '\n'));
}

static void a_named_library_that_is_not_there_is_named_in_the_message(void **state)
{
    (void)state;
    struct driver *driver;
    setenv(LIBRARY_ENV, "/nowhere/emulated.so", 1);
    errint_t error = driver_open("emulated", &driver, message, sizeof(message));
    unsetenv(LIBRARY_ENV);
    assert_int_equal(error, -ENOENT);
    assert_non_null(strstr(message, "/nowhere/emulated.so"));
}

static void a_library_that_is_no_driver_is_refused(void **state)
{
    (void)state;
    struct driver *driver;
    setenv(LIBRARY_ENV, "libc.so.6", 1);
    errint_t error = driver_open("emulated", &driver, message, sizeof(message));
    unsetenv(LIBRARY_ENV);
    assert_int_equal(error, -ENOSYS);
    assert_null(driver);
    assert_non_null(strstr(message, "lacks cuInit"));
}

/* LIBRARY is the emulated driver with fewer symbols exported. */
static void assert_opens_without(const char *library, bool has_batch)
{
    struct driver *driver;
    setenv(LIBRARY_ENV, library, 1);
    errint_t error = driver_open("emulated", &driver, message, sizeof(message));
    unsetenv(LIBRARY_ENV);
    if (error)
        fail_msg("%s", message);
    assert_true(every_required_entry_is_set(driver));
    assert_int_equal(driver->cuMemcpyBatchAsync != NULL, has_batch);
    int count = 0;
    assert_int_equal(driver->cuInit(0), CUDA_SUCCESS);
    assert_int_equal(driver->cuDeviceGetCount(&count), CUDA_SUCCESS);
    assert_int_equal(count, 1);
    driver_close(driver);
}

static void the_first_cuGetProcAddress_is_enough(void **state)
{
    (void)state;
    /* Only cuGetProcAddress hides what is switched off: this shows that it was asked. */
    setenv("RESIDENTFS_EMULATED", "batch=off", 1);
    assert_opens_without(DRIVER_V1_LIBRARY, false);
    unsetenv("RESIDENTFS_EMULATED");
}

static void versioned_symbols_are_enough(void **state)
{
    (void)state;
    assert_opens_without(DRIVER_PLAIN_LIBRARY, true);
}

static void the_optional_entry_point_may_be_absent(void **state)
{
    (void)state;
    struct driver *driver;
    configure("batch=off");
    assert_int_equal(driver_open("emulated", &driver, message, sizeof(message)), 0);
    configure("batch=on");
    assert_null(driver->cuMemcpyBatchAsync);
    assert_true(every_required_entry_is_set(driver));
    driver_close(driver);
}

static void closing_nothing_is_allowed(void **state)
{
    (void)state;
    driver_close(NULL);
}

static void results_have_names(void **state)
{
    (void)state;
    assert_string_equal(driver_error_name(drv, CUDA_ERROR_OUT_OF_MEMORY),
                        "CUDA_ERROR_OUT_OF_MEMORY");
    assert_string_equal(driver_error_name(NULL, CUDA_ERROR_ILLEGAL_ADDRESS),
                        "CUDA_ERROR_ILLEGAL_ADDRESS");
    assert_string_equal(driver_error_name(drv, CUDA_SUCCESS), "CUDA_SUCCESS");
    assert_non_null(driver_error_name(drv, (CUresult)123456));
    assert_non_null(driver_error_name(NULL, (CUresult)-1));
}

static void results_become_errno(void **state)
{
    (void)state;
    static const struct {
        CUresult result;
        errint_t error;
        bool sticky;
    } expected[] = {
        {CUDA_SUCCESS, 0, false},
        {CUDA_ERROR_OUT_OF_MEMORY, -ENOSPC, false},
        {CUDA_ERROR_INVALID_VALUE, -EINVAL, false},
        {CUDA_ERROR_NOT_SUPPORTED, -EOPNOTSUPP, false},
        {CUDA_ERROR_NO_DEVICE, -ENODEV, false},
        {CUDA_ERROR_INVALID_DEVICE, -ENODEV, false},
        {CUDA_ERROR_NOT_READY, -EAGAIN, false},
        {CUDA_ERROR_NOT_INITIALIZED, -EIO, false},
        {CUDA_ERROR_ILLEGAL_ADDRESS, -EIO, true},
        {CUDA_ERROR_LAUNCH_FAILED, -EIO, true},
        {CUDA_ERROR_ECC_UNCORRECTABLE, -EIO, true},
        {CUDA_ERROR_DEVICE_UNAVAILABLE, -EIO, true},
        {CUDA_ERROR_CONTEXT_IS_DESTROYED, -EIO, true},
        {CUDA_ERROR_UNKNOWN, -EIO, true},
        {(CUresult)123456, -EIO, false},
    };
    for (size_t i = 0; i < ARRAY_SIZE(expected); i++) {
        if (cuda_errno(expected[i].result) != expected[i].error ||
            cuda_error_is_sticky(expected[i].result) != expected[i].sticky)
            fail_msg("%s: errno %d, sticky %d", cuda_result_name(expected[i].result),
                     cuda_errno(expected[i].result), cuda_error_is_sticky(expected[i].result));
    }
}

static void no_failure_becomes_success(void **state)
{
    (void)state;
    for (int result = 1; result < 2000; result++)
        assert_true(cuda_errno((CUresult)result) < 0);
}

static int open_one(void **state)
{
    (void)state;
    return open_devices(1);
}

static int close_one(void **state)
{
    (void)state;
    driver_close(drv);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_emulated_resolves_every_entry_point),
        cmocka_unit_test(opening_an_unknown_name_says_which_there_are),
        cmocka_unit_test(opening_cuda_without_a_driver_says_what_to_do),
        cmocka_unit_test(a_named_library_that_is_not_there_is_named_in_the_message),
        cmocka_unit_test(a_library_that_is_no_driver_is_refused),
        cmocka_unit_test(the_first_cuGetProcAddress_is_enough),
        cmocka_unit_test(versioned_symbols_are_enough),
        cmocka_unit_test(the_optional_entry_point_may_be_absent),
        cmocka_unit_test(closing_nothing_is_allowed),
        cmocka_unit_test(results_have_names),
        cmocka_unit_test(results_become_errno),
        cmocka_unit_test(no_failure_becomes_success),
    };
    return cmocka_run_group_tests(tests, open_one, close_one);
}
