/* SPDX-License-Identifier: MIT
 *
 * dense.h - products of dense tiles on CPU cores: f32 by a BLAS, f16, bf16 and f8e4m3 converted to f32.
 */
#ifndef FCC_KERNELS_CPU_DENSE_H
#define FCC_KERNELS_CPU_DENSE_H

#include <stdbool.h>

#include "kernels/cpu/epilogue.h"
#include "kernels/plan/compute/factors.h"

/* A factor of a product: a part of a matrix with scales, from its row `row` and column `col` on. Rows are ld elements apart. */
struct factor {
    const void *at;
    int64_t ld;
    enum fcc_dtype dtype;
    struct factor_scale scale;
    int64_t row, col;
};

/* c[m][n] = a[m][k] . b[k][n], or c[m][n] += that, or a[m][k] . b[n][k]^T if b_transposed. Rows are ld elements apart. Sizes are 0 to
 * INT32_MAX; k = 0 sets c to zero, or
 * leaves it as it is. Sums are f32, rounded once to c_dtype: f32, f16 or bf16. c overlaps neither a nor b. */
struct product {
    bool b_transposed;
    bool batch_invariant; /* an element of c has the same bits whatever m and n are, and wherever it is */
    bool adds;            /* to c, which is f32; without stages */
    enum fcc_dtype c_dtype;
    int64_t m, n, k;
    struct factor a, b;
    void *c;
    int64_t ldc;
    const struct tile_stages *stages; /* of an epilogue, applied to the sums; NULL: none */
};

/* Returns 0, -ENOMEM (no scratch memory) or -ENOENT (no BLAS). The same product gives the same bits each time. */
int dense_multiply(const struct product *p, struct workgroup *wg, struct error *e);

/* gather.c: where the rows of A are that a slice multiplies, as the first factor of its product (kernels/plan/exchange/gather.h). */
struct factor gathered_factor(const struct run *run, const struct slice *slice);

#endif
