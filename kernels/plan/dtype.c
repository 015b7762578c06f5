/* SPDX-License-Identifier: MIT
 *
 * dtype.c - whole arrays of f16 and bf16 to f32 and back.
 */
#include "kernels/plan/dtype.h"

/* The last elements of an array are copied through a vector of their own. */
FCC_INLINE void to_f32(float *dst, const unsigned char *src, enum fcc_dtype dtype, size_t n)
{
    f32x16 v;
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        f32x16_load(&v, src + i * 2, dtype);
        memcpy(dst + i, &v, sizeof(v));
    }
    if (i < n) {
        uint16_t rest[16] = {0};
        memcpy(rest, src + i * 2, (n - i) * 2);
        f32x16_load(&v, rest, dtype);
        memcpy(dst + i, &v, (n - i) * sizeof(float));
    }
}

FCC_INLINE void from_f32(unsigned char *dst, const float *src, enum fcc_dtype dtype, size_t n)
{
    f32x16 v;
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        memcpy(&v, src + i, sizeof(v));
        f32x16_store(dst + i * 2, &v, dtype);
    }
    if (i < n) {
        uint16_t rest[16];
        v = (f32x16){0};
        memcpy(&v, src + i, (n - i) * sizeof(float));
        f32x16_store(rest, &v, dtype);
        memcpy(dst + i * 2, rest, (n - i) * 2);
    }
}

FCC_CLONES
static void f16_to_f32(float *dst, const unsigned char *src, size_t n)
{
    to_f32(dst, src, FCC_F16, n);
}

FCC_CLONES
static void bf16_to_f32(float *dst, const unsigned char *src, size_t n)
{
    to_f32(dst, src, FCC_BF16, n);
}

FCC_CLONES
static void f16_from_f32(unsigned char *dst, const float *src, size_t n)
{
    from_f32(dst, src, FCC_F16, n);
}

FCC_CLONES
static void bf16_from_f32(unsigned char *dst, const float *src, size_t n)
{
    from_f32(dst, src, FCC_BF16, n);
}

void dtype_to_f32(float *dst, const void *src, enum fcc_dtype dtype, size_t n)
{
    if (dtype == FCC_F16)
        f16_to_f32(dst, src, n);
    else if (dtype == FCC_BF16)
        bf16_to_f32(dst, src, n);
    else
        memcpy(dst, src, n * sizeof(float));
}

void dtype_from_f32(void *dst, const float *src, enum fcc_dtype dtype, size_t n)
{
    if (dtype == FCC_F16)
        f16_from_f32(dst, src, n);
    else if (dtype == FCC_BF16)
        bf16_from_f32(dst, src, n);
    else
        memcpy(dst, src, n * sizeof(float));
}
