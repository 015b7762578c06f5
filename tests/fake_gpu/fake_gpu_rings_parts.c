/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_rings_parts.c - how the parts of a collective through rings travel between fake GPUs, and how they are reduced.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/combine.h"
#include "tests/fake_gpu/fake_gpu_rings.h"

/* One rank's part for another one, under way. */
struct flow {
    unsigned char *data; /* where it is read, or stored */
    uint64_t bytes, pieces;
};

/* What goes to each rank, and what comes from each. */
struct flows {
    struct flow to[RINGS_RANKS], from[RINGS_RANKS];
};

static uint64_t piece_count(const struct rings_run *run, uint64_t pieces)
{
    return run->number << 24 | pieces;
}

/* A piece of the ring from one rank to another one, at the latter: step 0, channel 0. */
static unsigned char *piece_at(const struct rings *r, uint32_t from, uint32_t to, uint64_t number)
{
    uint64_t ring = from - (from > to), bytes = rings_piece_bytes(r->nranks);

    return (unsigned char *)r->heads[to] + rings_pieces_at(r->nranks) + (ring * RINGS_DEPTH + number % RINGS_DEPTH) * bytes;
}

static uint64_t flow_left(const struct rings *r, const struct flow *f)
{
    uint64_t at = f->pieces * rings_piece_bytes(r->nranks);

    return at < f->bytes ? f->bytes - at : 0;
}

static uint64_t piece_length(const struct rings *r, const struct flow *f)
{
    uint64_t left = flow_left(r, f), most = rings_piece_bytes(r->nranks);

    return left < most ? left : most;
}

/* True: a piece was sent. */
static bool piece_send(const struct rings_run *run, struct flow *f, uint32_t to)
{
    const struct rings *r = run->rings;
    uint64_t length = piece_length(r, f);

    if (!length || (f->pieces >= RINGS_DEPTH && atomic_load(rings_word(&r->heads[r->rank]->free[0][0][to])) <
                                                    piece_count(run, f->pieces + 1 - RINGS_DEPTH)))
        return false;
    memcpy(piece_at(r, r->rank, to, f->pieces), f->data + f->pieces * rings_piece_bytes(r->nranks), length);
    f->pieces++;
    atomic_store(rings_word(&r->heads[to]->full[0][0][r->rank]), piece_count(run, f->pieces));
    return true;
}

/* True: a piece was taken. */
static bool piece_take(const struct rings_run *run, struct flow *f, uint32_t from)
{
    const struct rings *r = run->rings;
    uint64_t length = piece_length(r, f);

    if (!length || atomic_load(rings_word(&r->heads[r->rank]->full[0][0][from])) < piece_count(run, f->pieces + 1))
        return false;
    memcpy(f->data + f->pieces * rings_piece_bytes(r->nranks), piece_at(r, from, r->rank, f->pieces), length);
    f->pieces++;
    atomic_store(rings_word(&r->heads[from]->free[0][0][r->rank]), piece_count(run, f->pieces));
    return true;
}

/* All of them, by turns: no rank waits for a piece while another one waits for room at it. False: leave. */
static bool flows_run(struct rings_run *run, struct flows *flows)
{
    const struct rings *r = run->rings;

    for (;;) {
        bool left = false, moved = false;
        for (uint32_t p = 0; p < r->nranks; p++) {
            if (p == r->rank)
                continue;
            moved |= piece_send(run, &flows->to[p], p);
            moved |= piece_take(run, &flows->from[p], p);
            left |= flow_left(r, &flows->to[p]) || flow_left(r, &flows->from[p]);
        }
        if (!left)
            return true;
        if (!moved && !rings_nap(run))
            return false;
    }
}

static unsigned char *in_at(const struct rings_run *run, int64_t element)
{
    return (unsigned char *)pointer(run->what->in) + (uint64_t)element * run->what->element_bytes;
}

static unsigned char *out_at(const struct rings_run *run, int64_t element)
{
    return (unsigned char *)pointer(run->what->out) + (uint64_t)element * run->what->element_bytes;
}

static void sends_fill(const struct rings_run *run, struct flows *flows)
{
    for (uint32_t r = 0; r < run->rings->nranks; r++)
        flows->to[r] = (struct flow){in_at(run, run->send_at[r]), (uint64_t)run->send[r] * run->what->element_bytes, 0};
}

static bool parts_move(struct rings_run *run)
{
    const uint32_t rank = run->rings->rank;
    struct flows flows;

    sends_fill(run, &flows);
    for (uint32_t r = 0; r < run->rings->nranks; r++)
        flows.from[r] = (struct flow){out_at(run, run->get_at[r]), (uint64_t)run->get[r] * run->what->element_bytes, 0};
    if (run->get[rank] && flows.from[rank].data != flows.to[rank].data)
        memcpy(flows.from[rank].data, flows.to[rank].data, flows.from[rank].bytes);
    return flows_run(run, &flows);
}

/* ---- reductions ---- */

/* All ranks' elements of this rank's result; *n of them; whole blocks. */
static unsigned char *terms_new(const struct rings_run *run, int64_t *n)
{
    const struct gpu_collective *w = run->what;

    *n = w->out_share == VECTOR_OWN || rings_gets_all(run, run->rings->rank) ? w->out_elements : 0;
    return calloc(run->rings->nranks * (size_t)*n + 1, w->element_bytes);
}

static void terms_combine(const struct rings_run *run, const unsigned char *terms, int64_t n)
{
    const struct gpu_collective *w = run->what;
    const enum fcc_dtype dtype = (enum fcc_dtype)w->dtype,
                         sum = dtype == FCC_F16 || dtype == FCC_BF16 ? FCC_F32 : (enum fcc_dtype)dtype;
    const int nranks = (int)run->rings->nranks;
    _Alignas(64) unsigned char block[COMBINE_BLOCK_BYTES];
    const unsigned char *term[RINGS_RANKS];

    for (int64_t at = 0; at < n; at += COMBINE_BLOCK) {
        size_t length = n - at < COMBINE_BLOCK ? (size_t)(n - at) : COMBINE_BLOCK;
        for (int r = 0; r < nranks; r++)
            term[r] = terms + (size_t)(r * n + at) * w->element_bytes;
        combine((enum fcc_reduction)w->reduction, dtype, sum, term, nranks, length, block);
        if (w->reduction == FCC_AVERAGE)
            combine_divide(sum, nranks, length, block);
        combine_convert(out_at(run, at), dtype, block, sum, length);
    }
}

/* In place, too: nothing is stored into the result before all of the input has been sent. */
static bool parts_reduce(struct rings_run *run)
{
    const uint32_t rank = run->rings->rank;
    struct flows flows;
    int64_t n;
    unsigned char *terms = terms_new(run, &n);
    const uint64_t bytes = (uint64_t)n * run->what->element_bytes;

    sends_fill(run, &flows);
    for (uint32_t r = 0; r < run->rings->nranks; r++)
        flows.from[r] = (struct flow){terms + r * bytes, bytes, 0};
    if (bytes)
        memcpy(flows.from[rank].data, flows.to[rank].data, bytes);
    bool well = flows_run(run, &flows);
    if (well && n)
        terms_combine(run, terms, n);
    free(terms);
    return well;
}

bool rings_parts_run(struct rings_run *run)
{
    return run->what->reduces ? parts_reduce(run) : parts_move(run);
}

/* ---- counts in memory ---- */

uint32_t rings_counts_take(struct gpu_collective *w, uint32_t nranks)
{
    const int64_t *counts = pointer(w->counts);
    int64_t left = w->rows_most;

    for (uint32_t r = 0; r < nranks && w->counts; r++) {
        if (counts[r] < 0 || counts[r] > left)
            return r;
        left -= counts[r];
        w->send[r] = counts[r] * w->row_elements;
    }
    return nranks;
}

void rings_received_tell(const struct rings_run *run)
{
    int64_t *received = pointer(run->what->received);

    for (uint32_t r = 0; r < run->rings->nranks && received; r++)
        received[r] = run->get[r] / run->what->row_elements;
}
