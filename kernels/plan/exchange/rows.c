/* SPDX-License-Identifier: MIT */
#include "kernels/plan/exchange/rows.h"

#include "kernels/plan/compute/vector.h"
#include "kernels/plan/epilogue.h"

#define ROWS_LEAST_ELEMENTS 16384 /* of a slice: less is not worth a slice's costs */
#define ROWS_SLICES_MOST 4096

int64_t rows_of_sums(const struct problem *problem, int rank)
{
    const int64_t cols = problem->epilogue.cols;

    if (op_scatters_rows(problem->op))
        return problem->rank_dim[DIM_M][rank];
    return op_is_vector(problem->op) ? cols > 0 ? problem->dim[DIM_N] / cols : 0 : problem->dim[DIM_M];
}

int64_t rows_of_sums_most(const struct problem *problem)
{
    int64_t most = 0;

    for (int r = 0; r < problem->nranks; r++)
        most = rows_of_sums(problem, r) > most ? rows_of_sums(problem, r) : most;
    return most;
}

void rows_reserve(const struct problem *problem, int64_t rows, int64_t cols, struct plan_builder *b)
{
    struct plan *plan = b->plan;

    if (!epilogue_has_rows(&problem->epilogue) || plan->schedule.kind == FCC_SCHEDULE_COMPUTE_ONLY)
        return;
    plan->has_rows = true;
    plan->rows_at = (plan->staging_bytes + 63) / 64 * 64;
    plan->rows_bytes = ((uint64_t)rows * (uint64_t)cols * dtype_size(problem->dtype) + 63) / 64 * 64;
    plan->staging_bytes = plan->rows_at + plan->rows_bytes;
    plan->shared = 0; /* ranks store into each other's staging memory only */
    plan->rows_flag = plan->nflags++;
}

uint32_t rows_group(struct plan_builder *b, int64_t rows, int64_t cols)
{
    return b->plan->has_rows && rows && cols ? plan_add_group(b, (unsigned)b->plan->rank, b->plan->rows_flag) : SLICE_NO_GROUP;
}

void rows_add(struct plan_builder *b, int64_t rows, int64_t cols)
{
    int64_t each = cols > 0 ? ROWS_LEAST_ELEMENTS / cols : rows, few = (rows + ROWS_SLICES_MOST - 1) / ROWS_SLICES_MOST;

    if (!b->plan->has_rows || rows == 0 || cols == 0)
        return;
    each = each > few ? each : few;
    plan_add_level(b, b->plan->nlevels > LEVELS ? b->plan->nlevels : LEVEL_ROWS);
    for (int64_t row = 0; row < rows && b->status == 0; row += each)
        plan_add_slice(b, (struct slice){.kind = SLICE_ROWS,
                                         .dst = (uint16_t)b->plan->rank,
                                         .group = SLICE_NO_GROUP,
                                         .wait_first = b->plan->rows_flag,
                                         .wait_count = 1,
                                         .wait_stride = 1,
                                         .row = (uint32_t)row,
                                         .dst_row = (uint32_t)row,
                                         .rows = (uint32_t)(rows - row < each ? rows - row : each),
                                         .cols = (uint32_t)cols});
}
