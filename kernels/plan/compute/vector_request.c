/* SPDX-License-Identifier: MIT
 *
 * vector_request.c - collectives: what is wrong with one rank's request by itself. The worker asks, and the client library for what this
 * process launches.
 */
#include <errno.h>
#include <inttypes.h>

#include "kernels/plan/compute/vector.h"
#include "kernels/plan/epilogue.h"
#include "kernels/plan/tensor.h"

static const char *const names[] = {[FCC_SUM] = "sum",         [FCC_PRODUCT] = "product", [FCC_MIN] = "min", [FCC_MAX] = "max",
                                    [FCC_AVERAGE] = "average", [FCC_AND] = "and",         [FCC_OR] = "or",   [FCC_XOR] = "xor"};

const char *reduction_name(int64_t reduction)
{
    return reduction >= FCC_SUM && reduction <= FCC_XOR ? names[reduction] : "unknown";
}

/* The number that an attribute of the operator's row has; `otherwise`: it has none. */
int64_t vector_number(const struct op_args *args, enum fcc_attr key, int64_t otherwise)
{
    size_t count;
    const int64_t *value = op_attr(args, key, &count);

    return value && count == 1 ? *value : otherwise;
}

int64_t vector_row_elements(const struct op_args *args)
{
    const int64_t n = vector_number(args, FCC_ATTR_ROW_ELEMENTS, 1);

    return n ? n : 1;
}

/* Whether the rank must have the tensor. */
static bool needs(const struct op_args *args, int tensor, int rank)
{
    const struct op_spec *op = op_spec(args->op);
    uint8_t part = tensor == FCC_VECTOR_IN ? op->in : op->out;
    enum fcc_attr peer = tensor == FCC_VECTOR_IN ? FCC_ATTR_DESTINATION : FCC_ATTR_SOURCE;

    if (part == VECTOR_ROOT)
        return vector_number(args, FCC_ATTR_ROOT, 0) == rank;
    return part != VECTOR_COUNTED || vector_number(args, peer, 0) >= 0;
}

static int rank_check(const struct op_args *args, const char *name, enum fcc_attr key, int64_t least, int nranks,
                      struct error *e)
{
    int64_t value = vector_number(args, key, least);

    if (value < least || value >= nranks)
        return error_set(e, -EINVAL, "%s: %" PRId64 ": allowed are %s0 to %d", name, value, least < 0 ? "-1 (none) and " : "",
                         nranks - 1);
    return 0;
}

static int reduction_check(const struct op_args *args, enum fcc_dtype dtype, struct error *e)
{
    int64_t reduction = vector_number(args, FCC_ATTR_REDUCTION, FCC_SUM);
    unsigned dtypes = reduction == FCC_AVERAGE ? DTYPES_FLOAT | 1u << FCC_F64
                      : reduction >= FCC_AND   ? DTYPES_INTEGER
                                               : DTYPES_ADDED;

    if (reduction < FCC_SUM || reduction > FCC_XOR)
        return error_set(e, -EINVAL, "reduction: %" PRId64 ": allowed are %d to %d", reduction, FCC_SUM, FCC_XOR);
    if (!(dtypes & 1u << dtype))
        return error_set(e, -EINVAL, "reduction: %s: not allowed of %s", names[reduction], dtype_name(dtype));
    return 0;
}

static int expected_check(const int64_t expected[], size_t count, int nranks, const struct op_args *args, struct error *e)
{
    int64_t room = args->tensors[FCC_VECTOR_OUT].shape[0], left = room;

    if (count != (size_t)nranks)
        return error_set(e, -EINVAL, "expected_counts: %zu numbers: allowed are %d, one for each rank", count, nranks);
    for (int r = 0; r < nranks; left -= expected[r++])
        if (expected[r] < 0 || expected[r] > left)
            return error_set(e, -EINVAL,
                             "expected_counts: %" PRId64
                             " of rank %d: allowed are 0 and more, together at most out's shape[0], %" PRId64,
                             expected[r], r, room);
    return 0;
}

/* Each rank gets the same. */
static int equal_check(const struct op_args *args, int nranks, struct error *e)
{
    const int64_t elements = args->tensors[FCC_VECTOR_IN].shape[0], row = vector_row_elements(args);

    if (elements % row)
        return error_set(e, -EINVAL, "in: shape[0] %" PRId64 ": without send_counts, allowed are whole rows of %" PRId64,
                         elements, row);
    if (elements / row % nranks && row > 1)
        return error_set(e, -EINVAL,
                         "in: %" PRId64 " rows: without send_counts, allowed are multiples of the number of ranks, %d",
                         elements / row, nranks);
    if (elements % nranks)
        return error_set(e, -EINVAL,
                         "in: shape[0] %" PRId64 ": without send_counts, allowed are multiples of the number of ranks, %d",
                         elements, nranks);
    return 0;
}

static int attrs_check(const struct op_args *args, int nranks, struct error *e)
{
    const int64_t elements = args->tensors[FCC_VECTOR_IN].shape[0], row = vector_row_elements(args);
    size_t count;
    const int64_t *given = op_attr(args, FCC_ATTR_SEND_COUNTS, &count);
    size_t expected_count;
    const int64_t *expected = op_attr(args, FCC_ATTR_EXPECTED_COUNTS, &expected_count);

    if (rank_check(args, "root", FCC_ATTR_ROOT, 0, nranks, e) ||
        rank_check(args, "destination", FCC_ATTR_DESTINATION, -1, nranks, e) ||
        rank_check(args, "source", FCC_ATTR_SOURCE, -1, nranks, e))
        return e->status;
    if (row < 1 || row > VECTOR_MOST)
        return error_set(e, -EINVAL, "row_elements: %" PRId64 ": allowed are 0 (1) to %" PRId64, row, VECTOR_MOST);
    if (expected && expected_check(expected, expected_count, nranks, args, e))
        return e->status;
    if (given)
        return counts_check(given, count, (size_t)nranks, elements, "send_counts", "in's shape[0]", e);
    if (op_spec(args->op)->in == VECTOR_COUNTED && !op_attr(args, FCC_ATTR_DESTINATION, &count))
        return equal_check(args, nranks, e);
    return 0;
}

static int tensor_vector_check(const struct op_args *args, int i, int rank, struct error *e)
{
    const struct tensor_spec *spec = &op_spec(args->op)->tensors[i];
    const struct tensor *t = &args->tensors[i];

    if (!needs(args, i, rank))
        return t->data ? error_set(e, -EINVAL, "%s: present: not allowed on this rank", spec->name) : 0;
    if (!t->data)
        return error_set(e, -EINVAL, "%s: absent: it must be there", spec->name);
    if (t->ndim != 1)
        return error_set(e, -EINVAL, "%s: %d dimensions: allowed is 1", spec->name, t->ndim);
    if (t->shape[0] > VECTOR_MOST)
        return error_set(e, -EINVAL, "%s: shape[0] %" PRId64 ": allowed are 0 to %" PRId64, spec->name, t->shape[0],
                         VECTOR_MOST);
    if (t->shape[0] > 1 && t->stride[0] != 1)
        return error_set(e, -EINVAL, "%s: stride[0] %" PRId64 ": allowed is 1", spec->name, t->stride[0]);
    return tensor_check_dtypes(t, spec->name, spec->dtypes, e);
}

/* The rows that an epilogue makes of the vector. */
static int rows_check(const struct op_args *args, struct error *e)
{
    const struct tensor *in = &args->tensors[FCC_VECTOR_IN];
    const int64_t n = in->shape[0], cols = epilogue_cols(args, n), rows = cols > 0 ? n / cols : epilogue_rows(args);

    if (epilogue_is_there(args) && tensor_check_dtypes(in, "epilogue: in", DTYPES_FLOAT, e))
        return e->status;
    if (epilogue_is_there(args) && (rows * cols != n || rows > INT32_MAX || cols > INT32_MAX))
        return error_set(e, -EINVAL,
                         "in: shape[0] %" PRId64 ": allowed with the epilogue's rows of %" PRId64
                         " are multiples of that, up to %d rows",
                         n, cols, INT32_MAX);
    return epilogue_check(args, "in's", in->dtype, rows, rows, cols, e);
}

int vector_check(const struct op_args *args, int nranks, int rank, struct error *e)
{
    const struct tensor *in = &args->tensors[FCC_VECTOR_IN], *out = &args->tensors[FCC_VECTOR_OUT];
    int status = args_check(args, e);

    if (status == 0)
        status = attrs_check(args, nranks, e);
    for (int i = 0; i < FCC_VECTOR_TENSORS && status == 0; i++)
        status = tensor_vector_check(args, i, rank, e);
    if (status == 0 && in->data && out->data && in->dtype != out->dtype)
        status = tensor_check_dtype(out, "out", in->dtype, "in's", e);
    if (status == 0 && out->data && !out->symmetric)
        status = tensor_check_result(out, "out", e);
    if (status == 0 && op_spec(args->op)->exchange == EXCHANGE_REDUCE)
        status = reduction_check(args, in->dtype, e);
    return status == 0 && op_spec(args->op)->epilogue ? rows_check(args, e) : status;
}
