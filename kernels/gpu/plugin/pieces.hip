/* SPDX-License-Identifier: MIT
 *
 * pieces.hip - products by the vendor's library whose exchange goes on beside them, on two GPUs: gemm_reduce_scatter, gemm_all_reduce and
 * all_gather_gemm, as T3 has them (arXiv 2401.16677), without a change of the library's kernels: the other rank's rows first, each piece sent by a copy
 * engine while the next one is computed, and own rows computed onto what has arrived. And the same products in sequence, behind or before a
 * collective through rings, where there are more ranks or little to send.
 *
 *   stream      the caller's: products, and waits for what they need
 *   out         pieces to the other rank, by a copy engine, each with its word behind it
 *   in          results of the other rank (gemm_all_reduce), out of the memory for arrivals into c
 *
 * `out` and `in` branch off the caller's stream and join it again, also in a graph. A call is one run (kernels/gpu/device/exchange/rings_run.h), of a
 * kernel in front of `out`: it compares the ranks' headers, and when it has ended the other rank has ended its run before, so its memory for arrivals is
 * free. Words count the pieces of the run that have come, and that have been used, so they only grow (rings_piece_count()).
 *
 * Memory order. A copy has ended before the next kernel on its stream begins; that fences (system) and stores the word (release). Who waits for the
 * word loads it (acquire), and what follows on its stream reads. A piece that has been used is told of in the same way by a kernel behind
 * its reader.
 *
 * Why nothing deadlocks. In the order in which a rank enqueues, every wait stands behind what the other rank's wait for the same piece needs of this one:
 * so it would come to an end even if all streams were one. Every wait ends when the rank's failure epoch says so.
 */
#include <stdlib.h>

#include "kernels/gpu/device/exchange/rings_run.h"
#include "kernels/gpu/plugin/inside.h"
#include "kernels/gpu/plugin/product.h"

enum {
    TERMS,     /* the flows, each with its words: what the other rank adds to, or multiplies */
    RESULTS,   /* gemm_all_reduce: rows that are finished */
    SLOTS = 2, /* of the rank's own memory, in which terms are made */
    BEGIN_THREADS = 64,
};
static const uint64_t slot_bytes = RINGS_TERMS_BYTES / SLOTS;
static_assert(RINGS_TERMS_BYTES == LANDING_BYTES - LIBRARY_WORKSPACE, "behind the terms lies what the library uses");
static_assert(RINGS_GATHERED_MOST <= RINGS_TERMS_BYTES, "a rank's rows of what is gathered have room there");

struct pieces {
    hipStream_t out, in;
    hipEvent_t forked, begun, joined, made[SLOTS], sent[SLOTS];
};

/* ---- kernels ---- */

static __global__ void __launch_bounds__(BEGIN_THREADS) pieces_begin_kernel(GPU_PARAMETER struct rings_call c)
{
    __shared__ struct rings_run run;

    gpu_follow();
    if (rings_begin(c, &run))
        (void)rings_meet(c, &run, false, true);
    rings_end(c, run);
}

/* The run that has begun last, and whether the communicator is over. */
GPU_DEVICE uint64_t pieces_run(const struct rings_call &c, bool *over)
{
    uint64_t failed = 0, products = 0;

    gpu_load_relaxed_pair(true, rings_failure_of(c, c.rank), &failed, &products);
    *over = failed == UINT64_MAX;
    return gpu_load_relaxed(&rings_head_of(c, c.rank)->begun) / RINGS_UNITS + products;
}

static __global__ void pieces_await_kernel(GPU_PARAMETER struct rings_call c, const uint64_t *word, uint32_t pieces)
{
    struct rings_run run = {};

    run.number = pieces_run(c, &run.over);
    if (run.over)
        return;
    const bool come = rings_await(c, run, word, rings_piece_count(run.number, pieces));
    if (!come)
        gpu_store_relaxed((uint64_t *)c.failed, run.number);
    if (run.told)
        gpu_store_relaxed((uint64_t *)c.ended, (uint64_t)(uint32_t)run.number);
}

static __global__ void pieces_tell_kernel(GPU_PARAMETER struct rings_call c, uint64_t *word, uint32_t pieces)
{
    bool over = false;
    const uint64_t number = pieces_run(c, &over);

    gpu_fence_system();
    if (!over)
        gpu_store_release(word, rings_piece_count(number, pieces));
}

const void *pieces_kernel(void)
{
    return (const void *)pieces_begin_kernel;
}

/* ---- streams and events ---- */

int pieces_open(int gpu, struct pieces **out, struct error *e)
{
    struct pieces *p = (struct pieces *)calloc(1, sizeof(*p));
    hipEvent_t *events[] = {&p->forked, &p->begun, &p->joined, &p->made[0], &p->made[1], &p->sent[0], &p->sent[1]};
    hipError_t status = hipSuccess;

    if (!p)
        return error_set(e, -ENOMEM, "%s GPU %d: no memory for products in pieces", GPU_KIND, gpu);
    for (hipStream_t *stream : {&p->out, &p->in})
        if (status == hipSuccess)
            status = hipStreamCreateWithFlags(stream, hipStreamNonBlocking);
    for (hipEvent_t *event : events)
        if (status == hipSuccess)
            status = hipEventCreateWithFlags(event, hipEventDisableTiming);
    if (status != hipSuccess) {
        pieces_close(p);
        return gpu_error(e, gpu, "streams for products in pieces", status);
    }
    *out = p;
    return 0;
}

void pieces_close(struct pieces *p)
{
    if (!p)
        return;
    for (hipStream_t stream : {p->out, p->in})
        if (stream)
            (void)hipStreamDestroy(stream);
    for (hipEvent_t event : {p->forked, p->begun, p->joined, p->made[0], p->made[1], p->sent[0], p->sent[1]})
        if (event)
            (void)hipEventDestroy(event);
    free(p);
}

/* ---- a call ---- */

/* A call that is being enqueued. After the first error nothing more is. */
struct flow {
    struct pieces *p;
    struct library *library;
    const struct rings_pieces *what;
    struct rings_call rings;
    hipStream_t stream;
    int gpu;
    uint32_t other; /* the other rank */
    uint64_t size;  /* of an element */
    struct error *e;
    int status;
};

/* Rows that travel in pieces, of `row` elements each, which lie as far apart in memory for arrivals. */
struct pieces_cut {
    int64_t rows, row;
    uint32_t count, places;   /* of arrivals */
    uint64_t place_bytes, at; /* at: where the places begin, in the receiver's memory */
};

static int64_t cut_at(const struct pieces_cut *cut, uint32_t piece)
{
    return cut->rows * piece / (cut->count ? cut->count : 1);
}

/* As few pieces as have room in a place; but four, if they are not too small: the first one's product and the last one's way are not hidden. */
static struct pieces_cut cut_of(int64_t rows, int64_t row, uint64_t size, uint32_t places, uint64_t bytes, uint64_t at,
                                uint32_t wanted)
{
    struct pieces_cut cut = {rows, row, 0, places, bytes / places / 256 * 256, at};
    const uint64_t all = (uint64_t)rows * (uint64_t)row * size;
    const int64_t fit = row ? (int64_t)(cut.place_bytes / ((uint64_t)row * size)) : rows;

    if (all == 0 || fit == 0)
        return cut;
    const int64_t least = (rows + fit - 1) / fit, large = (int64_t)(all / RINGS_PIECES_LEAST);
    int64_t count = large < (int64_t)wanted ? large : (int64_t)wanted;
    count = count > least ? count : least;
    while ((rows + count - 1) / count > fit)
        count++;
    cut.count = (uint32_t)(count < rows ? count : rows);
    return cut;
}

static void note(struct flow *f, hipError_t status, const char *doing)
{
    if (!f->status && status != hipSuccess)
        f->status = gpu_error(f->e, f->gpu, doing, status);
}

static void behind(struct flow *f, hipEvent_t event, hipStream_t first, hipStream_t second)
{
    if (!f->status)
        note(f, hipEventRecord(event, first), "products in pieces");
    if (!f->status)
        note(f, hipStreamWaitEvent(second, event, 0), "products in pieces");
}

static void kernel(struct flow *f, const void *function, uint32_t threads, void *arguments[], hipStream_t stream)
{
    if (!f->status)
        note(f, gpu_kernel_launch(function, 1, threads, arguments, 0, stream, false), "products in pieces");
}

static void await(struct flow *f, hipStream_t stream, const uint64_t *word, uint32_t pieces)
{
    void *arguments[] = {&f->rings, &word, &pieces};

    kernel(f, (const void *)pieces_await_kernel, 1, arguments, stream);
}

static void tell(struct flow *f, hipStream_t stream, uint64_t *word, uint32_t pieces)
{
    void *arguments[] = {&f->rings, &word, &pieces};

    kernel(f, (const void *)pieces_tell_kernel, 1, arguments, stream);
}

static struct rings_head *head(const struct flow *f, uint32_t rank)
{
    return (struct rings_head *)f->rings.rings[rank];
}

/* Rows, which lie apart by their strides. */
static void copy(struct flow *f, uint64_t to, int64_t to_stride, uint64_t from, int64_t from_stride, int64_t rows, int64_t row,
                 hipStream_t stream)
{
    const uint64_t wide = (uint64_t)row * f->size;

    if (f->status || rows == 0 || row == 0)
        return;
    if (rows == 1 || (to_stride == row && from_stride == row))
        note(f, hipMemcpyAsync((void *)to, (const void *)from, wide * (uint64_t)rows, hipMemcpyDeviceToDevice, stream),
             "a copy");
    else
        note(f,
             hipMemcpy2DAsync((void *)to, (uint64_t)to_stride * f->size, (const void *)from, (uint64_t)from_stride * f->size,
                              wide, (uint64_t)rows, hipMemcpyDeviceToDevice, stream),
             "a copy");
}

/* d = a . b, and c if it is there: `rows` rows, of a from row a_row on. */
static void multiply(struct flow *f, uint64_t a, int64_t a_stride, int64_t rows, uint64_t c, int64_t c_stride, uint64_t d,
                     int64_t d_stride)
{
    const struct rings_pieces *w = f->what;
    const struct library_matrix matrix = {a, w->b, c, d, a_stride, w->b_stride, c_stride, d_stride, rows, w->n, w->k, w->dtype};

    if (!f->status)
        f->status = library_multiply(f->library, f->gpu, &matrix, f->stream, f->e);
}

static uint64_t a_at(const struct flow *f, int64_t row)
{
    return f->what->a + (uint64_t)(row * f->what->a_stride) * f->size;
}

static uint64_t c_at(const struct flow *f, int64_t row)
{
    return f->what->c + (uint64_t)(row * f->what->c_stride) * f->size;
}

/* Where this rank makes terms. */
static uint64_t terms(const struct flow *f)
{
    return f->rings.rings[f->rings.rank] + rings_landing_at(f->rings.nranks);
}

/* Where a piece lies in a rank's memory for arrivals. */
static uint64_t place(const struct flow *f, uint32_t rank, const struct pieces_cut *cut, uint32_t piece)
{
    return f->rings.rings[rank] + rings_arrivals_at(f->rings.nranks) + cut->at + piece % cut->places * cut->place_bytes;
}

/* Sends a piece, whose rows are there: behind those before it, when its place is free. */
static void send(struct flow *f, const struct pieces_cut *cut, uint32_t flow, uint32_t piece, uint64_t from,
                 int64_t from_stride)
{
    if (piece >= cut->places)
        await(f, f->p->out, &head(f, f->rings.rank)->used[flow], piece - cut->places + 1);
    copy(f, place(f, f->other, cut, piece), cut->row, from, from_stride, cut_at(cut, piece + 1) - cut_at(cut, piece),
         f->what->gathers ? f->what->k : f->what->n, f->p->out);
    tell(f, f->p->out, &head(f, f->other)->come[flow], piece + 1);
}

/* A piece has been used: its place is free, if another one is to come there. */
static void used(struct flow *f, const struct pieces_cut *cut, uint32_t flow, uint32_t piece, hipStream_t stream)
{
    if (piece + cut->places < cut->count)
        tell(f, stream, &head(f, f->other)->used[flow], piece + 1);
}

/* The run begins, beside what the caller's stream does next. */
static void begin(struct flow *f)
{
    void *arguments[] = {&f->rings};

    behind(f, f->p->forked, f->stream, f->p->out);
    kernel(f, (const void *)pieces_begin_kernel, BEGIN_THREADS, arguments, f->p->out);
    if (!f->status)
        note(f, hipEventRecord(f->p->begun, f->p->out), "products in pieces");
}

/* ---- sums: gemm_reduce_scatter, gemm_all_reduce ---- */

struct sums {
    struct pieces_cut terms_out, terms_in, results_out, results_in;
    int64_t own, theirs; /* the first of this rank's rows; of the other's */
};

static void term_send(struct flow *f, const struct sums *s, uint32_t i)
{
    const int64_t row = cut_at(&s->terms_out, i), rows = cut_at(&s->terms_out, i + 1) - row;
    const uint64_t slot = terms(f) + i % SLOTS * slot_bytes;

    if (i >= SLOTS && !f->status)
        note(f, hipStreamWaitEvent(f->stream, f->p->sent[i % SLOTS], 0), "products in pieces");
    multiply(f, a_at(f, s->theirs + row), f->what->a_stride, rows, 0, 0, slot, f->what->n);
    behind(f, f->p->made[i % SLOTS], f->stream, f->p->out);
    send(f, &s->terms_out, TERMS, i, slot, f->what->n);
    if (!f->status)
        note(f, hipEventRecord(f->p->sent[i % SLOTS], f->p->out), "products in pieces");
}

/* Own rows, onto what has arrived. */
static void term_take(struct flow *f, const struct sums *s, uint32_t i)
{
    const int64_t row = cut_at(&s->terms_in, i), rows = cut_at(&s->terms_in, i + 1) - row;

    await(f, f->stream, &head(f, f->rings.rank)->come[TERMS], i + 1);
    multiply(f, a_at(f, s->own + row), f->what->a_stride, rows, place(f, f->rings.rank, &s->terms_in, i), f->what->n,
             c_at(f, f->what->scatters ? row : s->own + row), f->what->c_stride);
    used(f, &s->terms_in, TERMS, i, f->stream);
    if (f->what->scatters)
        return;
    behind(f, f->p->made[0], f->stream, f->p->out);
    send(f, &s->results_out, RESULTS, i, c_at(f, s->own + row), f->what->c_stride);
}

static void result_take(struct flow *f, const struct sums *s, uint32_t i, hipStream_t stream)
{
    const int64_t row = cut_at(&s->results_in, i), rows = cut_at(&s->results_in, i + 1) - row;

    await(f, stream, &head(f, f->rings.rank)->come[RESULTS], i + 1);
    copy(f, c_at(f, s->theirs + row), f->what->c_stride, place(f, f->rings.rank, &s->results_in, i), f->what->n, rows,
         f->what->n, stream);
    used(f, &s->results_in, RESULTS, i, stream);
}

static void sums_cut(struct flow *f, struct sums *s)
{
    const struct rings_pieces *w = f->what;
    const uint64_t bytes = w->scatters ? RINGS_ARRIVALS_BYTES : RINGS_ARRIVALS_BYTES / 2;
    const int64_t own = w->rows[f->rings.rank], theirs = w->rows[f->other];

    s->own = f->rings.rank ? theirs : 0;
    s->theirs = f->rings.rank ? 0 : own;
    s->terms_out = cut_of(theirs, w->n, f->size, 4, bytes, 0, 4);
    s->terms_in = cut_of(own, w->n, f->size, 4, bytes, 0, 4);
    s->results_out = s->terms_in;
    s->results_in = s->terms_out;
    s->results_out.at = s->results_in.at = bytes;
}

static void sums_in_pieces(struct flow *f)
{
    struct sums s;

    sums_cut(f, &s);
    begin(f);
    const uint32_t most = s.terms_out.count > s.terms_in.count ? s.terms_out.count : s.terms_in.count;
    for (uint32_t i = 0; i <= most; i++) {
        if (i < s.terms_out.count)
            term_send(f, &s, i);
        if (i == 0 && !f->status)
            note(f, hipStreamWaitEvent(f->stream, f->p->begun, 0), "products in pieces");
        if (i == 0 && !f->what->scatters && !f->status)
            note(f, hipStreamWaitEvent(f->p->in, f->p->begun, 0), "products in pieces");
        const bool last = f->what->scatters && i == s.terms_in.count;
        if (last)
            behind(f, f->p->joined, f->p->out, f->stream); /* so that the stream ends with a product */
        if (i > 0 && i <= s.terms_in.count)
            term_take(f, &s, i - 1);
        if (i > 0 && !f->what->scatters && i < s.results_in.count) /* the last one below, so that the stream ends with a copy */
            result_take(f, &s, i - 1, f->p->in);
    }
    if (f->what->scatters && s.terms_in.count == most)
        return;
    behind(f, f->p->joined, f->p->out, f->stream);
    if (f->what->scatters)
        return;
    behind(f, f->p->forked, f->p->in, f->stream);
    if (s.results_in.count)
        result_take(f, &s, s.results_in.count - 1, f->stream);
}

/* ---- all_gather_gemm ---- */

static void gather_in_pieces(struct flow *f)
{
    const struct rings_pieces *w = f->what;
    const int64_t align = (int64_t)(16 / f->size), row = (w->k + align - 1) / align * align;
    const int64_t own = w->rows[f->rings.rank], theirs = w->rows[f->other], at = f->rings.rank ? theirs : 0,
                  its = f->rings.rank ? 0 : own;
    const struct pieces_cut out = cut_of(own, row, f->size, 2, RINGS_ARRIVALS_BYTES, 0, 1),
                            in = cut_of(theirs, row, f->size, 2, RINGS_ARRIVALS_BYTES, 0, 1);
    uint32_t sent = 0;

    begin(f);
    for (; sent < out.count && sent < out.places; sent++)
        send(f, &out, TERMS, sent, a_at(f, cut_at(&out, sent)), w->a_stride);
    if (w->gathered)
        copy(f, w->gathered + (uint64_t)(at * w->gathered_stride) * f->size, w->gathered_stride, w->a, w->a_stride, own, w->k,
             f->stream);
    multiply(f, w->a, w->a_stride, own, 0, 0, c_at(f, at), w->c_stride);
    if (!f->status)
        note(f, hipStreamWaitEvent(f->stream, f->p->begun, 0), "products in pieces");
    for (uint32_t i = 0; i < in.count || sent < out.count; i++) {
        if (i + 1 >= in.count && sent >= out.count)
            behind(f, f->p->joined, f->p->out, f->stream);
        if (i < in.count) {
            const int64_t first = cut_at(&in, i), rows = cut_at(&in, i + 1) - first;
            const uint64_t come = place(f, f->rings.rank, &in, i);
            await(f, f->stream, &head(f, f->rings.rank)->come[TERMS], i + 1);
            if (w->gathered)
                copy(f, w->gathered + (uint64_t)((its + first) * w->gathered_stride) * f->size, w->gathered_stride, come, row,
                     rows, w->k, f->stream);
            multiply(f, come, row, rows, 0, 0, c_at(f, its + first), w->c_stride);
            used(f, &in, TERMS, i, f->stream);
        }
        if (sent < out.count) {
            send(f, &out, TERMS, sent, a_at(f, cut_at(&out, sent)), w->a_stride);
            sent++;
        }
    }
    behind(f, f->p->joined, f->p->out, f->stream);
}

/* ---- in sequence ---- */

static void exchange(struct flow *f, uint32_t in_share, uint32_t out_share, uint64_t in, int64_t in_elements, uint64_t out,
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

/* Parts of the rows, of which each has some of every rank's, have room in this rank's own memory. */
static void scatter_in_sequence(struct flow *f)
{
    const struct rings_pieces *w = f->what;
    const uint64_t to = terms(f), row = (uint64_t)w->n * f->size;
    const bool dense = w->c_stride == w->n;
    const int64_t runs = rings_pieces_runs(w, f->rings.nranks);

    for (int64_t i = 0; i < runs; i++) {
        int64_t rows = 0, before = 0, own = 0, own_first = 0;
        for (uint32_t r = 0; r < f->rings.nranks; r++) {
            const int64_t first = w->rows[r] * i / runs, some = w->rows[r] * (i + 1) / runs - first;
            multiply(f, a_at(f, before + first), w->a_stride, some, 0, 0, to + (uint64_t)rows * row, w->n);
            own = r == f->rings.rank ? some : own;
            own_first = r == f->rings.rank ? first : own_first;
            rows += some;
            before += w->rows[r];
        }
        const uint64_t out = dense ? c_at(f, own_first) : to + (uint64_t)rows * row;
        f->rings.what.continues = i > 0;
        exchange(f, VECTOR_ALL, VECTOR_OWN, to, rows * w->n, out, own * w->n);
        if (!dense)
            copy(f, c_at(f, own_first), w->c_stride, out, w->n, own, w->n, f->stream);
    }
}

/* Ranks whose c's rows lie apart have the same runs as those that need no other memory. */
static void sum_in_sequence(struct flow *f)
{
    const struct rings_pieces *w = f->what;
    const bool dense = w->c_stride == w->n;
    const int64_t runs = rings_pieces_runs(w, f->rings.nranks);

    if (dense)
        multiply(f, w->a, w->a_stride, w->m, 0, 0, w->c, w->n);
    for (int64_t i = 0; i < runs; i++) {
        const int64_t row = w->m * i / runs, rows = w->m * (i + 1) / runs - row;
        const uint64_t to = dense ? c_at(f, row) : terms(f);
        if (!dense)
            multiply(f, a_at(f, row), w->a_stride, rows, 0, 0, to, w->n);
        f->rings.what.continues = i > 0;
        exchange(f, VECTOR_ALL, VECTOR_ALL, to, rows * w->n, to, rows * w->n);
        if (!dense)
            copy(f, c_at(f, row), w->c_stride, to, w->n, rows, w->n, f->stream);
    }
}

/* A as a whole lies in `gathered`, or in this rank's memory for arrivals, where no other rank stores before this one begins another run; but pieces of
 * a run that was given up may come until then. So what is made before the run does not lie there. */
static void gather_in_sequence(struct flow *f)
{
    const struct rings_pieces *w = f->what;
    const uint64_t memory = f->rings.rings[f->rings.rank] + rings_arrivals_at(f->rings.nranks);
    const int64_t own = w->rows[f->rings.rank];
    const bool kept = w->gathered && w->gathered_stride == w->k;
    const uint64_t every = kept ? w->gathered : memory;
    uint64_t from = w->a;

    if (w->a_stride != w->k && own > 1) {
        from = terms(f);
        copy(f, from, w->k, w->a, w->a_stride, own, w->k, f->stream);
    }
    exchange(f, VECTOR_OWN, VECTOR_ALL, from, own * w->k, every, w->m * w->k);
    if (w->gathered && !kept)
        copy(f, w->gathered, w->gathered_stride, every, w->k, w->m, w->k, f->stream);
    multiply(f, every, w->k, w->m, 0, 0, w->c, w->c_stride);
}

/* ---- the call ---- */

/* There are no elements: the ranks compare what they do. */
static void nothing_move(struct flow *f)
{
    begin(f);
    behind(f, f->p->joined, f->p->out, f->stream);
}

int pieces_start(struct products *products, int gpu, const struct rings_call *rings, const struct rings_pieces *what,
                 hipStream_t stream, struct error *e)
{
    struct flow f = {products->pieces,
                     products->library,
                     what,
                     *rings,
                     stream,
                     gpu,
                     rings->rank ^ 1u,
                     what->dtype == FCC_F32 ? 4u : 2u,
                     e,
                     0};
    struct gpu_collective *c = &f.rings.what;

    if (!products->library)
        return error_set(e, -EOPNOTSUPP, "%s GPU %d: cuBLAS is not there on all ranks", GPU_KIND, gpu);
    *c = {};
    c->op = what->op;
    c->dtype = what->dtype;
    c->element_bytes = (uint32_t)f.size;
    c->number = what->number;
    c->numbers = rings_pieces_numbers(what, rings->nranks);
    c->root = what->sequential;
    c->in_share = c->out_share = VECTOR_ALL;
    if (what->sequential && what->m && (what->n || what->gathers)) {
        (what->gathers ? gather_in_sequence : what->scatters ? scatter_in_sequence : sum_in_sequence)(&f);
        return f.status;
    }
    if (what->sequential) { /* as of the others, if they have elements, the run's are M * N, or M * K */
        nothing_move(&f);
        return f.status;
    }
    c->in_elements = c->out_elements = what->gathers ? what->k : what->n;
    c->rows = (uint32_t)what->m;
    (what->gathers ? gather_in_pieces : sums_in_pieces)(&f);
    return f.status;
}
