/* SPDX-License-Identifier: MIT
 *
 * bag_request.c - EmbeddingBag: what is wrong with one rank's request by itself, and with its offsets and indices. The worker asks, and the client library
 * for what this process launches.
 */
#include <errno.h>
#include <inttypes.h>

#include "kernels/plan/compute/bag.h"
#include "kernels/plan/tensor.h"

int64_t bag_number(const struct op_args *args, enum fcc_attr key)
{
    size_t count;

    return *op_attr(args, key, &count);
}

void bag_split(const struct op_args *args, int nranks, int64_t split[])
{
    int64_t batch = bag_number(args, FCC_ATTR_BATCH);
    size_t count;
    const int64_t *given = op_attr(args, FCC_ATTR_BATCH_SPLIT, &count);

    for (int p = 0; p < nranks; p++)
        split[p] = given ? given[p] : batch / nranks + (p < batch % nranks);
}

static int attrs_check(const struct op_args *args, int nranks, struct error *e)
{
    size_t tables, poolings, batches, splits;
    const int64_t *pooling = op_attr(args, FCC_ATTR_POOLING, &poolings), *batch = op_attr(args, FCC_ATTR_BATCH, &batches),
                  *split = op_attr(args, FCC_ATTR_BATCH_SPLIT, &splits);

    if (!op_attr(args, FCC_ATTR_TABLE_ROWS, &tables))
        return error_set(e, -EINVAL, "table_rows: absent: it must be there");
    if (tables > FCC_MAX_TABLES)
        return error_set(e, -EINVAL, "num_tables: %zu: allowed are 0 to %d", tables, FCC_MAX_TABLES);
    if (!pooling || poolings != 1)
        return error_set(e, -EINVAL, "pooling: %zu values: allowed is 1", poolings);
    if (*pooling != FCC_POOLING_SUM && *pooling != FCC_POOLING_MEAN)
        return error_set(e, -EINVAL, "pooling: %lld: allowed are %d (sum) and %d (mean)", (long long)*pooling, FCC_POOLING_SUM,
                         FCC_POOLING_MEAN);
    if (!batch || batches != 1)
        return error_set(e, -EINVAL, "batch: %zu values: allowed is 1", batches);
    if (*batch < 0 || *batch > INT32_MAX)
        return error_set(e, -EINVAL, "batch: %lld: allowed are 0 to %d", (long long)*batch, INT32_MAX);
    return split ? counts_check(split, splits, (size_t)nranks, *batch, "batch_split", "batch", e) : 0;
}

static int out_check(const struct op_args *args, int nranks, int rank, struct error *e)
{
    const struct tensor *out = &args->tensors[FCC_EMB_OUT];
    int64_t split[FCC_MAX_RANKS];
    int status = tensor_check(out, "out", DTYPES_FLOAT, 3, e);

    bag_split(args, nranks, split);
    if (status == 0)
        status = tensor_check_shape(out, "out", 0, split[rank], "this rank's part of the batch", e);
    if (status == 0 && out->shape[2] < 1)
        status = error_set(e, -EINVAL, "out: shape[2] %lld: allowed are 1 to %d", (long long)out->shape[2], INT32_MAX);
    if (status == 0)
        status = tensor_check_result(out, "out", e);
    return status;
}

/* Checks the inputs. A rank without tables needs none of them. */
static int tables_check(const struct op_args *args, struct error *e)
{
    const struct tensor *tables = &args->tensors[FCC_EMB_TABLES], *out = &args->tensors[FCC_EMB_OUT];
    size_t ntables;
    const int64_t *rows = op_attr(args, FCC_ATTR_TABLE_ROWS, &ntables);
    int status;

    if (ntables == 0 && !tables->data)
        return 0;
    status = tensor_check(tables, "tables", DTYPES_FLOAT, 2, e);
    if (status == 0)
        status = tensor_check_dtype(tables, "tables", out->dtype, "out's", e);
    if (status == 0)
        status = tensor_check_shape(tables, "tables", 1, out->shape[2], "out's shape[2], dim", e);
    if (status == 0)
        status = counts_check(rows, ntables, ntables, tables->shape[0], "table_rows", "tables' shape[0]", e);
    return status;
}

static int indices_check(const struct op_args *args, struct error *e)
{
    const struct tensor *indices = &args->tensors[FCC_EMB_INDICES], *offsets = &args->tensors[FCC_EMB_OFFSETS],
                        *weights = &args->tensors[FCC_EMB_WEIGHTS];
    size_t ntables;
    int status;

    (void)op_attr(args, FCC_ATTR_TABLE_ROWS, &ntables);
    if (ntables == 0 && !indices->data && !offsets->data && !weights->data)
        return 0;
    status = tensor_check(indices, "indices", DTYPES_INDEX, 1, e);
    if (status == 0)
        status = tensor_check(offsets, "offsets", DTYPES_INDEX, 1, e);
    if (status == 0)
        status = tensor_check_dtype(offsets, "offsets", indices->dtype, "indices'", e);
    if (status == 0)
        status = tensor_check_shape(offsets, "offsets", 0, (int64_t)ntables * bag_number(args, FCC_ATTR_BATCH) + 1,
                                    "num_tables * batch + 1", e);
    if (status || !weights->data)
        return status;
    status = tensor_check(weights, "sample_weights", 1u << FCC_F32, 1, e);
    if (status == 0)
        status = tensor_check_shape(weights, "sample_weights", 0, indices->shape[0], "indices' shape[0]", e);
    if (status == 0 && bag_number(args, FCC_ATTR_POOLING) == FCC_POOLING_MEAN)
        status = error_set(e, -EINVAL, "sample_weights: with mean pooling: allowed with sum only");
    return status;
}

int bag_check(const struct op_args *args, int nranks, int rank, struct error *e)
{
    int status = args_check(args, e);

    if (status == 0)
        status = attrs_check(args, nranks, e);
    if (status == 0)
        status = out_check(args, nranks, rank, e);
    if (status == 0)
        status = tables_check(args, e);
    if (status == 0)
        status = indices_check(args, e);
    return status;
}

/* ---- offsets and indices ---- */

int bag_offset_error(struct error *e, int64_t at, int64_t offset, int table, bool end, int64_t bag, int64_t least, int64_t most)
{
    return error_set(e, -ERANGE,
                     "offsets[%" PRId64 "]: %" PRId64 ": table %d, %s of bag %" PRId64 ": allowed are %" PRId64 " to %" PRId64,
                     at, offset, table, end ? "end" : "begin", bag, least, most);
}

int bag_index_error(struct error *e, int64_t at, int64_t id, int table, int64_t bag, int64_t position, int64_t nrows)
{
    if (nrows == 0)
        return error_set(e, -ERANGE,
                         "indices[%" PRId64 "]: %" PRId64 ": table %d, bag %" PRId64 ", position %" PRId64
                         ": none is allowed, the table has no rows",
                         at, id, table, bag, position);
    return error_set(e, -ERANGE,
                     "indices[%" PRId64 "]: %" PRId64 ": table %d, bag %" PRId64 ", position %" PRId64
                     ": allowed are 0 to %" PRId64,
                     at, id, table, bag, position, nrows - 1);
}
