/* SPDX-License-Identifier: MIT
 *
 * whole_rows.h - what an epilogue does with whole rows of a rank's own result (kernels/plan/epilogue.h), as kernels are told it. Plain C and C++.
 */
#ifndef FCC_KERNELS_GPU_WHOLE_ROWS_H
#define FCC_KERNELS_GPU_WHOLE_ROWS_H

#include <stdint.h>

/* Addresses in this process; 0: absent. Strides are in elements. */
struct gpu_rows {
    /* [m][n]. y: the result, dtype. z: the sums, rounded, where `sum` is (0: in y). wide: not 0: they are f32 instead, there, [m][n] dense, without
     * bias and residual, which are added to them */
    uint64_t y, sum, wide;
    uint64_t added_bias, residual; /* dtype: [n], [m][n]; with `wide` only */
    uint64_t weight, bias;         /* [n], dtype: the norm's */
    uint64_t gate;                 /* [m][n], dtype */
    uint64_t quantized;            /* [m][n], e4m3 */
    uint64_t quantized_scale;      /* f32: [1], read (static), or [m], written (by row), scale_stride apart */
    int64_t y_stride, sum_stride, residual_stride, gate_stride, quantized_stride, scale_stride;
    int64_t m, n;
    uint32_t dtype;                          /* enum fcc_dtype */
    uint32_t norm, activation, quantization; /* enum fcc_norm, fcc_activation, fcc_quantization */
    float eps, scale;
    uint32_t rounds_first; /* 1: the sums are rounded before what follows bias and residual */
    uint32_t is_there;     /* 0: nothing is done with rows */
};

#endif
