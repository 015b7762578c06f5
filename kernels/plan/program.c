/* SPDX-License-Identifier: MIT
 *
 * program.c - the parts of each operator.
 */
#include "kernels/plan/program.h"

static const struct compute_ops *const computes[] = {
    [COMPUTE_NONE] = &compute_none, [COMPUTE_BAG] = &compute_bag,       [COMPUTE_GEMV] = &compute_gemv,
    [COMPUTE_GEMM] = &compute_gemm, [COMPUTE_VECTOR] = &compute_vector, [COMPUTE_STEP] = &compute_step};
static const struct exchange_ops *const exchanges[] = {[EXCHANGE_NONE] = &exchange_none,
                                                       [EXCHANGE_PUT] = &exchange_put,
                                                       [EXCHANGE_REDUCE] = &exchange_reduce,
                                                       [EXCHANGE_RINGS] = &exchange_rings,
                                                       [EXCHANGE_GATHER] = &exchange_gather};

const struct compute_ops *op_compute(enum fcc_op op)
{
    return computes[op_spec(op)->compute];
}

const struct exchange_ops *op_exchange(enum fcc_op op)
{
    return exchanges[op_spec(op)->exchange];
}

const struct problem_spec *op_words(enum fcc_op op)
{
    return &op_compute(op)->words;
}

const char *op_counts(enum fcc_op op)
{
    const struct op_spec *spec = op_spec(op);

    return spec->exchange == EXCHANGE_PUT && (spec->in == VECTOR_NONE || spec->in == VECTOR_COUNTED) ? op_words(op)->counts
                                                                                                     : NULL;
}

int op_check(const struct op_args *args, int nranks, int rank, struct error *e)
{
    return op_compute(args->op)->check(args, nranks, rank, e);
}

int op_match(const struct op_args args[], int nranks, struct problem *out, struct error *e)
{
    return op_compute(args[0].op)->match(args, nranks, out, e);
}

bool op_attrs_fit(const struct problem *problem, int rank, const struct op_args *args)
{
    const struct compute_ops *compute = op_compute(problem->op);

    if (!op_spec(problem->op)->nattrs)
        return !args->nattrs;
    return compute->attrs_fit && compute->attrs_fit(problem, rank, args);
}

int op_values(const struct problem *problem, int rank, int64_t values[])
{
    const struct exchange_ops *exchange = op_exchange(problem->op);

    if (!exchange->values || !op_counts(problem->op) || !problem_is_here(problem, rank))
        return 0;
    return exchange->values(problem, rank, values);
}
