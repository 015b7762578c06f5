/* SPDX-License-Identifier: MIT
 *
 * reduce_packets.c - the plans of a reduce exchange by packets, on the GPUs of one node.
 *
 * A partial sum travels as a packet with its operator's stamp (kernels/gpu/abi.h), so it needs no flag, except in a schedule
 * that is not fused. Tiles are only the unit of computing; results have slices of their own, of other sizes. Two steps:
 *   1. compute+put: each packet goes to the owner of its columns.
 *   2. reduce, own chunk only: each packet is awaited; the partial sums are added in rank order, rounded once and stored into
 *      every rank's y; then the slice's result flag is raised at every rank.
 *   3. wait for all result flags.
 *
 * One step, if is_one_shot() says so: each packet goes to every rank, also to the sender itself, and every rank reduces all
 * of y. All ranks add the same numbers in the same order.
 *
 * Packet memory is used again by the next operator but one that uses packets. Why every rank has read its packets by then:
 * slots_prepare() in daemon/worker/comm/turn.c. With two steps, too, a rank finishes only after every rank has sent its
 * packets of this operator, because it needs all results, each of which needs all ranks' packets.
 *
 * Flags: [t] result slice t of all ranks is here; then one: this rank's partial sums are computed. One step has only the
 * latter. Staging memory holds these partial sums only, [M][N].
 */
#include "kernels/plan/exchange/packet_sizes.h"
#include "kernels/plan/exchange/reduce.h"

#include "kernels/plan/spec.h"
#include <assert.h>

/* One step: every rank sends all its partial sums to all ranks. Two steps: each partial sum goes to its owner only, which
 * sends the results on, with a flag. One step is chosen where the second step would take longer than the extra traffic: for
 * 4 ranks up to 64 KiB of y in 16 bits. Also where packets travel while w is still read: links are about 12 times slower
 * than a GPU's memory, so a sixteenth of w's bytes fits. ONE_SHOT_MOST limits the packet memory for this. */
#define ONE_SHOT_BYTES (1 << 20)
#define ONE_SHOT_OF_W 16
#define ONE_SHOT_MOST (16 << 20)

static bool is_one_shot(const struct problem *problem)
{
    uint64_t n = (uint64_t)problem->dim[DIM_N], nranks = (uint64_t)problem->nranks;
    uint64_t bytes = (uint64_t)problem->dim[DIM_M] * n * PACKET_BYTES; /* bytes of one rank's packets */
    uint64_t w = n * (uint64_t)problem_longest_k(problem) * dtype_size(problem->dtype);

    return bytes * nranks <= ONE_SHOT_BYTES || (bytes * nranks <= ONE_SHOT_MOST && bytes * (nranks - 1) <= w / ONE_SHOT_OF_W);
}

/* The bytes of one rank's packets for some columns, in whole blocks of 8 columns. */
static uint64_t words_bytes(const struct problem *problem, int64_t columns)
{
    return ((uint64_t)(problem->dim[DIM_M] * ((columns + 7) / 8 * 8)) * PACKET_BYTES + 255) & ~(uint64_t)255;
}

/* How the columns are reduced. Two steps: the owner of chunk p reduces it, in slices of `columns`. One step: every rank
 * reduces all columns. */
struct reduction {
    int64_t *columns; /* [nchunks + 1], and of all ranks' room */
    int64_t slice, nslices;
    int nchunks;
};

/* Chooses the slices. columns: zeroed, [nranks + 1]. */
static struct reduction reduction_make(const struct problem *problem, int64_t *columns)
{
    int64_t m = problem->dim[DIM_M], line = reduce_columns_per_line(problem);
    struct reduction d = {.nchunks = 1, .columns = columns};

    columns[1] = problem->dim[DIM_N];
    if (!is_one_shot(problem)) {
        d.nchunks = problem->nranks;
        reduce_chunks(problem, d.columns);
    }
    d.slice = packets_reduced(m, d.columns[1], line, d.nchunks > 1);
    do {
        d.nslices = 0;
        for (int p = 0; p < d.nchunks; p++)
            d.nslices += (d.columns[p + 1] - d.columns[p] + d.slice - 1) / d.slice;
    } while (d.nslices + 1 > PLAN_MAX_FLAGS && (d.slice *= 2));
    return d;
}

static void add_columns(struct plan_builder *b, int64_t first, int64_t end, int64_t tile, struct slice like)
{
    like.rows = b->plan->schedule.slice_rows;
    for (int64_t col = first; col < end && b->status == 0; col += tile) {
        like.col = like.dst_col = (uint32_t)col;
        like.cols = (uint32_t)(end - col < tile ? end - col : tile);
        plan_add_slice(b, like);
    }
}

/* Adds all tiles, chunk by chunk, in the order in which their owners are served. Slices that only put are as large as those
 * that reduce. */
static void add_tiles(struct plan_builder *b, const struct problem *problem, const struct reduction *d, struct slice like)
{
    int *order = plan_scratch(b, (size_t)problem->nranks, sizeof(*order));
    bool puts = like.kind != SLICE_COMPUTE;

    if (!order)
        return;
    plan_destination_order(problem, b->plan->rank, order);
    for (int i = 0; i < d->nchunks; i++) {
        int p = d->nchunks > 1 ? order[i] : 0;
        like.dst = (uint16_t)(!puts ? b->plan->rank : d->nchunks > 1 ? p : (int)SLICE_DST_ALL);
        add_columns(b, d->columns[p], d->columns[p + 1], like.kind == SLICE_PUT ? d->slice : b->plan->schedule.slice_cols,
                    like);
    }
}

static void add_wait(struct plan_builder *b, int64_t first, int64_t count)
{
    plan_add_level(b, LEVEL_WAIT);
    if (count > 0)
        plan_add_slice(b, reduce_wait(b->plan->rank, first, count, false));
}

/* Adds the reduce slices of the rank's own chunk, each with a flag at all ranks, and the wait for all results. */
static void add_results(struct plan_builder *b, const struct reduction *d)
{
    struct slice like = {.kind = SLICE_REDUCE, .dst = SLICE_DST_ALL};
    int64_t flag = 0;

    for (int p = 0; p < d->nchunks; p++)
        for (int64_t col = d->columns[p]; col < d->columns[p + 1] && b->status == 0; col += d->slice, flag++) {
            int64_t end = col + d->slice < d->columns[p + 1] ? col + d->slice : d->columns[p + 1];
            if (p != b->plan->rank)
                continue;
            like.group = plan_add_group(b, SLICE_DST_ALL, (uint32_t)flag);
            add_columns(b, col, end, d->slice, like);
        }
    add_wait(b, 0, d->nslices);
}

void reduce_packets_plan(const struct problem *problem, int rank, struct plan_builder *b)
{
    struct schedule *schedule = &b->plan->schedule;
    int64_t *columns = plan_scratch(b, (size_t)problem->nranks + 1, sizeof(*columns));

    if (!columns)
        return;
    struct reduction d = reduction_make(problem, columns);
    bool fused = schedule->kind == FCC_SCHEDULE_FUSED, computes = schedule->kind != FCC_SCHEDULE_COMM_ONLY;
    bool puts = schedule->kind != FCC_SCHEDULE_COMPUTE_ONLY, some = problem->dim[DIM_N] > 0;
    uint32_t computed = d.nchunks > 1 ? (uint32_t)d.nslices : 0;
    struct slice put = {.kind = fused ? SLICE_COMPUTE_PUT : SLICE_PUT, .group = SLICE_NO_GROUP};

    if (schedule->slice_cols > problem->dim[DIM_N])
        schedule->slice_cols = some ? (uint32_t)problem->dim[DIM_N] : 1;
    b->plan->nflags = computed + 1;
    b->plan->staging_bytes = fused ? 0 : (uint64_t)(problem->dim[DIM_M] * problem->dim[DIM_N]) * sizeof(float);
    b->plan->transport = puts ? TRANSPORT_PACKETS : TRANSPORT_NONE;
    b->plan->shared = puts && d.nchunks > 1 ? 1u << op_spec(problem->op)->result : 0;
    b->plan->start_level = fused && d.nchunks == 1 ? LEVELS : LEVEL_FREE;
    b->plan->packet_bytes = puts ? (uint64_t)problem->nranks * words_bytes(problem, d.columns[1]) : 0;
    if (!fused && computes && some) {
        uint32_t group = plan_add_group(b, (unsigned)rank, computed);
        add_tiles(b, problem, &d, (struct slice){.kind = SLICE_COMPUTE, .group = group});
        plan_add_level(b, LEVEL_PUT);
        put.wait_first = computed;
        put.wait_count = put.wait_stride = 1;
    }
    if (!puts) {
        add_wait(b, computed, some);
        return;
    }
    add_tiles(b, problem, &d, put);
    plan_add_level(b, LEVEL_REDUCE);
    if (d.nchunks > 1)
        add_results(b, &d);
    else
        add_columns(b, 0, problem->dim[DIM_N], d.slice,
                    (struct slice){.kind = SLICE_REDUCE, .dst = (uint16_t)rank, .group = SLICE_NO_GROUP});
}

uint64_t reduce_packets_place(const struct problem *problem, int64_t first[])
{
    int64_t columns[GPU_MAX_RANKS + 1] = {0};

    assert(problem->nranks <= GPU_MAX_RANKS); /* it is asked by who gives a kernel its arguments */
    struct reduction d = reduction_make(problem, columns);
    for (int r = 0; r < problem->nranks; r++)
        first[r] = d.nchunks > 1 ? d.columns[r] : 0;
    return words_bytes(problem, d.columns[1]);
}
