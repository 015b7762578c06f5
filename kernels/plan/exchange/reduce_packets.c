/* SPDX-License-Identifier: MIT
 *
 * reduce_packets.c - gemv_all_reduce's plans on the GPUs of one node. There partial sums travel as words that carry the operator's stamp (kernels/gpu/abi.h),
 * in slots, and need no flag but for a schedule that is not fused. Tiles are only what is computed at a time; results have
 * slices of their own, of other sizes. In two steps:
 *   1. compute+put: each partial sum goes to its owner as a word.
 *   2. reduce, own chunk only: each word is awaited, then they are added in rank order, rounded once, and stored into every
 *      rank's y; then the slice's result flag is raised at every rank.
 *   3. wait for all result flags.
 * Or, where is_one_shot() says so, in one step, without 3: each word goes to every rank, its own too, and every rank reduces
 * all of y for itself. All add the same numbers in the same order.
 * Slots are written again by the next operator but one that uses slots; why not before every rank has read what it got:
 * slots_prepare() in daemon/worker/comm/turn.c. In two steps, too, a rank has finished only when it has got what it could not have got before
 * every rank had sent its words of this operator: all results, each of which some rank made from all ranks' words.
 * Flags: [t] result slice t of all ranks' is here; then: own partial sums are computed. In one step only the latter. Staging is
 * for these alone, [M][N].
 */
#include "kernels/plan/exchange/reduce.h"
#include "kernels/plan/spec.h"

/* In one step every rank sends all of its partial sums to all ranks, in two steps each to its owner only, which sends the
 * results on, with a flag. One step it is where that is so little that the second step would take longer: for 4 ranks up to 64
 * KiB of y in 16 bits. Or where the words are on their way while w is still read: links are about 12 times slower than a GPU's
 * memory, so a sixteenth of w's bytes leaves them some room. But not beyond what slots are worth. */
#define ONE_SHOT_BYTES (1 << 20)
#define ONE_SHOT_OF_W 16
#define ONE_SHOT_MOST (16 << 20)

static bool is_one_shot(const struct problem *problem)
{
    uint64_t n = (uint64_t)problem->dim[DIM_N], nranks = (uint64_t)problem->nranks;
    uint64_t bytes = (uint64_t)problem->dim[DIM_M] * n * PACKET_BYTES; /* of one rank's words */
    uint64_t w = n * (uint64_t)problem_longest_k(problem) * dtype_size(problem->dtype);

    return bytes * nranks <= ONE_SHOT_BYTES || (bytes * nranks <= ONE_SHOT_MOST && bytes * (nranks - 1) <= w / ONE_SHOT_OF_W);
}

/* A slot: of one rank's words of some columns, whole blocks of 8. */
static uint64_t words_bytes(const struct problem *problem, int64_t columns)
{
    return ((uint64_t)(problem->dim[DIM_M] * ((columns + 7) / 8 * 8)) * PACKET_BYTES + 255) & ~(uint64_t)255;
}

/* How the columns are reduced: chunk p is reduced by its owner, in slices of so many columns; in one step, all by everyone. */
struct reduction {
    int64_t columns[FCC_MAX_RANKS + 1], slice, nslices;
    int nchunks;
};

/* As many sums as the hundred and more workgroups can add with a few for each thread, but not so few that a slice's overhead
 * takes longer; where there are several for each workgroup, the earlier ones' words have come by then. In one step half the workgroups
 * put meanwhile, where putting is a phase of its own. Results that go to others do so in whole cache lines. */
static struct reduction reduction_make(const struct problem *problem)
{
    int64_t m = problem->dim[DIM_M], line = reduce_columns_per_line(problem);
    struct reduction d = {.nchunks = 1, .columns = {0, problem->dim[DIM_N]}};

    if (!is_one_shot(problem)) {
        d.nchunks = problem->nranks;
        reduce_chunks(problem, d.columns);
    }
    int64_t sums = m * d.columns[1] / (d.nchunks > 1 ? 128 : 64), least = d.nchunks > 1 ? 1024 : 256;
    sums = sums < least ? least : sums > 2048 ? 2048 : sums;
    d.slice = (sums + m * line - 1) / (m * line) * line;
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

/* All tiles (what is only put: as much at a time as is reduced), chunk by chunk, in the order in which their owners are served. */
static void add_tiles(struct plan_builder *b, const struct problem *problem, const struct reduction *d, struct slice like)
{
    int order[FCC_MAX_RANKS];
    bool puts = like.kind != SLICE_COMPUTE;

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

/* The own chunk's results, each slice with a flag at all ranks, and the wait for all. */
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
    struct reduction d = reduction_make(problem);
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
    struct reduction d = reduction_make(problem);

    for (int r = 0; r < problem->nranks; r++)
        first[r] = d.nchunks > 1 ? d.columns[r] : 0;
    return words_bytes(problem, d.columns[1]);
}
