/* SPDX-License-Identifier: MIT
 *
 * combine.h - reduces vectors element by element, in a fixed order, on a GPU: the same arithmetic as kernels/cpu/combine.c.
 *
 * f16 and bf16 are combined in f32 and rounded once. A minimum or maximum is IEEE 754-2019's: of a NaN it is NaN, and -0 is below +0.
 * Integers are added and multiplied as unsigned ones, which wrap around.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_COMBINE_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_COMBINE_H

#include "kernels/gpu/abi.h"
#include "kernels/gpu/device/vector.h"

/* The type in which elements of T are combined. */
template <typename T> struct combine_in {
    typedef T type;
};
template <> struct combine_in<gpu_f16> {
    typedef float type;
};
template <> struct combine_in<gpu_bf16> {
    typedef float type;
};

template <typename T, typename S> GPU_DEVICE S combine_load(T x)
{
    if constexpr (sizeof(T) == sizeof(S))
        return x;
    else
        return gpu_to_f32(x);
}

template <typename T, typename S> GPU_DEVICE T combine_round(S x)
{
    T rounded;

    if constexpr (sizeof(T) == sizeof(S))
        rounded = x;
    else
        gpu_from_f32(&rounded, x);
    return rounded;
}

/* ---- two elements ---- */

template <typename S> struct combine_unsigned {
    typedef S type; /* of a float, itself */
};
template <> struct combine_unsigned<int8_t> {
    typedef uint8_t type;
};
template <> struct combine_unsigned<int32_t> {
    typedef uint32_t type;
};
template <> struct combine_unsigned<int64_t> {
    typedef uint64_t type;
};

template <typename S> GPU_DEVICE constexpr bool combine_is_float()
{
    return (S)0.5f != (S)0;
}

/* In place of the smaller (larger) of two: a NaN if one of them is; of two zeros, the negative (positive) one. */
template <bool LARGER, typename S> GPU_DEVICE S combine_choose(S x, S y)
{
    bool first = LARGER ? x > y : x < y;

    if constexpr (combine_is_float<S>())
        first = first || x != x || (x == y && (signbit(x) != 0) != LARGER);
    return first ? x : y;
}

/* One of the dtype's reductions, as a number that the compiler knows. */
template <enum fcc_reduction REDUCTION, typename S> GPU_DEVICE S combine_two(S x, S y)
{
    typedef typename combine_unsigned<S>::type wrapping;

    if constexpr (REDUCTION == FCC_SUM)
        return (S)((wrapping)x + (wrapping)y);
    else if constexpr (REDUCTION == FCC_PRODUCT)
        return (S)((wrapping)x * (wrapping)y);
    else if constexpr (REDUCTION == FCC_MIN || REDUCTION == FCC_MAX)
        return combine_choose<REDUCTION == FCC_MAX>(x, y);
    else if constexpr (combine_is_float<S>())
        return x; /* floats have no bitwise reductions: kernels/plan/compute/vector.c refuses them */
    else if constexpr (REDUCTION == FCC_AND)
        return (S)(x & y);
    else if constexpr (REDUCTION == FCC_OR)
        return (S)(x | y);
    else
        return (S)(x ^ y);
}

template <enum fcc_reduction REDUCTION, typename S, int N> GPU_DEVICE void combine_all(S (&sum)[N], const S (&term)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[i] = combine_two<REDUCTION>(sum[i], term[i]);
}

/* sum = sum combined with term. FCC_AVERAGE adds up. All threads of a wave have the same reduction. */
template <typename S, int N> GPU_DEVICE void combine(uint32_t reduction, S (&sum)[N], const S (&term)[N])
{
    switch (reduction) {
    case FCC_SUM:
    case FCC_AVERAGE:
        combine_all<FCC_SUM>(sum, term);
        break;
    case FCC_PRODUCT:
        combine_all<FCC_PRODUCT>(sum, term);
        break;
    case FCC_MIN:
        combine_all<FCC_MIN>(sum, term);
        break;
    case FCC_MAX:
        combine_all<FCC_MAX>(sum, term);
        break;
    case FCC_AND:
        combine_all<FCC_AND>(sum, term);
        break;
    case FCC_OR:
        combine_all<FCC_OR>(sum, term);
        break;
    default:
        combine_all<FCC_XOR>(sum, term);
        break;
    }
}

/* What follows all ranks' terms. */
template <typename S, int N> GPU_DEVICE void combine_end(uint32_t reduction, uint32_t nranks, S (&sum)[N])
{
    if constexpr (combine_is_float<S>())
        if (reduction == FCC_AVERAGE) {
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] /= (S)nranks;
        }
}

/* ---- sixteen bytes of elements ---- */

template <typename T> struct combine_words {
    enum { LENGTH = 16 / sizeof(T) };
    typedef typename combine_in<T>::type S;

    static __device__ __forceinline__ void load(S (&out)[LENGTH], const struct gpu_words &w)
    {
        T elements[LENGTH];
        __builtin_memcpy(elements, &w, sizeof(elements));
#pragma unroll
        for (int i = 0; i < LENGTH; i++)
            out[i] = combine_load<T, S>(elements[i]);
    }

    static __device__ __forceinline__ struct gpu_words store(const S (&in)[LENGTH])
    {
        T elements[LENGTH];
        struct gpu_words w;
#pragma unroll
        for (int i = 0; i < LENGTH; i++)
            elements[i] = combine_round<T, S>(in[i]);
        __builtin_memcpy(&w, elements, sizeof(w));
        return w;
    }
};

#endif
