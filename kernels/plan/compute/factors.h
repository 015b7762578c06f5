/* SPDX-License-Identifier: MIT
 *
 * factors.h - the factors of a product, which may be f8e4m3, each by itself, and their scales (struct fcc_epilogue): an element stands for its
 * value times its scale. Scales are of a factor as it is stored.
 */
#ifndef FCC_KERNELS_PLAN_COMPUTE_FACTORS_H
#define FCC_KERNELS_PLAN_COMPUTE_FACTORS_H

#include "kernels/plan/program.h"

#define FACTOR_BLOCK 128 /* rows and columns that share a scale */

/* Element [i][j] of a factor has the scale at[i / rows * stride + j / cols]. */
struct factor_scale {
    const float *at;    /* NULL: all are 1 */
    int64_t rows, cols; /* of a block; FACTOR_WHOLE: all */
    int64_t stride;     /* from one row of blocks to the next */
};
#define FACTOR_WHOLE INT64_MAX

/* Whether the second factor has a row for each column of the product. */
static inline bool factors_second_is_transposed(const struct op_args *args)
{
    return op_spec(args->op)->compute == COMPUTE_GEMV;
}

/* Of tensors that are checked by themselves: whether the factors' dtypes fit together, and that of the result to them. Then whether the scales
 * fit the factors. 0 or -EINVAL. */
int factors_check(const struct op_args *args, struct error *e);
int factors_result_check(const struct op_args *args, struct error *e);
int factors_scales_check(const struct op_args *args, struct error *e);
/* All ranks have factors of the same dtypes. */
int factors_match(const struct op_args args[], int nranks, struct error *e);
/* A checked request's enum factors. */
uint32_t factors_of(const struct op_args *args);
/* The scales of a checked request's first (0) or second (1) factor. */
struct factor_scale factor_scale_of(const struct op_args *args, int factor);

#endif
