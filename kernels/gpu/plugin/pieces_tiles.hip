/* SPDX-License-Identifier: MIT
 *
 * pieces_tiles.hip - products of two ranks by one kernel, whose exchange goes on tile by tile (kernels/gpu/device/tiles/tiles.hip): what the kernel is told,
 * and, of what is gathered, the copies beside it.
 */
#include "kernels/gpu/device/tiles/tiles_call.h"
#include "kernels/gpu/plugin/flow.h"
#include "kernels/gpu/plugin/product.h"

/* Of an H200, as measured (tests/bench/RESULTS.md): what a rank expects of its own work, which no other rank's depends on. */
enum {
    ROUND_TILES = 132,      /* tiles that are multiplied at a time */
    STEP_NS = 730,          /* a tile of 128 x 256, 64 elements of K */
    LIBRARY_ROUND_NS = 800, /* of the library's, which begin and end with nothing beside them */
    PIECE_NS = 8000,        /* of a piece that travels, beside its bytes */
    LAUNCH_NS = 4000,       /* between two products */
    LINK_BYTES_PER_US = 390000,
    ODD_TIMES = 3,    /* as long as others: the library's products with rows at odd addresses */
    PRODUCTS_MOST = 4 /* of rows that come */
};
/* Products of what is gathered take so much longer than their rounds, by tiles and by the library, and such a part of a round besides. */
static const double tiles_times = 1.12, library_times = 1.1, library_rest = 0.1;

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
    t.packed = (uint64_t)f->p->own;
    t.packed_bytes = FLOW_OWN_BYTES - tiles_apart_bytes(t.multiprocessors);
    t.apart = t.packed + t.packed_bytes;
    return t;
}

/* What divides the places of c's rows, at most 16. */
static uint32_t width_of(const struct tiles_call *t, uint64_t size)
{
    const uint64_t all = t->c[0] | t->c[1] | (uint64_t)(t->c_stride | t->n) * size | 16;

    return (uint32_t)(all & -all);
}

static void multiply(struct flow *f, struct tiles_call *t, bool begins)
{
    const bool follows = gpus[f->gpu].follows && gpu_graphs_follow();

    t->width = width_of(t, f->size);
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
    const uint32_t cols = tiles_columns(theirs, own, w->n);
    t.spread = tiles_rounds(theirs, own, w->n, cols) > 3; /* else what is spread comes too late */
    t.order = tiles_order_of(theirs, own, w->n, w->k, cols, TILES_BAND, t.returns ? 2 : 1);
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
    const int64_t each = tiles_come_rows(g->own, g->row);
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

/* ---- by the library, or by tiles: each rank for itself, as rows come alike ---- */

/* The library has tiles of many sizes, and splits K, so the last round is not a whole one. */
static double library_rounds(int64_t high, int64_t n, int64_t cols)
{
    return (double)(high * ((n + cols - 1) / cols)) / ROUND_TILES * library_times + library_rest;
}

static double library_ns(int64_t rows, const struct rings_pieces *w)
{
    const int64_t high = (rows + TILES_ROWS - 1) / TILES_ROWS, steps = (w->k + 63) / 64;
    const bool is_odd = (w->b | w->c | (uint64_t)(w->b_stride | w->c_stride | w->a_stride) * 2) % 16;
    double best = 0;

    for (uint32_t cols = 128; cols <= 256; cols += 64) {
        const double step_ns = (double)(STEP_NS * tiles_round_percent(cols)) / 100 * (is_odd ? ODD_TIMES : 1),
                     ns = library_rounds(high, w->n, cols) * ((double)steps * step_ns + LIBRARY_ROUND_NS);
        if (best == 0 || ns < best)
            best = ns;
    }
    return best + LAUNCH_NS;
}

/* When the rows of a piece have come, from the run's begin on. */
static double come_ns(int64_t rows, uint32_t pieces, int64_t row)
{
    return (double)rows * (double)row * 2 * 1000 / LINK_BYTES_PER_US + (double)pieces * PIECE_NS;
}

/* Pieces of the other rank's rows, and of how many the library makes a product at a time. */
struct coming {
    int64_t rows, each; /* each: rows of a piece but the last */
    uint32_t pieces, products;
};

static uint32_t product_end(const struct coming *c, uint32_t product)
{
    return c->pieces * (product + 1) / c->products;
}

static int64_t rows_until(const struct coming *c, uint32_t piece)
{
    return piece == c->pieces ? c->rows : (int64_t)piece * c->each;
}

static double library_end(const struct coming *c, const struct gathering *g, const struct rings_pieces *w)
{
    double now = library_ns(g->own, w);

    for (uint32_t i = 0, from = 0; i < c->products; from = product_end(c, i), i++) {
        const uint32_t end = product_end(c, i);
        const double come = come_ns(rows_until(c, end), end, g->row);
        now = (now > come ? now : come) + library_ns(rows_until(c, end) - rows_until(c, from), w);
    }
    return now;
}

static double tiles_end(const struct coming *c, const struct gathering *g, const struct rings_pieces *w, uint32_t cols)
{
    const double round = (double)((w->k + 63) / 64) * STEP_NS * (double)tiles_round_percent(cols) / 100,
                 come = come_ns(c->rows, c->pieces, g->row) + round,
                 all = (double)tiles_rounds(g->own, g->theirs, w->n, cols) * round;

    return (come > all ? come : all) * tiles_times + LAUNCH_NS;
}

/* As many products of rows that come as take the least time. True: by the library. */
static bool library_takes(struct coming *c, const struct gathering *g, const struct rings_pieces *w, uint32_t cols)
{
    double best = 0;
    uint32_t products = 1;

    for (c->products = 1; c->products <= PRODUCTS_MOST && c->products <= (c->pieces ? c->pieces : 1); c->products++) {
        const double end = library_end(c, g, w);
        if (c->products == 1 || end < best) {
            best = end;
            products = c->products;
        }
    }
    c->products = products;
    return w->k && best < tiles_end(c, g, w, cols);
}

static void library_rows(struct flow *f, struct library *library, const struct rings_pieces *w, uint64_t from, int64_t stride,
                         int64_t rows, int64_t row)
{
    const struct library_matrix matrix = {from,   w->b,        0,    w->c + (uint64_t)(row * w->c_stride) * f->size,
                                          stride, w->b_stride, 0,    w->c_stride,
                                          rows,   w->n,        w->k, w->dtype};

    if (!f->status && rows)
        f->status = library_multiply(library, f->gpu, &matrix, f->stream, f->e);
}

/* Own rows first. */
static void library_run(struct flow *f, struct library *library, const struct rings_pieces *w, const struct gathering *g,
                        const struct coming *c, const struct tiles_call *t, int64_t first, int64_t second)
{
    library_rows(f, library, w, t->a[0], w->a_stride, g->own, first);
    flow_follow(f, f->p->begun, f->stream);
    for (uint32_t i = 0, from = 0; i < c->products && c->pieces; from = product_end(c, i), i++) {
        const uint32_t end = product_end(c, i);
        const int64_t row = rows_until(c, from);
        flow_come(f, 0, end - 1, i + 1 == c->products);
        if (i + 1 == c->products)
            flow_behind(f, f->p->joined, f->p->out, f->stream); /* so that the stream ends with a product */
        library_rows(f, library, w, t->slots + (uint64_t)(row * g->row) * f->size, g->row, rows_until(c, end) - row,
                     second + row);
    }
    if (!c->pieces)
        flow_behind(f, f->p->joined, f->p->out, f->stream);
}

/* Own rows first. The copy of own rows into `gathered` goes on beside the product, that of the other's behind it. */
static void gather_run(struct flow *f, struct library *library, const struct rings_pieces *w, const struct gathering *g)
{
    struct tiles_call t = call_of(f, w);
    const int64_t first = (f->rings.rank ? w->rows[f->other] : 0) + g->own_first,
                  second = (f->rings.rank ? 0 : w->rows[f->rings.rank]) + g->theirs_first;
    const uint64_t from = w->a + (uint64_t)(g->own_first * w->a_stride) * f->size;
    const uint32_t cols = tiles_columns(g->own, g->theirs, w->n);
    struct coming coming = {g->theirs, tiles_come_rows(g->theirs, g->row), 0, 0};

    coming.pieces = (uint32_t)((g->theirs + coming.each - 1) / coming.each);
    t.order = tiles_order_of(g->own, g->theirs, w->n, w->k, cols, TILES_GATHER_BAND, 0);
    t.come_rows = (uint32_t)coming.each;
    t.a[0] = from;
    t.a[1] = t.slots;
    t.a_stride[1] = g->row;
    t.c[0] = w->c + (uint64_t)(first * w->c_stride) * f->size;
    t.c[1] = w->c + (uint64_t)(second * w->c_stride) * f->size;
    const bool by_library = w->by_library && w->n && library_takes(&coming, g, w, cols);
    if (by_library) {
        flow_begin(f, coming.pieces > 0);
    } else if (!f->status) {
        flow_note(f, tiles_begin(&t, f->stream, gpus[f->gpu].follows && gpu_graphs_follow()), "launching a product");
        flow_behind(f, f->p->begun, f->stream, f->p->out);
    }
    rows_send(f, w, g);
    gathered_store(f, w, first, g->own, from, w->a_stride, f->p->out);
    if (by_library) {
        library_run(f, library, w, g, &coming, &t, first, second);
    } else {
        if (w->n)
            multiply(f, &t, false);
        flow_behind(f, f->p->joined, f->p->out, f->stream);
        if (g->theirs && (w->gathered || !w->n))
            flow_come(f, 0, coming.pieces - 1, true); /* the last piece, whose index it is */
    }
    gathered_store(f, w, second, g->theirs, t.slots, g->row, f->stream);
}

static void gather_by_tiles(struct flow *f, struct library *library, const struct rings_pieces *w)
{
    const int64_t own = w->rows[f->rings.rank], theirs = w->rows[f->other],
                  runs = tiles_gather_runs(own > theirs ? own : theirs, tiles_row(w->k));

    for (int64_t i = 0; i < runs; i++) {
        const int64_t own_at = own * i / runs, theirs_at = theirs * i / runs;
        const struct gathering g = {own * (i + 1) / runs - own_at, own_at, theirs * (i + 1) / runs - theirs_at, theirs_at,
                                    tiles_row(w->k)};
        f->rings.what.continues = w->continues || i > 0;
        gather_run(f, library, w, &g);
    }
}

void pieces_by_tiles(struct flow *f, struct library *library, const struct rings_pieces *what)
{
    if (what->gathers)
        gather_by_tiles(f, library, what);
    else
        sums_by_tiles(f, what);
}
