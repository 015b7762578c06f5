/* SPDX-License-Identifier: MIT
 *
 * bag.c - EmbeddingBag over tables that are shared out among the ranks.
 *
 * A rank's result for a destination is the matrix [samples of the destination][own tables], an element of which is a pooled vector. In
 * compute+put a bag is pooled in registers and stored straight into the destination's out, in which each rank has columns of its own.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "kernels/plan/program.h"
#include "kernels/plan/tensor.h"

/* ---- arguments ---- */

static int64_t one_attr(const struct op_args *args, enum fcc_attr key)
{
    size_t count;

    return *op_attr(args, key, &count);
}

static void split_get(const struct op_args *args, int nranks, int64_t split[])
{
    int64_t batch = one_attr(args, FCC_ATTR_BATCH);
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

    split_get(args, nranks, split);
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
        status = tensor_check_shape(offsets, "offsets", 0, (int64_t)ntables * one_attr(args, FCC_ATTR_BATCH) + 1,
                                    "num_tables * batch + 1", e);
    if (status || !weights->data)
        return status;
    status = tensor_check(weights, "sample_weights", 1u << FCC_F32, 1, e);
    if (status == 0)
        status = tensor_check_shape(weights, "sample_weights", 0, indices->shape[0], "indices' shape[0]", e);
    if (status == 0 && one_attr(args, FCC_ATTR_POOLING) == FCC_POOLING_MEAN)
        status = error_set(e, -EINVAL, "sample_weights: with mean pooling: allowed with sum only");
    return status;
}

static int bag_check(const struct op_args *args, int nranks, int rank, struct error *e)
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

static int match_split(int rank, const int64_t split[], const int64_t split0[], int nranks, struct error *e)
{
    char what[32];

    for (int p = 0; p < nranks; p++) {
        if (split[p] == split0[p])
            continue;
        (void)snprintf(what, sizeof(what), "batch_split[%d]", p);
        return match_value(what, rank, split[p], split0[p], e);
    }
    return 0;
}

static int bag_match(const struct op_args args[], int nranks, struct problem *out, struct error *e)
{
    const struct tensor *out0 = &args[0].tensors[FCC_EMB_OUT];
    int64_t split[FCC_MAX_RANKS], split0[FCC_MAX_RANKS], batch0 = one_attr(&args[0], FCC_ATTR_BATCH), total = 0;
    int64_t tables[FCC_MAX_RANKS];
    int status = match_schedule(args, nranks, e);

    split_get(&args[0], nranks, split0);
    for (int r = 0; r < nranks && status == 0; r++) {
        const struct tensor *t = &args[r].tensors[FCC_EMB_OUT];
        size_t count;
        status = match_dtype("out", r, t->dtype, out0->dtype, e);
        if (status == 0)
            status = match_value("out: shape[2]", r, t->shape[2], out0->shape[2], e);
        if (status == 0)
            status = match_value("batch", r, one_attr(&args[r], FCC_ATTR_BATCH), batch0, e);
        split_get(&args[r], nranks, split);
        if (status == 0)
            status = match_split(r, split, split0, nranks, e);
        (void)op_attr(&args[r], FCC_ATTR_TABLE_ROWS, &count);
        total += tables[r] = (int64_t)count;
    }
    for (int r = 0; r < nranks && status == 0; r++)
        if (args[r].tensors[FCC_EMB_OUT].shape[1] != total)
            status = error_set(e, -EINVAL, "out: rank %d has shape[1] %lld, all ranks together have %lld tables", r,
                               (long long)args[r].tensors[FCC_EMB_OUT].shape[1], (long long)total);
    if (status)
        return status;
    out->dtype = out0->dtype;
    out->dim[DIM_VECTOR] = out0->shape[2];
    out->dim[DIM_M] = batch0;
    for (int r = 0; r < nranks; r++) {
        out->rank_dim[DIM_N][r] = tables[r];
        out->rank_dim[DIM_M][r] = split0[r];
        out->rank_dim[DIM_K][r] = args[r].tensors[FCC_EMB_INDICES].data ? args[r].tensors[FCC_EMB_INDICES].shape[0] : 0;
    }
    return 0;
}

/* ---- plan ---- */

/* Slices of about 1 MiB of memory traffic, samples of one table before further tables: a table's rows and page table entries
 * are used again, and its indices are contiguous. For GPUs of 128 KiB: there are hundreds of workgroups to share them, of which
 * several on a multiprocessor cover each other's ends of slices; and of a multiple of 8 samples, so that all of a workgroup's
 * waves or half waves have the same number. */
static void bag_tile(const struct problem *problem, int rank, struct schedule *schedule)
{
    const bool gpu = schedule->target == PLAN_GPU;
    int64_t tables = problem->rank_dim[DIM_N][rank], bags = tables * problem->dim[DIM_M];
    double vector = (double)(problem->dim[DIM_VECTOR] * (int64_t)dtype_size(problem->dtype));
    double bag = vector * (bags > 0 ? (double)problem->rank_dim[DIM_K][rank] / (double)bags + 2 : 2);
    double fit = (gpu ? 1 << 17 : 1 << 20) / bag, fewest = gpu ? 8 : 16;
    int64_t most = 1;

    for (int p = 0; p < problem->nranks; p++)
        most = problem->rank_dim[DIM_M][p] > most ? problem->rank_dim[DIM_M][p] : most;
    if (schedule->slice_rows == 0) {
        double rows = fit < fewest ? fewest : fit;
        /* For very many bags, makes slices larger to limit their number. */
        fewest = (double)bags / 65536;
        rows = rows < fewest ? fewest : rows;
        rows = gpu ? ceil(rows / 8) * 8 : rows;
        schedule->slice_rows = (uint32_t)(rows < (double)most ? rows : (double)most);
    }
    if (schedule->slice_cols == 0) {
        double cols = fit / schedule->slice_rows;
        cols = cols < 1024 ? cols : 1024; /* between nodes each column may be an area of its own */
        schedule->slice_cols = cols < 1 || tables < 1 ? 1 : (uint32_t)(cols < (double)tables ? cols : (double)tables);
    }
}

static void bag_domain(const struct problem *problem, int rank, const struct schedule *schedule, struct domain *out)
{
    int64_t tables_before = 0, tables = problem->rank_dim[DIM_N][rank];

    for (int r = 0; r < rank; r++)
        tables_before += problem->rank_dim[DIM_N][r];
    for (int p = 0; p < problem->nranks; p++) {
        out->part[p] = (struct rectangle){
            .rows = (uint32_t)problem->rank_dim[DIM_M][p], .cols = (uint32_t)tables, .dst_col = (uint32_t)tables_before};
        out->from[p] = problem->rank_dim[DIM_N][p] > 0 && problem->rank_dim[DIM_M][rank] > 0;
    }
    out->element_bytes = (uint64_t)problem->dim[DIM_VECTOR] * dtype_size(problem->dtype);
    out->order = schedule->target == PLAN_GPU ? ORDER_IN_TURNS : ORDER_IN_PARTS;
}

static struct work bag_work(const struct problem *problem, int rank)
{
    double vector = (double)(problem->dim[DIM_VECTOR] * (int64_t)dtype_size(problem->dtype));
    double bags = (double)problem->rank_dim[DIM_N][rank] * (double)problem->dim[DIM_M];
    double nnz = (double)problem->rank_dim[DIM_K][rank];

    return (struct work){.bytes = nnz * (vector + sizeof(int64_t)) + bags * (vector + sizeof(int64_t)),
                         .flops = nnz * (double)problem->dim[DIM_VECTOR]};
}

const struct compute_ops compute_bag = {
    .words =
        {.dim = {[DIM_M] = {"batch", INT32_MAX}, [DIM_VECTOR] = {"dim", INT32_MAX}},
         .rank_dim =
             {[DIM_M] = {"batch_split", INT32_MAX}, [DIM_N] = {"tables", FCC_MAX_TABLES}, [DIM_K] = {"indices", INT64_MAX}}},
    .check = bag_check,
    .match = bag_match,
    .work = bag_work,
    .tile = bag_tile,
    .domain = bag_domain,
};
