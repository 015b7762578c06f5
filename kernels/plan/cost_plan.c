/* SPDX-License-Identifier: MIT
 *
 * cost_plan.c - what a plan's rank does, counted from its slices.
 */
#include "kernels/plan/cost.h"
#include "kernels/plan/plan.h"

/* Ranks other than the plan's own that a slice stores at. */
static unsigned others(const struct plan *plan, unsigned dst)
{
    unsigned n = 0;

    for (int r = 0; r < plan->nranks; r++)
        n += r != plan->rank && plan_reaches(plan, dst, r);
    return n;
}

struct cost_work cost_plan(const struct problem *problem, const struct plan *plan)
{
    const struct work work = plan_work(problem, plan->rank);
    const double size = (double)dtype_size(problem->dtype);
    struct cost_work out = {.bytes = work.bytes, .flops = work.flops, .operators = 1};
    uint32_t sends = 0;

    for (uint32_t i = 0; i < plan->nslices; i++) {
        const struct slice *s = &plan->slices[i];
        const unsigned ranks = slice_puts(s->kind) ? others(plan, s->dst) : 0;
        out.link_bytes += (double)s->rows * s->cols * size * ranks;
        sends += ranks > 0;
    }
    out.pieces = plan->schedule.kind == FCC_SCHEDULE_FUSED ? sends : 1;
    return out;
}
