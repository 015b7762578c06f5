/* SPDX-License-Identifier: MIT
 *
 * product_puts.hip - products through rings whose rows go to the ranks (gemm_all_to_all): their plans and calls. Rows for other ranks are computed
 * part by part (kernels/plan/exchange/landing.h), beginning with those for the next rank; this rank's own between them and at last. Where no rank gets
 * more rows than a tile has, tiles of several ranks stand side by side, so that a tile can be multiplied for several of them.
 */
#include <stdlib.h>

#include "kernels/gpu/plugin/product.h"
#include "kernels/plan/compute/gemm_tiles.h"

enum { BAND_TILES = 16 /* rows of tiles of this rank's own part that are computed column by column */ };

/* A plan under construction. */
struct puts_plan {
    const struct product_shape *shape;
    uint32_t rank, nranks;
    uint32_t tile_rows, tile_cols;
    struct landing_parts parts[GPU_MAX_GPUS]; /* for each other rank */
    uint32_t first[GPU_MAX_GPUS];             /* row of x for each rank */
    uint32_t group[GPU_MAX_GPUS];             /* each other rank's first signal group */
    struct slice *slices;                     /* [room] */
    struct signal_group *groups;              /* [ngroups] */
    uint32_t count, room, ngroups;
    bool no_memory;
};

static uint32_t element_bytes(const struct product_shape *s)
{
    return s->dtype == FCC_F32 ? 4 : 2;
}

static uint32_t least(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

static void slice_add(struct puts_plan *p, const struct slice *s)
{
    if (p->count == p->room && !p->no_memory) {
        const uint32_t room = p->room ? 2 * p->room : 256;
        struct slice *more = (struct slice *)realloc(p->slices, room * sizeof(*more));
        p->no_memory = !more;
        p->slices = more ? more : p->slices;
        p->room = more ? room : p->room;
    }
    if (p->no_memory)
        return;
    if (s->group != SLICE_NO_GROUP)
        p->groups[s->group].slices++;
    p->slices[p->count++] = *s;
}

/* The tiles of a box of the rows for a rank, column block by column block. `part`: of another rank, the box is this one. */
static void tiles_add(struct puts_plan *p, uint32_t dst, const struct landing_box *box, uint32_t part)
{
    const bool own = dst == p->rank;
    struct slice s = {};

    s.kind = SLICE_COMPUTE_PUT;
    s.dst = (uint16_t)dst;
    s.slot = (uint16_t)part;
    s.group = own ? SLICE_NO_GROUP : p->group[dst] + part;
    for (uint32_t col = 0; col < box->cols; col += p->tile_cols)
        for (uint32_t row = 0; row < box->rows; row += p->tile_rows) {
            s.row = p->first[dst] + box->row + row;
            s.rows = least(p->tile_rows, box->rows - row);
            s.col = box->col + col;
            s.cols = least(p->tile_cols, box->cols - col);
            s.dst_row = row + (own ? box->row : 0); /* in the part's place, or among the own rows */
            s.dst_col = col + (own ? box->col : 0);
            slice_add(p, &s);
        }
}

/* The i-th of `count` shares of the columns of the own rows, in bands. */
static void own_add(struct puts_plan *p, uint32_t i, uint32_t count)
{
    const uint32_t own = (uint32_t)p->shape->rows[p->rank], n = (uint32_t)p->shape->n, band = BAND_TILES * p->tile_rows;
    const uint32_t wide = (n + p->tile_cols - 1) / p->tile_cols, col = (uint32_t)((uint64_t)wide * i / count) * p->tile_cols;
    const uint32_t end = least((uint64_t)wide * (i + 1) / count * p->tile_cols, n);

    for (uint32_t row = 0; row < own && col < end; row += least(band, own - row)) {
        const struct landing_box box = {row, least(band, own - row), col, end - col};
        tiles_add(p, p->rank, &box, 0);
    }
}

/* The most parts for a rank. */
static uint32_t parts_most(const struct puts_plan *p)
{
    uint32_t most = 0;

    for (uint32_t r = 0; r < p->nranks; r++)
        most = p->parts[r].count > most ? p->parts[r].count : most;
    return most;
}

/* Parts of several ranks by turns, and own rows: at last, where each part has a place of its own; otherwise from the first part on that waits for
 * its place, so that there is something else to compute meanwhile. */
static void parts_add(struct puts_plan *p)
{
    const uint32_t most = parts_most(p);

    for (uint32_t part = 0; part < most; part++) {
        if (part >= LANDING_PLACES)
            own_add(p, part - LANDING_PLACES, most);
        for (uint32_t i = 1; i < p->nranks; i++) {
            const uint32_t dst = (p->rank + i) % p->nranks;
            if (part >= p->parts[dst].count)
                continue;
            const struct landing_box box =
                landing_part_at(&p->parts[dst], part, (uint32_t)p->shape->rows[dst], (uint32_t)p->shape->n);
            tiles_add(p, dst, &box, part);
        }
    }
    const uint32_t shares = most > LANDING_PLACES ? most : 1;
    for (uint32_t i = most > LANDING_PLACES ? most - LANDING_PLACES : 0; i < shares; i++)
        own_add(p, i, shares);
}

/* For each column block a tile of each rank, which all have few rows. A part is some of the columns. */
static void tiles_add_together(struct puts_plan *p)
{
    for (uint32_t col = 0; col < (uint32_t)p->shape->n; col += p->tile_cols)
        for (uint32_t dst = 0; dst < p->nranks; dst++) {
            const uint32_t part = dst == p->rank || !p->parts[dst].count ? 0 : col / p->parts[dst].cols;
            const struct landing_box box = {0, (uint32_t)p->shape->rows[dst], col, least(p->tile_cols, p->shape->n - col)};
            const uint32_t before = p->count;
            if (box.rows == 0)
                continue;
            tiles_add(p, dst, &box, part);
            if (dst != p->rank && p->count > before)
                p->slices[before].dst_col = col - part * p->parts[dst].cols;
        }
}

static int parts_find(struct puts_plan *p, int gpu, struct error *e)
{
    const struct product_shape *s = p->shape;
    uint32_t row = 0;

    for (uint32_t r = 0; r < p->nranks; r++) {
        p->first[r] = row;
        row += (uint32_t)s->rows[r];
        p->group[r] = p->ngroups;
        if (r == p->rank)
            continue;
        p->parts[r] = landing_parts_of(landing_place_bytes(p->nranks), (uint32_t)s->rows[r], (uint32_t)s->n, element_bytes(s),
                                       LANDING_COLUMNS);
        if (p->parts[r].count > landing_parts_most(p->nranks))
            return error_set(
                e, -EOPNOTSUPP,
                "%s GPU %d: %lld rows of %lld columns for rank %u: allowed are %u parts of %u bytes each, these are %u",
                GPU_KIND, gpu, (long long)s->rows[r], (long long)s->n, r, landing_parts_most(p->nranks),
                landing_place_bytes(p->nranks), p->parts[r].count);
        p->ngroups += p->parts[r].count;
    }
    p->groups = (struct signal_group *)calloc(p->ngroups + 1, sizeof(p->groups[0]));
    p->no_memory = !p->groups;
    for (uint32_t r = 0; r < p->nranks && !p->no_memory; r++)
        for (uint32_t part = 0; part < p->parts[r].count; part++) {
            struct signal_group *g = &p->groups[p->group[r] + part];
            g->dst = (uint16_t)r;
            g->flag = landing_flag(p->nranks, p->rank, part);
        }
    return 0;
}

int puts_plan(const struct product_shape *s, const struct rings_call *rings, int gpu, struct gpu_run *run,
              struct gpu_shape *shape, struct error *e)
{
    struct puts_plan p = {};

    p.shape = s;
    p.rank = rings->rank;
    p.nranks = rings->nranks;
    gemm_tile_choose(s->rows, (int)p.nranks, s->n, s->dtype == FCC_F32, &p.tile_rows, &p.tile_cols);
    int status = parts_find(&p, gpu, e);
    /* Side by side, slices of later parts for one rank stand before those of earlier parts for another; so no part may wait for another one. */
    const bool together = gemm_longest_part(s->rows, (int)p.nranks) <= p.tile_rows && parts_most(&p) <= LANDING_PLACES;
    if (status == 0 && !p.no_memory)
        (together ? tiles_add_together : parts_add)(&p);
    run->slices = p.slices;
    run->groups = p.groups;
    run->ngroups = p.ngroups;
    for (int phase = GPU_PHASE_FREE + 1; phase <= GPU_PHASES; phase++)
        run->first[phase] = p.count;
    shape->compute = COMPUTE_GEMM;
    shape->exchange = EXCHANGE_PUT;
    shape->dtype = s->dtype;
    shape->stages = s->stages;
    shape->factors = s->factors;
    shape->nranks = p.nranks;
    shape->n = s->n;
    shape->waits = p.nranks > 1;
    return status || !p.no_memory ? status : error_set(e, -ENOMEM, "%s GPU %d: no memory for a plan", GPU_KIND, gpu);
}

/* ---- calls ---- */

void puts_call_fill(struct gpu_call *call, const struct rings_call *rings, const struct rings_product *what)
{
    const uint32_t nranks = rings->nranks, size = what->dtype == FCC_F32 ? 4 : 2;
    struct gpu_input *in = &call->in[0];

    in->gemm.a = what->x;
    in->gemm.b = what->copies ? 0
                 : what->w    ? what->w
                              : 1; /* without elements nobody reads it; 0 would say that there is none */
    in->gemm.a_stride = what->x_stride;
    in->gemm.b_stride = what->w_stride;
    in->gemm.k = what->k;
    in->bias = what->bias;
    in->residual = what->residual;
    in->residual_stride = what->residual_stride;
    call->scales = what->factors & FACTORS_F8 ? &what->scales : NULL;
    call->each.gate = what->gate;
    call->each.gate_stride = what->gate_stride;
    call->each.activation = what->activation;
    call->each.scale = what->scale;
    for (uint32_t r = 0; r < nranks; r++) {
        const struct landing_parts parts =
            landing_parts_of(landing_place_bytes(nranks), (uint32_t)what->rows[r], (uint32_t)what->n, size, LANDING_COLUMNS);
        call->out[r].data = rings->rings[r] + rings_landing_at(nranks) + landing_slot_at(nranks, r, rings->rank);
        call->out[r].stride[0] = parts.cols;
        call->rings.rows[r] = (uint32_t)what->rows[r];
        call->rings.expected[r] = what->expected[r] < 0 ? UINT32_MAX : (uint32_t)what->expected[r];
    }
    call->out[rings->rank].data = what->room ? what->y : call->out[rings->rank].data; /* aligned, where nothing is stored */
    call->out[rings->rank].stride[0] = what->y_stride;
    call->rings.own = (uint64_t)what->room;
    call->rings.place_bytes = landing_place_bytes(nranks);
    call->rings.element_bytes = size;
}
