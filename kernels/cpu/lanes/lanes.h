/* SPDX-License-Identifier: MIT
 *
 * lanes.h - loops over sixteen elements at a time, one set for each width of the processor's vectors.
 *
 * A compiler keeps variables that are wider than the processor's vectors in memory, and moves them piece by piece (GCC 12: through registers for
 * integers): products took 4.6 and pooling 5.5 times as long with vectors of 64 bytes on a processor that has 32. So the loops whose sums stay in registers are written for
 * any width (products.h, bags.h), and compiled for three. They add in the same order, so the bits are the same, but that processors with 32 and more
 * round a product together with the sum (FMA).
 */
#ifndef FCC_KERNELS_CPU_LANES_LANES_H
#define FCC_KERNELS_CPU_LANES_LANES_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/fccclient.h"

/* What is read of a row of a table. */
struct lanes_table {
    const unsigned char *rows;
    size_t row_bytes;         /* distance between rows */
    int64_t dim;              /* elements of a row, 1 or more */
    int64_t prefetched_bytes; /* of each row, AHEAD of its use; 0: none are */
};

enum {
    LANES = 16,
    LANES_AHEAD = 64, /* rows between prefetch and use (tests/bench/TRIED.md): there are so many ids more than rows are added */
};

/* c[m][n] += a[m][k] . b[n][k]^T, as thin_multiply() (thin.h). */
typedef void lanes_multiply(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const unsigned char *b, int64_t ldb,
                            float *c, int64_t ldc);
/* sums += n rows of a table, each times its weight, or weights is NULL. sums: of blocks of LANES elements, of which the last one ends with the row. */
typedef void lanes_add(float *sums, const struct lanes_table *t, const uint32_t *ids, int64_t n, const float *weights);

struct lanes_loops {
    int bytes; /* of a vector */
    lanes_multiply *multiply_f32, *multiply_f16, *multiply_bf16, *multiply_f8;
    lanes_add *add_f32, *add_f16, *add_bf16;                            /* without weights */
    lanes_add *add_f32_weighted, *add_f16_weighted, *add_bf16_weighted; /* with weights */
};

/* Those of the widest vectors that this processor has, at most `bytes` (16, 32 or 64). */
const struct lanes_loops *lanes_loops(int bytes);
#define LANES_WIDEST 64

#endif
