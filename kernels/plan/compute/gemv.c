/* SPDX-License-Identifier: MIT
 *
 * gemv.c - y = sum over ranks r, in rank order, of x_r . w_r^T.
 *
 * The N columns of y are cut into one contiguous chunk for each rank, its owner, and the chunks into tiles; a tile is the unit
 * of everything. Phases of the fused schedule, for each rank, on one node (or in a flat plan over several):
 *   1. compute+put: each tile's partial sum goes straight into its owner's staging memory, into the slot of this rank; then the
 *      tile's flag for this rank is raised at the owner. Other ranks' chunks come first (plan_destination_order()).
 *   2. reduce, own tiles only: when the tile's flags of all ranks are there, the partial sums are added in rank order, rounded
 *      once, and stored into every rank's y; then the tile's result flag is raised at every rank.
 *   3. wait for all tiles' result flags.
 * Sequential: all partial sums into the rank's own staging memory, then each is put into its owner's slot, then 2 and 3.
 * Over nodes with several ranks, partial sums are added inside each node first: kernels/plan/exchange/reduce_nodes.c, which makes the plans.
 *
 * The order of additions: the ranks of a node in rank order; then the nodes' sums in the order of the nodes' first ranks. Flat,
 * as on one node: all ranks in rank order. A function of the problem and the route, not of who is how fast.
 *
 * Why the order of memory is right: a partial sum is read only after its flag (raise: release; wait: acquire), and is in a slot that
 * nothing else writes. A slot is written again by the next operator only: its ranks start it when they have finished this one,
 * that is, after the result flags of all tiles, which their owners raised after reading the slots; an owner has read a node's sum
 * after the deputy there had read the slots that it is the sum of.
 * Every rank computes the same tiles with any schedule, and one rank alone adds each sum, so all get the same bits.
 *
 * Flags and staging memory: kernels/plan/exchange/reduce.h. A tile lies dense, [M][columns].
 *
 * On the GPUs of one node partial sums travel otherwise: kernels/plan/exchange/reduce_packets.c. On those of several nodes as here: kernels/gpu/device/exchange/reduce_nodes.h.
 */
#include <errno.h>

#include "kernels/plan/exchange/reduce.h"
#include "kernels/plan/table.h"
#include "kernels/plan/tensor.h"

static const char *const names[] = {[FCC_GEMV_X] = "x", [FCC_GEMV_W] = "w", [FCC_GEMV_Y] = "y"};

static int gemv_check(const struct op_args *args, int nranks, int rank, struct error *e)
{
    const struct tensor *x = &args->tensors[FCC_GEMV_X], *w = &args->tensors[FCC_GEMV_W], *y = &args->tensors[FCC_GEMV_Y];
    int status = args_check(args, FCC_GEMV_TENSORS, 0, e);

    (void)nranks;
    (void)rank;
    for (int i = 0; i < FCC_GEMV_TENSORS && status == 0; i++)
        status = tensor_check(&args->tensors[i], names[i], DTYPES_FLOAT, 2, e);
    if (status == 0 && (x->shape[0] < 1 || x->shape[0] > FCC_GEMV_MAX_M))
        status = error_set(e, -EINVAL, "x: shape[0] %lld: allowed are 1 to %d", (long long)x->shape[0], FCC_GEMV_MAX_M);
    if (status == 0)
        status = tensor_check_dtype(w, "w", x->dtype, "x's", e);
    if (status == 0)
        status = tensor_check_shape(w, "w", 1, x->shape[1], "x's shape[1], K", e);
    if (status == 0)
        status = tensor_check_dtype(y, "y", x->dtype, "x's", e);
    if (status == 0)
        status = tensor_check_shape(y, "y", 0, x->shape[0], "x's shape[0], M", e);
    if (status == 0)
        status = tensor_check_shape(y, "y", 1, w->shape[0], "w's shape[0], N", e);
    if (status == 0)
        status = tensor_check_result(y, "y", e);
    return status;
}

static int gemv_match(const struct op_args args[], int nranks, struct problem *out, struct error *e)
{
    const struct tensor *y0 = &args[0].tensors[FCC_GEMV_Y];
    int status = match_schedule(args, nranks, e);

    for (int r = 0; r < nranks && status == 0; r++) {
        const struct tensor *y = &args[r].tensors[FCC_GEMV_Y];
        status = match_dtype("y", r, y->dtype, y0->dtype, e);
        if (status == 0)
            status = match_value("y: shape[0]", r, y->shape[0], y0->shape[0], e);
        if (status == 0)
            status = match_value("y: shape[1]", r, y->shape[1], y0->shape[1], e);
    }
    if (status)
        return status;
    out->dtype = y0->dtype;
    out->dim[DIM_M] = y0->shape[0];
    out->dim[DIM_N] = y0->shape[1];
    for (int r = 0; r < nranks; r++)
        out->rank_dim[DIM_K][r] = args[r].tensors[FCC_GEMV_X].shape[1];
    return 0;
}

int64_t gemv_columns_per_line(const struct problem *problem)
{
    return (int64_t)(64 / dtype_size(problem->dtype));
}

void gemv_chunks(const struct problem *problem, int64_t columns[FCC_MAX_RANKS + 1])
{
    int64_t line = gemv_columns_per_line(problem), n = problem->dim[DIM_N], lines = (n + line - 1) / line;
    int64_t each = lines / problem->nranks, more = lines % problem->nranks;

    columns[0] = 0;
    for (int p = 0; p < problem->nranks; p++) {
        int64_t end = columns[p] + (each + (p < more)) * line;
        columns[p + 1] = end < n ? end : n;
    }
}

#define GPU_TILES 256 /* about */

/* About 1 MiB of w: long enough that a slice's overhead does not count, short enough to leave early. Large enough that there
 * are no more flags than allowed. */
static void choose_tile(const struct problem *problem, struct schedule *schedule)
{
    int64_t line = gemv_columns_per_line(problem), tile = schedule->slice_cols;
    struct gemv_layout l;

    if (tile == 0 && schedule->target == PLAN_GPU) /* over nodes: some for each workgroup, whole lines of y */
        tile = (problem->dim[DIM_N] / GPU_TILES + line) / line * line;
    if (tile == 0) {
        tile = (1 << 20) / (problem_longest_k(problem) * (int64_t)dtype_size(problem->dtype)) / line * line;
        tile = tile < line ? line : tile;
    }
    for (;; tile *= 2) {
        schedule->slice_cols = (uint32_t)tile;
        gemv_layout_make(problem, schedule, &l);
        if (gemv_slot_flags(&l) + l.ntiles + 1 <= PLAN_MAX_FLAGS)
            break;
    }
    if (tile > l.columns[1])
        tile = l.columns[1] > 0 ? l.columns[1] : 1;
    schedule->slice_rows = (uint32_t)problem->dim[DIM_M];
    schedule->slice_cols = (uint32_t)tile;
}

struct slice gemv_wait(int rank, int64_t first, int64_t count, bool is_here)
{
    return (struct slice){.kind = SLICE_WAIT,
                          .is_here = is_here,
                          .dst = (uint16_t)rank,
                          .group = SLICE_NO_GROUP,
                          .wait_first = (uint32_t)first,
                          .wait_count = (uint32_t)count,
                          .wait_stride = 1};
}

/* With g ranks on a node, flat sends each partial sum and each result g times as often between nodes as hierarchical does, which has
 * two steps more inside them. What is sent less has to be worth that: two nodes of two ranks, over tcp, take as long either way up to
 * 16 KiB of sums; from 64 KiB on hierarchical was faster, by up to the g-fold where the link is what takes time (make bench-nodes). */
#define HIERARCHY_LEAST_BYTES 32768

static void choose_route(const struct problem *problem, struct schedule *schedule)
{
    int64_t ranks = plan_node_ranks(problem), sums = problem->dim[DIM_M] * problem->dim[DIM_N] * (int64_t)sizeof(float);

    if (ranks == 1)
        schedule->route = PLAN_FLAT;
    else if (schedule->route == PLAN_ROUTE_RULE)
        schedule->route = sums * (ranks - 1) >= HIERARCHY_LEAST_BYTES ? PLAN_HIERARCHICAL : PLAN_FLAT;
}

static void gemv_plan(const struct problem *problem, int rank, struct schedule *schedule, struct plan_builder *b)
{
    choose_route(problem, schedule);
    if (schedule->target == PLAN_GPU && !plan_is_over_nodes(problem)) {
        gemv_words_plan(problem, rank, schedule, b);
        return;
    }
    choose_tile(problem, schedule);
    gemv_flags_plan(problem, rank, b);
}

static struct work gemv_work(const struct problem *problem, int rank)
{
    double m = (double)problem->dim[DIM_M], n = (double)problem->dim[DIM_N], k = (double)problem->rank_dim[DIM_K][rank];
    double size = (double)dtype_size(problem->dtype);

    return (struct work){.bytes = (n * k + m * k + m * n) * size + 2 * m * n * sizeof(float), .flops = 2 * m * n * k + m * n};
}

const struct op op_gemv_all_reduce = {
    .name = "gemv_all_reduce",
    .ntensors = FCC_GEMV_TENSORS,
    .tensor_names = names,
    .result = FCC_GEMV_Y,
    .words = {.dim = {[DIM_M] = {"m", FCC_GEMV_MAX_M}, [DIM_N] = {"n", INT32_MAX}}, .rank_dim = {[DIM_K] = {"k", INT32_MAX}}},
    .check = gemv_check,
    .match = gemv_match,
    .plan = gemv_plan,
    .work = gemv_work,
    .values = op_no_values,
};
