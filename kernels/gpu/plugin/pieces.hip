/* SPDX-License-Identifier: MIT
 *
 * pieces.hip - products by the vendor's library whose exchange goes on beside them, on two GPUs: gemm_reduce_scatter, gemm_all_reduce and
 * all_gather_gemm, as T3 has them (arXiv 2401.16677), without a change of the library's kernels: the other rank's rows first, each piece sent by a copy
 * engine (flow.h) while the next one is computed, and own rows computed onto what has arrived. And the same products in sequence, behind or before a
 * collective, where there are more ranks or little to send.
 */
#include "kernels/gpu/device/tiles/tiles_order.h"
#include "kernels/gpu/plugin/flow.h"
#include "kernels/gpu/plugin/inside.h"
#include "kernels/gpu/plugin/product.h"

enum {
    TERMS,           /* the flows: what the other rank adds to, or multiplies */
    RESULTS,         /* gemm_all_reduce: rows that are finished */
    TILE_ROWS = 128, /* of most of the library's kernels */
    TILE_COLS = 256,
    /* Tiles at a time: the multiprocessors of an H100 or H200. On another GPU the same holds, with pieces that are chosen less well; all ranks choose alike. */
    TILES = 132,
    MORE_PIECES = 3, /* than there must be, at most */
};
static_assert(2 * RINGS_GATHERED_MOST <= FLOW_OWN_BYTES, "a whole A, and this rank's");
static_assert(RINGS_TERMS_BYTES <= FLOW_OWN_BYTES, "a run's terms");
static const uint64_t arrivals_bytes = TILES_ARRIVALS_BYTES; /* what is behind them are words of products by tiles */
static const uint64_t slot_bytes = FLOW_OWN_BYTES / FLOW_PLACES;

struct call : flow {
    const struct products *products;
    const struct rings_pieces *what;
};

/* How many times all multiprocessors multiply a tile, for all pieces; what is between two products takes about a fifth of that. */
static double cut_rounds(const struct flow_cut *cut, int64_t cols)
{
    double sum = 0;

    for (uint32_t i = 0; i < cut->count; i++) {
        const int64_t tiles = (flow_rows(cut, i) + TILE_ROWS - 1) / TILE_ROWS * ((cols + TILE_COLS - 1) / TILE_COLS);
        sum += (double)((tiles + TILES - 1) / TILES) + 0.2;
    }
    return sum;
}

/* As few pieces as have room in a place, of a product two at least, so that one travels while the next is computed; or some more, if the library
 * then fills the GPU better. What both ranks know decides. cols: of the product; 0: these rows are none's. */
static struct flow_cut cut_of(int64_t rows, int64_t row, uint64_t size, uint64_t bytes, uint64_t at, int64_t cols)
{
    struct flow_cut cut = {rows, row, 0, TILE_ROWS, bytes / FLOW_PLACES / 256 * 256, at};

    if (rows == 0 || row == 0)
        return cut;
    cut.count = cols && rows > TILE_ROWS ? 2 : 1;
    while (!flow_fits(&cut, size))
        cut.count++;
    struct flow_cut best = cut;
    for (uint32_t more = 0; cols && more < MORE_PIECES; more++) {
        cut.count++;
        if (flow_fits(&cut, size) && cut_rounds(&cut, cols) < cut_rounds(&best, cols))
            best = cut;
    }
    return best;
}

/* d = a . b, and c if it is there: `rows` rows. */
static void multiply(struct call *f, uint64_t a, int64_t a_stride, int64_t rows, uint64_t c, int64_t c_stride, uint64_t d,
                     int64_t d_stride)
{
    const struct rings_pieces *w = f->what;
    const struct library_matrix matrix = {a, w->b, c, d, a_stride, w->b_stride, c_stride, d_stride, rows, w->n, w->k, w->dtype};

    if (!f->status)
        f->status = library_multiply(f->products->library, f->gpu, &matrix, f->stream, f->e);
}

static uint64_t a_at(const struct call *f, int64_t row)
{
    return f->what->a + (uint64_t)(row * f->what->a_stride) * f->size;
}

static uint64_t c_at(const struct call *f, int64_t row)
{
    return f->what->c + (uint64_t)(row * f->what->c_stride) * f->size;
}

/* ---- sums: gemm_reduce_scatter, gemm_all_reduce ---- */

struct sums {
    struct flow_cut terms_out, terms_in, results_out, results_in;
    int64_t own, theirs; /* the first of this rank's rows; of the other's */
};

static void sums_cut(struct call *f, struct sums *s)
{
    const struct rings_pieces *w = f->what;
    const uint64_t bytes = w->scatters ? arrivals_bytes : arrivals_bytes / 2;
    const int64_t own = w->rows[f->rings.rank], theirs = w->rows[f->other];

    s->own = f->rings.rank ? theirs : 0;
    s->theirs = f->rings.rank ? 0 : own;
    s->terms_out = cut_of(theirs, w->n, f->size, bytes, 0, w->n);
    s->terms_in = cut_of(own, w->n, f->size, bytes, 0, w->n);
    s->results_out = s->terms_in;
    s->results_in = s->terms_out;
    s->results_out.at = s->results_in.at = bytes;
}

static void term_send(struct call *f, const struct sums *s, uint32_t i)
{
    const uint64_t slot = (uint64_t)f->p->own + i % FLOW_PLACES * slot_bytes;

    if (i >= FLOW_PLACES)
        flow_follow(f, f->p->sent[i % FLOW_PLACES], f->stream);
    multiply(f, a_at(f, s->theirs + flow_at(&s->terms_out, i)), f->what->a_stride, flow_rows(&s->terms_out, i), 0, 0, slot,
             f->what->n);
    flow_send(f, &s->terms_out, TERMS, i, slot, f->what->n, f->what->n);
    flow_record(f, f->p->sent[i % FLOW_PLACES], f->p->out);
}

/* Own rows, onto what has arrived. */
static void term_take(struct call *f, const struct sums *s, uint32_t i)
{
    const int64_t row = flow_at(&s->terms_in, i), to = f->what->scatters ? row : s->own + row;

    flow_come(f, TERMS, i, f->what->scatters && i + 1 == s->terms_in.count);
    multiply(f, a_at(f, s->own + row), f->what->a_stride, flow_rows(&s->terms_in, i),
             flow_place(f, f->rings.rank, &s->terms_in, i), f->what->n, c_at(f, to), f->what->c_stride);
    flow_used(f, &s->terms_in, TERMS, i, f->stream);
    if (!f->what->scatters)
        flow_send(f, &s->results_out, RESULTS, i, c_at(f, to), f->what->c_stride, f->what->n);
}

static void result_take(struct call *f, const struct sums *s, uint32_t i, hipStream_t stream)
{
    flow_come(f, RESULTS, i, i + 1 == s->results_in.count);
    if (stream != f->stream)
        flow_behind(f, f->p->forked, f->stream, stream);
    flow_copy(f, c_at(f, s->theirs + flow_at(&s->results_in, i)), f->what->c_stride,
              flow_place(f, f->rings.rank, &s->results_in, i), f->what->n, flow_rows(&s->results_in, i), f->what->n, stream);
    flow_used(f, &s->results_in, RESULTS, i, stream);
}

/* The results that are left when all products have been made: the stream ends with the last one's copy. */
static void results_end(struct call *f, const struct sums *s)
{
    const uint32_t count = s->results_in.count;

    for (uint32_t i = count < 2 ? 0 : count - 2; i < count; i++) {
        if (i + 1 == count && count > 2)
            flow_behind(f, f->p->joined, f->p->in, f->stream);
        result_take(f, s, i, f->stream);
    }
}

/* Results are taken two pieces after they could have been made, so that the stream finds them there. */
static void sums_in_pieces(struct call *f)
{
    struct sums s;
    const bool scatters = f->what->scatters;

    sums_cut(f, &s);
    flow_begin(f, (scatters ? s.terms_in.count : s.results_in.count) > 0);
    const uint32_t most = s.terms_out.count > s.terms_in.count ? s.terms_out.count : s.terms_in.count;
    for (uint32_t i = 0; i <= most; i++) {
        if (i < s.terms_out.count)
            term_send(f, &s, i);
        if (i == 0)
            flow_follow(f, f->p->begun, f->stream);
        if (scatters && i == s.terms_in.count)
            flow_behind(f, f->p->joined, f->p->out, f->stream); /* so that the stream ends with a product */
        if (i > 0 && i <= s.terms_in.count)
            term_take(f, &s, i - 1);
        if (i > 1 && !scatters && i < s.results_in.count)
            result_take(f, &s, i - 2, f->p->in);
    }
    if (!scatters || s.terms_in.count < most)
        flow_behind(f, f->p->joined, f->p->out, f->stream);
    if (!scatters)
        results_end(f, &s);
}

/* ---- all_gather_gemm ---- */

struct gather {
    struct flow_cut out, in;
    int64_t own, theirs; /* the first of this rank's rows; of the other's */
};

/* Own rows, from where they lie. */
static void row_send(struct call *f, const struct gather *g, uint32_t i)
{
    flow_send(f, &g->out, TERMS, i, a_at(f, flow_at(&g->out, i)), f->what->a_stride, f->what->k);
}

/* Rows of A, which are at hand: into `gathered`, if it is there, and multiplied. */
static void rows_multiply(struct call *f, uint64_t from, int64_t stride, int64_t row, int64_t rows)
{
    const struct rings_pieces *w = f->what;

    if (w->gathered)
        flow_copy(f, w->gathered + (uint64_t)(row * w->gathered_stride) * f->size, w->gathered_stride, from, stride, rows, w->k,
                  f->stream);
    multiply(f, from, stride, rows, 0, 0, c_at(f, row), w->c_stride);
}

static void gather_in_pieces(struct call *f)
{
    const struct rings_pieces *w = f->what;
    const int64_t align = (int64_t)(16 / f->size), row = (w->k + align - 1) / align * align;
    const int64_t own = w->rows[f->rings.rank], theirs = w->rows[f->other];
    const struct gather g = {cut_of(own, row, f->size, arrivals_bytes, 0, 0),
                             cut_of(theirs, row, f->size, arrivals_bytes, 0, 0), f->rings.rank ? theirs : 0,
                             f->rings.rank ? 0 : own};
    uint32_t sent = 0;

    flow_begin(f, g.in.count > 0);
    while (sent < g.out.count && sent < FLOW_PLACES)
        row_send(f, &g, sent++);
    rows_multiply(f, w->a, w->a_stride, g.own, own);
    flow_follow(f, f->p->begun, f->stream);
    for (uint32_t i = 0; i < g.in.count || sent < g.out.count; i++) {
        if (i + 1 == g.in.count && sent >= g.out.count)
            flow_behind(f, f->p->joined, f->p->out, f->stream); /* so that the stream ends with a product */
        if (i < g.in.count) {
            flow_come(f, TERMS, i, i + 1 == g.in.count);
            rows_multiply(f, flow_place(f, f->rings.rank, &g.in, i), row, g.theirs + flow_at(&g.in, i), flow_rows(&g.in, i));
            flow_used(f, &g.in, TERMS, i, f->stream);
        }
        if (sent < g.out.count)
            row_send(f, &g, sent++);
    }
    flow_behind(f, f->p->joined, f->p->out, f->stream);
}

/* ---- in sequence ---- */

static void exchange(struct call *f, uint32_t in_share, uint32_t out_share, uint64_t in, int64_t in_elements, uint64_t out,
                     int64_t out_elements)
{
    struct gpu_collective *c = &f->rings.what;

    c->in_share = in_share;
    c->out_share = out_share;
    c->reduces = !f->what->gathers;
    c->in = in;
    c->out = out;
    c->in_elements = in_elements;
    c->out_elements = out_elements;
    if (!f->status)
        f->status = rings_start(f->gpu, &f->rings, f->stream, f->e);
}

/* In parts of the rows that have room in this rank's own memory, each with some rows of every rank. Behind it lie results whose rows do not lie side by
 * side in c. */
static void scatter_in_sequence(struct call *f)
{
    const struct rings_pieces *w = f->what;
    const uint64_t to = (uint64_t)f->p->own, row = (uint64_t)w->n * f->size;
    const bool dense = w->c_stride == w->n;
    const int64_t parts = rings_pieces_runs(w, f->rings.nranks);

    for (int64_t i = 0; i < parts; i++) {
        int64_t rows = 0, before = 0, own = 0, own_first = 0;
        for (uint32_t r = 0; r < f->rings.nranks; r++) {
            const int64_t first = w->rows[r] * i / parts, some = w->rows[r] * (i + 1) / parts - first;
            if (parts > 1)
                multiply(f, a_at(f, before + first), w->a_stride, some, 0, 0, to + (uint64_t)rows * row, w->n);
            own = r == f->rings.rank ? some : own;
            own_first = r == f->rings.rank ? first : own_first;
            rows += some;
            before += w->rows[r];
        }
        if (parts == 1)
            multiply(f, w->a, w->a_stride, w->m, 0, 0, to, w->n);
        const uint64_t out = dense ? c_at(f, own_first) : to + (uint64_t)rows * row;
        f->rings.what.continues = w->continues || i > 0;
        exchange(f, VECTOR_ALL, VECTOR_OWN, to, rows * w->n, out, own * w->n);
        if (!dense)
            flow_copy(f, c_at(f, own_first), w->c_stride, out, w->n, own, w->n, f->stream);
    }
}

/* Ranks whose c's rows lie apart have the same runs as those that need no other memory. */
static void sum_in_sequence(struct call *f)
{
    const struct rings_pieces *w = f->what;
    const bool dense = w->c_stride == w->n;
    const int64_t runs = rings_pieces_runs(w, f->rings.nranks);

    if (dense)
        multiply(f, w->a, w->a_stride, w->m, 0, 0, w->c, w->n);
    for (int64_t i = 0; i < runs; i++) {
        const int64_t row = w->m * i / runs, rows = w->m * (i + 1) / runs - row;
        const uint64_t to = dense ? c_at(f, row) : (uint64_t)f->p->own;
        if (!dense)
            multiply(f, a_at(f, row), w->a_stride, rows, 0, 0, to, w->n);
        f->rings.what.continues = w->continues || i > 0;
        exchange(f, VECTOR_ALL, VECTOR_ALL, to, rows * w->n, to, rows * w->n);
        if (!dense)
            flow_copy(f, c_at(f, row), w->c_stride, to, w->n, rows, w->n, f->stream);
    }
}

/* A as a whole lies in `gathered`, or in this rank's own memory; behind it a, if its rows do not lie side by side. */
static void gather_in_sequence(struct call *f)
{
    const struct rings_pieces *w = f->what;
    const uint64_t memory = (uint64_t)f->p->own;
    const int64_t own = w->rows[f->rings.rank];
    const bool kept = w->gathered && w->gathered_stride == w->k;
    const uint64_t every = kept ? w->gathered : memory;
    uint64_t from = w->a;

    if (w->a_stride != w->k && own > 1) {
        from = memory + RINGS_GATHERED_MOST;
        flow_copy(f, from, w->k, w->a, w->a_stride, own, w->k, f->stream);
    }
    exchange(f, VECTOR_OWN, VECTOR_ALL, from, own * w->k, every, w->m * w->k);
    if (w->gathered && !kept)
        flow_copy(f, w->gathered, w->gathered_stride, every, w->k, w->m, w->k, f->stream);
    multiply(f, every, w->k, w->m, 0, 0, w->c, w->c_stride);
}

/* ---- the call ---- */

/* There are no elements: the ranks compare what they do. */
static void nothing_move(struct call *f)
{
    flow_begin(f, false);
    flow_behind(f, f->p->joined, f->p->out, f->stream);
}

int pieces_start(struct products *products, int gpu, const struct rings_call *rings, const struct rings_pieces *what,
                 hipStream_t stream, struct error *e)
{
    struct call f = {flow_of(products->flows, gpu, rings, what->dtype == FCC_F32 ? 4 : 2, stream, e), products, what};
    struct gpu_collective *c = &f.rings.what;

    if (!products->library)
        return error_set(e, -EOPNOTSUPP, "%s GPU %d: cuBLAS is not there on all ranks", GPU_KIND, gpu);
    flow_own(&f);
    *c = {};
    c->op = what->op;
    c->dtype = what->dtype;
    c->element_bytes = (uint32_t)f.size;
    c->number = what->number;
    c->numbers = rings_pieces_numbers(what, rings->nranks);
    c->root = what->sequential;
    c->continues = what->continues;
    c->in_share = c->out_share = VECTOR_ALL;
    const bool in_sequence = what->sequential == PIECES_SEQUENCE;
    if (in_sequence && what->m && (what->n || what->gathers)) {
        (what->gathers ? gather_in_sequence : what->scatters ? scatter_in_sequence : sum_in_sequence)(&f);
        return f.status;
    }
    if (in_sequence) { /* as of the others, if they have elements, the run's are M * N, or M * K */
        nothing_move(&f);
        return f.status;
    }
    c->in_elements = c->out_elements = what->gathers ? what->k : what->n;
    c->rows = (uint32_t)what->m;
    if (what->sequential == PIECES_TILES)
        pieces_by_tiles(&f, products->library, what);
    else
        (what->gathers ? gather_in_pieces : sums_in_pieces)(&f);
    return f.status;
}
