/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_products.c - products through rings on fake GPUs: a rank's part, and the end. Between them the parts are added up as a collective's
 * are, in rank order.
 */
#include <stdlib.h>

#include "kernels/plan/dtype.h"
#include "tests/fake_gpu/fake_gpu_rings.h"

uint32_t rings_product_stages(const struct rings_product *p)
{
    return (p->bias ? 1u << STAGE_BIAS : 0) | (p->residual ? 1u << STAGE_RESIDUAL : 0);
}

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

static float *numbers_new(int64_t n)
{
    float *numbers = calloc((size_t)n + 1, sizeof(*numbers));

    wrong(!numbers, "no memory");
    return numbers;
}

float *rings_product_begin(const struct rings_product *p, struct gpu_collective *out)
{
    float *terms = numbers_new(2 * p->m * p->n), *x = numbers_new(p->m * p->k), *w = numbers_new(p->k);

    for (int64_t row = 0; row < p->m && p->k; row++)
        row_load(p, x + row * p->k, p->x, p->x_stride, row, p->k);
    for (int64_t col = 0; col < p->n && p->k; col++) {
        row_load(p, w, p->w, p->w_stride, col, p->k);
        for (int64_t row = 0; row < p->m; row++)
            for (int64_t i = 0; i < p->k; i++)
                terms[row * p->n + col] += x[row * p->k + i] * w[i];
    }
    free(x);
    free(w);
    *out = (struct gpu_collective){.op = p->op,
                                   .dtype = FCC_F32,
                                   .reduction = FCC_SUM,
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
        dtype_from_f32((unsigned char *)pointer(p->y) + (size_t)(r * p->y_stride) * element_bytes(p), row,
                       (enum fcc_dtype)p->dtype, (size_t)p->n);
    }
    free(row);
    free(more);
}
