/* SPDX-License-Identifier: MIT
 *
 * dense.c - products of dense tiles with a BLAS.
 *
 * Matrices that the BLAS can use in place (f32, rows that do not overlap) are passed whole. Others are multiplied block by
 * block: blocks of a and b are converted to f32 in scratch memory of bounded size, times their scales, products are added up in f32, and a
 * block of c is rounded once when it is complete.
 *
 * A BLAS sums an element in an order that depends on the sizes of what it multiplies. Batch-invariant products are multiplied block by block by
 * the loop of thin.h, whose order does not, and the blocks' sums are added in the order of k: BLOCK_K does not depend on sizes either.
 */
#include "kernels/cpu/dense.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "kernels/cpu/blas.h"
#include "kernels/cpu/thin.h"
#include "kernels/plan/dtype.h"

/* A block of b fits the second-level cache with up to THIN_M rows of a. With more rows the BLAS prefers long rows. */
enum { BLOCK_M = 256, BLOCK_K = 512, BLOCK_N_THIN = 128, BLOCK_N = 1024, THIN_M = 64 };

/* Up to so many rows the loop of thin.h is faster than a BLAS, or than converting to f32 first. */
enum { THIN_F32_M = 3, THIN_HALF_M = 2 };

/* OpenBLAS packs b first, which takes as long as multiplying ten rows, but for small products. So with up to SMALL_M rows it gets b in pieces, of SMALL_K
 * elements of as many columns as make SMALL_MN elements of c. For 4 to 32 rows that takes 0.6 to 0.9 of the time of one call (0.3.21, EPYC of family 25,
 * AVX-512). */
enum { SMALL_M = 32, SMALL_MN = 1024, SMALL_K = 512 };

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The leading dimension for the BLAS, which must be at least a row's length, also for a single row. */
static int blas_ld(int64_t rows, int64_t cols, int64_t ld)
{
    if (rows > 1)
        return (int)ld;
    return cols > 0 ? (int)cols : 1;
}

/* Whether the BLAS can use the matrix in place. */
static bool is_direct(enum fcc_dtype dtype, int64_t rows, int64_t cols, int64_t ld)
{
    return dtype == FCC_F32 && (rows <= 1 || (ld >= cols && ld >= 1 && ld <= INT32_MAX));
}

static void multiply_by_blas(bool b_transposed, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
                             int64_t ldb, bool add, float *c, int64_t ldc)
{
    blas_sgemm(CblasRowMajor, CblasNoTrans, b_transposed ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, 1.0f, a,
               blas_ld(m, k, lda), b, b_transposed ? blas_ld(n, k, ldb) : blas_ld(k, n, ldb), add ? 1.0f : 0.0f, c,
               blas_ld(m, n, ldc));
}

/* c = a . b^T, or c += a . b^T if `add`, of a few rows. */
static void multiply_small(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, bool add,
                           float *c, int64_t ldc)
{
    const int64_t cols = SMALL_MN / m / 16 * 16;

    for (int64_t j = 0; j < n; j += cols)
        for (int64_t q = 0; q < k; q += SMALL_K)
            multiply_by_blas(true, m, smaller(cols, n - j), smaller(SMALL_K, k - q), a + q, lda, b + j * ldb + q, ldb,
                             add || q > 0, c + j, ldc);
}

/* f32 only; m, n and k are at least 1. */
static void multiply(bool b_transposed, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
                     int64_t ldb, bool add, float *c, int64_t ldc)
{
    if (b_transposed && m <= THIN_F32_M)
        thin_multiply(m, n, k, a, lda, b, FCC_F32, ldb, add, c, ldc);
    else if (b_transposed && m <= SMALL_M)
        multiply_small(m, n, k, a, lda, b, ldb, add, c, ldc);
    else
        multiply_by_blas(b_transposed, m, n, k, a, lda, b, ldb, add, c, ldc);
}

static_assert(BLOCK_K <= THIN_PIECE, "thin.h's order does not depend on the number of rows");

/* Dense f32, as multiply() of a block. between: room for n * k elements. */
static void multiply_in_order(bool b_transposed, int64_t m, int64_t n, int64_t k, const float *a, const float *b, bool add,
                              float *c, float *between)
{
    for (int64_t i = 0; i < n && !b_transposed; i++)
        for (int64_t q = 0; q < k; q++)
            between[i * k + q] = b[q * n + i];
    thin_multiply(m, n, k, a, k, b_transposed ? b : between, FCC_F32, k, add, c, n);
}

static const void *element(const void *matrix, enum fcc_dtype dtype, int64_t ld, int64_t row, int64_t col)
{
    return (const unsigned char *)matrix + (row * ld + col) * (int64_t)dtype_size(dtype);
}

/* v *= scale, of n elements of a row of a factor, from column `col` of the matrix on. */
FCC_CLONES
static void row_scale(float *v, const struct factor_scale *scale, int64_t row, int64_t col, int64_t n)
{
    const float *scales = scale->at + row / scale->rows * scale->stride;
    int64_t block = col / scale->cols, left = scale->cols - col % scale->cols;

    for (int64_t i = 0; i < n && scale->cols == 1; i++)
        v[i] *= scales[col + i];
    for (int64_t i = 0, end; i < n && scale->cols > 1; i = end, block++, left = scale->cols) {
        const float by = scales[block];
        end = i + smaller(n - i, left);
        for (int64_t j = i; j < end; j++)
            v[j] *= by;
    }
}

/* Converts a block to f32, with dense rows. */
static void block_load(float *dst, const struct factor *f, int64_t row, int64_t rows, int64_t col, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++) {
        dtype_to_f32(dst + i * cols, element(f->at, f->dtype, f->ld, row + i, col), f->dtype, (size_t)cols);
        if (f->scale.at)
            row_scale(dst + i * cols, &f->scale, f->row + row + i, f->col + col, cols);
    }
}

/* Computes c's block [row .. row + rows) x [col .. col + cols), over all of k. between: multiply_in_order()'s. */
static void multiply_block(const struct product *p, int64_t row, int64_t rows, int64_t col, int64_t cols, float *a, float *b,
                           float *sum, float *between)
{
    unsigned char *c = (unsigned char *)p->c + (row * p->ldc + col) * (int64_t)dtype_size(p->c_dtype);

    for (int64_t k = 0; k < p->k; k += BLOCK_K) {
        int64_t depth = smaller(BLOCK_K, p->k - k);
        block_load(a, &p->a, row, rows, k, depth);
        if (p->b_transposed)
            block_load(b, &p->b, col, cols, k, depth);
        else
            block_load(b, &p->b, k, depth, col, cols);
        if (p->batch_invariant)
            multiply_in_order(p->b_transposed, rows, cols, depth, a, b, k > 0, sum, between);
        else
            multiply(p->b_transposed, rows, cols, depth, a, depth, b, p->b_transposed ? depth : cols, k > 0, sum, cols);
    }
    if (p->k == 0)
        memset(sum, 0, (size_t)(rows * cols) * sizeof(*sum));
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; p->adds && j < cols; j++)
            sum[i * cols + j] += ((const float *)(const void *)c)[i * p->ldc + j];
        if (p->stages)
            tile_stages_apply(p->stages, row + i, col, sum + i * cols, (size_t)cols);
        dtype_from_f32(c + i * p->ldc * (int64_t)dtype_size(p->c_dtype), sum + i * cols, p->c_dtype, (size_t)cols);
    }
}

/* Whether the product is a few rows times a large matrix, bound by reading the matrix. a is converted if necessary; c is
 * f32. */
static bool is_thin(const struct product *p)
{
    return p->b_transposed && p->c_dtype == FCC_F32 && p->m <= (p->b.dtype == FCC_F32 ? THIN_F32_M : THIN_HALF_M);
}

/* Columns [col .. col + cols) of the product, whose rows of b have the same scales. `scaled` has room for a. */
static void multiply_thin_cols(const struct product *p, int64_t col, int64_t cols, const float *a, int64_t lda, float *scaled)
{
    const void *b = element(p->b.at, p->b.dtype, p->b.ld, col, 0);
    float *c = (float *)p->c + col;

    for (int64_t i = 0; i < p->m && scaled; i++) {
        memcpy(scaled + i * p->k, a + i * lda, (size_t)p->k * sizeof(*a));
        row_scale(scaled + i * p->k, &p->b.scale, p->b.row + col, p->b.col, p->k);
    }
    thin_multiply(p->m, cols, p->k, scaled ? scaled : a, scaled ? p->k : lda, b, p->b.dtype, p->b.ld, false, c, p->ldc);
}

/* b is not converted in memory. What scales its columns scales those of a instead, and what scales its rows the sums. */
static int multiply_thin_rows(const struct product *p, struct workgroup *wg, struct error *e)
{
    const struct factor_scale *scale = &p->b.scale;
    const bool blocks = scale->at && scale->cols != FACTOR_WHOLE, converts = p->a.dtype != FCC_F32;
    const size_t elements = (size_t)p->m * (size_t)p->k, bytes = elements * (size_t)(converts + blocks) * sizeof(float);
    const int64_t lda = converts ? p->k : p->a.ld;
    float *scratch = bytes ? workgroup_scratch(wg, bytes) : NULL, *scaled = blocks ? scratch + (converts ? elements : 0) : NULL;

    if (bytes && !scratch)
        return error_set(e, -ENOMEM, "scratch memory: %zu bytes: not there", bytes);
    if (converts)
        block_load(scratch, &p->a, 0, p->m, 0, p->k);
    for (int64_t j = 0, cols; j < p->n; j += cols) {
        cols = blocks ? smaller(p->n - j, scale->rows - (p->b.row + j) % scale->rows) : p->n;
        multiply_thin_cols(p, j, cols, converts ? scratch : p->a.at, lda, scaled);
    }
    for (int64_t i = 0; i < p->m && scale->at && !blocks; i++)
        for (int64_t j = 0; j < p->n; j++)
            ((float *)p->c)[i * p->ldc + j] *= scale->at[(p->b.row + j) / scale->rows * scale->stride];
    return 0;
}

static int multiply_blocks(const struct product *p, struct workgroup *wg, struct error *e)
{
    int64_t block_n = smaller(p->n, p->m <= THIN_M || p->batch_invariant ? BLOCK_N_THIN : BLOCK_N),
            block_m = smaller(p->m, BLOCK_M), block_k = smaller(p->k, BLOCK_K);
    size_t a_size = (size_t)(block_m * block_k + 15) & ~(size_t)15, b_size = (size_t)(block_n * block_k + 15) & ~(size_t)15;
    size_t sum_size = (size_t)(block_m * block_n + 15) & ~(size_t)15, between_size = p->batch_invariant ? b_size : 0;
    size_t bytes = (a_size + b_size + sum_size + between_size) * sizeof(float);
    float *scratch = workgroup_scratch(wg, bytes);

    if (!scratch)
        return error_set(e, -ENOMEM, "scratch memory: %zu bytes: not there", bytes);
    for (int64_t i = 0; i < p->m; i += block_m)
        for (int64_t j = 0; j < p->n; j += block_n)
            multiply_block(p, i, smaller(block_m, p->m - i), j, smaller(block_n, p->n - j), scratch, scratch + a_size,
                           scratch + a_size + b_size, scratch + a_size + b_size + sum_size);
    return 0;
}

int dense_multiply(const struct product *p, struct workgroup *wg, struct error *e)
{
    int64_t b_rows = p->b_transposed ? p->n : p->k, b_cols = p->b_transposed ? p->k : p->n;

    if (p->m == 0 || p->n == 0)
        return 0;
    int status = blas_open(e);
    if (status)
        return status;
    if (p->k == 0 && p->adds)
        return 0;
    if (p->k == 0 && !p->stages) {
        size_t size = dtype_size(p->c_dtype);
        for (int64_t i = 0; i < p->m; i++)
            memset((unsigned char *)p->c + (size_t)(i * p->ldc) * size, 0, (size_t)p->n * size);
        return 0;
    }
    if (is_thin(p) && !p->stages && !p->batch_invariant && !p->adds)
        return multiply_thin_rows(p, wg, e);
    if (p->k > 0 && !p->batch_invariant && p->c_dtype == FCC_F32 && is_direct(p->a.dtype, p->m, p->k, p->a.ld) &&
        is_direct(p->b.dtype, b_rows, b_cols, p->b.ld) && is_direct(p->c_dtype, p->m, p->n, p->ldc)) {
        multiply(p->b_transposed, p->m, p->n, p->k, p->a.at, p->a.ld, p->b.at, p->b.ld, p->adds, p->c, p->ldc);
        for (int64_t i = 0; i < p->m && p->stages; i++)
            tile_stages_apply(p->stages, i, 0, (float *)p->c + i * p->ldc, (size_t)p->n);
        return 0;
    }
    return multiply_blocks(p, wg, e);
}
