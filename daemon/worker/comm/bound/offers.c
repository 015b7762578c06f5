/* SPDX-License-Identifier: MIT */
#include "daemon/worker/comm/bound/offers.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "daemon/worker/comm/bound/inside.h"
#include "daemon/worker/device/gpu/gpus.h"
#include "daemon/worker/device/gpu/stream.h"
#include "daemon/worker/engine/endpoint.h"
#include "kernels/gpu/bound.h"
#include "proto/base/log.h"

/* Ranks hear of it in the memory that they share with this process, and have at most FCC_SLOTS operators in flight: when a rank submits this
 * many later, it has seen the end of one that came after the news. */
#define OFFERS_AHEAD (2 * FCC_SLOTS)
#define OFFERS_PATIENCE 64
#define OFFERS_MAX 16 /* prepared in a communicator */

static const struct submission *next_of(const struct comm *c, int rank)
{
    return c->members[rank].next;
}

/* ---- preparing ---- */

/* Whether it is known what becomes of rank 0's request: it asks until it has heard of it. */
static bool is_answered(const struct comm *c, uint32_t request)
{
    const struct prepared *p;

    for (unsigned i = 0; i < OFFERS_REFUSED; i++)
        if (c->offers_refused[i] == request)
            return true;
    LIST_FOREACH(p, &c->prepared, link)
        if (p->offered && p->request == request)
            return true;
    return false;
}

/* The newest of them are remembered, which are more than a client asks for at a time. */
static void refuse(struct comm *c, uint32_t request)
{
    c->offers_refused[c->offers_nrefused++ % OFFERS_REFUSED] = request;
}

bool offers_are_asked(const struct comm *c)
{
    const struct submission *first = next_of(c, 0);

    if (!c->dev.words_gpus || !first->asks || is_answered(c, first->request))
        return false;
    for (int r = 0; r < c->nranks; r++)
        if (!next_of(c, r)->asks || next_of(c, r)->number != first->number || next_of(c, r)->error.status)
            return false;
    return comm_is_only(c);
}

void offers_make(struct comm *c)
{
    const struct submission *first = next_of(c, 0);
    struct error e = {0};
    int n = 0;
    const struct prepared *p;

    LIST_FOREACH(p, &c->prepared, link)
        n += p->offered;
    if (n == OFFERS_MAX || !strcmp(c->worker->config.gpu_begin, "together")) {
        refuse(c, first->request);
        return;
    }
    if (!prepared_make_offered(c, first->number + OFFERS_AHEAD, &e))
        return;
    refuse(c, first->request);
    log_info("comm %u: %s is not offered by its ranks: %s", c->number, op_name(first->args.op), e.text);
}

/* ---- deciding ---- */

bool offer_find(const struct member *m, const struct fcc_submit *submit, struct offer_word *out)
{
    const struct prepared *p = prepared_find(m->comm, submit->offer);

    if (!p || !p->offered || !p->ranks[m->rank].held)
        return false;
    out->address = (uint64_t)(uintptr_t)p->ranks[m->rank].area.data + gpu_offer_word_at(submit->run);
    out->gpu = m->dev->device->index;
    return true;
}

static_assert(GPU_OFFER_WORDS >= FCC_SLOTS, "each run in flight has its own");

void offer_decline(struct gpus *g, const struct offer_word *word, uint64_t run)
{
    gpus_word_post(g, word->gpu, word->address, GPU_DECLINED(run));
}

/* The ranks' runs. False: they do not offer the same, or not all offer. */
static bool runs_agree(struct launch *l, struct prepared *p)
{
    const struct submission *first = l->submissions[0];
    uint64_t newest = 0;
    bool all = true, same = true;

    for (int r = 0; r < l->nranks; r++) {
        const struct submission *sub = l->submissions[r];
        all &= sub->offer != 0;
        if (!sub->offer)
            continue;
        same &= sub->offer == p->number && (!first->offer || sub->run == first->run) && sub->run > p->runs;
        newest = sub->run > newest ? sub->run : newest;
    }
    if (!same) {
        prepared_offers_end(p);
        log_info("comm %u: prepared %u is not offered any more: its ranks have not the same number of runs", l->comm->number,
                 p->number);
    }
    p->runs = newest > p->runs ? newest : p->runs;
    p->some = all ? 0 : p->some + 1;
    if (p->some == OFFERS_PATIENCE) {
        prepared_offers_end(p);
        log_info("comm %u: prepared %u is not offered any more: of %d runs in a row some ranks have offered none",
                 l->comm->number, p->number, OFFERS_PATIENCE);
    }
    return all && same;
}

/* What the launch's words are: its streams have none. */
static void granted_note(struct launch *l, const struct prepared *p)
{
    for (int r = 0; r < l->nranks; r++) {
        struct session *s = launch_comm(l)->members[r].session;
        uint32_t place = p->ranks[r].place;
        l->streams[r] = (struct launch_stream){.run = (uint32_t)l->submissions[r]->run,
                                               .kernel = &s->memory->prepared[place],
                                               .ended_address = s->gpu_address + offsetof(struct fcc_session_memory, prepared) +
                                                                place * sizeof(struct fcc_prepared_words) +
                                                                offsetof(struct fcc_prepared_words, ended)};
    }
}

bool offers_decide(struct launch *l)
{
    struct gpus *g = l->worker->gpus;
    struct comm *c = launch_comm(l);
    struct prepared *p = NULL;

    for (int r = 0; r < l->nranks && !p; r++)
        p = l->submissions[r]->offer ? prepared_find(c, l->submissions[r]->offer) : NULL;
    l->granted = p && runs_agree(l, p) && p->first != FCC_OFFERS_END && p->holders == l->nranks &&
                 LIST_EMPTY(&c->trace_waiters) && comm_is_only(c);
    for (int r = 0; p && r < l->nranks; r++) {
        struct submission *sub = l->submissions[r];
        if (!sub->offer)
            continue;
        gpus_word_post(g, sub->word.gpu, sub->word.address, l->granted ? GPU_GRANTED(sub->run) : GPU_DECLINED(sub->run));
        sub->decided = true;
        p->ranks[r].last_run = (uint32_t)sub->run;
    }
    c->granted += l->granted;
    c->declined += p && !l->granted;
    if (l->granted)
        granted_note(l, p);
    return l->granted;
}

/* ---- behind a granted one ---- */

void offers_note(struct launch *l)
{
    const struct launch *granted = NULL;

    for (const struct launch *q = l->comm->current; q != l; q = q->following)
        granted = q->granted ? q : granted;
    for (int r = 0; granted && r < l->nranks; r++) {
        l->streams[r].kernel = granted->streams[r].kernel;
        l->streams[r].ended_address = granted->streams[r].ended_address;
        l->streams[r].run = granted->streams[r].run;
    }
}
