/* SPDX-License-Identifier: MIT
 *
 * whole_rows.h - what an epilogue does with whole rows, on a GPU (kernels/plan/epilogue.h; on cores: kernels/cpu/rows.c). A workgroup makes a row at a time.
 *
 * Each thread has the same elements of the row in all passes, so what it reads again it has written itself. Sums are added in the order of
 * threads' elements and then in a tree: the same bits on all ranks, whose kernels have as many threads, and in every run.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_WHOLE_ROWS_H
#define FCC_KERNELS_GPU_DEVICE_WHOLE_ROWS_H

#include "kernels/gpu/device/epilogue.h"
#include "kernels/gpu/whole_rows.h"
#include "proto/fccclient.h"

#define GPU_ROWS_THREADS 256u
#define GPU_F8_MOST 448.0f

enum gpu_rows_fold { GPU_ROWS_SUM, GPU_ROWS_MOST };

/* Of all threads' values, the same in each. room: GPU_ROWS_THREADS numbers. */
template <enum gpu_rows_fold FOLD> GPU_DEVICE float gpu_rows_all(float value, float *room)
{
    __syncthreads(); /* nobody reads the room any more */
    room[threadIdx.x] = value;
    for (uint32_t half = GPU_ROWS_THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            const float other = room[threadIdx.x + half];
            room[threadIdx.x] = FOLD == GPU_ROWS_SUM ? room[threadIdx.x] + other : fmaxf(room[threadIdx.x], other);
        }
    }
    __syncthreads();
    return room[0];
}

/* As kernels/plan/dtype.c's f8e4m3_from_f32(). */
GPU_DEVICE uint8_t gpu_f8_from_f32(float x)
{
    const uint32_t all = __float_as_uint(x), sign = all >> 24 & 0x80u;
    uint32_t bits = all & 0x7fffffffu;

    if (bits > 0x7f800000u)
        return (uint8_t)(0x7fu | sign);
    bits = bits > 0x43e00000u ? 0x43e00000u : bits; /* 448 */
    const uint32_t small = __float_as_uint(__uint_as_float(bits) + 16384.0f) - 0x46800000u;
    return (uint8_t)((bits < 0x3c800000u ? small : ((bits + 0x7ffffu + (bits >> 20 & 1)) >> 20) - (120u << 3)) | sign);
}

/* What a row's norm does with each element. */
struct gpu_row_norm {
    float middle, by;
};

template <typename T> GPU_DEVICE struct gpu_row_norm gpu_row_norm_of(const struct gpu_rows &p, const T *z, float *room)
{
    struct gpu_row_norm norm = {0.0f, 1.0f};
    float sum = 0.0f;

    if (p.norm == FCC_LAYER_NORM) {
        for (int64_t i = threadIdx.x; i < p.n; i += GPU_ROWS_THREADS)
            sum += gpu_to_f32(z[i]);
        norm.middle = gpu_rows_all<GPU_ROWS_SUM>(sum, room) / (float)p.n;
        sum = 0.0f;
    }
    for (int64_t i = threadIdx.x; i < p.n; i += GPU_ROWS_THREADS) {
        const float v = gpu_to_f32(z[i]) - norm.middle;
        sum += v * v;
    }
    norm.by = 1.0f / sqrtf(gpu_rows_all<GPU_ROWS_SUM>(sum, room) / (float)p.n + p.eps);
    return norm;
}

/* The result becomes e4m3. */
template <typename T> GPU_DEVICE void gpu_row_quantize(const struct gpu_rows &p, int64_t row, const T *y, float *room)
{
    float *scales = (float *)p.quantized_scale, most = 0.0f, scale = 1.0f;
    uint8_t *to = (uint8_t *)p.quantized + row * p.quantized_stride;

    if (p.quantization == FCC_QUANTIZED_STATIC) {
        scale = scales[0];
    } else {
        for (int64_t i = threadIdx.x; i < p.n; i += GPU_ROWS_THREADS)
            most = fmaxf(most, fabsf(gpu_to_f32(y[i])));
        most = gpu_rows_all<GPU_ROWS_MOST>(most, room);
        scale = most > 0.0f ? most / GPU_F8_MOST : 1.0f;
        if (threadIdx.x == 0)
            scales[row * p.scale_stride] = scale;
    }
    for (int64_t i = threadIdx.x; i < p.n; i += GPU_ROWS_THREADS)
        to[i] = gpu_f8_from_f32(gpu_to_f32(y[i]) / scale);
}

/* What a row's tensors are. */
template <typename T> struct gpu_row {
    T *y, *z; /* z: the rounded sums, where they are or are to be */
    const T *gate, *residual;
    const float *wide;

    __device__ __forceinline__ gpu_row(const struct gpu_rows &p, int64_t row)
    {
        y = (T *)p.y + row * p.y_stride;
        z = p.sum ? (T *)p.sum + row * p.sum_stride : y;
        gate = p.gate ? (const T *)p.gate + row * p.gate_stride : nullptr;
        residual = p.residual ? (const T *)p.residual + row * p.residual_stride : nullptr;
        wide = p.wide ? (const float *)p.wide + row * p.n : nullptr;
    }
};

template <typename T> GPU_DEVICE float gpu_row_added(const struct gpu_rows &p, const struct gpu_row<T> &row, int64_t i)
{
    const T *bias = (const T *)p.added_bias;
    float v = row.wide[i];

    if (bias)
        v += gpu_to_f32(bias[i]);
    return row.residual ? v + gpu_to_f32(row.residual[i]) : v;
}

/* A workgroup of GPU_ROWS_THREADS. The residual may lie where z does: each thread reads an element of it before it stores that. */
template <typename T> GPU_DEVICE void gpu_row_make(const struct gpu_rows &p, int64_t number, float *room)
{
    const T *weight = (const T *)p.weight, *bias = (const T *)p.bias;
    const struct gpu_row<T> row(p, number);
    struct gpu_row_norm norm = {0.0f, 1.0f};
    const bool from_wide = row.wide && !p.rounds_first;

    for (int64_t i = threadIdx.x; i < p.n && row.wide && p.rounds_first; i += GPU_ROWS_THREADS)
        gpu_from_f32(&row.z[i], gpu_row_added<T>(p, row, i));
    if (p.norm)
        norm = gpu_row_norm_of<T>(p, row.z, room);
    for (int64_t i = threadIdx.x; i < p.n; i += GPU_ROWS_THREADS) {
        float v = from_wide ? gpu_row_added<T>(p, row, i) : gpu_to_f32(row.z[i]);
        v = (v - norm.middle) * norm.by;
        v = v * (weight ? gpu_to_f32(weight[i]) : 1.0f) + (bias ? gpu_to_f32(bias[i]) : 0.0f);
        v = gpu_activate(p.activation, v);
        v *= row.gate ? gpu_silu(gpu_to_f32(row.gate[i])) : 1.0f;
        gpu_from_f32(&row.y[i], v * p.scale);
    }
    if (p.quantization)
        gpu_row_quantize<T>(p, number, row.y, room);
}

#endif
