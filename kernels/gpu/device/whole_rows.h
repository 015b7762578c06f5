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

/* Neighbouring elements, as many as are moved at a time: at a multiple of `ALIGN` bytes. A piece of 12 bytes is what a packet has
 * (exchange/rings_rows.h). */
template <typename T, int BYTES> struct gpu_piece {
    enum { LENGTH = BYTES / sizeof(T), ALIGN = BYTES % 16 ? 4 : 16 };
    struct alignas(ALIGN) moved {
        T at[LENGTH];
    };
};

/* The first `valid` of a piece's numbers; the others are 0. ALIGNED: it lies at a multiple of ALIGN; pieces of 16 bytes are whole. */
template <typename P, bool ALIGNED, typename T>
GPU_DEVICE void gpu_piece_load(float (&out)[P::LENGTH], const T *from, int64_t valid)
{
    enum { LENGTH = P::LENGTH };

    if (ALIGNED && (P::ALIGN == 16 || valid >= LENGTH)) {
        const typename P::moved piece = *(const typename P::moved *)from;
#pragma unroll
        for (int i = 0; i < LENGTH; i++)
            out[i] = gpu_to_f32(piece.at[i]);
    } else {
#pragma unroll
        for (int i = 0; i < LENGTH; i++)
            out[i] = i < valid ? gpu_to_f32(from[i]) : 0.0f;
    }
}

/* The same of f32 sums, which are as many bytes as fit. */
template <typename P, bool ALIGNED>
GPU_DEVICE void gpu_piece_load_wide(float (&out)[P::LENGTH], const float *from, int64_t valid)
{
    struct alignas(P::ALIGN) few {
        float at[P::ALIGN / sizeof(float)];
    };
    enum { LENGTH = P::LENGTH, FEW = sizeof(struct few) / sizeof(float) };

    if (ALIGNED && (P::ALIGN == 16 || valid >= LENGTH)) {
#pragma unroll
        for (int i = 0; i < LENGTH; i += FEW) {
            const struct few some = *(const struct few *)(from + i);
#pragma unroll
            for (int j = 0; j < FEW; j++)
                out[i + j] = some.at[j];
        }
    } else {
#pragma unroll
        for (int i = 0; i < LENGTH; i++)
            out[i] = i < valid ? from[i] : 0.0f;
    }
}

/* Rounds a piece's numbers, which become what was stored. */
template <typename P, bool ALIGNED, typename T> GPU_DEVICE void gpu_piece_round(T *to, float (&v)[P::LENGTH], int64_t valid)
{
    enum { LENGTH = P::LENGTH };
    typename P::moved piece;

#pragma unroll
    for (int i = 0; i < LENGTH; i++) {
        gpu_from_f32(&piece.at[i], v[i]);
        v[i] = gpu_to_f32(piece.at[i]);
    }
    if (ALIGNED && (P::ALIGN == 16 || valid >= LENGTH)) {
        *(typename P::moved *)to = piece;
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

/* A piece's sums in f32, which become those with bias and residual; rounded and stored, if that comes first. The residual may lie where z does: each
 * thread reads its elements of it before it stores them. */
template <typename P, bool ALIGNED, typename T>
GPU_DEVICE void gpu_row_add(const struct gpu_rows &p, const struct gpu_row<T> &row, float (&v)[P::LENGTH], int64_t valid)
{
    float more[P::LENGTH];

    for (int stage = 0; stage < 2; stage++) {
        const T *from = stage ? row.residual : row.added_bias;
        if (!from)
            continue;
        gpu_piece_load<P, ALIGNED>(more, from, valid);
#pragma unroll
        for (int i = 0; i < P::LENGTH; i++)
            v[i] += more[i];
    }
    if (p.rounds_first)
        gpu_piece_round<P, ALIGNED>(row.z, v, valid);
}

/* Where a row's sums come from, as the kernels behind a product have it: memory. They are rounded, with bias and residual, or (wide) without. */
template <typename T> struct gpu_rows_from_memory {
    /* Whether the sums are made here, by adding. */
    static __device__ __forceinline__ bool adds(const struct gpu_rows &p)
    {
        return p.wide != 0;
    }

    template <typename P, bool ALIGNED>
    static __device__ __forceinline__ void load(const struct gpu_rows &p, int64_t number, int64_t at, float (&v)[P::LENGTH])
    {
        const struct gpu_row<T> row(p, number, at);

        if (!row.wide) {
            gpu_piece_load<P, ALIGNED>(v, row.z, p.n - at);
            return;
        }
        gpu_piece_load_wide<P, ALIGNED>(v, row.wide, p.n - at);
        gpu_row_add<P, ALIGNED>(p, row, v, p.n - at);
    }
};

/* What a row's norm does with each element. */
struct gpu_row_norm {
    float middle, by;
};

/* A piece's result. */
template <typename P, bool ALIGNED, typename T>
GPU_DEVICE void gpu_row_result(const struct gpu_rows &p, const struct gpu_row<T> &row, const struct gpu_row_norm &norm,
                               float (&v)[P::LENGTH], int64_t valid)
{
    float weight[P::LENGTH], bias[P::LENGTH], gate[P::LENGTH];

    if (row.weight)
        gpu_piece_load<P, ALIGNED>(weight, row.weight, valid);
    if (row.bias)
        gpu_piece_load<P, ALIGNED>(bias, row.bias, valid);
    if (row.gate)
        gpu_piece_load<P, ALIGNED>(gate, row.gate, valid);
#pragma unroll
    for (int i = 0; i < P::LENGTH; i++) {
        v[i] = (v[i] - norm.middle) * norm.by;
        v[i] = v[i] * (row.weight ? weight[i] : 1.0f) + (row.bias ? bias[i] : 0.0f);
        v[i] = gpu_activate(p.activation, v[i]);
        v[i] *= (row.gate ? gpu_silu(gate[i]) : 1.0f) * p.scale;
    }
    gpu_piece_round<P, ALIGNED>(row.y, v, valid);
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
template <typename T, typename P, int PIECES, bool ALIGNED> struct gpu_row_maker {
    enum { LENGTH = P::LENGTH };
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

    /* The row, once `v` is its sums. */
    __device__ __forceinline__ void make_of_sums(int64_t number)
    {
        float most = 0.0f;
        const struct gpu_row_norm norm = norm_of();

#pragma unroll
        for (int piece = 0; piece < PIECES; piece++)
            if (at(piece) < p.n)
                gpu_row_result<P, ALIGNED>(p, gpu_row<T>(p, number, at(piece)), norm, v[piece], p.n - at(piece));
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

    __device__ __forceinline__ void make(int64_t number)
    {
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++)
            if (at(piece) < p.n)
                gpu_rows_from_memory<T>::template load<P, ALIGNED>(p, number, at(piece), v[piece]);
        make_of_sums(number);
    }
};

/* The same of a row of any length, whose elements are read anew for each pass: each thread reads what it has written itself. `source`: as struct
 * gpu_rows_from_memory. */
template <typename T, typename P, typename Source> struct gpu_long_row_maker {
    enum { LENGTH = P::LENGTH };
    const struct gpu_rows &p;
    float *room;
    Source source;

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
            gpu_piece_load<P, false>(v, gpu_row<T>(p, number, at).z, valid);
            for (int i = 0; i < valid; i++)
                sum += squares ? (v[i] - middle) * (v[i] - middle) : v[i];
        });
        return gpu_rows_all<GPU_ROWS_SUM>(sum, room);
    }

    __device__ __forceinline__ void make(int64_t number) const
    {
        const bool rounds_here = p.rounds_first && source.adds(p);
        struct gpu_row_norm norm = {0.0f, 1.0f};
        float most = 0.0f;

        each([&](int64_t at, int64_t) {
            float v[LENGTH];
            if (rounds_here)
                source.template load<P, false>(p, number, at, v);
        });
        if (p.norm) {
            norm.middle = p.norm == FCC_LAYER_NORM ? sum_of(number, 0.0f, false) / (float)p.n : 0.0f;
            norm.by = 1.0f / sqrtf(sum_of(number, norm.middle, true) / (float)p.n + p.eps);
        }
        each([&](int64_t at, int64_t valid) {
            const struct gpu_row<T> row(p, number, at);
            float v[LENGTH];
            if (rounds_here)
                gpu_piece_load<P, false>(v, row.z, valid);
            else
                source.template load<P, false>(p, number, at, v);
            gpu_row_result<P, false>(p, row, norm, v, valid);
            for (int i = 0; i < valid; i++)
                most = fmaxf(most, fabsf(v[i]));
        });
        if (!p.quantization)
            return;
        const float scale = gpu_row_scale(p, number, most, room);
        each([&](int64_t at, int64_t valid) {
            const struct gpu_row<T> row(p, number, at);
            float v[LENGTH];
            gpu_piece_load<P, false>(v, row.y, valid);
            gpu_row_quantize(row.quantized, v, scale, valid);
        });
    }
};

#endif
