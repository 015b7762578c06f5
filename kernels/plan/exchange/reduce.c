/* SPDX-License-Identifier: MIT
 *
 * reduce.c - an AllReduce of the ranks' products, y = sum over ranks r, in rank order, of what r has computed: what its plans have in common.
 * With a ReduceScatter (gemm_reduce_scatter), too: each rank owns the rows that it gets.
 *
 * The N columns of y are cut into one contiguous chunk for each rank, its owner, and the chunks into tiles; a tile is the unit
 * of everything. Phases of the fused schedule, for each rank, on one node (or in a flat plan over several):
 *   1. compute+put: each tile's partial sum goes straight into its owner's staging memory, into the slot of this rank; then the
 *      tile's flag for this rank is raised at the owner. Other ranks' chunks come first (plan_destination_order()).
 *   2. reduce, own tiles only: when the tile's flags of all ranks are there, the partial sums are added in rank order, rounded
 *      once, and stored into every rank's y; then the tile's result flag is raised at every rank.
 *   3. wait for all tiles' result flags.
 * ReduceScatter: chunks are the ranks' rows, and tiles all columns of some of these; 2 stores a sum into the owner's result alone, and one flag
 * of each rank says that it has added up all of its tiles: so its receive slots, and a deputy's, may be used again. (On cores over nodes only
 * who waits for that hears it: hears_of() in reduce_nodes.c.)
 * A small all_reduce of ranks that are alone on their nodes: each rank puts its vector to all others, and reduces all of it (reduce_is_by_all()).
 * Sequential: all partial sums into the rank's own staging memory, then each is put into its owner's slot, then 2 and 3.
 * Over nodes with several ranks, partial sums are added inside each node first: reduce_nodes.c, which makes the plans.
 *
 * The order of additions: the ranks of a node in rank order; then the nodes' sums in the order of the nodes' first ranks. Flat,
 * as on one node: all ranks in rank order. A function of the problem and the route, not of who is how fast.
 *
 * Why the order of memory is right: kernels/cpu/reduce.c.
 * Every rank computes the same tiles with any schedule, and one rank alone adds each sum, so all get the same bits.
 *
 * Flags and staging memory: reduce.h. A tile lies dense, [M][columns].
 *
 * On the GPUs of one node the partial sums of gemv travel otherwise: reduce_packets.c. Those of gemm, and on GPUs of several nodes all, as
 * here: kernels/gpu/device/exchange/reduce_nodes.h.
 */
#include "kernels/plan/exchange/reduce.h"

#include "kernels/plan/compute/step.h"
#include "kernels/plan/compute/vector.h"
#include "kernels/plan/epilogue.h"
#include "kernels/plan/exchange/rows.h"

int64_t reduce_columns_per_line(const struct problem *problem)
{
    return (int64_t)(64 / dtype_size(problem->dtype));
}

void reduce_chunks(const struct problem *problem, int64_t columns[])
{
    int64_t line = reduce_columns_per_line(problem), n = problem->dim[DIM_N], lines = (n + line - 1) / line;
    const int64_t node_ranks = plan_is_over_nodes(problem) ? plan_node_ranks(problem) : 0;

    columns[0] = 0;
    for (int p = 0; p < problem->nranks && op_scatters_rows(problem->op); p++)
        columns[p + 1] = columns[p] + (n > 0 ? problem->rank_dim[DIM_M][p] : 0);
    if (op_scatters_rows(problem->op))
        return;
    for (int p = 0; p < problem->nranks; p++) {
        const int64_t end = plan_lines_before(lines, problem->nranks, node_ranks, p + 1) * line;
        columns[p + 1] = end < n ? end : n;
    }
}

/* Enlarges the compute's tiles if there would be too many flags, and limits them to a chunk. One tile per chunk gives few
 * enough flags for any number of ranks. */
static void tile_fit(struct reduce_layout *l, struct schedule *schedule)
{
    uint32_t *size = l->by_rows ? &schedule->slice_rows : &schedule->slice_cols;
    int64_t tile = *size;

    for (;; tile *= 2) {
        reduce_layout_cut(l, tile);
        if (reduce_slot_flags(l) + l->ntiles + 1 <= PLAN_MAX_FLAGS)
            break;
    }
    *size = tile <= l->longest ? (uint32_t)tile : l->longest > 0 ? (uint32_t)l->longest : 1;
}

struct slice reduce_wait(int rank, int64_t first, int64_t count, bool is_here)
{
    return (struct slice){.kind = SLICE_WAIT,
                          .is_here = is_here,
                          .dst = (uint16_t)rank,
                          .group = SLICE_NO_GROUP,
                          .wait_first = (uint32_t)first,
                          .wait_count = (uint32_t)count,
                          .wait_stride = 1};
}

/* With g ranks per node, a flat plan sends each partial sum and each result between nodes g times as often as a
 * hierarchical one, which has two more steps inside the nodes. The saved traffic must outweigh them. Two nodes of two ranks
 * over tcp take equally long up to 16 KiB of sums; from 64 KiB on hierarchical was faster, up to g-fold where the link is
 * the bottleneck (make bench-nodes). */
#define HIERARCHY_LEAST_BYTES 32768
#define PIECE_SLICES 2112 /* of a GPU's rank that adds up tensors, about: eight for each workgroup of the largest */

static void choose_route(const struct problem *problem, struct schedule *schedule)
{
    int64_t ranks = plan_node_ranks(problem), sums = problem->dim[DIM_M] * problem->dim[DIM_N] * (int64_t)sizeof(float);

    if (ranks == 1)
        schedule->route = PLAN_FLAT;
    else if (schedule->route == PLAN_ROUTE_RULE)
        schedule->route = sums * (ranks - 1) >= HIERARCHY_LEAST_BYTES ? PLAN_HIERARCHICAL : PLAN_FLAT;
}

static struct slice wait_of(int rank, int first, int count, uint32_t group)
{
    struct slice s = reduce_wait(rank, first, count, false);

    s.group = group;
    return s;
}

/* Columns of a tile, at least `least`, that hold whole sums of the step's own: one slice has everything where these do not go into columns. */
static int64_t elements_tile(const struct problem *problem, int64_t least, int64_t all)
{
    const int64_t unit = vector_unit(problem), sum = problem->dim[DIM_VECTOR];

    if (sum == 0)
        return least;
    if (sum % unit || sum / unit >= all)
        return all;
    return (least + sum / unit - 1) / (sum / unit) * (sum / unit);
}

/* The plan of a collective on one node, whose ranks can read each other's inputs: each owner adds them up, tile by tile, stores the
 * sums, and raises one flag at every rank. Nobody returns before all chunks are done, as others read its input until then. Flags: one for
 * each owner. A program's step may have no inputs to add up, or no result for others: its owner works on the tiles alike. */
static void direct_plan(const struct problem *problem, int rank, struct reduce_layout *l, struct plan_builder *b)
{
    const struct schedule *schedule = &b->plan->schedule;
    const bool gives = !op_is_step(problem->op) || step_has_result(problem);
    const int receiver = gives ? vector_receiver(problem, rank) : rank;
    const int64_t end = l->columns[rank + 1], tile = elements_tile(problem, schedule->slice_cols, end - l->columns[rank]);

    l->direct = true;
    b->plan->nflags = (uint32_t)problem->nranks;
    b->plan->transport = TRANSPORT_FLAGS;
    b->plan->shared = gives ? 1u << op_spec(problem->op)->result : 0;
    rows_reserve(problem, rows_of_sums_most(problem), problem->epilogue.cols, b);
    const uint32_t waits = rows_group(b, rows_of_sums(problem, rank), problem->epilogue.cols);
    if (l->columns[rank] < end) {
        struct slice s = {.kind = SLICE_REDUCE,
                          .dst = receiver < 0 ? SLICE_DST_ALL : (uint16_t)receiver,
                          .group = plan_add_group(b, SLICE_DST_ALL, (uint32_t)rank),
                          .rows = 1};
        for (int64_t col = l->columns[rank]; col < end && b->status == 0; col += s.cols) {
            s.col = s.dst_col = (uint32_t)col;
            s.cols = (uint32_t)(end - col < tile ? end - col : tile);
            plan_add_slice(b, s);
        }
    }
    plan_add_level(b, LEVEL_WAIT);
    for (int first = 0, next; first < problem->nranks; first = next + 1) {
        for (next = first; next < problem->nranks && l->columns[next] < l->columns[next + 1];)
            next++;
        if (next > first)
            plan_add_slice(b, wait_of(rank, first, next - first, waits));
    }
    rows_add(b, rows_of_sums(problem, rank), problem->epilogue.cols);
}

#define BY_ALL_BYTES 65536 /* that a rank sends; more of them take longer to add up than the second step would */
#define BY_ALL_RANKS 8

bool reduce_is_by_all(const struct problem *problem, const struct schedule *schedule)
{
    const int64_t bytes = problem->dim[DIM_N] * (int64_t)dtype_size(vector_sum_dtype(problem->dtype));

    return op_spec(problem->op)->compute == COMPUTE_VECTOR && vector_receiver(problem, 0) < 0 &&
           schedule->kind == FCC_SCHEDULE_FUSED && schedule->target == PLAN_CPU && !problem->epilogue.cols &&
           problem->nranks <= BY_ALL_RANKS && bytes * (problem->nranks - 1) <= BY_ALL_BYTES && plan_is_over_nodes(problem) &&
           plan_node_ranks(problem) == 1;
}

/* Each rank puts its vector into a slot of each other rank, and adds up what is in its own. Nobody waits for others to have read their slots: the next
 * operator begins on a node when this one has ended on all of them. Flags: of each tile, one for each slot; behind them one: the rank has reduced all. */
static void by_all_plan(const struct problem *problem, int rank, const struct reduce_layout *l, struct plan_builder *b)
{
    const struct schedule *schedule = &b->plan->schedule;
    int *order = plan_scratch(b, (size_t)problem->nranks, sizeof(*order));
    const int64_t end = l->longest;

    if (!order)
        return;
    plan_destination_order(problem, rank, order);
    const uint32_t reduced = (uint32_t)(problem->nranks * l->ntiles);
    b->plan->nflags = reduced + 1;
    b->plan->transport = TRANSPORT_FLAGS;
    b->plan->staging_bytes = reduce_staging_bytes(l);
    struct slice s = {.slot = (uint16_t)rank, .rows = 1};
    for (int i = 0; i < problem->nranks; i++)
        for (int64_t col = 0, t = 0; col < end && b->status == 0; col += s.cols, t++) {
            s.kind = SLICE_COMPUTE_PUT;
            s.dst = (uint16_t)order[i];
            s.col = s.dst_col = (uint32_t)col;
            s.cols = (uint32_t)(end - col < schedule->slice_cols ? end - col : schedule->slice_cols);
            s.group = plan_add_group(b, s.dst, (uint32_t)(rank * l->ntiles + t));
            plan_add_slice(b, s);
        }
    plan_add_level(b, LEVEL_REDUCE);
    b->plan->start_level = b->plan->nlevels - 1;
    const uint32_t group = end ? plan_add_group(b, (unsigned)rank, reduced) : SLICE_NO_GROUP;
    for (int64_t col = 0, t = 0; col < end && b->status == 0; col += s.cols, t++) {
        s = (struct slice){.kind = SLICE_REDUCE,
                           .dst = (uint16_t)rank,
                           .group = group,
                           .rows = 1,
                           .wait_first = (uint32_t)t,
                           .wait_count = (uint32_t)problem->nranks,
                           .wait_stride = (uint32_t)l->ntiles};
        s.col = s.dst_col = (uint32_t)col;
        s.cols = (uint32_t)(end - col < schedule->slice_cols ? end - col : schedule->slice_cols);
        plan_add_slice(b, s);
    }
    plan_add_level(b, LEVEL_WAIT);
    if (end)
        plan_add_slice(b, reduce_wait(rank, reduced, 1, false));
}

/* Slices of a GPU that adds up tensors: pieces of these, as many at a time as leave a workgroup some slices; and, when all are done, their sums. */
static void pieces_plan(const struct problem *problem, int rank, struct plan_builder *b)
{
    const int64_t pieces = step_pieces_most(problem->rank_dim[DIM_K][rank], problem->dim[DIM_GATHERED]),
                  some = pieces / PIECE_SLICES + 1;
    struct slice s = {.kind = SLICE_REDUCE, .dst = (uint16_t)rank, .group = plan_add_group(b, (unsigned)rank, 0), .rows = 1};
    struct slice last = {.kind = SLICE_PUT,
                         .dst = (uint16_t)rank,
                         .group = SLICE_NO_GROUP,
                         .rows = 1,
                         .cols = (uint32_t)problem->dim[DIM_GATHERED],
                         .wait_count = 1,
                         .wait_stride = 1};

    b->plan->nflags = 1;
    b->plan->transport = TRANSPORT_FLAGS;
    b->plan->staging_bytes = (uint64_t)pieces * STEP_PIECE_BYTES;
    for (int64_t col = 0; col < pieces && b->status == 0; col += s.cols) {
        s.col = s.dst_col = (uint32_t)col;
        s.cols = (uint32_t)(pieces - col < some ? pieces - col : some);
        plan_add_slice(b, s);
    }
    plan_add_level(b, LEVEL_PUT);
    plan_add_slice(b, last);
}

/* Tiles of a rank's own elements. */
static void own_plan(const struct problem *problem, int rank, int64_t end, struct plan_builder *b)
{
    const int64_t tile = elements_tile(problem, b->plan->schedule.slice_cols, end);
    struct slice s = {.kind = SLICE_REDUCE, .dst = (uint16_t)rank, .group = SLICE_NO_GROUP, .rows = 1};

    for (int64_t col = 0; col < end && b->status == 0; col += s.cols) {
        s.col = s.dst_col = (uint32_t)col;
        s.cols = (uint32_t)(end - col < tile ? end - col : tile);
        plan_add_slice(b, s);
    }
}

/* The plan of a step that no rank shares with others: each works on its own elements, and nobody waits for another. */
static void elements_plan(const struct problem *problem, int rank, struct reduce_layout *l, struct plan_builder *b)
{
    const int64_t end = vector_columns(problem->rank_dim[DIM_K][rank], vector_unit(problem));

    for (int p = 0; p <= problem->nranks; p++) {
        l->columns[p] = p > rank ? end : 0;
        l->elements[p] = problem->rank_dim[DIM_N][rank] + (p > rank ? problem->rank_dim[DIM_K][rank] : 0);
    }
    if (problem->dim[DIM_GATHERED] && b->plan->schedule.target == PLAN_GPU)
        pieces_plan(problem, rank, b);
    else
        own_plan(problem, rank, end, b);
    plan_add_level(b, LEVEL_WAIT);
    plan_add_slice(b, (struct slice){.kind = SLICE_WAIT, .dst = (uint16_t)rank, .group = SLICE_NO_GROUP});
}

static void reduce_plan(const struct problem *problem, int rank, const struct compute_ops *compute, struct plan_builder *b)
{
    struct schedule *schedule = &b->plan->schedule;

    choose_route(problem, schedule);
    compute->tile(problem, rank, schedule);
    if (schedule->target == PLAN_GPU && compute->few_sums && !plan_is_over_nodes(problem) &&
        !epilogue_has_rows(&problem->epilogue)) {
        reduce_packets_plan(problem, rank, b);
        return;
    }
    struct reduce_layout *l = reduce_layout_new(problem, b);
    if (!l)
        return;
    if (op_is_step(problem->op) && !step_is_shared(problem)) {
        elements_plan(problem, rank, l, b);
        return;
    }
    if (op_is_vector(problem->op) && !plan_is_over_nodes(problem)) {
        reduce_layout_cut(l, schedule->slice_cols);
        direct_plan(problem, rank, l, b);
        return;
    }
    const bool by_all = reduce_is_by_all(problem, schedule);
    if (by_all)
        reduce_layout_by_all(problem, l);
    tile_fit(l, schedule);
    if (by_all) {
        by_all_plan(problem, rank, l, b);
        return;
    }
    reduce_flags_plan(problem, rank, b);
}

const struct exchange_ops exchange_reduce = {.plan = reduce_plan};
