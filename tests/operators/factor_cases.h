/* SPDX-License-Identifier: MIT
 *
 * factor_cases.h - products whose factors are f8e4m3, one, both or none, drawn at random: scales of every form, of each rank its own, factors and scales
 * with gaps between their rows, sizes around the blocks of 128. What they give is compared with the double-precision product of what the factors
 * stand for.
 */
#ifndef FCC_TEST_FACTOR_CASES_H
#define FCC_TEST_FACTOR_CASES_H

#ifndef ROOM
#define ROOM (4 << 20)
#endif
#include "tests/operators/stage_cases.h"

enum { EXTENT = 300, FACTOR_BLOCK = 128, PART_X_SCALE = PART_GATE, PART_W_SCALE = PART_WEIGHT };
/* ROW_BLOCK: 128 elements of a row of the first factor. */
enum scale_form { SCALE_WHOLE, SCALE_LINE, SCALE_BLOCK, SCALE_ROW_BLOCK, SCALE_FORMS };

struct factor_case {
    bool scatters;    /* GEMM: the sum's rows, in equal parts */
    bool launched;    /* by the ranks' own processes */
    enum stage_op op; /* not SUM */
    enum fcc_dtype dtype;
    uint32_t schedule;
    bool f8[2], scaled[2], bias, residual;
    enum scale_form form[STAGE_RANKS][2];
    int n, k[STAGE_RANKS], m[STAGE_RANKS];
    int64_t rows[STAGE_RANKS][STAGE_RANKS];
    int gap, scale_gap; /* between rows: elements */
    unsigned seed;
};

/* A factor's rows and columns as it is stored, and those of its scales: 0 rows: one dimension. */
struct extents {
    int rows, cols, scale_rows, scale_cols;
};

static inline int blocks_of(int n)
{
    return (n + FACTOR_BLOCK - 1) / FACTOR_BLOCK;
}

static inline struct extents extents_of(const struct factor_case *c, int r, int factor)
{
    const bool transposed = factor && c->op == OP_GEMV;
    struct extents x = {.rows = factor ? (transposed ? c->n : c->k[r]) : c->m[r],
                        .cols = factor && !transposed ? c->n : c->k[r]};

    switch (c->form[r][factor]) {
    case SCALE_WHOLE:
        x.scale_cols = 1;
        break;
    case SCALE_LINE:
        x.scale_cols = factor ? c->n : c->m[r];
        break;
    default:
        x.scale_rows = c->form[r][factor] == SCALE_BLOCK ? blocks_of(x.rows) : x.rows;
        x.scale_cols = blocks_of(x.cols);
    }
    return x;
}

static inline unsigned code_of(const struct factor_case *c, int r, int factor, int64_t i)
{
    const uint64_t x = ((uint64_t)c->seed << 32 ^ (uint64_t)i * 8 ^ (unsigned)(r * 2 + factor)) * 0x9E3779B97F4A7C15u;
    const unsigned code = (unsigned)((x ^ x >> 31) * 0xBF58476D1CE4E5B9u >> 56);

    if (!c->scaled[factor])
        return code & 0xbf; /* below 2 */
    return (code & 0x7f) == 0x7f ? code - 1 : code;
}

/* Number i of the scales, not 0. */
static inline float scale_of(const struct factor_case *c, int r, int factor, int64_t i)
{
    return (float)(value(c->seed + 700u + (unsigned)(r * 2 + factor), i) + 2.125) / 100.0f;
}

/* What a factor stands for, as it is stored, without gaps. */
static inline void factor_expect(const struct factor_case *c, int r, int factor, double *out)
{
    const struct extents x = extents_of(c, r, factor);
    double of_code[256];

    for (int i = 0; i < 256; i++)
        of_code[i] = f8_value((unsigned char)i);
    for (int i = 0; i < x.rows; i++)
        for (int j = 0; j < x.cols; j++) {
            const int line = factor && c->op != OP_GEMV ? j : i, block = i / FACTOR_BLOCK;
            const int64_t at = (int64_t)i * x.cols + j;
            const int scale[SCALE_FORMS] = {0, line, block * x.scale_cols + j / FACTOR_BLOCK,
                                            i * x.scale_cols + j / FACTOR_BLOCK};
            out[at] = c->f8[factor] ? of_code[code_of(c, r, factor, at)] : value(c->seed + (unsigned)(r * 2 + factor), at);
            out[at] *= c->scaled[factor] ? (double)scale_of(c, r, factor, scale[c->form[r][factor]]) : 1;
        }
}

/* out += the product of rank r. */
static inline void product_expect(const struct factor_case *c, int r, double *out)
{
    static double a[EXTENT * EXTENT], b[EXTENT * EXTENT];

    factor_expect(c, r, 0, a);
    factor_expect(c, r, 1, b);
    for (int i = 0; i < c->m[r]; i++)
        for (int q = 0; q < c->k[r]; q++)
            for (int j = 0; j < c->n; j++)
                out[i * c->n + j] += a[i * c->k[r] + q] * b[c->op == OP_GEMV ? j * c->k[r] + q : q * c->n + j];
    for (int i = 0; i < c->m[r] * c->n && (c->op == OP_PUT || r == 0); i++)
        out[i] += (c->bias ? value(c->seed + 200u + (unsigned)r, i % c->n) : 0) +
                  (c->residual ? value(c->seed + 300u + (unsigned)r, i) : 0);
}

/* The rank's result. Returns its rows. */
static inline int result_expect(const struct factor_case *c, int nranks, int rank, double *out)
{
    static double all[EXTENT * EXTENT];
    int rows = 0;

    memset(out, 0, EXTENT * EXTENT * sizeof(*out));
    for (int r = 0; r < nranks && c->op != OP_PUT; r++)
        product_expect(c, r, out);
    for (int r = 0; r < nranks && c->op == OP_PUT; r++) {
        int before = 0;
        memset(all, 0, sizeof(all));
        product_expect(c, r, all);
        for (int p = 0; p < rank; p++)
            before += (int)c->rows[r][p];
        memcpy(out + rows * c->n, all + before * c->n, (size_t)c->rows[r][rank] * (size_t)c->n * sizeof(*out));
        rows += (int)c->rows[r][rank];
    }
    if (c->scatters) {
        const int64_t first = share_begin(c->m[0], nranks, rank);
        rows = (int)share_of(c->m[0], nranks, rank);
        memmove(out, out + first * c->n, (size_t)(rows * c->n) * sizeof(*out));
        return rows;
    }
    return c->op == OP_PUT ? rows : c->m[0];
}

/* Rows that the ranks launch themselves are rounded before they are added up (fccclient.h), where cuBLAS multiplies them, or, with a factor in e4m3, where
 * they are many: what each rank has may be off by the rounding's bound. Moves what is expected nearer to what has come by as much. */
static inline void rounding_allow(const struct factor_case *c, int nranks, const unsigned char *got, double *out)
{
    static double part[EXTENT * EXTENT];
    const double bound = c->dtype == FCC_F32 ? 0 : c->dtype == FCC_F16 ? 0x1p-11 : 0x1p-8;
    struct factor_case only = *c;

    if (!c->launched || c->op != OP_GEMV || c->m[0] <= (c->f8[0] || c->f8[1] ? FCC_GEMV_MAX_M : 1))
        return;
    only.bias = only.residual = false;
    for (int r = 0; r < nranks; r++) {
        memset(part, 0, sizeof(part));
        product_expect(&only, r, part);
        for (int i = 0; i < c->m[0] * c->n; i++) {
            const double most = bound * fabs(part[i]), off = reference_element(reference_of(c->dtype), got, i) - out[i];
            out[i] += fmax(-most, fmin(most, off));
        }
    }
}

/* ---- the run ---- */

static inline struct fcc_tensor factor_fill(const struct rank *r, const struct factor_case *c, int factor)
{
    const struct extents x = extents_of(c, r->rank, factor);
    const enum fcc_dtype dtype = c->f8[factor] ? FCC_F8E4M3 : c->dtype;
    struct fcc_tensor t = part_of(r, factor ? PART_B : PART_A, dtype, x.rows, x.cols);
    unsigned char *to = r->images[0] + part_at(factor ? PART_B : PART_A);
    const int64_t stride = x.cols + c->gap;

    for (int64_t i = 0; i < x.rows; i++)
        for (int64_t j = 0; j < x.cols; j++) {
            const int64_t from = i * x.cols + j, at = i * stride + j;
            if (c->f8[factor])
                to[at] = (unsigned char)code_of(c, r->rank, factor, from);
            else
                value_store(dtype, to, at, value(c->seed + (unsigned)(r->rank * 2 + factor), from));
        }
    t.stride[0] = stride;
    t.stride[1] = 1;
    return t;
}

static inline struct fcc_tensor scale_fill(const struct rank *r, const struct factor_case *c, int factor)
{
    const enum part part = factor ? (enum part)PART_W_SCALE : (enum part)PART_X_SCALE;
    const struct extents x = extents_of(c, r->rank, factor);
    const bool is_1d = c->form[r->rank][factor] < SCALE_BLOCK;
    float *to = (float *)(void *)(r->images[0] + part_at(part));
    struct fcc_tensor t = part_of(r, part, FCC_F32, is_1d ? -1 : x.scale_rows, x.scale_cols);
    const int stride = is_1d ? 0 : x.scale_cols + c->scale_gap;

    for (int i = 0; i < (is_1d ? 1 : x.scale_rows); i++)
        for (int j = 0; j < x.scale_cols; j++)
            to[i * stride + j] = scale_of(c, r->rank, factor, (int64_t)i * x.scale_cols + j);
    if (!is_1d) {
        t.stride[0] = stride;
        t.stride[1] = 1;
    }
    return t;
}

/* The arguments' tensors, filled in. */
struct factor_call {
    struct fcc_tensor a, b, c;
    struct fcc_epilogue e;
};

static inline struct factor_call factor_prepare(const struct rank *r, const struct factor_case *c)
{
    const unsigned of = c->op == OP_PUT ? (unsigned)r->rank : 0;
    int rows = c->m[0];
    struct factor_call call = {.a = factor_fill(r, c, 0), .b = factor_fill(r, c, 1)};

    if (c->op == OP_PUT)
        for (int p = rows = 0; p < r->n; p++)
            rows += (int)c->rows[p][r->rank];
    if (c->scatters)
        rows = (int)share_of(c->m[0], r->n, r->rank);
    call.c = tensor_in(r, 1, 0, c->dtype, rows, c->n);
    part_fill(r, PART_BIAS, c->dtype, c->seed + 200u + of, c->n);
    part_fill(r, PART_RESIDUAL, c->dtype, c->seed + 300u + of, (int64_t)c->m[r->rank] * c->n);
    if (c->scaled[0])
        call.e.x_scale = scale_fill(r, c, 0);
    if (c->scaled[1])
        call.e.w_scale = scale_fill(r, c, 1);
    if (c->bias)
        call.e.bias = part_of(r, PART_BIAS, c->dtype, -1, c->n);
    if (c->residual)
        call.e.residual = part_of(r, PART_RESIDUAL, c->dtype, c->m[r->rank], c->n);
    if (c->residual && c->scatters)
        call.e.residual = rows_share(call.e.residual, r->n, r->rank);
    const struct fcc_tensor *const tensors[] = {&call.a,         &call.b,      &call.e.x_scale,
                                                &call.e.w_scale, &call.e.bias, &call.e.residual};
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++)
        tensor_move(r, tensors[i]);
    result_move(r, (size_t)(rows * c->n) * dtype_bytes(c->dtype), false);
    return call;
}

static inline int factor_call(const struct rank *r, const struct factor_case *c, const struct factor_call *call)
{
    const struct fcc_epilogue *e = c->scaled[0] || c->scaled[1] || c->bias || c->residual ? &call->e : NULL;
    int64_t came[STAGE_RANKS]; /* on a stream it is said, otherwise heard */

    for (int p = 0; p < r->n; p++)
        came[p] = c->rows[p][r->rank];
    if (c->op == OP_GEMV)
        return STAGE_CALL(gemv_all_reduce, .x = call->a, .w = call->b, .y = call->c, .schedule = c->schedule);
    if (c->scatters)
        return STAGE_CALL(gemm_reduce_scatter, .a = call->a, .b = call->b, .c = call->c, .schedule = c->schedule);
    if (c->op == OP_GEMM)
        return STAGE_CALL(gemm_all_reduce, .a = call->a, .b = call->b, .c = call->c, .schedule = c->schedule);
    return STAGE_CALL(gemm_all_to_all, .a = call->a, .b = call->b, .c = call->c, .send_rows = c->rows[r->rank],
                      .recv_rows = came, .schedule = c->schedule);
}

static inline void factor_run(const struct rank *r, const struct factor_case *c)
{
    static double out[EXTENT * EXTENT];
    const struct factor_call call = factor_prepare(r, c);
    const enum reference_type type = reference_of(c->dtype);
    int64_t first;

    OK(factor_call(r, c, &call));
    const int rows = result_expect(c, r->n, r->rank, out);
    result_move(r, (size_t)(rows * c->n) * dtype_bytes(c->dtype), true);
    rounding_allow(c, r->n, r->images[1], out);
    if (reference_compare(type, r->images[1], out, (int64_t)rows * c->n, &first))
        check_failed(__FILE__, __LINE__,
                     "seed %u, rank %d of %d: op %d, schedule 0x%x, dtype %d, bias %d, residual %d, f8 %d %d, scales %d %d, "
                     "forms %d %d, m %d, n %d, "
                     "k %d: [%ld] = %g, expected %g",
                     c->seed, r->rank, r->n, c->op, c->schedule, c->dtype, c->bias, c->residual, c->f8[0], c->f8[1],
                     c->scaled[0], c->scaled[1], c->form[r->rank][0], c->form[r->rank][1], c->m[r->rank], c->n, c->k[r->rank],
                     (long)first, reference_element(type, r->images[1], first), out[first]);
    CHECK(r->images[1][(size_t)(rows * c->n) * dtype_bytes(c->dtype)] == 0xff);
    if (!r->move) /* nobody fills memory anew that others read, before all have looked */
        OK(fcc_noop(r->comm));
}

/* ---- drawing ---- */

static inline int extent_draw(int most)
{
    return (int)(random_below(3) ? random_size(40 < most ? 40 : most) : random_size(most));
}

/* Draws a case, the same on all ranks. on_stream: of what the ranks launch themselves, any number of rows. */
static inline struct factor_case factor_draw(int nranks, unsigned number, bool on_stream)
{
    static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};
    static const uint32_t schedules[] = {FCC_SCHEDULE_AUTO, FCC_SCHEDULE_FUSED, FCC_SCHEDULE_SEQUENTIAL,
                                         FCC_SCHEDULE_FUSED | FCC_SCHEDULE_FLAT,
                                         FCC_SCHEDULE_FUSED | FCC_SCHEDULE_HIERARCHICAL};
    const unsigned which = (unsigned)random_below(4); /* of the factors, a bit each; sometimes none */
    static const enum stage_op launched[] = {OP_GEMV, OP_PUT};
    struct factor_case c = {.launched = on_stream,
                            .op = on_stream ? launched[random_below(2)] : (enum stage_op)random_below(OP_SUM),
                            .dtype = dtypes[random_below(3)],
                            .schedule = schedules[random_below(on_stream ? 2 : 5)],
                            .f8 = {which & 1, which >> 1},
                            .n = extent_draw(EXTENT),
                            .bias = random_below(3) == 0,
                            .residual = random_below(3) == 0,
                            .gap = (int)random_below(4),
                            .scale_gap = (int)random_below(3),
                            .seed = 1000u * number};
    c.scatters = c.op == OP_GEMM && !on_stream && random_below(2);
    const bool any = on_stream && which; /* number of rows */
    const int m = c.op == OP_GEMV && !any ? 1 + (int)random_below(random_below(2) ? 3 : 64) : 1 + extent_draw(EXTENT - 1);

    for (int i = 0; i < 2; i++)
        c.scaled[i] = c.f8[i] && random_below(4);
    for (int r = 0; r < nranks; r++) {
        c.form[r][0] = (enum scale_form)random_below(SCALE_FORMS);
        c.form[r][1] = (enum scale_form)random_below(SCALE_ROW_BLOCK);
        c.k[r] = extent_draw(EXTENT);
        c.m[r] = c.op == OP_PUT ? 0 : m;
        for (int p = 0; p < nranks && c.op == OP_PUT; p++) {
            c.rows[r][p] = extent_draw(EXTENT / nranks);
            c.m[r] += (int)c.rows[r][p];
        }
    }
    return c;
}

#endif
