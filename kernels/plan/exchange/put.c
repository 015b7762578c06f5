/* SPDX-License-Identifier: MIT
 *
 * put.c - the plans of an All-to-All, for any compute.
 */
#include "kernels/plan/exchange/put.h"

#include <string.h>

#include "kernels/plan/compute/gemm_tiles.h"
#include "kernels/plan/compute/vector.h"
#include "kernels/plan/epilogue.h"
#include "kernels/plan/exchange/rows.h"
#include "kernels/plan/program.h"

enum { BAND_TILES = 16 };
#define FLAGS_MOST 256 /* the most flags that a GPU's workgroup awaits in parallel, one per thread */

/* By destination: the number of tiles of all ranks for it, and of those ranks before the plan's own. */
struct tiles {
    uint32_t *all, *before;
};

static uint32_t least(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

static bool is_empty(const struct rectangle *part)
{
    return part->rows == 0 || part->cols == 0;
}

/* The height of a band: rows of a part whose tiles are consecutive. All rows, or about 16 tiles, an even number because two
 * neighbours may be computed together. A GPU computes about 130 tiles at a time, mostly 128 x 256. */
static uint64_t band_rows(const struct rectangle *part, uint32_t tile_rows, bool bands)
{
    uint64_t high = ((uint64_t)part->rows + tile_rows - 1) / tile_rows, count = (high + BAND_TILES / 2) / BAND_TILES;

    return bands && count > 1 ? ((high + count - 1) / count + 1) / 2 * 2 * tile_rows : part->rows;
}

/* Adds a part's tiles, column block by column block within each band of rows. `like` has the fields that they share. */
static void add_tiles(struct plan_builder *b, const struct rectangle *part, uint32_t tile_rows, uint32_t tile_cols,
                      uint64_t band, struct slice like)
{
    for (uint64_t top = 0; top < part->rows && b->status == 0; top += band) {
        uint64_t end = least(top + band, part->rows);
        for (uint64_t col = 0; col < part->cols && b->status == 0; col += tile_cols)
            for (uint64_t row = top; row < end && b->status == 0; row += tile_rows) {
                like.row = part->row + (uint32_t)row;
                like.rows = least(tile_rows, part->rows - row);
                like.col = part->col + (uint32_t)col;
                like.cols = least(tile_cols, part->cols - col);
                like.dst_row = part->dst_row + (uint32_t)row;
                like.dst_col = part->dst_col + (uint32_t)col;
                plan_add_slice(b, like);
            }
    }
}

/* Adds the tiles for all destinations. Each destination's tiles form a signal group. */
static void add_puts(struct plan_builder *b, enum slice_kind kind, const int order[], const struct schedule *schedule,
                     const struct rectangle parts[], bool bands, bool wait_for_own)
{
    struct plan *plan = b->plan;

    if (wait_for_own)
        plan_add_level(b, LEVEL_PUT);
    for (int i = 0; i < plan->nranks; i++) {
        const struct rectangle *part = &parts[order[i]];
        uint32_t tile_rows = schedule->slice_rows, tile_cols = schedule->slice_cols;
        if (is_empty(part))
            continue;
        if (kind == SLICE_PUT) {
            /* A put slice has as many elements as a computed tile, but whole rows, which are contiguous at both ends. */
            uint64_t elements = (uint64_t)tile_rows * least(tile_cols, part->cols);
            tile_rows = elements > part->cols ? least(elements / part->cols, part->rows) : 1;
            tile_cols = part->cols;
        }
        add_tiles(b, part, tile_rows, tile_cols, band_rows(part, tile_rows, bands),
                  (struct slice){.kind = (uint8_t)kind,
                                 .dst = (uint16_t)order[i],
                                 .group = plan_add_group(b, (unsigned)order[i], (uint32_t)plan->rank),
                                 .wait_first = wait_for_own ? (uint32_t)plan->nranks : 0,
                                 .wait_count = wait_for_own ? 1 : 0,
                                 .wait_stride = wait_for_own ? 1 : 0});
    }
}

/* Tile t of a part, in the order of add_tiles(). False: the part has fewer tiles. */
static bool tile_get(const struct rectangle *part, const struct schedule *schedule, uint64_t t, struct slice *out)
{
    uint64_t high = (part->rows + (uint64_t)schedule->slice_rows - 1) / schedule->slice_rows;
    uint64_t row = high ? t % high * schedule->slice_rows : 0, col = high ? t / high * schedule->slice_cols : 0;

    if (is_empty(part) || col >= part->cols)
        return false;
    out->row = part->row + (uint32_t)row;
    out->rows = least(schedule->slice_rows, part->rows - row);
    out->col = part->col + (uint32_t)col;
    out->cols = least(schedule->slice_cols, part->cols - col);
    out->dst_row = part->dst_row + (uint32_t)row;
    out->dst_col = part->dst_col + (uint32_t)col;
    return true;
}

/* Adds the first tile for each of these destinations, then the second for each, and so on. */
static void add_turns(struct plan_builder *b, const int order[], int n, const struct schedule *schedule,
                      const struct rectangle parts[], const uint32_t groups[])
{
    bool some = true;

    for (uint64_t t = 0; some && b->status == 0; t++) {
        some = false;
        for (int i = 0; i < n; i++) {
            struct slice s = {.kind = SLICE_COMPUTE_PUT, .dst = (uint16_t)order[i], .group = groups[i]};
            if (!tile_get(&parts[order[i]], schedule, t, &s))
                continue;
            plan_add_slice(b, s);
            some = true;
        }
    }
}

/* In turns. Cores send to other nodes, which come first in the order, before they store what stays here: that is on its way meanwhile. */
static void add_puts_in_turns(const struct problem *problem, struct plan_builder *b, const int order[],
                              const struct schedule *schedule, const struct rectangle parts[])
{
    struct plan *plan = b->plan;
    uint32_t *groups = plan_scratch(b, (size_t)plan->nranks, sizeof(*groups));
    int first = 0;

    if (!groups)
        return;
    for (int i = 0; i < plan->nranks; i++)
        groups[i] = is_empty(&parts[order[i]]) ? SLICE_NO_GROUP : plan_add_group(b, (unsigned)order[i], (uint32_t)plan->rank);
    while (schedule->target == PLAN_CPU && first < plan->nranks &&
           problem->node_of[order[first]] != problem->node_of[plan->rank])
        first++;
    add_turns(b, order, first, schedule, parts, groups);
    add_turns(b, order + first, plan->nranks - first, schedule, parts, groups + first);
}

/* The most consecutive destinations, of `n` with rows, of which each `count` share one tile. */
static int short_together(const struct rectangle parts[], const int with_rows[], int n)
{
    int count = n;

    for (bool fit = n == 0; !fit; count -= !fit) {
        uint64_t rows = 0;
        fit = n % count == 0;
        for (int i = 0; i < n && fit; i++) {
            rows = (i % count ? rows : 0) + parts[with_rows[i]].rows;
            fit = count == 1 || rows <= GEMM_ROWS_TOGETHER;
        }
    }
    return count;
}

/* Which of the destinations with rows comes first. Over nodes each rank has another one, whose like on the next node it is: otherwise all ranks would send to one at
 * a time. Those that share a tile stay together. On one node all ranks begin with the first, as stores there wait for nobody. */
static int short_first(const struct problem *problem, int rank, const struct rectangle parts[], const int with_rows[], int n)
{
    int here = 0, place = 0;

    if (!plan_is_over_nodes(problem) || n == 0)
        return 0;
    for (int r = 0; r < problem->nranks; r++)
        here += problem->node_of[r] == problem->node_of[rank];
    while (place < n && with_rows[place] < (rank + here) % problem->nranks)
        place++;
    const int together = short_together(parts, with_rows, n);
    return place % n / together * together;
}

/* Adds the tiles of short parts: for each column block, one tile of each destination. So tiles with the same columns and
 * adjacent rows are consecutive. */
static void add_short_puts(const struct problem *problem, struct plan_builder *b, const struct rectangle parts[])
{
    const struct plan *plan = b->plan;
    const uint32_t tile_cols = plan->schedule.slice_cols;
    uint32_t *groups = plan_scratch(b, (size_t)plan->nranks, sizeof(*groups)), cols = 0;
    int *with_rows = plan_scratch(b, (size_t)plan->nranks, sizeof(*with_rows)), n = 0;

    if (!groups || !with_rows)
        return;
    for (int p = 0; p < plan->nranks; p++) {
        if (is_empty(&parts[p]))
            continue;
        groups[p] = plan_add_group(b, (unsigned)p, (uint32_t)plan->rank);
        cols = parts[p].cols;
        with_rows[n++] = p;
    }
    const int first = short_first(problem, plan->rank, parts, with_rows, n);
    for (uint64_t col = 0; col < cols && b->status == 0; col += tile_cols)
        for (int i = 0; i < n; i++) {
            const int p = with_rows[(first + i) % n];
            plan_add_slice(b, (struct slice){.kind = SLICE_COMPUTE_PUT,
                                             .dst = (uint16_t)p,
                                             .group = groups[p],
                                             .row = parts[p].row,
                                             .rows = parts[p].rows,
                                             .col = parts[p].col + (uint32_t)col,
                                             .cols = least(tile_cols, cols - col),
                                             .dst_row = parts[p].dst_row,
                                             .dst_col = parts[p].dst_col + (uint32_t)col});
        }
}

/* Adds compute slices for all tiles, into staging memory. Returns whether there are any. */
static bool add_computes(struct plan_builder *b, const int order[], const struct schedule *schedule,
                         const struct rectangle parts[], bool bands)
{
    struct plan *plan = b->plan;
    uint32_t group = SLICE_NO_GROUP;

    for (int i = 0; i < plan->nranks; i++) {
        if (is_empty(&parts[order[i]]))
            continue;
        if (group == SLICE_NO_GROUP)
            group = plan_add_group(b, (unsigned)plan->rank, (uint32_t)plan->nranks);
        add_tiles(b, &parts[order[i]], schedule->slice_rows, schedule->slice_cols,
                  band_rows(&parts[order[i]], schedule->slice_rows, bands),
                  (struct slice){.kind = SLICE_COMPUTE, .dst = (uint16_t)order[i], .group = group});
    }
    return group != SLICE_NO_GROUP;
}

static void add_wait(struct plan_builder *b, uint32_t first, uint32_t count, uint32_t group)
{
    plan_add_level(b, LEVEL_WAIT);
    plan_add_slice(b, (struct slice){.kind = SLICE_WAIT,
                                     .dst = (uint16_t)b->plan->rank,
                                     .group = group,
                                     .wait_first = first,
                                     .wait_count = count,
                                     .wait_stride = 1});
}

/* Adds a wait for each run of consecutive sources that send something to this rank, and what is made of whole rows. */
static void add_waits(struct plan_builder *b, const struct problem *problem, const bool from[])
{
    const int64_t rows = b->plan->has_rows ? problem->received[b->plan->rank] : 0, cols = problem->epilogue.cols;
    const uint32_t group = rows_group(b, rows, cols);
    int nranks = b->plan->nranks;

    for (int first = 0, end; first < nranks; first = end + 1) {
        for (end = first; end < nranks && from[end];)
            end++;
        if (end > first)
            add_wait(b, (uint32_t)first, (uint32_t)(end - first), group);
    }
    rows_add(b, rows, cols);
}

/* Gives each put slice a flag of its own, in place of one per destination, and adds the wait for all that arrive. */
static void flags_split(struct plan_builder *b, struct tiles *tiles)
{
    struct plan *plan = b->plan;

    plan->ngroups = 0;
    plan->nflags = 0;
    for (int p = 0; p < plan->nranks; p++)
        plan->nflags = tiles->all[p] > plan->nflags ? tiles->all[p] : plan->nflags;
    for (uint32_t i = 0; i < plan->nslices && b->status == 0; i++) {
        struct slice *s = &plan->slices[i];
        s->group = plan_add_group(b, s->dst, tiles->before[s->dst]++);
        if (b->status == 0)
            plan->groups[s->group].slices = 1;
    }
    if (tiles->all[plan->rank])
        add_wait(b, 0, tiles->all[plan->rank], SLICE_NO_GROUP);
}

/* A domain with its arrays; false: no memory. */
static bool domain_new(struct plan_builder *b, struct domain *out)
{
    const size_t n = (size_t)b->plan->nranks;

    *out = (struct domain){.part = plan_scratch(b, n, sizeof(*out->part)), .from = plan_scratch(b, n, sizeof(*out->from))};
    return out->part && out->from;
}

/* Counts all ranks' tiles, if GPUs of one node can have a flag for each tile because there are few. `asked`: the requested
 * sizes. Finding the last of a destination's tiles by a counter in GPU memory and a second fence takes 1.4 us. */
static bool tiles_get(const struct problem *problem, int rank, struct plan_builder *b, const struct compute_ops *compute,
                      struct tiles *out)
{
    const struct schedule *asked = &b->plan->schedule;
    const size_t n = (size_t)problem->nranks;
    struct domain d;

    if (asked->kind != FCC_SCHEDULE_FUSED || asked->target != PLAN_GPU || plan_is_over_nodes(problem) ||
        epilogue_has_rows(&problem->epilogue))
        return false;
    *out = (struct tiles){.all = plan_scratch(b, n, sizeof(uint32_t)), .before = plan_scratch(b, n, sizeof(uint32_t))};
    if (!out->all || !out->before || !domain_new(b, &d))
        return false;
    for (int r = 0; r < problem->nranks; r++) {
        struct schedule s = *asked;
        memset(d.part, 0, n * sizeof(*d.part));
        d.flag_each = false;
        compute->tile(problem, r, &s);
        compute->domain(problem, r, &s, &d);
        for (int p = 0; p < problem->nranks; p++) {
            uint64_t high = ((uint64_t)d.part[p].rows + s.slice_rows - 1) / s.slice_rows;
            uint64_t count = high * (((uint64_t)d.part[p].cols + s.slice_cols - 1) / s.slice_cols);
            if (!d.flag_each || out->all[p] + count > FLAGS_MOST)
                return false;
            out->before[p] += r < rank ? (uint32_t)count : 0;
            out->all[p] += (uint32_t)count;
        }
    }
    return true;
}

/* Sets the layout of staging memory, and its size. */
static void staging_plan(const struct problem *problem, const struct domain *d, struct plan_builder *b)
{
    const struct schedule *schedule = &b->plan->schedule;
    size_t room = sizeof(struct put_layout) + (size_t)problem->nranks * sizeof(uint64_t);
    struct put_layout *l = plan_layout_new(b, room);
    uint64_t rows = 0, bytes;

    if (!l)
        return;
    l->element_bytes = d->element_bytes;
    if (op_is_vector(problem->op)) {
        if (!b->sizes_only)
            vector_parts_at(problem, b->plan->rank, l->at);
        return;
    }
    for (int p = 0; p < problem->nranks; p++) /* all non-empty parts have the same width */
        l->row_bytes = d->part[p].cols * d->element_bytes > l->row_bytes ? d->part[p].cols * d->element_bytes : l->row_bytes;
    for (int p = 0; p < problem->nranks; rows += d->part[p++].rows)
        l->at[p] = b->plan->staging_bytes + (rows - d->part[p].row) * l->row_bytes;
    bytes = rows * l->row_bytes;
    if (schedule->kind != FCC_SCHEDULE_FUSED ||
        (schedule->target == PLAN_CPU && !plan_is_over_nodes(problem) && bytes <= d->early_bytes))
        b->plan->staging_bytes += bytes;
    if (d->early_bytes && (schedule->kind == FCC_SCHEDULE_SEQUENTIAL || schedule->kind == FCC_SCHEDULE_COMPUTE_ONLY))
        b->plan->start_level = LEVEL_PUT;
}

static void fused_plan(const struct problem *problem, const struct domain *d, const int order[], struct tiles *tiles,
                       struct plan_builder *b)
{
    const struct schedule *schedule = &b->plan->schedule;

    if (d->order == ORDER_TOGETHER)
        add_short_puts(problem, b, d->part);
    else if (d->order == ORDER_IN_TURNS)
        add_puts_in_turns(problem, b, order, schedule, d->part);
    else
        add_puts(b, SLICE_COMPUTE_PUT, order, schedule, d->part, d->order == ORDER_IN_BANDS, false);
    if (tiles)
        flags_split(b, tiles);
    else
        add_waits(b, problem, d->from);
}

static void put_plan(const struct problem *problem, int rank, const struct compute_ops *compute, struct plan_builder *b)
{
    struct plan *plan = b->plan;
    uint32_t own_flag = (uint32_t)problem->nranks;
    struct domain d;
    int *order = plan_scratch(b, (size_t)problem->nranks, sizeof(*order));
    struct tiles tiles = {0};
    bool few = tiles_get(problem, rank, b, compute, &tiles);

    if (!domain_new(b, &d) || !order || b->status)
        return;

    if (!b->sizes_only)
        compute->tile(problem, rank, &plan->schedule);
    compute->domain(problem, rank, &plan->schedule, &d);
    const bool bands = d.order == ORDER_IN_BANDS;
    plan_destination_order(problem, rank, order);
    plan->nflags = own_flag + 1;
    plan->schedule.route = PLAN_FLAT; /* every slice has one destination */
    if (plan->schedule.kind != FCC_SCHEDULE_COMPUTE_ONLY) {
        plan->transport = TRANSPORT_FLAGS;
        plan->shared = 1u << op_spec(problem->op)->result;
    }
    if (epilogue_has_rows(&problem->epilogue))
        rows_reserve(problem, problem->received[rank], problem->epilogue.cols, b);
    staging_plan(problem, &d, b); /* behind the rows, which begin at the same byte on all ranks */
    if (b->sizes_only)
        return;
    switch (plan->schedule.kind) {
    case FCC_SCHEDULE_COMPUTE_ONLY:
        if (add_computes(b, order, &plan->schedule, d.part, bands))
            add_wait(b, own_flag, 1, SLICE_NO_GROUP);
        return;
    case FCC_SCHEDULE_SEQUENTIAL:
        (void)add_computes(b, order, &plan->schedule, d.part, bands);
        add_puts(b, SLICE_PUT, order, &plan->schedule, d.part, bands, true);
        break;
    case FCC_SCHEDULE_COMM_ONLY:
        add_puts(b, SLICE_PUT, order, &plan->schedule, d.part, bands, false);
        break;
    default:
        fused_plan(problem, &d, order, few ? &tiles : NULL, b);
        return;
    }
    add_waits(b, problem, d.from);
}

/* The number of rows that each rank has sent to this one. */
static int put_values(const struct problem *problem, int rank, int64_t values[])
{
    for (int r = 0; r < problem->nranks; r++)
        values[r] = problem->counts[rank].from[r];
    return problem->nranks;
}

const struct exchange_ops exchange_put = {.plan = put_plan, .values = put_values};
