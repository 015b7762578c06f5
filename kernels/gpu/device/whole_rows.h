/* SPDX-License-Identifier: MIT
 *
 * whole_rows.h - what an epilogue does with whole rows, on a GPU (kernels/plan/epilogue.h; on cores: kernels/cpu/rows.c). A workgroup makes a row at a time.
 *
 * Each thread has the same elements of the row throughout. Sums are added in the order of a thread's elements, then over a wave as a butterfly, then in
 * the order of the waves: the same bits on all ranks, whose kernels have as many threads for rows of that length, and in every run.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_WHOLE_ROWS_H
#define FCC_KERNELS_GPU_DEVICE_WHOLE_ROWS_H

#include "kernels/gpu/device/epilogue.h"
#include "kernels/gpu/device/vector.h"
#include "kernels/gpu/whole_rows.h"
#include "proto/fccclient.h"

#define GPU_ROWS_THREADS_MOST 1024u
#define GPU_F8_MOST 448.0f

enum gpu_rows_fold { GPU_ROWS_SUM, GPU_ROWS_MOST };

template <enum gpu_rows_fold FOLD> GPU_DEVICE float gpu_rows_fold_two(float a, float b)
{
    return FOLD == GPU_ROWS_SUM ? a + b : fmaxf(a, b);
}

/* Of all threads' values, the same in each. room: a number for each wave. */
template <enum gpu_rows_fold FOLD> GPU_DEVICE float gpu_rows_all(float value, float *room)
{
    const uint32_t waves = (blockDim.x + GPU_WAVE - 1) / GPU_WAVE;

    for (uint32_t bit = 1; bit < GPU_WAVE; bit *= 2)
        value = gpu_rows_fold_two<FOLD>(value, gpu_lane_across(value, bit));
    __syncthreads(); /* nobody reads the room any more */
    if (threadIdx.x % GPU_WAVE == 0)
        room[threadIdx.x / GPU_WAVE] = value;
    __syncthreads();
    value = room[0];
    for (uint32_t i = 1; i < waves; i++)
        value = gpu_rows_fold_two<FOLD>(value, room[i]);
    return value;
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

/* Neighbouring elements, as many as are moved at a time. */
template <typename T> struct alignas(16) gpu_piece {
    enum { LENGTH = 16 / sizeof(T) };
    T at[LENGTH];
};

/* The first `valid` of a piece's numbers; the others are 0. ALIGNED: all of them, and it lies at a multiple of its size. */
template <bool ALIGNED, typename T, int LENGTH>
GPU_DEVICE void gpu_piece_load(float (&out)[LENGTH], const T *from, int64_t valid)
{
    if constexpr (ALIGNED) {
#pragma unroll
        for (int i = 0; i < LENGTH; i += gpu_piece<T>::LENGTH) {
            const struct gpu_piece<T> piece = *(const struct gpu_piece<T> *)(from + i);
#pragma unroll
            for (int j = 0; j < gpu_piece<T>::LENGTH; j++)
                out[i + j] = gpu_to_f32(piece.at[j]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < LENGTH; i++)
            out[i] = i < valid ? gpu_to_f32(from[i]) : 0.0f;
    }
}

/* Rounds a piece's numbers, which become what was stored. */
template <bool ALIGNED, typename T, int LENGTH> GPU_DEVICE void gpu_piece_round(T *to, float (&v)[LENGTH], int64_t valid)
{
    struct gpu_piece<T> piece;

#pragma unroll
    for (int i = 0; i < LENGTH; i++) {
        gpu_from_f32(&piece.at[i], v[i]);
        v[i] = gpu_to_f32(piece.at[i]);
    }
    if constexpr (ALIGNED) {
        *(struct gpu_piece<T> *)to = piece;
    } else {
#pragma unroll
        for (int i = 0; i < LENGTH; i++)
            if (i < valid)
                to[i] = piece.at[i];
    }
}

/* What a row's tensors are, for the elements from `at` on. */
template <typename T> struct gpu_row {
    T *y, *z; /* z: the rounded sums, where they are or are to be */
    const T *gate, *residual, *added_bias, *weight, *bias;
    const float *wide;
    uint8_t *quantized;

    __device__ __forceinline__ gpu_row(const struct gpu_rows &p, int64_t row, int64_t at)
    {
        y = (T *)p.y + row * p.y_stride + at;
        z = p.sum ? (T *)p.sum + row * p.sum_stride + at : y;
        gate = p.gate ? (const T *)p.gate + row * p.gate_stride + at : nullptr;
        residual = p.residual ? (const T *)p.residual + row * p.residual_stride + at : nullptr;
        added_bias = p.added_bias ? (const T *)p.added_bias + at : nullptr;
        weight = p.weight ? (const T *)p.weight + at : nullptr;
        bias = p.bias ? (const T *)p.bias + at : nullptr;
        wide = p.wide ? (const float *)p.wide + row * p.n + at : nullptr;
        quantized = p.quantized ? (uint8_t *)p.quantized + row * p.quantized_stride + at : nullptr;
    }
};

/* A piece's sums: as they were rounded, or (wide) with bias and residual, and rounded here if that comes first. The residual may lie where z does: each
 * thread reads its elements of it before it stores them. */
template <bool ALIGNED, typename T, int LENGTH>
GPU_DEVICE void gpu_row_sums(const struct gpu_rows &p, const struct gpu_row<T> &row, float (&v)[LENGTH], int64_t valid)
{
    float more[LENGTH];

    if (!row.wide) {
        gpu_piece_load<ALIGNED>(v, row.z, valid);
        return;
    }
    gpu_piece_load<ALIGNED>(v, row.wide, valid);
    for (int stage = 0; stage < 2; stage++) {
        const T *from = stage ? row.residual : row.added_bias;
        if (!from)
            continue;
        gpu_piece_load<ALIGNED>(more, from, valid);
#pragma unroll
        for (int i = 0; i < LENGTH; i++)
            v[i] += more[i];
    }
    if (p.rounds_first)
        gpu_piece_round<ALIGNED>(row.z, v, valid);
}

/* What a row's norm does with each element. */
struct gpu_row_norm {
    float middle, by;
};

/* A piece's result. */
template <bool ALIGNED, typename T, int LENGTH>
GPU_DEVICE void gpu_row_result(const struct gpu_rows &p, const struct gpu_row<T> &row, const struct gpu_row_norm &norm,
                               float (&v)[LENGTH], int64_t valid)
{
    float weight[LENGTH], bias[LENGTH], gate[LENGTH];

    if (row.weight)
        gpu_piece_load<ALIGNED>(weight, row.weight, valid);
    if (row.bias)
        gpu_piece_load<ALIGNED>(bias, row.bias, valid);
    if (row.gate)
        gpu_piece_load<ALIGNED>(gate, row.gate, valid);
#pragma unroll
    for (int i = 0; i < LENGTH; i++) {
        v[i] = (v[i] - norm.middle) * norm.by;
        v[i] = v[i] * (row.weight ? weight[i] : 1.0f) + (row.bias ? bias[i] : 0.0f);
        v[i] = gpu_activate(p.activation, v[i]);
        v[i] *= (row.gate ? gpu_silu(gate[i]) : 1.0f) * p.scale;
    }
    gpu_piece_round<ALIGNED>(row.y, v, valid);
}

template <int LENGTH> GPU_DEVICE void gpu_row_quantize(uint8_t *to, const float (&v)[LENGTH], float scale, int64_t valid)
{
#pragma unroll
    for (int i = 0; i < LENGTH; i++)
        if (i < valid)
            to[i] = gpu_f8_from_f32(v[i] / scale);
}

/* The scale of a row's e4m3 result, whose greatest magnitude among this thread's elements is `most`. */
GPU_DEVICE float gpu_row_scale(const struct gpu_rows &p, int64_t number, float most, float *room)
{
    float *scales = (float *)p.quantized_scale;

    if (p.quantization == FCC_QUANTIZED_STATIC)
        return scales[0];
    most = gpu_rows_all<GPU_ROWS_MOST>(most, room);
    const float by = most / GPU_F8_MOST, scale = by > 0.0f ? by : 1.0f; /* the least subnormals divided by 448 are 0 */
    if (threadIdx.x == 0)
        scales[number * p.scale_stride] = scale;
    return scale;
}

/* A workgroup makes a row whose elements its threads have in registers: PIECES pieces each. */
template <typename T, int PIECES, bool ALIGNED> struct gpu_row_maker {
    enum { LENGTH = gpu_piece<T>::LENGTH };
    const struct gpu_rows &p;
    float *room;
    float v[PIECES][LENGTH];

    __device__ __forceinline__ gpu_row_maker(const struct gpu_rows &rows, float *memory) : p(rows), room(memory)
    {
    }

    __device__ __forceinline__ int64_t at(int piece) const
    {
        return (int64_t)(threadIdx.x + piece * blockDim.x) * LENGTH;
    }

    /* Of f(v) of all elements that there are. */
    template <typename F> __device__ __forceinline__ float sum_of(F f) const
    {
        float sum = 0.0f;

#pragma unroll
        for (int piece = 0; piece < PIECES; piece++)
#pragma unroll
            for (int i = 0; i < LENGTH; i++)
                sum += at(piece) + i < p.n ? f(v[piece][i]) : 0.0f;
        return gpu_rows_all<GPU_ROWS_SUM>(sum, room);
    }

    __device__ __forceinline__ struct gpu_row_norm norm_of() const
    {
        struct gpu_row_norm norm = {0.0f, 1.0f};

        if (!p.norm)
            return norm;
        if (p.norm == FCC_LAYER_NORM)
            norm.middle = sum_of([](float x) { return x; }) / (float)p.n;
        const float middle = norm.middle;
        norm.by = 1.0f / sqrtf(sum_of([middle](float x) { return (x - middle) * (x - middle); }) / (float)p.n + p.eps);
        return norm;
    }

    __device__ __forceinline__ void make(int64_t number)
    {
        float most = 0.0f;

#pragma unroll
        for (int piece = 0; piece < PIECES; piece++)
            if (at(piece) < p.n)
                gpu_row_sums<ALIGNED>(p, gpu_row<T>(p, number, at(piece)), v[piece], p.n - at(piece));
        const struct gpu_row_norm norm = norm_of();
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++)
            if (at(piece) < p.n)
                gpu_row_result<ALIGNED>(p, gpu_row<T>(p, number, at(piece)), norm, v[piece], p.n - at(piece));
        if (!p.quantization)
            return;
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++)
#pragma unroll
            for (int i = 0; i < LENGTH; i++)
                most = at(piece) + i < p.n ? fmaxf(most, fabsf(v[piece][i])) : most;
        const float scale = gpu_row_scale(p, number, most, room);
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++)
            if (at(piece) < p.n)
                gpu_row_quantize(gpu_row<T>(p, number, at(piece)).quantized, v[piece], scale, p.n - at(piece));
    }
};

/* The same of a row of any length, whose elements are read anew for each pass: each thread reads what it has written itself. */
template <typename T> struct gpu_long_row_maker {
    enum { LENGTH = gpu_piece<T>::LENGTH };
    const struct gpu_rows &p;
    float *room;

    template <typename F> __device__ __forceinline__ void each(F f) const
    {
        for (int64_t at = (int64_t)threadIdx.x * LENGTH; at < p.n; at += (int64_t)blockDim.x * LENGTH)
            f(at, p.n - at < LENGTH ? p.n - at : (int64_t)LENGTH);
    }

    __device__ __forceinline__ float sum_of(int64_t number, float middle, bool squares) const
    {
        float sum = 0.0f;

        each([&](int64_t at, int64_t valid) {
            float v[LENGTH];
            gpu_piece_load<false>(v, gpu_row<T>(p, number, at).z, valid);
            for (int i = 0; i < valid; i++)
                sum += squares ? (v[i] - middle) * (v[i] - middle) : v[i];
        });
        return gpu_rows_all<GPU_ROWS_SUM>(sum, room);
    }

    __device__ __forceinline__ void make(int64_t number) const
    {
        const bool wide = p.wide && p.rounds_first;
        struct gpu_row_norm norm = {0.0f, 1.0f};
        float most = 0.0f;

        each([&](int64_t at, int64_t valid) {
            float v[LENGTH];
            if (wide)
                gpu_row_sums<false>(p, gpu_row<T>(p, number, at), v, valid);
        });
        if (p.norm) {
            norm.middle = p.norm == FCC_LAYER_NORM ? sum_of(number, 0.0f, false) / (float)p.n : 0.0f;
            norm.by = 1.0f / sqrtf(sum_of(number, norm.middle, true) / (float)p.n + p.eps);
        }
        each([&](int64_t at, int64_t valid) {
            const struct gpu_row<T> row(p, number, at);
            float v[LENGTH];
            if (wide)
                gpu_piece_load<false>(v, row.z, valid);
            else
                gpu_row_sums<false>(p, row, v, valid);
            gpu_row_result<false>(p, row, norm, v, valid);
            for (int i = 0; i < valid; i++)
                most = fmaxf(most, fabsf(v[i]));
        });
        if (!p.quantization)
            return;
        const float scale = gpu_row_scale(p, number, most, room);
        each([&](int64_t at, int64_t valid) {
            const struct gpu_row<T> row(p, number, at);
            float v[LENGTH];
            gpu_piece_load<false>(v, row.y, valid);
            gpu_row_quantize(row.quantized, v, scale, valid);
        });
    }
};

#endif
