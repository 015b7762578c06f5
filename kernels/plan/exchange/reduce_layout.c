/* SPDX-License-Identifier: MIT
 *
 * reduce_layout.c - where the chunks, tiles, receive slots and flags of an AllReduce with flags are (reduce.h).
 */
#include "kernels/plan/compute/vector.h"
#include "kernels/plan/exchange/reduce.h"

/* Numbers the nodes in the order of their first ranks. A flat plan has one node. */
static void nodes_number(const struct problem *problem, bool flat, struct plan_builder *b, struct reduce_layout *l)
{
    int32_t *id = plan_scratch(b, (size_t)problem->nranks, sizeof(*id)), last = 0; /* last: the largest of them */
    int most = 0, at = 0, j = 0; /* checked first: most ranks are on the node of the rank before */

    if (!id)
        return;

    for (int r = 0; r < problem->nranks; r++) {
        if (r > 0 && !flat && problem->node_of[r] != id[j])
            for (j = problem->node_of[r] > last ? l->nnodes : 0; j < l->nnodes && id[j] != problem->node_of[r];)
                j++;
        if (j == l->nnodes) {
            id[l->nnodes++] = problem->node_of[r];
            last = j == 0 || problem->node_of[r] > last ? problem->node_of[r] : last;
        }
        l->node[r] = (uint16_t)j;
        l->place[r] = l->size[j]++;
        most = l->size[j] > most ? l->size[j] : most;
    }
    for (j = 0; j < l->nnodes; at += l->size[j++])
        l->first[j] = (uint16_t)at;
    for (int r = 0; r < problem->nranks; r++)
        l->member[l->first[l->node[r]] + l->place[r]] = (uint16_t)r;
    l->owner_slots = most + l->nnodes - 1;
}

/* Counts the slots. The first rank of a node is deputy for as many chunks as any other rank there. */
static void slots_count(struct reduce_layout *l)
{
    unsigned most = 0;

    for (int j = 0; j < l->nnodes; j++) {
        unsigned slots = 0;
        for (int i = 0; i < l->nnodes && l->size[j] > 1; i++)
            slots += i == j ? 0u : ((unsigned)l->size[i] + l->size[j] - 1) / l->size[j] * l->size[j];
        most = slots > most ? slots : most;
    }
    l->slots = l->owner_slots + (int)most;
}

static void chunks_count(struct plan_builder *b, struct reduce_layout *l, int node)
{
    /* number of chunks of each deputy, by its place on the node */
    uint16_t *count = plan_scratch(b, (size_t)l->nranks, sizeof(*count));
    int ranks = l->size[node] > 0 ? l->size[node] : 1;

    for (int p = 0; p < l->nranks && count; p++)
        if (l->node[p] != node)
            l->chunks[p] = count[l->place[p] % ranks]++;
}

/* Cuts the result into chunks, and sets the size of the longest one's partial sums. */
static void chunks_set(const struct problem *problem, struct reduce_layout *l)
{
    l->column_bytes = sizeof(float);
    l->by_rows = op_scatters_rows(problem->op);
    l->across = problem->dim[l->by_rows ? DIM_N : DIM_M];
    if (op_is_vector(problem->op)) {
        const int64_t unit = vector_unit(problem);
        vector_chunks(problem, l->elements);
        for (int p = 0; p < problem->nranks; p++)
            l->columns[p + 1] = l->columns[p] + vector_columns(l->elements[p + 1] - l->elements[p], unit);
        l->column_bytes = (uint32_t)(dtype_size(vector_sum_dtype(problem->dtype)) * (size_t)unit);
    } else {
        reduce_chunks(problem, l->columns);
    }
    for (int p = 0; p < problem->nranks; p++)
        l->longest = l->columns[p + 1] - l->columns[p] > l->longest ? l->columns[p + 1] - l->columns[p] : l->longest;
    l->slot_bytes = ((uint64_t)(l->across * l->longest) * l->column_bytes + 63) & ~(uint64_t)63;
}

void reduce_layout_by_all(const struct problem *problem, struct reduce_layout *l)
{
    const int64_t n = problem->dim[DIM_N];

    l->by_all = true;
    l->longest = vector_columns(n, vector_unit(problem));
    for (int p = 1; p <= problem->nranks; p++) {
        l->columns[p] = l->longest;
        l->elements[p] = n;
    }
    l->slot_bytes = ((uint64_t)l->longest * l->column_bytes + 63) & ~(uint64_t)63;
}

struct reduce_layout *reduce_layout_new(const struct problem *problem, struct plan_builder *b)
{
    size_t n = (size_t)problem->nranks;
    struct reduce_layout *l = plan_layout_new(b, sizeof(*l) + 3 * (n + 1) * sizeof(int64_t) + 6 * n * sizeof(uint16_t));

    if (!l)
        return NULL;
    l->columns = (int64_t *)(void *)(l + 1);
    l->tiles = l->columns + n + 1;
    l->elements = l->tiles + n + 1;
    l->node = (uint16_t *)(void *)(l->elements + n + 1);
    l->place = l->node + n;
    l->chunks = l->place + n;
    l->size = l->chunks + n;
    l->member = l->size + n;
    l->first = l->member + n;
    l->nranks = problem->nranks;
    l->flags_by_index = (n + 1) * n >= PLAN_MAX_FLAGS;
    l->adds = problem->any_order && b->plan->schedule.kind == FCC_SCHEDULE_FUSED && b->plan->schedule.target == PLAN_CPU &&
              !plan_is_over_nodes(problem);
    chunks_set(problem, l);
    if (b->plan->schedule.kind != FCC_SCHEDULE_FUSED)
        l->local_bytes = ((uint64_t)(problem->dim[DIM_M] * problem->dim[DIM_N]) * sizeof(float) + 63) & ~(uint64_t)63;
    nodes_number(problem, b->plan->schedule.route == PLAN_FLAT, b, l);
    slots_count(l);
    chunks_count(b, l, l->node[b->plan->rank]);
    return b->status ? NULL : l;
}

void reduce_layout_cut(struct reduce_layout *l, int64_t tile)
{
    for (int p = 0; p < l->nranks; p++)
        l->tiles[p + 1] = l->tiles[p] + (l->columns[p + 1] - l->columns[p] + tile - 1) / tile;
    l->ntiles = l->tiles[l->nranks];
    l->flag_stride = l->flags_by_index ? (l->longest + tile - 1) / tile : l->ntiles;
}

int64_t reduce_slot_flags(const struct reduce_layout *l)
{
    return (l->flags_by_index ? l->slots : l->owner_slots) * l->flag_stride;
}

int reduce_owner(const struct reduce_layout *l, int64_t col)
{
    int p = 0, end = l->nranks;

    while (end - p > 1) {
        int middle = (p + end) / 2;
        if (l->columns[middle] <= col)
            p = middle;
        else
            end = middle;
    }
    return p;
}

int reduce_slice_owner(const struct reduce_layout *l, const struct slice *s)
{
    return reduce_owner(l, l->by_rows ? s->row : s->col);
}

int reduce_deputy(const struct reduce_layout *l, int owner, int node)
{
    return l->member[l->first[node] + l->place[owner] % l->size[node]];
}

int reduce_collector(const struct reduce_layout *l, int owner, int source)
{
    int node = l->node[source];

    return node == l->node[owner] || l->size[node] == 1 ? owner : reduce_deputy(l, owner, node);
}

int reduce_node_slot(const struct reduce_layout *l, int owner, int node)
{
    int own = l->node[owner];

    return l->size[own] + node - (node > own);
}

int reduce_slot(const struct reduce_layout *l, int owner, int source)
{
    int node = l->node[source];

    return node == l->node[owner] || l->size[node] > 1 ? l->place[source] : reduce_node_slot(l, owner, node);
}

int reduce_slot_number(const struct reduce_layout *l, int owner, int at, int slot)
{
    return at == owner ? slot : l->owner_slots + l->chunks[owner] * l->size[l->node[at]] + slot;
}

/* Slices of a tile: of columns they are not cut where ranks add into them, which is on cores (compute/gemm.c). */
static uint32_t pieces_of(const struct reduce_layout *l, const struct schedule *schedule)
{
    const uint32_t piece = l->by_rows ? schedule->slice_cols : schedule->slice_rows;

    return piece ? (uint32_t)((l->across + piece - 1) / piece) : 1;
}

uint32_t reduce_added_tile(const struct reduce_layout *l, const struct schedule *schedule, const struct slice *s)
{
    const int64_t first = l->columns[reduce_slice_owner(l, s)];

    if (l->by_rows)
        return (uint32_t)((s->row - first) / schedule->slice_rows) * pieces_of(l, schedule) + s->col / schedule->slice_cols;
    return (uint32_t)((s->col - first) / schedule->slice_cols) * pieces_of(l, schedule) + s->row / schedule->slice_rows;
}

uint32_t reduce_added_tiles(const struct reduce_layout *l, const struct schedule *schedule)
{
    const int64_t size = l->by_rows ? schedule->slice_rows : schedule->slice_cols;

    return (uint32_t)((l->longest + size - 1) / size) * pieces_of(l, schedule);
}

uint64_t reduce_staging_bytes(const struct reduce_layout *l)
{
    return l->local_bytes + (uint64_t)(l->adds ? 1 : l->slots) * l->slot_bytes;
}
