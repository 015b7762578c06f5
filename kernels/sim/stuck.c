/* SPDX-License-Identifier: MIT
 *
 * stuck.c - says which slice waits for what, when no event is left and not all has ended.
 */
#include <errno.h>

#include "kernels/sim/inside.h"

/* The first slice of a plan's signal group that raises a flag at a rank; false: there is none. */
static bool raiser_in(const struct plan *plan, int at, uint32_t flag, uint32_t *slice)
{
    for (uint32_t g = 0; g < plan->ngroups; g++) {
        if (plan->groups[g].flag != flag || !plan_reaches(plan, plan->groups[g].dst, at))
            continue;
        for (uint32_t i = 0; i < plan->nslices; i++)
            if (plan->slices[i].group == g) {
                *slice = i;
                return true;
            }
    }
    return false;
}

static int slice_explain(const struct sim *s, const struct task *t, uint32_t number, uint32_t flag, struct error *e)
{
    const struct operator* op = & s->operators[t->op];
    const struct slice *slice = &t->plan->slices[number];
    const int own = t->place;

    for (int r = 0; r < op->said.size; r++) {
        const struct task *other = &s->tasks[task_of(s, t, r)];
        uint32_t raiser;
        if (!raiser_in(other->plan, own, flag, &raiser))
            continue;
        return error_set(e, -EDEADLK,
                         "%s: it cannot progress: slice %u (%s) of rank %d waits for flag %u, which slice %u (%s) of rank %d, "
                         "that has %s, is to raise",
                         op->said.name, number, slice_kind_name((enum slice_kind)slice->kind), t->rank, flag, raiser,
                         slice_kind_name((enum slice_kind)other->plan->slices[raiser].kind), other->rank,
                         !other->begun           ? "not begun"
                         : raiser >= other->next ? "not been taken"
                                                 : "been taken");
    }
    return error_set(e, -EDEADLK, "%s: it cannot progress: slice %u (%s) of rank %d waits for flag %u, which no slice raises",
                     op->said.name, number, slice_kind_name((enum slice_kind)slice->kind), t->rank, flag);
}

int stuck_explain(const struct sim *s, struct error *e)
{
    for (uint32_t i = 0; i < s->ntasks; i++) {
        const struct task *t = &s->tasks[i];
        if (t->ended || !t->begun || !t->plan)
            continue;
        if (t->blocked != NONE) {
            const struct workgroup *w = &s->workgroups[t->blocked];
            const struct slice *slice = &t->plan->slices[w->slice];
            return slice_explain(s, t, w->slice, slice->wait_first + w->flag * slice->wait_stride, e);
        }
        if (t->idle != NONE && t->step_slice < t->plan->nslices) {
            const struct slice *slice = &t->plan->slices[t->step_slice];
            return slice_explain(s, t, t->step_slice, slice->wait_first + t->step_wait * slice->wait_stride, e);
        }
    }
    for (uint32_t i = 0; i < s->ntasks; i++)
        if (!s->tasks[i].begun)
            return error_set(e, -EDEADLK, "%s: it cannot progress: rank %d has not begun it",
                             s->operators[s->tasks[i].op].said.name, s->tasks[i].rank);
    return error_set(e, -EDEADLK, "it cannot progress");
}
