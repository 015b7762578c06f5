/* SPDX-License-Identifier: MIT */
#include "kernels/plan/compute/dense.h"

#include <errno.h>
#include <stdio.h>

#include "kernels/plan/epilogue.h"
#include "kernels/plan/tensor.h"

enum { A, B, C, TENSORS };

static bool puts_rows(const struct op_args *args)
{
    return op_spec(args->op)->exchange == EXCHANGE_PUT;
}

/* The rows for each destination. With no counts given, all the same (check() saw that it works out). */
static void send_rows_get(const struct op_args *args, int nranks, int64_t rows[])
{
    size_t count;
    const int64_t *given = op_attr(args, FCC_ATTR_SEND_ROWS, &count);

    for (int p = 0; p < nranks; p++)
        rows[p] = given ? given[p] : args->tensors[A].shape[0] / nranks;
}

static int send_rows_check(const struct op_args *args, int nranks, struct error *e)
{
    int64_t m = args->tensors[A].shape[0];
    size_t count;
    const int64_t *given = op_attr(args, FCC_ATTR_SEND_ROWS, &count);

    if (given)
        return counts_check(given, count, (size_t)nranks, m, "send_rows", "a's shape[0], M", e);
    if (m % nranks)
        return error_set(e, -EINVAL, "a: shape[0] %lld: without send_rows, allowed are multiples of the number of ranks, %d",
                         (long long)m, nranks);
    return 0;
}

/* Tensor `at` has the dtype of a. Words are made for errors only. */
static int like_a_check(const struct op_args *args, int at, struct error *e)
{
    const struct tensor_spec *spec = op_spec(args->op)->tensors;
    const struct tensor *t = &args->tensors[at], *a = &args->tensors[A];
    char what[32];

    if (t->dtype == a->dtype)
        return 0;
    (void)snprintf(what, sizeof(what), "%s's", spec[A].name);
    return tensor_check_dtype(t, spec[at].name, a->dtype, what, e);
}

/* Tensor `at` has in dimension `dim` as much as tensor `of` in dimension `of_dim`, which `why` explains. */
static int shape_check(const struct op_args *args, int at, int dim, int of, int of_dim, const char *why, struct error *e)
{
    const struct tensor_spec *spec = op_spec(args->op)->tensors;
    int64_t expected = args->tensors[of].shape[of_dim];
    char what[64];

    if (args->tensors[at].shape[dim] == expected)
        return 0;
    (void)snprintf(what, sizeof(what), "%s's shape[%d], %s", spec[of].name, of_dim, why);
    return tensor_check_shape(&args->tensors[at], spec[at].name, dim, expected, what, e);
}

static int inputs_check(const struct op_args *args, bool b_transposed, int most_rows, struct error *e)
{
    const struct tensor_spec *spec = op_spec(args->op)->tensors;
    const struct tensor *a = &args->tensors[A], *b = &args->tensors[B];
    int status = args_check(args, e);

    for (int i = 0; i < TENSORS && status == 0; i++)
        if (args->tensors[i].data || !spec[i].optional)
            status = tensor_check(&args->tensors[i], spec[i].name, spec[i].dtypes, spec[i].ndim, e);
    if (status == 0 && most_rows && (a->shape[0] < 1 || a->shape[0] > most_rows))
        status =
            error_set(e, -EINVAL, "%s: shape[0] %lld: allowed are 1 to %d", spec[A].name, (long long)a->shape[0], most_rows);
    if (status == 0 && b->data)
        status = like_a_check(args, B, e);
    if (status == 0 && b->data)
        status = shape_check(args, B, b_transposed, A, 1, "K", e);
    return status;
}

/* Rows that are copied, not computed, have no epilogue. */
static int stages_check(const struct op_args *args, struct error *e)
{
    const struct tensor_spec *spec = op_spec(args->op)->tensors;
    const struct tensor *a = &args->tensors[A];
    char what[32];

    for (int i = 0; i < STAGES && !args->tensors[B].data; i++)
        if (epilogue_tensor(args, (enum stage)i))
            return error_set(e, -EINVAL, "%s: not allowed where %s is absent", epilogue_specs[i].name, spec[B].name);
    (void)snprintf(what, sizeof(what), "%s's", spec[A].name);
    return epilogue_check(args, what, a->dtype, a->shape[0], args->tensors[C].shape[1], e);
}

int dense_check(const struct op_args *args, int nranks, bool b_transposed, int most_rows, struct error *e)
{
    int status = inputs_check(args, b_transposed, most_rows, e);

    if (status == 0)
        status = like_a_check(args, C, e);
    if (status == 0 && !puts_rows(args))
        status = shape_check(args, C, 0, A, 0, "M", e);
    if (status == 0 && args->tensors[B].data)
        status = shape_check(args, C, 1, B, !b_transposed, "N", e);
    else if (status == 0)
        status = shape_check(args, C, 1, A, 1, "as b is absent", e);
    if (status == 0)
        status = tensor_check_result(&args->tensors[C], op_spec(args->op)->tensors[C].name, e);
    if (status == 0)
        status = stages_check(args, e);
    return status == 0 && puts_rows(args) ? send_rows_check(args, nranks, e) : status;
}

/* The sizes of the results are the same on all ranks; their rows only if they are sums. */
static int results_match(const struct op_args args[], int nranks, struct error *e)
{
    const char *name = op_spec(args[0].op)->tensors[C].name;
    const struct tensor *c0 = &args[0].tensors[C];
    char what[48];
    int status = 0;

    for (int r = 0; r < nranks && status == 0; r++) {
        const struct tensor *c = &args[r].tensors[C];
        status = match_dtype(name, r, c->dtype, c0->dtype, e);
        for (int dim = puts_rows(args); dim < 2 && status == 0; dim++) {
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
    const char *name = op_spec(args[0].op)->tensors[C].name;
    int64_t rows[FCC_MAX_RANKS];

    for (int r = 0; r < nranks; r++) {
        send_rows_get(&args[r], nranks, rows);
        problem_counts_set(out, r, rows);
    }
    for (int r = 0; r < nranks; r++) {
        int64_t room = args[r].tensors[C].shape[0];
        if (out->received[r] > room)
            return error_set(e, -EINVAL, "%s: rank %d receives %lld rows, its %s has %lld", name, r,
                             (long long)out->received[r], name, (long long)room);
    }
    return 0;
}

int dense_match(const struct op_args args[], int nranks, struct problem *out, struct error *e)
{
    const struct tensor *c0 = &args[0].tensors[C];
    int status = match_schedule(args, nranks, e);

    if (status == 0)
        status = results_match(args, nranks, e);
    if (status == 0)
        status = epilogue_match(args, nranks, &out->stages, e);
    if (status)
        return status;
    out->dtype = c0->dtype;
    out->dim[DIM_M] = puts_rows(args) ? 0 : c0->shape[0];
    out->dim[DIM_N] = c0->shape[1];
    for (int r = 0; r < nranks; r++)
        out->rank_dim[DIM_K][r] = args[r].tensors[A].shape[1];
    return puts_rows(args) ? rows_match(args, nranks, out, e) : 0;
}

bool dense_attrs_fit(const struct problem *problem, int rank, const struct op_args *args)
{
    int64_t rows[FCC_MAX_RANKS];
    bool fit = true;

    send_rows_get(args, problem->nranks, rows);
    for (int p = 0; p < problem->nranks; p++)
        fit &= rows[p] == problem->counts[rank].to[p];
    return fit;
}
