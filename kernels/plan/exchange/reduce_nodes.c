/* SPDX-License-Identifier: MIT
 *
 * reduce_nodes.c - the plans of an AllReduce with flags, flat and hierarchical: on the cpu, on GPUs of several nodes, and of gemm on all.
 *
 * Hierarchical, a tile's way is, if it is not its owner's own node that computes it:
 *
 *   each rank of a node        compute+put    its partial sum, to the owner's deputy on the node
 *   the deputy                 reduce in node the ranks' partial sums in rank order; the node's sum, to the owner: one message
 *   the owner                  reduce         its own node's partial sums in rank order, then the nodes' sums in order of the
 *                                             nodes' first ranks; rounded once; to its node's ranks, and once to each other
 *                                             node: to the deputy's y
 *   the deputy                 forward        from its y to those of the other ranks of its node
 *
 * A rank that is alone on its node puts its partial sum straight to the owner: it is the node's sum. The owner's deputy has the
 * place in its node that the owner has in its own (modulo the number of ranks): so all ranks have a share of the work.
 *
 * The order. Tiles of other nodes come first, and the same ones at the same time on all ranks of a node (in turns over the
 * owners, from the next node on): so their partial sums meet soon, and the node's sum leaves while the rest is computed.
 * "Reduce in node" of such a tile stands AHEAD tiles behind its compute+put, by when the others have mostly put theirs, too.
 * Levels (plan.h): tile i of this order has level 2i; so has what stands in its place of the own node's tiles, which
 * follow; reduce in node, behind tile i + AHEAD, level 2(i + AHEAD) + 1; then come reduce, forward, and wait. All ranks of a
 * node have the same number of tiles of each sort, so these are levels in the sense of plan.h. (Where partial sums are computed first, all
 * these are one higher.)
 *
 * On GPUs, whose kernels may wait for GPUs of their own node but for no other node, the same slices stand in the order of enum
 * gpu_phase, and the operator is as many kernels as it has dependences on other nodes, and one (daemon/worker/device/gpu/steps.c):
 *
 *   send     compute (FREE), put (PUT), reduce in node (NODE: for its ranks' puts, by flags that GPUs here raise)
 *   reduce   reduce (REDUCE: the worker has seen the other nodes' sums come; its own node's kernels have ended)
 *   wait     forward (FORWARD: the worker has seen the results come), wait (WAIT: for what others here hand on, by flags)
 *
 * So "reduce in node" stands behind all puts there: AHEAD tiles would not do, because one workgroup may be all that a GPU has
 * room for, and that takes the slices of one of its ranks before those of the next (kernels/gpu/device/execute.h). And the last wait is in parts:
 * for flags that ranks of this node raise (slice.is_here), which the kernel looks at, and for those that come from other nodes, which
 * it never sees and need not, as the worker does not start it before.
 *
 * Memory: a deputy reads a tile of its own y after its result flag (acquire), which the proxy's thread raised (release) when it had stored
 * the tile; it raises the other ranks' flags behind its stores to them.
 */
#include "kernels/plan/exchange/reduce.h"

#include "kernels/plan/compute/vector.h"
#include "kernels/plan/exchange/rows.h"
#include "kernels/plan/spec.h"

#define AHEAD 2

/* The flag of an owner's tile in the slot with this index in the receiver's staging memory. */
static int64_t slot_flag(const struct reduce_layout *l, int owner, int64_t t, int slot, int index)
{
    return l->flags_by_index ? index * l->flag_stride + t - l->tiles[owner] : slot * l->flag_stride + t;
}

/* An iterator over the tiles of other nodes, in the order that all ranks of this node share: the first tile of each owner,
 * then the second of each, and so on. */
struct turn {
    int64_t step; /* the tile's index in its chunk */
    int next;     /* the owner's index among the ranks of other nodes */
};

struct maker {
    struct plan_builder *b;
    const struct problem *problem;
    const struct reduce_layout *l;
    int rank, node;
    /* results: the first result flag. computed: the flag that this rank's partial sums are computed */
    uint32_t results, computed;
    bool puts_wait;      /* puts wait for the flag `computed` */
    struct turn reduced; /* tiles before this one have their node reduce slice in the plan */
    /* puts: those in the plan. node_reduces: the tiles that `reduced` has passed */
    int64_t puts, node_reduces;
    /* Where not all ranks get the result: the rank that gets a rank's chunk. -1: all ranks get it */
    int receiver;
    bool interleaved; /* hierarchical plans for cores: levels are not those of enum plan_level */
    uint32_t waits;   /* the signal group of the wait slices (rows.h) */
};

/* The rank that gets what a rank has added up; -1: all ranks do. */
static int receiver_of(const struct problem *problem, int owner)
{
    return op_scatters_rows(problem->op) ? owner : op_is_vector(problem->op) ? vector_receiver(problem, owner) : -1;
}

/* RESULTS: the destinations of an owner's results; where one rank gets these, those of the word that they are there. FORWARD: the ranks to which a
 * deputy forwards them */
enum { SET_RESULTS, SET_FORWARD };

/* Whether a rank waits for the word that an owner, whose results one rank gets, has added its tiles up. Who gets them does, and the ranks of the
 * owner's node, of which it may read the inputs. Elsewhere nobody has to: what a rank has sent is out of its memory when its operator ends, and its next
 * operator begins when this one has ended on all nodes. (On GPUs all do: their waits are divided otherwise.) The nodes are the problem's: a flat layout
 * has one, wherever its ranks are. */
static bool hears_of(const struct maker *m, int rank, int owner, int receiver)
{
    const int32_t *node_of = m->problem->node_of;

    return m->b->plan->schedule.target != PLAN_CPU || rank == receiver || node_of[rank] == node_of[owner];
}

/* Whether the ranks that hear of this one's results are a set of their own, although one rank gets these. */
static bool some_hear(const struct maker *m)
{
    return m->receiver >= 0 && m->b->plan->schedule.target == PLAN_CPU && plan_is_over_nodes(m->problem);
}

/* A slice for tile t of an owner's chunk. */
static struct slice tile_slice(const struct maker *m, int owner, int64_t t, enum slice_kind kind, unsigned dst)
{
    const struct schedule *schedule = &m->b->plan->schedule;
    const struct reduce_layout *l = m->l;
    const int64_t size = l->by_rows ? schedule->slice_rows : schedule->slice_cols;
    const int64_t at = l->columns[owner] + (t - l->tiles[owner]) * size, left = l->columns[owner + 1] - at;
    const uint32_t begin = (uint32_t)at, count = (uint32_t)(left < size ? left : size), across = (uint32_t)l->across;

    return (struct slice){.kind = (uint8_t)kind,
                          .dst = (uint16_t)dst,
                          .group = SLICE_NO_GROUP,
                          .row = l->by_rows ? begin : 0,
                          .dst_row = l->by_rows ? begin - (uint32_t)l->columns[owner] : 0,
                          .rows = l->by_rows ? count : across,
                          .col = l->by_rows ? 0 : begin,
                          .dst_col = l->by_rows ? 0 : begin,
                          .cols = l->by_rows ? across : count};
}

/* Adds a tile, in slices of at most slice_rows rows; by_rows: of at most slice_cols columns. */
static void add_tile(const struct maker *m, struct slice s)
{
    uint32_t most = m->b->plan->schedule.slice_rows;

    if (m->l->by_rows) {
        most = m->b->plan->schedule.slice_cols;
        for (uint32_t left = s.cols; left > 0 && m->b->status == 0; left -= s.cols, s.col += s.cols) {
            s.cols = left < most ? left : most;
            s.dst_col = s.col;
            plan_add_slice(m->b, s);
        }
        return;
    }
    for (uint32_t left = s.rows; left > 0 && m->b->status == 0; left -= s.rows, s.row += s.rows) {
        s.rows = left < most ? left : most;
        s.dst_row = s.row;
        plan_add_slice(m->b, s);
    }
}

/* Adds the tile with a signal group of its own, whose flag is raised at the tile's destination. */
static void add_signalled(const struct maker *m, struct slice s, int64_t flag)
{
    s.group = plan_add_group(m->b, s.dst, (uint32_t)flag);
    add_tile(m, s);
}

/* Sets the level. In other plans it is the plan_level. Interleaved, the i-th put and the i-th node sum have level `own`. */
static void add_level(const struct maker *m, enum plan_level level, int64_t own)
{
    int64_t behind = 2 * (m->l->ntiles + AHEAD) + 1; /* no put or node sum of any rank has a higher level */

    if (!m->interleaved)
        plan_add_level(m->b, level);
    else
        plan_add_level(m->b, (uint32_t)(level < LEVEL_REDUCE ? own + m->puts_wait : behind + level - LEVEL_REDUCE + 1));
}

static void add_computes(const struct maker *m, const int order[])
{
    const struct reduce_layout *l = m->l;
    uint32_t group = plan_add_group(m->b, (unsigned)m->rank, m->computed);

    for (int i = 0; i < m->b->plan->nranks; i++)
        for (int64_t t = l->tiles[order[i]]; t < l->tiles[order[i] + 1] && m->b->status == 0; t++) {
            struct slice s = tile_slice(m, order[i], t, SLICE_COMPUTE, (unsigned)order[i]);
            s.group = group;
            add_tile(m, s);
        }
}

/* The iterator's next tile; false: it was the last one. */
static bool turn_next(const struct maker *m, struct turn *at, int *owner, int64_t *t)
{
    const struct reduce_layout *l = m->l;
    int nranks = m->b->plan->nranks, others = nranks - l->size[m->node], begin = l->first[m->node] + l->size[m->node];

    for (int passed = 0; passed < others; passed++) {
        *owner = l->member[(begin + at->next) % nranks]; /* owners begin with those of the next node */
        *t = l->tiles[*owner] + at->step;
        if (++at->next == others) {
            at->next = 0;
            at->step++;
        }
        if (*t < l->tiles[*owner + 1])
            return true;
    }
    return false;
}

/* Adds the node reduce slice of the next tile of other nodes, if this rank reduces it. False: there are no more tiles. */
static bool add_node_reduce(struct maker *m)
{
    const struct reduce_layout *l = m->l;
    int owner;
    int64_t t;

    if (m->b->status || !turn_next(m, &m->reduced, &owner, &t))
        return false;
    add_level(m, LEVEL_NODE, 2 * (m->node_reduces++ + AHEAD) + 1);
    if (reduce_collector(l, owner, m->rank) != m->rank)
        return true;
    struct slice s = tile_slice(m, owner, t, SLICE_REDUCE_NODE, (unsigned)owner);
    s.slot = (uint16_t)reduce_node_slot(l, owner, m->node);
    s.terms = (uint16_t)reduce_slot_number(l, owner, m->rank, 0);
    s.wait_first = (uint32_t)slot_flag(l, owner, t, 0, s.terms);
    s.wait_count = l->size[m->node];
    s.wait_stride = (uint32_t)l->flag_stride;
    add_signalled(m, s, slot_flag(l, owner, t, s.slot, s.slot));
    return true;
}

static void add_put(struct maker *m, int owner, int64_t t)
{
    const struct reduce_layout *l = m->l;
    bool fused = m->b->plan->schedule.kind == FCC_SCHEDULE_FUSED, gpu = m->b->plan->schedule.target == PLAN_GPU;
    int collector = reduce_collector(l, owner, m->rank), slot = reduce_slot(l, owner, m->rank);
    struct slice s = tile_slice(m, owner, t, fused ? SLICE_COMPUTE_PUT : SLICE_PUT, (unsigned)collector);

    add_level(m, m->puts_wait ? LEVEL_PUT : LEVEL_FREE, 2 * m->puts);
    if (m->puts_wait) {
        s.wait_first = m->computed;
        s.wait_count = s.wait_stride = 1;
    }
    int number = reduce_slot_number(l, owner, collector, slot);
    s.slot = (uint16_t)(l->adds ? 0 : number);
    add_signalled(m, s, slot_flag(l, owner, t, slot, number));
    if (++m->puts > AHEAD && !gpu)
        (void)add_node_reduce(m);
}

/* Adds the puts of all partial sums, those of other nodes' tiles first, and these tiles' node reduce slices. */
static void add_puts(struct maker *m, const int order[])
{
    const struct reduce_layout *l = m->l;
    struct turn at = {0};
    int owner;
    int64_t t;

    while (m->b->status == 0 && turn_next(m, &at, &owner, &t))
        add_put(m, owner, t);
    for (int i = 0; i < m->b->plan->nranks; i++)
        for (t = l->tiles[order[i]]; t < l->tiles[order[i] + 1] && l->node[order[i]] == m->node && m->b->status == 0; t++)
            add_put(m, order[i], t);
    while (add_node_reduce(m))
        ;
}

/* Sums that are added in place are the result: only waits for them are added, a slice for each of the rank's tiles. */
static void add_waits_for_tiles(const struct maker *m)
{
    const struct reduce_layout *l = m->l;

    add_level(m, LEVEL_WAIT, 0);
    for (int64_t t = l->tiles[m->rank]; t < l->tiles[m->rank + 1] && m->b->status == 0; t++) {
        struct slice s = reduce_wait(m->rank, slot_flag(l, m->rank, t, 0, 0), l->nranks, false);
        s.wait_stride = (uint32_t)l->flag_stride;
        plan_add_slice(m->b, s);
    }
}

/* Adds the reduce slices of the rank's own tiles. */
static void add_reduces(const struct maker *m)
{
    const struct reduce_layout *l = m->l;
    unsigned dst = l->nnodes > 1 ? SLICE_DST_SET + SET_RESULTS : SLICE_DST_ALL;
    uint32_t group = SLICE_NO_GROUP; /* of all tiles, where one rank gets them and others learn that they have been read */

    add_level(m, LEVEL_REDUCE, 0);
    if (m->receiver >= 0 && l->tiles[m->rank] < l->tiles[m->rank + 1])
        group = plan_add_group(m->b, some_hear(m) ? SLICE_DST_SET + SET_RESULTS : SLICE_DST_ALL,
                               (uint32_t)(m->results + l->tiles[m->rank]));
    dst = m->receiver >= 0 ? (unsigned)m->receiver : dst;
    m->b->plan->start_level = m->b->plan->nlevels - 1;
    for (int64_t t = l->tiles[m->rank]; t < l->tiles[m->rank + 1] && m->b->status == 0; t++) {
        struct slice s = tile_slice(m, m->rank, t, SLICE_REDUCE, dst);
        s.wait_first = (uint32_t)slot_flag(l, m->rank, t, 0, 0);
        s.wait_count = (uint32_t)(l->size[m->node] + l->nnodes - 1);
        s.wait_stride = (uint32_t)l->flag_stride;
        s.slot = (uint16_t)m->node;
        s.group = group;
        if (m->receiver >= 0)
            add_tile(m, s);
        else
            add_signalled(m, s, m->results + t);
    }
}

/* Adds the forward slices: results that arrive at this rank for its node. */
static void add_forwards(const struct maker *m)
{
    const struct reduce_layout *l = m->l;
    struct turn at = {0};
    int owner;
    int64_t t;

    add_level(m, LEVEL_FORWARD, 0);
    while (m->b->status == 0 && m->receiver < 0 && l->size[m->node] > 1 && turn_next(m, &at, &owner, &t)) {
        if (reduce_deputy(l, owner, m->node) != m->rank)
            continue;
        struct slice s = tile_slice(m, owner, t, SLICE_FORWARD, SLICE_DST_SET + SET_FORWARD);
        s.wait_first = (uint32_t)(m->results + t);
        s.wait_count = s.wait_stride = 1;
        add_signalled(m, s, m->results + t);
    }
}

/* Whether this rank gets the owner's results from a rank of its own node. */
static bool comes_from_here(const struct maker *m, int owner)
{
    return m->l->node[owner] == m->node || reduce_deputy(m->l, owner, m->node) != m->rank;
}

/* Adds a wait for `count` flags, behind all other slices. */
static void add_wait(const struct maker *m, int64_t first, int64_t count, bool is_here)
{
    struct slice s = reduce_wait(m->rank, first, count, is_here);

    s.group = m->waits;
    add_level(m, LEVEL_WAIT, 0);
    if (count > 0)
        plan_add_slice(m->b, s);
}

/* Adds the waits for all results. Hierarchical plans for GPUs wait separately for results from this node and from other
 * nodes. */
static void add_waits(const struct maker *m)
{
    const struct reduce_layout *l = m->l;
    const struct plan *plan = m->b->plan;
    int p = 0, next;

    for (; m->receiver >= 0 && p < plan->nranks; p++)
        add_wait(m, m->results + l->tiles[p],
                 l->tiles[p + 1] > l->tiles[p] && hears_of(m, m->rank, p, receiver_of(m->problem, p)), false);
    if (m->receiver >= 0)
        return;
    if (plan->schedule.target == PLAN_CPU || l->nnodes == 1) {
        add_wait(m, m->results, l->ntiles, false);
        return;
    }
    for (; p < plan->nranks; p = next) {
        bool is_here = comes_from_here(m, p);
        for (next = p + 1; next < plan->nranks && comes_from_here(m, next) == is_here;)
            next++;
        add_wait(m, m->results + l->tiles[p], l->tiles[next] - l->tiles[p], is_here);
    }
}

static void sets_make(const struct maker *m)
{
    const struct reduce_layout *l = m->l;
    struct plan *plan = m->b->plan;

    for (int r = 0; m->receiver >= 0 && r < plan->nranks; r++)
        if (hears_of(m, r, m->rank, m->receiver))
            plan_set_add(plan, SET_RESULTS, r);
    if (l->nnodes == 1)
        return;
    for (int j = 0; m->receiver < 0 && j < l->nnodes; j++)
        plan_set_add(plan, SET_RESULTS, reduce_deputy(l, m->rank, j));
    for (int i = 0; i < l->size[m->node]; i++) {
        int neighbour = l->member[l->first[m->node] + i];
        plan_set_add(plan, SET_RESULTS, neighbour); /* with a receiver, it has been added already */
        if (neighbour != m->rank)
            plan_set_add(plan, SET_FORWARD, neighbour);
    }
}

void reduce_flags_plan(const struct problem *problem, int rank, struct plan_builder *b)
{
    enum fcc_schedule_kind kind = b->plan->schedule.kind;
    const struct reduce_layout *l = b->plan->layout;
    struct maker m = {.b = b,
                      .problem = problem,
                      .l = l,
                      .rank = rank,
                      .node = l->node[rank],
                      .results = (uint32_t)reduce_slot_flags(l),
                      .receiver = receiver_of(problem, rank)};
    int *order = plan_scratch(b, (size_t)problem->nranks, sizeof(*order));

    if (!order)
        return;
    m.computed = m.results + (uint32_t)l->ntiles;
    m.interleaved = l->nnodes > 1 && b->plan->schedule.target == PLAN_CPU;
    b->plan->nflags = m.computed + 1;
    if (kind != FCC_SCHEDULE_COMPUTE_ONLY) {
        b->plan->transport = TRANSPORT_FLAGS;
        b->plan->shared = l->by_rows ? 0 : 1u << op_spec(problem->op)->result; /* scattered rows: owners store into their own */
    }
    if (l->adds) {
        b->plan->added_tiles = reduce_added_tiles(l, &b->plan->schedule);
        b->plan->adds_into_result = l->by_rows && problem->dtype == FCC_F32 && !problem->epilogue.cols;
    }
    if (b->plan->adds_into_result)
        b->plan->shared = 1u << op_spec(problem->op)->result;
    else
        b->plan->staging_bytes = reduce_staging_bytes(l);
    rows_reserve(problem, rows_of_sums_most(problem), problem->epilogue.cols, b);
    if (b->sizes_only)
        return;
    plan_destination_order(problem, rank, order);
    if (l->nnodes > 1 || some_hear(&m))
        sets_make(&m);
    if ((kind == FCC_SCHEDULE_SEQUENTIAL || kind == FCC_SCHEDULE_COMPUTE_ONLY) && l->ntiles > 0) {
        add_computes(&m, order);
        m.puts_wait = true;
        if (kind == FCC_SCHEDULE_COMPUTE_ONLY) {
            m.waits = SLICE_NO_GROUP;
            add_wait(&m, m.computed, 1, false);
            b->plan->start_level = b->plan->nlevels - 1;
            return;
        }
    }
    add_puts(&m, order);
    if (b->plan->adds_into_result) {
        add_waits_for_tiles(&m);
        return;
    }
    add_reduces(&m);
    add_forwards(&m);
    m.waits = rows_group(b, rows_of_sums(problem, rank), problem->epilogue.cols);
    add_waits(&m);
    rows_add(b, rows_of_sums(problem, rank), problem->epilogue.cols);
}
