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

/* Passed by pointer only: by value they would have a different ABI in each clone. */
typedef float f32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef uint8_t u8x16 __attribute__((vector_size(16)));

/* n elements; the arrays do not overlap. dtype is f32, f16 or bf16, and of dtype_to_f32() f8e4m3, too. */
void dtype_to_f32(float *dst, const void *src, enum fcc_dtype dtype, size_t n);
void dtype_from_f32(void *dst, const float *src, enum fcc_dtype dtype, size_t n);
/* To e4m3, to nearest even; beyond 448 in magnitude, infinities too, becomes 448 of that sign. */
void f8e4m3_from_f32(unsigned char *dst, const float *src, size_t n);

/* ---- 16 elements; src and dst need not be aligned; dtype should be a constant ---- */

FCC_INLINE void f32x16_load_f16(f32x16 *out, const void *src)
{
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

FCC_INLINE void f32x16_load_f8e4m3(f32x16 *out, const void *src)
{
    u8x16 code;
    memcpy(&code, src, sizeof(code));
    u32x16 x = __builtin_convertvector(code, u32x16);
    u32x16 magnitude = (x & 0x7f) << 20, sign = (x & 0x80) << 24;
    /* Subnormal: as f16's, with the exponent of 2^-6. There are no infinities, and only the largest code is a NaN. */
    u32x16 is_small = (u32x16)(magnitude < 0x00800000), is_nan = (u32x16)(magnitude == 0x07f00000);
    f32x16 small = (f32x16)(magnitude + 0x3c800000) - 0x1p-6f;
    u32x16 normal = magnitude + 0x3c000000 + (is_nan & 0x3c000000);
    *out = (f32x16)(sign | ((u32x16)small & is_small) | (normal & ~is_small));
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
