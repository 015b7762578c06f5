/* SPDX-License-Identifier: MIT
 *
 * bench_data.c - reproducible pseudo-random inputs. Values have few enough bits to be exact in their dtype, so the reference
 * has exactly the operators' inputs.
 */
#include <math.h>
#include <stdlib.h>

#include "client/fccctl/bench/bench.h"
#include "kernels/plan/dtype.h"

/* splitmix64's mixing function. It maps a counter, so any process can compute elements in any order. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t stream_key(enum bench_tensor tensor, int rank)
{
    return mix((uint64_t)tensor << 32 | (uint64_t)rank);
}

/* Bits of a significand: f32 24, f16 11, bf16 8. */
static int significand_bits(enum fcc_dtype dtype)
{
    return dtype == FCC_F16 ? 11 : dtype == FCC_BF16 ? 8 : 24;
}

/* A value in [-1, 1). */
static inline float value_at(uint64_t key, uint64_t index, int bits)
{
    int64_t half = INT64_C(1) << (bits - 1);
    return (float)((int64_t)(mix(key + index) >> (64 - bits)) - half) / (float)half;
}

void data_floats(const struct shape *shape, enum bench_tensor tensor, int rank, uint64_t first, uint64_t count, float *out)
{
    uint64_t key = stream_key(tensor, rank);
    int bits = significand_bits(shape->dtype);

    for (uint64_t i = 0; i < count; i++)
        out[i] = value_at(key, first + i, bits);
}

void data_fill(const struct shape *shape, enum bench_tensor tensor, int rank, uint64_t first, uint64_t count, void *out)
{
    float piece[1024];

    for (uint64_t at = 0, n; at < count; at += n) {
        n = count - at < 1024 ? count - at : 1024;
        data_floats(shape, tensor, rank, first + at, n, piece);
        dtype_from_f32((char *)out + at * dtype_size(shape->dtype), piece, shape->dtype, n);
    }
}

int64_t data_id(const struct shape *shape, int rank, uint64_t index)
{
    double u = (double)(mix(stream_key(BENCH_IDS, rank) + index) >> 11) * 0x1p-53, rows = (double)shape->rows, x;
    int64_t id;

    if (shape->zipf <= 0)
        return (int64_t)(u * rows);
    /* The inverse of the cumulative density x^-s on [1, rows + 1): Zipf's law with the steps smoothed. */
    if (fabs(shape->zipf - 1) < 1e-9)
        x = pow(rows + 1, u);
    else
        x = pow(1 + u * (pow(rows + 1, 1 - shape->zipf) - 1), 1 / (1 - shape->zipf));
    id = (int64_t)x - 1;
    id = id < 0 ? 0 : id >= shape->rows ? shape->rows - 1 : id;
    return (int64_t)((uint64_t)id * 2654435761u % (uint64_t)shape->rows); /* a prime: frequent ids are not neighbours */
}

/* ---- the reference: results are computed again in double precision by plain loops, and compared element by element ---- */

/* Whether the ranks' parts of a result are beside each other (columns). Otherwise they are below each other (rows). */
static bool is_beside(const struct shape *s)
{
    return s->spec->compute == COMPUTE_BAG;
}

void computed_size(const struct shape *s, int64_t *rows, int64_t *cols)
{
    bool bag = s->spec->compute == COMPUTE_BAG;

    if (s->spec->compute == COMPUTE_VECTOR) {
        *rows = 1;
        *cols = s->count;
        return;
    }
    *rows = bag ? s->batch : s->m;
    *cols = bag ? s->tables * s->dim : s->n;
}

void result_size(const struct shape *s, int rank, int64_t *rows, int64_t *cols)
{
    computed_size(s, rows, cols);
    if (s->spec->compute == COMPUTE_VECTOR) {
        int64_t length = vector_length(s, false, rank);
        *cols = length > 0 ? length : 0;
        return;
    }
    if (op_scatters_rows(s->op))
        *rows = shape_share(*rows, s->nranks, rank);
    if (s->spec->exchange == EXCHANGE_GATHER)
        *rows *= s->nranks;
    if (s->spec->exchange != EXCHANGE_PUT)
        return;
    *rows = shape_share(*rows, s->nranks, rank);
    *(is_beside(s) ? cols : rows) *= s->nranks;
}

/* Rows computed by rank `source`, or, where A is gathered, with its rows, to be added to `out`, whose rows are `stride` apart. */
struct part {
    int source, rank; /* rank: the rank that compares, and notes its progress */
    int64_t first, rows, stride;
    double *out;
    float *room;
};

/* out[s][t][d] += sum over the bag (t, s) of tables[id][d] */
static void bag_add(const struct bench *b, const struct part *p)
{
    const struct shape *s = &b->shape;
    uint64_t key = stream_key(BENCH_TABLES, p->source);
    int bits = significand_bits(s->dtype);

    for (int64_t i = 0; i < p->rows; i++) {
        for (int64_t t = 0; t < s->tables; t++) {
            int64_t bag = t * s->batch + p->first + i;
            double *out = p->out + i * p->stride + t * s->dim;
            for (int64_t l = 0; l < s->pooling; l++) {
                int64_t row = t * s->rows + data_id(s, p->source, (uint64_t)(bag * s->pooling + l));
                for (int64_t d = 0; d < s->dim; d++)
                    out[d] += (double)value_at(key, (uint64_t)(row * s->dim + d), bits);
            }
        }
        bench_progress(b, p->rank);
    }
}

/* out[m][n] += sum over k of x[m][k] * w[n][k]. room: (m + 1) * k floats. */
static void gemv_add(const struct bench *b, const struct part *p)
{
    const struct shape *s = &b->shape;
    float *x = p->room, *w = p->room + p->rows * s->k;

    data_floats(s, BENCH_X, p->source, (uint64_t)(p->first * s->k), (uint64_t)(p->rows * s->k), x);
    for (int64_t n = 0; n < s->n; n++) {
        data_floats(s, BENCH_W, p->source, (uint64_t)(n * s->k), (uint64_t)s->k, w);
        for (int64_t m = 0; m < p->rows; m++) {
            double sum = 0;
            for (int64_t k = 0; k < s->k; k++)
                sum += (double)x[m * s->k + k] * (double)w[k];
            p->out[m * p->stride + n] += sum;
        }
        bench_progress(b, p->rank);
    }
}

/* out[m][n] += sum over k of a[m][k] * b[k][n]. room: (n + 1) * k floats. */
static void gemm_add(const struct bench *b, const struct part *p)
{
    const struct shape *s = &b->shape;
    float *a = p->room, *bb = p->room + s->k;

    data_floats(s, BENCH_W, s->spec->exchange == EXCHANGE_GATHER ? p->rank : p->source, 0, (uint64_t)(s->k * s->n), bb);
    for (int64_t i = 0; i < p->rows; i++) {
        double *out = p->out + i * p->stride;
        data_floats(s, BENCH_X, p->source, (uint64_t)((p->first + i) * s->k), (uint64_t)s->k, a);
        for (int64_t k = 0; k < s->k; k++) {
            double factor = a[k];
            for (int64_t n = 0; n < s->n; n++)
                out[n] += factor * (double)bb[k * s->n + n];
        }
        bench_progress(b, p->rank);
    }
}

double *result_want(const struct bench *b, int rank)
{
    static void (*const add[COMPUTE_KINDS])(const struct bench *, const struct part *) = {
        [COMPUTE_BAG] = bag_add, [COMPUTE_GEMV] = gemv_add, [COMPUTE_GEMM] = gemm_add};
    const struct shape *s = &b->shape;
    int64_t computed, width, rows, cols,
        room = s->spec->compute == COMPUTE_VECTOR ? BENCH_PIECE
               : s->spec->compute == COMPUTE_GEMV ? (s->m + 1) * s->k
                                                  : (s->n + 1) * s->k;
    struct part part = {.rank = rank};
    double *want;

    result_size(s, rank, &rows, &cols);
    computed_size(s, &computed, &width);
    want = calloc((size_t)(rows * cols) + 1, sizeof(*want));
    part.room = malloc(((size_t)room + 1) * sizeof(*part.room));
    part.rows = computed;
    part.stride = cols;
    if ((s->spec->exchange == EXCHANGE_PUT && s->spec->compute != COMPUTE_VECTOR) || op_scatters_rows(s->op)) {
        for (int r = 0; r < rank; r++)
            part.first += shape_share(computed, s->nranks, r);
        part.rows = shape_share(computed, s->nranks, rank);
    }
    if (want && part.room && s->spec->compute == COMPUTE_VECTOR)
        vector_want(b, rank, want, part.room);
    for (part.source = 0; want && part.room && s->spec->compute != COMPUTE_VECTOR && part.source < s->nranks; part.source++) {
        part.out = want;
        if (s->spec->exchange == EXCHANGE_PUT || s->spec->exchange == EXCHANGE_GATHER)
            part.out += part.source * (is_beside(s) ? width : part.rows * cols);
        add[s->spec->compute](b, &part);
    }
    if (!part.room) {
        free(want);
        want = NULL;
    }
    free(part.room);
    return want;
}

int64_t result_wrong(const struct shape *s, int rank, const double *want, const void *result)
{
    double tolerance = s->dtype == FCC_F32 ? 1e-5 : 2e-2, squares = 0, rms;
    int64_t wrong = 0, rows, cols, count;

    result_size(s, rank, &rows, &cols);
    count = rows * cols;
    for (int64_t i = 0; i < count; i++)
        squares += want[i] * want[i];
    rms = count ? sqrt(squares / (double)count) : 0;
    for (int64_t i = 0; i < count; i++) {
        float got;
        dtype_to_f32(&got, (const char *)result + (size_t)i * dtype_size(s->dtype), s->dtype, 1);
        wrong += !(fabs((double)got - want[i]) <= tolerance * (fabs(want[i]) + rms)); /* also counts NaN as wrong */
    }
    return wrong;
}
