/* SPDX-License-Identifier: MIT
 *
 * send.c - what leaves a rank: stores to ranks of its node, messages to other nodes, and flags.
 *
 * A message is a trigger that the node's proxy takes, one after the other. Then it waits for the sender's adapter, which sends a few messages at once, each to
 * another node: so all that goes from one adapter to one node arrives in the order in which it was handed over, flags behind data. A flag travels with the
 * data of the last slice of its group if that slice's data goes there, and as a message of no bytes otherwise. Where it arrives the proxy stores it.
 */
#include <string.h>

#include "kernels/sim/inside.h"

static bool proxy_waits(struct sim *s, uint32_t node);

/* The next rank of a destination from `r` on; nranks: there is none. */
static int destination_from(const struct plan *plan, unsigned dst, int r)
{
    if (dst == SLICE_DST_ALL)
        return r;
    if (!(dst & SLICE_DST_SET))
        return r <= (int)dst ? (int)dst : plan->nranks;
    for (; r < plan->nranks; r = (r / 64 + 1) * 64) {
        const uint64_t word = plan->sets[dst - SLICE_DST_SET][r / 64] >> r % 64;
        if (word)
            return r + __builtin_ctzll(word);
    }
    return plan->nranks;
}

static uint32_t message_new(struct sim *s, struct message m)
{
    uint32_t i = s->messages_free;

    if (i != NONE) {
        s->messages_free = s->messages[i].next;
    } else {
        if (!array_room(&s->messages, s->nmessages, &s->messages_room, sizeof(m))) {
            s->failed = true;
            return NONE;
        }
        i = s->nmessages++;
    }
    m.next = NONE;
    s->messages[i] = m;
    return i;
}

/* The proxy of a node is busy for so long. Returns until when. */
static uint64_t proxy_work(struct sim *s, int node, double seconds, double bytes)
{
    const double copy = s->m.fabric.copy_bytes_s > 0 ? bytes / s->m.fabric.copy_bytes_s : 0;
    uint64_t *until = &s->proxies[node].until;

    *until = ps_after(*until > s->now ? *until : s->now, ps_of(seconds + copy));
    return *until;
}

/* Which of the messages under way goes to this node; nflying: none. */
static uint32_t flying_to(const struct adapter *a, int node)
{
    uint32_t i = 0;

    while (i < a->nflying && a->flying[i] != node)
        i++;
    return i;
}

static struct queued *queued_at(const struct adapter *a, uint32_t i)
{
    return &a->ring[(a->first + i) & (a->room - 1)];
}

/* A message waits until the one that is under way to its node has left. */
static void adapter_block(struct adapter *a, struct waiting *w, const struct queued *q)
{
    const uint8_t place = (uint8_t)__builtin_ctzll(a->empty);

    a->empty &= a->empty - 1;
    a->blocked[place] = *q;
    a->next[place] = ADAPTER_SEES;
    *(w->first == ADAPTER_SEES ? &w->first : &a->next[w->last]) = place;
    w->last = place;
}

/* The first of the messages that waited for the one that has left. */
static bool adapter_take_blocked(struct adapter *a, struct queued *out)
{
    const uint8_t place = a->to_left.first;

    if (place == ADAPTER_SEES) {
        a->left = NOWHERE;
        return false;
    }
    *out = a->blocked[place];
    a->to_left.first = a->next[place];
    a->empty |= UINT64_C(1) << place;
    return true;
}

/* Takes the first message out that the adapter can send; false: there is none. *ready: when the first that is not ready will be; NEVER: those that were looked
 * at are. Messages that cannot be sent, since others to their nodes are under way, are not looked at again: they wait in a list for each such node, and when one
 * has left for it, its list is known. */
static bool adapter_take(const struct sim *s, struct adapter *a, uint64_t *ready, struct queued *out)
{
    *ready = NEVER;
    if (a->left != NOWHERE && adapter_take_blocked(a, out))
        return true;
    while (a->n && a->empty) {
        const struct queued *q = queued_at(a, 0);
        if (q->ready > s->now) {
            *ready = q->ready;
            return false;
        }
        __builtin_prefetch(queued_at(a, 4)); /* it was put there long ago, and is looked at soon */
        a->first = (a->first + 1) & (a->room - 1);
        a->n--;
        const uint32_t other = flying_to(a, q->to);
        if (other == a->nflying) {
            *out = *q;
            return true;
        }
        adapter_block(a, &a->waiting[other], q);
    }
    return false;
}

/* A message is under way, and those that waited for the one before to its node wait for this one. */
static void adapter_flies(struct adapter *a, int to)
{
    a->flying[a->nflying] = to;
    a->waiting[a->nflying++] = a->left == to ? a->to_left : (struct waiting){ADAPTER_SEES, ADAPTER_SEES};
    a->left = NOWHERE;
}

/* A message has left its adapter. One that nobody waits for, and that keeps no proxy busy, has done all that it does. */
static void message_left(struct sim *s, uint32_t message)
{
    const struct message *m = &s->messages[message];
    const struct sim_fabric *f = &s->m.fabric;

    if (m->flag == NONE && !(f->receive_s > 0) && !(f->copy_bytes_s > 0))
        message_deliver(s, message);
    else
        (void)event_put(s, EVENT_ARRIVE, message, ps_after(s->now, m->latency));
}

/* A message begins to leave by its adapter; false: no memory. */
static bool message_go(struct sim *s, uint32_t adapter, const struct queued *q)
{
    struct adapter *a = &s->adapters[adapter];
    const struct stopped *stopped = &s->stopped;
    const uint32_t memory[2] = {memory_of(s, q->from), memory_of(s, s->tasks[q->task].rank)};
    const bool again = stopped->flow != NONE && stopped->adapter == adapter && stopped->to == q->to && q->bytes > 0 &&
                       flow_is_of(s, stopped->flow, memory);
    struct message m = {
        .task = q->task, .flag = q->flag, .to = q->to, .adapter = adapter, .bytes = q->bytes, .latency = stopped->latency};
    uint32_t path[PATH_MAX_LINKS];
    const unsigned n = again ? 0 : fabric_path(s, a->node, q->to, a->rail, path, &m.latency);
    const uint32_t i = message_new(s, m);

    if (i == NONE)
        return false;
    if (!(q->bytes > 0)) {
        message_left(s, i);
        return true;
    }
    adapter_flies(a, q->to);
    if (again)
        flow_again(s, q->bytes, i);
    else
        (void)flow_begin(s, q->bytes, path, n, memory, i, FLOW_MESSAGE);
    return true;
}

static void adapter_go(struct sim *s, uint32_t adapter)
{
    struct adapter *a = &s->adapters[adapter];
    uint64_t ready = NEVER;
    struct queued q;

    while (a->nflying < (uint32_t)s->m.fabric.in_flight && adapter_take(s, a, &ready, &q))
        if (!message_go(s, adapter, &q))
            return;
    if (a->nflying < (uint32_t)s->m.fabric.in_flight && ready < NEVER && !a->asked)
        a->asked = event_put(s, EVENT_READY, adapter, ready);
}

void adapter_ready(struct sim *s, uint32_t adapter)
{
    s->adapters[adapter].asked = false;
    adapter_go(s, adapter);
}

static void message_send(struct sim *s, const struct task *from, int place, double bytes, uint32_t flag)
{
    const uint32_t to = task_of(s, from, place), adapter = adapter_of(s, from->rank);
    const int node = node_of(s, from->rank);
    struct adapter *a = &s->adapters[adapter];
    const bool waits = proxy_waits(s, (uint32_t)node);
    const struct queued q = {.ready = waits ? UNPREPARED : proxy_work(s, node, s->m.fabric.message_s, bytes),
                             .bytes = bytes,
                             .task = to,
                             .flag = flag,
                             .from = (uint16_t)from->rank,
                             .to = (uint16_t)node_of(s, s->tasks[to].rank)};

    if (!ring_room(&a->ring, a->first, a->n, &a->room, sizeof(q))) {
        s->failed = true;
        return;
    }
    *queued_at(a, a->n++) = q;
    s->messages_done++;
    s->message_bytes += bytes;
    adapter_go(s, adapter);
}

void message_sent(struct sim *s, uint32_t message, uint32_t flow)
{
    const struct message *m = &s->messages[message];
    const uint32_t adapter = m->adapter;
    struct adapter *a = &s->adapters[adapter];

    flow_stop(s, flow, m);
    const uint32_t i = flying_to(a, m->to);
    a->left = m->to;
    a->to_left = a->waiting[i];
    a->flying[i] = a->flying[--a->nflying];
    a->waiting[i] = a->waiting[a->nflying];
    message_left(s, message);
    adapter_go(s, adapter);
    stopped_end(s);
}

static void message_received(struct sim *s, uint32_t message)
{
    const struct message *m = &s->messages[message];
    const uint64_t at = proxy_work(s, m->to, s->m.fabric.receive_s, m->bytes);

    if (at > s->now)
        (void)event_put(s, EVENT_DELIVER, message, at);
    else
        message_deliver(s, message);
}

void message_arrive(struct sim *s, uint32_t message)
{
    struct proxy *p = &s->proxies[s->messages[message].to];

    if (!proxy_waits(s, s->messages[message].to)) {
        message_received(s, message);
        return;
    }
    s->messages[message].next = NONE;
    if (p->first == NONE)
        p->first = message;
    else
        s->messages[p->last].next = message;
    p->last = message;
}

/* ---- a proxy without a core of its own ---- */

static void proxy_look(struct sim *s, uint32_t node)
{
    struct proxy *p = &s->proxies[node];

    if (!p->looks)
        s->looking[s->nlooking++] = node;
    p->looks = true;
}

/* A proxy that is not under way waits until time moves on, when it is seen whether all workgroups of its node go on to compute: one that has just finished a
 * slice has its core still. As the proxy is there for microseconds, it is not counted what it takes from those that compute. */
static bool proxy_waits(struct sim *s, uint32_t node)
{
    struct proxy *p = &s->proxies[node];

    if (!p->waits && s->m.fabric.core_wait_s > 0 && p->until <= s->now) {
        p->waits = true;
        p->asked = NEVER;
        proxy_look(s, node);
    }
    return p->waits;
}

/* It has a core: what waits for it is prepared, and what has come is stored. */
static void proxy_go(struct sim *s, uint32_t node)
{
    struct proxy *p = &s->proxies[node];
    const uint32_t rails = (uint32_t)s->m.node.rails;

    p->waits = false;
    for (uint32_t k = node * rails; k < (node + 1) * rails; k++) {
        struct adapter *a = &s->adapters[k];
        uint32_t i = a->n;
        while (i > 0 && queued_at(a, i - 1)->ready == UNPREPARED)
            i--;
        for (; i < a->n; i++)
            queued_at(a, i)->ready = proxy_work(s, (int)node, s->m.fabric.message_s, queued_at(a, i)->bytes);
        adapter_go(s, k);
    }
    for (uint32_t message = p->first, next; message != NONE; message = next) {
        next = s->messages[message].next;
        p->first = next;
        message_received(s, message);
    }
}

void proxy_core(struct sim *s, uint32_t node)
{
    if (s->proxies[node].waits && s->proxies[node].asked == s->now)
        proxy_go(s, node);
}

void proxy_counts(struct sim *s, uint32_t rank, bool more)
{
    struct proxy *p = &s->proxies[node_of(s, (int)rank)];

    p->computing += more ? 1 : UINT32_MAX;
    if (!more && p->waits)
        proxy_look(s, (uint32_t)node_of(s, (int)rank));
}

void proxies_settle(struct sim *s)
{
    for (uint32_t i = 0; i < s->nlooking; i++) {
        struct proxy *p = &s->proxies[s->looking[i]];
        p->looks = false;
        if (!p->waits)
            continue;
        if (p->computing < s->m.device.workgroups * (uint32_t)s->m.node.ranks) {
            proxy_go(s, s->looking[i]);
        } else if (p->asked == NEVER) {
            p->asked = ps_after(s->now, ps_of(s->m.fabric.core_wait_s));
            (void)event_put(s, EVENT_CORE, s->looking[i], p->asked);
        }
    }
    s->nlooking = 0;
}

void message_deliver(struct sim *s, uint32_t message)
{
    const struct message m = s->messages[message];

    s->messages[message].next = s->messages_free;
    s->messages_free = message;
    if (m.flag != NONE)
        flag_raise(s, m.task, m.flag);
}

/* ---- stores ---- */

static bool by_memory(const struct sim *s)
{
    return s->m.node.link == SIM_LINK_MEMORY;
}

double slice_stored_here(const struct sim *s, const struct task *t, const struct slice *slice, double bytes)
{
    const int own = t->place;
    const int32_t *node = t->costs.problem->node_of;
    double sum = 0;

    if (!slice_puts(slice->kind))
        return slice->kind == SLICE_COMPUTE || slice->kind == SLICE_ROWS ? bytes : 0;
    if (slice->dst < SLICE_DST_SET && slice->dst != own && node[slice->dst] != node[own])
        return bytes; /* into the bounce buffer */
    if (!by_memory(s))
        return plan_reaches(t->plan, slice->dst, own) ? bytes : 0;
    for (int r = destination_from(t->plan, slice->dst, 0); r < t->plan->nranks;
         r = destination_from(t->plan, slice->dst, r + 1))
        sum += node[r] == node[own] ? bytes : 0;
    return sum > 0 ? sum : bytes;
}

/* A flow between two ranks of a node, that a workgroup waits for. */
static bool store_begin(struct sim *s, uint32_t workgroup, int from, int to, double bytes, enum flow_kind kind)
{
    const uint32_t memory[2] = {NONE, memory_of(s, to)};
    uint32_t path[PATH_MAX_LINKS];
    const unsigned n = node_path(s, from, to, path);

    return flow_begin(s, bytes, path, n, memory, workgroup, kind) != NONE;
}

uint32_t slice_store(struct sim *s, uint32_t workgroup, double bytes)
{
    struct workgroup *w = &s->workgroups[workgroup];
    const struct task *t = &s->tasks[w->task];
    const struct slice *slice = &t->plan->slices[w->slice];
    const int own = t->place;
    const int32_t *node = t->costs.problem->node_of;
    uint32_t flows = 0;

    w->carries = slice->group != SLICE_NO_GROUP && t->left[slice->group] == 1;
    for (int r = destination_from(t->plan, slice->dst, 0); r < t->plan->nranks;
         r = destination_from(t->plan, slice->dst, r + 1)) {
        if (r == own)
            continue;
        if (node[r] != node[own]) {
            const struct signal_group *g = w->carries ? &t->plan->groups[slice->group] : NULL;
            message_send(s, t, r, bytes, g && plan_reaches(t->plan, g->dst, r) ? g->flag : NONE);
        } else if (!by_memory(s)) {
            flows += store_begin(s, workgroup, t->rank, rank_at(s, t, r), bytes * t->stored_more, FLOW_STORE);
        }
    }
    return flows;
}

uint32_t slice_pull(struct sim *s, uint32_t workgroup, double bytes)
{
    const struct workgroup *w = &s->workgroups[workgroup];
    const struct task *t = &s->tasks[w->task];
    uint32_t flows = 0;

    for (int r = 0; r < t->plan->nranks && !by_memory(s); r++) {
        const int from = rank_at(s, t, r);
        if (from != t->rank)
            flows += store_begin(s, workgroup, from, t->rank, bytes, FLOW_PULL);
    }
    return flows;
}

void group_finished(struct sim *s, uint32_t task, uint32_t group, const struct slice *carried)
{
    const struct task *t = &s->tasks[task];
    const struct plan *plan = t->plan;
    const struct signal_group *g = &plan->groups[group];
    const int own = t->place;
    const int32_t *node = t->costs.problem->node_of;
    const uint64_t latency = ps_of(s->m.node.link_latency_s);

    for (int r = destination_from(plan, g->dst, 0); r < plan->nranks; r = destination_from(plan, g->dst, r + 1)) {
        t = &s->tasks[task];
        if (node[r] != node[own]) {
            if (!carried || !plan_reaches(plan, carried->dst, r))
                message_send(s, t, r, 0, g->flag);
            continue;
        }
        if (r == own || latency == 0) {
            flag_raise(s, task_of(s, t, r), g->flag);
            continue;
        }
        const uint32_t to = task_of(s, t, r);
        const uint32_t i = message_new(s, (struct message){.task = to, .flag = g->flag});
        if (i != NONE)
            (void)event_put_lane(s, LANE_FLAG, EVENT_DELIVER, i, latency);
    }
}
