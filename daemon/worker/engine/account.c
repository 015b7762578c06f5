/* SPDX-License-Identifier: MIT
 *
 * account.c - limits what the worker has: by the limits for all jobs of its user and for this one (daemon/common/account.h), and memory by
 * the room in the process's control groups, too (cgroup.h). Memory is charged before it is allocated, so that exceeding a limit is an error and
 * does not kill the process.
 *
 * Small and frequent amounts, as queued requests, are charged in steps: the engine sums them up, and charges the account when the sum has grown
 * by a step. The first steps are small, so that a worker that uses little takes little from the user's other workers.
 */
#include "daemon/worker/engine/account.h"

#include <errno.h>
#include <stdio.h>

#include "daemon/worker/engine/engine.h"
#include "daemon/worker/engine/meter.h"

#define FEW (16u << 10)
#define FEW_STEP (4u << 10)
#define STEP (64u << 10)

/* What a worker may keep of a number that it has charged and does not use: so little of the limit, and no more than so many. */
#define SLACK_PART 256
#define SLACK_MOST 64

static int too_much(const struct worker *w, enum account_kind kind, uint64_t more, const struct account_refusal *why,
                    struct error *e)
{
    char asked[48] = "", job[FCC_JOB_MAX + 16] = "";
    bool is_memory = kind == ACCOUNT_MEMORY || kind == ACCOUNT_GPU_MEMORY;

    if (w->meters)
        meter_add(&w->meters->counters.refused[why->whose][kind], 1);
    if (is_memory)
        (void)snprintf(asked, sizeof(asked), "%llu bytes: ", (unsigned long long)more);
    if (why->whose == ACCOUNT_JOB)
        (void)snprintf(job, sizeof(job), "/%s", w->job);
    return error_set(e, is_memory ? -ENOMEM : -EUSERS, "%s: %s%s %u%s has %llu of the %llu %sallowed (%s)", account_text(kind),
                     asked, why->whose == ACCOUNT_JOB ? "job" : "user", w->uid, job, (unsigned long long)why->used,
                     (unsigned long long)w->limits.of[why->whose][kind], is_memory ? "bytes " : "",
                     account_key(why->whose, kind));
}

static int charge(struct worker *w, enum account_kind kind, uint64_t more, struct error *e)
{
    struct account_refusal why;

    return account_charge(&w->account, w->place, kind, more, &w->limits, &why) ? 0 : too_much(w, kind, more, &why, e);
}

int worker_memory_charge(struct worker *w, uint64_t bytes, struct error *e)
{
    int status = charge(w, ACCOUNT_MEMORY, bytes, e);

    if (status)
        return status;
    status = cgroup_check(&w->cgroup, bytes, &w->memory_limited, e);
    if (status)
        account_release(&w->account, w->place, ACCOUNT_MEMORY, bytes);
    return status;
}

void worker_memory_release(struct worker *w, uint64_t bytes)
{
    account_release(&w->account, w->place, ACCOUNT_MEMORY, bytes);
}

int worker_gpu_memory_charge(struct worker *w, uint64_t bytes, struct error *e)
{
    return charge(w, ACCOUNT_GPU_MEMORY, bytes, e);
}

void worker_gpu_memory_release(struct worker *w, uint64_t bytes)
{
    account_release(&w->account, w->place, ACCOUNT_GPU_MEMORY, bytes);
}

/* ---- what is counted one by one ---- */

static uint64_t slack(const struct worker *w, enum account_kind kind)
{
    const uint64_t user = w->limits.of[ACCOUNT_USER][kind] / SLACK_PART, job = w->limits.of[ACCOUNT_JOB][kind] / SLACK_PART;
    uint64_t least = user < job ? user : job;

    if (kind == ACCOUNT_COMMS)
        return 0; /* each is a lot of work, beside which a charge is nothing */
    return least < SLACK_MOST ? least : SLACK_MOST;
}

int worker_count_take(struct worker *w, enum account_kind kind, struct error *e)
{
    struct counted *c = &w->counted[kind];
    struct account_refusal why;

    if (c->used == c->charged) {
        uint64_t step = slack(w, kind) / 2;
        if (step > 1 && account_charge(&w->account, w->place, kind, step, &w->limits, &why))
            c->charged += step;
        else if (charge(w, kind, 1, e))
            return e->status;
        else
            c->charged++;
    }
    c->used++;
    return 0;
}

void worker_count_give(struct worker *w, enum account_kind kind)
{
    struct counted *c = &w->counted[kind];
    uint64_t kept = slack(w, kind);

    c->used--;
    if (c->charged - c->used <= kept)
        return; /* what is taken and given back alternately stays charged */
    uint64_t less = c->charged - c->used - kept / 2;
    c->charged -= less;
    account_release(&w->account, w->place, kind, less);
}

/* ---- memory in small amounts ---- */

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
