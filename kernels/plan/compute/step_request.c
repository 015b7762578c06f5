/* SPDX-License-Identifier: MIT
 *
 * step_request.c - what is wrong with one rank's request of a program's step. Its code comes from another process, so all that a core follows is checked here:
 * registers (code_read()), and that each operand's elements lie in its tensor.
 */
#include "kernels/plan/compute/step.h"

#include <errno.h>
#include <inttypes.h>

#include "kernels/plan/compute/vector.h"
#include "kernels/plan/tensor.h"

struct code step_code(const struct op_args *args)
{
    struct code code = {.head = NULL};
    struct error none = {.status = 0};
    size_t count;
    const int64_t *words = op_attr(args, FCC_ATTR_CODE, &count);

    if (code_read(words, count, &code, &none))
        code = (struct code){.head = NULL}; /* which a checked request has not */
    return code;
}

uint32_t step_results(const struct op_args *args)
{
    const struct code code = step_code(args);

    return code.instructions ? code_stores(&code) << STEP_TENSOR : 0;
}

const int64_t *step_places(const struct op_args *args, const struct code *code, int tensor)
{
    size_t count = 0;
    const int64_t *tables = op_attr(args, FCC_ATTR_TABLES, &count);

    return code_places(code, tables, count, tensor);
}

const int64_t *step_dtypes(const struct op_args *args)
{
    size_t count = 0;
    const int64_t *dtypes = op_attr(args, FCC_ATTR_DTYPES, &count);

    return count == CODE_TENSORS ? dtypes : NULL;
}

int64_t step_begin_of(const struct code *code, int nranks, int rank)
{
    return code->head->sliced ? slice_begin(code->head->rows, nranks, rank) * code->head->inner : 0;
}

int64_t step_count_of(const struct code *code, int nranks, int rank)
{
    return code->head->sliced ? step_begin_of(code, nranks, rank + 1) - step_begin_of(code, nranks, rank)
                              : code->head->rows * code->head->inner;
}

static int tensor_is_vector(const struct tensor *t, const char *name, struct error *e)
{
    if (!t->data)
        return error_set(e, -EINVAL, "%s: absent: it must be there", name);
    if (t->ndim != 1 || (t->shape[0] > 1 && t->stride[0] != 1))
        return error_set(e, -EINVAL, "%s: %d dimensions, last stride %" PRId64 ": allowed are 1 and 1", name, t->ndim,
                         t->stride[0]);
    return tensor_check_dtypes(t, name, DTYPES_FLOAT, e);
}

static int operand_check(const struct op_args *args, const struct code *code, const struct code_operand *o, int nranks,
                         int rank, struct error *e)
{
    const struct op_spec *op = op_spec(args->op);
    const struct tensor *t = step_tensor(args, o);
    const char *name = op->tensors[t - args->tensors].name;
    const int64_t needed = code_operand_elements(code, o, step_count_of(code, nranks, rank));

    if (o->tensor != CODE_OUT && step_dtypes(args)) /* the rank's process checks where it is: client/stream/bound_step.c */
        return tensor_check_dtypes(&(struct tensor){.dtype = step_tensor_dtype(args, o)}, name, DTYPES_FLOAT, e);
    if (tensor_is_vector(t, name, e))
        return e->status;
    if (step_places(args, code, (int)(t - args->tensors))) /* places_check() */
        return 0;
    if (t->shape[0] < needed)
        return error_set(e, -EINVAL, "%s: %" PRId64 " elements: needed are %" PRId64, name, t->shape[0], needed);
    if (o->tensor != CODE_OUT && args->tensors[STEP_OUT].data && tensors_overlap(t, &args->tensors[STEP_OUT]))
        return error_set(e, -EINVAL, "%s: overlaps out: not allowed", name);
    return 0;
}

/* Each tensor of a table lies in the tensor of the step. */
static int places_check(const struct op_args *args, const struct code *code, struct error *e)
{
    size_t count = 0;
    const int64_t *tables = op_attr(args, FCC_ATTR_TABLES, &count);

    if (code_tables_check(code, count ? tables : NULL, count, e))
        return e->status;
    for (int i = 0; i < args->ntensors; i++) {
        const int64_t *places = code_places(code, tables, count, i);
        const struct tensor *t = &args->tensors[i];
        const char *name = op_spec(args->op)->tensors[i].name;
        if (i >= STEP_TENSOR && step_dtypes(args))
            break;
        if (places && tensor_is_vector(t, name, e))
            return e->status;
        for (int64_t k = 0; places && k < code->head->tensors; k++) {
            const int64_t n = code->begins[k + 1] - code->begins[k];
            if (places[k] < 0 || n > t->shape[0] || places[k] > t->shape[0] - n)
                return error_set(e, -EINVAL,
                                 "%s: tensor %" PRId64 " of its table: %" PRId64 " elements from %" PRId64
                                 " on: allowed are 0 to %" PRId64,
                                 name, k, n, places[k], t->shape[0]);
        }
    }
    return 0;
}

/* Of a step that is to be bound: no tensor is in two places. */
static int dtypes_check(const struct op_args *args, struct error *e)
{
    size_t count = 0;

    (void)op_attr(args, FCC_ATTR_DTYPES, &count);
    if (count && count != CODE_TENSORS)
        return error_set(e, -EINVAL, "dtypes: %zu: allowed are %d", count, CODE_TENSORS);
    for (int i = STEP_TENSOR; count && i < args->ntensors; i++)
        if (args->tensors[i].data)
            return error_set(e, -EINVAL, "%s: present: allowed without dtypes", op_spec(args->op)->tensors[i].name);
    return 0;
}

static int sum_check(const struct op_args *args, const struct code *code, struct error *e)
{
    const struct tensor *in = &args->tensors[STEP_IN], *out = &args->tensors[STEP_OUT];
    const int64_t all = code->head->rows * code->head->inner;
    const bool in_table = step_places(args, code, STEP_IN) != NULL, out_table = step_places(args, code, STEP_OUT) != NULL,
               reduces = code_reduces(code), gives = code_has_result(code);

    if ((!reduces && in->data) || (!gives && out->data))
        return error_set(e, -EINVAL, "%s: present: allowed with %s", !reduces && in->data ? "in" : "out",
                         !reduces && in->data ? "a sum of all ranks" : "a result for all ranks");
    if ((reduces && tensor_is_vector(in, "in", e)) || (gives && tensor_is_vector(out, "out", e)))
        return e->status;
    if ((reduces && !in_table && in->shape[0] != all) || (gives && !out_table && out->shape[0] != all))
        return error_set(e, -EINVAL, "in, out: %" PRId64 " and %" PRId64 " elements: needed are %" PRId64, in->shape[0],
                         out->shape[0], all);
    if (!gives)
        return 0;
    if (!out->symmetric)
        return tensor_check_result(out, "out", e);
    if (!reduces)
        return 0;
    if ((in_table || out_table) && tensors_overlap(in, out))
        return error_set(e, -EINVAL, "in: a table's tensors: overlaps out: not allowed");
    if (tensors_overlap(in, out) && (in->data != out->data || in->dtype != out->dtype))
        return error_set(e, -EINVAL, "in: overlaps out: allowed is the same tensor");
    return 0;
}

int step_check(const struct op_args *args, int nranks, int rank, struct error *e)
{
    struct code code;
    size_t count;
    const int64_t *words = op_attr(args, FCC_ATTR_CODE, &count);

    if (args_check(args, e))
        return e->status;
    if (args->ntensors != STEP_TENSOR + CODE_TENSORS)
        return error_set(e, -EINVAL, "tensors: %d: allowed is %d", args->ntensors, STEP_TENSOR + CODE_TENSORS);
    if (code_read(words, count, &code, e))
        return e->status;
    if (code.head->kind == CODE_TEXT)
        return 0;
    const int64_t *tile = op_attr(args, FCC_ATTR_TILE, &count);
    if (count && (tile[0] < 0 || tile[0] > VECTOR_MOST))
        return error_set(e, -EINVAL, "chunk: a tile of %" PRId64 " elements: allowed are 0 to %" PRId64, tile[0], VECTOR_MOST);
    if (dtypes_check(args, e) || places_check(args, &code, e) || sum_check(args, &code, e))
        return e->status;
    for (int64_t i = 0; i < code.head->operands; i++)
        if (operand_check(args, &code, &code.operands[i], nranks, rank, e))
            return e->status;
    return 0;
}
