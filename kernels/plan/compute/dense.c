/* SPDX-License-Identifier: MIT */
#include "kernels/plan/compute/dense.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "kernels/plan/compute/factors.h"
#include "kernels/plan/epilogue.h"
#include "kernels/plan/tensor.h"

enum { A };

/* The sizes of the results are the same on all ranks; but their rows only if they are not put, their columns if no rank has its own. */
static int results_match(const struct op_args args[], int nranks, struct error *e)
{
    const char *name = op_spec(args[0].op)->tensors[op_spec(args[0].op)->result].name;
    const struct tensor *c0 = dense_result(&args[0]);
    const int end = dense_gathers_rows(args) ? 1 : 2;
    char what[48];
    int status = 0;

    for (int r = 0; r < nranks && status == 0; r++) {
        const struct tensor *c = dense_result(&args[r]);
        status = match_dtype(name, r, c->dtype, c0->dtype, e);
        for (int dim = dense_puts_rows(args) || op_scatters_rows(args[0].op); dim < end && status == 0; dim++) {
            if (c->shape[dim] == c0->shape[dim])
                continue;
            (void)snprintf(what, sizeof(what), "%s: shape[%d]", name, dim);
            status = match_value(what, r, c->shape[dim], c0->shape[dim], e);
        }
    }
    return status;
}

static int rows_match(const struct op_args args[], int nranks, struct problem *out, struct error *e)
{
    const char *name = op_spec(args[0].op)->tensors[op_spec(args[0].op)->result].name;
    int64_t rows[FCC_MAX_RANKS];

    for (int r = 0; r < nranks; r++) {
        dense_send_rows(&args[r], nranks, rows);
        problem_counts_set(out, r, rows);
    }
    for (int r = 0; r < nranks; r++) {
        int64_t room = dense_result(&args[r])->shape[0];
        if (out->received[r] > room)
            return error_set(e, -EINVAL, "%s: rank %d receives %lld rows, its %s has %lld", name, r,
                             (long long)out->received[r], name, (long long)room);
    }
    return 0;
}

/* All ranks say the same of how many rows the sum has, and which of them each rank gets. */
static int scattered_rows_match(const struct op_args args[], int nranks, struct error *e)
{
    int64_t rows[FCC_MAX_RANKS], rows0[FCC_MAX_RANKS];
    char what[48];

    (void)snprintf(what, sizeof(what), "%s: shape[0]", op_spec(args[0].op)->tensors[A].name);
    dense_rows(&args[0], nranks, rows0);
    for (int r = 1; r < nranks; r++) {
        if (match_value(what, r, args[r].tensors[A].shape[0], args[0].tensors[A].shape[0], e))
            return e->status;
        dense_rows(&args[r], nranks, rows);
        for (int p = 0; p < nranks; p++)
            if (rows[p] != rows0[p])
                return error_set(e, -EINVAL, "rows: rank %d has %lld for rank %d, rank 0 has %lld", r, (long long)rows[p], p,
                                 (long long)rows0[p]);
    }
    return 0;
}

/* The ranks' rows of A make the rows of all results, all of K columns. */
static int gathers_match(const struct op_args args[], int nranks, struct error *e)
{
    const struct tensor *a0 = &args[0].tensors[A];
    const bool gathered = args[0].tensors[FCC_GATHER_GATHERED].data;
    int64_t rows = 0; /* does not overflow: 2^10 ranks of at most 2^31 */

    for (int r = 0; r < nranks; r++) {
        const struct tensor *a = &args[r].tensors[A];
        if (a->shape[1] != a0->shape[1])
            return match_value("a: shape[1]", r, a->shape[1], a0->shape[1], e);
        if (!args[r].tensors[FCC_GATHER_GATHERED].data == gathered)
            return error_set(e, -EINVAL, "gathered: rank %d has %s, rank 0 has %s", r, gathered ? "none" : "one",
                             gathered ? "one" : "none");
        rows += a->shape[0];
    }
    if (rows == dense_result(&args[0])->shape[0])
        return 0;
    return error_set(e, -EINVAL, "a: the ranks' have %" PRId64 " rows together, c has %" PRId64, rows,
                     dense_result(&args[0])->shape[0]);
}

static void gathers_set(const struct op_args args[], int nranks, struct problem *out)
{
    out->dim[DIM_N] = 0;
    out->dim[DIM_K] = args[0].tensors[A].shape[1];
    out->dim[DIM_FACTOR_BYTES] = (int64_t)dtype_size(args[0].tensors[A].dtype);
    out->dim[DIM_GATHERED] = args[0].tensors[FCC_GATHER_GATHERED].data != NULL;
    for (int r = 0; r < nranks; r++) {
        const int64_t n = dense_result(&args[r])->shape[1];
        out->rank_dim[DIM_M][r] = args[r].tensors[A].shape[0];
        out->rank_dim[DIM_N][r] = n;
        out->dim[DIM_N] = n > out->dim[DIM_N] ? n : out->dim[DIM_N];
    }
    out->epilogue.cols = epilogue_is_there(&args[0]) ? out->dim[DIM_N] : 0; /* rank 0 may have no columns */
}

int dense_match(const struct op_args args[], int nranks, struct problem *out, struct error *e)
{
    const struct tensor *c0 = dense_result(&args[0]);
    int status = match_schedule(args, nranks, e);

    if (status == 0)
        status = results_match(args, nranks, e);
    if (status == 0)
        status = factors_match(args, nranks, e);
    if (status == 0 && dense_gathers_rows(args))
        status = gathers_match(args, nranks, e);
    if (status == 0 && op_scatters_rows(args[0].op))
        status = scattered_rows_match(args, nranks, e);
    if (status == 0)
        status = epilogue_match(args, nranks, c0->shape[1], &out->epilogue, e);
    if (status)
        return status;
    out->dtype = c0->dtype;
    out->any_order = args[0].any_order && op_adds_products(args[0].op);
    out->factors = factors_of(&args[0]);
    out->dim[DIM_M] = dense_puts_rows(args) ? 0 : op_scatters_rows(args[0].op) ? args[0].tensors[A].shape[0] : c0->shape[0];
    out->dim[DIM_N] = c0->shape[1];
    for (int r = 0; r < nranks; r++)
        out->rank_dim[DIM_K][r] = args[r].tensors[A].shape[1];
    if (dense_gathers_rows(args))
        gathers_set(args, nranks, out);
    if (op_scatters_rows(args[0].op))
        dense_rows(&args[0], nranks, out->rank_dim[DIM_M]);
    return dense_puts_rows(args) ? rows_match(args, nranks, out, e) : 0;
}

bool dense_attrs_fit(const struct problem *problem, int rank, const struct op_args *args)
{
    int64_t rows[FCC_MAX_RANKS];
    bool fit = epilogue_fits(&problem->epilogue, args);

    if (op_scatters_rows(problem->op)) {
        dense_rows(args, problem->nranks, rows);
        for (int p = 0; p < problem->nranks; p++)
            fit &= rows[p] == problem->rank_dim[DIM_M][p];
        return fit;
    }
    if (!dense_puts_rows(args))
        return fit;
    dense_send_rows(args, problem->nranks, rows);
    for (int p = 0; p < problem->nranks; p++)
        fit &= rows[p] == problem->counts[rank].to[p];
    return fit;
}
