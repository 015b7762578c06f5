/* SPDX-License-Identifier: MIT
 *
 * thin.c - one dot product after the other, so that the matrix is read as one stream from its first byte to its last, AHEAD
 * bytes ahead of the sums; four running sums of 16 elements keep enough additions under way. With several rows of a, a row of
 * b is taken in pieces that stay in the first-level cache until all rows have had it.
 */
#include "thin.h"

#include <stdbool.h>

#include "dtype.h"

enum {
    SUMS = 4,
    AHEAD = 8192, /* measured: without 1.5 ms, with 2 KiB 1.4, 4 KiB 1.3, 8 KiB 1.2 for 64 MiB of f32 */
    PIECE = 2048, /* elements; a multiple of 16 * SUMS */
};

/* 16 elements of a row, zeros behind its end. */
FCC_INLINE void load_rest(f32x16 *out, const unsigned char *src, enum fcc_dtype dtype, int64_t n)
{
    _Alignas(64) unsigned char rest[64] = {0};
    memcpy(rest, src, (size_t)n * (dtype == FCC_F32 ? 4 : 2));
    f32x16_load(out, rest, dtype);
}

FCC_INLINE float sum_of(const f32x16 sums[SUMS])
{
    f32x16 v = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    float sum = 0;

    for (int i = 0; i < 8; i++) /* pairs first: shorter chains, and the same order everywhere */
        sum += v[i] + v[i + 8];
    return sum;
}

/* a . b of k elements. */
FCC_INLINE float dot(const float *a, const unsigned char *b, enum fcc_dtype dtype, int64_t k, bool fetch)
{
    const int64_t size = dtype == FCC_F32 ? 4 : 2, step = 16 * SUMS;
    f32x16 sums[SUMS] = {0}, x, v;
    int64_t i = 0;

    for (; i + step <= k; i += step) {
        for (int64_t line = 0; fetch && line < step * size; line += 64)
            __builtin_prefetch(b + i * size + AHEAD + line); /* beyond the matrix's end it does nothing */
        for (int u = 0; u < SUMS; u++) {
            memcpy(&x, a + i + u * 16, sizeof(x));
            f32x16_load(&v, b + (i + u * 16) * size, dtype);
            sums[u] += x * v;
        }
    }
    for (int u = 0; i < k; i += 16, u++) {
        int64_t n = k - i < 16 ? k - i : 16;
        load_rest(&x, (const unsigned char *)(a + i), FCC_F32, n);
        load_rest(&v, b + i * size, dtype, n);
        sums[u] += x * v;
    }
    return sum_of(sums);
}

FCC_INLINE void multiply(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const unsigned char *b,
                         enum fcc_dtype dtype, int64_t ldb, float *c, int64_t ldc)
{
    const int64_t size = dtype == FCC_F32 ? 4 : 2, piece = m == 1 ? k : PIECE;

    for (int64_t i = 0; i < m; i++)
        memset(c + i * ldc, 0, (size_t)n * sizeof(*c));
    for (int64_t j = 0; j < n; j++)
        for (int64_t q = 0; q < k; q += piece)
            for (int64_t i = 0; i < m; i++)
                c[i * ldc + j] += dot(a + i * lda + q, b + (j * ldb + q) * size, dtype, k - q < piece ? k - q : piece, i == 0);
}

/* One for each dtype, as a constant. */
#define X(name, dtype)                                                                                                         \
    FCC_CLONES                                                                                                                 \
    static void name(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const unsigned char *b, int64_t ldb,        \
                     float *c, int64_t ldc)                                                                                    \
    {                                                                                                                          \
        multiply(m, n, k, a, lda, b, dtype, ldb, c, ldc);                                                                      \
    }
X(multiply_f32, FCC_F32)
X(multiply_f16, FCC_F16)
X(multiply_bf16, FCC_BF16)
#undef X

void thin_multiply(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const void *b, enum fcc_dtype dtype,
                   int64_t ldb, float *c, int64_t ldc)
{
    if (dtype == FCC_F16)
        multiply_f16(m, n, k, a, lda, b, ldb, c, ldc);
    else if (dtype == FCC_BF16)
        multiply_bf16(m, n, k, a, lda, b, ldb, c, ldc);
    else
        multiply_f32(m, n, k, a, lda, b, ldb, c, ldc);
}
