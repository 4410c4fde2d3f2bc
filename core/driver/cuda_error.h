/*
 * The one place that turns a CUresult into a negative errno, and that knows which results poison a
 * context for good. Pure functions; any thread.
 */
#ifndef RESIDENTFS_CORE_DRIVER_CUDA_ERROR_H
#define RESIDENTFS_CORE_DRIVER_CUDA_ERROR_H

#include "core/driver/cuda_abi.h"
#include "core/util.h"

/* 0 for CUDA_SUCCESS; -EIO for every fault of the device and every result that is not known. */
errint_t cuda_errno(CUresult result);

/* True if every later call on the context will fail too: only a new process helps. */
bool cuda_error_is_sticky(CUresult result);

/* CUDA's name for RESULT without asking a driver; "CUDA_ERROR_?" for one that is not known. */
const char *cuda_result_name(CUresult result);

#endif
