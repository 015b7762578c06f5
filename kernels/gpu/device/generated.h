/* SPDX-License-Identifier: MIT
 *
 * generated.h - what the source of a program's step is written with (kernels/program/generate.c): the loop over slices, loads and stores of several
 * elements at a time, and operations. The slices, and so the memory order, are those of the interpreter (kernels/gpu/device/compute/step.hip).
 *
 * A source has one struct, Step, which has
 *
 *     WIDTH, RANKS, SUMS     elements of a thread at a time; ranks whose inputs are added up; 1: there is such a sum, and a result
 *     index                  the integer that counts elements
 *     sum_type, out_type     dtypes of the inputs that are added up, and of the result
 *     begin(step, code)      takes a run's addresses and numbers, which then are in registers for all slices
 *     wide(e)                whether WIDTH elements from e on may be loaded and stored at once
 *     run<WIDE>(e, sum, result)  works on the elements from e on: WIDTH of them, or 1
 *
 * An element has the same bits as the interpreter's. An addition and a multiplication of the program are never joined into one multiply-add, because the
 * interpreter has a store between them; within one operation, both are compiled from one expression.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_GENERATED_H
#define FCC_KERNELS_GPU_DEVICE_GENERATED_H

#include "kernels/gpu/device/generated_kernel.h"
#include "kernels/gpu/device/vector_parts.h"
#include "kernels/gpu/step.h"

/* ---- several elements at a time ---- */

template <int bytes> struct generated_words;
template <> struct generated_words<2> {
    typedef uint16_t type;
};
template <> struct generated_words<4> {
    typedef uint32_t type;
};
template <> struct generated_words<8> {
    typedef uint2 type;
};
template <> struct generated_words<16> {
    typedef uint4 type;
};

/* The most bytes that one instruction moves; more are moved by several. */
template <typename T, int WIDE> constexpr int generated_bytes()
{
    return sizeof(T) * WIDE < 16 ? (int)sizeof(T) * WIDE : 16;
}

template <int WIDE, typename T> GPU_DEVICE bool generated_is_wide(const T *at)
{
    return (uint64_t)at % generated_bytes<T, WIDE>() == 0;
}

template <int WIDE, typename T> GPU_DEVICE void generated_load(const T *at, float (&to)[WIDE])
{
    typedef typename generated_words<generated_bytes<T, WIDE>()>::type words;
    constexpr int TIMES = (int)sizeof(T) * WIDE / (int)sizeof(words);
    union {
        words w[TIMES];
        T elements[WIDE];
    } all;

#pragma unroll
    for (int i = 0; i < TIMES; i++)
        all.w[i] = ((const words *)at)[i];
#pragma unroll
    for (int u = 0; u < WIDE; u++)
        to[u] = gpu_to_f32(all.elements[u]);
}

template <int WIDE, typename T> GPU_DEVICE void generated_store(T *at, const float (&from)[WIDE])
{
    typedef typename generated_words<generated_bytes<T, WIDE>()>::type words;
    constexpr int TIMES = (int)sizeof(T) * WIDE / (int)sizeof(words);
    union {
        words w[TIMES];
        T elements[WIDE];
    } all;

#pragma unroll
    for (int u = 0; u < WIDE; u++)
        gpu_from_f32(&all.elements[u], from[u]);
#pragma unroll
    for (int i = 0; i < TIMES; i++)
        ((words *)at)[i] = all.w[i];
}

/* Elements e / DIV % LENGTH and the following ones; e is a multiple of WIDE. */
template <int64_t DIV, int64_t LENGTH, int WIDE, typename T, typename Index>
GPU_DEVICE void generated_load_stretched(const T *at, Index e, float (&to)[WIDE])
{
    if constexpr (WIDE > 1 && DIV == 1 && LENGTH % WIDE == 0) {
        generated_load(at + e % (Index)LENGTH, to);
    } else if constexpr (DIV % WIDE == 0) {
        const float x = gpu_to_f32(at[e / (Index)DIV % (Index)LENGTH]);
#pragma unroll
        for (int u = 0; u < WIDE; u++)
            to[u] = x;
    } else {
#pragma unroll
        for (int u = 0; u < WIDE; u++)
            to[u] = gpu_to_f32(at[(e + (Index)u) / (Index)DIV % (Index)LENGTH]);
    }
}

/* ---- operations: step.hip has the same expressions ---- */

GPU_DEVICE float step_add(float x, float y)
{
#if defined(__CUDACC__)
    return __fadd_rn(x, y);
#else
#pragma clang fp contract(off)
    return x + y;
#endif
}

GPU_DEVICE float step_sub(float x, float y)
{
#if defined(__CUDACC__)
    return __fsub_rn(x, y);
#else
#pragma clang fp contract(off)
    return x - y;
#endif
}

GPU_DEVICE float step_mul(float x, float y)
{
#if defined(__CUDACC__)
    return __fmul_rn(x, y);
#else
#pragma clang fp contract(off)
    return x * y;
#endif
}

#define STEP_SINGLE(name, EXPRESSION)                                                                                          \
    GPU_DEVICE float name(float x)                                                                                             \
    {                                                                                                                          \
        return (float)(EXPRESSION);                                                                                            \
    }
#define STEP_PAIR(name, EXPRESSION)                                                                                            \
    GPU_DEVICE float name(float x, float y)                                                                                    \
    {                                                                                                                          \
        return (float)(EXPRESSION);                                                                                            \
    }
STEP_PAIR(step_div, x / y)
STEP_PAIR(step_lt, x < y)
STEP_PAIR(step_le, x <= y)
STEP_PAIR(step_gt, x > y)
STEP_PAIR(step_ge, x >= y)
STEP_PAIR(step_eq, x == y)
STEP_PAIR(step_ne, x != y)
STEP_PAIR(step_max, x > y || x != x ? x : y)
STEP_PAIR(step_min, x < y || x != x ? x : y)
STEP_PAIR(step_pow, powf(x, y))
STEP_SINGLE(step_neg, -x)
STEP_SINGLE(step_abs, fabsf(x))
STEP_SINGLE(step_sqrt, sqrtf(x))
STEP_SINGLE(step_rsqrt, 1.0f / sqrtf(x))
STEP_SINGLE(step_exp, expf(x))
STEP_SINGLE(step_log, logf(x))
STEP_SINGLE(step_tanh, tanhf(x))
STEP_SINGLE(step_sigmoid, 1.0f / (1.0f + expf(-x)))
STEP_SINGLE(step_relu, x > 0 || x != x ? x : 0)
STEP_SINGLE(step_gelu, 0.5f * x * (1.0f + erff(x * 0.70710678f)))
STEP_SINGLE(step_silu, x / (1.0f + expf(-x)))
#undef STEP_SINGLE
#undef STEP_PAIR

GPU_DEVICE float step_select(float condition, float x, float y)
{
    return condition != 0 ? x : y;
}

/* What a dtype of 16 bits leaves of it. */
template <typename T> GPU_DEVICE float step_rounded(float x)
{
    T rounded;

    gpu_from_f32(&rounded, x);
    return gpu_to_f32(rounded);
}

/* A dropout's numbers. */
struct step_dropout {
    uint64_t key;
    uint32_t dropped;
    float keep;

    __device__ __forceinline__ void begin(const struct code_instruction &i)
    {
        key = i.key;
        dropped = (uint32_t)ceil(i.number * 16777216.0);
        keep = (float)(1 - i.number);
    }

    /* As dropout_bits() in kernels/program/program.h. */
    __device__ __forceinline__ float operator()(float x, uint64_t element) const
    {
        uint64_t bits = key + element * UINT64_C(0x9e3779b97f4a7c15);

        bits = (bits ^ bits >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        bits = (bits ^ bits >> 27) * UINT64_C(0x94d049bb133111eb);
        return (uint32_t)((bits ^ bits >> 31) >> 40) < dropped ? 0 : x / keep;
    }
};

/* ---- slices ---- */

template <typename Step> struct generated_run {
    typedef typename Step::index index;
    Step step;
    const struct gpu_step *of = NULL; /* the run of which `step` has the addresses and numbers */
    uint64_t reached;                 /* ranks that get the slice's result: a bit each */

    /* The elements from e on: sums in rank order, the step, and the result to all ranks, beginning with the next one. */
    template <int WIDE> __device__ __forceinline__ void elements(const struct gpu_call &call, uint32_t rank, index e) const
    {
        float sum[WIDE], result[WIDE];

        if constexpr (Step::SUMS) {
#pragma unroll
            for (int r = 0; r < Step::RANKS; r++) {
                float x[WIDE];
                generated_load(((const typename Step::sum_type *)call.out[r].in) + e, x);
#pragma unroll
                for (int u = 0; u < WIDE; u++)
                    sum[u] = r ? sum[u] + x[u] : x[u];
            }
        }
        step.template run<WIDE>(e, sum, result);
        if constexpr (Step::SUMS) {
#pragma unroll
            for (uint32_t r = 0; r < Step::RANKS; r++) {
                const uint32_t dst = gpu_rank_at(r, rank, Step::RANKS);
                if (reached >> dst & 1u)
                    generated_store(((typename Step::out_type *)call.out[dst].data) + e, result);
            }
        }
    }

    __device__ __forceinline__ bool is_wide(const struct gpu_call &call, index e) const
    {
        bool wide = step.wide(e);

        if constexpr (Step::SUMS)
            for (int r = 0; r < Step::RANKS; r++)
                wide = wide && generated_is_wide<Step::WIDTH>(((const typename Step::sum_type *)call.out[r].in) + e) &&
                       generated_is_wide<Step::WIDTH>(((const typename Step::out_type *)call.out[r].data) + e);
        return wide;
    }

    __device__ __forceinline__ void begin(const struct gpu_call &call, const struct gpu_plan *plan, uint32_t run,
                                          const struct slice &s)
    {
        const struct gpu_step *now = (const struct gpu_step *)call.in[run].vector.parts;
        const struct code_head *head = (const struct code_head *)(now + 1);

        if (now != of)
            step.begin(*now, (const struct code_instruction *)((const struct code_operand *)(head + 1) + head->operands));
        of = now;
        reached = 0;
        for (uint32_t dst = 0; Step::SUMS && dst < Step::RANKS; dst++)
            reached |= (uint64_t)gpu_plan_reaches(plan, s.dst, dst) << dst;
    }

    __device__ __forceinline__ bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        const struct gpu_plan *plan = gpu_plan_of(call, run);
        const struct gpu_shape &shape = call.fixed->shape;

        begin(call, plan, run, s);
        const struct vector_piece piece =
            Step::SUMS ? vector_piece_reduced(shape, plan->rank, s)
                       : vector_piece_make(shape, of->begin + (int64_t)s.col * shape.unit, s.cols, of->begin + of->count);
        const index end = (index)(piece.at + piece.count),
                    first = (index)((piece.at + Step::WIDTH - 1) / Step::WIDTH * Step::WIDTH);
        index e = (index)piece.at + threadIdx.x;
        if (Step::WIDTH > 1 && first + Step::WIDTH <= end && is_wide(call, first)) {
            if (e < first)
                elements<1>(call, plan->rank, e);
            for (e = first + threadIdx.x * Step::WIDTH; e + Step::WIDTH <= end; e += GENERATED_THREADS * Step::WIDTH)
                elements<Step::WIDTH>(call, plan->rank, e);
            e = first + (end - first) / Step::WIDTH * Step::WIDTH + threadIdx.x;
        }
        for (; e < end; e += GENERATED_THREADS)
            elements<1>(call, plan->rank, e);
        return true;
    }
};

/* The kernel, whose name the plug-in asks for. RESIDENT: workgroups of a multiprocessor. */
#define GENERATED_KERNEL(Step, RESIDENT)                                                                                       \
    extern "C" __global__ void __launch_bounds__(GENERATED_THREADS, RESIDENT)                                                  \
        fcc_generated_step(GPU_PARAMETER struct gpu_call call)                                                                 \
    {                                                                                                                          \
        struct generated_run<Step> op;                                                                                         \
                                                                                                                               \
        gpu_execute(call, op);                                                                                                 \
    }
#endif
