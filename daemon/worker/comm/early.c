/* SPDX-License-Identifier: MIT
 *
 * early.c - a small operator's products begin before all ranks have come.
 *
 * The engine runs small operators itself. Without helpers there are few cores; ranks that share a core submit one after the other, and the
 * engine would only wait for the next one. A rank that submits the same request as the last time most likely takes part in the same operator
 * again. So the slices that compute from its own inputs are run at once, as part of the cached launch, and store into staging memory. They are
 * put into other ranks' results when the operator's turn comes. A wrong guess has no effect: staging memory belongs to the communicator and no
 * operator runs, the raised flags have an epoch of their own, and counters are reset, those of tiles that ranks add into, too.
 *
 * Three conditions: the launch is in the cache, so all ranks have agreed on its problem before; the slices store nothing into results, which
 * other ranks may still read; tensors have the same addresses. Attributes may have changed in place: operators that can compare them with
 * the problem do so, and for others a request must have none.
 */
#include "daemon/worker/comm/comm.h"
#include "daemon/worker/comm/request/submission.h"
#include "daemon/worker/comm/turn.h"
#include "daemon/worker/device/launch.h"

#include "daemon/worker/device/device.h"
#include "proto/base/clock.h"

#define GUESSES 4 /* cached launches that are considered */

/* Whether the request's schedule leads to this launch. */
static bool is_scheduled(const struct launch *l, const struct op_args *args)
{
    enum fcc_schedule_kind kind =
        args->schedule == FCC_SCHEDULE_AUTO ? tune_expect(launch_comm(l)->tune, l->class) : args->schedule;

    return l->schedule.kind == kind && l->schedule.route == args->route;
}

static bool comes_again(const struct launch *l, int rank)
{
    const struct submission *sub = launch_comm(l)->members[rank].next;

    return sub && sub->kind == SUBMISSION_OPERATOR && !sub->error.status && op_tensors_equal(&l->args[rank], &sub->args) &&
           op_attrs_fit(l->problem, rank, &sub->args) && is_scheduled(l, &sub->args);
}

static bool is_worth_it(const struct launch *l)
{
    return l->inline_ && l->is_long && !l->aided && l->nranks > 1 && l->starts_early && !l->error.status &&
           !atomic_load_explicit(l->status, memory_order_relaxed);
}

/* False: there is no memory for it. The same error will be reported when all ranks have come. */
static bool early_begin(struct comm *c, struct launch *l)
{
    struct error ignored;

    error_clear(&ignored);
    if (launch_staging_prepare(c, l, &ignored))
        return false;
    launch_reset(l);
    l->epoch = ++c->epoch;
    l->early_ns = clock_ns();
    c->early = l;
    return true;
}

/* A recent launch that a rank's next request repeats. NULL: there is none. */
static struct launch *launch_guess(const struct comm *c)
{
    struct launch *l = c->cache;

    for (int i = 0; l && i < GUESSES; i++, l = l->next_cached)
        for (int r = 0; is_worth_it(l) && r < c->nranks; r++)
            if (comes_again(l, r))
                return l;
    return NULL;
}

bool launch_early_run(struct comm *c)
{
    bool any = false;

    if (c->state != COMM_ACTIVE || c->dev.current)
        return false;
    struct launch *l = c->early ? c->early : launch_guess(c);
    if (!l)
        return false;
    for (int r = 0; r < c->nranks; r++) {
        if (l->runs[r].early || l->runs[r].staged || !comes_again(l, r))
            continue;
        if (!c->early && !early_begin(c, l))
            return false;
        any |= device_cpu_run_early(l, r);
    }
    return any;
}

void launch_early_end(struct launch *l)
{
    l->early_ns = 0;
    for (int r = 0; r < l->nranks; r++)
        l->runs[r].early = l->runs[r].staged = 0;
}

bool launch_early_take(struct comm *c, struct launch *l)
{
    struct launch *early = c->early;

    c->early = NULL;
    if (!early || early == l)
        return early != NULL;
    launch_early_end(early);
    for (int r = 0; r < early->nranks; r++)
        launch_groups_set(&early->runs[r]);
    return false;
}
