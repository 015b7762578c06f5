/* SPDX-License-Identifier: MIT
 *
 * whole_rows.h - what an epilogue does with whole rows, on a GPU (kernels/plan/epilogue.h; on cores: kernels/cpu/rows.c). A workgroup makes a row at a time.
 *
 * Each thread has the same elements of the row throughout. Sums are added in the order of a thread's elements, then over a wave as a butterfly, then so
 * over the waves, then in the order of the workgroups, if a cluster of them makes a row: the same bits on all ranks, whose kernels have as many
 * threads for rows of that length, and in every run.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_WHOLE_ROWS_H
#define FCC_KERNELS_GPU_DEVICE_WHOLE_ROWS_H

#include "kernels/gpu/device/epilogue.h"
#include "kernels/gpu/device/row_pieces.h"
#include "kernels/gpu/device/row_team.h"
#include "kernels/gpu/whole_rows.h"
#include "proto/fccclient.h"

#define GPU_ROWS_THREADS_MOST 1024u
#define GPU_F8_MOST 448.0f

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

/* A row's tensors, from an element on. Absent ones are not looked at: what there is, the parameters say. */
template <typename T> struct gpu_row {
    T *y, *z; /* z: the rounded sums, where they are or are to be */
    const T *gate, *residual, *added_bias, *weight, *bias;
    const float *wide;
    uint8_t *quantized;

    __device__ __forceinline__ gpu_row(const struct gpu_rows &p, int64_t row, int64_t at)
    {
        y = (T *)p.y + row * p.y_stride + at;
        z = p.sum ? (T *)p.sum + row * p.sum_stride + at : y;
        gate = (const T *)p.gate + row * p.gate_stride + at;
        residual = (const T *)p.residual + row * p.residual_stride + at;
        added_bias = (const T *)p.added_bias + at;
        weight = (const T *)p.weight + at;
        bias = (const T *)p.bias + at;
        wide = (const float *)p.wide + row * p.n + at;
        quantized = (uint8_t *)p.quantized + row * p.quantized_stride + at;
    }
};

/* Some of a row's elements: `valid` of a piece, if there are so many, from the row's on. */
struct gpu_some {
    int64_t from, valid;
};

template <typename P, bool ALIGNED, typename T>
GPU_DEVICE void gpu_some_load(float (&out)[P::LENGTH], const T *row, const struct gpu_some &some)
{
    gpu_piece_to_f32<P>(out, gpu_piece_load<P, ALIGNED>(row + some.from, some.valid));
}

/* What a piece needs besides the sums, but for what is rarely there: loaded before the sums are. The residual may lie where z does: each thread reads
 * its elements of it before it stores them. */
template <typename P> struct gpu_row_inputs {
    typename P::moved residual, weight;
};

template <typename P, bool ALIGNED, typename T>
GPU_DEVICE struct gpu_row_inputs<P> gpu_row_inputs_load(const struct gpu_rows &p, const struct gpu_row<T> &row,
                                                        const struct gpu_some &some) {
    struct gpu_row_inputs<P> in;

    if (p.residual)
        in.residual = gpu_piece_load<P, ALIGNED>(row.residual + some.from, some.valid);
    if (p.weight)
        in.weight = gpu_piece_load<P, ALIGNED>(row.weight + some.from, some.valid);
    return in;
}

/* A piece's sums in f32, which become those with bias and residual; rounded and stored, if that comes first. */
template <typename P, bool ALIGNED, bool PLAIN, typename T>
GPU_DEVICE void gpu_row_add(const struct gpu_rows &p, const struct gpu_row<T> &row, const struct gpu_row_inputs<P> &in,
                            float (&v)[P::LENGTH], const struct gpu_some &some)
{
    float bias[P::LENGTH], residual[P::LENGTH];

    if (!PLAIN && p.added_bias)
        gpu_some_load<P, ALIGNED>(bias, row.added_bias, some);
    gpu_piece_to_f32<P>(residual, in.residual);
#pragma unroll
    for (int i = 0; i < P::LENGTH; i++) {
        v[i] = !PLAIN && p.added_bias ? v[i] + bias[i] : v[i];
        v[i] = p.residual ? v[i] + residual[i] : v[i];
    }
    if (p.rounds_first)
        gpu_piece_round<P, ALIGNED>(row.z + some.from, v, some.valid);
}

/* Where a row's sums come from, as the kernels behind a product have it: memory. They are rounded, with bias and residual, or (wide) without. */
template <typename T> struct gpu_rows_from_memory {
    /* Whether the sums are made here, by adding. */
    static __device__ __forceinline__ bool adds(const struct gpu_rows &p)
    {
        return p.wide != 0;
    }

    template <typename P, bool ALIGNED, bool PLAIN>
    static __device__ __forceinline__ void load(const struct gpu_rows &p, const struct gpu_row<T> &row, int64_t,
                                                float (&v)[P::LENGTH], const struct gpu_some &some)
    {
        if (!p.wide) {
            gpu_some_load<P, ALIGNED>(v, row.z, some);
            return;
        }
        const struct gpu_row_inputs<P> in = gpu_row_inputs_load<P, ALIGNED>(p, row, some);
        gpu_piece_load_wide<P, ALIGNED>(v, row.wide + some.from, some.valid);
        gpu_row_add<P, ALIGNED, PLAIN>(p, row, in, v, some);
    }
};

/* What a row's norm does with each element. */
struct gpu_row_norm {
    float middle, by;
};

/* Whether there are sum, residual and RMSNorm at most, or nothing: kernels for that are short, and instructions that are not needed take time to load, too. */
static inline bool gpu_rows_are_plain(const struct gpu_rows *p)
{
    return p->norm != FCC_LAYER_NORM && !p->added_bias && !p->activation && !p->gate && p->scale == 1.0f && !p->quantization;
}

/* Out of line, because it is long. */
static __device__ __noinline__ float gpu_activated(uint32_t activation, float v)
{
    return gpu_activate(activation, v);
}

/* The stages of each element behind the norm. */
template <typename P, bool ALIGNED, typename T>
GPU_DEVICE void gpu_row_each(const struct gpu_rows &p, const struct gpu_row<T> &row, float (&v)[P::LENGTH],
                             const struct gpu_some &some)
{
    float gate[P::LENGTH];

    if (p.gate)
        gpu_some_load<P, ALIGNED>(gate, row.gate, some);
#pragma unroll
    for (int i = 0; i < P::LENGTH; i++) {
        if (p.activation)
            v[i] = gpu_activated(p.activation, v[i]);
        v[i] *= p.gate ? gpu_activated(FCC_SILU, gate[i]) : 1.0f;
        v[i] *= p.scale; /* one after the other, as gpu_epilogue does */
    }
}

/* A piece's result. */
template <typename P, bool ALIGNED, bool PLAIN, typename T>
GPU_DEVICE void gpu_row_result(const struct gpu_rows &p, const struct gpu_row<T> &row, const typename P::moved &weights,
                               const struct gpu_row_norm &norm, float (&v)[P::LENGTH], const struct gpu_some &some)
{
    float weight[P::LENGTH], bias[P::LENGTH];

    gpu_piece_to_f32<P>(weight, weights);
    if (!PLAIN && p.bias)
        gpu_some_load<P, ALIGNED>(bias, row.bias, some);
#pragma unroll
    for (int i = 0; i < P::LENGTH; i++) {
        v[i] = (v[i] - (PLAIN ? 0.0f : norm.middle)) * norm.by * (p.weight ? weight[i] : 1.0f);
        if (!PLAIN && p.bias) /* 0 is not added: -0 stays as it is */
            v[i] += bias[i];
    }
    if constexpr (!PLAIN)
        gpu_row_each<P, ALIGNED>(p, row, v, some);
    gpu_piece_round<P, ALIGNED>(row.y + some.from, v, some.valid);
}

/* Out of line, because a division is long. */
static __device__ __noinline__ uint8_t gpu_f8_of(float v, float scale)
{
    return gpu_f8_from_f32(v / scale);
}

template <int LENGTH> GPU_DEVICE void gpu_row_quantize(uint8_t *to, const float (&v)[LENGTH], float scale, int64_t valid)
{
#pragma unroll
    for (int i = 0; i < LENGTH; i++)
        if (i < valid)
            to[i] = gpu_f8_of(v[i], scale);
}

/* The scale of a row's e4m3 result, whose greatest magnitude among this thread's elements is `most`. */
GPU_DEVICE float gpu_row_scale(const struct gpu_rows &p, int64_t number, float most, struct gpu_rows_team &team)
{
    float *scales = (float *)p.quantized_scale;

    if (p.quantization == FCC_QUANTIZED_STATIC)
        return scales[0];
    most = team.all<GPU_ROWS_MOST>(most);
    const float by = most / GPU_F8_MOST, scale = by > 0.0f ? by : 1.0f; /* the least subnormals divided by 448 are 0 */
    if (threadIdx.x == 0 && team.part == 0)
        scales[number * p.scale_stride] = scale;
    return scale;
}

/* A workgroup makes a row whose elements its threads have in registers: PIECES pieces each. PLAIN: gpu_rows_are_plain(). */
template <typename T, typename P, int PIECES, bool ALIGNED, bool PLAIN> struct gpu_row_maker {
    enum { LENGTH = P::LENGTH };
    const struct gpu_rows &p;
    struct gpu_rows_team team;
    const int64_t first, distance; /* of this thread: its first element, from one piece to the next */
    int64_t left;                  /* elements of the row from the first on */
    float v[PIECES][LENGTH];

    __device__ __forceinline__ gpu_row_maker(const struct gpu_rows &rows, const struct gpu_rows_team &makers)
        : p(rows), team(makers), first((int64_t)(makers.part * makers.threads + threadIdx.x) * LENGTH),
          distance((int64_t)makers.threads * makers.parts * LENGTH), left(p.n - first)
    {
    }

    __device__ __forceinline__ struct gpu_some some(int piece) const
    {
        return {piece * distance, left - piece * distance};
    }

    /* Of f(v) of all elements that there are. */
    template <typename F> __device__ __forceinline__ float sum_of(F f)
    {
        float sum = 0.0f;

#pragma unroll
        for (int piece = 0; piece < PIECES; piece++)
#pragma unroll
            for (int i = 0; i < LENGTH; i++)
                sum += i < some(piece).valid ? f(v[piece][i]) : 0.0f;
        return team.template all<GPU_ROWS_SUM>(sum);
    }

    /* Once `v` is the row's sums. */
    __device__ __forceinline__ struct gpu_row_norm norm_of()
    {
        struct gpu_row_norm norm = {0.0f, 1.0f};

        if (!p.norm)
            return norm;
        if (!PLAIN && p.norm == FCC_LAYER_NORM)
            norm.middle = sum_of([](float x) { return x; }) / (float)p.n;
        const float middle = norm.middle;
        norm.by = rsqrtf(sum_of([middle](float x) { return (x - middle) * (x - middle); }) / (float)p.n + p.eps);
        return norm;
    }

    __device__ __forceinline__ void quantize(const struct gpu_row<T> &row, int64_t number)
    {
        float most = 0.0f;

#pragma unroll
        for (int piece = 0; piece < PIECES; piece++)
#pragma unroll
            for (int i = 0; i < LENGTH; i++)
                most = i < some(piece).valid ? fmaxf(most, fabsf(v[piece][i])) : most;
        const float scale = gpu_row_scale(p, number, most, team);
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++)
            gpu_row_quantize(row.quantized + some(piece).from, v[piece], scale, some(piece).valid);
    }

    /* The row, of its sums. loaded: NULL: nothing is yet. */
    __device__ __forceinline__ void make_of(const struct gpu_row_norm &norm, const struct gpu_row<T> &row, int64_t number,
                                            const struct gpu_row_inputs<P> *loaded)
    {
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) {
            typename P::moved weight = {};
            if (loaded)
                weight = loaded[piece].weight;
            else if (p.weight && some(piece).valid > 0)
                weight = gpu_piece_load<P, ALIGNED>(row.weight + some(piece).from, some(piece).valid);
            if (some(piece).valid > 0)
                gpu_row_result<P, ALIGNED, PLAIN>(p, row, weight, norm, v[piece], some(piece));
        }
        if constexpr (!PLAIN)
            if (p.quantization)
                quantize(row, number);
    }

    __device__ __forceinline__ void make(int64_t number)
    {
        const struct gpu_row<T> row(p, number, first);

#pragma unroll
        for (int piece = 0; piece < PIECES; piece++)
            if (some(piece).valid > 0)
                gpu_rows_from_memory<T>::template load<P, ALIGNED, PLAIN>(p, row, number, v[piece], some(piece));
        make_of(norm_of(), row, number, nullptr);
    }
};

/* The same of a row of any length, whose elements are read anew for each pass: each thread reads what it has written itself. `source`: as struct
 * gpu_rows_from_memory. */
template <typename T, typename P, typename Source> struct gpu_long_row_maker {
    enum { LENGTH = P::LENGTH };
    const struct gpu_rows &p;
    struct gpu_rows_team team; /* of all threads */
    Source source;

    template <typename F> __device__ __forceinline__ void each(F f) const
    {
        for (int64_t at = (int64_t)threadIdx.x * LENGTH; at < p.n; at += (int64_t)blockDim.x * LENGTH)
            f((struct gpu_some){at, p.n - at < LENGTH ? p.n - at : (int64_t)LENGTH});
    }

    __device__ __forceinline__ float sum_of(const struct gpu_row<T> &row, float middle, bool squares)
    {
        float sum = 0.0f;

        each([&](const struct gpu_some &some) {
            float v[LENGTH];
            gpu_some_load<P, false>(v, row.z, some);
            for (int i = 0; i < some.valid; i++)
                sum += squares ? (v[i] - middle) * (v[i] - middle) : v[i];
        });
        return team.template all<GPU_ROWS_SUM>(sum);
    }

    __device__ __forceinline__ void make(int64_t number)
    {
        const struct gpu_row<T> row(p, number, 0);
        const bool rounds_here = p.rounds_first && source.adds(p);
        struct gpu_row_norm norm = {0.0f, 1.0f};
        float most = 0.0f;

        each([&](const struct gpu_some &some) {
            float v[LENGTH];
            if (rounds_here)
                source.template load<P, false, false>(p, row, number, v, some);
        });
        if (p.norm) {
            norm.middle = p.norm == FCC_LAYER_NORM ? sum_of(row, 0.0f, false) / (float)p.n : 0.0f;
            norm.by = rsqrtf(sum_of(row, norm.middle, true) / (float)p.n + p.eps);
        }
        each([&](const struct gpu_some &some) {
            float v[LENGTH];
            if (rounds_here)
                gpu_some_load<P, false>(v, row.z, some);
            else
                source.template load<P, false, false>(p, row, number, v, some);
            typename P::moved weight = {};
            if (p.weight)
                weight = gpu_piece_load<P, false>(row.weight + some.from, some.valid);
            gpu_row_result<P, false, false>(p, row, weight, norm, v, some);
            for (int i = 0; i < some.valid; i++)
                most = fmaxf(most, fabsf(v[i]));
        });
        if (!p.quantization)
            return;
        const float scale = gpu_row_scale(p, number, most, team);
        each([&](const struct gpu_some &some) {
            float v[LENGTH];
            gpu_some_load<P, false>(v, row.y, some);
            gpu_row_quantize(row.quantized + some.from, v, scale, some.valid);
        });
    }
};

#endif
