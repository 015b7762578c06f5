/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_products.c - products through rings on fake GPUs: a rank's part, and the end. Between them the parts are added up as a collective's
 * are, in rank order, or their rows exchanged.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/plan/dtype.h"
#include "tests/bed/unwatched.h"
#include "tests/fake_gpu/fake_gpu_rings.h"

static size_t element_bytes(const struct rings_product *p)
{
    return p->dtype == FCC_F32 ? 4 : 2;
}

/* Row `row` of a matrix, as f32. */
static void row_load(const struct rings_product *p, float *out, uint64_t at, int64_t stride, int64_t row, int64_t columns)
{
    dtype_to_f32(out, (const unsigned char *)pointer(at) + (size_t)(row * stride) * element_bytes(p), (enum fcc_dtype)p->dtype,
                 (size_t)columns);
}

/* Row `row` of the first (0) or second (1) factor, as f32. */
static void factor_load(const struct rings_product *p, float *out, int factor, int64_t row, int64_t columns)
{
    const struct gpu_scales *scales = &p->scales.of[factor];
    const uint64_t at = factor ? p->w : p->x;
    const int64_t stride = factor ? p->w_stride : p->x_stride;

    if (!(p->factors >> factor & FACTORS_FIRST_F8)) {
        row_load(p, out, at, stride, row, columns);
        return;
    }
    dtype_to_f32(out, (const unsigned char *)pointer(at) + row * stride, FCC_F8E4M3, (size_t)columns);
    for (int64_t j = 0; j < columns && scales->at; j++)
        out[j] *= ((const float *)pointer(
            scales->at))[((row + scales->first) >> scales->rows) * scales->stride + (j >> scales->cols)];
}

/* room: [n] */
static void each_apply(const struct rings_product *p, float *row, float *room, int64_t at)
{
    if (p->gate)
        row_load(p, room, p->gate, p->gate_stride, at, p->n);
    for (int64_t i = 0; i < p->n; i++)
        row[i] = fake_each(p->activation, p->scale, p->gate ? &room[i] : NULL, row[i]);
}

static float *numbers_new(int64_t n)
{
    float *numbers = calloc((size_t)n + 1, sizeof(*numbers));

    wrong(!numbers, "no memory");
    return numbers;
}

static UNWATCHED float dot(const float *a, const float *b, int64_t n)
{
    float sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static UNWATCHED void add_times(float *out, float factor, const float *row, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] += factor * row[i];
}

float *rings_product_begin(const struct rings_product *p, struct gpu_collective *out)
{
    float *terms = numbers_new(2 * p->m * p->n), *x = numbers_new(p->m * p->k), *w = numbers_new(p->k);

    for (int64_t row = 0; row < p->m && p->k; row++)
        factor_load(p, (p->copies ? terms : x) + row * p->k, 0, row, p->k);
    for (int64_t col = 0; col < p->n && p->k && !p->copies; col++) {
        factor_load(p, w, 1, col, p->k);
        for (int64_t row = 0; row < p->m; row++)
            terms[row * p->n + col] = dot(x + row * p->k, w, p->k);
    }
    free(x);
    free(w);
    *out = (struct gpu_collective){.op = p->op,
                                   .dtype = FCC_F32,
                                   .reduction = p->reduction,
                                   .in_share = VECTOR_ALL,
                                   .out_share = VECTOR_ALL,
                                   .element_bytes = sizeof(float),
                                   .reduces = 1,
                                   .number = p->number,
                                   .in = (uintptr_t)terms,
                                   .out = (uintptr_t)(terms + p->m * p->n),
                                   .in_elements = p->m * p->n,
                                   .out_elements = p->m * p->n};
    return terms;
}

void rings_product_end(const struct rings_product *p, const float *sums)
{
    float *row = numbers_new(p->n), *more = numbers_new(p->n);

    for (int64_t r = 0; r < p->m && p->n; r++) {
        for (int64_t i = 0; i < p->n; i++)
            row[i] = sums[r * p->n + i];
        if (p->bias)
            row_load(p, more, p->bias, 0, 0, p->n);
        for (int64_t i = 0; i < p->n && p->bias; i++)
            row[i] += more[i];
        if (p->residual)
            row_load(p, more, p->residual, p->residual_stride, r, p->n);
        for (int64_t i = 0; i < p->n && p->residual; i++)
            row[i] += more[i];
        each_apply(p, row, more, r);
        dtype_from_f32((unsigned char *)pointer(p->y) + (size_t)(r * p->y_stride) * element_bytes(p), row,
                       (enum fcc_dtype)p->dtype, (size_t)p->n);
    }
    free(row);
    free(more);
}

/* ---- rows that go to the ranks ---- */

/* Row `row` of a . b, or of a, with what the epilogue adds. a: room for a row; b: the matrix; more: room for a row of results. */
static void row_make(const struct rings_product *p, float *out, float *a, const float *b, float *more, int64_t row)
{
    if (p->copies) {
        row_load(p, out, p->x, p->x_stride, row, p->n);
        return;
    }
    for (int64_t col = 0; col < p->n; col++)
        out[col] = 0;
    if (p->k)
        factor_load(p, a, 0, row, p->k);
    for (int64_t i = 0; i < p->k; i++)
        add_times(out, a[i], b + i * p->n, p->n);
    for (int stage = 0; stage < STAGES_ADDED; stage++) {
        const uint64_t at = stage == STAGE_BIAS ? p->bias : p->residual;
        if (!at)
            continue;
        row_load(p, more, at, stage == STAGE_BIAS ? 0 : p->residual_stride, row, p->n);
        add_times(out, 1, more, p->n);
    }
    each_apply(p, out, more, row);
}

void *rings_rows_begin(const struct rings_product *p, struct gpu_collective *out, uint32_t nranks)
{
    const size_t size = element_bytes(p);
    unsigned char *rows = calloc((size_t)((p->m + p->room) * p->n) + 1, size);
    float *sums = numbers_new(p->n), *a = numbers_new(p->k), *b = numbers_new(p->k * p->n), *more = numbers_new(p->n);

    wrong(!rows, "no memory");
    for (int64_t i = 0; i < p->k && p->n && !p->copies; i++)
        factor_load(p, b + i * p->n, 1, i, p->n);
    for (int64_t row = 0; row < p->m && p->n; row++) {
        row_make(p, sums, a, b, more, row);
        dtype_from_f32(rows + (size_t)(row * p->n) * size, sums, (enum fcc_dtype)p->dtype, (size_t)p->n);
    }
    free(sums);
    free(a);
    free(b);
    free(more);
    *out = (struct gpu_collective){.op = p->op,
                                   .dtype = p->dtype,
                                   .in_share = VECTOR_COUNTED,
                                   .out_share = VECTOR_COUNTED,
                                   .element_bytes = (uint32_t)size,
                                   .number = p->number,
                                   .in = (uintptr_t)rows,
                                   .out = (uintptr_t)(rows + (size_t)(p->m * p->n) * size),
                                   .in_elements = p->m * p->n,
                                   .out_elements = p->room * p->n};
    for (uint32_t r = 0; r < nranks; r++) {
        out->send[r] = p->rows[r] * p->n;
        out->expected[r] = -1;
    }
    return rows;
}

void rings_rows_end(const struct rings_product *p, uint64_t from, int64_t rows)
{
    const size_t size = element_bytes(p);

    for (int64_t row = 0; row < rows; row++)
        memcpy((unsigned char *)pointer(p->y) + (size_t)(row * p->y_stride) * size,
               (const unsigned char *)pointer(from) + (size_t)(row * p->n) * size, (size_t)p->n * size);
}
