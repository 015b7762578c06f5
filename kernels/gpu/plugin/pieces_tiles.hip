/* SPDX-License-Identifier: MIT
 *
 * pieces_tiles.hip - products of two ranks by one kernel, whose exchange goes on tile by tile (kernels/gpu/device/tiles/tiles.hip): what the kernel is told,
 * and, of what is gathered, the copies beside it.
 */
#include "kernels/gpu/device/tiles/tiles_call.h"
#include "kernels/gpu/plugin/flow.h"
#include "kernels/gpu/plugin/product.h"

static struct tiles_words *words_at(const struct flow *f, uint32_t rank)
{
    return (struct tiles_words *)(f->rings.rings[rank] + rings_arrivals_at(f->rings.nranks) + TILES_ARRIVALS_BYTES);
}

/* The same of sums and of what is gathered. */
static struct tiles_call call_of(const struct flow *f, const struct rings_pieces *w)
{
    struct tiles_call t = {};

    t.rings = f->rings;
    t.words = words_at(f, f->rings.rank);
    t.other_words = words_at(f, f->other);
    t.slots = f->rings.rings[f->rings.rank] + rings_arrivals_at(f->rings.nranks);
    t.other_slots = f->rings.rings[f->other] + rings_arrivals_at(f->rings.nranks);
    t.b = w->b;
    t.b_stride = w->b_stride;
    t.a_stride[0] = t.a_stride[1] = w->a_stride;
    t.c_stride = w->c_stride;
    t.n = w->n;
    t.k = w->k;
    t.dtype = w->dtype;
    t.multiprocessors = gpus[f->gpu].multiprocessors;
    return t;
}

static void multiply(struct flow *f, const struct tiles_call *t, bool begins)
{
    const bool follows = gpus[f->gpu].follows && gpu_graphs_follow();

    if (!f->status && begins)
        flow_note(f, tiles_begin(t, f->stream, follows), "launching a product");
    if (!f->status)
        flow_note(f, tiles_multiply(t, f->gpu, gpus[f->gpu].hopper, f->stream, follows), "launching a product");
}

/* gemm_reduce_scatter, gemm_all_reduce: the other rank's rows first. */
static void sums_by_tiles(struct flow *f, const struct rings_pieces *w)
{
    struct tiles_call t = call_of(f, w);
    const int64_t own = w->rows[f->rings.rank], theirs = w->rows[f->other];
    const uint64_t before = (uint64_t)(f->rings.rank ? theirs : 0), after = (uint64_t)(f->rings.rank ? 0 : own);

    t.sums = 1;
    t.returns = !w->scatters;
    t.spread = 1;
    t.order = tiles_order_of(theirs, own, w->n, tiles_columns(w->m, w->n), TILES_BAND, t.returns ? 2 : 1);
    t.a[0] = w->a + after * (uint64_t)w->a_stride * f->size;
    t.a[1] = w->a + before * (uint64_t)w->a_stride * f->size;
    t.c[0] = t.returns ? w->c + after * (uint64_t)w->c_stride * f->size : 0;
    t.c[1] = t.returns ? w->c + before * (uint64_t)w->c_stride * f->size : w->c;
    multiply(f, &t, true);
}

/* A run of what is gathered: rows of this rank, and of the other, that are multiplied, and where they begin in a rank's own rows. */
struct gathering {
    int64_t own, own_first, theirs, theirs_first, row;
};

/* This rank's rows to the other one, in pieces, each with its word behind it: there is memory for all of them. */
static void rows_send(struct flow *f, const struct rings_pieces *w, const struct gathering *g)
{
    const uint64_t to = f->rings.rings[f->other] + rings_arrivals_at(f->rings.nranks);
    const int64_t each = tiles_come_rows(g->own);
    uint32_t piece = 0;

    for (int64_t at = 0; at < g->own; at += each) {
        const int64_t rows = g->own - at < each ? g->own - at : each;
        flow_copy(f, to + (uint64_t)(at * g->row) * f->size, g->row,
                  w->a + (uint64_t)((g->own_first + at) * w->a_stride) * f->size, w->a_stride, rows, w->k, f->p->out);
        flow_tell_come(f, f->p->out, 0, ++piece);
    }
}

/* Rows that are there, into `gathered`, if that is; row: in the whole A. */
static void gathered_store(struct flow *f, const struct rings_pieces *w, int64_t row, int64_t rows, uint64_t from,
                           int64_t stride, hipStream_t stream)
{
    if (w->gathered)
        flow_copy(f, w->gathered + (uint64_t)(row * w->gathered_stride) * f->size, w->gathered_stride, from, stride, rows, w->k,
                  stream);
}

/* Own rows first. The copy of own rows into `gathered` goes on beside the product, that of the other's behind it. */
static void gather_run(struct flow *f, const struct rings_pieces *w, const struct gathering *g)
{
    struct tiles_call t = call_of(f, w);
    const int64_t first = (f->rings.rank ? w->rows[f->other] : 0) + g->own_first,
                  second = (f->rings.rank ? 0 : w->rows[f->rings.rank]) + g->theirs_first;
    const uint64_t from = w->a + (uint64_t)(g->own_first * w->a_stride) * f->size;

    t.order = tiles_order_of(g->own, g->theirs, w->n, tiles_columns(g->own + g->theirs, w->n), TILES_GATHER_BAND, 0);
    t.come_rows = (uint32_t)tiles_come_rows(g->theirs);
    t.a[0] = from;
    t.a[1] = t.slots;
    t.a_stride[1] = g->row;
    t.c[0] = w->c + (uint64_t)(first * w->c_stride) * f->size;
    t.c[1] = w->c + (uint64_t)(second * w->c_stride) * f->size;
    if (!f->status)
        flow_note(f, tiles_begin(&t, f->stream, gpus[f->gpu].follows && gpu_graphs_follow()), "launching a product");
    flow_behind(f, f->p->begun, f->stream, f->p->out);
    rows_send(f, w, g);
    gathered_store(f, w, first, g->own, from, w->a_stride, f->p->out);
    if (w->n)
        multiply(f, &t, false);
    flow_behind(f, f->p->joined, f->p->out, f->stream);
    if (g->theirs && (w->gathered || !w->n))
        flow_come(f, 0, (uint32_t)((g->theirs - 1) / t.come_rows)); /* the last piece, whose index it is */
    gathered_store(f, w, second, g->theirs, t.slots, g->row, f->stream);
}

static void gather_by_tiles(struct flow *f, const struct rings_pieces *w)
{
    const int64_t own = w->rows[f->rings.rank], theirs = w->rows[f->other],
                  runs = tiles_gather_runs(own > theirs ? own : theirs, tiles_row(w->k));

    for (int64_t i = 0; i < runs; i++) {
        const int64_t own_at = own * i / runs, theirs_at = theirs * i / runs;
        const struct gathering g = {own * (i + 1) / runs - own_at, own_at, theirs * (i + 1) / runs - theirs_at, theirs_at,
                                    tiles_row(w->k)};
        f->rings.what.continues = w->continues || i > 0;
        gather_run(f, w, &g);
    }
}

void pieces_by_tiles(struct flow *f, const struct rings_pieces *what)
{
    if (what->gathers)
        gather_by_tiles(f, what);
    else
        sums_by_tiles(f, what);
}
