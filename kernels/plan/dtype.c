/* SPDX-License-Identifier: MIT
 *
 * dtype.c - whole arrays of f16, bf16 and e4m3 to f32 and back.
 */
#include "kernels/plan/dtype.h"

#ifdef FCC_F16C
#include <cpuid.h>

bool dtype_f16c;

/* Compilers' own question does not know F16C in all their versions. That for AVX says whether the kernel keeps such registers, too. */
__attribute__((constructor)) static void f16c_look(void)
{
    unsigned a, b, c = 0, d;

    __builtin_cpu_init();
    dtype_f16c = __builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

/* The last elements of an array are copied through a vector of their own. */
FCC_INLINE void to_f32(float *dst, const unsigned char *src, enum fcc_dtype dtype, size_t n)
{
    const size_t size = (size_t)f32x16_source_bytes(dtype);
    f32x16 v;
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        f32x16_load(&v, src + i * size, dtype);
        memcpy(dst + i, &v, sizeof(v));
    }
    if (i < n) {
        uint16_t rest[16] = {0};
        memcpy(rest, src + i * size, (n - i) * size);
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
    size_t i = 0;

#ifdef FCC_F16C
    for (; dtype_f16c && i + 4 <= n; i += 4) {
        f32x4 v;
        f16c_load4(&v, src + i * 2);
        memcpy(dst + i, &v, sizeof(v));
    }
#endif
    to_f32(dst + i, src + i * 2, FCC_F16, n - i);
}

/* Plain loops of a length that is known, of which the compiler makes vectors as wide as the processor's. */
enum { BLOCK = 64 };

FCC_INLINE void bf16_block_to_f32(float *restrict dst, const unsigned char *restrict src)
{
    for (int i = 0; i < BLOCK; i++) {
        uint16_t h;
        memcpy(&h, src + i * 2, sizeof(h));
        const uint32_t bits = (uint32_t)h << 16;
        memcpy(dst + i, &bits, sizeof(bits));
    }
}

/* As f32x16_store_bf16(). */
FCC_INLINE void bf16_block_from_f32(uint16_t *restrict dst, const float *restrict src)
{
    for (int i = 0; i < BLOCK; i++) {
        uint32_t bits;
        memcpy(&bits, src + i, sizeof(bits));
        const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
        dst[i] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
    }
}

FCC_CLONES
static void bf16_to_f32(float *dst, const unsigned char *src, size_t n)
{
    size_t i = 0;

    for (; i + BLOCK <= n; i += BLOCK)
        bf16_block_to_f32(dst + i, src + i * 2);
    to_f32(dst + i, src + i * 2, FCC_BF16, n - i);
}

FCC_CLONES
static void f8e4m3_to_f32(float *dst, const unsigned char *src, size_t n)
{
    f8e4m3_load(dst, src, (int64_t)n);
}

FCC_CLONES
static void f16_from_f32(unsigned char *dst, const float *src, size_t n)
{
    size_t i = 0;

#ifdef FCC_F16C
    for (; dtype_f16c && i + 4 <= n; i += 4) {
        f32x4 v;
        memcpy(&v, src + i, sizeof(v));
        f16c_store4(dst + i * 2, &v);
    }
#endif
    from_f32(dst + i * 2, src + i, FCC_F16, n - i);
}

FCC_CLONES
static void bf16_from_f32(unsigned char *dst, const float *src, size_t n)
{
    size_t i = 0;

    for (; i + BLOCK <= n; i += BLOCK) {
        uint16_t h[BLOCK];
        bf16_block_from_f32(h, src + i);
        memcpy(dst + i * 2, h, sizeof(h));
    }
    from_f32(dst + i * 2, src + i, FCC_BF16, n - i);
}

void dtype_to_f32(float *dst, const void *src, enum fcc_dtype dtype, size_t n)
{
    if (dtype == FCC_F16)
        f16_to_f32(dst, src, n);
    else if (dtype == FCC_BF16)
        bf16_to_f32(dst, src, n);
    else if (dtype == FCC_F8E4M3)
        f8e4m3_to_f32(dst, src, n);
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

/* Below 2^-6 the fraction's unit is 2^-9: an addition of 2^14, whose last place that is, rounds to it. Above, a carry goes into the exponent. */
FCC_CLONES
void f8e4m3_from_f32(unsigned char *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits, small, sign, code;
        float magnitude, moved;
        memcpy(&bits, src + i, sizeof(bits));
        sign = bits >> 24 & 0x80;
        bits &= 0x7fffffff;
        const bool is_nan = bits > 0x7f800000;
        bits = bits > 0x43e00000 ? 0x43e00000 : bits; /* 448 */
        memcpy(&magnitude, &bits, sizeof(magnitude));
        moved = magnitude + 16384.0f;
        memcpy(&small, &moved, sizeof(small));
        code = bits < 0x3c800000 ? small - 0x46800000 : ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120u << 3);
        dst[i] = (unsigned char)((is_nan ? 0x7f : code) | sign);
    }
}
