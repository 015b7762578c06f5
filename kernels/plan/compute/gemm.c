/* SPDX-License-Identifier: MIT
 *
 * gemm.c - C_r = A_r . B_r. Without B_r, C_r = A_r: its rows are copied, bit for bit, which a product with the identity would not do
 * (infinities, NaNs, -0).
 *
 * Put: its rows go to the ranks (kernels/plan/exchange/put.h). In compute+put the BLAS writes a tile of C straight into the destination's c
 * (f32), or the rounding does (f16, bf16).
 *
 * Gather: A is made of all ranks' rows (kernels/plan/exchange/gather.h). A tile has rows of one rank.
 *
 * Reduce: the products are added up (kernels/plan/exchange/reduce.h). All rows of some columns are a tile, which GPUs take in slices of
 * some rows. Where rows of the sum are scattered, all columns of some rows are a tile, and slices are some columns of it.
 */
#include "kernels/plan/compute/dense.h"
#include "kernels/plan/compute/gemm_tiles.h"

/* Of results that have room in staging memory, too, to be computed early. Those of a small operator: it works on no more in all. */
#define EARLY_BYTES (1u << 20)

static int gemm_check(const struct op_args *args, int nranks, int rank, struct error *e)
{
    const bool any_rows = op_spec(args->op)->exchange != EXCHANGE_REDUCE || op_scatters_rows(args->op);

    return dense_check(args, nranks, rank, any_rows ? 0 : INT32_MAX, e);
}

static int64_t tiles_apart(const struct problem *problem, int rank, int64_t rows, int64_t cols)
{
    int64_t high = 0;

    for (int p = 0; p < problem->nranks; p++)
        high += (problem->counts[rank].to[p] + rows - 1) / rows;
    return high * ((problem->dim[DIM_N] + cols - 1) / cols);
}

/* The BLAS packs b anew for each slice: with M = N = K = 1024 it loses 2 to 4 % with blocks of 256 rows, 4 to 8 % with 128,
 * and more with less. Within a node a put costs nothing beside the store, so long slices are better, as long as there are two for
 * each of several workgroups, who are not all as quick: the longer side is halved until there are. Between nodes a put takes as long as
 * computing it, or longer: nothing is under way before the first slice is done, so that is to be soon. Wide results are cut so that a
 * slice stays below some tens of milliseconds: who waits for a workgroup to leave waits for its slice.
 */
static void choose_cpu_tile(const struct problem *problem, int rank, struct schedule *schedule)
{
    enum { LEAST = 64 };
    int64_t half = (problem->sent[rank] / 2 + 15) / 16 * 16, most = 512, n = problem->dim[DIM_N];
    int64_t wanted = schedule->workgroups > 1 ? 2 * (int64_t)schedule->workgroups : 0;

    for (int r = 0; r < problem->nranks && schedule->kind == FCC_SCHEDULE_FUSED; r++)
        most = problem->node_of[r] != problem->node_of[rank] ? 128 : most;
    int64_t rows = half < LEAST ? LEAST : half > most ? most : half, cols = n > 6144 ? 4096 : n > 0 ? n : 1;
    while (tiles_apart(problem, rank, rows, cols) < wanted && (rows >= 2 * LEAST || cols >= 2 * LEAST)) {
        int64_t *longer = cols > rows ? &cols : &rows;
        *longer = (*longer / 2 + 15) / 16 * 16;
    }
    schedule->slice_rows = schedule->slice_rows ? schedule->slice_rows : (uint32_t)rows;
    schedule->slice_cols = schedule->slice_cols ? schedule->slice_cols : (uint32_t)cols;
}

static void choose_gpu_tile(const struct problem *problem, int rank, struct schedule *schedule)
{
    uint32_t rows, cols;

    gemm_tile_choose(problem->counts[rank].to, problem->nranks, problem->dim[DIM_N], problem->dtype == FCC_F32, &rows, &cols);
    schedule->slice_rows = schedule->slice_rows ? schedule->slice_rows : rows;
    schedule->slice_cols = schedule->slice_cols ? schedule->slice_cols : cols;
}

int64_t dense_sums_tile(const struct problem *problem)
{
    enum { LEAST = 64, MOST = 512 };
    int64_t m = problem->dim[DIM_M] > 0 ? problem->dim[DIM_M] : 1, cols = (1 << 20) / ((int64_t)sizeof(float) * m);

    return cols < LEAST ? LEAST : cols > MOST ? MOST : cols / 16 * 16;
}

static void choose_sums_tile(const struct problem *problem, struct schedule *schedule)
{
    schedule->slice_rows = (uint32_t)problem->dim[DIM_M];
    schedule->slice_cols = schedule->slice_cols ? schedule->slice_cols : (uint32_t)dense_sums_tile(problem);
}

/* Of rows that are scattered: slices high and wide enough for the BLAS, which packs a and b anew for each (of 512 x 1024 each element that is packed
 * is used 340 times), two of them at least for each workgroup, and, as long as they stay high, several tiles of each owner: its first
 * tiles are to leave long before all is computed. */
static void choose_scatter_tile(const struct problem *problem, struct schedule *schedule)
{
    enum { LEAST = 64, MOST_ROWS = 512, MOST_COLS = 1024 };
    int64_t longest = 1, m = problem->dim[DIM_M], n = problem->dim[DIM_N] > 0 ? problem->dim[DIM_N] : 1;
    /* All ranks must have the same tiles, and nodes may have different numbers of workgroups. */
    int64_t wanted = schedule->workgroups > 1 && !plan_is_over_nodes(problem) ? 2 * (int64_t)schedule->workgroups : 0;

    for (int r = 0; r < problem->nranks; r++)
        longest = problem->rank_dim[DIM_M][r] > longest ? problem->rank_dim[DIM_M][r] : longest;
    int64_t rows = longest < MOST_ROWS ? longest : MOST_ROWS, cols = n < MOST_COLS ? n : MOST_COLS;
    while ((m + rows - 1) / rows * ((n + cols - 1) / cols) < wanted && (rows >= 2 * LEAST || cols >= 2 * LEAST)) {
        int64_t *longer = cols > rows ? &cols : &rows;
        *longer = (*longer / 2 + 15) / 16 * 16;
    }
    schedule->slice_rows = schedule->slice_rows ? schedule->slice_rows : (uint32_t)rows;
    schedule->slice_cols = schedule->slice_cols ? schedule->slice_cols : (uint32_t)cols;
}

/* A GPU's slice is at most one tile of its matrix units; narrower where these would be too few. */
static void choose_gpu_sums_tile(const struct problem *problem, struct schedule *schedule)
{
    int64_t m = problem->dim[DIM_M] > 0 ? problem->dim[DIM_M] : 1, rows = m < 128 ? m : 128,
            cols = problem->dtype == FCC_F32 ? 128 : 256;

    while (cols > 64 && (m + rows - 1) / rows * ((problem->dim[DIM_N] + cols - 1) / cols) < GEMM_TILES_WANTED)
        cols /= 2;
    rows = schedule->slice_rows && schedule->slice_rows < m ? schedule->slice_rows : rows;
    schedule->slice_rows = (uint32_t)rows;
    schedule->slice_cols = schedule->slice_cols ? schedule->slice_cols : (uint32_t)cols;
}

/* The BLAS packs b anew for each tile, so tiles are as high as a rank's rows are, up to some tens of milliseconds, and lower where rows come
 * from other nodes, since the first ones are multiplied while others are under way; with several workgroups there are two for each, as above.
 * Nothing here depends on the schedule. */
static void choose_gathered_tile(const struct problem *problem, int rank, struct schedule *schedule)
{
    enum { LEAST = 64, ROWS_OVER_NODES = 512 };
    const double flops_most = 4e9;
    const int64_t n = problem->rank_dim[DIM_N][rank], k = problem->dim[DIM_K];
    int64_t longest = 1, cols = n > 6144 ? 4096 : n > 0 ? n : 1;
    const int64_t wanted = schedule->workgroups > 1 ? 2 * (int64_t)schedule->workgroups : 0;

    for (int r = 0; r < problem->nranks; r++)
        longest = problem->rank_dim[DIM_M][r] > longest ? problem->rank_dim[DIM_M][r] : longest;
    int64_t rows = longest;
    while (rows > 2 * LEAST && (2.0 * (double)rows * (double)cols * (double)k > flops_most ||
                                (rows > ROWS_OVER_NODES && plan_is_over_nodes(problem))))
        rows = (rows / 2 + 15) / 16 * 16;
    while (wanted && (rows >= 2 * LEAST || cols >= 2 * LEAST) &&
           (problem->dim[DIM_M] + rows - 1) / rows * ((n + cols - 1) / cols) < wanted) {
        int64_t *longer = cols > rows ? &cols : &rows;
        *longer = (*longer / 2 + 15) / 16 * 16;
    }
    schedule->slice_rows = schedule->slice_rows ? schedule->slice_rows : (uint32_t)rows;
    schedule->slice_cols = schedule->slice_cols ? schedule->slice_cols : (uint32_t)cols;
}

static void choose_gpu_gathered_tile(const struct problem *problem, int rank, struct schedule *schedule)
{
    uint32_t rows, cols;

    gemm_tile_choose(problem->rank_dim[DIM_M], problem->nranks, problem->rank_dim[DIM_N][rank], problem->dtype == FCC_F32,
                     &rows, &cols);
    schedule->slice_rows = schedule->slice_rows ? schedule->slice_rows : rows;
    schedule->slice_cols = schedule->slice_cols ? schedule->slice_cols : cols;
}

static void gemm_tile(const struct problem *problem, int rank, struct schedule *schedule)
{
    if (op_spec(problem->op)->exchange == EXCHANGE_REDUCE) {
        (schedule->target == PLAN_GPU    ? choose_gpu_sums_tile
         : op_scatters_rows(problem->op) ? choose_scatter_tile
                                         : choose_sums_tile)(problem, schedule);
        return;
    }
    if (op_spec(problem->op)->exchange == EXCHANGE_GATHER) {
        (schedule->target == PLAN_GPU ? choose_gpu_gathered_tile : choose_gathered_tile)(problem, rank, schedule);
        return;
    }
    (schedule->target == PLAN_GPU ? choose_gpu_tile : choose_cpu_tile)(problem, rank, schedule);
}

/* Where no destination gets more rows than a tile has, a GPU multiplies the same columns for several of them together, or side by side. */
static enum tile_order order_of(const struct problem *problem, int rank, const struct schedule *schedule)
{
    if (schedule->target == PLAN_CPU)
        return ORDER_IN_PARTS;
    return gemm_longest_part(problem->counts[rank].to, problem->nranks) <= schedule->slice_rows ? ORDER_TOGETHER
                                                                                                : ORDER_IN_BANDS;
}

static void gemm_domain(const struct problem *problem, int rank, const struct schedule *schedule, struct domain *out)
{
    const struct rank_counts *own = &problem->counts[rank];
    int64_t row = 0, n = problem->dim[DIM_N];

    out->element_bytes = dtype_size(problem->dtype);
    out->early_bytes = EARLY_BYTES;
    if (!own->to) { /* elsewhere */
        out->part[0] = (struct rectangle){.rows = (uint32_t)problem->sent[rank], .cols = (uint32_t)n};
        return;
    }
    for (int p = 0; p < problem->nranks; p++) {
        out->part[p] = (struct rectangle){
            .row = (uint32_t)row, .rows = (uint32_t)own->to[p], .cols = (uint32_t)n, .dst_row = (uint32_t)own->at[p]};
        row += own->to[p];
        out->from[p] = own->from[p] > 0 && n > 0;
    }
    out->order = order_of(problem, rank, schedule);
    out->flag_each = true;
}

static struct work gemm_work(const struct problem *problem, int rank)
{
    const enum exchange_kind exchange = (enum exchange_kind)op_spec(problem->op)->exchange;
    const double k = (double)problem->rank_dim[DIM_K][rank], size = (double)dtype_size(problem->dtype);
    const double n = (double)(exchange == EXCHANGE_GATHER ? problem->rank_dim[DIM_N][rank] : problem->dim[DIM_N]);
    const double m = (double)(exchange == EXCHANGE_PUT ? problem->sent[rank] : problem->dim[DIM_M]);
    const double sums = exchange == EXCHANGE_REDUCE ? m : 0; /* rows that are added up */

    return (struct work){.bytes = m * k * dense_factor_bytes(problem, 0) + k * n * dense_factor_bytes(problem, 1) +
                                  m * n * size + 2 * sums * n * sizeof(float),
                         .flops = 2 * m * n * k + sums * n};
}

const struct compute_ops compute_gemm = {
    .words = {.dim = {[DIM_M] = {"m", INT32_MAX},
                      [DIM_N] = {"n", INT32_MAX},
                      [DIM_K] = {"k", INT32_MAX},
                      [DIM_FACTOR_BYTES] = {"bytes of an element of a", sizeof(float)},
                      [DIM_GATHERED] = {"gathered", 1}},
              .rank_dim = {[DIM_M] = {"rows", INT32_MAX}, [DIM_N] = {"n", INT32_MAX}, [DIM_K] = {"k", INT32_MAX}},
              .counts = "send_rows",
              .counts_most = INT32_MAX},
    .check = gemm_check,
    .match = dense_match,
    .attrs_fit = dense_attrs_fit,
    .work = gemm_work,
    .tile = gemm_tile,
    .domain = gemm_domain,
};
