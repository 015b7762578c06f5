/* SPDX-License-Identifier: MIT
 *
 * product_bags.hip - embedding_all_to_all through rings: its plans and calls. A rank pools its tables for the samples of the other ranks part by part
 * (kernels/plan/exchange/landing.h), parts of several ranks by turns, beginning with the next rank's; its own samples between them and at last.
 *
 * A plan has no indices, and no number of them: the kernel reads them. Slices are as large as bags of about that many make worth while.
 */
#include <stdlib.h>

#include "kernels/gpu/plugin/product.h"

enum {
    SLICE_BYTES = 1 << 17, /* of rows that a slice reads, about: kernels/plan/compute/bag.c says why */
    SLICE_SAMPLES = 8      /* a slice has a multiple of so many */
};

/* A plan under construction. */
struct bags_plan {
    const struct product_shape *shape;
    uint32_t rank, nranks, dim;
    uint32_t slice_rows, slice_tables;
    struct landing_parts parts[GPU_MAX_GPUS]; /* for each other rank */
    uint32_t group[GPU_MAX_GPUS];             /* each other rank's first signal group */
    struct slice *slices;                     /* [room] */
    struct signal_group *groups;              /* [ngroups] */
    uint32_t count, room, ngroups;
    bool no_memory;
};

static uint32_t element_bytes(uint32_t dtype)
{
    return dtype == FCC_F32 ? 4 : 2;
}

static uint32_t least(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

static void slice_add(struct bags_plan *p, const struct slice *s)
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

/* The slices of some samples and tables of a rank: samples of one table before further tables, whose rows lie elsewhere. `box`: in tables. `part`: of
 * another rank, the box is this one. */
static void slices_add(struct bags_plan *p, uint32_t dst, const struct landing_box *box, uint32_t part)
{
    const bool own = dst == p->rank;
    struct slice s = {};

    s.kind = SLICE_COMPUTE_PUT;
    s.dst = (uint16_t)dst;
    s.slot = (uint16_t)part;
    s.group = own ? SLICE_NO_GROUP : p->group[dst] + part;
    for (uint32_t col = 0; col < box->cols; col += p->slice_tables)
        for (uint32_t row = 0; row < box->rows; row += p->slice_rows) {
            s.row = box->row + row;
            s.rows = least(p->slice_rows, box->rows - row);
            s.col = box->col + col;
            s.cols = least(p->slice_tables, box->cols - col);
            s.dst_row = row + (own ? box->row : 0); /* in the part's place, or among the own samples */
            s.dst_col = col + (own ? box->col : 0);
            slice_add(p, &s);
        }
}

/* The i-th of `count` shares of the own samples. */
static void own_add(struct bags_plan *p, uint32_t i, uint32_t count)
{
    const uint64_t rows = (uint64_t)p->shape->rows[p->rank];
    const uint32_t first = (uint32_t)(rows * i / count), end = (uint32_t)(rows * (i + 1) / count);
    const struct landing_box box = {first, end - first, 0, (uint32_t)p->shape->ntables};

    slices_add(p, p->rank, &box, 0);
}

static void parts_add(struct bags_plan *p)
{
    uint32_t most = 0;

    for (uint32_t r = 0; r < p->nranks; r++)
        most = p->parts[r].count > most ? p->parts[r].count : most;
    for (uint32_t part = 0; part < most; part++) {
        if (part >= LANDING_PLACES)
            own_add(p, part - LANDING_PLACES, most);
        for (uint32_t i = 1; i < p->nranks; i++) {
            const uint32_t dst = (p->rank + i) % p->nranks;
            if (part >= p->parts[dst].count)
                continue;
            struct landing_box box =
                landing_part_at(&p->parts[dst], part, (uint32_t)p->shape->rows[dst], (uint32_t)p->shape->n);
            box.col /= p->dim;
            box.cols /= p->dim;
            slices_add(p, dst, &box, part);
        }
    }
    const uint32_t shares = most > LANDING_PLACES ? most : 1;
    for (uint32_t i = most > LANDING_PLACES ? most - LANDING_PLACES : 0; i < shares; i++)
        own_add(p, i, shares);
}

/* Of very many bags slices are larger, which limits their number. */
static void slice_choose(struct bags_plan *p)
{
    const struct product_shape *s = p->shape;
    const uint64_t bag = (uint64_t)(s->k + 2) * p->dim * element_bytes(s->dtype), fit = SLICE_BYTES / bag;
    const uint64_t fewest = (uint64_t)(s->m * s->ntables) >> 16;
    uint64_t rows = fit > fewest ? fit : fewest, tables;

    rows = (rows / SLICE_SAMPLES + 1) * SLICE_SAMPLES;
    rows = rows < (uint64_t)s->m ? rows : (uint64_t)s->m;
    rows = rows > 0 ? rows : 1;
    tables = fit / rows;
    p->slice_rows = (uint32_t)rows;
    p->slice_tables = tables > 0 ? (uint32_t)tables : 1;
}

static int parts_find(struct bags_plan *p, int gpu, struct error *e)
{
    const struct product_shape *s = p->shape;

    for (uint32_t r = 0; r < p->nranks; r++) {
        p->group[r] = p->ngroups;
        if (r == p->rank)
            continue;
        p->parts[r] = landing_parts_of(landing_place_bytes(p->nranks), (uint32_t)s->rows[r], (uint32_t)s->n,
                                       element_bytes(s->dtype), p->dim);
        if (p->parts[r].count > landing_parts_most(p->nranks))
            return error_set(
                e, -EOPNOTSUPP,
                "%s GPU %d: %lld samples of %lld tables for rank %u: allowed are %u parts of %u bytes each, these are %u",
                GPU_KIND, gpu, (long long)s->rows[r], (long long)s->ntables, r, landing_parts_most(p->nranks),
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

int bags_plan(const struct product_shape *s, const struct rings_call *rings, int gpu, struct gpu_run *run,
              struct gpu_shape *shape, struct error *e)
{
    struct bags_plan p = {};

    p.shape = s;
    p.rank = rings->rank;
    p.nranks = rings->nranks;
    p.dim = (uint32_t)s->dim;
    slice_choose(&p);
    int status = parts_find(&p, gpu, e);
    if (status == 0 && !p.no_memory)
        parts_add(&p);
    run->slices = p.slices;
    run->groups = p.groups;
    run->ngroups = p.ngroups;
    for (int phase = GPU_PHASE_FREE + 1; phase <= GPU_PHASES; phase++)
        run->first[phase] = p.count;
    shape->compute = COMPUTE_BAG;
    shape->exchange = EXCHANGE_PUT;
    shape->dtype = s->dtype;
    shape->nranks = p.nranks;
    shape->dim = s->dim;
    shape->batch = s->m;
    for (uint32_t r = 0; r < p.nranks; r++)
        shape->first[r + 1] = shape->first[r] + s->rows[r];
    shape->through_rings = 1;
    return status || !p.no_memory ? status : error_set(e, -ENOMEM, "%s GPU %d: no memory for a plan", GPU_KIND, gpu);
}

int64_t bags_depth(const struct rings_product *what)
{
    const int64_t bags = what->m * what->bags.ntables;
    int64_t depth = 1;

    while (bags && depth * bags < what->bags.nnz)
        depth *= 2;
    return depth;
}

/* ---- calls ---- */

int bags_first_rows(struct gpu_launch *l, int gpu, const struct rings_product *what, uint64_t *out, struct error *e)
{
    const uint32_t ntables = what->bags.ntables;
    int64_t *first = (int64_t *)calloc(ntables + 1, sizeof(first[0]));

    if (!first)
        return error_set(e, -ENOMEM, "%s GPU %d: no memory for a launch", GPU_KIND, gpu);
    for (uint32_t t = 0; t < ntables; t++)
        first[t + 1] = first[t] + what->bags.table_rows[t];
    int status = launch_numbers(l, 0, first, ntables + 1, out, e);
    free(first);
    return status;
}

void bags_call_fill(struct gpu_call *call, const struct rings_call *rings, const struct rings_product *what,
                    uint64_t first_rows)
{
    const uint32_t nranks = rings->nranks, size = element_bytes(what->dtype);
    const struct rings_bags *bags = &what->bags;
    struct gpu_input *in = &call->in[0];

    in->embedding.tables = what->w;
    in->embedding.row_stride = what->w_stride;
    in->embedding.indices = bags->indices;
    in->embedding.offsets = bags->offsets;
    in->embedding.weights = bags->weights;
    in->embedding.table_first = first_rows;
    in->embedding.nnz = bags->nnz;
    in->embedding.ntables = bags->ntables;
    in->embedding.flags = bags->flags;
    for (uint32_t r = 0; r < nranks; r++) {
        const struct landing_parts parts = landing_parts_of(landing_place_bytes(nranks), (uint32_t)what->rows[r],
                                                            (uint32_t)what->n, size, (uint32_t)bags->dim);
        call->out[r].data = rings->rings[r] + rings_landing_at(nranks) + landing_slot_at(nranks, r, rings->rank);
        call->out[r].stride[0] = parts.cols;
        call->out[r].stride[1] = bags->dim;
        call->rings.rows[r] = (uint32_t)what->rows[r];
        call->rings.expected[r] = UINT32_MAX;
    }
    call->out[rings->rank].data = what->y;
    call->out[rings->rank].stride[0] = what->y_stride;
    call->out[rings->rank].stride[1] = bags->table_stride;
    call->rings.own = (uint64_t)bags->tables;
    call->rings.place_bytes = landing_place_bytes(nranks);
    call->rings.element_bytes = size;
}
