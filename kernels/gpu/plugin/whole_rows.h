/* SPDX-License-Identifier: MIT
 *
 * whole_rows.h - an epilogue's kernel for whole rows, inside of the plug-in.
 */
#ifndef FCC_KERNELS_GPU_PLUGIN_WHOLE_ROWS_H
#define FCC_KERNELS_GPU_PLUGIN_WHOLE_ROWS_H

#include "kernels/gpu/runtime.h"
#include "kernels/gpu/whole_rows.h"
#include "proto/base/error.h"

/* One of the kernels, which are loaded together. */
const void *rows_kernel(void);
/* Whether the rows of a tensor begin at multiples of `to` bytes. Absent ones do. size: bytes of an element. */
bool rows_tensor_is_aligned(uint64_t at, int64_t stride, int64_t m, uint64_t size, uint64_t to);
/* Whether those of all tensors do, and are as long. */
bool rows_are_aligned(const struct gpu_rows *rows, uint64_t size, uint64_t to);
/* Enqueues the kernel on the stream, if there is anything to do. */
int rows_start(int gpu, const struct gpu_rows *rows, hipStream_t stream, struct error *e);

#endif
