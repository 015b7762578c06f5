/* SPDX-License-Identifier: MIT
 *
 * tensor.h - checks shared by the operators' check() and match(). All errors read "ARGUMENT: value: what is allowed".
 */
#ifndef FCC_KERNELS_PLAN_TENSOR_H
#define FCC_KERNELS_PLAN_TENSOR_H

#include "kernels/plan/program.h"
#include "kernels/plan/spec.h"

/* Check the number of tensors, the schedule, and that all attributes are of the operator's row. */
int args_check(const struct op_args *args, struct error *e);

/* Check that the tensor is present, its dtype is in the mask (1 << dtype), and it has ndim dimensions of 0 to INT32_MAX
 * elements and a last stride of 1. */
int tensor_check(const struct tensor *t, const char *name, unsigned dtypes, int ndim, struct error *e);
/* Check that the tensor's dtype is in the mask. */
int tensor_check_dtypes(const struct tensor *t, const char *name, unsigned dtypes, struct error *e);
/* Check that the tensor lies in a buffer for results and that no two of its elements share memory. */
int tensor_check_result(const struct tensor *t, const char *name, struct error *e);
/* Bytes from the beginning of the first element to the end of the last one of a checked tensor; 0 if it has no elements. */
int64_t tensor_reach(const struct tensor *t);
/* Whether two checked tensors have bytes in common. Each tensor is treated as blocks of equal size at equal distances: one
 * block for each index of the dimension with the largest stride, covering all that the other dimensions reach. This is exact if
 * the inner dimensions are dense and both tensors have the same distance (two column slices of one matrix), or one tensor is
 * dense. Otherwise the answer may be a false yes. */
bool tensors_overlap(const struct tensor *s, const struct tensor *t);
int tensor_check_shape(const struct tensor *t, const char *name, int dim, int64_t expected, const char *what, struct error *e);
int tensor_check_dtype(const struct tensor *t, const char *name, enum fcc_dtype expected, const char *what, struct error *e);
/* Where element [i][j] is (of a tensor with two dimensions). */
unsigned char *tensor_at(const struct tensor *t, int64_t i, int64_t j);

/* Check that there are `expected` counts, each 0 or more, whose sum is `total`. */
int counts_check(const int64_t *counts, size_t count, size_t expected, int64_t total, const char *name, const char *what,
                 struct error *e);

/* Take a schedule apart, with what may be or'ed to it. 0, or -EINVAL with what is allowed, and args' schedule is what it may be. */
int schedule_read(uint32_t schedule, struct op_args *args, struct error *e);

/* -EINVAL with "what: rank R has value, rank 0 has value0" if they differ. */
int match_value(const char *what, int rank, int64_t value, int64_t value0, struct error *e);
int match_dtype(const char *name, int rank, enum fcc_dtype dtype, enum fcc_dtype dtype0, struct error *e);
/* Rank 0's schedule and that of another rank, with what is or'ed to it; then those of all ranks. */
int match_schedules(const struct op_args *args, int rank, const struct op_args *args0, struct error *e);
int match_schedule(const struct op_args args[], int nranks, struct error *e);

#endif
