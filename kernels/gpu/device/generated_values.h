/* SPDX-License-Identifier: MIT
 *
 * generated_values.h - the values of a program's step in generated code: several elements of a thread at a time, and what is done with them. It needs
 * nothing but the elements' types, GPU_DEVICE, and code.h, so that it can be compiled for a cpu, too: tests/program/test_generate.c.
 *
 * An element has the same bits as the interpreter's. An addition and a multiplication of the program are never joined into one multiply-add, because the
 * interpreter has a store between them; within one operation, both are compiled from one expression.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_GENERATED_VALUES_H
#define FCC_KERNELS_GPU_DEVICE_GENERATED_VALUES_H

#include "kernels/gpu/platform.h"
#include "kernels/program/code.h"

/* ---- several elements at a time ---- */

template <int WIDE> struct floats {
    float at[WIDE];
};

/* A number is the same for all elements. */
GPU_DEVICE float generated_element(float x, int)
{
    return x;
}
template <int WIDE> GPU_DEVICE float generated_element(const floats<WIDE> &x, int u)
{
    return x.at[u];
}

/* As many elements as the wider one of the operands has. */
template <typename... All> struct generated_wider {
    typedef float type;
};
template <int WIDE, typename... Others> struct generated_wider<floats<WIDE>, Others...> {
    typedef floats<WIDE> type;
};
template <typename... Others> struct generated_wider<float, Others...> {
    typedef typename generated_wider<Others...>::type type;
};

/* The operation, element by element. */
template <typename Operation> GPU_DEVICE float generated_each(const Operation &operation, float *, int)
{
    return operation(0);
}
template <typename Operation, int WIDE> GPU_DEVICE floats<WIDE> generated_each(const Operation &operation, floats<WIDE> *, int)
{
    floats<WIDE> to;

#pragma unroll
    for (int u = 0; u < WIDE; u++)
        to.at[u] = operation(u);
    return to;
}
#define GENERATED_EACH(type, EXPRESSION) generated_each([&](int u) -> float { return (EXPRESSION); }, (type *)NULL, 0)

template <typename A> struct generated_width;
template <> struct generated_width<float> {
    enum { value = 1 };
};
template <int WIDE> struct generated_width<floats<WIDE>> {
    enum { value = WIDE };
};

template <int WIDE, typename A> GPU_DEVICE floats<WIDE> generated_wide(const A &x)
{
    return GENERATED_EACH(floats<WIDE>, generated_element(x, u));
}

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

/* So that the compiler takes instructions for a GPU's memory. */
GPU_DEVICE void generated_in_memory(const void *at)
{
#if defined(__CUDACC__)
    __builtin_assume(__isGlobal(at));
#else
    (void)at;
#endif
}

template <int WIDE, typename T> GPU_DEVICE floats<WIDE> generated_load(const T *at)
{
    typedef typename generated_words<generated_bytes<T, WIDE>()>::type words;
    constexpr int TIMES = (int)sizeof(T) * WIDE / (int)sizeof(words);
    floats<WIDE> to;
    union {
        words w[TIMES];
        T elements[WIDE];
    } all;

    generated_in_memory(at);
#pragma unroll
    for (int i = 0; i < TIMES; i++)
        all.w[i] = ((const words *)at)[i];
#pragma unroll
    for (int u = 0; u < WIDE; u++)
        to.at[u] = gpu_to_f32(all.elements[u]);
    return to;
}

template <int WIDE, typename T> GPU_DEVICE void generated_store(T *at, const floats<WIDE> &from)
{
    typedef typename generated_words<generated_bytes<T, WIDE>()>::type words;
    constexpr int TIMES = (int)sizeof(T) * WIDE / (int)sizeof(words);
    union {
        words w[TIMES];
        T elements[WIDE];
    } all;

    generated_in_memory(at);
#pragma unroll
    for (int u = 0; u < WIDE; u++)
        gpu_from_f32(&all.elements[u], from.at[u]);
#pragma unroll
    for (int i = 0; i < TIMES; i++)
        ((words *)at)[i] = all.w[i];
}
/* A number that is stored for all elements. */
template <int WIDE, typename T> GPU_DEVICE void generated_store(T *at, float from)
{
    generated_store<WIDE>(at, generated_wide<WIDE>(from));
}

/* The same where the place need not be aligned: one after the other then. Tensors of a table, and sums, begin anywhere. */
template <int WIDE, typename T> GPU_DEVICE floats<WIDE> generated_load_any(const T *at)
{
    if (WIDE > 1 && !generated_is_wide<WIDE>(at))
        return GENERATED_EACH(floats<WIDE>, gpu_to_f32(at[u]));
    return generated_load<WIDE>(at);
}
template <int WIDE, typename T> GPU_DEVICE void generated_store_any(T *at, const floats<WIDE> &from)
{
    if (WIDE == 1 || generated_is_wide<WIDE>(at)) {
        generated_store<WIDE>(at, from);
        return;
    }
#pragma unroll
    for (int u = 0; u < WIDE; u++)
        gpu_from_f32(at + u, from.at[u]);
}
template <int WIDE, typename T> GPU_DEVICE void generated_store_any(T *at, float from)
{
    generated_store_any<WIDE>(at, generated_wide<WIDE>(from));
}

/* ANY: where the place need not be aligned. */
template <int WIDE, bool ANY, typename T> GPU_DEVICE floats<WIDE> generated_load_at(const T *at)
{
    if constexpr (ANY)
        return generated_load_any<WIDE>(at);
    else
        return generated_load<WIDE>(at);
}
template <int WIDE, bool ANY, typename T, typename From> GPU_DEVICE void generated_store_at(T *at, const From &from)
{
    if constexpr (ANY)
        generated_store_any<WIDE>(at, from);
    else
        generated_store<WIDE>(at, from);
}

/* Elements own / DIV and the following ones: one for each DIV of the rank's own. */
template <int WIDE, int64_t DIV, typename T, typename Index> GPU_DEVICE floats<WIDE> generated_load_each(const T *at, Index own)
{
    if (own % (Index)DIV + (Index)(WIDE - 1) < (Index)DIV) {
        const float x = gpu_to_f32(at[own / (Index)DIV]);
        return generated_wide<WIDE>(x);
    }
    return GENERATED_EACH(floats<WIDE>, gpu_to_f32(at[(own + (Index)u) / (Index)DIV]));
}

/* Where the rank's own element is in rows of DIV elements, of which the first LENGTH are worked on. */
template <int64_t DIV, int64_t LENGTH, typename Index> GPU_DEVICE Index generated_part(Index own)
{
    return own / (Index)LENGTH * (Index)DIV + own % (Index)LENGTH;
}
/* Whether WIDE of them from there on are neighbours, and may be moved at once. */
template <int WIDE, int64_t DIV, int64_t LENGTH, typename T, typename Index>
GPU_DEVICE bool generated_part_is_wide(const T *at, Index own)
{
    return LENGTH % WIDE == 0 && own % (Index)WIDE == 0 && generated_is_wide<WIDE>(at + generated_part<DIV, LENGTH>(own));
}
template <int WIDE, int64_t DIV, int64_t LENGTH, typename T, typename Index>
GPU_DEVICE floats<WIDE> generated_load_part(const T *at, Index own)
{
    if (WIDE > 1 && generated_part_is_wide<WIDE, DIV, LENGTH>(at, own))
        return generated_load<WIDE>(at + generated_part<DIV, LENGTH>(own));
    return GENERATED_EACH(floats<WIDE>, gpu_to_f32(at[(generated_part<DIV, LENGTH>(own + (Index)u))]));
}
template <int WIDE, int64_t DIV, int64_t LENGTH, typename T, typename Index>
GPU_DEVICE void generated_store_part(T *at, Index own, const floats<WIDE> &from)
{
    if (WIDE > 1 && generated_part_is_wide<WIDE, DIV, LENGTH>(at, own)) {
        generated_store<WIDE>(at + generated_part<DIV, LENGTH>(own), from);
        return;
    }
#pragma unroll
    for (int u = 0; u < WIDE; u++)
        gpu_from_f32(at + generated_part<DIV, LENGTH>(own + (Index)u), from.at[u]);
}
template <int WIDE, int64_t DIV, int64_t LENGTH, typename T, typename Index>
GPU_DEVICE void generated_store_part(T *at, Index own, float from)
{
    generated_store_part<WIDE, DIV, LENGTH>(at, own, generated_wide<WIDE>(from));
}

/* Elements e / DIV % LENGTH and the following ones; without ANY, e is a multiple of WIDE. */
template <int WIDE, bool ANY, int64_t DIV, int64_t LENGTH, typename T, typename Index>
GPU_DEVICE floats<WIDE> generated_load_stretched(const T *at, Index e)
{
    if constexpr (!ANY && WIDE > 1 && DIV == 1 && LENGTH % WIDE == 0) {
        return generated_load<WIDE>(at + e % (Index)LENGTH);
    } else if constexpr (LENGTH == 1 || (!ANY && DIV % WIDE == 0)) {
        const float x = gpu_to_f32(at[e / (Index)DIV % (Index)LENGTH]);
        return generated_wide<WIDE>(x);
    } else {
        return GENERATED_EACH(floats<WIDE>, gpu_to_f32(at[(e + (Index)u) / (Index)DIV % (Index)LENGTH]));
    }
}

/* ---- operations: step.hip has the same expressions ---- */

/* On HIP no two operations are joined where one of them says so. */
#if defined(__CUDACC__)
#define STEP_ALONE
#define STEP_ADDED(x, y) __fadd_rn(x, y)
#define STEP_SUBTRACTED(x, y) __fsub_rn(x, y)
#define STEP_MULTIPLIED(x, y) __fmul_rn(x, y)
#else
#define STEP_ALONE _Pragma("clang fp contract(off)")
#define STEP_ADDED(x, y) ((x) + (y))
#define STEP_SUBTRACTED(x, y) ((x) - (y))
#define STEP_MULTIPLIED(x, y) ((x) * (y))
#endif
#define STEP_SINGLE(name, EXPRESSION)                                                                                          \
    GPU_DEVICE float name##_one(float x)                                                                                       \
    {                                                                                                                          \
        return (float)(EXPRESSION);                                                                                            \
    }                                                                                                                          \
    template <typename A> GPU_DEVICE A name(const A &x)                                                                        \
    {                                                                                                                          \
        return GENERATED_EACH(A, name##_one(generated_element(x, u)));                                                         \
    }
#define STEP_PAIR_ONE(name, EXPRESSION)                                                                                        \
    GPU_DEVICE float name##_one(float x, float y)                                                                              \
    {                                                                                                                          \
        STEP_ALONE                                                                                                             \
        return (float)(EXPRESSION);                                                                                            \
    }
#define STEP_PAIR(name, EXPRESSION)                                                                                            \
    STEP_PAIR_ONE(name, EXPRESSION)                                                                                            \
    template <typename A, typename B> GPU_DEVICE typename generated_wider<A, B>::type name(const A &x, const B &y)             \
    {                                                                                                                          \
        typedef typename generated_wider<A, B>::type type;                                                                     \
        return GENERATED_EACH(type, name##_one(generated_element(x, u), generated_element(y, u)));                             \
    }
STEP_PAIR(step_add, STEP_ADDED(x, y))
STEP_PAIR(step_sub, STEP_SUBTRACTED(x, y))
STEP_PAIR(step_mul, STEP_MULTIPLIED(x, y))
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
STEP_SINGLE(step_exp, expf(x))
STEP_SINGLE(step_log, logf(x))
STEP_SINGLE(step_tanh, tanhf(x))
STEP_SINGLE(step_sigmoid, 1.0f / (1.0f + expf(-x)))
STEP_SINGLE(step_relu, x > 0 || x != x ? x : 0)
STEP_SINGLE(step_gelu, 0.5f * x * (1.0f + erff(x * 0.70710678f)))
STEP_SINGLE(step_silu, x / (1.0f + expf(-x)))

/* Quotients and roots, correctly rounded. The compiler's code has a branch for each element, behind which the next one begins, and takes another way for zeros.
 * That took more time than the memory. Here one branch is for all elements of a thread: where none is tiny, huge, infinite or a NaN, which zeros need not be,
 * the same steps that the compiler takes give the same bits; otherwise the compiler's code runs. */
STEP_PAIR_ONE(step_div, x / y)
STEP_SINGLE(step_root, sqrtf(x))
STEP_SINGLE(step_rsqrt, 1.0f / sqrtf(x))

#if defined(__CUDACC__)
/* Of magnitudes: those that are 0 are left out of the least one. */
struct generated_range {
    uint32_t least, greatest;

    __device__ __forceinline__ void take(float x)
    {
        const uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;

        least = min(least, 2 * bits - 1); /* of 0: the greatest number */
        greatest = max(greatest, magnitude);
    }

    __device__ __forceinline__ bool is_within(float lower, float upper) const
    {
        return least >= 2 * __float_as_uint(lower) - 1 && greatest <= __float_as_uint(upper);
    }
};

/* What the compiler makes of x / y, where a quotient is neither tiny nor huge, nor what is left of x. The sign of a 0 is that of the product. */
GPU_DEVICE float step_div_plain(float x, float y)
{
    float r, q;

    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(y));
    r = __fmaf_rn(r, __fmaf_rn(-y, r, 1.0f), r);
    q = __fmul_rn(r, x);
    return x == 0 ? q : __fmaf_rn(r, __fmaf_rn(-y, q, x), q);
}

/* ... and of sqrtf(x), x not below 0. */
GPU_DEVICE float step_root_plain(float x)
{
    float r, q;

    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    q = __fmul_rn(r, x);
    return x == 0 ? x : __fmaf_rn(__fmaf_rn(-q, q, x), __fmul_rn(r, 0.5f), q);
}
#endif

template <typename A, typename B> GPU_DEVICE typename generated_wider<A, B>::type step_div(const A &x, const B &y)
{
    typedef typename generated_wider<A, B>::type type;

#if defined(__CUDACC__)
    if constexpr (generated_width<type>::value > 1) {
        struct generated_range of_x = {~0u, 0}, of_y = {~0u, 0};
        bool divides = true; /* y is nowhere 0 */
        (void)GENERATED_EACH(A, (of_x.take(generated_element(x, u)), 0));
        (void)GENERATED_EACH(B, (of_y.take(generated_element(y, u)), divides = divides && generated_element(y, u) != 0, 0));
        if (divides && of_x.is_within(0x1p-100f, 0x1p90f) && of_y.is_within(0x1p-36f, 0x1p26f))
            return GENERATED_EACH(type, step_div_plain(generated_element(x, u), generated_element(y, u)));
    }
#endif
    return GENERATED_EACH(type, step_div_one(generated_element(x, u), generated_element(y, u)));
}

template <typename A> GPU_DEVICE A step_sqrt(const A &x)
{
#if defined(__CUDACC__)
    if constexpr (generated_width<A>::value > 1) {
        struct generated_range range = {~0u, 0};
        uint32_t signs = 0;
        (void)GENERATED_EACH(A, (range.take(generated_element(x, u)), signs |= __float_as_uint(generated_element(x, u)), 0));
        if (!(signs >> 31) && range.is_within(0x1p-100f, 0x1p100f))
            return GENERATED_EACH(A, step_root_plain(generated_element(x, u)));
    }
#endif
    return step_root(x);
}

template <typename C, typename A, typename B>
GPU_DEVICE typename generated_wider<C, A, B>::type step_select(const C &condition, const A &x, const B &y)
{
    typedef typename generated_wider<C, A, B>::type type;

    return GENERATED_EACH(type, generated_element(condition, u) != 0 ? generated_element(x, u) : generated_element(y, u));
}

/* What a dtype of 16 bits leaves of it. */
template <typename T> GPU_DEVICE float step_rounded_one(float x)
{
    T rounded;

    gpu_from_f32(&rounded, x);
    return gpu_to_f32(rounded);
}

template <typename T, typename A> GPU_DEVICE A step_rounded(const A &x)
{
    return GENERATED_EACH(A, step_rounded_one<T>(generated_element(x, u)));
}

/* What is stored of a sum. */
struct step_sum {
    double divisor;
    bool root;

    __device__ __forceinline__ void begin(const struct code_instruction &i)
    {
        divisor = i.number;
        root = i.key != 0;
    }

    template <typename T> __device__ __forceinline__ void store(T *at, double total) const
    {
        gpu_from_f32(at, (float)(root ? sqrt(total / divisor) : total / divisor));
    }
};

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
    __device__ __forceinline__ float one(float x, uint64_t element) const
    {
        uint64_t bits = key + element * UINT64_C(0x9e3779b97f4a7c15);

        bits = (bits ^ bits >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        bits = (bits ^ bits >> 27) * UINT64_C(0x94d049bb133111eb);
        return (uint32_t)((bits ^ bits >> 31) >> 40) < dropped ? 0 : x / keep;
    }

    /* Of the elements from `element` on. */
    template <int WIDE, typename A> __device__ __forceinline__ floats<WIDE> of(const A &x, uint64_t element) const
    {
        return GENERATED_EACH(floats<WIDE>, one(generated_element(x, u), element + (uint64_t)u));
    }
};

#endif
