/* SPDX-License-Identifier: MIT
 *
 * epilogue.h - the stages of an operator's epilogue on a GPU (kernels/plan/epilogue.h): what is added to sums in f32 before they
 * are rounded.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EPILOGUE_H
#define FCC_KERNELS_GPU_DEVICE_EPILOGUE_H

#include "kernels/gpu/abi.h"
#include "kernels/gpu/platform.h"

/* The stages of a rank, from some row and column on. NULL: absent. */
template <typename T> struct gpu_epilogue {
    const T *bias, *residual;
    int64_t stride;

    __device__ __forceinline__ float add(float sum, uint32_t row, uint32_t col) const
    {
        if (bias)
            sum += gpu_to_f32(bias[col]);
        if (residual)
            sum += gpu_to_f32(residual[row * stride + col]);
        return sum;
    }
};

template <typename T>
GPU_DEVICE struct gpu_epilogue<T> gpu_epilogue_at(const struct gpu_call &call, uint32_t run, uint32_t row, uint32_t col) {
    const struct gpu_input &in = call.in[run];
    const T *bias = (const T *)in.bias, *residual = (const T *)in.residual;

    return {bias ? bias + col : nullptr, residual ? residual + row *in.residual_stride + col : nullptr, in.residual_stride};
}

#endif
