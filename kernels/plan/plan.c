/* SPDX-License-Identifier: MIT
 *
 * plan.c - makes the plan of a problem, through its operator's exchange (builder.c).
 */
#include "kernels/plan/plan.h"

#include <errno.h>
#include <stdlib.h>

#include "kernels/plan/compute/vector.h"
#include "kernels/plan/program.h"

static int plan_check(const struct problem *problem, int rank, const struct schedule *schedule, struct error *e)
{
    if (!op_spec(problem->op))
        return error_set(e, -EINVAL, "operator: %u: unknown", (unsigned)problem->op);
    if (problem->nranks < 1 || problem->nranks > PLAN_MAX_RANKS)
        return error_set(e, -EINVAL, "nranks: %d: allowed are 1 to %d", problem->nranks, PLAN_MAX_RANKS);
    if (rank < 0 || rank >= problem->nranks)
        return error_set(e, -EINVAL, "rank: %d: allowed are 0 to %d", rank, problem->nranks - 1);
    if (schedule->kind < FCC_SCHEDULE_FUSED || schedule->kind > FCC_SCHEDULE_COMM_ONLY)
        return error_set(e, -EINVAL, "schedule: %s: a plan is fused, sequential, or one half of sequential",
                         schedule_name(schedule->kind));
    return problem_check(problem, e);
}

/* A plan with room for its sets. NULL: no memory. */
static struct plan *plan_new(int nranks)
{
    const size_t words = ((size_t)nranks + 63) / 64;
    struct plan *plan = calloc(1, sizeof(*plan) + PLAN_SETS * words * sizeof(uint64_t));

    for (size_t i = 0; plan && i < PLAN_SETS; i++)
        plan->sets[i] = (uint64_t *)(void *)(plan + 1) + i * words;
    if (plan)
        plan->nranks = nranks;
    return plan;
}

int plan_make(const struct problem *problem, int rank, const struct schedule *schedule, struct plan **out, struct error *e)
{
    struct plan_builder b = {.plan = NULL};
    int status = plan_check(problem, rank, schedule, e);

    if (status)
        return status;
    b.plan = plan_new(problem->nranks);
    if (!b.plan)
        return error_set(e, -ENOMEM, "plan: no memory");
    b.plan->op = problem->op;
    b.plan->rank = rank;
    b.plan->schedule = *schedule;
    if (op_is_vector(problem->op) && schedule->kind != FCC_SCHEDULE_COMPUTE_ONLY)
        b.plan->schedule.kind = FCC_SCHEDULE_FUSED; /* there is nothing to compute first */
    b.sizes_only = !problem_is_here(problem, rank);
    plan_add_level(&b, 0);
    if (op_is_vector(problem->op) && schedule->kind == FCC_SCHEDULE_COMPUTE_ONLY)
        b.plan->schedule.route = PLAN_FLAT;
    else
        op_exchange(problem->op)->plan(problem, rank, op_compute(problem->op), &b);
    /* Every plan has at least one slice: the end of the slices is how an executor learns the end of the operator. */
    if (b.status == 0 && b.plan->nslices == 0 && !b.sizes_only) {
        plan_add_level(&b, b.plan->nlevels > LEVELS ? b.plan->nlevels - 1 : LEVEL_WAIT);
        plan_add_slice(&b, (struct slice){.kind = SLICE_WAIT, .dst = (uint16_t)rank, .group = SLICE_NO_GROUP});
    }
    plan_add_level(&b, b.plan->nlevels); /* the end of the last level */
    plan_scratch_free(&b);
    if (b.status == -EINVAL)
        status = error_set(e, -EINVAL, "slices: more than %u: larger slices are needed than %u rows, %u columns",
                           PLAN_MAX_SLICES, b.plan->schedule.slice_rows, b.plan->schedule.slice_cols);
    else if (b.status)
        status = error_set(e, b.status, "plan: no memory for %u slices", b.plan->nslices);
    else if (b.plan->nflags > PLAN_MAX_FLAGS)
        status = error_set(e, -EINVAL, "flags: %u: allowed are %u: larger slices are needed", b.plan->nflags, PLAN_MAX_FLAGS);
    if (b.sizes_only) {
        free(b.plan->layout);
        b.plan->layout = NULL;
        b.plan->start_level = 0;
    } else {
        b.plan->nlevels--;
    }
    if (status) {
        plan_free(b.plan);
        return status;
    }
    *out = b.plan;
    return 0;
}

void plan_free(struct plan *plan)
{
    if (!plan)
        return;
    free(plan->slices);
    free(plan->groups);
    free(plan->level_first);
    free(plan->layout);
    free(plan);
}

struct work plan_work(const struct problem *problem, int rank)
{
    return op_compute(problem->op)->work(problem, rank);
}

/* The rates of one core, whose second-level cache holds CACHE_BYTES. */
#define CACHE_BYTES (1 << 20)
#define CACHE_BYTES_PER_NS 50.0
#define MEMORY_BYTES_PER_NS 10.0
#define FLOPS_PER_NS 80.0
#define HALF_FLOPS_PER_NS 8.0 /* f16 and bf16 are converted first */

double work_core_ns(struct work work, enum fcc_dtype dtype)
{
    const double bytes_per_ns = work.bytes <= CACHE_BYTES ? CACHE_BYTES_PER_NS : MEMORY_BYTES_PER_NS;

    return work.bytes / bytes_per_ns + work.flops / (dtype == FCC_F32 ? FLOPS_PER_NS : HALF_FLOPS_PER_NS);
}
