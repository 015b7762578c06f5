/* SPDX-License-Identifier: MIT */
#include "kernels/plan/compute/factors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "kernels/plan/epilogue.h"
#include "kernels/plan/tensor.h"

enum { A, B, FACTORS };

static const char *name_of(const struct op_args *args, int tensor)
{
    return op_spec(args->op)->tensors[tensor].name;
}

static bool is_f8(const struct tensor *t)
{
    return t->dtype == FCC_F8E4M3;
}

/* ---- dtypes ---- */

int factors_check(const struct op_args *args, struct error *e)
{
    const struct tensor *a = &args->tensors[A], *b = &args->tensors[B];

    if (!b->data && is_f8(a))
        return error_set(e, -EINVAL, "%s: dtype %s: allowed where %s is absent: %s, %s, %s", name_of(args, A),
                         dtype_name(a->dtype), name_of(args, B), dtype_name(FCC_F32), dtype_name(FCC_F16),
                         dtype_name(FCC_BF16));
    if (!b->data || a->dtype == b->dtype || is_f8(a) || is_f8(b))
        return 0;
    return error_set(e, -EINVAL, "%s: dtype %s: allowed are %s (%s's) and %s", name_of(args, B), dtype_name(b->dtype),
                     dtype_name(a->dtype), name_of(args, A), dtype_name(FCC_F8E4M3));
}

/* Words are made for errors only. */
int factors_result_check(const struct op_args *args, struct error *e)
{
    const int result = op_spec(args->op)->result;
    const struct tensor *c = &args->tensors[result];
    char what[32];

    for (int i = 0; i < FACTORS; i++) {
        const struct tensor *t = &args->tensors[i];
        if (!t->data || is_f8(t) || t->dtype == c->dtype)
            continue;
        (void)snprintf(what, sizeof(what), "%s's", name_of(args, i));
        return tensor_check_dtype(c, name_of(args, result), t->dtype, what, e);
    }
    return 0;
}

int factors_match(const struct op_args args[], int nranks, struct error *e)
{
    for (int r = 1; r < nranks; r++)
        for (int i = 0; i < FACTORS; i++) {
            const struct tensor *t = &args[r].tensors[i], *t0 = &args[0].tensors[i];
            if (t->data && t0->data && match_dtype(name_of(args, i), r, t->dtype, t0->dtype, e))
                return e->status;
        }
    return 0;
}

uint32_t factors_of(const struct op_args *args)
{
    uint32_t found = args->batch_invariant ? FACTORS_BATCH_INVARIANT : 0;

    for (int i = 0; i < FACTORS; i++)
        found |= args->tensors[i].data && is_f8(&args->tensors[i]) ? (uint32_t)FACTORS_FIRST_F8 << i : 0;
    return found;
}

/* ---- scales ---- */

static int64_t blocks_of(int64_t n)
{
    return (n + FACTOR_BLOCK - 1) / FACTOR_BLOCK;
}

static bool has_shape(const struct tensor *t, int64_t rows, int64_t cols)
{
    return t->ndim == 2 && t->shape[0] == rows && t->shape[1] == cols;
}

/* False: the scales fit no way of having some. */
static bool scale_find(const struct op_args *args, int factor, struct factor_scale *out)
{
    const struct tensor *t = epilogue_tensor(args, (enum stage)(STAGE_X_SCALE + factor)), *of = &args->tensors[factor];
    const bool by_row = factor == A || factors_second_is_transposed(args);
    const int64_t rows = of->shape[0], cols = of->shape[1];

    *out = (struct factor_scale){.at = t ? (const float *)(const void *)t->data : NULL,
                                 .rows = FACTOR_WHOLE,
                                 .cols = FACTOR_WHOLE,
                                 .stride = t && t->ndim == 2 ? t->stride[0] : 1};
    if (!t || (t->ndim == 1 && t->shape[0] == 1))
        return true;
    if (t->ndim == 1) {
        *(by_row ? &out->rows : &out->cols) = 1;
        return t->shape[0] == (by_row ? rows : cols);
    }
    out->cols = FACTOR_BLOCK;
    out->rows = has_shape(t, blocks_of(rows), blocks_of(cols)) ? FACTOR_BLOCK : 1;
    return out->rows == FACTOR_BLOCK || (factor == A && has_shape(t, rows, blocks_of(cols)));
}

struct factor_scale factor_scale_of(const struct op_args *args, int factor)
{
    struct factor_scale found;

    (void)scale_find(args, factor, &found);
    return found;
}

/* What is there, and what may be. */
static int scale_refuse(const struct op_args *args, int factor, const struct tensor *t, const char *name, struct error *e)
{
    const struct tensor *of = &args->tensors[factor];
    const bool by_row = factor == A || factors_second_is_transposed(args);
    char has[64], more[80] = "";

    if (t->ndim == 1)
        (void)snprintf(has, sizeof(has), "[%" PRId64 "]", t->shape[0]);
    else
        (void)snprintf(has, sizeof(has), "[%" PRId64 "][%" PRId64 "]", t->shape[0], t->shape[1]);
    if (factor == A)
        (void)snprintf(more, sizeof(more), ", [%" PRId64 "][%" PRId64 "] (each %d elements of a row)", of->shape[0],
                       blocks_of(of->shape[1]), FACTOR_BLOCK);
    return error_set(e, -EINVAL,
                     "%s: shape %s: allowed are [1], [%" PRId64 "] (each %s of %s), [%" PRId64 "][%" PRId64
                     "] (each block of %d x %d)%s",
                     name, has, of->shape[by_row ? 0 : 1], by_row ? "row" : "column", name_of(args, factor),
                     blocks_of(of->shape[0]), blocks_of(of->shape[1]), FACTOR_BLOCK, FACTOR_BLOCK, more);
}

int factors_scales_check(const struct op_args *args, struct error *e)
{
    struct factor_scale found;

    for (int i = 0; i < FACTORS; i++) {
        const struct tensor *t = epilogue_tensor(args, (enum stage)(STAGE_X_SCALE + i));
        const char *name = epilogue_specs[STAGE_X_SCALE + i].name;
        if (!t)
            continue;
        if (!is_f8(&args->tensors[i]))
            return error_set(e, -EINVAL, "%s: given: allowed only where %s is %s", name, name_of(args, i),
                             dtype_name(FCC_F8E4M3));
        if (t->ndim > 2)
            return error_set(e, -EINVAL, "%s: %d dimensions: allowed are 1 and 2", name, t->ndim);
        if (tensor_check(t, name, DTYPES_F32, t->ndim, e))
            return e->status;
        if (!scale_find(args, i, &found))
            return scale_refuse(args, i, t, name, e);
    }
    return 0;
}
