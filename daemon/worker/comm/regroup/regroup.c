/* SPDX-License-Identifier: MIT */
#include "daemon/worker/comm/regroup/regroup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/worker/comm/comm.h"
#include "daemon/worker/comm/span.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/engine/meter.h"

/* comm.regroup */
struct regroup {
    uint32_t round;      /* decisions that there have been */
    struct event *timer; /* since the first rank here came */
    bool looks;          /* regroup_look() is under way */
    struct waiting {
        struct regroup_entry entry;
        uint64_t request; /* of a rank here that waits: the id of its message */
        bool told;        /* the other nodes have been told of it */
    } of[];               /* [nranks] */
};

/* Distance of the numbers of groups' ids. Nodes know a communicator's memory by this number plus its number in a worker (nodes/members.c), so the
 * numbers of a decision's groups must not be close to each other. */
#define GROUP_STEP 0x9e3779b97f4a7c15u

static const char *const names[FCC_REGROUP_COUNT] = {[FCC_REGROUP_SPLIT] = "fcc_comm_split",
                                                     [FCC_REGROUP_SHRINK] = "fcc_comm_shrink",
                                                     [FCC_REGROUP_SPLIT_REFUSED] = "fcc_comm_split",
                                                     [FCC_REGROUP_SHRINK_REFUSED] = "fcc_comm_shrink"};

static bool is_refused(const struct regroup_entry *e)
{
    return e->how == FCC_REGROUP_SPLIT_REFUSED || e->how == FCC_REGROUP_SHRINK_REFUSED;
}

/* Which function the rank has called. */
static uint32_t call_of(const struct regroup_entry *e)
{
    return e->how == FCC_REGROUP_SPLIT_REFUSED    ? FCC_REGROUP_SPLIT
           : e->how == FCC_REGROUP_SHRINK_REFUSED ? FCC_REGROUP_SHRINK
                                                  : e->how;
}

static bool is_excluded(const struct regroup_entry *e, int rank)
{
    return e->how == FCC_REGROUP_SHRINK && e->excluded[rank / 64] >> rank % 64 & 1;
}

static bool has_come(const struct comm *c, int rank)
{
    return c->regroup->of[rank].entry.round == c->regroup->round + 1;
}

/* Its process or its node is dead, or it has left. */
static bool is_gone(const struct member *m)
{
    return m->state != MEMBER_JOINED || m->gone || m->leaving || (m->remote && !m->peer);
}

static void answer(struct member *m, int status, const char *text, const struct regroup_decision *d)
{
    struct waiting *w = &m->comm->regroup->of[m->rank];
    struct fcc_comm_split_reply r = {.reply.msg = {.type = FCC_MSG_COMM_SPLIT | FCC_REPLY, .id = w->request},
                                     .reply.status = status};

    if (m->remote || !w->request || !m->session)
        return;
    w->request = 0;
    w->told = false;
    text_copy(r.reply.text, sizeof(r.reply.text), text);
    if (!status && d->group[m->rank] >= 0) {
        uint64_t number;
        memcpy(&number, d->id.bytes, sizeof(number));
        number += (uint64_t)d->group[m->rank] * GROUP_STEP;
        r.unique_id = d->id;
        memcpy(r.unique_id.bytes, &number, sizeof(number));
        r.rank = d->rank[m->rank];
        r.allocations = d->allocations;
        for (int i = 0; i < m->comm->nranks; i++)
            r.nranks += d->group[i] == d->group[m->rank];
    }
    session_reply(m->session, &r.reply, sizeof(r), NULL, 0);
}

/* ---- time limits ---- */

/* "rank 1, rank 3": those that could come and have not. */
static void missing_say(const struct comm *c, const struct regroup_entry *first, char *text, size_t room)
{
    size_t n = 0;

    text[0] = '\0';
    for (int r = 0; r < c->nranks && n < room; r++)
        if (!has_come(c, r) && !is_gone(&c->members[r]) && !is_excluded(first, r))
            n += (size_t)snprintf(text + n, room - n, "%srank %d", n ? ", " : "", r);
}

static void on_timer(evutil_socket_t sock, short what, void *arg)
{
    struct comm *c = arg;
    struct regroup *g = c->regroup;
    char missing[256], text[FCC_TEXT_MAX];

    (void)sock, (void)what;
    for (int r = 0; r < c->nranks; r++) {
        struct waiting *w = &g->of[r];
        if (c->members[r].remote || !w->request)
            continue;
        missing_say(c, &w->entry, missing, sizeof(missing));
        (void)snprintf(text, sizeof(text), "rank %d: %s: %s did not come within the time limit of %u ms%s", r,
                       names[w->entry.how],
                       c->dev.current ? "an operator has not ended, and the other ranks"
                       : *missing     ? missing
                                      : "the decision of another node",
                       c->dev.time_limit_ms, comm_flight_hint(c));
        w->entry.round = 0;
        if (c->nodes && w->told)
            span(c)->regroup_tell(c, r, &w->entry);
        answer(&c->members[r], -ETIMEDOUT, text, NULL);
    }
}

static struct regroup *regroup_of(struct comm *c)
{
    if (!c->regroup) {
        c->regroup = calloc(1, sizeof(*c->regroup) + (size_t)c->nranks * sizeof(c->regroup->of[0]));
        if (c->regroup && !(c->regroup->timer = evtimer_new(c->worker->base, on_timer, c))) {
            free(c->regroup);
            c->regroup = NULL;
        }
    }
    return c->regroup;
}

static void regroup_free(struct comm *c)
{
    event_free(c->regroup->timer);
    free(c->regroup);
    c->regroup = NULL;
}

/* ---- decisions ---- */

static void decision_fail(struct regroup_decision *d, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void decision_fail(struct regroup_decision *d, int status, const char *format, ...)
{
    va_list ap;

    if (d->status)
        return;
    d->status = status;
    va_start(ap, format);
    (void)vsnprintf(d->text, sizeof(d->text), format, ap);
    va_end(ap);
}

/* Ranks that have come, and are still there, must have come to the same, with arguments that are right. */
static void decision_check(const struct comm *c, int lowest, struct regroup_decision *d)
{
    const struct regroup_entry *first = &c->regroup->of[lowest].entry;
    const uint32_t call = call_of(first);

    for (int r = 0; r < c->nranks; r++) {
        const struct regroup_entry *e = &c->regroup->of[r].entry;
        if (has_come(c, r) && !is_gone(&c->members[r]) && is_refused(e))
            decision_fail(d, -EINVAL, "%s: rank %d: %.*s", names[e->how], r, (int)strnlen(e->reason, sizeof(e->reason)),
                          e->reason);
    }
    for (int r = 0; r < c->nranks; r++) {
        const struct regroup_entry *e = &c->regroup->of[r].entry;
        if (!has_come(c, r) || is_gone(&c->members[r])) { /* perhaps since it came */
            if (call == FCC_REGROUP_SPLIT)
                decision_fail(d, -ECONNABORTED, "%s: rank %d is gone, or has left the communicator", names[first->how], r);
            continue;
        }
        if (call_of(e) != call)
            decision_fail(d, -EINVAL, "the ranks are out of step: rank %d calls %s, rank %d calls %s", r, names[e->how], lowest,
                          names[first->how]);
        else if (memcmp(e->excluded, first->excluded, sizeof(e->excluded)) != 0)
            decision_fail(d, -EINVAL, "%s: excluded: rank %d has other ranks than rank %d", names[e->how], r, lowest);
        else if (is_excluded(first, r))
            decision_fail(d, -EINVAL, "%s: rank %d is excluded, and calls it", names[e->how], r);
    }
    if (call == FCC_REGROUP_SPLIT && c->state != COMM_ACTIVE)
        decision_fail(d, c->error.status, "%s", c->error.text);
}

/* A rank before another in its group: by key, then by rank. */
static bool is_before(const struct comm *c, int a, int b)
{
    const struct regroup_entry *x = &c->regroup->of[a].entry, *y = &c->regroup->of[b].entry;

    return x->key < y->key || (x->key == y->key && a < b);
}

static void groups_make(const struct comm *c, struct regroup_decision *d)
{
    int ngroups = 0;

    for (int r = 0; r < c->nranks; r++) {
        const struct regroup_entry *e = &c->regroup->of[r].entry;
        d->group[r] = d->rank[r] = -1;
        if (!has_come(c, r) || is_gone(&c->members[r]) || e->color == FCC_UNDEFINED)
            continue;
        d->allocations = e->allocations > d->allocations ? e->allocations : d->allocations;
        for (int o = 0; o < r && d->group[r] < 0; o++)
            if (d->group[o] >= 0 && c->regroup->of[o].entry.color == e->color)
                d->group[r] = d->group[o];
        if (d->group[r] < 0)
            d->group[r] = (int16_t)ngroups++;
    }
    for (int r = 0; r < c->nranks; r++) {
        d->rank[r] = d->group[r] < 0 ? -1 : 0;
        for (int o = 0; o < c->nranks; o++)
            d->rank[r] = (int16_t)(d->rank[r] + (d->group[r] >= 0 && d->group[o] == d->group[r] && is_before(c, o, r)));
    }
}

static void decide(struct comm *c, int lowest)
{
    struct regroup_decision *d = calloc(1, sizeof(*d));
    struct fcc_unique_id_layout id = {.zero = {0}};

    if (!d)
        return; /* the time limit tells */
    d->round = c->regroup->round + 1;
    d->how = call_of(&c->regroup->of[lowest].entry);
    decision_check(c, lowest, d);
    if (getrandom(id.secret, sizeof(id.secret), 0) != (ssize_t)sizeof(id.secret))
        decision_fail(d, -EIO, "%s: no random numbers", names[d->how]);
    text_copy(id.root, sizeof(id.root), c->worker->node);
    memcpy(&d->id, &id, sizeof(id));
    groups_make(c, d);
    regroup_decided(c, d);
    free(d);
}

void regroup_decided(struct comm *c, const struct regroup_decision *d)
{
    struct regroup *g = regroup_of(c);

    if (!g || d->round != g->round + 1)
        return; /* heard already */
    g->round = d->round;
    if (c->nodes)
        span(c)->regrouped(c, d);
    (void)event_del(g->timer);
    for (int r = 0; r < c->nranks; r++) {
        struct member *m = &c->members[r];
        bool in = g->of[r].entry.round == d->round;
        if (!in)
            continue;
        if (!d->status && d->how == FCC_REGROUP_SHRINK && d->group[r] < 0)
            answer(m, -ECONNABORTED, "fcc_comm_shrink: the other ranks have decided without this one", d);
        else
            answer(m, d->status, d->text, d);
    }
    if (d->status || d->how != FCC_REGROUP_SHRINK)
        return;
    if (c->worker->meters)
        meter_add(&c->worker->meters->counters.shrunk, 1);
    comm_abort(c, -ECONNABORTED, "the ranks that are left have made a new communicator of it (fcc_comm_shrink)");
}

/* ---- who has come ---- */

/* Whether a rank that has come waits for this one. One that has come anew after its time limit may exclude it, while others still wait in the
 * calls before. */
static bool is_awaited(const struct comm *c, int rank)
{
    bool others = false;

    for (int r = 0; r < c->nranks; r++) {
        const struct regroup_entry *e = &c->regroup->of[r].entry;
        if (!has_come(c, r) || is_gone(&c->members[r]) || e->how == FCC_REGROUP_SHRINK_REFUSED)
            continue;
        if (!is_excluded(e, rank))
            return true;
        others = true;
    }
    return !others; /* a rank that has refused to shrink waits for whom the others wait; while there are none, for all */
}

/* The lowest rank that has come and is not gone; -1: somebody is waited for, or nobody has come. */
static int lowest_of_all(const struct comm *c)
{
    int lowest = -1;

    for (int r = c->nranks - 1; r >= 0; r--) {
        if (is_gone(&c->members[r]))
            continue;
        if (has_come(c, r))
            lowest = r;
        else if (is_awaited(c, r))
            return -1;
    }
    return lowest;
}

void regroup_look(struct comm *c)
{
    struct regroup *g = c->regroup;

    if (!g || g->looks || c->dev.current)
        return;
    g->looks = true; /* what follows may abort the communicator, which looks again */
    for (int r = 0; r < c->nranks; r++) {
        struct waiting *w = &g->of[r];
        if (c->members[r].remote || !w->request || w->told)
            continue;
        w->told = true;
        if (c->nodes)
            span(c)->regroup_tell(c, r, &w->entry);
    }
    int lowest = lowest_of_all(c);
    if (lowest >= 0 && !c->members[lowest].remote)
        decide(c, lowest);
    g->looks = false;
}

int regroup_come(struct member *m, const struct fcc_comm_split_msg *msg, struct error *e)
{
    struct comm *c = m->comm;
    struct regroup *g = regroup_of(c);

    if (msg->how >= FCC_REGROUP_COUNT)
        return error_set(e, -EINVAL, "rank %d: how: %u: allowed are 0 to %d", m->rank, msg->how, FCC_REGROUP_COUNT - 1);
    if (msg->how == FCC_REGROUP_SPLIT && msg->color < 0 && msg->color != FCC_UNDEFINED)
        return error_set(e, -EINVAL, "rank %d: color: %d: allowed are 0 and more, and FCC_UNDEFINED", m->rank, msg->color);
    if (!g)
        return error_set(e, -ENOMEM, "rank %d: no memory for new groups of %d ranks", m->rank, c->nranks);
    struct waiting *w = &g->of[m->rank];
    if (w->request)
        return error_set(e, -EALREADY, "rank %d: %s: another thread waits in it", m->rank, names[w->entry.how]);
    *w = (struct waiting){.entry = {.round = g->round + 1,
                                    .how = msg->how,
                                    .color = msg->how == FCC_REGROUP_SHRINK ? 0 : msg->color,
                                    .key = msg->how == FCC_REGROUP_SHRINK ? m->rank : msg->key,
                                    .allocations = c->allocations},
                          .request = msg->msg.id};
    if (msg->how != FCC_REGROUP_SPLIT)
        memcpy(w->entry.excluded, msg->excluded, sizeof(w->entry.excluded)); /* or the reason */
    if (!event_pending(g->timer, EV_TIMEOUT, NULL))
        (void)event_add_ms(g->timer, c->dev.time_limit_ms);
    regroup_look(c);
    return 0;
}

void regroup_heard(struct comm *c, int rank, const struct regroup_entry *entry)
{
    struct regroup *g = regroup_of(c);

    if (!g)
        return; /* the time limit tells */
    g->of[rank].entry = *entry;
    regroup_look(c);
}

static void regroup_forget(struct member *m)
{
    m->comm->regroup->of[m->rank].request = 0; /* it waits for no answer any more */
}

const struct regroup_ops regroup_of_ranks = {.look = regroup_look, .forget = regroup_forget, .free = regroup_free};
