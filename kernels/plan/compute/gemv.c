/* SPDX-License-Identifier: MIT
 *
 * gemv.c - x_r . w_r^T, of a few rows of x: bound by reading w. Every rank computes the same tiles with any schedule. Cores take many rows, too,
 * as they do gemm_all_reduce's.
 */
#include "kernels/plan/compute/dense.h"
#include "kernels/plan/exchange/packet_sizes.h"

#define GPU_TILES 256 /* about */

static int gemv_check(const struct op_args *args, int nranks, int rank, struct error *e)
{
    return dense_check(args, nranks, rank, FCC_GEMV_MAX_ROWS, e);
}

/* On cores about 1 MiB of w, or of sums of many rows: long enough that a slice's overhead does not count, short enough to leave early. On GPUs over
 * nodes some for each workgroup, whole lines of y. */
static void gemv_tile(const struct problem *problem, int rank, struct schedule *schedule)
{
    int64_t size = (int64_t)dtype_size(problem->dtype), line = 64 / size, tile = schedule->slice_cols;

    (void)rank;
    schedule->slice_rows = (uint32_t)problem->dim[DIM_M];
    if (tile == 0 && schedule->target == PLAN_GPU)
        tile = plan_is_over_nodes(problem)
                   ? (problem->dim[DIM_N] / GPU_TILES + line) / line * line
                   : gemv_packets_tile(problem->dim[DIM_M], problem->dim[DIM_N], problem_longest_k(problem));
    if (tile == 0 && problem->dim[DIM_M] > FCC_GEMV_MAX_M)
        tile = dense_sums_tile(problem);
    if (tile == 0) {
        tile = (1 << 20) / (problem_longest_k(problem) * size) / line * line;
        tile = tile < line ? line : tile;
    }
    schedule->slice_cols = (uint32_t)tile;
}

static struct work gemv_work(const struct problem *problem, int rank)
{
    double m = (double)problem->dim[DIM_M], n = (double)problem->dim[DIM_N], k = (double)problem->rank_dim[DIM_K][rank];
    double size = (double)dtype_size(problem->dtype);

    return (struct work){.bytes = n * k * dense_factor_bytes(problem, 1) + m * k * dense_factor_bytes(problem, 0) +
                                  m * n * size + 2 * m * n * sizeof(float),
                         .flops = 2 * m * n * k + m * n};
}

const struct compute_ops compute_gemv = {
    .words = {.dim = {[DIM_M] = {"m", FCC_GEMV_MAX_ROWS}, [DIM_N] = {"n", INT32_MAX}},
              .rank_dim = {[DIM_K] = {"k", INT32_MAX}}},
    .check = gemv_check,
    .match = dense_match,
    .few_sums = true,
    .work = gemv_work,
    .tile = gemv_tile,
};
