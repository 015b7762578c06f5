/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_pieces.c - products in pieces on fake GPUs: their runs have the headers that kernels/gpu/plugin/pieces.hip gives them, so ranks hear the same.
 * What is exchanged goes through rings, in one step: in sequence, a collective of rounded terms; in pieces, all of each rank's terms in f32, of which the
 * receiver rounds those that would have come rounded.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/gpu/device/tiles/tiles_order.h"
#include "kernels/plan/dtype.h"
#include "tests/bed/unwatched.h"
#include "tests/fake_gpu/fake_gpu_rings.h"

static size_t element_bytes(const struct rings_pieces *p)
{
    return p->dtype == FCC_F32 ? 4 : 2;
}

static bool in_sequence(const struct rings_pieces *p)
{
    return p->sequential == PIECES_SEQUENCE;
}

static unsigned char *row_at(const struct rings_pieces *p, uint64_t at, int64_t stride, int64_t row)
{
    return (unsigned char *)pointer(at) + (size_t)(row * stride) * element_bytes(p);
}

static void *room_new(int64_t elements)
{
    void *room = calloc((size_t)elements + 1, sizeof(float));

    wrong(!room, "no memory");
    return room;
}

static void round_row(const struct rings_pieces *p, void *out, const float *row, int64_t n)
{
    dtype_from_f32(out, row, (enum fcc_dtype)p->dtype, (size_t)n);
}

static UNWATCHED void add_times(float *out, float factor, const float *row, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] += factor * row[i];
}

/* out[rows][n] = rows of a matrix with K columns . b, in f32. */
static void multiply(const struct rings_pieces *p, float *out, uint64_t a, int64_t a_stride, int64_t first, int64_t rows)
{
    float *b = room_new(p->k * p->n), *row = room_new(p->k);

    for (int64_t i = 0; i < p->k && p->n && rows; i++)
        dtype_to_f32(b + i * p->n, row_at(p, p->b, p->b_stride, i), (enum fcc_dtype)p->dtype, (size_t)p->n);
    memset(out, 0, (size_t)(rows * p->n) * sizeof(*out));
    for (int64_t r = 0; r < rows && p->k && p->n; r++) {
        dtype_to_f32(row, row_at(p, a, a_stride, first + r), (enum fcc_dtype)p->dtype, (size_t)p->k);
        for (int64_t i = 0; i < p->k; i++)
            add_times(out + r * p->n, row[i], b + i * p->n, p->n);
    }
    free(b);
    free(row);
}

static int64_t sum_of(const int64_t rows[], uint32_t n)
{
    int64_t sum = 0;

    for (uint32_t r = 0; r < n; r++)
        sum += rows[r];
    return sum;
}

/* ---- a run's collective ---- */

/* In sequence: the rows of run `part` that are rank r's, or of all. */
static int64_t part_rows(const struct rings_call *call, int64_t rows, int64_t *first)
{
    *first = rows * call->part / call->parts;
    return rows * (call->part + 1) / call->parts - *first;
}

static int64_t part_sum(const struct rings_call *call, uint32_t nranks)
{
    const struct rings_pieces *p = &call->pieces;
    int64_t first, rows = 0;

    for (uint32_t r = 0; r < nranks && p->scatters; r++)
        rows += part_rows(call, p->rows[r], &first);
    return p->scatters ? rows : part_rows(call, p->m, &first);
}

/* What the ranks compare. */
static struct gpu_collective headers_of(const struct rings_call *call)
{
    const struct rings_pieces *p = &call->pieces;
    const uint32_t nranks = call->rings->nranks, rank = call->rings->rank;
    struct gpu_collective w = {.op = p->op,
                               .dtype = p->dtype,
                               .root = p->sequential,
                               .in_share = VECTOR_ALL,
                               .out_share = VECTOR_ALL,
                               .element_bytes = (uint32_t)element_bytes(p),
                               .number = p->number,
                               .numbers = rings_pieces_numbers(p, nranks),
                               .continues = p->continues || call->part > 0};
    int64_t first;

    if (!in_sequence(p)) {
        w.in_elements = w.out_elements = p->gathers ? p->k : p->n;
        w.rows = (uint32_t)p->m;
    } else if (p->gathers && p->m) {
        w.in_share = VECTOR_OWN;
        w.in_elements = p->rows[rank] * p->k;
        w.out_elements = p->m * p->k;
    } else if (p->m && p->n) {
        w.reduces = 1;
        w.out_share = p->scatters ? VECTOR_OWN : VECTOR_ALL;
        w.in_elements = part_sum(call, nranks) * p->n;
        w.out_elements = p->scatters ? part_rows(call, p->rows[rank], &first) * p->n : w.in_elements;
    }
    return w;
}

/* Of two ranks, in pieces: what goes to the other one. */
static void exchange_set(struct rings_run *run, const struct rings_pieces *p, bool gathers)
{
    struct gpu_collective *w = run->moved;
    const uint32_t rank = run->rings->rank, other = rank ^ 1u;

    w->in_share = w->out_share = VECTOR_COUNTED;
    w->element_bytes = gathers ? w->element_bytes : sizeof(float);
    w->send[other] = gathers ? p->rows[rank] * p->k : p->m * p->n;
    w->expected[rank] = w->expected[other] = -1;
    run->other[rank] = 0;
    run->other[other] = w->out_elements = gathers ? p->rows[other] * p->k : p->m * p->n;
}

/* ---- sums ---- */

/* This rank's terms of a run in sequence, rounded. */
static void terms_make(const struct rings_call *call, unsigned char *out)
{
    const struct rings_pieces *p = &call->pieces;
    const uint32_t owners = p->scatters ? call->rings->nranks : 1;
    float *terms = room_new(part_sum(call, call->rings->nranks) * p->n);
    int64_t before = 0;

    for (uint32_t r = 0; r < owners; r++) {
        const int64_t all = p->scatters ? p->rows[r] : p->m;
        int64_t first, rows = part_rows(call, all, &first);
        multiply(p, terms, p->a, p->a_stride, before + first, rows);
        round_row(p, out, terms, rows * p->n);
        out += (size_t)(rows * p->n) * element_bytes(p);
        before += all;
    }
    free(terms);
}

static void sum_in_sequence(struct rings_run *run, const struct rings_call *call)
{
    const struct rings_pieces *p = &call->pieces;
    struct gpu_collective *w = run->moved;
    unsigned char *terms = room_new(w->in_elements), *sums = room_new(w->out_elements);
    int64_t first;

    if (p->m && p->n)
        terms_make(call, terms);
    w->in = address_of(terms);
    w->out = address_of(sums);
    if (rings_headers_meet(run) && rings_exchange(run) && p->m && p->n) {
        const int64_t rows = part_rows(call, p->scatters ? p->rows[run->rings->rank] : p->m, &first);
        for (int64_t row = 0; row < rows; row++)
            memcpy(row_at(p, p->c, p->c_stride, first + row), sums + (size_t)(row * p->n) * element_bytes(p),
                   (size_t)p->n * element_bytes(p));
    }
    free(terms);
    free(sums);
}

/* Row `row` of the sum, whose owner adds in f32 what has come rounded. */
static void sum_store(const struct rings_pieces *p, float *owners, float *others, int64_t row)
{
    unsigned char *rounded = room_new(p->n);

    round_row(p, rounded, others, p->n);
    dtype_to_f32(others, rounded, (enum fcc_dtype)p->dtype, (size_t)p->n);
    add_times(owners, 1, others, p->n);
    round_row(p, row_at(p, p->c, p->c_stride, row), owners, p->n);
    free(rounded);
}

static void sum_in_pieces(struct rings_run *run, const struct rings_pieces *p)
{
    const uint32_t rank = run->rings->rank;
    const int64_t begin = rank ? p->rows[0] : 0, end = begin + p->rows[rank];
    float *terms = room_new(p->m * p->n), *come = room_new(p->m * p->n);

    multiply(p, terms, p->a, p->a_stride, 0, p->m);
    if (rings_headers_meet(run)) {
        exchange_set(run, p, false);
        run->moved->in = address_of(terms);
        run->moved->out = address_of(come);
        const bool well = rings_exchange(run);
        for (int64_t row = p->scatters ? begin : 0; row < (p->scatters ? end : p->m) && well && p->n; row++) {
            const bool own = row >= begin && row < end;
            sum_store(p, (own ? terms : come) + row * p->n, (own ? come : terms) + row * p->n, row - (p->scatters ? begin : 0));
        }
    }
    free(terms);
    free(come);
}

/* ---- what is gathered ---- */

static void gathered_store(const struct rings_pieces *p, unsigned char *every)
{
    float *c = room_new(p->m * p->n);

    for (int64_t row = 0; row < p->m && p->k && p->gathered; row++)
        memcpy(row_at(p, p->gathered, p->gathered_stride, row), every + (size_t)(row * p->k) * element_bytes(p),
               (size_t)p->k * element_bytes(p));
    multiply(p, c, address_of(every), p->k, 0, p->m);
    for (int64_t row = 0; row < p->m && p->n; row++)
        round_row(p, row_at(p, p->c, p->c_stride, row), c + row * p->n, p->n);
    free(c);
}

static void gather(struct rings_run *run, const struct rings_pieces *p)
{
    const uint32_t rank = run->rings->rank;
    const int64_t own = p->rows[rank], at = in_sequence(p) || !rank ? 0 : p->rows[0];
    const size_t size = element_bytes(p), bytes = (size_t)(own * p->k) * size;
    unsigned char *rows = room_new(own * p->k), *every = room_new(p->m * p->k);

    for (int64_t row = 0; row < own && p->k; row++)
        memcpy(rows + (size_t)(row * p->k) * size, row_at(p, p->a, p->a_stride, row), (size_t)p->k * size);
    run->moved->in = address_of(rows);
    run->moved->out = address_of(every);
    if (rings_headers_meet(run)) {
        if (!in_sequence(p)) {
            memcpy(every + (size_t)(at * p->k) * size, rows, bytes);
            exchange_set(run, p, true);
            run->moved->out += rank ? 0 : bytes;
        }
        if (rings_exchange(run))
            gathered_store(p, every);
    }
    free(rows);
    free(every);
}

/* The vendor's library knows of no runs: where one is none, or was given up, c is stored into all the same. */
void rings_pieces_left(const struct rings_call *call)
{
    const struct rings_pieces *p = &call->pieces;
    float *terms = room_new(p->n);

    for (int64_t row = 0; row < (p->scatters ? p->rows[call->rings->rank] : p->m) && p->n && !p->gathers; row++) {
        multiply(p, terms, p->a, p->a_stride, row, 1);
        round_row(p, row_at(p, p->c, p->c_stride, row), terms, p->n);
    }
    free(terms);
}

void rings_pieces_run(struct rings_run *run, const struct rings_call *call)
{
    const struct rings_pieces *p = &call->pieces;

    if (p->gathers)
        gather(run, p);
    else if (in_sequence(p))
        sum_in_sequence(run, call);
    else
        sum_in_pieces(run, p);
}

/* ---- the call ---- */

static void check_contract(const struct rings *r, const struct rings_pieces *p)
{
    const int64_t row = p->gathers ? p->k : p->n, own = p->rows[r->rank];
    const bool kept = p->gathered && p->gathered_stride == p->k;

    wrong(!p->number || p->number > INT32_MAX, "a product in pieces without a number");
    wrong(!r->has_library, "a product in pieces without the library");
    wrong(p->dtype != FCC_F32 && p->dtype != FCC_F16 && p->dtype != FCC_BF16, "the dtype of a product in pieces");
    wrong(p->m < 0 || p->n < 0 || p->k < 0, "sizes below 0");
    wrong(p->m && ((p->n && !p->c) || (p->k && !p->a) || (p->k && p->n && !p->b)), "a matrix without a place");
    wrong((p->m > 1 && (p->a_stride < p->k || p->c_stride < p->n)) || (p->k > 1 && p->b_stride < p->n), "rows that overlap");
    wrong(p->gathered && (!p->gathers || (p->m > 1 && p->gathered_stride < p->k)), "what is gathered");
    wrong(p->gathers && p->scatters, "what is gathered is scattered");
    wrong(p->sequential > PIECES_TILES, "the way of a product in pieces");
    wrong(!in_sequence(p) && r->nranks != 2, "pieces of more than two ranks");
    wrong(p->sequential == PIECES_TILES && !tiles_can(p->m, row, element_bytes(p)), "a product by tiles of such a size");
    wrong(p->sequential == PIECES_TILES && r->level < PIECES_HOPPER, "a product by tiles that not all ranks can run");
    if (p->sequential == PIECES_TILES)
        (void)atomic_fetch_add(&control->by_tiles, 1);
    for (uint32_t s = 0; s < r->nranks; s++)
        wrong(p->rows[s] < 0 || p->rows[s] > p->m, "rows of a rank");
    wrong((!p->gathers || r->nranks == 2) && sum_of(p->rows, r->nranks) != p->m, "the ranks' rows are not M");
    wrong((uint64_t)row * element_bytes(p) > RINGS_PIECES_ROW, "a row that is too long");
    wrong(p->gathers && in_sequence(p) && !kept && (uint64_t)(p->m * p->k) * element_bytes(p) > RINGS_GATHERED_MOST,
          "what is gathered has no room");
    wrong(p->gathers && in_sequence(p) && p->a_stride != p->k && own > 1 &&
              (uint64_t)(own * p->k) * element_bytes(p) > RINGS_GATHERED_MOST,
          "rows that lie apart have no room");
}

int rings_in_pieces(struct rings *r, const struct rings_pieces *what, void *stream, struct error *e)
{
    int status = call_check(FAKE_PREPARED_START, r->gpu.number, "launching a product", e);
    const int64_t parts = in_sequence(what) ? rings_pieces_runs(what, r->nranks) : 1;

    check_contract(r, what);
    for (int64_t part = 0; part < parts && !status; part++) {
        struct rings_call call = {.rings = r, .pieces = *what, .in_pieces = true, .part = part, .parts = parts};
        call.what = headers_of(&call);
        if (rings_call_push(&call, stream))
            status = error_set(e, -EIO, "cuda GPU %d: launching a product: the driver refused", r->gpu.number);
    }
    return status;
}
