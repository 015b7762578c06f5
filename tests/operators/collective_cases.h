/* SPDX-License-Identifier: MIT
 *
 * collective_cases.h - collectives against plain loops: drawn at random (operator, dtype, reduction, root, sizes, places, in place or not).
 * Buffers are filled and looked at through images of them, so they may be those of GPUs.
 *
 * FCC_TEST_SEED: the seed of what is drawn. FCC_TEST_CASES: how many cases.
 */
#ifndef FCC_TEST_COLLECTIVE_CASES_H
#define FCC_TEST_COLLECTIVE_CASES_H

#include <math.h>
#include <string.h>

#include "kernels/plan/spec.h"
#include "tests/bed/value.h"
#include "tests/operators/collective_bed.h"

enum { RANKS_MOST = 8, SHIFT_MOST = 7, ROW_MOST = 9 };
#define COUNTS_AT (ROOM - 256) /* of counts in memory of the device, beside the vectors: bytes */

struct type {
    enum fcc_dtype dtype;
    size_t size;
    bool floats, moved_only;
};
static const struct type types[] = {
    {FCC_F32, 4, true, false},   {FCC_F16, 2, true, false},   {FCC_BF16, 2, true, false}, {FCC_F64, 8, true, false},
    {FCC_I32, 4, false, false},  {FCC_I64, 8, false, false},  {FCC_U8, 1, false, false},  {FCC_I8, 1, false, false},
    {FCC_F8E4M3, 1, true, true}, {FCC_F8E5M2, 1, true, true},
};
#define NTYPES (sizeof(types) / sizeof(types[0]))
static const enum fcc_op ops[] = {FCC_OP_ALL_REDUCE, FCC_OP_REDUCE_SCATTER, FCC_OP_ALL_GATHER,
                                  FCC_OP_ALL_TO_ALL, FCC_OP_BROADCAST,      FCC_OP_REDUCE,
                                  FCC_OP_GATHER,     FCC_OP_SCATTER,        FCC_OP_SEND_RECEIVE};
#define NOPS (sizeof(ops) / sizeof(ops[0]))

/* ---- what a case is, the same on all ranks ---- */

struct drawn {
    const struct op_spec *op;
    const struct type *type;
    enum fcc_reduction reduction;
    int n, root, shift;                     /* shift: rank r sends to rank r + shift. 0: to nobody */
    int64_t whole;                          /* elements of the whole vector */
    int64_t own[RANKS_MOST];                /* elements of each rank's part */
    int64_t counts[RANKS_MOST][RANKS_MOST]; /* COUNTED: of the row's rank for the column's */
    int64_t row;                            /* all_to_all: elements of a row, in which counts are */
    int64_t spare;                          /* ... elements of the vectors behind those that are moved */
    int64_t at;                             /* element of the buffers at which the vectors begin */
    bool in_place, even, on_device;         /* on_device: all_to_all's counts lie in memory of the device */
    uint32_t schedule;
};

static uint64_t draw_state;

static int64_t draw(int64_t below)
{
    draw_state = draw_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((draw_state >> 33) % (uint64_t)below);
}

static int64_t draw_size(int64_t most)
{
    switch (draw(6)) {
    case 0:
        return draw(3);
    case 1:
        return 64 * draw(most / 64);
    case 2:
        return draw(most);
    default:
        return draw(most / 64) + 1;
    }
}

static bool adds(const struct drawn *d)
{
    return d->op->exchange == EXCHANGE_REDUCE;
}

static void reduction_draw(struct drawn *d)
{
    do
        d->type = &types[draw(NTYPES)];
    while (adds(d) && d->type->moved_only);
    do
        d->reduction = (enum fcc_reduction)draw(FCC_XOR + 1);
    while (d->type->floats ? d->reduction >= FCC_AND || (d->reduction == FCC_AVERAGE && (d->n & (d->n - 1)))
                           : d->reduction == FCC_AVERAGE);
}

static void case_draw(struct drawn *d, int n)
{
    static const uint32_t schedules[] = {FCC_SCHEDULE_AUTO, FCC_SCHEDULE_FUSED, FCC_SCHEDULE_SEQUENTIAL, FCC_SCHEDULE_FLAT,
                                         FCC_SCHEDULE_HIERARCHICAL | FCC_SCHEDULE_FUSED};

    *d = (struct drawn){.op = op_spec(ops[draw(NOPS)]), .n = n};
    reduction_draw(d);
    d->root = (int)draw(n);
    d->shift = (int)draw(n);
    d->even = draw(3) == 0;
    d->at = draw(SHIFT_MOST);
    d->in_place = d->op->in != VECTOR_COUNTED && draw(3) == 0;
    d->schedule = schedules[draw(5)];
    d->row = d->op->number == FCC_OP_ALL_TO_ALL && draw(2) ? 1 + draw(ROW_MOST) : 1;
    d->on_device = d->op->number == FCC_OP_ALL_TO_ALL && draw(2);
    d->spare = d->on_device ? draw(20) : 0;
    int64_t each = draw_size(ROOM / 16 / n);
    for (int r = 0; r < n; r++)
        d->whole += d->own[r] = d->even ? each : draw_size(ROOM / 16 / n);
    for (int r = 0; r < n; r++)
        for (int p = 0; p < n; p++)
            d->counts[r][p] = d->op->number == FCC_OP_ALL_TO_ALL
                                  ? (d->even ? each / n / d->row : draw_size(ROOM / 16 / n / n / d->row)) * d->row
                              : d->shift && p == (r + d->shift) % n ? d->own[r]
                                                                    : 0;
}

static int64_t before(const int64_t sizes[], int rank)
{
    int64_t sum = 0;

    for (int r = 0; r < rank; r++)
        sum += sizes[r];
    return sum;
}

/* The number of elements of a rank's vector; -1: it has none. */
static int64_t length(const struct drawn *d, bool in, int rank)
{
    int64_t sum = 0;

    switch (in ? d->op->in : d->op->out) {
    case VECTOR_OWN:
        return d->own[rank];
    case VECTOR_ALL:
        return d->whole;
    case VECTOR_ROOT:
        return rank == d->root ? d->whole : -1;
    default:
        for (int p = 0; p < d->n; p++)
            sum += in ? d->counts[rank][p] : d->counts[p][rank];
        return d->op->number == FCC_OP_SEND_RECEIVE && !d->shift ? -1 : sum;
    }
}

/* ---- elements ---- */

/* Element i of a rank's input: a small number that is exact in all dtypes, also added up and multiplied. */
static double element(const struct drawn *d, int rank, int64_t i)
{
    double v = value((unsigned)rank + 1, i);

    if (d->type->floats && d->reduction != FCC_PRODUCT)
        return v;
    return d->type->dtype == FCC_U8 ? fabs(floor(v)) : floor(v);
}

static void element_store(const struct type *t, void *data, int64_t i, double v)
{
    int64_t whole = (int64_t)v;

    if (t->dtype == FCC_F64)
        memcpy((char *)data + 8 * i, &v, 8);
    else if (t->moved_only)
        ((uint8_t *)data)[i] = (uint8_t)(int)(v * 8);
    else if (t->floats)
        value_store(t->dtype, data, i, v);
    else
        memcpy((char *)data + (int64_t)t->size * i, &whole, t->size); /* little-endian */
}

static int64_t bitwise(enum fcc_reduction how, int64_t a, int64_t b)
{
    return how == FCC_AND ? a & b : how == FCC_OR ? a | b : a ^ b;
}

static double reduced(const struct drawn *d, int64_t i)
{
    double sum = element(d, 0, i);

    for (int r = 1; r < d->n; r++) {
        double v = element(d, r, i);
        sum = d->reduction == FCC_PRODUCT ? sum * v
              : d->reduction == FCC_MIN   ? fmin(sum, v)
              : d->reduction == FCC_MAX   ? fmax(sum, v)
              : d->reduction >= FCC_AND   ? (double)bitwise(d->reduction, (int64_t)sum, (int64_t)v)
                                          : sum + v;
    }
    return d->reduction == FCC_AVERAGE ? sum / d->n : sum;
}

/* The element that rank `rank` should have at place i of its result. */
static double expected(const struct drawn *d, int rank, int64_t i)
{
    int source = 0;

    switch (d->op->number) {
    case FCC_OP_REDUCE_SCATTER:
        return reduced(d, before(d->own, rank) + i);
    case FCC_OP_ALL_GATHER:
    case FCC_OP_GATHER:
        for (; i >= d->own[source]; source++)
            i -= d->own[source];
        return element(d, source, i);
    case FCC_OP_BROADCAST:
        return element(d, d->root, i);
    case FCC_OP_SCATTER:
        return element(d, d->root, before(d->own, rank) + i);
    case FCC_OP_ALL_TO_ALL:
    case FCC_OP_SEND_RECEIVE:
        for (; i >= d->counts[source][rank]; source++)
            i -= d->counts[source][rank];
        return element(d, source, before(d->counts[source], rank) + i);
    default:
        return reduced(d, i);
    }
}

/* ---- a rank ---- */

/* Where a rank's input begins in its buffer of results if the operator runs in place, in elements from the begin of its result. */
static int64_t place_of(const struct drawn *d, int rank)
{
    return d->op->in == VECTOR_OWN ? before(d->own, rank) : d->op->out == VECTOR_OWN ? -before(d->own, rank) : 0;
}

/* Where that is allowed: in collectives that this process launches, and on the cpu. */
static bool counts_on_device(const struct rank *r, const struct drawn *d)
{
    return d->on_device && (r->move || test_device() == FCC_DEVICE_CPU);
}

/* Counts on the device: `sent` in the image of the inputs, and `got` in that of the results; on the cpu these arrays themselves. */
static const int64_t *device_sent(const struct rank *r, const struct drawn *d, const int64_t sent[])
{
    return !counts_on_device(r, d) ? NULL : r->move ? (const int64_t *)(uintptr_t)(r->memory[0] + COUNTS_AT) : sent;
}

static int64_t *device_got(const struct rank *r, const struct drawn *d, int64_t got[])
{
    return !counts_on_device(r, d) ? NULL : r->move ? (int64_t *)(uintptr_t)(r->memory[1] + COUNTS_AT) : got;
}

static int call(const struct rank *r, const struct drawn *d, const struct fcc_tensor *in, const struct fcc_tensor *out,
                int64_t *got)
{
    const int root = d->root, reduction = (int)d->reduction;
    const bool on_device = counts_on_device(r, d);
    int64_t sent[RANKS_MOST], wanted[RANKS_MOST];
    for (int p = 0; p < r->n; p++) {
        sent[p] = d->counts[r->rank][p] / d->row;
        wanted[p] = d->counts[p][r->rank] / d->row;
    }
    int to = d->shift ? (r->rank + d->shift) % r->n : -1, from = d->shift ? (r->rank + r->n - d->shift) % r->n : -1;

#define CALL(name, ...)                                                                                                        \
    do {                                                                                                                       \
        const struct fcc_##name##_args args = {.in = *in, .out = *out, __VA_ARGS__.schedule = d->schedule};                    \
        return r->move ? fcc_##name##_enqueue(r->comm, &args, r->stream, NULL) : fcc_##name(r->comm, &args);                   \
    } while (0)
    switch (d->op->number) {
    case FCC_OP_ALL_REDUCE:
        CALL(all_reduce, .reduction = reduction, );
    case FCC_OP_REDUCE_SCATTER:
        CALL(reduce_scatter, .reduction = reduction, );
    case FCC_OP_ALL_GATHER:
        CALL(all_gather, );
    case FCC_OP_ALL_TO_ALL:
        CALL(all_to_all, .send_counts = d->even || on_device ? NULL : sent, .expected_counts = d->even ? NULL : wanted,
             .receive_counts = r->move || on_device ? NULL : got, .device_send_counts = device_sent(r, d, sent),
             .device_receive_counts = device_got(r, d, got), .row_elements = d->row, );
    case FCC_OP_BROADCAST:
        CALL(broadcast, .root = root, );
    case FCC_OP_REDUCE:
        CALL(reduce, .root = root, .reduction = reduction, );
    case FCC_OP_GATHER:
        CALL(gather, .root = root, );
    case FCC_OP_SCATTER:
        CALL(scatter, .root = root, );
    default:
        CALL(send_receive, .destination = to, .source = from, .expected_counts = d->even ? NULL : wanted,
             .receive_counts = r->move ? NULL : got, );
    }
}

static void result_check(const struct rank *r, const struct drawn *d, int c, const unsigned char *result, int64_t n)
{
    unsigned char want[8];

    for (int64_t i = -1; i <= n; i++) {
        const unsigned char *got = result + i * (int64_t)d->type->size;
        if (i < 0 || i == n) /* what lies beside it is untouched */
            memset(want, d->in_place ? got[0] : 0xee, sizeof(want));
        else
            element_store(d->type, want, 0, expected(d, r->rank, i));
        if (memcmp(got, want, d->type->size) != 0 && !(d->in_place && (i < 0 || i == n)))
            check_failed(__FILE__, __LINE__,
                         "case %d: %s of %ld %s, rank %d of %d, root %d, reduction %d%s: element %ld is wrong", c, d->op->name,
                         (long)d->whole, d->type->dtype == FCC_F16 ? "f16" : "elements", r->rank, r->n, d->root,
                         (int)d->reduction, d->in_place ? ", in place" : "", (long)i);
    }
}

static void case_run(const struct rank *r, const struct drawn *d, int c)
{
    int64_t in_length = length(d, true, r->rank), out_length = length(d, false, r->rank), got[RANKS_MOST] = {-1};
    size_t size = d->type->size;
    int64_t in_at = d->at, out_at = 1 + d->at;
    struct fcc_tensor in = {.buffer = NULL}, out = {.buffer = NULL};
    bool in_place = d->in_place && in_length >= 0 && out_length >= 0;

    if (in_place) { /* both in the buffer of results; the longer one begins at out_at */
        int64_t place = place_of(d, r->rank);
        in_at = out_at + (place > 0 ? place : 0);
        out_at = out_at + (place < 0 ? -place : 0);
    }
    memset(r->images[1], 0xee, ROOM);
    unsigned char *data = r->images[in_place];
    for (int64_t i = 0; i < in_length; i++)
        element_store(d->type, data + (size_t)in_at * size, i, element(d, r->rank, i));
    if (in_length >= 0)
        in =
            vector_at(r, in_place, (uint64_t)in_at * size, d->type->dtype, in_length + (counts_on_device(r, d) ? d->spare : 0));
    if (out_length >= 0)
        out = vector_at(r, 1, (uint64_t)out_at * size, d->type->dtype, out_length + d->spare);
    for (int p = 0; p < r->n && r->move; p++)
        ((int64_t *)(void *)(r->images[0] + COUNTS_AT))[p] = d->counts[r->rank][p] / d->row;
    image_move(r, 0, false);
    image_move(r, 1, false);
    OK(fcc_noop(r->comm)); /* nobody's elements come before this */
    OK(call(r, d, &in, &out, got));
    image_move(r, 1, true);
    if (out_length >= 0)
        result_check(r, d, c, r->images[1] + (size_t)out_at * size, out_length);
    const int64_t *stored = r->move ? (const int64_t *)(const void *)(r->images[1] + COUNTS_AT) : got;
    for (int p = 0; p < r->n && d->op->in == VECTOR_COUNTED && (!r->move || counts_on_device(r, d)); p++)
        CHECK(stored[p] == d->counts[p][r->rank] / d->row);
}

/* All of a rank's cases. */
static void cases_run(const struct rank *r, uint64_t seed, int n)
{
    struct drawn d;

    draw_state = seed;
    for (int c = 0; c < number_of("FCC_TEST_CASES", n); c++) {
        case_draw(&d, r->n);
        case_run(r, &d, c);
    }
}

struct cases {
    uint64_t seed;
    int n;
};

static inline void cases_rank(int rank, const struct ranks *all, void *argument)
{
    const struct cases *c = argument;
    struct rank r;

    rank_open(&r, rank, all);
    cases_run(&r, c->seed, c->n);
    rank_close(&r);
}

/* So many cases for each number of ranks, from one on each node on. The daemons run. */
static inline void cases_of_ranks(int nodes, int most_ranks, int n)
{
    struct cases c = {.seed = test_seed(), .n = n};
    struct ranks r;

    for (int ranks = nodes; ranks <= most_ranks; ranks++) {
        c.seed += 1000;
        ranks_start(&r, ranks, cases_rank, &c);
        ranks_join(&r);
    }
}

#endif
