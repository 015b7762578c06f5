/* SPDX-License-Identifier: MIT
 *
 * account.c - limits the worker's memory: by the limit for all jobs of its user (account.h), and by the room in the process's control groups
 * (cgroup.h). Memory is charged before it is allocated, so that exceeding a limit is an error and does not kill the process.
 *
 * Small and frequent amounts, as queued requests, are charged in steps: the engine sums them up, and charges the account when the sum has grown
 * by a step. The first steps are small, so that a worker that uses little takes little from the user's other workers.
 */
#include "daemon/worker/engine/account.h"

#include <errno.h>

#include "daemon/worker/engine/engine.h"

#define FEW (16u << 10)
#define FEW_STEP (4u << 10)
#define STEP (64u << 10)

static int too_much(const struct worker *w, uint64_t bytes, uint64_t used, struct error *e)
{
    return error_set(e, -ENOMEM, "memory: %llu bytes: user %u has %llu of the %llu bytes allowed (MEMORY_PER_USER_MB)",
                     (unsigned long long)bytes, w->uid, (unsigned long long)used, (unsigned long long)w->memory_limit);
}

int worker_memory_charge(struct worker *w, uint64_t bytes, struct error *e)
{
    uint64_t used = 0;
    int status;

    if (!account_charge(&w->account, w->place, bytes, w->memory_limit, &used))
        return too_much(w, bytes, used, e);
    status = cgroup_check(&w->cgroup, bytes, &w->memory_limited, e);
    if (status)
        account_release(&w->account, w->place, bytes);
    return status;
}

void worker_memory_release(struct worker *w, uint64_t bytes)
{
    account_release(&w->account, w->place, bytes);
}

int worker_small_charge(struct worker *w, uint64_t bytes, struct error *e)
{
    uint64_t used = w->small_used + bytes;

    if (used > w->small_charged) {
        uint64_t step = used <= FEW ? FEW_STEP : STEP, more = (used - w->small_charged + step - 1) / step * step;
        int status = worker_memory_charge(w, more, e);
        if (status)
            return status;
        w->small_charged += more;
    }
    w->small_used = used;
    return 0;
}

void worker_small_release(struct worker *w, uint64_t bytes)
{
    w->small_used -= bytes;
    if (w->small_charged - w->small_used < 2 * STEP)
        return; /* memory that is taken and given back alternately stays charged */
    uint64_t less = (w->small_charged - w->small_used) / STEP * STEP - STEP;
    w->small_charged -= less;
    worker_memory_release(w, less);
}
