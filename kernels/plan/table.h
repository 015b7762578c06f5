/* SPDX-License-Identifier: MIT
 *
 * table.h - the operators' rows, each defined in the file of its name.
 */
#ifndef FCC_KERNELS_PLAN_TABLE_H
#define FCC_KERNELS_PLAN_TABLE_H

#include "kernels/plan/program.h"

#define X(NAME, name, number) extern const struct op op_##name;
FCC_OPERATORS(X)
#undef X

/* The values() of an operator that returns none. */
int op_no_values(const struct problem *problem, int rank, int64_t values[]);

#endif
