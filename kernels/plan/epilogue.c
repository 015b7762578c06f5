/* SPDX-License-Identifier: MIT
 *
 * epilogue.c - checks and compares the epilogues of requests.
 */
#include "kernels/plan/epilogue.h"

#include <errno.h>

#include "kernels/plan/tensor.h"

const struct tensor *epilogue_tensor(const struct op_args *args, enum stage stage)
{
    int at = op_spec(args->op)->ntensors + (int)stage;

    return at < args->ntensors && args->tensors[at].data ? &args->tensors[at] : NULL;
}

static const char *stage_name(enum stage stage)
{
    return epilogue_specs[stage].name;
}

int epilogue_check(const struct op_args *args, const char *dtype_of, enum fcc_dtype dtype, int64_t rows, int64_t cols,
                   struct error *e)
{
    int status = 0;

    for (int i = 0; i < STAGES && status == 0; i++) {
        const struct tensor_spec *spec = &epilogue_specs[i];
        const struct tensor *t = epilogue_tensor(args, (enum stage)i);
        if (!t)
            continue;
        status = tensor_check(t, spec->name, spec->dtypes, spec->ndim, e);
        if (status == 0)
            status = tensor_check_dtype(t, spec->name, dtype, dtype_of, e);
        if (status == 0 && spec->ndim > 1)
            status = tensor_check_shape(t, spec->name, 0, rows, "M", e);
        if (status == 0)
            status = tensor_check_shape(t, spec->name, spec->ndim - 1, cols, "N", e);
    }
    return status;
}

int epilogue_match(const struct op_args args[], int nranks, uint32_t *stages, struct error *e)
{
    *stages = 0;
    for (int i = 0; i < STAGES; i++) {
        const bool first = epilogue_tensor(&args[0], (enum stage)i);
        for (int r = 1; r < nranks; r++)
            if (!epilogue_tensor(&args[r], (enum stage)i) == first)
                return error_set(e, -EINVAL, "%s: rank %d has %s, rank 0 has %s", stage_name((enum stage)i), r,
                                 first ? "none" : "one", first ? "one" : "none");
        *stages |= first ? 1u << i : 0;
    }
    return 0;
}

bool epilogue_may_be_result(const struct op_args *args, int tensor)
{
    const struct op_spec *op = op_spec(args->op);
    const struct tensor *t = &args->tensors[tensor], *result = &args->tensors[op->result];

    return tensor == op->ntensors + STAGE_RESIDUAL && op->exchange == EXCHANGE_REDUCE && t->data == result->data &&
           (t->stride[0] == result->stride[0] || t->shape[0] <= 1);
}
