/*
 * Our declarations of the CUDA ABI agree with a real cuda.h; built only where there is one. Result
 * codes and signatures are compared when cuda_abi_real.c compiles. Timeout: 10 s.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "test_cuda_abi.h"

static void sizes_offsets_and_values_agree_with_the_toolkit(void **state)
{
    (void)state;
    size_t count, real_count, differing = 0;
    const struct abi_figure *ours = abi_figures_ours(&count);
    const struct abi_figure *real = abi_figures_real(&real_count);
    assert_int_equal(count, real_count);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(ours[i].name, real[i].name);
        if (ours[i].value == real[i].value)
            continue;
        print_message("%s: ours %llu, cuda.h %llu\n", ours[i].name, ours[i].value, real[i].value);
        differing++;
    }
    print_message("%zu figures compared\n", count);
    assert_int_equal(differing, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_offsets_and_values_agree_with_the_toolkit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
