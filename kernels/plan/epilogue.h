/* SPDX-License-Identifier: MIT
 *
 * epilogue.h - what an operator adds to its results before it rounds them: a bias, a residual (struct fcc_epilogue). A request
 * with an epilogue has STAGES tensors more than its operator's row, in the order of enum stage; some may be absent.
 *
 * Sums stay in f32 while the stages are applied, in the order of enum stage, and are rounded once. Exchanges that put: the rank
 * that computes a tile applies its own stages to it. Exchange reduce: the rank that adds up a tile applies its own stages to the
 * sum, before it stores the tile at all ranks. So bias and residual must be the same on all ranks there.
 *
 * Reduce: the residual may be the result itself, element by element. Whoever adds up an element is the only rank that reads its
 * residual, its own, and it does so before it stores that element, at its own rank or at any other. Put: other ranks store into
 * the result while the residual is read, so this is refused.
 */
#ifndef FCC_KERNELS_PLAN_EPILOGUE_H
#define FCC_KERNELS_PLAN_EPILOGUE_H

#include "kernels/plan/program.h"

/* A tensor of the request's epilogue; NULL: absent. */
const struct tensor *epilogue_tensor(const struct op_args *args, enum stage stage);
/* Check one rank's stages for a result of rows x cols elements. dtype_of names the tensor that has the dtype. 0 or -EINVAL. */
int epilogue_check(const struct op_args *args, const char *dtype_of, enum fcc_dtype dtype, int64_t rows, int64_t cols,
                   struct error *e);
/* Set *stages, a bit each, if all ranks have the same ones; otherwise -EINVAL. */
int epilogue_match(const struct op_args args[], int nranks, uint32_t *stages, struct error *e);
/* Whether a tensor of a checked request may overlap the rank's own result: it is the residual of a sum and lies exactly where the
 * result does. */
bool epilogue_may_be_result(const struct op_args *args, int tensor);

#endif
