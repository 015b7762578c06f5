/* SPDX-License-Identifier: MIT
 *
 * factors.h - the factors of a product on a GPU that may be e4m3, each by itself, with scales (kernels/plan/compute/factors.h; on cores:
 * kernels/cpu/dense.c). Each code is converted to f32, f16 or bf16, all of which have its value. So no chip needs instructions for e4m3; those that
 * have some use them.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_FACTORS_H
#define FCC_KERNELS_GPU_DEVICE_FACTORS_H

#include "kernels/gpu/abi.h"
#include "kernels/gpu/device/vector.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#include <cuda_fp8.h>
#endif

/* ---- codes ---- */

/* Four codes, the first one in the lowest bits. As an f32 a code's exponent and fraction stand for 2^-120 of it, subnormal ones, too. */
GPU_DEVICE void gpu_f8_to_f32(float (&out)[4], uint32_t codes)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(codes >> 8 * i), __NV_E4M3);
        const float2 two = __half22float2(*(const __half2 *)&raw);
        out[i] = two.x;
        out[i + 1] = two.y;
    }
#else
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t code = codes >> 8 * i & 0xff, magnitude = code & 0x7f;
        const float value = __uint_as_float(magnitude << 20) * __uint_as_float(247u << 23); /* 2^120 */
        out[i] = __uint_as_float((magnitude == 0x7f ? 0x7fc00000u : __float_as_uint(value)) | code >> 7 << 31);
    }
#endif
}

/* ---- scales ---- */

/* The scale of element [i][j]. */
GPU_DEVICE float gpu_scale(const struct gpu_scales &s, uint32_t i, uint32_t j)
{
    return s.at ? ((const float *)s.at)[(uint64_t)((i + s.first) >> s.rows) * s.stride + (j >> s.cols)] : 1.0f;
}

/* The second argument of kernels for factors in e4m3. */
struct gpu_scales_argument {
    struct gpu_factor_scales runs[GPU_MAX_RUNS];
};

/* ---- elements of a row ---- */

/* A factor's elements as they are stored: e4m3, or those of the result. */
template <typename T, bool F8> struct gpu_stored {
    typedef T type;
};
template <typename T> struct gpu_stored<T, true> {
    typedef uint8_t type;
};

/* COUNT neighbouring elements of a row, as they are stored: 4 to 64 bytes. */
template <typename T, bool F8, int COUNT> struct gpu_elements {
    typedef typename gpu_stored<T, F8>::type stored;
    enum { BYTES = COUNT * (int)sizeof(stored), WORDS = BYTES / 4, PER_WORD = 4 / (int)sizeof(stored) };
    uint32_t words[WORDS];

    /* The first `valid` of them; the others are 0. aligned: they lie at a multiple of BYTES, or of 16. */
    __device__ __forceinline__ void load(const stored *from, int64_t valid, bool aligned)
    {
        if (aligned && valid >= COUNT) {
            load_whole((const uint32_t *)from);
            return;
        }
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            words[i] = 0;
#pragma unroll
            for (int j = 0; j < PER_WORD; j++)
                if (i * PER_WORD + j < valid)
                    words[i] |= bits_of(from + i * PER_WORD + j) << (32 / PER_WORD * j) % 32;
        }
    }

    __device__ __forceinline__ void to_f32(float (&out)[COUNT]) const
    {
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            if constexpr (F8) {
                float four[4];
                gpu_f8_to_f32(four, words[i]);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    out[i * 4 + j] = four[j];
            } else {
#pragma unroll
                for (int j = 0; j < PER_WORD; j++)
                    out[i * PER_WORD + j] = gpu_vector<T>::element_to_f32((gpu_bits<T>)(words[i] >> (32 / PER_WORD * j) % 32));
            }
        }
    }

  private:
    static __device__ __forceinline__ uint32_t bits_of(const uint8_t *at)
    {
        return *at;
    }
    template <typename V> static __device__ __forceinline__ uint32_t bits_of(const V *at)
    {
        return gpu_bits_load((const gpu_bits<V> *)at);
    }

    __device__ __forceinline__ void load_whole(const uint32_t *from)
    {
        if constexpr (WORDS >= 4) {
#pragma unroll
            for (int i = 0; i < WORDS; i += 4) {
                const struct gpu_words w = gpu_words_load(from + i, true);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    words[i + j] = w.at[j];
            }
        } else if constexpr (WORDS == 2) {
            const uint2 two = *(const uint2 *)from;
            words[0] = two.x;
            words[1] = two.y;
        } else {
            words[0] = *from;
        }
    }
};

/* Whether every row of a matrix begins at a multiple of 16 bytes. */
template <typename S> GPU_DEVICE bool gpu_stored_aligned(const S *at, int64_t nrows, int64_t stride)
{
    return (uint64_t)at % 16 == 0 && (nrows <= 1 || stride * (int64_t)sizeof(S) % 16 == 0);
}

#endif
