/* SPDX-License-Identifier: MIT */
#include "daemon/worker/comm/bound/launcher.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/comm/bound/inside.h"
#include "daemon/worker/comm/turn.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/engine/endpoint.h"
#include "kernels/plan/spec.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/session.h"

#define FIRST_AHEAD (FCC_SLOTS + 1)
#define REPEATED_MAX 16              /* operators that a communicator has bound for its ranks at a time */
#define BIND_AGAIN 16                /* operators between two attempts to bind one */
#define ADOPT_WITHIN (4 * FCC_SLOTS) /* operators */
#define BOUND_AHEAD 16               /* runs of a communicator that count as running at a time */

static const struct submission *next_of(const struct comm *c, int rank)
{
    return c->members[rank].next;
}

static struct fcc_binding *words_of(const struct prepared *p, int rank)
{
    return &p->comm->members[rank].session->memory->bindings[p->ranks[rank].place];
}

/* ---- binding ---- */

/* Whether it is known what becomes of rank 0's request: it asks until it has heard of it. */
static bool is_answered(const struct comm *c, uint32_t request)
{
    const struct prepared *p;

    for (unsigned i = 0; i < BIND_REFUSED; i++)
        if (c->bind_refused[i] == request)
            return true;
    LIST_FOREACH(p, &c->prepared, link)
        if (p->repeated && p->request == request)
            return true;
    return false;
}

/* The newest ones are remembered, which are more than a client asks for at a time. */
static void refuse(struct comm *c, uint32_t request)
{
    c->bind_refused[c->bind_nrefused++ % BIND_REFUSED] = request;
}

bool binding_is_asked(const struct comm *c)
{
    const struct submission *first = next_of(c, 0);

    if (!c->dev.words_gpus || c->adopting || !first->asks || c->operators < c->bind_again || is_answered(c, first->request))
        return false;
    for (int r = 0; r < c->nranks; r++)
        if (!next_of(c, r)->asks || next_of(c, r)->number != first->number || next_of(c, r)->error.status)
            return false;
    return comm_is_only(c);
}

void binding_make(struct comm *c)
{
    const struct submission *first = next_of(c, 0);
    struct error e = {0};
    const struct prepared *p;
    int n = 0, status;

    LIST_FOREACH(p, &c->prepared, link)
        n += p->repeated;
    if (n >= REPEATED_MAX || !strcmp(c->worker->config.gpu_begin, "together")) {
        refuse(c, first->request);
        return;
    }
    status = prepared_make_repeated(c, &e);
    if (status == -EAGAIN) /* its schedule is not known yet; asking holds up the next operators */
        c->bind_again = c->operators + BIND_AGAIN;
    if (!status || status == -EAGAIN)
        return;
    refuse(c, first->request);
    log_info("comm %u: %s is not bound, but launched by the worker: %s", c->number, op_name(first->args.op), e.text);
}

static bool has_adopted(const struct prepared *p, int rank)
{
    return p->ranks[rank].held && atomic_load_explicit(&words_of(p, rank)->adopted, memory_order_acquire);
}

/* A client adopts what is announced when the operator comes again. If it has not come again for long, others are to have the turn. */
static void adoption_give_up(struct comm *c)
{
    const struct prepared *p = c->adopting;
    uint32_t number = p->number;
    struct error ignored;

    for (int r = 0; r < c->nranks && p; r++, p = prepared_find(c, number))
        if (p->ranks[r].held && !has_adopted(p, r))
            (void)prepared_drop(&c->members[r], number, &ignored);
}

/* When all clients can launch the runs: say from which operator on they do. */
static void first_set(struct comm *c)
{
    struct prepared *p = c->adopting;
    uint64_t newest = 0;
    bool all = true;

    for (int r = 0; r < c->nranks; r++) {
        all = all && has_adopted(p, r);
        newest = c->members[r].operators > newest ? c->members[r].operators : newest;
    }
    if (!all && c->operators >= p->since + ADOPT_WITHIN)
        adoption_give_up(c);
    if (!all)
        return;
    c->adopting = NULL;
    for (int r = 0; r < c->nranks; r++)
        atomic_store_explicit(&words_of(p, r)->first, newest + FIRST_AHEAD, memory_order_release);
}

/* ---- the end ---- */

void binding_end(struct prepared *p)
{
    struct comm *c = p->comm;
    uint64_t number = next_of(c, 0) ? next_of(c, 0)->number : c->members[0].operators + 1;

    if (!p->repeated || p->state != BOUND_OPEN)
        return;
    p->state = BOUND_ENDS;
    c->adopting = c->adopting == p ? NULL : c->adopting;
    for (int r = 0; r < c->nranks; r++)
        if (p->ranks[r].held)
            atomic_store_explicit(&words_of(p, r)->until, number, memory_order_relaxed);
}

static void bindings_end_all(struct comm *c)
{
    struct prepared *p;

    LIST_FOREACH(p, &c->prepared, link)
        binding_end(p);
}

void bindings_end_beside(struct comm *mine)
{
    struct comm *c;

    LIST_FOREACH(c, &mine->worker->comms, link)
        if (c != mine && c->dev.ops == mine->dev.ops)
            bindings_end_all(c);
}

void bindings_look(struct comm *c)
{
    if (LIST_EMPTY(&c->prepared))
        return;
    if (c->adopting)
        first_set(c);
    if (!c->dev.exclusive || c->dev.traced)
        bindings_end_all(c);
}

bool bindings_sleep_soundly(const struct worker *w)
{
    const struct comm *c;
    bool any = false;

    LIST_FOREACH(c, &w->comms, link) {
        any |= !LIST_EMPTY(&c->prepared);
        for (int r = 0; r < c->nranks && !LIST_EMPTY(&c->prepared); r++)
            if (c->members[r].next)
                return false;
    }
    return any;
}

/* ---- whose turn it is ---- */

/* Some ranks have launched the next operator, but not all: let its kernels, and those of later runs, hand over when they can. All that was
 * before them has ended. */
static void runs_recall(struct prepared *p)
{
    if (p->state == BOUND_RECALLED)
        return;
    log_debug("comm %u: bound operator %u: recalled from #%llu on", p->comm->number, p->number,
              (unsigned long long)p->comm->operators + 1);
    binding_end(p);
    p->state = BOUND_RECALLED;
    prepared_kernels_end(p);
    p->comm->recalled++;
}

enum launcher comm_launcher(struct comm *c)
{
    const struct submission *first = next_of(c, 0);
    const struct prepared *p = first->bound ? prepared_find(c, first->bound) : NULL;
    bool any = false, all = p && p->state != BOUND_RECALLED && first->run == p->runs + 1;

    for (int r = 0; r < c->nranks; r++) {
        const struct submission *sub = next_of(c, r);
        any |= sub->bound != 0;
        all = all && sub->bound == first->bound && sub->run == first->run;
    }
    if (all || !any)
        return all ? LAUNCH_BOUND : LAUNCH_WORKER;
    if (c->dev.current)
        return LAUNCH_RECALLED;
    for (int r = 0; r < c->nranks; r++) {
        struct prepared *q = next_of(c, r)->bound ? prepared_find(c, next_of(c, r)->bound) : NULL;
        if (q)
            runs_recall(q);
    }
    return LAUNCH_WORKER;
}

/* ---- runs ---- */

bool bound_has_room(const struct comm *c)
{
    return c->dev.running < BOUND_AHEAD;
}

int bound_begin(struct comm *c)
{
    struct prepared *p = prepared_find(c, next_of(c, 0)->bound);
    struct launch *l = c->bound_unused ? c->bound_unused : launch_make_bound(&c->dev, &launch_ops_here);

    if (!l)
        return -ENOMEM;
    c->operators++;
    c->bound_unused = l->next_cached;
    l->next_cached = NULL;
    l->bound = p;
    l->problem = p->planned->problem;
    p->running++;
    p->runs++;
    c->bound_runs++;
    for (int r = 0; r < c->nranks; r++) {
        l->streams[r] = (struct launch_stream){.run = (uint32_t)p->runs, .kernel = words_of(p, r)};
        p->ranks[r].last_run = (uint32_t)p->runs;
    }
    launch_begin_bound(c, l);
    for (int r = 0; r < c->nranks && !l->error.status; r++)
        l->error = l->submissions[r]->error; /* told when the kernels have ended, which run nevertheless */
    return 0;
}

void bound_end(struct launch *l)
{
    struct prepared *p = l->bound;
    struct comm *c = p->comm;

    l->bound = NULL;
    l->problem = NULL;
    l->next_cached = c->bound_unused;
    c->bound_unused = l;
    p->running--;
    prepared_release(p);
}
