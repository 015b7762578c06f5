/* SPDX-License-Identifier: MIT
 *
 * epilogue.c - what an epilogue does with the sums of a tile, and with each element.
 */
#include "kernels/cpu/epilogue.h"

#include <math.h>

#include "kernels/plan/dtype.h"
#include "kernels/plan/epilogue.h"
#include "kernels/plan/tensor.h"

enum { PIECE = 256 }; /* elements */

static struct stage_rows stage_rows_at(const struct op_args *args, enum stage stage, const struct slice *s)
{
    const struct tensor *t = epilogue_tensor(args, stage);

    if (!t)
        return (struct stage_rows){.at = NULL};
    if (t->ndim == 1)
        return (struct stage_rows){.at = t->data + s->col * dtype_size(t->dtype)};
    return (struct stage_rows){.at = tensor_at(t, s->row, s->col), .ld = t->stride[0]};
}

const struct tile_stages *tile_stages_at(const struct run *run, const struct slice *s, struct tile_stages *out)
{
    const struct op_args *args = &run->args[run->rank];
    const struct epilogue *p = &run->problem->epilogue;

    if (!p->cols) /* there is none, or nothing to apply it to */
        return NULL;
    *out = (struct tile_stages){.dtype = run->problem->dtype,
                                .bias = stage_rows_at(args, STAGE_BIAS, s),
                                .residual = stage_rows_at(args, STAGE_RESIDUAL, s),
                                .scale = 1.0f};
    if (!epilogue_rounds_first(p)) {
        out->gate = stage_rows_at(args, STAGE_GATE, s);
        out->activation = (enum fcc_activation)p->number[NUMBER_ACTIVATION];
        out->scale = epilogue_float(p, NUMBER_SCALE);
    }
    return out->bias.at || out->residual.at || out->gate.at || out->activation || out->scale != 1.0f ? out : NULL;
}

static void add(float *sums, const unsigned char *from, enum fcc_dtype dtype, size_t n)
{
    float piece[PIECE];

    for (size_t done = 0; done < n; done += PIECE) {
        size_t count = n - done < PIECE ? n - done : PIECE;
        dtype_to_f32(piece, from + done * dtype_size(dtype), dtype, count);
        for (size_t i = 0; i < count; i++)
            sums[done + i] += piece[i];
    }
}

static float silu(float v)
{
    return v / (1.0f + expf(-v));
}

static float activate(enum fcc_activation activation, float v)
{
    switch (activation) {
    case FCC_RELU:
        return v < 0 ? 0 : v; /* a NaN stays one */
    case FCC_GELU:
        return 0.5f * v * (1.0f + erff(v * 0.70710678118654752f));
    case FCC_GELU_TANH:
        return 0.5f * v * (1.0f + tanhf(0.79788456080286536f * (v + 0.044715f * v * v * v)));
    case FCC_SILU:
        return silu(v);
    default:
        return v;
    }
}

void stages_each(enum fcc_activation activation, float scale, const unsigned char *gate, enum fcc_dtype dtype, float *v,
                 size_t n)
{
    float piece[PIECE];

    for (size_t i = 0; i < n && activation; i++)
        v[i] = activate(activation, v[i]);
    for (size_t done = 0; done < n && gate; done += PIECE) {
        size_t count = n - done < PIECE ? n - done : PIECE;
        dtype_to_f32(piece, gate + done * dtype_size(dtype), dtype, count);
        for (size_t i = 0; i < count; i++)
            v[done + i] *= silu(piece[i]);
    }
    for (size_t i = 0; i < n && scale != 1.0f; i++)
        v[i] *= scale;
}

static const unsigned char *at(const struct stage_rows *t, int64_t row, int64_t col, enum fcc_dtype dtype)
{
    return t->at ? t->at + (row * t->ld + col) * (int64_t)dtype_size(dtype) : NULL;
}

void tile_stages_apply(const struct tile_stages *p, int64_t row, int64_t col, float *sums, size_t n)
{
    if (p->bias.at)
        add(sums, at(&p->bias, row, col, p->dtype), p->dtype, n);
    if (p->residual.at)
        add(sums, at(&p->residual, row, col, p->dtype), p->dtype, n);
    stages_each(p->activation, p->scale, at(&p->gate, row, col, p->dtype), p->dtype, sums, n);
}
