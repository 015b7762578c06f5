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
#include <errno.h>
#include <math.h>

#include "kernels/plan/program.h"
#include "kernels/plan/tensor.h"
#include "tests/bed/random.h"

enum { RANKS = 3, WORDS = 64 };

struct request {
    struct op_args args[RANKS];
    int64_t words[RANKS][WORDS];
};

static unsigned char memory[64]; /* never read or written: only places matter here */

static struct tensor tensor_of(enum fcc_dtype dtype, int ndim, int64_t n0, int64_t n1, int64_t n2)
{
    struct tensor t = {.data = memory, .dtype = dtype, .ndim = ndim, .symmetric = true, .shape = {n0, n1, n2}};

    for (int i = ndim - 1, stride = 1; i >= 0; stride *= (int)t.shape[i--])
        t.stride[i] = stride;
    return t;
}

static void attr_add(struct request *q, int rank, enum fcc_attr key, const int64_t *values, size_t n)
{
    struct op_args *a = &q->args[rank];

    /* The words are found through args.attrs, which SPOIL sets when the request is at its place. */
    q->words[rank][a->nattrs++] = (int64_t)((uint64_t)key << 32 | n);
    for (size_t i = 0; i < n; i++)
        q->words[rank][a->nattrs++] = values[i];
}

/* The values of a rank's attribute, to spoil them. */
static int64_t *attr(struct request *q, int rank, enum fcc_attr key)
{
    size_t n;

    return q->words[rank] + (op_attr(&q->args[rank], key, &n) - q->args[rank].attrs);
}

static void expect_text(int status, const struct error *e, const char *text)
{
    if (status != -EINVAL || strcmp(e->text, text) != 0)
        fail_msg("status %d, \"%s\", expected \"%s\"", status, e->text, text);
}

/* Rank 1's request alone is refused with this text. */
static void refuse(const struct request *q, const char *text)
{
    struct error e = {0};

    expect_text(op_check(&q->args[1], RANKS, 1, &e), &e, text);
}

/* Each rank's request is well by itself, together they are refused with this text; "" means that they fit. */
static void mismatch(const struct request *q, const char *text)
{
    const struct op_args *args = q->args;
    struct problem *problem = problem_new(RANKS);
    int64_t dim[DIMS] = {0};
    struct error e = {0};

    for (int r = 0; r < RANKS; r++)
        if (op_check(&q->args[r], RANKS, r, &e))
            fail_msg("rank %d: %s", r, e.text);
    assert_non_null(problem);
    assert_int_equal(problem_begin(problem, args->op), 0);
    if (*text == '\0')
        assert_int_equal(op_match(args, RANKS, problem, &e), 0);
    else
        expect_text(op_match(args, RANKS, problem, &e), &e, text);
    if (*text && q->args[0].op != FCC_OP_GEMM_ALL_TO_ALL) { /* which needs the problem to see whether the rows fit */
        assert_memory_equal(problem->dim, dim, sizeof(dim));
        for (int i = 0; i < RANK_DIMS * RANKS; i++)
            assert_int_equal(problem->rank_dim[i / RANKS][i % RANKS], 0);
    }
    problem_free(problem);
}

/* A good request, with its attributes where it lies now, is spoiled and judged. */
#define SPOIL(make, statement, judge, text)                                                                                    \
    do {                                                                                                                       \
        struct request q = make();                                                                                             \
        for (int r = 0; r < RANKS; r++)                                                                                        \
            q.args[r].attrs = q.words[r];                                                                                      \
        statement;                                                                                                             \
        judge(&q, text);                                                                                                       \
    } while (0)

/* ---- gemv_all_reduce ---- */

static struct request gemv(void)
{
    struct request q = {.args = {{.op = FCC_OP_GEMV_ALL_REDUCE}}};

    for (int r = 0; r < RANKS; r++) {
        q.args[r] = (struct op_args){.op = FCC_OP_GEMV_ALL_REDUCE, .ntensors = FCC_GEMV_TENSORS};
        q.args[r].tensors[FCC_GEMV_X] = tensor_of(FCC_F16, 2, 2, 10 + r, 0);
        q.args[r].tensors[FCC_GEMV_W] = tensor_of(FCC_F16, 2, 30, 10 + r, 0);
        q.args[r].tensors[FCC_GEMV_Y] = tensor_of(FCC_F16, 2, 2, 30, 0);
    }
    return q;
}

#define X q.args[1].tensors[FCC_GEMV_X]
#define W q.args[1].tensors[FCC_GEMV_W]
#define Y q.args[1].tensors[FCC_GEMV_Y]

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
    SPOIL(gemv, X.shape[0] = 65, refuse, "x: shape[0] 65: allowed are 1 to 64");
    SPOIL(gemv, X.shape[0] = 0, refuse, "x: shape[0] 0: allowed are 1 to 64");
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

static struct request sums(void)
{
    struct request q = {.args = {{.op = FCC_OP_GEMM_ALL_REDUCE}}};

    for (int r = 0; r < RANKS; r++) {
        q.args[r] = (struct op_args){.op = FCC_OP_GEMM_ALL_REDUCE, .ntensors = FCC_GEMM_TENSORS};
        q.args[r].tensors[FCC_GEMM_A] = tensor_of(FCC_F16, 2, 200, 10 + r, 0);
        q.args[r].tensors[FCC_GEMM_B] = tensor_of(FCC_F16, 2, 10 + r, 30, 0);
        q.args[r].tensors[FCC_GEMM_C] = tensor_of(FCC_F16, 2, 200, 30, 0);
    }
    return q;
}

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

/* ---- epilogues ---- */

static struct request with_epilogue(struct request q, int64_t rows, int64_t cols)
{
    for (int r = 0; r < RANKS; r++) {
        enum fcc_dtype dtype = q.args[r].tensors[FCC_GEMM_A].dtype;
        q.args[r].ntensors = FCC_GEMM_TENSORS + STAGES;
        q.args[r].tensors[FCC_GEMM_TENSORS + STAGE_BIAS] = tensor_of(dtype, 1, cols, 0, 0);
        q.args[r].tensors[FCC_GEMM_TENSORS + STAGE_RESIDUAL] = tensor_of(dtype, 2, rows, cols, 0);
    }
    return q;
}

static struct request gemv_epilogue(void)
{
    return with_epilogue(gemv(), 2, 30);
}

/* Numbers of rank 1, or of all ranks. */
static void numbers_add(struct request *q, int first, enum epilogue_number at, int64_t value)
{
    int64_t numbers[EPILOGUE_NUMBERS] = {[NUMBER_NORM] = FCC_RMS_NORM};

    for (int r = 0; r < RANKS; r++) {
        numbers[at] = r >= first ? value : at == NUMBER_NORM ? FCC_RMS_NORM : 0;
        attr_add(q, r, FCC_ATTR_EPILOGUE, numbers, EPILOGUE_NUMBERS);
    }
}

#define STAGE(stage) q.args[1].tensors[FCC_GEMM_TENSORS + (stage)]
#define BIAS q.args[1].tensors[FCC_GEMM_TENSORS + STAGE_BIAS]
#define RESIDUAL q.args[1].tensors[FCC_GEMM_TENSORS + STAGE_RESIDUAL]

static void test_epilogue(void **state)
{
    (void)state;
    SPOIL(gemv_epilogue, (void)0, mismatch, "");
    SPOIL(gemv_epilogue, q.args[1].ntensors = 2, refuse, "tensors: 2: allowed is 3");
    SPOIL(gemv_epilogue, q.args[1].ntensors = 14, refuse, "tensors: 14: allowed is 3");
    SPOIL(gemv_epilogue, BIAS.data = NULL, mismatch, "bias: rank 1 has none, rank 0 has one");
    SPOIL(gemv_epilogue, RESIDUAL.data = NULL, mismatch, "residual: rank 1 has none, rank 0 has one");
    SPOIL(gemv_epilogue, q.args[0].tensors[FCC_GEMM_TENSORS + STAGE_BIAS].data = NULL, mismatch,
          "bias: rank 1 has one, rank 0 has none");
    SPOIL(gemv_epilogue, q.args[1].ntensors = FCC_GEMV_TENSORS, mismatch, "bias: rank 1 has none, rank 0 has one");
    SPOIL(gemv_epilogue, BIAS.dtype = FCC_F32, refuse, "bias: dtype f32: allowed is f16 (y's)");
    SPOIL(gemv_epilogue, BIAS.shape[0] = 29, refuse, "bias: shape[0] 29: allowed is 30 (N)");
    SPOIL(gemv_epilogue, BIAS.ndim = 2, refuse, "bias: 2 dimensions: allowed is 1");
    SPOIL(gemv_epilogue, RESIDUAL.dtype = FCC_I64, refuse, "residual: dtype i64: allowed: f32, f16, bf16");
    SPOIL(gemv_epilogue, RESIDUAL.shape[0] = 3, refuse, "residual: shape[0] 3: allowed is 2 (M)");
    SPOIL(gemv_epilogue, RESIDUAL.shape[1] = 31, refuse, "residual: shape[1] 31: allowed is 30 (N)");
    SPOIL(gemv_epilogue, RESIDUAL.stride[1] = 2, refuse, "residual: stride[1] 2: allowed is 1");
}

#define F32_BITS(number)                                                                                                       \
    (union {                                                                                                                   \
        float f;                                                                                                               \
        uint32_t u;                                                                                                            \
    }){.f = (number)}                                                                                                          \
        .u

static void test_epilogue_numbers(void **state)
{
    (void)state;
    SPOIL(gemv_epilogue, numbers_add(&q, 0, NUMBER_NORM, 1), mismatch, "");
    SPOIL(gemv_epilogue, attr_add(&q, 1, FCC_ATTR_EPILOGUE, (int64_t[]){1}, 1), refuse, "epilogue: 1 numbers: expected 5");
    SPOIL(gemv_epilogue, numbers_add(&q, 0, NUMBER_NORM, 3), refuse, "norm: 3: allowed are 0 to 2");
    SPOIL(gemv_epilogue, numbers_add(&q, 0, NUMBER_NORM, -1), refuse, "norm: -1: allowed are 0 to 2");
    SPOIL(gemv_epilogue, numbers_add(&q, 0, NUMBER_ACTIVATION, 5), refuse, "activation: 5: allowed are 0 to 4");
    SPOIL(gemv_epilogue, numbers_add(&q, 0, NUMBER_QUANTIZATION, 3), refuse, "quantization: 3: allowed are 0 to 2");
    SPOIL(gemv_epilogue, numbers_add(&q, 0, NUMBER_NORM_EPS, F32_BITS(-1e-5f)), refuse,
          "norm_eps: -1e-05: allowed are finite numbers, 0 and more");
    SPOIL(gemv_epilogue, numbers_add(&q, 0, NUMBER_NORM_EPS, INT64_C(1) << 40), refuse,
          "norm_eps: 1099511627776: allowed are the bits of an f32");
    SPOIL(gemv_epilogue, numbers_add(&q, 0, NUMBER_SCALE, F32_BITS(INFINITY)), refuse,
          "scale: inf: allowed are finite numbers");
    SPOIL(gemv_epilogue, numbers_add(&q, 1, NUMBER_NORM, 2), mismatch, "norm: rank 1 has 2, rank 0 has 1");
    SPOIL(gemv_epilogue, numbers_add(&q, 1, NUMBER_NORM_EPS, F32_BITS(0.5f)), mismatch,
          "norm_eps: rank 1 has 0.5, rank 0 has 0");
    SPOIL(gemv_epilogue, STAGE(STAGE_NORM_WEIGHT) = BIAS, refuse, "norm_weight: given: allowed only with a norm");
    SPOIL(gemv_epilogue, (numbers_add(&q, 0, NUMBER_NORM, 1), STAGE(STAGE_NORM_BIAS) = BIAS), refuse,
          "norm_bias: given: allowed only with a LayerNorm (norm 2)");
    SPOIL(gemv_epilogue, (numbers_add(&q, 0, NUMBER_NORM, 1), STAGE(STAGE_NORM_WEIGHT) = BIAS), mismatch,
          "norm_weight: rank 1 has one, rank 0 has none");
    SPOIL(gemv_epilogue,
          (numbers_add(&q, 0, NUMBER_NORM, 1), STAGE(STAGE_NORM_WEIGHT) = BIAS, STAGE(STAGE_NORM_WEIGHT).shape[0] = 29), refuse,
          "norm_weight: shape[0] 29: allowed is 30 (N)");
    SPOIL(gemv_epilogue, (STAGE(STAGE_SUM) = RESIDUAL, STAGE(STAGE_SUM).stride[0] = 29), refuse,
          "sum: stride[0] 29: rows overlap: allowed are 30 and more");
    SPOIL(gemv_epilogue, numbers_add(&q, 0, NUMBER_QUANTIZATION, 1), refuse, "quantized: absent: needed with quantization 1");
    SPOIL(gemv_epilogue, STAGE(STAGE_QUANTIZED) = tensor_of(FCC_F8E4M3, 2, 2, 30, 0), refuse,
          "quantized: given: allowed only with a quantization");
    SPOIL(gemv_epilogue,
          (numbers_add(&q, 0, NUMBER_QUANTIZATION, 2), STAGE(STAGE_QUANTIZED) = tensor_of(FCC_F8E4M3, 2, 2, 30, 0),
           STAGE(STAGE_QUANTIZED_SCALE) = tensor_of(FCC_F32, 1, 1, 0, 0)),
          refuse, "quantized_scale: shape[0] 1: allowed is 2 (one scale for each row)");
    SPOIL(gemv_epilogue,
          (numbers_add(&q, 0, NUMBER_QUANTIZATION, 1), STAGE(STAGE_QUANTIZED) = tensor_of(FCC_F8E4M3, 2, 2, 30, 0),
           STAGE(STAGE_QUANTIZED_SCALE) = tensor_of(FCC_F32, 1, 2, 0, 0)),
          refuse, "quantized_scale: shape[0] 2: allowed is 1 (one scale)");
}

/* ---- factors in f8e4m3 ---- */

static struct request f8_of(struct request q)
{
    for (int r = 0; r < RANKS; r++) {
        const struct tensor *a = &q.args[r].tensors[FCC_GEMM_A];
        q.args[r].ntensors = FCC_GEMM_TENSORS + STAGES;
        q.args[r].tensors[FCC_GEMM_A].dtype = q.args[r].tensors[FCC_GEMM_B].dtype = FCC_F8E4M3;
        q.args[r].tensors[FCC_GEMM_TENSORS + STAGE_X_SCALE] = tensor_of(FCC_F32, 1, a->shape[0], 0, 0);
        q.args[r].tensors[FCC_GEMM_TENSORS + STAGE_W_SCALE] = tensor_of(FCC_F32, 1, 30, 0, 0);
    }
    return q;
}

static struct request gemv_f8(void)
{
    return f8_of(gemv());
}

static struct request sums_f8(void)
{
    return f8_of(sums());
}

#define X_SCALE STAGE(STAGE_X_SCALE)
#define W_SCALE STAGE(STAGE_W_SCALE)

static void test_factors(void **state)
{
    (void)state;
    SPOIL(gemv_f8, (void)0, mismatch, "");
    SPOIL(gemv_f8, X_SCALE = tensor_of(FCC_F32, 1, 1, 0, 0), mismatch, "");
    SPOIL(gemv_f8, X_SCALE = tensor_of(FCC_F32, 2, 1, 1, 0), mismatch, "");
    SPOIL(gemv_f8, X_SCALE = tensor_of(FCC_F32, 2, 2, 1, 0), mismatch, "");
    SPOIL(gemv_f8, W_SCALE = tensor_of(FCC_F32, 2, 1, 1, 0), mismatch, "");
    SPOIL(sums_f8, X_SCALE = tensor_of(FCC_F32, 2, 2, 1, 0), mismatch, "");
    SPOIL(sums_f8, X_SCALE = tensor_of(FCC_F32, 2, 200, 1, 0), mismatch, "");
    SPOIL(sums_f8, X_SCALE = tensor_of(FCC_F32, 2, 3, 1, 0), refuse,
          "x_scale: shape [3][1]: allowed are [1], [200] (each row of a), [2][1] (each block of 128 x 128), [200][1] (each 128 "
          "elements "
          "of a row)");
    SPOIL(sums_f8, X_SCALE.shape[0] = 199, refuse,
          "x_scale: shape [199]: allowed are [1], [200] (each row of a), [2][1] (each block of 128 x 128), [200][1] (each 128 "
          "elements "
          "of a row)");
    SPOIL(sums_f8, W_SCALE.shape[0] = 11, refuse,
          "w_scale: shape [11]: allowed are [1], [30] (each column of b), [1][1] (each block of 128 x 128)");
    SPOIL(gemv_f8, W_SCALE = tensor_of(FCC_F32, 2, 30, 1, 0), refuse,
          "w_scale: shape [30][1]: allowed are [1], [30] (each row of w), [1][1] (each block of 128 x 128)");
    SPOIL(gemv_f8, W_SCALE.ndim = 3, refuse, "w_scale: 3 dimensions: allowed are 1 and 2");
    SPOIL(gemv_f8, W_SCALE.stride[0] = 2, refuse, "w_scale: stride[0] 2: allowed is 1");
    SPOIL(gemv_f8, W_SCALE.dtype = FCC_F16, refuse, "w_scale: dtype f16: allowed: f32");
    SPOIL(gemv_f8, W_SCALE.data = NULL, mismatch, "w_scale: rank 1 has none, rank 0 has one");
    SPOIL(gemv_f8, W.dtype = FCC_F16, refuse, "w_scale: given: allowed only where w is f8e4m3");
    SPOIL(gemv_f8, (W.dtype = FCC_F16, W_SCALE.data = NULL), mismatch, "w: dtype: rank 1 has f16, rank 0 has f8e4m3");
    SPOIL(gemv_f8, (W.dtype = FCC_F32, W_SCALE.data = NULL), refuse, "y: dtype f16: allowed is f32 (w's)");
    SPOIL(gemv_f8, Y.dtype = FCC_F8E4M3, refuse, "y: dtype f8e4m3: allowed: f32, f16, bf16");
    SPOIL(gemv_f8, Y.dtype = FCC_BF16, mismatch, "y: dtype: rank 1 has bf16, rank 0 has f16");
    SPOIL(gemv, X.dtype = FCC_F8E4M3, mismatch, "x: dtype: rank 1 has f8e4m3, rank 0 has f16");
    SPOIL(gemv, X.dtype = FCC_F8E5M2, refuse, "x: dtype f8e5m2: allowed: f32, f16, bf16, f8e4m3");
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
    expect_attrs((int64_t[]){0}, 1, "attributes: key 0: allowed are 1 to 13");
    expect_attrs((int64_t[]){-1}, 1, "attributes: key 4294967295: allowed are 1 to 13");
    assert_null(op_spec(FCC_OP_COUNT));
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
        cmocka_unit_test(test_gemv),      cmocka_unit_test(test_sums),
        cmocka_unit_test(test_epilogue),  cmocka_unit_test(test_epilogue_numbers),
        cmocka_unit_test(test_factors),   cmocka_unit_test(test_gemm),
        cmocka_unit_test(test_embedding), cmocka_unit_test(test_attributes),
        cmocka_unit_test(test_overlap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
