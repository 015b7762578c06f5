/* SPDX-License-Identifier: MIT
 *
 * gemv_plan.h - gemv_all_reduce's plans: what gemv_all_reduce.c and gemv_words.c have of each other.
 */
#ifndef FCC_GEMV_PLAN_H
#define FCC_GEMV_PLAN_H

#include "gpu.h"
#include "plan.h"

/* ---- gemv_all_reduce.c ---- */

int64_t gemv_longest_k(const struct problem *problem); /* of a rank, at least 1 */
int64_t gemv_columns_per_line(const struct problem *problem);
/* Where each rank's chunk of the columns begins, and the end: whole cache lines of y. The first is as long as any. */
void gemv_chunks(const struct problem *problem, int64_t columns[FCC_MAX_RANKS + 1]);
/* The wait for `count` flags. */
void gemv_add_wait(struct plan_builder *b, int64_t first, int64_t count);

/* ---- gemv_words.c: on GPUs ---- */

void gemv_words_plan(const struct problem *problem, int rank, struct schedule *schedule, struct plan_builder *b);
void gemv_words_shape(const struct problem *problem, const struct schedule *schedule, struct gpu_shape *out);

#endif
