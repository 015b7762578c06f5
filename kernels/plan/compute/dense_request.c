/* SPDX-License-Identifier: MIT
 *
 * dense_request.c - products: what is wrong with one rank's request by itself. The worker asks, and the client library for what this
 * process launches.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "kernels/plan/compute/dense.h"
#include "kernels/plan/compute/factors.h"
#include "kernels/plan/epilogue.h"
#include "kernels/plan/tensor.h"

enum { A, B };

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

static int scattered_rows_check(const struct op_args *args, int nranks, int rank, struct error *e)
{
    int64_t m = args->tensors[A].shape[0], rows[FCC_MAX_RANKS];
    const int c = op_spec(args->op)->result;
    size_t count;
    const int64_t *given = op_attr(args, FCC_ATTR_ROWS, &count);
    char what[64];

    if (given && counts_check(given, count, (size_t)nranks, m, "rows", "a's shape[0], M", e))
        return e->status;
    dense_rows(args, nranks, rows);
    (void)snprintf(what, sizeof(what), "the rows of rank %d", rank);
    return tensor_check_shape(&args->tensors[c], op_spec(args->op)->tensors[c].name, 0, rows[rank], what, e);
}

/* Tensor `at` has in dimension `dim` as much as tensor `of` in dimension `of_dim`, which `why` explains. Words are made for errors only. */
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

static int inputs_check(const struct op_args *args, int most_rows, struct error *e)
{
    const struct tensor_spec *spec = op_spec(args->op)->tensors;
    const struct tensor *a = &args->tensors[A], *b = &args->tensors[B];
    int status = args_check(args, e);

    for (int i = 0; i <= op_spec(args->op)->result && status == 0; i++)
        if (args->tensors[i].data || !spec[i].optional)
            status = tensor_check(&args->tensors[i], spec[i].name, spec[i].dtypes, spec[i].ndim, e);
    if (status == 0 && most_rows && (a->shape[0] < 1 || a->shape[0] > most_rows))
        status =
            error_set(e, -EINVAL, "%s: shape[0] %lld: allowed are 1 to %d", spec[A].name, (long long)a->shape[0], most_rows);
    if (status == 0)
        status = factors_check(args, e);
    if (status == 0 && b->data)
        status = shape_check(args, B, factors_second_is_transposed(args), A, 1, "K", e);
    return status;
}

/* Rows are read by other ranks, and copied or not, as the schedule has it. So their product must not depend on that, as the way does in
 * which rows that overlap are multiplied. `gathered` is like a, and has the rows of the result. */
static int gather_check(const struct op_args *args, int c, struct error *e)
{
    const struct tensor *a = &args->tensors[A], *gathered = &args->tensors[FCC_GATHER_GATHERED], *result = &args->tensors[c];
    const char *name = op_spec(args->op)->tensors[FCC_GATHER_GATHERED].name;
    int status = 0;

    if (a->shape[0] > result->shape[0])
        return error_set(e, -EINVAL,
                         "c: shape[0] %" PRId64 ": allowed are the rows of all ranks' a, of which this one has %" PRId64,
                         result->shape[0], a->shape[0]);
    if (a->shape[0] > 1 && a->stride[0] < a->shape[1])
        return error_set(e, -EINVAL, "a: stride[0] %" PRId64 ": rows overlap: allowed are %" PRId64 " and more", a->stride[0],
                         a->shape[1]);
    if (!gathered->data)
        return 0;
    if (status == 0)
        status = tensor_check_dtype(gathered, name, a->dtype, "a's", e);
    if (status == 0)
        status = shape_check(args, FCC_GATHER_GATHERED, 0, c, 0, "M", e);
    if (status == 0)
        status = shape_check(args, FCC_GATHER_GATHERED, 1, A, 1, "K", e);
    if (status == 0 && gathered->shape[0] > 1 && gathered->stride[0] < gathered->shape[1])
        status = error_set(e, -EINVAL, "%s: stride[0] %" PRId64 ": rows overlap: allowed are %" PRId64 " and more", name,
                           gathered->stride[0], gathered->shape[1]);
    return status;
}

/* Rows that are copied, not computed, have no epilogue. */
static int stages_check(const struct op_args *args, struct error *e)
{
    const struct tensor_spec *spec = op_spec(args->op)->tensors;
    const int at = op_spec(args->op)->result;
    const struct tensor *c = &args->tensors[at];
    const int64_t rows = dense_gathers_rows(args) || op_scatters_rows(args->op)
                             ? c->shape[0]
                             : args->tensors[A].shape[0]; /* of whoever applies it */
    size_t count;
    char what[32];

    for (int i = 0; i < STAGES && !args->tensors[B].data; i++)
        if (epilogue_tensor(args, (enum stage)i))
            return error_set(e, -EINVAL, "%s: not allowed where %s is absent", epilogue_specs[i].name, spec[B].name);
    if (!args->tensors[B].data && op_attr(args, FCC_ATTR_EPILOGUE, &count))
        return error_set(e, -EINVAL, "epilogue: not allowed where %s is absent", spec[B].name);
    (void)snprintf(what, sizeof(what), "%s's", spec[at].name);
    int status = epilogue_check(args, what, c->dtype, rows, c->shape[0], c->shape[1], e);
    return status ? status : factors_scales_check(args, e);
}

void dense_send_rows(const struct op_args *args, int nranks, int64_t rows[])
{
    size_t count;
    const int64_t *given = op_attr(args, FCC_ATTR_SEND_ROWS, &count);

    for (int p = 0; p < nranks; p++)
        rows[p] = given ? given[p] : args->tensors[A].shape[0] / nranks;
}

void dense_rows(const struct op_args *args, int nranks, int64_t rows[])
{
    size_t count;
    const int64_t *given = op_attr(args, FCC_ATTR_ROWS, &count), m = args->tensors[A].shape[0];

    for (int p = 0; p < nranks; p++)
        rows[p] = given ? given[p] : m / nranks + (p < m % nranks);
}

int dense_check(const struct op_args *args, int nranks, int rank, int most_rows, struct error *e)
{
    const int c = op_spec(args->op)->result;
    int status = inputs_check(args, most_rows, e);

    if (status == 0)
        status = factors_result_check(args, e);
    if (status == 0 && op_scatters_rows(args->op))
        status = scattered_rows_check(args, nranks, rank, e);
    else if (status == 0 && dense_gathers_rows(args))
        status = gather_check(args, c, e);
    else if (status == 0 && !dense_puts_rows(args))
        status = shape_check(args, c, 0, A, 0, "M", e);
    if (status == 0 && args->tensors[B].data)
        status = shape_check(args, c, 1, B, !factors_second_is_transposed(args), "N", e);
    else if (status == 0)
        status = shape_check(args, c, 1, A, 1, "as b is absent", e);
    if (status == 0)
        status = tensor_check_result(&args->tensors[c], op_spec(args->op)->tensors[c].name, e);
    if (status == 0)
        status = stages_check(args, e);
    return status == 0 && dense_puts_rows(args) ? send_rows_check(args, nranks, e) : status;
}
