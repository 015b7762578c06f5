/* SPDX-License-Identifier: MIT
 *
 * none.c - the empty compute: the ranks only meet. The plan is the single wait that plan_make() adds to every plan without
 * slices.
 */
#include "kernels/plan/program.h"
#include "kernels/plan/tensor.h"

static int none_check(const struct op_args *args, int nranks, int rank, struct error *e)
{
    (void)nranks;
    (void)rank;
    return args_check(args, e);
}

static int none_match(const struct op_args args[], int nranks, struct problem *out, struct error *e)
{
    (void)out;
    return match_schedule(args, nranks, e);
}

static struct work none_work(const struct problem *problem, int rank)
{
    (void)problem;
    (void)rank;
    return (struct work){0};
}

const struct compute_ops compute_none = {.check = none_check, .match = none_match, .work = none_work};

static void none_plan(const struct problem *problem, int rank, const struct compute_ops *compute, struct plan_builder *b)
{
    (void)problem;
    (void)rank;
    (void)compute;
    b->plan->schedule.route = PLAN_FLAT;
}

const struct exchange_ops exchange_none = {.plan = none_plan};
