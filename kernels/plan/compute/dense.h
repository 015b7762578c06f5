/* SPDX-License-Identifier: MIT
 *
 * dense.h - requests of operators whose ranks multiply two matrices: a by b, or a by b^T, whatever the operator calls them. The
 * last tensor is the result. Put exchange: send_rows says how many rows of the product each rank gets. Reduce exchange: the
 * products are added up. Gather exchange: a has some of the rows of A, and the result has a row for each of all ranks'.
 */
#ifndef FCC_KERNELS_PLAN_COMPUTE_DENSE_H
#define FCC_KERNELS_PLAN_COMPUTE_DENSE_H

#include "kernels/plan/plan.h"
#include "kernels/plan/program.h"

/* Whether rows of the product go to one rank each; whether A is gathered. Otherwise the products are added up. */
static inline bool dense_puts_rows(const struct op_args *args)
{
    return op_spec(args->op)->exchange == EXCHANGE_PUT;
}

static inline bool dense_gathers_rows(const struct op_args *args)
{
    return op_spec(args->op)->exchange == EXCHANGE_GATHER;
}

static inline const struct tensor *dense_result(const struct op_args *args)
{
    return &args->tensors[op_spec(args->op)->result];
}

/* a has 1 to most_rows rows; most_rows 0: any number. */
int dense_check(const struct op_args *args, int nranks, int rank, int most_rows, struct error *e);
int dense_match(const struct op_args args[], int nranks, struct problem *out, struct error *e);
/* On cores: how many columns of a sum of all rows are a slice. Of sums about 1 MiB, but columns enough for the BLAS, which packs the first factor anew
 * for each slice, and not so many that nothing leaves before all is computed. */
int64_t dense_sums_tile(const struct problem *problem);
/* Bytes of an element of the first (0) or second (1) factor. */
static inline double dense_factor_bytes(const struct problem *problem, int factor)
{
    return problem->factors >> factor & FACTORS_FIRST_F8 ? 1 : (double)dtype_size(problem->dtype);
}

/* The rows for each rank, of a checked request. With no counts given, all the same. */
void dense_send_rows(const struct op_args *args, int nranks, int64_t rows[]);
/* The rows of the sum that each rank gets, of a checked request whose operator scatters rows. With none given they are equal, or the first ranks
 * have one more. */
void dense_rows(const struct op_args *args, int nranks, int64_t rows[]);
/* Whether the request sends, or scatters, the rows that the problem says. */
bool dense_attrs_fit(const struct problem *problem, int rank, const struct op_args *args);

#endif
