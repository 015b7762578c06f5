/* SPDX-License-Identifier: MIT
 *
 * rows.c - what an epilogue does with whole rows, on CPU cores: the rows that have come to staging memory become a rank's results.
 *
 * Memory order: a row is read after the flag of the plan's waits (acquire), which the workgroup that executed the last of them raised
 * (release) behind its own acquire of the flags of all that has come. Nobody but this slice stores into its rows of the results. The residual
 * that `sum` may lie upon has been read before its elements' flags were raised.
 */
#include <errno.h>
#include <math.h>

#include "kernels/cpu/epilogue.h"
#include "kernels/plan/dtype.h"
#include "kernels/plan/epilogue.h"
#include "kernels/plan/tensor.h"

#define F8E4M3_MOST 448.0f

const struct tensor *result_rows(const struct run *run, int rank, struct tensor *room)
{
    const struct tensor *result = &run->args[rank].tensors[op_spec(run->plan->op)->result];
    const int64_t n = result->ndim > 1 ? result->shape[1] : run->problem->epilogue.cols;

    if (!run->plan->has_rows)
        return result;
    *room = (struct tensor){.data = run->staging[rank] + run->plan->rows_at,
                            .dtype = run->problem->dtype,
                            .ndim = 2,
                            .shape = {result->shape[0], n},
                            .stride = {n, 1}};
    return room;
}

int result_rows_place(const struct run *run)
{
    return run->plan->has_rows ? PUT_STAGING : op_spec(run->plan->op)->result;
}

/* ---- norms ---- */

/* The sum of (v - middle)^2, added in 16 columns, and these in order: the same on every machine. */
FCC_CLONES
static float squares(const float *v, size_t n, float middle)
{
    f32x4 sums[4] = {{0}}, piece;
    size_t whole = n / 16 * 16;
    float all = 0;

    for (size_t i = 0; i < whole; i += 16)
#pragma GCC unroll 4
        for (size_t j = 0; j < 4; j++) {
            memcpy(&piece, v + i + 4 * j, sizeof(piece));
            piece -= middle;
            sums[j] += piece * piece;
        }
    for (int i = 0; i < 16; i++)
        all += sums[i / 4][i % 4];
    for (size_t i = whole; i < n; i++)
        all += (v[i] - middle) * (v[i] - middle);
    return all;
}

static float mean(const float *v, size_t n)
{
    double all = 0;

    for (size_t i = 0; i < n; i++)
        all += (double)v[i];
    return (float)(all / (double)n);
}

/* What the rows of a slice need. */
struct rows_stages {
    const struct epilogue *epilogue;
    enum fcc_dtype dtype;
    size_t n;
    float *v, *weight, *bias; /* [n] each, in f32; weight, bias: NULL if absent */
    float scale;
};

static void norm(const struct rows_stages *p)
{
    const bool layer = p->epilogue->number[NUMBER_NORM] == FCC_LAYER_NORM;
    const float middle = layer ? mean(p->v, p->n) : 0;
    const float by = 1.0f / sqrtf(squares(p->v, p->n, middle) / (float)p->n + epilogue_float(p->epilogue, NUMBER_NORM_EPS));

    for (size_t i = 0; i < p->n; i++)
        p->v[i] = (p->v[i] - middle) * by * (p->weight ? p->weight[i] : 1.0f) + (p->bias ? p->bias[i] : 0.0f);
}

/* ---- rows ---- */

/* The row's result, rounded already, becomes e4m3. */
static void quantize(const struct rows_stages *p, const struct op_args *args, int64_t row, const unsigned char *result)
{
    const struct tensor *to = epilogue_tensor(args, STAGE_QUANTIZED), *scales = epilogue_tensor(args, STAGE_QUANTIZED_SCALE);
    const bool by_row = p->epilogue->number[NUMBER_QUANTIZATION] == FCC_QUANTIZED_BY_ROW;
    float scale, most = 0;

    dtype_to_f32(p->v, result, p->dtype, p->n);
    if (by_row) {
        for (size_t i = 0; i < p->n; i++)
            most = fabsf(p->v[i]) > most ? fabsf(p->v[i]) : most;
        scale = most / F8E4M3_MOST;
        scale = scale > 0 ? scale : 1.0f; /* the least subnormals divided by 448 are 0 */
        memcpy(scales->data + (size_t)(row * scales->stride[0]) * sizeof(float), &scale, sizeof(scale));
    } else {
        memcpy(&scale, scales->data, sizeof(scale));
    }
    for (size_t i = 0; i < p->n; i++)
        p->v[i] /= scale;
    f8e4m3_from_f32(tensor_at(to, row, 0), p->v, p->n);
}

static void row_make(const struct rows_stages *p, const struct op_args *args, const struct tensor *from, int64_t row)
{
    const struct epilogue *epilogue = p->epilogue;
    const struct tensor *sum = epilogue_tensor(args, STAGE_SUM), *gate = epilogue_tensor(args, STAGE_GATE);
    const unsigned char *in = tensor_at(from, row, 0);
    const struct tensor *result = &args->tensors[op_spec(args->op)->result];
    unsigned char *out =
        result->ndim > 1 ? tensor_at(result, row, 0) : result->data + (size_t)row * p->n * dtype_size(p->dtype);
    const size_t bytes = p->n * dtype_size(p->dtype);

    if (sum)
        memcpy(tensor_at(sum, row, 0), in, bytes);
    if (epilogue_rounds_first(epilogue)) {
        dtype_to_f32(p->v, in, p->dtype, p->n);
        if (epilogue->number[NUMBER_NORM])
            norm(p);
        stages_each((enum fcc_activation)epilogue->number[NUMBER_ACTIVATION], p->scale, gate ? tensor_at(gate, row, 0) : NULL,
                    p->dtype, p->v, p->n);
        dtype_from_f32(out, p->v, p->dtype, p->n);
    } else {
        memcpy(out, in, bytes);
    }
    if (epilogue->number[NUMBER_QUANTIZATION])
        quantize(p, args, row, out);
}

/* A tensor [n] in f32, at `room`, or NULL. */
static float *vector_load(const struct op_args *args, enum stage stage, size_t n, float *room)
{
    const struct tensor *t = epilogue_tensor(args, stage);

    if (!t)
        return NULL;
    dtype_to_f32(room, t->data, t->dtype, n);
    return room;
}

int cpu_rows(const struct run *run, const struct slice *s, struct workgroup *wg, struct error *e)
{
    const struct op_args *args = &run->args[run->rank];
    const struct epilogue *epilogue = &run->problem->epilogue;
    const size_t n = s->cols, room = (n + 15) / 16 * 16, bytes = 3 * room * sizeof(float);
    float *scratch = workgroup_scratch(wg, bytes);
    struct tensor rows;

    if (!scratch)
        return error_set(e, -ENOMEM, "scratch memory: %zu bytes: not there", bytes);
    const struct rows_stages p = {
        .epilogue = epilogue,
        .dtype = run->problem->dtype,
        .n = n,
        .v = scratch,
        .weight = vector_load(args, STAGE_NORM_WEIGHT, n, scratch + room),
        .bias = vector_load(args, STAGE_NORM_BIAS, n, scratch + 2 * room),
        .scale = epilogue_float(epilogue, NUMBER_SCALE),
    };
    const struct tensor *from = result_rows(run, run->rank, &rows);
    for (uint32_t i = 0; i < s->rows; i++)
        row_make(&p, args, from, (int64_t)s->row + i);
    return 0;
}
