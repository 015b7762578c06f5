/* SPDX-License-Identifier: MIT
 *
 * products.h - products of a few rows with a large matrix: dot products with STREAMS rows of the matrix at a time.
 *
 * The speed is bound by reading the matrix, so the order of reading matters. Rows are read in bands of BAND. A band is
 * divided into STREAMS runs of whole rows, which are read side by side, each from its first byte to its last. The hardware
 * prefetcher follows each run; when one enters the next page, where the prefetcher starts again, the others continue. A
 * single run, or runs of neighbouring rows (each as long as one row), lose an eighth to a fifth of the memory bandwidth. So
 * does software prefetching 1 to 16 KiB ahead (tests/bench/TRIED.md).
 *
 * Each product has SUMS running sums of 16 elements; with STREAMS products enough additions are in flight. With several rows
 * of a, rows of b are read in pieces that stay in the first-level cache until all rows of a have used them.
 */
#include <assert.h>

#include "kernels/cpu/thin.h"

enum {
    STREAMS = 4,
    BAND = 64, /* rows; a multiple of STREAMS. With 16 rows it loses 4 %, with 1024 and more 4 to 8 % (64 MiB of f32) */
    SUMS = 2,
};

static_assert(THIN_PIECE % (16 * SUMS) == 0, "a piece ends with whole steps");

/* Loads the last n elements of a row, 1 to 15, with zeros before or behind them. at: the first element. */
FCC_INLINE void load_rest(lanes *out, const unsigned char *src, enum fcc_dtype dtype, int64_t at, int64_t n)
{
    static const uint32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const int64_t size = f32x16_source_bytes(dtype);

    if (at + n < 16) {
        _Alignas(64) unsigned char rest[64] = {0};
        memcpy(rest, src + at * size, (size_t)n * (size_t)size);
        lanes_load(out, rest, dtype);
        return;
    }
    /* loads the row's last 16 elements; those that were already added are replaced by zeros */
    lanes_load(out, src + (at + n - 16) * size, dtype);
#pragma GCC unroll 4
    for (int part = 0; part < PARTS; part++) {
        vector_bits number;
        memcpy(&number, numbers + part * EACH, sizeof(number));
        out->at[part] = (vector)((vector_bits)out->at[part] & (vector_bits)(number >= (uint32_t)(16 - n)));
    }
}

/* Folds sixteen sums into four, as a tree. */
FCC_INLINE void sums_fold(f32x4 *out, const lanes *v)
{
    f32x4 q[4];

    memcpy(q, v, sizeof(q));
    *out = (q[0] + q[2]) + (q[1] + q[3]);
}

enum { CODES = 64 }; /* of e4m3 that are converted together */

/* The whole CODES of a row of e4m3, of each stream. Returns how many elements that were. */
FCC_INLINE int64_t dots_f8(const float *a, const unsigned char *b, int64_t row_bytes, int64_t k, const int streams,
                           int64_t apart, lanes sums[STREAMS][SUMS])
{
    int64_t i = 0;

    for (; i + CODES <= k; i += CODES)
#pragma GCC unroll 4
        for (int s = 0; s < streams; s++) {
            float codes[CODES];
            lanes x, v;
            f8e4m3_load(codes, b + s * apart * row_bytes + i, CODES);
#pragma GCC unroll 4
            for (int u = 0; u < CODES / 16; u++) {
                lanes_load(&x, (const unsigned char *)(a + i + u * 16), FCC_F32);
                lanes_load(&v, (const unsigned char *)(codes + u * 16), FCC_F32);
                lanes_add_product(&sums[s][u % SUMS], &x, &v);
            }
        }
    return i;
}

/* c[s * apart] += a . row number s * apart of b, for `streams` rows of k elements. `streams` is a constant. */
FCC_INLINE void dots(const float *a, const unsigned char *b, enum fcc_dtype dtype, int64_t row_bytes, int64_t k,
                     const int streams, int64_t apart, float *c)
{
    const int64_t size = f32x16_source_bytes(dtype), step = 16 * SUMS;
    lanes sums[STREAMS][SUMS] = {{{{{0}}}}}, x, v;
    int64_t i = dtype == FCC_F8E4M3 ? dots_f8(a, b, row_bytes, k, streams, apart, sums) : 0;

    for (; i + step <= k; i += step)
#pragma GCC unroll 2
        for (int u = 0; u < SUMS; u++) {
            lanes_load(&x, (const unsigned char *)(a + i + u * 16), FCC_F32);
#pragma GCC unroll 4
            for (int s = 0; s < streams; s++) {
                lanes_load(&v, b + s * apart * row_bytes + (i + u * 16) * size, dtype);
                lanes_add_product(&sums[s][u], &x, &v);
            }
        }
    if (i + 16 <= k) {
        lanes_load(&x, (const unsigned char *)(a + i), FCC_F32);
#pragma GCC unroll 4
        for (int s = 0; s < streams; s++) {
            lanes_load(&v, b + s * apart * row_bytes + i * size, dtype);
            lanes_add_product(&sums[s][0], &x, &v);
        }
        i += 16;
    }
    if (i < k) {
        load_rest(&x, (const unsigned char *)a, FCC_F32, i, k - i);
#pragma GCC unroll 4
        for (int s = 0; s < streams; s++) {
            load_rest(&v, b + s * apart * row_bytes, dtype, i, k - i);
            lanes_add_product(&sums[s][1], &x, &v);
        }
    }
#pragma GCC unroll 4
    for (int s = 0; s < streams; s++) {
        f32x4 four;
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++)
            sums[s][0].at[part] += sums[s][1].at[part];
        sums_fold(&four, &sums[s][0]);
        c[s * apart] += (four[0] + four[2]) + (four[1] + four[3]);
    }
}

/* Multiplies all rows of a with row j of b and the rows at distances `apart` behind it. */
FCC_INLINE void rows_multiply(int64_t m, int64_t j, int64_t k, const float *a, int64_t lda, const unsigned char *b,
                              enum fcc_dtype dtype, int64_t ldb, float *c, int64_t ldc, const int streams, int64_t apart)
{
    const int64_t size = f32x16_source_bytes(dtype), piece = m == 1 ? k : THIN_PIECE;

    for (int64_t q = 0; q < k; q += piece)
        for (int64_t i = 0; i < m; i++)
            dots(a + i * lda + q, b + (j * ldb + q) * size, dtype, ldb * size, k - q < piece ? k - q : piece, streams, apart,
                 c + i * ldc + j);
}

FCC_INLINE void multiply(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const unsigned char *b,
                         enum fcc_dtype dtype, int64_t ldb, float *c, int64_t ldc)
{
    for (int64_t band = 0; band < n; band += BAND) {
        int64_t rows = n - band < BAND ? n - band : BAND, apart = rows / STREAMS;
        for (int64_t j = 0; j < apart; j++)
            rows_multiply(m, band + j, k, a, lda, b, dtype, ldb, c, ldc, STREAMS, apart);
        for (int64_t j = apart * STREAMS; j < rows; j++)
            rows_multiply(m, band + j, k, a, lda, b, dtype, ldb, c, ldc, 1, 0);
    }
}

/* A function for each dtype, with the dtype as a constant. */
#define X(name, dtype)                                                                                                         \
    static void name(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const unsigned char *b, int64_t ldb,        \
                     float *c, int64_t ldc)                                                                                    \
    {                                                                                                                          \
        multiply(m, n, k, a, lda, b, dtype, ldb, c, ldc);                                                                      \
    }
X(multiply_f32, FCC_F32)
X(multiply_f16, FCC_F16)
X(multiply_bf16, FCC_BF16)
X(multiply_f8, FCC_F8E4M3)
#undef X
