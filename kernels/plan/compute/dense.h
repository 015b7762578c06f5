/* SPDX-License-Identifier: MIT
 *
 * dense.h - the requests of operators whose ranks multiply two matrices, a and b, or a and b^T, by whatever names; the third tensor is the
 * result. Put: the rows of each rank's product go to the ranks, as many as send_rows says. Reduce: the products are added up.
 */
#ifndef FCC_KERNELS_PLAN_COMPUTE_DENSE_H
#define FCC_KERNELS_PLAN_COMPUTE_DENSE_H

#include "kernels/plan/program.h"

/* most_rows: that a may have, which has at least one; 0: any. */
int dense_check(const struct op_args *args, int nranks, bool b_transposed, int most_rows, struct error *e);
int dense_match(const struct op_args args[], int nranks, struct problem *out, struct error *e);
/* Whether the request sends the rows that the problem says. */
bool dense_attrs_fit(const struct problem *problem, int rank, const struct op_args *args);

#endif
