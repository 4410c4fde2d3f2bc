/* Shared by the two halves of test_cuda_abi, which cannot include each other's CUDA headers. */
#ifndef RESIDENTFS_TESTS_TEST_CUDA_ABI_H
#define RESIDENTFS_TESTS_TEST_CUDA_ABI_H

#include <stddef.h>

struct abi_figure {
    const char *name;
    unsigned long long value;
};

const struct abi_figure *abi_figures_ours(size_t *count);
const struct abi_figure *abi_figures_real(size_t *count);

#endif
