/* The toolkit's half of test_cuda_abi. */
#define __CUDA_API_VERSION_INTERNAL /* declares every version of every entry point */
#include <cuda.h>

#define ABI_FIGURES abi_figures_real
#include "cuda_abi_table.h"

#include "core/driver/cuda_entry_points.h"
#include "core/driver/cuda_results.h"

/* A signature or result code that differs from the toolkit's does not compile. */
#define SAME_SIGNATURE(name, suffix, asked, need, parameters)                            \
    _Static_assert(                                                                      \
        __builtin_types_compatible_p(__typeof__(&name##suffix), CUresult(*) parameters), \
        #name #suffix);
CUDA_ENTRY_POINTS(SAME_SIGNATURE)

#define SAME_RESULT(name, value) _Static_assert(name == (value), #name);
CUDA_RESULTS(SAME_RESULT)
