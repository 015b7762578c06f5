/* SPDX-License-Identifier: MIT
 *
 * none.c - all ranks meet, and nothing else. Its plan is the bare wait that plan_make() gives to every plan without slices.
 */
#include "kernels/plan/table.h"
#include "kernels/plan/tensor.h"

static int noop_check(const struct op_args *args, int nranks, int rank, struct error *e)
{
    (void)nranks;
    (void)rank;
    return args_check(args, 0, 0, e);
}

static int noop_match(const struct op_args args[], int nranks, struct problem *out, struct error *e)
{
    int status = match_schedule(args, nranks, e);

    if (status == 0)
        out->dtype = FCC_F32;
    return status;
}

static void noop_plan(const struct problem *problem, int rank, struct schedule *schedule, struct plan_builder *b)
{
    (void)problem;
    (void)rank;
    (void)b;
    schedule->route = PLAN_FLAT;
}

static struct work noop_work(const struct problem *problem, int rank)
{
    (void)problem;
    (void)rank;
    return (struct work){0};
}

const struct op op_noop = {
    .name = "noop",
    .ntensors = 0,
    .tensor_names = NULL,
    .result = -1,
    .check = noop_check,
    .match = noop_match,
    .plan = noop_plan,
    .work = noop_work,
    .values = op_no_values,
};
