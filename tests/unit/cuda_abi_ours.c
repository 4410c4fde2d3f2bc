/* Our half of test_cuda_abi. */
#include "core/driver/cuda_abi.h"

#define ABI_FIGURES abi_figures_ours
#include "cuda_abi_table.h"
