/* SPDX-License-Identifier: MIT
 *
 * bench_check.c - the results computed once more, in double precision and in the plainest way, and compared element by element.
 */
#include <math.h>
#include <stdlib.h>

#include "client/fccctl/bench/bench.h"

void result_size(const struct shape *s, int rank, int64_t *rows, int64_t *cols)
{
    switch (s->op) {
    case FCC_OP_EMBEDDING_ALL_TO_ALL:
        *rows = shape_share(s->batch, s->nranks, rank);
        *cols = s->tables * s->nranks * s->dim;
        return;
    case FCC_OP_GEMV_ALL_REDUCE:
        *rows = s->m;
        *cols = s->n;
        return;
    case FCC_OP_GEMM_ALL_TO_ALL:
        *rows = shape_share(s->m, s->nranks, rank) * s->nranks;
        *cols = s->n;
        return;
    case FCC_OP_NOOP:
    case FCC_OP_COUNT:
        break;
    }
    *rows = *cols = 0;
}

/* The first row of the whole (batch, or rows of C) that goes to this rank. */
static int64_t first_of_share(int64_t total, int nranks, int rank)
{
    int64_t first = 0;

    for (int r = 0; r < rank; r++)
        first += shape_share(total, nranks, r);
    return first;
}

/* out[s][t][d] = sum over the bag (t, s) of tables[id][d] */
static void embedding_want(const struct bench *b, int rank, double *want)
{
    const struct shape *s = &b->shape;
    int64_t first = first_of_share(s->batch, s->nranks, rank), samples = shape_share(s->batch, s->nranks, rank);

    for (int64_t i = 0; i < samples; i++) {
        for (int64_t t = 0; t < s->tables * s->nranks; t++) {
            int source = (int)(t / s->tables);
            int64_t table = t % s->tables, bag = table * s->batch + first + i;
            double *out = want + (i * s->tables * s->nranks + t) * s->dim;
            for (int64_t p = 0; p < s->pooling; p++) {
                int64_t row = table * s->rows + data_id(s, source, (uint64_t)(bag * s->pooling + p));
                for (int64_t d = 0; d < s->dim; d++)
                    out[d] += data_value(s, BENCH_TABLES, source, (uint64_t)(row * s->dim + d));
            }
        }
        bench_progress(b, rank);
    }
}

/* y[m][n] = sum over ranks r and k of x_r[m][k] * w_r[n][k]. room: (m + 1) * k floats. */
static void gemv_want(const struct bench *b, int rank, float *room, double *want)
{
    const struct shape *s = &b->shape;
    float *x = room, *w = room + s->m * s->k;

    for (int r = 0; r < s->nranks; r++) {
        data_floats(s, BENCH_X, r, 0, (uint64_t)(s->m * s->k), x);
        for (int64_t n = 0; n < s->n; n++) {
            data_floats(s, BENCH_W, r, (uint64_t)(n * s->k), (uint64_t)s->k, w);
            for (int64_t m = 0; m < s->m; m++) {
                double sum = 0;
                for (int64_t k = 0; k < s->k; k++)
                    sum += (double)x[m * s->k + k] * (double)w[k];
                want[m * s->n + n] += sum;
            }
            bench_progress(b, rank);
        }
    }
}

/* This rank's rows of each rank's A . B, below one another. room: (n + 1) * k floats. */
static void gemm_want(const struct bench *b, int rank, float *room, double *want)
{
    const struct shape *s = &b->shape;
    int64_t first = first_of_share(s->m, s->nranks, rank), rows = shape_share(s->m, s->nranks, rank);
    float *a = room, *bb = room + s->k;

    for (int r = 0; r < s->nranks; r++) {
        data_floats(s, BENCH_W, r, 0, (uint64_t)(s->k * s->n), bb);
        for (int64_t i = 0; i < rows; i++) {
            double *out = want + (r * rows + i) * s->n;
            data_floats(s, BENCH_X, r, (uint64_t)((first + i) * s->k), (uint64_t)s->k, a);
            for (int64_t k = 0; k < s->k; k++) {
                double factor = a[k];
                for (int64_t n = 0; n < s->n; n++)
                    out[n] += factor * (double)bb[k * s->n + n];
            }
            bench_progress(b, rank);
        }
    }
}

double *result_want(const struct bench *b, int rank)
{
    const struct shape *s = &b->shape;
    int64_t rows, cols, room = s->op == FCC_OP_GEMV_ALL_REDUCE ? (s->m + 1) * s->k : (s->n + 1) * s->k;
    double *want;
    float *floats;

    result_size(s, rank, &rows, &cols);
    want = calloc((size_t)(rows * cols) + 1, sizeof(*want));
    floats = malloc(((size_t)room + 1) * sizeof(*floats));
    if (!want || !floats) {
        free(want);
        free(floats);
        return NULL;
    }
    if (s->op == FCC_OP_EMBEDDING_ALL_TO_ALL)
        embedding_want(b, rank, want);
    else if (s->op == FCC_OP_GEMV_ALL_REDUCE)
        gemv_want(b, rank, floats, want);
    else
        gemm_want(b, rank, floats, want);
    free(floats);
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
        wrong += !(fabs(got - want[i]) <= tolerance * (fabs(want[i]) + rms)); /* not a number is wrong, too */
    }
    return wrong;
}
