/* SPDX-License-Identifier: MIT
 *
 * bench_check.c - the reference: results are computed again in double precision by plain loops, and compared element by
 * element.
 */
#include <math.h>
#include <stdlib.h>

#include "client/fccctl/bench/bench.h"

/* Whether the ranks' parts of a result are beside each other (columns). Otherwise they are below each other (rows). */
static bool is_beside(const struct shape *s)
{
    return s->spec->compute == COMPUTE_BAG;
}

void computed_size(const struct shape *s, int64_t *rows, int64_t *cols)
{
    bool bag = s->spec->compute == COMPUTE_BAG;

    *rows = bag ? s->batch : s->m;
    *cols = bag ? s->tables * s->dim : s->n;
}

void result_size(const struct shape *s, int rank, int64_t *rows, int64_t *cols)
{
    computed_size(s, rows, cols);
    if (s->spec->exchange != EXCHANGE_PUT)
        return;
    *rows = shape_share(*rows, s->nranks, rank);
    *(is_beside(s) ? cols : rows) *= s->nranks;
}

/* The first row of the whole result that goes to this rank. */
static int64_t first_of_share(int64_t total, int nranks, int rank)
{
    int64_t first = 0;

    for (int r = 0; r < rank; r++)
        first += shape_share(total, nranks, r);
    return first;
}

/* Rows computed by rank `source`, to be added to `out`, whose rows are `stride` apart. */
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

    for (int64_t i = 0; i < p->rows; i++) {
        for (int64_t t = 0; t < s->tables; t++) {
            int64_t bag = t * s->batch + p->first + i;
            double *out = p->out + i * p->stride + t * s->dim;
            for (int64_t l = 0; l < s->pooling; l++) {
                int64_t row = t * s->rows + data_id(s, p->source, (uint64_t)(bag * s->pooling + l));
                for (int64_t d = 0; d < s->dim; d++)
                    out[d] += data_value(s, BENCH_TABLES, p->source, (uint64_t)(row * s->dim + d));
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

    data_floats(s, BENCH_W, p->source, 0, (uint64_t)(s->k * s->n), bb);
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
    int64_t computed, width, rows, cols, room = (s->spec->compute == COMPUTE_GEMV ? s->m + 1 : s->n + 1) * s->k;
    struct part part = {.rank = rank};
    double *want;

    result_size(s, rank, &rows, &cols);
    computed_size(s, &computed, &width);
    want = calloc((size_t)(rows * cols) + 1, sizeof(*want));
    part.room = malloc(((size_t)room + 1) * sizeof(*part.room));
    part.rows = computed;
    part.stride = cols;
    if (s->spec->exchange == EXCHANGE_PUT) {
        part.first = first_of_share(computed, s->nranks, rank);
        part.rows = shape_share(computed, s->nranks, rank);
    }
    for (part.source = 0; want && part.room && part.source < s->nranks; part.source++) {
        part.out = want;
        if (s->spec->exchange == EXCHANGE_PUT)
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
        double got = data_read(s->dtype, result, (uint64_t)i);
        wrong += !(fabs(got - want[i]) <= tolerance * (fabs(want[i]) + rms)); /* also counts NaN as wrong */
    }
    return wrong;
}
