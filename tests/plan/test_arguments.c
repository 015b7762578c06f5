/* SPDX-License-Identifier: MIT
 *
 * test_arguments.c - what the operators say to bad arguments of one rank, and to ranks whose arguments do not fit together.
 * And which tensors overlap.
 *
 * Each test starts from requests that are well and spoils one thing at a time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/bed/random.h"
#include "tests/plan/arguments.h"

/* ---- gemv_all_reduce ---- */

static void test_gemv(void **state)
{
    (void)state;
    SPOIL(gemv, (void)0, mismatch, "");
    SPOIL(gemv, X.stride[0] = 0, mismatch, ""); /* rows of inputs may overlap */
    SPOIL(gemv, q.args[1].ntensors = 2, refuse, "tensors: 2: allowed is 3");
    SPOIL(gemv, q.args[1].schedule = (enum fcc_schedule_kind)5, refuse, "schedule: 5: allowed are 0 to 4");
    SPOIL(gemv, X.data = NULL, refuse, "x: absent: it must be there");
    SPOIL(gemv, X.dtype = FCC_I32, refuse, "x: dtype i32: allowed: f32, f16, bf16, f8e4m3");
    SPOIL(gemv, X.dtype = (enum fcc_dtype)99, refuse, "x: dtype unknown: allowed: f32, f16, bf16, f8e4m3");
    SPOIL(gemv, X.ndim = 1, refuse, "x: 1 dimensions: allowed is 2");
    SPOIL(gemv, X.shape[1] = -1, refuse, "x: shape[1] -1: allowed are 0 to 2147483647");
    SPOIL(gemv, X.shape[1] = INT64_MAX, refuse, "x: shape[1] 9223372036854775807: allowed are 0 to 2147483647");
    SPOIL(gemv, X.stride[1] = 2, refuse, "x: stride[1] 2: allowed is 1");
    SPOIL(gemv, X.stride[0] = (int64_t)1 << 31, refuse, "x: stride[0] 2147483648: allowed are 0 to 2147483647");
    SPOIL(gemv, X.shape[0] = 65537, refuse, "x: shape[0] 65537: allowed are 1 to 65536");
    SPOIL(gemv, X.shape[0] = 0, refuse, "x: shape[0] 0: allowed are 1 to 65536");
    SPOIL(gemv, W.dtype = FCC_F32, refuse, "w: dtype f32: allowed are f16 (x's) and f8e4m3");
    SPOIL(gemv, W.shape[1] = 12, refuse, "w: shape[1] 12: allowed is 11 (x's shape[1], K)");
    SPOIL(gemv, Y.dtype = FCC_BF16, refuse, "y: dtype bf16: allowed is f16 (x's)");
    SPOIL(gemv, Y.shape[0] = 1, refuse, "y: shape[0] 1: allowed is 2 (x's shape[0], M)");
    SPOIL(gemv, Y.shape[1] = 31, refuse, "y: shape[1] 31: allowed is 30 (w's shape[0], N)");
    SPOIL(gemv, Y.symmetric = false, refuse,
          "y: in a buffer that takes no results of this communicator: allowed are its symmetric and result buffers");
    SPOIL(gemv, Y.stride[0] = 29, refuse, "y: stride[0] 29: elements overlap: allowed are strides beyond the inner rows");
    SPOIL(gemv, attr_add(&q, 1, FCC_ATTR_BATCH, (int64_t[]){1}, 1), refuse, "attributes: key 3: not one of this operator's");
    SPOIL(gemv, q.args[2].schedule = FCC_SCHEDULE_FUSED, mismatch, "schedule: rank 2 has fused, rank 0 has auto");
    SPOIL(gemv, X.dtype = W.dtype = Y.dtype = FCC_F32, mismatch, "y: dtype: rank 1 has f32, rank 0 has f16");
    SPOIL(gemv, X.shape[0] = Y.shape[0] = 3, mismatch, "y: shape[0]: rank 1 has 3, rank 0 has 2");
    SPOIL(gemv, W.shape[0] = Y.shape[1] = 29, mismatch, "y: shape[1]: rank 1 has 29, rank 0 has 30");
}

/* ---- gemm_all_reduce: as gemv's, but for b, and for rows, of which there may be any number ---- */

static void test_sums(void **state)
{
    (void)state;
    SPOIL(sums, (void)0, mismatch, "");
    SPOIL(sums, X.shape[0] = 0, refuse, "a: shape[0] 0: allowed are 1 to 2147483647");
    SPOIL(sums, W.data = NULL, refuse, "b: absent: it must be there");
    SPOIL(sums, W.dtype = FCC_F32, refuse, "b: dtype f32: allowed are f16 (a's) and f8e4m3");
    SPOIL(sums, W.shape[0] = 12, refuse, "b: shape[0] 12: allowed is 11 (a's shape[1], K)");
    SPOIL(sums, Y.shape[0] = 199, refuse, "c: shape[0] 199: allowed is 200 (a's shape[0], M)");
    SPOIL(sums, Y.shape[1] = 31, refuse, "c: shape[1] 31: allowed is 30 (b's shape[1], N)");
    SPOIL(sums, Y.symmetric = false, refuse,
          "c: in a buffer that takes no results of this communicator: allowed are its symmetric and result buffers");
    SPOIL(sums, attr_add(&q, 1, FCC_ATTR_SEND_ROWS, (int64_t[]){1}, 1), refuse,
          "attributes: key 5: not one of this operator's");
    SPOIL(sums, X.shape[0] = Y.shape[0] = 3, mismatch, "c: shape[0]: rank 1 has 3, rank 0 has 200");
    SPOIL(sums, W.shape[1] = Y.shape[1] = 29, mismatch, "c: shape[1]: rank 1 has 29, rank 0 has 30");
}

/* ---- gemm_reduce_scatter ---- */

static struct request scatter_equal(void)
{
    struct request q = sums();

    for (int r = 0; r < RANKS; r++) {
        q.args[r].op = FCC_OP_GEMM_REDUCE_SCATTER;
        q.args[r].tensors[FCC_GEMM_C].shape[0] = 200 / RANKS + (r < 200 % RANKS);
    }
    return q;
}

#define ROWS attr(&q, 1, FCC_ATTR_ROWS)

static void test_scatter(void **state)
{
    (void)state;
    SPOIL(scatter, (void)0, mismatch, "");
    SPOIL(scatter_equal, (void)0, mismatch, "");
    SPOIL(scatter, ROWS[0] = 71, refuse, "rows[2]: 70: allowed are 0 to 69, for all to add up to a's shape[0], M, 200");
    SPOIL(scatter, ROWS[2] = 69, refuse, "rows: sum 199: allowed is 200 (a's shape[0], M)");
    SPOIL(scatter, (ROWS[0] = 60, ROWS[1] = 70), refuse, "c: shape[0] 60: allowed is 70 (the rows of rank 1)");
    SPOIL(scatter_equal, Y.shape[0] = 66, refuse, "c: shape[0] 66: allowed is 67 (the rows of rank 1)");
    SPOIL(scatter, Y.shape[1] = 31, refuse, "c: shape[1] 31: allowed is 30 (b's shape[1], N)");
    SPOIL(scatter, W.data = NULL, refuse, "b: absent: it must be there");
    SPOIL(scatter, Y.symmetric = false, refuse,
          "c: in a buffer that takes no results of this communicator: allowed are its symmetric and result buffers");
    SPOIL(scatter, (ROWS[0] = 71, ROWS[2] = 69), mismatch, "rows: rank 1 has 71 for rank 0, rank 0 has 70");
    SPOIL(scatter, (X.shape[0] = 190, ROWS[2] = 60), mismatch, "a: shape[0]: rank 1 has 190, rank 0 has 200");
    SPOIL(scatter, W.shape[1] = Y.shape[1] = 29, mismatch, "c: shape[1]: rank 1 has 29, rank 0 has 30");
    SPOIL(scatter, q.args[2].any_order = true, mismatch, "schedule: rank 2 has any order, rank 0 has rank order");
}

/* ---- all_gather_gemm ---- */

#define GATHERED q.args[1].tensors[FCC_GATHER_GATHERED]
#define RESULT q.args[1].tensors[FCC_GATHER_C]

static void test_gathers(void **state)
{
    (void)state;
    SPOIL(gathers, (void)0, mismatch, "");
    SPOIL(gathers, for (int r = 0; r < RANKS; r++) q.args[r].tensors[FCC_GATHER_GATHERED].data = NULL, mismatch, "");
    SPOIL(gathers, (X.stride[0] = 25, GATHERED.stride[0] = 30, GATHERED.symmetric = false), mismatch, "");
    SPOIL(gathers, X.data = NULL, refuse, "a: absent: it must be there");
    SPOIL(gathers, W.data = NULL, refuse, "b: absent: it must be there");
    SPOIL(gathers, RESULT.data = NULL, refuse, "c: absent: it must be there");
    SPOIL(gathers, W.shape[0] = 19, refuse, "b: shape[0] 19: allowed is 20 (a's shape[1], K)");
    SPOIL(gathers, RESULT.shape[1] = 30, refuse, "c: shape[1] 30: allowed is 31 (b's shape[1], N)");
    SPOIL(gathers, RESULT.shape[0] = GATHERED.shape[0] = 10, refuse,
          "c: shape[0] 10: allowed are the rows of all ranks' a, of which this one has 11");
    SPOIL(gathers, RESULT.symmetric = false, refuse,
          "c: in a buffer that takes no results of this communicator: allowed are its symmetric and result buffers");
    SPOIL(gathers, X.stride[0] = 19, refuse, "a: stride[0] 19: rows overlap: allowed are 20 and more");
    SPOIL(gathers, GATHERED.stride[0] = 19, refuse, "gathered: stride[0] 19: rows overlap: allowed are 20 and more");
    SPOIL(gathers, GATHERED.dtype = FCC_F32, refuse, "gathered: dtype f32: allowed is f16 (a's)");
    SPOIL(gathers, GATHERED.shape[0] = 32, refuse, "gathered: shape[0] 32: allowed is 33 (c's shape[0], M)");
    SPOIL(gathers, GATHERED.shape[1] = 21, refuse, "gathered: shape[1] 21: allowed is 20 (a's shape[1], K)");
    SPOIL(gathers, RESULT.dtype = FCC_BF16, refuse, "c: dtype bf16: allowed is f16 (a's)");
    SPOIL(gathers, attr_add(&q, 1, FCC_ATTR_SEND_ROWS, (int64_t[]){1}, 1), refuse,
          "attributes: key 5: not one of this operator's");
    SPOIL(gathers, X.shape[0] = 12, mismatch, "a: the ranks' have 34 rows together, c has 33");
    SPOIL(gathers, RESULT.shape[0] = GATHERED.shape[0] = 34, mismatch, "c: shape[0]: rank 1 has 34, rank 0 has 33");
    SPOIL(gathers, X.shape[1] = W.shape[0] = GATHERED.shape[1] = 19, mismatch, "a: shape[1]: rank 1 has 19, rank 0 has 20");
    SPOIL(gathers, GATHERED.data = NULL, mismatch, "gathered: rank 1 has none, rank 0 has one");
    SPOIL(gathers, q.args[0].tensors[FCC_GATHER_GATHERED].data = NULL, mismatch, "gathered: rank 1 has one, rank 0 has none");
    SPOIL(gathers, X.dtype = W.dtype = RESULT.dtype = GATHERED.dtype = FCC_F32, mismatch,
          "c: dtype: rank 1 has f32, rank 0 has f16");
    SPOIL(gathers, X.dtype = GATHERED.dtype = FCC_F8E4M3, mismatch, "a: dtype: rank 1 has f8e4m3, rank 0 has f16");
}

/* ---- gemm_all_to_all ---- */

static struct request gemm(void)
{
    struct request q = {.args = {{.op = FCC_OP_GEMM_ALL_TO_ALL}}};

    for (int r = 0; r < RANKS; r++) {
        q.args[r] = (struct op_args){.op = FCC_OP_GEMM_ALL_TO_ALL, .ntensors = FCC_GEMM_TENSORS};
        q.args[r].tensors[FCC_GEMM_A] = tensor_of(FCC_F32, 2, 9, 4 + r, 0);
        q.args[r].tensors[FCC_GEMM_B] = tensor_of(FCC_F32, 2, 4 + r, 7, 0);
        q.args[r].tensors[FCC_GEMM_C] = tensor_of(FCC_F32, 2, 10, 7, 0);
    }
    return q;
}

static struct request gemm_counts(void)
{
    struct request q = gemm();

    for (int r = 0; r < RANKS; r++) {
        attr_add(&q, r, FCC_ATTR_SEND_ROWS, (int64_t[]){2, 3, 4}, 3);
        q.args[r].tensors[FCC_GEMM_C].shape[0] = 12;
    }
    return q;
}

#define A q.args[1].tensors[FCC_GEMM_A]
#define B q.args[1].tensors[FCC_GEMM_B]
#define C q.args[1].tensors[FCC_GEMM_C]
#define COUNTS attr(&q, 1, FCC_ATTR_SEND_ROWS)

static void test_gemm(void **state)
{
    (void)state;
    SPOIL(gemm, (void)0, mismatch, "");
    SPOIL(gemm, B.data = NULL, refuse, "c: shape[1] 7: allowed is 5 (a's shape[1], as b is absent)");
    SPOIL(gemm, (B.data = NULL, A.shape[1] = 7), mismatch, "");
    SPOIL(gemm, (B.data = NULL, A.dtype = FCC_F8E4M3), refuse, "a: dtype f8e4m3: allowed where b is absent: f32, f16, bf16");
    SPOIL(gemm, A.data = B.data = NULL, refuse, "a: absent: it must be there");
    SPOIL(gemm, B.dtype = FCC_F16, refuse, "b: dtype f16: allowed are f32 (a's) and f8e4m3");
    SPOIL(gemm, B.shape[0] = 4, refuse, "b: shape[0] 4: allowed is 5 (a's shape[1], K)");
    SPOIL(gemm, C.shape[1] = 8, refuse, "c: shape[1] 8: allowed is 7 (b's shape[1], N)");
    SPOIL(gemm, C.stride[0] = 6, refuse, "c: stride[0] 6: elements overlap: allowed are strides beyond the inner rows");
    SPOIL(gemm, A.shape[0] = 10, refuse, "a: shape[0] 10: without send_rows, allowed are multiples of the number of ranks, 3");
    SPOIL(gemm, C.shape[0] = 8, mismatch, "c: rank 1 receives 9 rows, its c has 8");
    SPOIL(gemm, B.shape[1] = C.shape[1] = 6, mismatch, "c: shape[1]: rank 1 has 6, rank 0 has 7");
    SPOIL(gemm_counts, (void)0, mismatch, "");
    SPOIL(gemm_counts, COUNTS[1] = -1, refuse, "send_rows[1]: -1: allowed are 0 to 7, for all to add up to a's shape[0], M, 9");
    SPOIL(gemm_counts, COUNTS[2] = INT64_MAX, refuse,
          "send_rows[2]: 9223372036854775807: allowed are 0 to 4, for all to add up to a's shape[0], "
          "M, 9");
    SPOIL(gemm_counts, COUNTS[2] = 3, refuse, "send_rows: sum 8: allowed is 9 (a's shape[0], M)");
    SPOIL(gemm_counts, (COUNTS[-1]--, q.args[1].nattrs--), refuse, "send_rows: 2 values: allowed is 3");
    SPOIL(gemm_counts, q.args[2].tensors[FCC_GEMM_C].shape[0] = 11, mismatch, "c: rank 2 receives 12 rows, its c has 11");
}

/* ---- embedding_all_to_all ---- */

/* 2 tables of 5 and 6 rows on each rank, dim 4, 8 samples: 3, 3, 2. */
static struct request embedding(void)
{
    struct request q = {.args = {{.op = FCC_OP_EMBEDDING_ALL_TO_ALL}}};

    for (int r = 0; r < RANKS; r++) {
        q.args[r] = (struct op_args){.op = FCC_OP_EMBEDDING_ALL_TO_ALL, .ntensors = FCC_EMB_TENSORS};
        q.args[r].tensors[FCC_EMB_TABLES] = tensor_of(FCC_F32, 2, 11, 4, 0);
        q.args[r].tensors[FCC_EMB_INDICES] = tensor_of(FCC_I32, 1, 100, 0, 0);
        q.args[r].tensors[FCC_EMB_OFFSETS] = tensor_of(FCC_I32, 1, 17, 0, 0);
        q.args[r].tensors[FCC_EMB_OUT] = tensor_of(FCC_F32, 3, r == 2 ? 2 : 3, 6, 4);
        attr_add(&q, r, FCC_ATTR_TABLE_ROWS, (int64_t[]){5, 6}, 2);
        attr_add(&q, r, FCC_ATTR_POOLING, (int64_t[]){FCC_POOLING_SUM}, 1);
        attr_add(&q, r, FCC_ATTR_BATCH, (int64_t[]){8}, 1);
        attr_add(&q, r, FCC_ATTR_BATCH_SPLIT, (int64_t[]){3, 3, 2}, 3);
    }
    return q;
}

#define EMB(statement, judge, text) SPOIL(embedding, statement, judge, text)
#define T(name) q.args[1].tensors[FCC_EMB_##name]
#define ATTR(name) attr(&q, 1, FCC_ATTR_##name)

static void test_embedding(void **state)
{
    (void)state;
    EMB((void)0, mismatch, "");
    EMB(q.args[1].nattrs = 0, refuse, "table_rows: absent: it must be there");
    EMB(q.args[1].nattrs = 3, refuse, "pooling: 0 values: allowed is 1");
    EMB(q.args[1].nattrs = 5, refuse, "batch: 0 values: allowed is 1");
    EMB(ATTR(POOLING)[0] = 2, refuse, "pooling: 2: allowed are 0 (sum) and 1 (mean)");
    EMB(ATTR(BATCH)[0] = -1, refuse, "batch: -1: allowed are 0 to 2147483647");
    EMB(ATTR(BATCH_SPLIT)[2] = 1, refuse, "batch_split: sum 7: allowed is 8 (batch)");
    EMB(ATTR(BATCH_SPLIT)[0] = 9, refuse, "batch_split[0]: 9: allowed are 0 to 8, for all to add up to batch, 8");
    EMB(T(OUT).shape[0] = 4, refuse, "out: shape[0] 4: allowed is 3 (this rank's part of the batch)");
    EMB(T(OUT).shape[2] = 0, refuse, "out: shape[2] 0: allowed are 1 to 2147483647");
    EMB(T(OUT).stride[2] = 2, refuse, "out: stride[2] 2: allowed is 1");
    EMB(T(OUT).stride[1] = 3, refuse,
        "out: stride[0] 24 and the next ones: elements overlap: allowed are strides beyond the inner rows");
    EMB((T(OUT).stride[1] = 12, T(OUT).stride[0] = 4), mismatch, ""); /* [table][sample][dim] */
    EMB((T(OUT).stride[1] = 11, T(OUT).stride[0] = 4), refuse,
        "out: stride[0] 4 and the next ones: elements overlap: allowed are strides beyond the inner rows");
    EMB(T(OUT).symmetric = false, refuse,
        "out: in a buffer that takes no results of this communicator: allowed are its symmetric and result buffers");
    EMB(T(TABLES).dtype = FCC_F16, refuse, "tables: dtype f16: allowed is f32 (out's)");
    EMB(T(TABLES).shape[1] = 3, refuse, "tables: shape[1] 3: allowed is 4 (out's shape[2], dim)");
    EMB(ATTR(TABLE_ROWS)[1] = 7, refuse, "table_rows[1]: 7: allowed are 0 to 6, for all to add up to tables' shape[0], 11");
    EMB(T(INDICES).dtype = FCC_F32, refuse, "indices: dtype f32: allowed: i32, i64");
    EMB(T(INDICES).stride[0] = 2, refuse, "indices: stride[0] 2: allowed is 1");
    EMB(T(OFFSETS).dtype = FCC_I64, refuse, "offsets: dtype i64: allowed is i32 (indices')");
    EMB(T(OFFSETS).shape[0] = 16, refuse, "offsets: shape[0] 16: allowed is 17 (num_tables * batch + 1)");
    EMB(T(WEIGHTS) = tensor_of(FCC_F32, 1, 99, 0, 0), refuse,
        "sample_weights: shape[0] 99: allowed is 100 (indices' shape[0])");
    EMB(T(WEIGHTS) = tensor_of(FCC_BF16, 1, 100, 0, 0), refuse, "sample_weights: dtype bf16: allowed: f32");
    EMB((T(WEIGHTS) = tensor_of(FCC_F32, 1, 100, 0, 0), ATTR(POOLING)[0] = FCC_POOLING_MEAN), refuse,
        "sample_weights: with mean pooling: allowed with sum only");
    EMB((T(OUT).shape[2] = T(TABLES).shape[1] = 3), mismatch, "out: shape[2]: rank 1 has 3, rank 0 has 4");
    EMB((ATTR(BATCH)[0] = 9, ATTR(BATCH_SPLIT)[2] = 3, T(OFFSETS).shape[0] = 19), mismatch,
        "batch: rank 1 has 9, rank 0 has 8");
    EMB((ATTR(BATCH_SPLIT)[0] = 2, ATTR(BATCH_SPLIT)[2] = 3), mismatch, "batch_split[0]: rank 1 has 2, rank 0 has 3");
    EMB(T(OUT).shape[1] = 5, mismatch, "out: rank 1 has shape[1] 5, all ranks together have 6 tables");
    EMB(q.args[1].nattrs -= 4, mismatch, ""); /* the even split is the same */
}

/* ---- attributes ---- */

static void expect_attrs(const int64_t *words, size_t n, const char *text)
{
    struct error e = {0};

    expect_text(op_attrs_check(words, n, &e), &e, text);
}

static void test_attributes(void **state)
{
    const int64_t ok[] = {3LL << 32 | 1, 7, 1LL << 32 | 0, 5LL << 32 | 2, 8, 9};
    struct op_args args = {.attrs = ok, .nattrs = 6};
    struct error e = {0};
    size_t n = 9;

    (void)state;
    assert_int_equal(op_attrs_check(ok, 6, &e), 0);
    assert_int_equal(op_attrs_check(NULL, 0, &e), 0);
    assert_ptr_equal(op_attr(&args, FCC_ATTR_SEND_ROWS, &n), ok + 4);
    assert_int_equal(n, 2);
    assert_ptr_equal(op_attr(&args, FCC_ATTR_TABLE_ROWS, &n), ok + 3);
    assert_int_equal(n, 0);
    assert_null(op_attr(&args, FCC_ATTR_POOLING, &n));
    expect_attrs(ok, 5, "attributes: key 5 has 2 values: allowed are at most the 1 words that follow");
    expect_attrs((int64_t[]){2LL << 32 | 0xffffffff, 1}, 2,
                 "attributes: key 2 has 4294967295 values: allowed are at most the 1 words that follow");
    expect_attrs((int64_t[]){2LL << 32, 2LL << 32}, 2, "attributes: key 2 twice: allowed is once");
    expect_attrs((int64_t[]){0}, 1, "attributes: key 0: allowed are 1 to 19");
    expect_attrs((int64_t[]){-1}, 1, "attributes: key 4294967295: allowed are 1 to 19");
    assert_null(op_spec(FCC_OP_COUNT));
}

/* What ranks say of themselves when they open rings: whether all of them have the vendor's library of products, and
 * more: what all have. */
static void test_rings(void **state)
{
    struct problem *problem = problem_new(RANKS);
    struct error e = {0};

    (void)state;
    assert_non_null(problem);
    for (int lacks = -1; lacks <= 2 * RANKS; lacks++) { /* up to RANKS - 1 that rank says no, beyond that it says nothing */
        struct op_args args[RANKS];
        int64_t words[RANKS][2];
        for (int r = 0; r < RANKS; r++) {
            words[r][0] = (int64_t)FCC_ATTR_LIBRARY << 32 | 1;
            words[r][1] = r != lacks;
            args[r] = (struct op_args){.op = FCC_OP_RINGS, .attrs = words[r], .nattrs = r == lacks - RANKS ? 0 : 2};
            assert_int_equal(op_check(&args[r], RANKS, r, &e), 0);
        }
        assert_int_equal(problem_begin(problem, FCC_OP_RINGS), 0);
        assert_int_equal(op_match(args, RANKS, problem, &e), 0);
        assert_int_equal(problem->dim[DIM_N], lacks < 0 || lacks == 2 * RANKS);
        for (int r = 0; r < RANKS; r++) /* the least of them, if all say something */
            words[r][1] = 3 - r % 3;
        assert_int_equal(problem_begin(problem, FCC_OP_RINGS), 0);
        assert_int_equal(op_match(args, RANKS, problem, &e), 0);
        assert_int_equal(problem->dim[DIM_N], lacks < RANKS || lacks == 2 * RANKS ? 3 - (RANKS > 2 ? 2 : RANKS - 1) : 0);
        words[0][1] = 4;
        args[0].nattrs = 2;
        expect_text(op_check(&args[0], RANKS, 0, &e), &e, "library: allowed is one number, 0 to 3");
    }
    problem_free(problem);
}

/* ---- inputs that lie where a result is stored ---- */

enum { BYTES = 8192 };

static unsigned char places[BYTES]; /* only places matter here, too */

/* Mark the bytes of all elements; true if one was marked before. */
static bool bytes_mark(const struct tensor *t, unsigned char *bytes)
{
    size_t size = dtype_size(t->dtype), at;
    bool any = false;

    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < (t->ndim > 1 ? t->shape[1] : 1); j++)
            for (int64_t k = 0; k < (t->ndim > 2 ? t->shape[2] : 1); k++)
                for (size_t byte = 0; byte < size; byte++) {
                    at = (size_t)(t->data - places) + (size_t)(i * t->stride[0]) * size + byte;
                    at += (size_t)((t->ndim > 1 ? j * t->stride[1] : 0) + (t->ndim > 2 ? k * t->stride[2] : 0)) * size;
                    assert_true(at < BYTES);
                    any |= bytes[at];
                    bytes[at] = 1;
                }
    return any;
}

/* Two or three dimensions, dense inside, with rows of `pitch` elements. */
static struct tensor tensor_random(enum fcc_dtype dtype, int64_t pitch)
{
    struct tensor t = {.dtype = dtype, .ndim = 2 + (int)random_below(2)};
    int64_t inner = 1 + random_below(pitch), size = (int64_t)dtype_size(dtype);

    t.shape[0] = random_size(7);
    t.stride[0] = pitch;
    if (t.ndim == 2) {
        t.shape[1] = inner;
        t.stride[1] = 1;
    } else {
        t.shape[2] = 1 + random_below(inner);
        t.shape[1] = inner / t.shape[2];
        t.stride[1] = t.shape[2];
        t.stride[2] = 1;
    }
    t.data = places + random_below(1024) * size;
    return t;
}

static void test_overlap(void **state)
{
    static unsigned char bytes[BYTES];
    int apart = 0, interleaved = 0;

    (void)state;
    for (int i = 0; i < 200000; i++) {
        enum fcc_dtype dtype = random_below(2) ? FCC_F32 : FCC_F16;
        int64_t pitch = 1 + random_below(24);
        bool same = random_below(2) != 0;
        struct tensor a = tensor_random(dtype, pitch), b = tensor_random(dtype, same ? pitch : 1 + random_below(24));
        memset(bytes, 0, sizeof(bytes));
        (void)bytes_mark(&a, bytes);
        bool truth = bytes_mark(&b, bytes), told = tensors_overlap(&a, &b);
        (void)snprintf(case_text, sizeof(case_text), "case %d: [%d][%d] at %d and [%d][%d] at %d, pitches %d and %d", i,
                       (int)a.shape[0], (int)a.shape[1], (int)(a.data - places), (int)b.shape[0], (int)b.shape[1],
                       (int)(b.data - places), (int)a.stride[0], (int)b.stride[0]);
        EXPECT(told || !truth);
        EXPECT(told == tensors_overlap(&b, &a));
        EXPECT(!same || told == truth);
        apart += !told;
        interleaved += !told && a.data < b.data + tensor_reach(&b) && b.data < a.data + tensor_reach(&a);
    }
    assert_true(apart > 20000 && interleaved > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemv),       cmocka_unit_test(test_sums),  cmocka_unit_test(test_scatter),
        cmocka_unit_test(test_gathers),    cmocka_unit_test(test_gemm),  cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_attributes), cmocka_unit_test(test_rings), cmocka_unit_test(test_overlap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
