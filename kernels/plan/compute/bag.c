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

#include "kernels/plan/compute/bag.h"
#include "kernels/plan/tensor.h"

/* ---- matching ---- */

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
    int64_t split[FCC_MAX_RANKS], split0[FCC_MAX_RANKS], batch0 = bag_number(&args[0], FCC_ATTR_BATCH), total = 0;
    int64_t tables[FCC_MAX_RANKS];
    int status = match_schedule(args, nranks, e);

    bag_split(&args[0], nranks, split0);
    for (int r = 0; r < nranks && status == 0; r++) {
        const struct tensor *t = &args[r].tensors[FCC_EMB_OUT];
        size_t count;
        status = match_dtype("out", r, t->dtype, out0->dtype, e);
        if (status == 0)
            status = match_value("out: shape[2]", r, t->shape[2], out0->shape[2], e);
        if (status == 0)
            status = match_value("batch", r, bag_number(&args[r], FCC_ATTR_BATCH), batch0, e);
        bag_split(&args[r], nranks, split);
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
