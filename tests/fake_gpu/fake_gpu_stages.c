/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_stages.c - epilogues of products on fake GPUs, in double: what is done with each element, and with whole rows.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/plan/dtype.h"
#include "tests/fake_gpu/fake_gpu_rings.h"

static double silu(double v)
{
    return v / (1 + exp(-v));
}

static double activate(uint32_t activation, double v)
{
    switch (activation) {
    case FCC_RELU:
        return v < 0 ? 0 : v;
    case FCC_GELU:
        return 0.5 * v * (1 + erf(v / sqrt(2)));
    case FCC_GELU_TANH:
        return 0.5 * v * (1 + tanh(0.79788456080286536 * (v + 0.044715 * v * v * v)));
    case FCC_SILU:
        return silu(v);
    default:
        wrong(activation != FCC_NO_ACTIVATION, "an activation that there is not");
        return v;
    }
}

float fake_each(uint32_t activation, float scale, const float *gate, float v)
{
    const double found = activate(activation, (double)v) * (gate ? silu((double)*gate) : 1);

    return (float)(scale != 0 ? found * (double)scale : found);
}

static unsigned char *row_of(uint64_t at, int64_t stride, int64_t row, size_t size)
{
    return (unsigned char *)pointer(at) + (size_t)(row * stride) * size;
}

static void row_norm(const struct gpu_rows *p, float *v, const float *weight, const float *bias)
{
    double mean = 0, squares = 0;

    for (int64_t i = 0; i < p->n; i++)
        mean += p->norm == FCC_LAYER_NORM ? (double)v[i] / (double)p->n : 0;
    for (int64_t i = 0; i < p->n; i++)
        squares += ((double)v[i] - mean) * ((double)v[i] - mean) / (double)p->n;
    for (int64_t i = 0; i < p->n; i++)
        v[i] = (float)(((double)v[i] - mean) / sqrt(squares + (double)p->eps) * (p->weight ? (double)weight[i] : 1) +
                       (p->bias ? (double)bias[i] : 0));
}

static void row_quantize(const struct gpu_rows *p, int64_t row, float *v)
{
    float *scales = pointer(p->quantized_scale), most = 0, scale = scales[0];

    if (p->quantization == FCC_QUANTIZED_BY_ROW) {
        for (int64_t i = 0; i < p->n; i++)
            most = fmaxf(most, fabsf(v[i]));
        scale = scales[row * p->scale_stride] = most > 0 ? most / 448.0f : 1;
    }
    for (int64_t i = 0; i < p->n; i++)
        v[i] /= scale;
    f8e4m3_from_f32(row_of(p->quantized, p->quantized_stride, row, 1), v, (size_t)p->n);
}

void fake_rows(const struct gpu_rows *p)
{
    const enum fcc_dtype dtype = (enum fcc_dtype)p->dtype;
    const size_t size = dtype == FCC_F32 ? 4 : 2, n = (size_t)p->n;
    float *v = calloc(4 * n + 1, sizeof(*v)), *gate = v + n, *weight = v + 2 * n, *bias = v + 3 * n;

    wrong(!v, "no memory");
    wrong(p->wide || p->added_bias || p->residual, "of an epilogue's rows: what the plug-in itself fills in");
    if (p->weight)
        dtype_to_f32(weight, pointer(p->weight), dtype, n);
    if (p->bias)
        dtype_to_f32(bias, pointer(p->bias), dtype, n);
    for (int64_t row = 0; p->is_there && row < p->m && n; row++) {
        unsigned char *y = row_of(p->y, p->y_stride, row, size);
        dtype_to_f32(v, p->sum ? row_of(p->sum, p->sum_stride, row, size) : y, dtype, n);
        if (p->gate)
            dtype_to_f32(gate, row_of(p->gate, p->gate_stride, row, size), dtype, n);
        if (p->norm)
            row_norm(p, v, weight, bias);
        for (size_t i = 0; i < n; i++)
            v[i] = fake_each(p->activation, p->scale, p->gate ? &gate[i] : NULL, v[i]);
        dtype_from_f32(y, v, dtype, n);
        dtype_to_f32(v, y, dtype, n);
        if (p->quantization)
            row_quantize(p, row, v);
    }
    free(v);
}
