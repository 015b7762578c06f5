/* SPDX-License-Identifier: MIT
 *
 * stage_cases.h - products with epilogues drawn at random: all stages, sums, norms, activations, gates, and results in e4m3, of every operator that
 * may have one. What they give is compared with the plain double-precision reference below; what precedes a norm is known to the last bit,
 * because the elements are small multiples of 1/8.
 */
#ifndef FCC_TEST_STAGE_CASES_H
#define FCC_TEST_STAGE_CASES_H

#include <math.h>

#include "tests/operators/collective_bed.h"

#include "tests/bed/random.h"
#include "tests/bed/value.h"
#include "tests/demo/reference.h"

enum stage_op {
    OP_GEMV,
    OP_GEMM,
    OP_PUT,
    OP_SUM,
    OP_SCATTER,
    STAGE_OPS
}; /* SUM: all_reduce, of [m][n] elements as one vector */
enum { STAGE_RANKS = 8, ROWS_MOST = 20, COLS_MOST = 260, K_MOST = 12 };
enum part {
    PART_A,
    PART_B,
    PART_BIAS,
    PART_RESIDUAL,
    PART_GATE,
    PART_WEIGHT,
    PART_NORM_BIAS,
    PART_SUM,
    PART_F8,
    PART_SCALE,
    PARTS
};

static inline size_t dtype_bytes(enum fcc_dtype dtype)
{
    return dtype == FCC_F32 ? 4 : dtype == FCC_F8E4M3 ? 1 : 2;
}

struct stage_case {
    enum stage_op op;
    enum fcc_dtype dtype;
    uint32_t schedule;
    int n, k[STAGE_RANKS], m[STAGE_RANKS];  /* columns; K and rows of each rank */
    int64_t rows[STAGE_RANKS][STAGE_RANKS]; /* PUT: of each rank for each. SCATTER: [0] of the sum for each rank */
    bool over;                              /* all_reduce in place */
    bool bias, residual, in_place, sum, weight, norm_bias, gate;
    enum fcc_norm norm;
    enum fcc_activation activation;
    enum fcc_quantization quantization;
    float eps, scale, quantized_scale;
    unsigned seed;
};

/* Whose tensors the epilogue of a row has: those of the rank that makes it, or, the same on all ranks, rank 0's. */
static inline unsigned stage_maker(const struct stage_case *c, int maker)
{
    return c->op == OP_PUT || c->op == OP_SCATTER ? (unsigned)maker : 0;
}

/* The rows of a rank's residual and gate. */
static inline int64_t stage_own_rows(const struct stage_case *c, int rank)
{
    return c->op == OP_SCATTER ? c->rows[0][rank] : c->m[rank];
}

/* ---- where tensors lie ---- */

static inline uint64_t part_at(enum part part)
{
    return (uint64_t)part * (ROOM / PARTS / 64 * 64);
}

/* A tensor in the rank's buffers, or, on a stream, in its own memory. rows -1: of one dimension. */
static inline struct fcc_tensor tensor_in(const struct rank *r, int which, uint64_t at, enum fcc_dtype dtype, int64_t rows,
                                          int64_t cols)
{
    fcc_buffer *buffer = r->move ? FCC_ADDRESS : which ? r->result : r->local;
    const uint64_t place = r->move ? r->memory[which] + at : at;

    return rows < 0 ? fcc_tensor_1d(buffer, place, dtype, cols) : fcc_tensor_2d(buffer, place, dtype, rows, cols);
}

static inline struct fcc_tensor part_of(const struct rank *r, enum part part, enum fcc_dtype dtype, int64_t rows, int64_t cols)
{
    return tensor_in(r, 0, part_at(part), dtype, rows, cols);
}

/* ---- what is to come ---- */

static inline enum reference_type reference_of(enum fcc_dtype dtype)
{
    return dtype == FCC_F32 ? REFERENCE_F32 : dtype == FCC_F16 ? REFERENCE_F16 : REFERENCE_BF16;
}

static inline double rounded(enum fcc_dtype dtype, double v)
{
    return dtype == FCC_F32 ? (double)(float)v : reference_round(reference_of(dtype), v);
}

/* Whether the ranks' processes have cuBLAS: what it multiplies is rounded before it is sent. */
static bool stage_library;

static inline bool is_rounded_first(const struct stage_case *c)
{
    return stage_library && c->op == OP_GEMV &&
           (c->schedule == FCC_SCHEDULE_SEQUENTIAL || (c->schedule == FCC_SCHEDULE_AUTO && c->m[0] > 1));
}

/* Element [i][j] of what rank r computes. */
static inline double product_at(const struct stage_case *c, int r, int i, int j)
{
    double sum = 0;

    if (c->op == OP_SUM)
        return value(c->seed + (unsigned)r, (int64_t)i * c->n + j);
    for (int q = 0; q < c->k[r]; q++)
        sum += value(c->seed + (unsigned)r, (int64_t)i * c->k[r] + q) *
               value(c->seed + 100u + (unsigned)r, c->op == OP_GEMV ? (int64_t)j * c->k[r] + q : (int64_t)q * c->n + j);
    return sum;
}

/* Of rank `maker`, which adds up row i of its rows, or of the result. */
static inline double added_at(const struct stage_case *c, int nranks, int maker, int i, int j)
{
    const unsigned of = stage_maker(c, maker);
    int row = i; /* of the product */
    double sum = 0;

    for (int p = 0; p < maker && c->op == OP_SCATTER; p++)
        row += (int)c->rows[0][p];
    for (int r = 0; r < nranks; r++) {
        const double part = c->op != OP_PUT || r == maker ? product_at(c, r, row, j) : 0;
        sum += is_rounded_first(c) ? rounded(c->dtype, part) : part;
    }
    return sum + (c->bias ? value(c->seed + 200u + of, j) : 0) +
           (c->residual ? value(c->seed + 300u + of, (int64_t)i * c->n + j) : 0);
}

static inline double silu_of(double v)
{
    return v / (1 + exp(-v));
}

static inline double each_of(const struct stage_case *c, int maker, int i, int j, double v)
{
    const unsigned of = stage_maker(c, maker);

    v = c->activation == FCC_RELU        ? (v > 0 ? v : 0)
        : c->activation == FCC_GELU      ? 0.5 * v * (1 + erf(v / sqrt(2)))
        : c->activation == FCC_GELU_TANH ? 0.5 * v * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (v + 0.044715 * v * v * v)))
        : c->activation == FCC_SILU      ? silu_of(v)
                                         : v;
    v *= c->gate ? silu_of(value(c->seed + 400u + of, (int64_t)i * c->n + j)) : 1;
    return v * (c->scale != 0 ? (double)c->scale : 1);
}

/* A row of the result, and of what `sum` gets. */
static inline void row_expect(const struct stage_case *c, int nranks, int maker, int i, double *sum, double *out)
{
    double mean = 0, squares = 0;

    for (int j = 0; j < c->n; j++) {
        out[j] = added_at(c, nranks, maker, i, j);
        if (c->norm || c->sum)
            out[j] = rounded(c->dtype, out[j]);
        sum[j] = out[j];
        mean += out[j] / c->n;
    }
    for (int j = 0; j < c->n; j++)
        squares += (out[j] - (c->norm == FCC_LAYER_NORM ? mean : 0)) * (out[j] - (c->norm == FCC_LAYER_NORM ? mean : 0));
    for (int j = 0; j < c->n; j++) {
        if (c->norm)
            out[j] = (out[j] - (c->norm == FCC_LAYER_NORM ? mean : 0)) / sqrt(squares / c->n + (double)c->eps) *
                         (c->weight ? value(c->seed + 500u, j) : 1) +
                     (c->norm_bias ? value(c->seed + 600u, j) : 0);
        out[j] = each_of(c, maker, i, j, out[j]);
    }
}

static inline double f8_value(unsigned char code)
{
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const double v = exponent ? ldexp(1 + fraction / 8.0, exponent - 7) : ldexp(fraction / 8.0, -6);

    return (code & 0x7f) == 0x7f ? NAN : code & 0x80 ? -v : v;
}

/* The code nearest to v, of two equally near ones the even one; beyond 448 that. */
static inline unsigned char f8_of(double v)
{
    unsigned char best = 0;

    for (unsigned code = 0; code < 0x7f; code++) {
        const double d = fabs(f8_value((unsigned char)code) - fabs(v)), least = fabs(f8_value(best) - fabs(v));
        best = d < least || (d == least && code % 2 == 0) ? (unsigned char)code : best;
    }
    return (unsigned char)(best | (signbit(v) ? 0x80 : 0));
}

/* ---- the run ---- */

static inline void part_fill(const struct rank *r, enum part part, enum fcc_dtype dtype, unsigned seed, int64_t n)
{
    CHECK((uint64_t)n * dtype_bytes(dtype) <= ROOM / PARTS / 64 * 64);
    for (int64_t i = 0; i < n; i++)
        value_store(dtype, r->images[0] + part_at(part), i, value(seed, i));
}

/* What is moved of a large room costs more under a sanitizer than what is multiplied. */
static inline void tensor_move(const struct rank *r, const struct fcc_tensor *t)
{
    const int64_t stride = t->stride[0] ? t->stride[0] : t->shape[1]; /* none are given: dense */
    const int64_t reach = t->ndim == 1 ? t->shape[0] : t->shape[0] ? (t->shape[0] - 1) * stride + t->shape[1] : 0;

    if (t->buffer && reach > 0)
        image_move_bytes(r, 0, t->offset, (size_t)reach * dtype_bytes((enum fcc_dtype)t->dtype), false);
}

enum { BEHIND = 64 }; /* bytes behind a result, which stay as they are */

static inline void result_move(const struct rank *r, size_t bytes, bool out)
{
    if (!out)
        memset(r->images[1], 0xff, bytes + BEHIND);
    image_move_bytes(r, 1, 0, bytes + BEHIND, out);
}

/* How many rows a rank gets, and which ranks made them: maker[row], and their numbers there. */
static inline int rows_of_result(const struct stage_case *c, int nranks, int rank, int maker[], int at[])
{
    int n = 0;

    if (c->op != OP_PUT) {
        for (int i = 0; i < stage_own_rows(c, rank); i++, n++) {
            maker[n] = (int)stage_maker(c, rank);
            at[n] = i;
        }
        return n;
    }
    for (int s = 0; s < nranks; s++) {
        int before = 0;
        for (int p = 0; p < rank; p++)
            before += (int)c->rows[s][p];
        for (int i = 0; i < c->rows[s][rank]; i++, n++) {
            maker[n] = s;
            at[n] = before + i;
        }
    }
    return n;
}

static inline int stage_rows(const struct rank *r, const struct stage_case *c)
{
    int maker[ROWS_MOST * STAGE_RANKS], at[ROWS_MOST * STAGE_RANKS];

    return rows_of_result(c, r->n, r->rank, maker, at);
}

static inline void epilogue_fill(const struct rank *r, const struct stage_case *c, int64_t result_rows,
                                 const struct fcc_tensor *result, struct fcc_epilogue *e)
{
    const unsigned of = stage_maker(c, r->rank);
    const int64_t m = stage_own_rows(c, r->rank), n = c->n;

    *e = (struct fcc_epilogue){
        .norm = c->norm, .norm_eps = c->eps, .activation = c->activation, .scale = c->scale, .quantization = c->quantization};
    part_fill(r, PART_BIAS, c->dtype, c->seed + 200u + of, n);
    part_fill(r, PART_GATE, c->dtype, c->seed + 400u + of, m * n);
    part_fill(r, PART_WEIGHT, c->dtype, c->seed + 500u, n);
    part_fill(r, PART_NORM_BIAS, c->dtype, c->seed + 600u, n);
    memset(r->images[0] + part_at(PART_SUM), 0xff, 2 * (ROOM / PARTS / 64 * 64));
    part_fill(r, c->in_place && c->sum ? PART_SUM : PART_RESIDUAL, c->dtype, c->seed + 300u + of, m * n);
    if (c->bias)
        e->bias = part_of(r, PART_BIAS, c->dtype, -1, n);
    if (c->sum)
        e->sum = part_of(r, PART_SUM, c->dtype, result_rows, n);
    if (c->residual)
        e->residual = c->in_place && c->sum ? e->sum
                      : c->in_place         ? fcc_tensor_2d(result->buffer, result->offset, c->dtype, m, n)
                                            : part_of(r, PART_RESIDUAL, c->dtype, m, n);
    if (c->in_place && !c->sum)
        memcpy(r->images[1], r->images[0] + part_at(PART_RESIDUAL), (size_t)(m * n) * dtype_bytes(c->dtype));
    if (c->gate)
        e->gate = part_of(r, PART_GATE, c->dtype, m, n);
    if (c->weight)
        e->norm_weight = part_of(r, PART_WEIGHT, c->dtype, -1, n);
    if (c->norm_bias)
        e->norm_bias = part_of(r, PART_NORM_BIAS, c->dtype, -1, n);
    if (!c->quantization)
        return;
    e->quantized = part_of(r, PART_F8, FCC_F8E4M3, result_rows, n);
    e->quantized_scale = part_of(r, PART_SCALE, FCC_F32, -1, c->quantization == FCC_QUANTIZED_STATIC ? 1 : result_rows);
    memcpy(r->images[0] + part_at(PART_SCALE), &c->quantized_scale, sizeof(float));
}

/* The equal parts of a sum's rows, the first m % n one row longer: where a rank's begins. */
static inline int64_t share_begin(int64_t m, int n, int rank)
{
    return m / n * rank + (rank < m % n ? rank : m % n);
}

static inline int64_t share_of(int64_t m, int n, int rank)
{
    return share_begin(m, n, rank + 1) - share_begin(m, n, rank);
}

/* A rank's part of the rows of a tensor. */
static inline struct fcc_tensor rows_share(struct fcc_tensor t, int n, int rank)
{
    const int64_t m = t.shape[0], row = t.stride[0] ? t.stride[0] : t.shape[1];

    t.offset += (uint64_t)(share_begin(m, n, rank) * row) * dtype_bytes((enum fcc_dtype)t.dtype);
    t.shape[0] = share_of(m, n, rank);
    return t;
}

/* Calls a function with the rank's arguments, or enqueues it on its stream. */
#define STAGE_CALL(name, ...)                                                                                                  \
    (r->move ? fcc_##name##_epilogue_enqueue(r->comm, &(const struct fcc_##name##_args){__VA_ARGS__}, e, r->stream, NULL)      \
             : fcc_##name##_epilogue(r->comm, &(const struct fcc_##name##_args){__VA_ARGS__}, e))

static inline int stage_call(const struct rank *r, const struct stage_case *c, const struct fcc_tensor *result,
                             const struct fcc_epilogue *e)
{
    const int64_t m = c->m[r->rank], k = c->k[r->rank];
    const struct fcc_tensor a = part_of(r, PART_A, c->dtype, m, k);
    const struct fcc_tensor b =
        c->op == OP_GEMV ? part_of(r, PART_B, c->dtype, c->n, k) : part_of(r, PART_B, c->dtype, k, c->n);
    const struct fcc_tensor in = c->over ? *result : part_of(r, PART_A, c->dtype, -1, m * c->n);
    int64_t rows[STAGE_RANKS]; /* that come: on a stream they are said, otherwise heard */

    for (int p = 0; p < r->n; p++)
        rows[p] = c->rows[p][r->rank];
    switch (c->op) {
    case OP_SUM:
        return STAGE_CALL(all_reduce, .in = in, .out = *result, .reduction = FCC_SUM, .schedule = c->schedule);
    case OP_GEMV:
        return STAGE_CALL(gemv_all_reduce, .x = a, .w = b, .y = *result, .schedule = c->schedule);
    case OP_GEMM:
        return STAGE_CALL(gemm_all_reduce, .a = a, .b = b, .c = *result, .schedule = c->schedule);
    case OP_SCATTER:
        return STAGE_CALL(gemm_reduce_scatter, .a = a, .b = b, .c = *result, .rows = c->rows[0], .schedule = c->schedule);
    default:
        return STAGE_CALL(gemm_all_to_all, .a = a, .b = b, .c = *result, .send_rows = c->rows[r->rank], .recv_rows = rows,
                          .schedule = c->schedule);
    }
}

/* A row's e4m3 values are those of its result as it is there, and so exact. */
static inline void quantized_check(const struct rank *r, const struct stage_case *c, int row)
{
    const size_t size = dtype_bytes(c->dtype);
    const unsigned char *f8 = r->images[0] + part_at(PART_F8) + (size_t)(row * c->n);
    double most = 0;
    float scale;

    for (int j = 0; j < c->n; j++)
        most = fmax(most, fabs(reference_element(reference_of(c->dtype), r->images[1] + (size_t)(row * c->n) * size, j)));
    memcpy(&scale, r->images[0] + part_at(PART_SCALE) + (c->quantization == FCC_QUANTIZED_BY_ROW ? 4 * row : 0), sizeof(scale));
    const float expected = c->quantization == FCC_QUANTIZED_STATIC ? c->quantized_scale
                           : most > 0                              ? (float)most / 448.0f
                                                                   : 1.0f;
    if (scale != expected)
        check_failed(__FILE__, __LINE__, "seed %u: row %d: scale %g, expected %g (quantization %d)", c->seed, row,
                     (double)scale, (double)expected, c->quantization);
    for (int j = 0; j < c->n; j++) {
        const float v = (float)reference_element(reference_of(c->dtype), r->images[1] + (size_t)(row * c->n) * size, j);
        if (f8[j] != f8_of((double)(v / scale)))
            check_failed(__FILE__, __LINE__, "seed %u: row %d, column %d: %g / %g: 0x%02x, expected 0x%02x", c->seed, row, j,
                         (double)v, (double)scale, f8[j], f8_of((double)(v / scale)));
    }
}

/* The tensors of a call, to where they lie. */
static inline void stage_prepare(const struct rank *r, const struct stage_case *c, const struct fcc_tensor *result,
                                 struct fcc_epilogue *e)
{
    part_fill(r, PART_A, c->dtype, c->seed + (unsigned)r->rank,
              (int64_t)c->m[r->rank] * (c->op == OP_SUM ? c->n : c->k[r->rank]));
    part_fill(r, PART_B, c->dtype, c->seed + 100u + (unsigned)r->rank, (int64_t)c->k[r->rank] * c->n);
    memset(r->images[1], 0xff, ROOM);
    if (c->over)
        memcpy(r->images[1], r->images[0] + part_at(PART_A), (size_t)(c->m[0] * c->n) * dtype_bytes(c->dtype));
    epilogue_fill(r, c, stage_rows(r, c), result, e);
    image_move(r, 0, false);
    image_move(r, 1, false);
}

/* What has come of it. */
static inline void stage_check(const struct rank *r, const struct stage_case *c)
{
    static double sum[ROWS_MOST * STAGE_RANKS * COLS_MOST], out[ROWS_MOST * STAGE_RANKS * COLS_MOST];
    int maker[ROWS_MOST * STAGE_RANKS], at[ROWS_MOST * STAGE_RANKS];
    const int rows = rows_of_result(c, r->n, r->rank, maker, at);
    const enum reference_type type = reference_of(c->dtype);
    int64_t first;

    image_move(r, 0, true);
    image_move(r, 1, true);
    for (int i = 0; i < rows; i++) {
        row_expect(c, r->n, maker[i], at[i], sum + i * c->n, out + i * c->n);
        if (c->quantization && c->n)
            quantized_check(r, c, i);
    }
    for (int i = 0; i < rows * c->n && c->sum; i++)
        CHECK(reference_element(type, r->images[0] + part_at(PART_SUM), i) == sum[i]);
    if (reference_compare(type, r->images[1], out, (int64_t)rows * c->n, &first))
        check_failed(__FILE__, __LINE__,
                     "seed %u, rank %d of %d: op %d, schedule 0x%x, dtype %d, m %d, n %d, k %d, bias %d, residual %d, norm %d, "
                     "activation %d, "
                     "gate %d, sum %d, quantization %d: [%ld] = %g, expected %g",
                     c->seed, r->rank, r->n, c->op, c->schedule, c->dtype, c->m[r->rank], c->n, c->k[r->rank], c->bias,
                     c->residual, c->norm, c->activation, c->gate, c->sum, c->quantization, (long)first,
                     reference_element(type, r->images[1], first), out[first]);
    CHECK(r->images[1][(size_t)(rows * c->n) * dtype_bytes(c->dtype)] == 0xff); /* nothing behind it is stored to */
    CHECK(!c->sum || r->images[0][part_at(PART_SUM) + (size_t)(rows * c->n) * dtype_bytes(c->dtype)] == 0xff);
}

/* The rank's result. */
static inline struct fcc_tensor stage_result(const struct rank *r, const struct stage_case *c)
{
    const int rows = stage_rows(r, c);

    return c->op == OP_SUM ? tensor_in(r, 1, 0, c->dtype, -1, (int64_t)rows * c->n) : tensor_in(r, 1, 0, c->dtype, rows, c->n);
}

static inline void stage_run(const struct rank *r, const struct stage_case *c)
{
    const struct fcc_tensor result = stage_result(r, c);
    struct fcc_epilogue e;

    stage_prepare(r, c, &result, &e);
    OK(stage_call(r, c, &result, &e));
    stage_check(r, c);
    if (!r->move) /* nobody fills memory anew that others read, before all have looked */
        OK(fcc_noop(r->comm));
}

/* ---- drawing ---- */

/* Draws a case, the same on all ranks. on_stream: of what the ranks launch themselves. */
static inline struct stage_case stage_draw(int nranks, unsigned number, bool on_stream)
{
    static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};
    static const uint32_t schedules[] = {FCC_SCHEDULE_AUTO,
                                         FCC_SCHEDULE_FUSED,
                                         FCC_SCHEDULE_SEQUENTIAL,
                                         FCC_SCHEDULE_FUSED | FCC_SCHEDULE_FLAT,
                                         FCC_SCHEDULE_FUSED | FCC_SCHEDULE_HIERARCHICAL,
                                         FCC_SCHEDULE_FUSED | FCC_SCHEDULE_ANY_ORDER};
    static const enum stage_op launched[] = {OP_GEMV, OP_PUT, OP_SUM};
    struct stage_case c = {.op = on_stream ? launched[random_below(3)] : (enum stage_op)random_below(STAGE_OPS),
                           .dtype = dtypes[random_below(3)],
                           .schedule = schedules[random_below(on_stream ? 2 : 6)],
                           .n = (int)random_size(COLS_MOST),
                           .bias = random_below(2),
                           .residual = random_below(2),
                           .sum = random_below(3) == 0,
                           .norm = (enum fcc_norm)random_below(3),
                           .activation = (enum fcc_activation)(random_below(2) ? 0 : random_below(5)),
                           .quantization = (enum fcc_quantization)random_below(3),
                           .eps = random_below(2) ? 1e-5f : 0.5f,
                           .scale = random_below(2) ? 0 : -0.75f,
                           .quantized_scale = 0.0625f,
                           .seed = 1000u * number};
    const int m = 1 + (int)random_below(ROWS_MOST);

    if (stage_library && c.op == OP_GEMV && random_below(3) == 0)
        c.schedule = FCC_SCHEDULE_SEQUENTIAL;

    c.norm_bias = c.norm == FCC_LAYER_NORM && random_below(2);
    c.weight = c.norm && random_below(2);
    c.gate = random_below(3) == 0 && (c.op != OP_PUT || (!c.norm && !c.sum));
    c.residual |= c.op == OP_SUM && !c.bias && !c.sum && !c.weight && !c.gate && !c.quantization; /* which says what a row is */
    c.in_place = c.residual && c.op != OP_PUT && random_below(2);
    c.over = c.op == OP_SUM && (!c.in_place || c.sum) && random_below(2);
    for (int r = 0; r < nranks; r++) {
        c.k[r] = (int)random_size(K_MOST);
        c.m[r] = c.op == OP_PUT || c.op == OP_SCATTER ? 0 : m;
        for (int p = 0; p < nranks && (c.op == OP_PUT || c.op == OP_SCATTER); p++) {
            c.rows[r][p] = c.op == OP_SCATTER && r ? c.rows[0][p] : random_size(ROWS_MOST / nranks);
            c.m[r] += (int)c.rows[r][p];
        }
    }
    return c;
}

/* ---- the ranks ---- */

/* `rank` with a seed, uint64_t, as its argument: as many ranks as there are nodes, one more, and so on up to `most`. */
static inline void cases_on(int nodes, int most, void (*rank)(int rank, const struct ranks *all, void *argument))
{
    uint64_t seed = test_seed();
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, nodes, NULL);
    for (int n = nodes; n <= most; n++, seed += 1000) {
        ranks_start(&r, n, rank, &seed);
        ranks_join(&r);
    }
    daemon_stop(&d);
}

/* Two ranks on one node. */
static inline void pair_run(void (*rank)(int rank, const struct ranks *all, void *argument))
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    ranks_start(&r, 2, rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

#endif
