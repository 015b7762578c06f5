/* SPDX-License-Identifier: MIT
 *
 * test_collectives_words.c - collectives: what floats that are no numbers become, many collectives at once, and what is refused, with which
 * words.
 */
#include <errno.h>
#include <string.h>

#include "tests/operators/collective_bed.h"

/* ---- floats that are no numbers, and the bits of what is moved ---- */

/* Numbers by their bits, in each dtype. LEAST is the smallest subnormal one. */
enum number { ZERO, MINUS_ZERO, ONE, INF, MINUS_INF, NOT_ONE, LEAST, TWICE, NUMBERS };
static const struct format {
    enum fcc_dtype dtype;
    size_t size;
    uint64_t bits[NUMBERS];
} formats[] = {
    {FCC_F32, 4, {0, 0x80000000, 0x3f800000, 0x7f800000, 0xff800000, 0x7fc00000, 1, 2}},
    {FCC_F64, 8, {0, 0x8000000000000000, 0x3ff0000000000000, 0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000000, 1, 2}},
    {FCC_F16, 2, {0, 0x8000, 0x3c00, 0x7c00, 0xfc00, 0x7e00, 1, 2}},
    {FCC_BF16, 2, {0, 0x8000, 0x3f80, 0x7f80, 0xff80, 0x7fc0, 1, 2}},
};
static const enum fcc_reduction hows[] = {FCC_SUM, FCC_PRODUCT, FCC_MIN, FCC_MAX};
enum { HOWS = sizeof(hows) / sizeof(hows[0]) };
static const struct {
    enum number in[2], out[HOWS];
} columns[] = {
    {{MINUS_ZERO, MINUS_ZERO}, {MINUS_ZERO, ZERO, MINUS_ZERO, MINUS_ZERO}},
    {{MINUS_ZERO, ZERO}, {ZERO, MINUS_ZERO, MINUS_ZERO, ZERO}},
    {{ZERO, MINUS_ZERO}, {ZERO, MINUS_ZERO, MINUS_ZERO, ZERO}},
    {{INF, ONE}, {INF, INF, ONE, INF}},
    {{INF, ZERO}, {INF, NOT_ONE, ZERO, INF}},
    {{NOT_ONE, ONE}, {NOT_ONE, NOT_ONE, NOT_ONE, NOT_ONE}},
    {{ONE, NOT_ONE}, {NOT_ONE, NOT_ONE, NOT_ONE, NOT_ONE}},
    {{INF, MINUS_INF}, {NOT_ONE, MINUS_INF, MINUS_INF, INF}},
    {{LEAST, LEAST}, {TWICE, ZERO, LEAST, LEAST}},
    {{ONE, MINUS_INF}, {MINUS_INF, MINUS_INF, MINUS_INF, ONE}},
};
enum {
    COLUMNS = sizeof(columns) / sizeof(columns[0]),
    SPECIALS = 101 * COLUMNS + 3
}; /* far beyond what a vector instruction takes */

/* Which NaN a NaN is, is not said. */
static bool is_number(const struct format *f, uint64_t got, enum number want)
{
    return want == NOT_ONE ? (got & (f->bits[MINUS_ZERO] - 1)) > f->bits[INF] : got == f->bits[want];
}

static void specials_of(const struct rank *r, const struct format *f)
{
    unsigned char *in = (unsigned char *)fcc_buffer_data(r->local) + f->size, *out = fcc_buffer_data(r->result);

    for (int h = 0; h < HOWS; h++) {
        for (int i = 0; i < SPECIALS; i++)
            memcpy(in + (size_t)i * f->size, &f->bits[columns[i % COLUMNS].in[r->rank]], f->size);
        const struct fcc_all_reduce_args args = {.in = fcc_tensor_1d(r->local, f->size, f->dtype, SPECIALS),
                                                 .out = fcc_tensor_1d(r->result, 0, f->dtype, SPECIALS),
                                                 .reduction = hows[h]};
        OK(fcc_all_reduce(r->comm, &args));
        for (int i = 0; i < SPECIALS; i++) {
            uint64_t got = 0;
            memcpy(&got, out + (size_t)i * f->size, f->size);
            if (!is_number(f, got, columns[i % COLUMNS].out[h]))
                check_failed(__FILE__, __LINE__, "dtype %d, reduction %d, element %d: 0x%llx, expected 0x%llx", f->dtype,
                             hows[h], i, (unsigned long long)got, (unsigned long long)f->bits[columns[i % COLUMNS].out[h]]);
        }
    }
}

static void specials_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;

    (void)argument;
    rank_open(&r, rank, all);
    for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++)
        specials_of(&r, &formats[f]);
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

    for (int nodes = 1; nodes <= 2; nodes++) {
        daemons_start(&d, nodes, NULL);
        ranks_start(&r, 2, specials_rank, NULL);
        ranks_join(&r);
        daemon_stop(&d);
    }
}

/* ---- many at once ---- */

static void many_rank(int rank, const struct ranks *all, void *argument)
{
    enum { MANY = 100, EACH = 37 }; /* more than a context's operators in flight */
    struct fcc_all_reduce_args args[MANY];
    struct rank r;

    (void)argument;
    rank_open(&r, rank, all);
    int32_t *in = fcc_buffer_data(r.local), *out = fcc_buffer_data(r.result);
    for (int i = 0; i < MANY * EACH; i++)
        in[i] = i * (rank + 1);
    for (int i = 0; i < MANY; i++)
        args[i] = (struct fcc_all_reduce_args){
            .in = fcc_tensor_1d(r.local, (uint64_t)i * EACH * sizeof(*in), FCC_I32, EACH - i % 3),
            .out = fcc_tensor_1d(r.result, (uint64_t)i * EACH * sizeof(*in), FCC_I32, EACH - i % 3)};
    OK(fcc_all_reduce_many(r.comm, args, MANY));
    for (int i = 0; i < MANY; i++)
        for (int k = 0; k < EACH - i % 3; k++)
            CHECK(out[i * EACH + k] == (i * EACH + k) * all->n * (all->n + 1) / 2);
    OK(fcc_all_reduce_many(r.comm, NULL, 0));
    FAILS(fcc_all_reduce_many(r.comm, NULL, 1), -EINVAL, "args: NULL: not allowed with n 1");
    FAILS(fcc_all_reduce_many(r.comm, args, -1), -EINVAL, "n: -1: allowed are 0 and more");
    args[7].reduction = FCC_MAX;
    args[10].in.dtype = rank ? FCC_F64 : FCC_I32; /* the first error is told, and the others run */
    args[50].reduction = rank ? FCC_MAX : FCC_SUM;
    memset(out, 0, MANY * EACH * sizeof(*out));
    FAILS(fcc_all_reduce_many(r.comm, args, MANY), -EINVAL, "rank 1: all_reduce: out: dtype i32: allowed is f64");
    CHECK(out[7 * EACH + 1] == (7 * EACH + 1) * all->n && out[99 * EACH] == 99 * EACH * all->n * (all->n + 1) / 2);
    rank_close(&r);
}

static void many(void)
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, 1, NULL);
    ranks_start(&r, 3, many_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

/* ---- what is refused ---- */

static void refusals_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    const int64_t counts[2] = {3, 4}, fewer[2] = {7, 0}, more[2] = {9, 0}, below[2] = {9, -1};
    const struct fcc_tensor none = {.buffer = NULL};
    int64_t received[2];

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
    REFUSED(reduce_scatter, "in: rank 1: overlaps out: allowed is in place: in begins 8 elements before out",
            .in = OUT(FCC_F32, 16), .out = fcc_tensor_1d(r.result, rank ? 28 : 0, FCC_F32, 8));
    REFUSED(gather, "in: rank 1: overlaps out: allowed is in place: in begins 8 elements after the begin of out",
            .in = fcc_tensor_1d(r.result, rank ? 7 : 0, FCC_U8, 8), .out = rank ? OUT(FCC_U8, 16) : none, .root = 1);
    REFUSED(scatter, "in: rank 1: overlaps out: allowed is in place: in begins 8 elements before out",
            .in = rank ? OUT(FCC_U8, 16) : none, .out = fcc_tensor_1d(r.result, rank ? 7 : 0, FCC_U8, 8), .root = 1);
    REFUSED(broadcast, "in: rank 1: overlaps out: allowed is in place: in begins 0 elements", .root = 1,
            .in = rank ? fcc_tensor_1d(r.result, 4, FCC_U8, 8) : none, .out = OUT(FCC_U8, 8));
    REFUSED(reduce, "in: rank 1: overlaps out: allowed is in place: in begins 0 elements", .root = 1,
            .in = fcc_tensor_1d(r.result, 4, FCC_F32, 8), .out = rank ? OUT(FCC_F32, 8) : none);
    REFUSED(send_receive, "in: rank 0: overlaps out: not allowed", .in = OUT(FCC_U8, 8), .out = OUT(FCC_U8, 8),
            .destination = 1 - rank, .source = 1 - rank);
    REFUSED(broadcast, "root: rank 1 has 1, rank 0 has 0", .in = IN(FCC_U8, 8), .out = OUT(FCC_U8, 8), .root = rank);
    REFUSED(broadcast, "root: 2: allowed are 0 to 1", .in = IN(FCC_U8, 8), .out = OUT(FCC_U8, 8), .root = 2);
    REFUSED(broadcast, "in: present: not allowed on this rank", .in = IN(FCC_U8, 8), .out = OUT(FCC_U8, 8), .root = 0);
    REFUSED(all_to_all, "send_counts: ", .in = IN(FCC_U8, 8), .out = OUT(FCC_U8, 16), .send_counts = counts);
    REFUSED(all_to_all, "out: rank 1 receives 8 elements, its out has 6", .in = IN(FCC_U8, 7), .out = OUT(FCC_U8, 6),
            .send_counts = counts);
    REFUSED(all_to_all, "in: shape[0] 7: without send_counts, allowed are multiples", .in = IN(FCC_U8, 7),
            .out = OUT(FCC_U8, 8));
    REFUSED(all_to_all, "overlaps out: not allowed", .in = OUT(FCC_U8, 8), .out = OUT(FCC_U8, 8));
    REFUSED(all_to_all, "in: shape[0] 7: without send_counts, allowed are whole rows of 2", .in = IN(FCC_U8, 7),
            .out = OUT(FCC_U8, 8), .row_elements = 2);
    REFUSED(all_to_all, "in: 3 rows: without send_counts, allowed are multiples of the number of ranks, 2", .in = IN(FCC_U8, 6),
            .out = OUT(FCC_U8, 8), .row_elements = 2);
    REFUSED(all_to_all, "row_elements: rank 1 has 3, rank 0 has 2", .in = IN(FCC_U8, 12), .out = OUT(FCC_U8, 12),
            .row_elements = 2 + rank);
    REFUSED(all_to_all, "row_elements: -1: allowed are 0 (1) to ", .in = IN(FCC_U8, 8), .out = OUT(FCC_U8, 8),
            .row_elements = -1);
    REFUSED(all_to_all, "send_counts: sum 7: allowed is 21", .in = IN(FCC_U8, 21), .out = OUT(FCC_U8, 21),
            .send_counts = counts);
    REFUSED(all_to_all,
            "rank 1: all_to_all: device_send_counts: -1 for rank 1: allowed are 0 and more, together at most the 9 rows",
            .in = IN(FCC_U8, 19), .out = OUT(FCC_U8, 40), .device_send_counts = rank ? below : counts, .row_elements = 2);
    REFUSED(all_to_all,
            "rank 1: all_to_all: device_send_counts: 9 for rank 0: allowed are 0 and more, together at most the 8 rows",
            .in = IN(FCC_U8, 8), .out = OUT(FCC_U8, 40), .device_send_counts = rank ? more : counts);
    REFUSED(all_to_all, "send_counts, device_send_counts: allowed is one of them", .in = IN(FCC_U8, 7), .out = OUT(FCC_U8, 8),
            .send_counts = counts, .device_send_counts = counts);
    REFUSED(all_to_all, "receive_counts, device_receive_counts: allowed is one of them", .in = IN(FCC_U8, 8),
            .out = OUT(FCC_U8, 8), .receive_counts = received, .device_receive_counts = received);
    REFUSED(all_to_all, "device_send_counts: address 0x", .in = IN(FCC_U8, 8), .out = OUT(FCC_U8, 8),
            .device_send_counts = (const int64_t *)((uintptr_t)counts | 4));
    REFUSED(all_to_all, "out: rank 1 receives 8 elements, its out has 6", .in = IN(FCC_U8, 9), .out = OUT(FCC_U8, 6),
            .device_send_counts = counts);
    REFUSED(send_receive, "destination: rank 0 has 1, rank 1's source is -1", .in = IN(FCC_U8, 8), .destination = 1 - rank,
            .source = -1);
    REFUSED(send_receive, "expected_counts: rank 0 sends 8 elements to rank 1, which expects 7", .in = IN(FCC_U8, 8),
            .out = OUT(FCC_U8, 8), .destination = 1 - rank, .source = 1 - rank, .expected_counts = rank ? fewer : NULL);
    REFUSED(send_receive, "expected_counts: 9 of rank 0: allowed are 0 and more, together at most out's shape[0], 8",
            .in = IN(FCC_U8, 8), .out = OUT(FCC_U8, 8), .destination = 1 - rank, .source = 1 - rank, .expected_counts = more);
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
    static const struct test tests[] = {{"specials", specials, 30}, {"many", many, 30}, {"refusals", refusals, 30}};

    return tests_run("collectives_words", TESTS(tests));
}
