/* SPDX-License-Identifier: MIT
 *
 * tensor.h - what the operators' check() and match() have in common. All errors read "ARGUMENT: value: what is allowed".
 */
#ifndef FCC_KERNELS_PLAN_TENSOR_H
#define FCC_KERNELS_PLAN_TENSOR_H

#include "kernels/plan/program.h"
#include "kernels/plan/spec.h"

/* The number of tensors, the schedule, and that there are no attributes but those of the operator's row. */
int args_check(const struct op_args *args, struct error *e);

/* The tensor is there, its dtype is one of the mask's (1 << dtype), it has ndim dimensions of 0 to INT32_MAX elements and a
 * last stride of 1. */
int tensor_check(const struct tensor *t, const char *name, unsigned dtypes, int ndim, struct error *e);
/* It lies in a buffer that takes results and no two of its elements are the same memory. */
int tensor_check_result(const struct tensor *t, const char *name, struct error *e);
/* Bytes from the first element to behind the last one; 0 if there are none. Of a tensor that was checked. */
int64_t tensor_reach(const struct tensor *t);
/* Whether two tensors that were checked have bytes in common. A tensor is taken for blocks of equal size at equal distances: of each step in
 * the dimension with the largest stride, all that the other dimensions reach. That is exact if the inner dimensions are dense and both tensors
 * have the same distance, as two column slices of one matrix have, or one of them is dense. Otherwise some that have none count as if they had. */
bool tensors_overlap(const struct tensor *s, const struct tensor *t);
int tensor_check_shape(const struct tensor *t, const char *name, int dim, int64_t expected, const char *what, struct error *e);
int tensor_check_dtype(const struct tensor *t, const char *name, enum fcc_dtype expected, const char *what, struct error *e);
/* Where element [i][j] is (of a tensor with two dimensions). */
unsigned char *tensor_at(const struct tensor *t, int64_t i, int64_t j);

/* `count` counts of 0 or more whose sum is `total`. */
int counts_check(const int64_t *counts, size_t count, size_t expected, int64_t total, const char *name, const char *what,
                 struct error *e);

/* -EINVAL with "what: rank R has value, rank 0 has value0" if they differ. */
int match_value(const char *what, int rank, int64_t value, int64_t value0, struct error *e);
int match_dtype(const char *name, int rank, enum fcc_dtype dtype, enum fcc_dtype dtype0, struct error *e);
int match_schedule(const struct op_args args[], int nranks, struct error *e);

#endif
