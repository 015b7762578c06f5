/* SPDX-License-Identifier: MIT
 *
 * dtype.h - f16, bf16 and e4m3 to f32 and back, sixteen elements at a time.
 *
 * Vectors are the compiler's own (vector_size), so one source serves every width; functions with hot loops are marked
 * FCC_CLONES and exist once for each level of the architecture. Rounding is to nearest even; subnormals, infinities and NaN
 * are kept (a NaN becomes quiet).
 */
#ifndef FCC_KERNELS_PLAN_DTYPE_H
#define FCC_KERNELS_PLAN_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "proto/fccclient.h"

/* Thread sanitizer's run time is not up yet when the resolvers of clones run. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define FCC_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FCC_CLONES
#endif
#define FCC_INLINE static inline __attribute__((always_inline))

/* Passed by pointer only: by value they would have a different ABI in each clone. In a loop, one that is wider than the processor's vectors is kept in memory:
 * kernels/cpu/lanes/lanes.h. */
typedef float f32x4 __attribute__((vector_size(16)));
typedef float f32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

/* n elements; the arrays do not overlap. dtype is f32, f16 or bf16, and of dtype_to_f32() f8e4m3, too. */
void dtype_to_f32(float *dst, const void *src, enum fcc_dtype dtype, size_t n);
void dtype_from_f32(void *dst, const float *src, enum fcc_dtype dtype, size_t n);
/* To e4m3, to nearest even; beyond 448 in magnitude, infinities too, becomes 448 of that sign. */
void f8e4m3_from_f32(unsigned char *dst, const float *src, size_t n);

/* ---- 16 elements; src and dst need not be aligned; dtype should be a constant ---- */

/* Processors with F16C convert f16 themselves. No level of the architecture that functions exist for is all that have it, so this is looked at when they run;
 * four at a time, since the lowest level has no wider vectors, and by the assembler's names, as the compiler's need the option. */
#if defined(__x86_64__) && defined(__GNUC__)
#define FCC_F16C 1
typedef struct {
    unsigned char bytes[8];
} f16x4_f16c;
extern bool dtype_f16c; /* set before main() */

FCC_INLINE void f16c_load4(f32x4 *out, const void *src)
{
    __asm__("vcvtph2ps %1, %0" : "=x"(*out) : "m"(*(const f16x4_f16c *)src));
}

FCC_INLINE void f16c_load(f32x16 *out, const void *src)
{
    const f16x4_f16c *from = src;
    f32x4 v[4];

#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        f16c_load4(&v[i], from + i);
    *out = __builtin_shufflevector(__builtin_shufflevector(v[0], v[1], 0, 1, 2, 3, 4, 5, 6, 7),
                                   __builtin_shufflevector(v[2], v[3], 0, 1, 2, 3, 4, 5, 6, 7), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9,
                                   10, 11, 12, 13, 14, 15);
}

FCC_INLINE void f16c_store4(void *dst, const f32x4 *v)
{
    __asm__("vcvtps2ph $0, %1, %0" : "=m"(*(f16x4_f16c *)dst) : "x"(*v)); /* 0: to nearest even */
}

FCC_INLINE void f16c_store(void *dst, const f32x16 *in)
{
    f16x4_f16c *to = dst;
    f32x4 v[4];

    memcpy(v, in, sizeof(v));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        f16c_store4(to + i, &v[i]);
}
#endif

FCC_INLINE void f32x16_load_f16(f32x16 *out, const void *src)
{
#ifdef FCC_F16C
    if (dtype_f16c) {
        f16c_load(out, src);
        return;
    }
#endif
    u16x16 h;
    memcpy(&h, src, sizeof(h));
    u32x16 x = __builtin_convertvector(h, u32x16);
    u32x16 magnitude = (x & 0x7fff) << 13, sign = (x & 0x8000) << 16;
    /* Subnormal: the fraction is put below the exponent of 2^-14, whose 2^-14 is then taken away by the FPU. */
    u32x16 is_small = (u32x16)(magnitude < 0x00800000), is_special = (u32x16)(magnitude >= 0x0f800000);
    f32x16 small = (f32x16)(magnitude + 0x38800000) - 0x1p-14f;
    u32x16 normal = magnitude + 0x38000000 + (is_special & 0x38000000);
    *out = (f32x16)(sign | ((u32x16)small & is_small) | (normal & ~is_small));
}

FCC_INLINE void f32x16_load_bf16(f32x16 *out, const void *src)
{
    u16x16 h;
    memcpy(&h, src, sizeof(h));
    *out = (f32x16)(__builtin_convertvector(h, u32x16) << 16);
}

/* n codes, a plain loop, of which the compiler makes wider vectors than of 16 bytes at a time. A subnormal's fraction stands below the exponent of
 * 2^-7: doubled, less 2^-6, it is its value, and of all other numbers that is more than the number. Only the largest code is a NaN. */
FCC_INLINE void f8e4m3_load(float *restrict out, const unsigned char *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t code = src[i], magnitude = (code & 0x7f) << 20;
        int32_t normal = (int32_t)(magnitude + 0x3c000000), small;
        float v;
        memcpy(&v, &normal, sizeof(v));
        v = v + v - 0x1p-6f;
        memcpy(&small, &v, sizeof(v));
        const uint32_t bits = (uint32_t)(normal < small ? normal : small) | (code & 0x80) << 24;
        const uint32_t out_bits = magnitude == 0x07f00000 ? bits | 0x7fc00000 : bits;
        memcpy(out + i, &out_bits, sizeof(*out));
    }
}

FCC_INLINE void f32x16_load_f8e4m3(f32x16 *out, const void *src)
{
    float v[16];

    f8e4m3_load(v, src, 16);
    memcpy(out, v, sizeof(*out));
}

/* Bytes of an element of f32, f16, bf16 or f8e4m3. */
FCC_INLINE int64_t f32x16_source_bytes(enum fcc_dtype dtype)
{
    return dtype == FCC_F32 ? 4 : dtype == FCC_F8E4M3 ? 1 : 2;
}

FCC_INLINE void f32x16_load(f32x16 *out, const void *src, enum fcc_dtype dtype)
{
    if (dtype == FCC_F16)
        f32x16_load_f16(out, src);
    else if (dtype == FCC_BF16)
        f32x16_load_bf16(out, src);
    else if (dtype == FCC_F8E4M3)
        f32x16_load_f8e4m3(out, src);
    else
        memcpy(out, src, sizeof(*out));
}

FCC_INLINE void f32x16_store_f16(void *dst, const f32x16 *in)
{
#ifdef FCC_F16C
    if (dtype_f16c) {
        f16c_store(dst, in);
        return;
    }
#endif
    u32x16 bits = (u32x16)*in, magnitude = bits & 0x7fffffff, sign = (bits >> 16) & 0x8000;
    u32x16 is_nan = (u32x16)(magnitude > 0x7f800000), is_big = (u32x16)(magnitude >= 0x47800000),
           is_small = (u32x16)(magnitude < 0x38800000);
    u32x16 nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    /* Subnormal: one unit of 0.5's last place is one of f16's subnormals, so that the addition rounds. */
    u32x16 small = (u32x16)((f32x16)magnitude + 0.5f) - 0x3f000000;
    /* A carry goes into the exponent, up to infinity. */
    u32x16 normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    u32x16 h = (small & is_small) | (normal & ~(is_small | is_big)) | (0x7c00 & is_big) | (nan & is_nan) | sign;
    u16x16 out = __builtin_convertvector(h, u16x16);
    memcpy(dst, &out, sizeof(out));
}

FCC_INLINE void f32x16_store_bf16(void *dst, const f32x16 *in)
{
    u32x16 bits = (u32x16)*in;
    u32x16 is_nan = (u32x16)((bits & 0x7fffffff) > 0x7f800000);
    u32x16 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    u32x16 h = (rounded & ~is_nan) | (((bits >> 16) | 0x40) & is_nan);
    u16x16 out = __builtin_convertvector(h, u16x16);
    memcpy(dst, &out, sizeof(out));
}

FCC_INLINE void f32x16_store(void *dst, const f32x16 *in, enum fcc_dtype dtype)
{
    if (dtype == FCC_F16)
        f32x16_store_f16(dst, in);
    else if (dtype == FCC_BF16)
        f32x16_store_bf16(dst, in);
    else
        memcpy(dst, in, sizeof(*in));
}

#endif
