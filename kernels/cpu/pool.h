/* SPDX-License-Identifier: MIT
 *
 * pool.h - pools the bags of one embedding table on a CPU core.
 */
#ifndef FCC_KERNELS_CPU_POOL_H
#define FCC_KERNELS_CPU_POOL_H

#include <stdbool.h>

#include "kernels/cpu/execute.h"

/* One table and the indices into it. Offsets and indices are the client's memory: each value is read once and checked
 * before use. */
struct pool {
    const unsigned char *rows; /* row 0 of the table */
    int64_t nrows;             /* at most INT32_MAX */
    size_t row_bytes;          /* distance between rows */
    enum fcc_dtype dtype;      /* f32, f16 or bf16 */
    int64_t dim;               /* 1 or more */
    const void *indices;       /* the indices of all tables */
    const void *offsets;       /* the offsets of all tables */
    bool wide;                 /* indices and offsets are i64, not i32 */
    int64_t nnz;               /* number of indices */
    const float *weights;      /* [nnz], or NULL: 1 */
    bool mean;
    int table;         /* for errors: the table's number */
    int64_t first_bag; /* where the table's bags begin in offsets */
};

/* Pool bags [bag, bag + n) of the table; the i-th result is dim elements of dtype at out + i * out_bytes. Sums are f32, rounded
 * once. 0, -ERANGE, or -ENOMEM. */
int pool_bags(const struct pool *p, int64_t bag, int64_t n, unsigned char *out, size_t out_bytes, struct workgroup *wg,
              struct error *e);

#endif
