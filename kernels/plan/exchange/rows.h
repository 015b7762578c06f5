/* SPDX-License-Identifier: MIT
 *
 * rows.h - the last level of a plan whose epilogue has rows stages (kernels/plan/epilogue.h): when all of a rank's rows have come, in its staging
 * memory, rows slices make its results of them. They wait for one flag of the rank's own, which the last of the plan's wait slices raises:
 * so they need not know what those wait for.
 */
#ifndef FCC_KERNELS_PLAN_EXCHANGE_ROWS_H
#define FCC_KERNELS_PLAN_EXCHANGE_ROWS_H

#include "kernels/plan/program.h"

/* The rows that a rank gets, and the most that any rank gets, of an exchange that reduces. */
int64_t rows_of_sums(const struct problem *problem, int rank);
int64_t rows_of_sums_most(const struct problem *problem);
/* Make room for rows x cols elements in staging memory, behind what the plan has there so far, which is as much on all ranks, and for the flag.
 * Nothing is done where the epilogue has no rows stages. To be called also for the plan of a rank elsewhere. */
void rows_reserve(const struct problem *problem, int64_t rows, int64_t cols, struct plan_builder *b);
/* The signal group of the plan's wait slices; SLICE_NO_GROUP: they need none. */
uint32_t rows_group(struct plan_builder *b, int64_t rows, int64_t cols);
/* Add the rows slices, behind the wait slices. */
void rows_add(struct plan_builder *b, int64_t rows, int64_t cols);

#endif
