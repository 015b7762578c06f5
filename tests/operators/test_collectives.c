/* SPDX-License-Identifier: MIT
 *
 * test_collectives.c - collectives against plain loops: drawn at random (operator, dtype, reduction, root, sizes, places, in place or not),
 * on one node and several; what floats that are no numbers become; and what is refused, with which words.
 *
 * FCC_TEST_SEED: the seed of what is drawn. FCC_TEST_CASES: how many cases.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/plan/spec.h"
#include "tests/bed/harness.h"
#include "tests/bed/value.h"

enum { RANKS_MOST = 6, CASES = 120, ROOM = 1 << 20, SHIFT_MOST = 7 };

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
    int64_t at;                             /* element of the buffers at which the vectors begin */
    bool in_place, even;
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
    int64_t each = draw_size(ROOM / 16 / n);
    for (int r = 0; r < n; r++)
        d->whole += d->own[r] = d->even ? each : draw_size(ROOM / 16 / n);
    for (int r = 0; r < n; r++)
        for (int p = 0; p < n; p++)
            d->counts[r][p] = d->op->number == FCC_OP_ALL_TO_ALL    ? (d->even ? each / n : draw_size(ROOM / 16 / n / n))
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

struct rank {
    fcc_comm *comm;
    int rank, n;
    fcc_buffer *local, *result;
};

/* Where a rank's input begins in its buffer of results if the operator runs in place, in elements from the begin of its result. */
static int64_t place_of(const struct drawn *d, int rank)
{
    return d->op->in == VECTOR_OWN ? before(d->own, rank) : d->op->out == VECTOR_OWN ? -before(d->own, rank) : 0;
}

static int call(const struct rank *r, const struct drawn *d, const struct fcc_tensor *in, const struct fcc_tensor *out,
                int64_t *got)
{
    const int root = d->root, reduction = (int)d->reduction;
    const int64_t *counts = d->even ? NULL : d->counts[r->rank];
    int to = d->shift ? (r->rank + d->shift) % r->n : -1, from = d->shift ? (r->rank + r->n - d->shift) % r->n : -1;

#define CALL(name, ...)                                                                                                        \
    return fcc_##name(r->comm, &(struct fcc_##name##_args){.in = *in, .out = *out, __VA_ARGS__.schedule = d->schedule})
    switch (d->op->number) {
    case FCC_OP_ALL_REDUCE:
        CALL(all_reduce, .reduction = reduction, );
    case FCC_OP_REDUCE_SCATTER:
        CALL(reduce_scatter, .reduction = reduction, );
    case FCC_OP_ALL_GATHER:
        CALL(all_gather, );
    case FCC_OP_ALL_TO_ALL:
        CALL(all_to_all, .send_counts = counts, .receive_counts = got, );
    case FCC_OP_BROADCAST:
        CALL(broadcast, .root = root, );
    case FCC_OP_REDUCE:
        CALL(reduce, .root = root, .reduction = reduction, );
    case FCC_OP_GATHER:
        CALL(gather, .root = root, );
    case FCC_OP_SCATTER:
        CALL(scatter, .root = root, );
    default:
        CALL(send_receive, .destination = to, .source = from, .receive_counts = got, );
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
        if (memcmp(got, want, d->type->size) && !(d->in_place && (i < 0 || i == n)))
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
    memset(fcc_buffer_data(r->result), 0xee, fcc_buffer_size(r->result));
    unsigned char *data = fcc_buffer_data(in_place ? r->result : r->local);
    for (int64_t i = 0; i < in_length; i++)
        element_store(d->type, data + (size_t)in_at * size, i, element(d, r->rank, i));
    if (in_length >= 0)
        in = fcc_tensor_1d(in_place ? r->result : r->local, (uint64_t)in_at * size, d->type->dtype, in_length);
    if (out_length >= 0)
        out = fcc_tensor_1d(r->result, (uint64_t)out_at * size, d->type->dtype, out_length);
    OK(fcc_noop(r->comm)); /* nobody's elements come before this */
    OK(call(r, d, &in, &out, got));
    if (out_length >= 0)
        result_check(r, d, c, (unsigned char *)fcc_buffer_data(r->result) + (size_t)out_at * size, out_length);
    for (int p = 0; p < r->n && d->op->in == VECTOR_COUNTED; p++)
        CHECK(got[p] == d->counts[p][r->rank]);
}

static void rank_open(struct rank *r, int rank, const struct ranks *all)
{
    r->comm = comm_open(all, rank, 0);
    r->rank = rank;
    r->n = all->n;
    OK(fcc_buffer_alloc(r->comm, FCC_BUFFER_LOCAL, ROOM, &r->local));
    OK(fcc_buffer_alloc(r->comm, FCC_BUFFER_RESULT, ROOM, &r->result));
}

static void rank_close(struct rank *r)
{
    OK(fcc_noop(r->comm));
    fcc_comm_destroy(r->comm);
    fcc_disconnect(comm_context());
}

static int number_of(const char *name, int otherwise)
{
    return getenv(name) ? atoi(getenv(name)) : otherwise;
}

static void random_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    struct drawn d;

    draw_state = *(const uint64_t *)argument;
    rank_open(&r, rank, all);
    for (int c = 0; c < number_of("FCC_TEST_CASES", CASES); c++) {
        case_draw(&d, all->n);
        case_run(&r, &d, c);
    }
    rank_close(&r);
}

static void random_on(int nodes, int most_ranks)
{
    struct test_daemon d;
    struct ranks r;
    uint64_t seed = (uint64_t)number_of("FCC_TEST_SEED", (int)getpid());

    printf("FCC_TEST_SEED=%lu\n", (unsigned long)seed);
    daemons_start(&d, nodes, NULL);
    for (int n = nodes > 1 ? nodes : 1; n <= most_ranks; n++) {
        seed += 1000;
        ranks_start(&r, n, random_rank, &seed);
        ranks_join(&r);
    }
    daemon_stop(&d);
}

static void on_one_node(void)
{
    random_on(1, 4);
}

static void on_two_nodes(void)
{
    random_on(2, 5);
}

static void on_three_nodes(void)
{
    random_on(3, RANKS_MOST);
}

/* ---- floats that are no numbers, and the bits of what is moved ---- */

static void specials_rank(int rank, const struct ranks *all, void *argument)
{
    /* by column: what two ranks have; then sum, minimum and maximum */
    static const float columns[][5] = {
        {-0.0f, -0.0f, -0.0f, -0.0f, -0.0f},
        {-0.0f, 0.0f, 0.0f, -0.0f, 0.0f},
        {0.0f, -0.0f, 0.0f, -0.0f, 0.0f},
        {INFINITY, 1, INFINITY, 1, INFINITY},
        {NAN, 1, NAN, NAN, NAN},
        {1, NAN, NAN, NAN, NAN},
        {INFINITY, -INFINITY, NAN, -INFINITY, INFINITY},
        {1e-45f, 1e-45f, 2.8e-45f, 1e-45f, 1e-45f},
    };
    enum { N = sizeof(columns) / sizeof(columns[0]) };
    struct rank r;

    (void)argument;
    rank_open(&r, rank, all);
    float *in = fcc_buffer_data(r.local), *out = fcc_buffer_data(r.result);
    for (int how = 0; how < 3; how++) {
        for (int i = 0; i < N; i++)
            in[i] = columns[i][rank];
        struct fcc_all_reduce_args args = {.in = fcc_tensor_1d(r.local, 0, FCC_F32, N),
                                           .out = fcc_tensor_1d(r.result, 0, FCC_F32, N),
                                           .reduction = how == 0   ? FCC_SUM
                                                        : how == 1 ? FCC_MIN
                                                                   : FCC_MAX};
        OK(fcc_all_reduce(r.comm, &args));
        for (int i = 0; i < N; i++) {
            float want = columns[i][2 + how];
            if (isnan(want) ? !isnan(out[i]) : memcmp(&out[i], &want, sizeof(want)) != 0)
                check_failed(__FILE__, __LINE__, "reduction %d, column %d: %g, expected %g", how, i, (double)out[i],
                             (double)want);
        }
    }
    uint32_t *bits = fcc_buffer_data(r.local);
    for (uint32_t i = 0; i < 64; i++) /* signalling NaNs with payloads */
        bits[i] = 0x7f800001u + i + (uint32_t)rank * 1000;
    struct fcc_all_gather_args gather = {.in = fcc_tensor_1d(r.local, 0, FCC_F32, 64),
                                         .out = fcc_tensor_1d(r.result, 0, FCC_F32, 64 * all->n)};
    OK(fcc_all_gather(r.comm, &gather));
    for (uint32_t i = 0; i < 64 * (uint32_t)all->n; i++)
        CHECK(((uint32_t *)fcc_buffer_data(r.result))[i] == 0x7f800001u + i % 64 + i / 64 * 1000);
    rank_close(&r);
}

static void specials(void)
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, 1, NULL);
    ranks_start(&r, 2, specials_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

/* ---- what is refused ---- */

static void refusals_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    int64_t counts[2] = {3, 4};

    (void)argument;
    rank_open(&r, rank, all);
#define IN(type, n) fcc_tensor_1d(r.local, 0, type, n)
#define OUT(type, n) fcc_tensor_1d(r.result, 0, type, n)
#define REFUSED(name, words, ...)                                                                                              \
    FAILS(fcc_##name(r.comm, &(struct fcc_##name##_args){__VA_ARGS__}), -EINVAL, #name, words);                                \
    OK(fcc_noop(r.comm))
    REFUSED(all_reduce, "in: rank 1 has 9 elements, rank 0's in has 8", .in = IN(FCC_F32, 8 + rank),
            .out = OUT(FCC_F32, 8 + rank));
    REFUSED(all_reduce, "dtype: rank 1 has f64, rank 0 has f32", .in = IN(rank ? FCC_F64 : FCC_F32, 8),
            .out = OUT(rank ? FCC_F64 : FCC_F32, 8));
    REFUSED(all_reduce, "reduction: rank 1 has max, rank 0 has sum", .in = IN(FCC_F32, 8), .out = OUT(FCC_F32, 8),
            .reduction = rank ? FCC_MAX : FCC_SUM);
    REFUSED(all_reduce, "reduction: 8: allowed are 0 to 7", .in = IN(FCC_F32, 8), .out = OUT(FCC_F32, 8),
            .reduction = rank ? 8 : 0);
    REFUSED(all_reduce, "reduction: and: not allowed of f32", .in = IN(FCC_F32, 8), .out = OUT(FCC_F32, 8),
            .reduction = FCC_AND);
    REFUSED(all_reduce, "reduction: average: not allowed of i32", .in = IN(FCC_I32, 8), .out = OUT(FCC_I32, 8),
            .reduction = FCC_AVERAGE);
    REFUSED(all_reduce, "in: dtype f8e4m3: allowed: f32, f16, bf16, i32, i64, u8, i8, f64", .in = IN(FCC_F8E4M3, 8),
            .out = OUT(FCC_F8E4M3, 8));
    REFUSED(all_reduce, "out: absent", .in = IN(FCC_F32, 8));
    REFUSED(all_reduce, "out: dtype f64", .in = IN(FCC_F32, 8), .out = OUT(FCC_F64, 8));
    REFUSED(all_reduce, "out: in a buffer that takes no results", .in = IN(FCC_F32, 8), .out = IN(FCC_F32, 8));
    REFUSED(all_reduce, "in: rank 1: overlaps out: allowed is in place",
            .in = fcc_tensor_1d(r.result, rank ? 4 : 0, FCC_F32, 8), .out = OUT(FCC_F32, 8));
    REFUSED(all_gather, "in: the ranks' have 16 elements together, out has 17", .in = IN(FCC_U8, 8), .out = OUT(FCC_U8, 17));
    REFUSED(all_gather, "in: rank 1: overlaps out: allowed is in place: in begins 8 elements after the begin of out",
            .in = fcc_tensor_1d(r.result, rank ? 7 : 0, FCC_U8, 8), .out = OUT(FCC_U8, 16));
    REFUSED(reduce_scatter, "out: the ranks' have 8 elements together, in has 10", .in = IN(FCC_I64, 10),
            .out = OUT(FCC_I64, 4));
    REFUSED(broadcast, "root: rank 1 has 1, rank 0 has 0", .in = IN(FCC_U8, 8), .out = OUT(FCC_U8, 8), .root = rank);
    REFUSED(broadcast, "root: 2: allowed are 0 to 1", .in = IN(FCC_U8, 8), .out = OUT(FCC_U8, 8), .root = 2);
    REFUSED(broadcast, "in: present: not allowed on this rank", .in = IN(FCC_U8, 8), .out = OUT(FCC_U8, 8), .root = 0);
    REFUSED(all_to_all, "send_counts: ", .in = IN(FCC_U8, 8), .out = OUT(FCC_U8, 16), .send_counts = counts);
    REFUSED(all_to_all, "out: rank 1 receives 8 elements, its out has 6", .in = IN(FCC_U8, 7), .out = OUT(FCC_U8, 6),
            .send_counts = counts);
    REFUSED(all_to_all, "in: shape[0] 7: without send_counts, allowed are multiples", .in = IN(FCC_U8, 7),
            .out = OUT(FCC_U8, 8));
    REFUSED(all_to_all, "overlaps out: not allowed", .in = OUT(FCC_U8, 8), .out = OUT(FCC_U8, 8));
    REFUSED(send_receive, "destination: rank 0 has 1, rank 1's source is -1", .in = IN(FCC_U8, 8), .destination = 1 - rank,
            .source = -1);
    struct fcc_all_reduce_args good = {.in = IN(FCC_F32, 8), .out = OUT(FCC_F32, 8)};
    struct fcc_all_gather_args other = {.in = IN(FCC_F32, 8), .out = OUT(FCC_F32, 16)};
    FAILS(rank ? fcc_all_gather(r.comm, &other) : fcc_all_reduce(r.comm, &good), -EINVAL, "out of step",
          "rank 1 calls all_gather");
    OK(fcc_all_reduce(r.comm, &good));
    rank_close(&r);
}

static void refusals(void)
{
    struct test_daemon d;
    struct ranks r;

    for (int nodes = 1; nodes <= 2; nodes++) {
        daemons_start(&d, nodes, NULL);
        ranks_start(&r, 2, refusals_rank, NULL);
        ranks_join(&r);
        daemon_stop(&d);
    }
}

int main(void)
{
    static const struct test tests[] = {{"on_one_node", on_one_node, 60},
                                        {"on_two_nodes", on_two_nodes, 90},
                                        {"on_three_nodes", on_three_nodes, 90},
                                        {"specials", specials, 30},
                                        {"refusals", refusals, 30}};

    return tests_run("collectives", TESTS(tests));
}
