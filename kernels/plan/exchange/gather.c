/* SPDX-License-Identifier: MIT
 *
 * gather.c - the plans of an AllGather whose rows are multiplied: C_r = A . B_r, A being all ranks' rows, one rank's below the other's.
 *
 * Levels of the fused schedule:
 *   0. put: this rank's rows for other nodes (on GPUs: for all other ranks), chunk by chunk; the last slice of a chunk raises its flag at
 *      all who read it. Then tiles of C that need only this rank's rows.
 *   1. tiles of C that need others' rows, starting with the next rank's. On cores those of this node are read where they lie, and wait for
 *      nothing: a plan runs when all ranks have come. Others wait for the flags of the chunks that they overlap, which level 0 raises.
 *   4. forward: `gathered`, if asked for, gets copies of the rows.
 *   5. wait: until all rows from elsewhere have come, so that nothing of this operator stores into staging memory when the next one uses it,
 *      and until all ranks of this node have read this rank's rows: they say so when they have done everything of the levels before.
 *   6. rows: an epilogue's stages of whole rows.
 * Sequential: 0. put, and copies of the node's other rows. 1. waits for the rows from elsewhere. Both raise one flag of the rank itself, which
 * 2. all tiles of C wait for. Then as above.
 *
 * GPUs over several nodes: no kernel waits for another node (daemon/worker/device/gpu/steps.c), so tiles of other nodes' rows are of level 4,
 * whose kernel begins when these have come; sequential: all tiles.
 *
 * A tile has rows of one source. Tiles depend on the problem and the number of workgroups alone, so C has the same bits under every schedule.
 */
#include "kernels/plan/exchange/gather.h"

#include <errno.h>
#include <stdlib.h>

#include "kernels/plan/compute/factors.h"
#include "kernels/plan/exchange/rows.h"
#include "kernels/plan/program.h"

#define CHUNKS_MOST 8            /* of one source: so all sources' flags are few enough */
#define CHUNK_LEAST (512u << 10) /* bytes: less is not worth a flag of its own */
#define CHUNK_ROWS 128           /* whose multiple a chunk has: a tile of a GPU */
#define PUT_BYTES (1u << 20)     /* of a slice that copies */
#define PUT_BYTES_GPU (128u << 10)
enum { SET_ELSEWHERE, SET_HERE }; /* of the plan: the ranks of other nodes, and those of this one */

/* What the functions that add slices share. */
struct gather {
    struct plan_builder *b;
    const struct problem *problem;
    const struct schedule *schedule;
    struct gather_layout *l;
    int rank;
    int32_t *index, *ranks; /* [nranks]: of a rank among those of its node, and their number */
    uint32_t done;          /* the group that says that this rank has done everything with others' rows */
    bool pulls;             /* rows of this node are copied before they are multiplied */
};

static bool is_gpu(const struct gather *g)
{
    return g->schedule->target == PLAN_GPU;
}

static bool is_here(const struct gather *g, int source)
{
    return g->problem->node_of[source] == g->problem->node_of[g->rank];
}

static bool has_gathered(const struct gather *g)
{
    return g->problem->dim[DIM_GATHERED] != 0;
}

/* ---- memory ---- */

/* Counts the ranks of each node. Of nodes that are numbered upwards, as they mostly are, none is searched for. False: no memory. */
static bool nodes_look(struct gather *g)
{
    const struct problem *p = g->problem;
    const size_t n = (size_t)p->nranks;
    int32_t *first = plan_scratch(g->b, n, sizeof(*first)),
            largest = p->node_of[0]; /* first: the first rank of each rank's node */

    g->index = plan_scratch(g->b, n, sizeof(*g->index));
    g->ranks = plan_scratch(g->b, n, sizeof(*g->ranks));
    if (!first || !g->index || !g->ranks)
        return false;
    for (int r = 0; r < p->nranks; r++) {
        if (r > 0 && p->node_of[r] == p->node_of[r - 1])
            first[r] = first[r - 1];
        else if (p->node_of[r] > largest)
            first[r] = r;
        else
            while (p->node_of[first[r]] != p->node_of[r])
                first[r]++;
        largest = p->node_of[r] > largest ? p->node_of[r] : largest;
        g->index[r] = g->ranks[first[r]]++;
    }
    for (int r = p->nranks - 1; r >= 0; r--)
        g->ranks[r] = g->ranks[first[r]];
    return true;
}

/* Whether rank r gets the source's rows in its staging memory. */
static bool keeps(const struct gather *g, int r, int source)
{
    if (is_gpu(g))
        return r != source;
    return g->problem->node_of[r] != g->problem->node_of[source] && source % g->ranks[r] == g->index[r];
}

static uint64_t bytes_of(const struct gather *g, int source)
{
    return ((uint64_t)gather_rows(g->problem, source) * g->l->row_bytes + 63) / 64 * 64;
}

/* The byte at which the rows of `source` begin in the staging memory of rank r; source nranks: the end of all. On GPUs there is room for all rows
 * of A, in order. */
static uint64_t kept_at(const struct gather *g, int r, int source)
{
    uint64_t at = 0;

    if (is_gpu(g))
        return g->problem->nranks > 1 ? (uint64_t)g->l->first[source] * g->l->row_bytes : 0;
    for (int s = 0; s < source; s++)
        at += keeps(g, r, s) ? bytes_of(g, s) : 0;
    return at;
}

static struct gather_layout *layout_new(const struct problem *p, struct plan_builder *b)
{
    const size_t n = (size_t)p->nranks;
    struct gather_layout *l = plan_layout_new(b, sizeof(*l) + (3 * n + 1) * sizeof(uint64_t) + n * sizeof(int32_t));

    if (!l)
        return NULL;
    l->first = (int64_t *)(void *)(l + 1);
    l->at = (uint64_t *)(void *)(l->first + n + 1);
    l->sent = l->at + n;
    l->place = (int32_t *)(void *)(l->sent + n);
    const uint64_t k = (uint64_t)p->dim[DIM_K], size = (uint64_t)p->dim[DIM_FACTOR_BYTES];
    l->row_bytes = k * size;
    if (epilogue_has(&p->epilogue, STAGE_X_SCALE) && plan_is_over_nodes(p)) {
        l->scales_at = (l->row_bytes + sizeof(float) - 1) / sizeof(float) * sizeof(float);
        l->row_bytes = l->scales_at + (k + FACTOR_BLOCK - 1) / FACTOR_BLOCK * sizeof(float);
    }
    for (int r = 0; r < p->nranks; r++)
        l->first[r + 1] = l->first[r] + gather_rows(p, r);
    return l;
}

/* Sets where rows are, and the size of the memory for them. */
static void memory_plan(struct gather *g)
{
    const struct problem *p = g->problem;
    struct plan *plan = g->b->plan;
    struct gather_layout *l = g->l;
    uint64_t kept = kept_at(g, g->rank, p->nranks);

    for (int s = 0; s < p->nranks && !g->b->sizes_only; s++) {
        int keeper = g->rank;
        while (!is_gpu(g) && !is_here(g, s) && !(is_here(g, keeper) && keeps(g, keeper, s)))
            keeper = (keeper + 1) % p->nranks;
        l->place[s] = s == g->rank || (!is_gpu(g) && is_here(g, s)) ? GATHER_AT_SOURCE : keeper;
        l->at[s] = l->place[s] >= 0 ? kept_at(g, keeper, s) : 0;
        l->sent[s] = keeps(g, s, g->rank) ? kept_at(g, s, g->rank) : 0;
    }
    for (int s = 0; s < p->nranks && g->pulls; s++) {
        if (!is_here(g, s) || (s == g->rank && !has_gathered(g)))
            continue;
        if (!g->b->sizes_only) {
            l->place[s] = has_gathered(g) ? GATHER_IN_GATHERED : g->rank;
            l->at[s] = has_gathered(g) ? 0 : kept;
        }
        kept += has_gathered(g) ? 0 : bytes_of(g, s);
    }
    plan->gather_bytes = plan->staging_bytes = kept;
}

/* ---- chunks ---- */

/* The rows of a source's chunk, the last of which may have fewer; 0: nothing of it is to be moved. */
static int64_t chunk_rows(const struct gather *g, int source)
{
    const int64_t rows = gather_rows(g->problem, source), bytes = (int64_t)g->l->row_bytes;

    if (rows == 0 || bytes == 0)
        return 0;
    int64_t each = (rows + CHUNKS_MOST - 1) / CHUNKS_MOST, least = (CHUNK_LEAST + bytes - 1) / bytes;
    each = each > least ? each : least;
    return (each + CHUNK_ROWS - 1) / CHUNK_ROWS * CHUNK_ROWS;
}

static uint32_t chunks_of(const struct gather *g, int source)
{
    const int64_t each = chunk_rows(g, source);

    return each ? (uint32_t)((gather_rows(g->problem, source) + each - 1) / each) : 0;
}

static uint32_t flag_here(const struct gather *g)
{
    return (uint32_t)g->problem->nranks;
}

static uint32_t flag_of(const struct gather *g, int source, int64_t chunk)
{
    return flag_here(g) + 1 + (uint32_t)source * CHUNKS_MOST + (uint32_t)chunk;
}

/* Whether the source's rows come with flags, to this rank. */
static bool comes(const struct gather *g, int source)
{
    return source != g->rank && (is_gpu(g) || !is_here(g, source)) && chunk_rows(g, source) > 0;
}

/* ---- slices ---- */

/* Adds slices of whole rows [row, row + rows) of A. */
static void add_rows(struct gather *g, struct slice like, int64_t row, int64_t rows)
{
    const int64_t bytes = is_gpu(g) ? PUT_BYTES_GPU : PUT_BYTES,
                  each = bytes > (int64_t)g->l->row_bytes ? bytes / (int64_t)g->l->row_bytes : 1;

    like.cols = (uint32_t)g->problem->dim[DIM_K];
    for (int64_t done = 0; done < rows && g->b->status == 0; done += each) {
        like.row = like.dst_row = (uint32_t)(row + done);
        like.rows = (uint32_t)(rows - done < each ? rows - done : each);
        plan_add_slice(g->b, like);
    }
}

/* This rank's rows, to those who keep them: a chunk to each, then the next one. On cores one group raises a chunk's flag at all ranks of other
 * nodes; on GPUs each destination has its own. */
static void add_sends(struct gather *g)
{
    const int nranks = g->problem->nranks;
    const int64_t each = chunk_rows(g, g->rank), all = gather_rows(g->problem, g->rank), first = g->l->first[g->rank];

    for (int64_t row = 0, c = 0; each && row < all && g->b->status == 0; row += each, c++) {
        uint32_t group = SLICE_NO_GROUP;
        for (int i = 1; i < nranks; i++) {
            const int dst = (g->rank + i) % nranks;
            if (!keeps(g, dst, g->rank))
                continue;
            if (is_gpu(g) || group == SLICE_NO_GROUP)
                group = plan_add_group(g->b, is_gpu(g) ? (unsigned)dst : SLICE_DST_SET + SET_ELSEWHERE, flag_of(g, g->rank, c));
            add_rows(g, (struct slice){.kind = SLICE_PUT, .dst = (uint16_t)dst, .group = group, .slot = (uint16_t)g->rank},
                     first + row, all - row < each ? all - row : each);
        }
    }
}

/* Copies of the rows of this node's ranks, to where this rank multiplies them. */
static void add_pulls(struct gather *g, uint32_t group)
{
    for (int i = 0; i < g->problem->nranks; i++) {
        const int source = (g->rank + i) % g->problem->nranks;
        if (is_here(g, source) && g->l->place[source] != GATHER_AT_SOURCE && chunk_rows(g, source))
            add_rows(g, (struct slice){.kind = SLICE_PUT, .dst = (uint16_t)g->rank, .group = group, .slot = (uint16_t)source},
                     g->l->first[source], gather_rows(g->problem, source));
    }
}

static void add_wait(struct gather *g, uint32_t first, uint32_t count, uint32_t group)
{
    plan_add_slice(g->b, (struct slice){.kind = SLICE_WAIT,
                                        .dst = (uint16_t)g->rank,
                                        .group = group,
                                        .wait_first = first,
                                        .wait_count = count,
                                        .wait_stride = count ? 1 : 0});
}

/* A wait for each source's rows that come. */
static void add_arrivals(struct gather *g, uint32_t group)
{
    for (int i = 1; i < g->problem->nranks; i++) {
        const int source = (g->rank + i) % g->problem->nranks;
        if (comes(g, source))
            add_wait(g, flag_of(g, source, 0), chunks_of(g, source), group);
    }
}

/* Tiles of C of one source's rows. `like`: what each waits for, if that is not the chunks' flags. */
static void add_tiles(struct gather *g, int source, struct slice like, bool by_chunks)
{
    const int64_t rows = gather_rows(g->problem, source), n = g->problem->rank_dim[DIM_N][g->rank];
    const uint32_t high = g->schedule->slice_rows, wide = g->schedule->slice_cols;
    const int64_t each = by_chunks ? chunk_rows(g, source) : 0;

    for (int64_t row = 0; row < rows && g->b->status == 0; row += high)
        for (int64_t col = 0; col < n && g->b->status == 0; col += wide) {
            like.row = like.dst_row = (uint32_t)(g->l->first[source] + row);
            like.rows = (uint32_t)(rows - row < high ? rows - row : high);
            like.col = like.dst_col = (uint32_t)col;
            like.cols = (uint32_t)(n - col < wide ? n - col : wide);
            like.slot = (uint16_t)source;
            like.is_here = by_chunks && is_gpu(g) && is_here(g, source);
            if (each) {
                like.wait_first = flag_of(g, source, row / each);
                like.wait_count = (uint32_t)((row + like.rows - 1) / each - row / each + 1);
                like.wait_stride = 1;
            }
            plan_add_slice(g->b, like);
        }
}

/* Tiles of the rows of this node's ranks (here: 1), or of other nodes' (0), beginning with the next rank. `own`: this rank's, too, first of all. */
static void add_sources(struct gather *g, struct slice like, int here, bool own, bool by_chunks)
{
    for (int i = own ? 0 : 1; i < g->problem->nranks; i++) {
        const int source = (g->rank + i) % g->problem->nranks;
        if (is_here(g, source) == here)
            add_tiles(g, source, like, by_chunks && comes(g, source));
    }
}

static void add_all(struct gather *g, struct slice like, bool by_chunks)
{
    add_sources(g, like, 1, true, by_chunks);
    add_sources(g, like, 0, true, by_chunks);
}

/* Copies into `gathered` of what is not there. after: the flag behind which all is here; otherwise each waits for its source's. */
static void add_forwards(struct gather *g, uint32_t after)
{
    for (int i = 0; i < g->problem->nranks && has_gathered(g); i++) {
        const int source = (g->rank + i) % g->problem->nranks;
        struct slice s = {.kind = SLICE_FORWARD, .dst = (uint16_t)g->rank, .group = g->done, .slot = (uint16_t)source};
        if (g->l->place[source] == GATHER_IN_GATHERED || !chunk_rows(g, source))
            continue;
        s.wait_count = after != SLICE_NO_GROUP ? 1 : comes(g, source) ? chunks_of(g, source) : 0;
        s.wait_first = after != SLICE_NO_GROUP ? after : s.wait_count ? flag_of(g, source, 0) : 0;
        s.wait_stride = s.wait_count ? 1 : 0;
        add_rows(g, s, g->l->first[source], gather_rows(g->problem, source));
    }
}

/* ---- plans ---- */

static struct slice tile_like(const struct gather *g)
{
    return (struct slice){.kind = SLICE_COMPUTE_PUT, .dst = (uint16_t)g->rank, .group = g->done};
}

static void compute_plan(struct gather *g)
{
    add_all(g, tile_like(g), false);
}

/* Returns the flag that says that all rows are here, or SLICE_NO_GROUP: they always were. */
static uint32_t rows_collect(struct gather *g, bool computes)
{
    bool any = false;
    uint32_t group = g->done;

    for (int s = 0; s < g->problem->nranks; s++)
        any |= chunk_rows(g, s) && (comes(g, s) || g->l->place[s] != GATHER_AT_SOURCE);
    if (any && computes)
        group = plan_add_group(g->b, (unsigned)g->rank, flag_here(g));
    if (!is_gpu(g))
        add_pulls(g, group);
    plan_add_level(g->b, LEVEL_PUT);
    if (computes)
        add_arrivals(g, group);
    return any && computes ? flag_here(g) : SLICE_NO_GROUP;
}

static uint32_t sequential_plan(struct gather *g)
{
    struct slice like = tile_like(g);

    if (is_gpu(g) && plan_is_over_nodes(g->problem)) {
        plan_add_level(g->b, LEVEL_FORWARD); /* whose kernel begins when all rows have come */
        add_all(g, like, true);
        add_forwards(g, SLICE_NO_GROUP);
        return SLICE_NO_GROUP;
    }
    const uint32_t here = rows_collect(g, true);

    if (here != SLICE_NO_GROUP) {
        like.wait_first = here;
        like.wait_count = like.wait_stride = 1;
    }
    plan_add_level(g->b, LEVEL_NODE);
    add_all(g, like, false);
    plan_add_level(g->b, LEVEL_FORWARD);
    add_forwards(g, here);
    return here;
}

static void fused_plan(struct gather *g)
{
    add_tiles(g, g->rank, tile_like(g), false);
    plan_add_level(g->b, LEVEL_PUT);
    add_sources(g, tile_like(g), 1, false, true);
    if (is_gpu(g))
        plan_add_level(g->b, LEVEL_FORWARD);
    add_sources(g, tile_like(g), 0, false, true);
    plan_add_level(g->b, LEVEL_FORWARD);
    add_forwards(g, SLICE_NO_GROUP);
}

/* Waits for the ranks of this node, which read each other's rows, and for all rows from elsewhere. here: as sequential_plan() returns it. */
static void waits_plan(struct gather *g, uint32_t here, bool have_come)
{
    const int nranks = g->problem->nranks;

    if (g->done != SLICE_NO_GROUP && g->b->status == 0 && g->b->plan->groups[g->done].slices == 0) /* the others wait for it */
        add_wait(g, here != SLICE_NO_GROUP ? here : 0, here != SLICE_NO_GROUP, g->done);
    plan_add_level(g->b, LEVEL_WAIT);
    for (int first = 0, end; first < nranks && !is_gpu(g); first = end + 1) {
        for (end = first; end < nranks && is_here(g, end);)
            end++;
        if (end > first)
            add_wait(g, (uint32_t)first, (uint32_t)(end - first), SLICE_NO_GROUP);
    }
    if (!have_come)
        add_arrivals(g, SLICE_NO_GROUP);
}

static void slices_plan(struct gather *g)
{
    struct plan *plan = g->b->plan;
    const enum fcc_schedule_kind kind = plan->schedule.kind;
    const int64_t n = g->problem->rank_dim[DIM_N][g->rank];
    uint32_t here = SLICE_NO_GROUP;

    g->done = SLICE_NO_GROUP;
    if (kind == FCC_SCHEDULE_COMPUTE_ONLY) {
        compute_plan(g);
        return;
    }
    for (int r = 0; r < g->problem->nranks; r++)
        plan_set_add(plan, is_here(g, r) ? SET_HERE : SET_ELSEWHERE, r);
    if (!is_gpu(g))
        g->done = plan_add_group(g->b, SLICE_DST_SET + SET_HERE, (uint32_t)g->rank);
    plan->rows_flag = (uint32_t)g->rank; /* which stands for all tiles of C */
    add_sends(g);
    if (kind == FCC_SCHEDULE_SEQUENTIAL) {
        here = sequential_plan(g);
    } else if (kind == FCC_SCHEDULE_COMM_ONLY) {
        (void)rows_collect(g, false);
        plan_add_level(g->b, LEVEL_FORWARD);
        add_forwards(g, SLICE_NO_GROUP);
    } else {
        fused_plan(g);
    }
    waits_plan(g, here, kind == FCC_SCHEDULE_SEQUENTIAL);
    rows_add(g->b, g->problem->dim[DIM_M], n);
}

static void gather_plan(const struct problem *problem, int rank, const struct compute_ops *compute, struct plan_builder *b)
{
    struct plan *plan = b->plan;
    struct gather *g = calloc(1, sizeof(*g));
    const enum fcc_schedule_kind kind = plan->schedule.kind;

    if (!g) {
        b->status = -ENOMEM;
        return;
    }
    *g = (struct gather){.b = b, .problem = problem, .schedule = &plan->schedule, .rank = rank};
    if (!b->sizes_only)
        compute->tile(problem, rank, &plan->schedule);
    plan->schedule.route = PLAN_FLAT;
    plan->transport = kind == FCC_SCHEDULE_COMPUTE_ONLY ? TRANSPORT_NONE : TRANSPORT_FLAGS;
    g->pulls = !is_gpu(g) && (kind == FCC_SCHEDULE_SEQUENTIAL || kind == FCC_SCHEDULE_COMM_ONLY);
    g->l = nodes_look(g) ? layout_new(problem, b) : NULL;
    if (g->l) {
        memory_plan(g);
        plan->nflags = flag_of(g, problem->nranks, 0);
        rows_reserve(problem, problem->dim[DIM_M], problem->rank_dim[DIM_N][rank], b);
        if (!b->sizes_only)
            slices_plan(g);
    }
    free(g);
}

const struct exchange_ops exchange_gather = {.plan = gather_plan};
