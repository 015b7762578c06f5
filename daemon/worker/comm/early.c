/* SPDX-License-Identifier: MIT
 *
 * early.c - a small operator's products begin before all ranks have come.
 *
 * The engine runs small operators itself. Where nobody helps it, there are few cores, and ranks that share one come one after the
 * other: meanwhile the engine would only look for the next one. A rank that has come with just what it came with the last time most
 * likely takes part in the same operator again. So what it computes from its own inputs is run at once, as part of that launch, and
 * stored into staging memory; what belongs into others' results is put there in its turn. If it was wrong nobody sees it: staging
 * memory is the communicator's and no operator runs, the flags that were raised are of an epoch of their own, and counters are set
 * back.
 *
 * Only a launch that is kept, that is, whose problem all ranks have agreed upon before; only what stores nothing into results, which
 * other ranks may still read; and only with the same arguments in the same places. Attributes may differ in the same place: they
 * are compared with the problem, by operators that can tell; to the others a request must bring none.
 */
#include "daemon/worker/comm/comm.h"
#include "daemon/worker/comm/submission.h"
#include "daemon/worker/comm/turn.h"
#include "daemon/worker/device/launch.h"

#include "daemon/worker/device/device.h"
#include "proto/base/clock.h"

#define GUESSES 4 /* launches that are looked at */

/* Would it be this launch, as far as that depends on the schedule? */
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

/* False: there is no memory, and it will be told when all have come. */
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

/* Of the last ones, which a rank that is here has come to again; NULL: none. */
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
