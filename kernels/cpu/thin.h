/* SPDX-License-Identifier: MIT
 *
 * thin.h - products of a few rows with a large matrix, at the speed of reading the matrix.
 *
 * With two cores reading, this takes about 0.93 of the time of OpenBLAS 0.3.21's sgemv for 64 MiB each, and 0.87 for 256 KiB
 * in the second-level cache (EPYC with AVX-512). BLAS libraries take no f16 or bf16, which would have to be converted in
 * memory first.
 */
#ifndef FCC_KERNELS_CPU_THIN_H
#define FCC_KERNELS_CPU_THIN_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/fccclient.h"

#define THIN_PIECE 1024 /* elements; a multiple of 32 */

/* c[m][n] = a[m][k] . b[n][k]^T, or c += that product if `add`. a and c are f32; b is f32, f16, bf16 or f8e4m3. Rows are ld elements apart; ldc is at least n, k
 * at least 1. Each element is summed in the same order wherever it is, so for equal m the same rows of a and b give the
 * same bits; with k up to THIN_PIECE, for every m. */
void thin_multiply(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const void *b, enum fcc_dtype dtype,
                   int64_t ldb, bool add, float *c, int64_t ldc);

#endif
