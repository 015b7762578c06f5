/* SPDX-License-Identifier: MIT
 *
 * epilogue.h - the stages of an operator's epilogue on a GPU (kernels/plan/epilogue.h) that concern single elements: what is done with sums in
 * f32 before they are rounded.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EPILOGUE_H
#define FCC_KERNELS_GPU_DEVICE_EPILOGUE_H

#include "kernels/gpu/abi.h"
#include "kernels/gpu/platform.h"
#include "proto/fccclient.h"

GPU_DEVICE float gpu_silu(float v)
{
    return v / (1.0f + expf(-v));
}

GPU_DEVICE float gpu_activate(uint32_t activation, float v)
{
    if (activation == FCC_RELU)
        return v < 0.0f ? 0.0f : v; /* a NaN stays one */
    if (activation == FCC_GELU)
        return 0.5f * v * (1.0f + erff(v * 0.70710678118654752f));
    if (activation == FCC_GELU_TANH)
        return 0.5f * v * (1.0f + tanhf(0.79788456080286536f * (v + 0.044715f * v * v * v)));
    return activation == FCC_SILU ? gpu_silu(v) : v;
}

/* The stages of a rank, from some row and column on. NULL: absent. */
template <typename T> struct gpu_epilogue {
    const T *bias, *residual, *gate;
    int64_t stride, gate_stride;
    uint32_t activation;
    float scale; /* 0: 1 */

    __device__ __forceinline__ float apply(float sum, uint32_t row, uint32_t col) const
    {
        if (bias)
            sum += gpu_to_f32(bias[col]);
        if (residual)
            sum += gpu_to_f32(residual[row * stride + col]);
        if (activation)
            sum = gpu_activate(activation, sum);
        if (gate)
            sum *= gpu_silu(gpu_to_f32(gate[row * gate_stride + col]));
        return scale != 0.0f ? sum * scale : sum;
    }
};

template <typename T>
GPU_DEVICE struct gpu_epilogue<T> gpu_epilogue_at(const struct gpu_call &call, uint32_t run, uint32_t row, uint32_t col) {
    const struct gpu_input &in = call.in[run];
    const T *bias = (const T *)in.bias, *residual = (const T *)in.residual, *gate = (const T *)call.each.gate;

    return {bias ? bias + col : nullptr,
            residual ? residual + row *in.residual_stride + col : nullptr,
            gate ? gate + row *call.each.gate_stride + col : nullptr,
            in.residual_stride,
            call.each.gate_stride,
            call.each.activation,
            call.each.scale};
}

/* Adds the stages of a slice to its sums. */
template <typename T>
struct gemm_stages {
    static constexpr bool CHANGES = true;
    const struct gpu_epilogue<T> *stages; /* in shared memory */
    int64_t row, col;

    __device__ __forceinline__ struct gemm_stages at(int64_t at_row, int64_t at_col) const
    {
        return {stages, at_row, at_col};
    }

    __device__ __forceinline__ float operator()(int r, int c, float sum) const
    {
        return stages->apply(sum, (uint32_t)row + r, (uint32_t)col + c);
    }
};

#endif
