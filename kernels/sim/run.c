/* SPDX-License-Identifier: MIT
 *
 * run.c - takes events until none is left, and says what came out.
 *
 * Before time moves on, links and memories whose flows and jobs have changed are shared anew: what begins and ends at one moment is one change.
 */
#include <errno.h>
#include <string.h>

#include "kernels/sim/inside.h"

#define EVENTS_BETWEEN_LOOKS 4096 /* at `stop` */

static bool workgroups_make(struct sim *s)
{
    for (uint32_t i = 0; i < s->ntasks; i++) {
        struct task *t = &s->tasks[i];
        const uint32_t most = s->operators[t->op].workgroups;
        t->workgroups = !t->plan ? 1 : t->plan->nslices < most ? t->plan->nslices : most;
        t->first = s->nworkgroups;
        for (uint32_t k = 0; k < t->workgroups; k++) {
            if (!array_room(&s->workgroups, s->nworkgroups, &s->workgroups_room, sizeof(*s->workgroups)))
                return false;
            s->workgroups[s->nworkgroups++] = (struct workgroup){.task = i};
        }
    }
    return true;
}

static void flows_ended(struct sim *s, uint32_t link)
{
    for (uint32_t id; (id = link_ended(s, link)) != NONE;) {
        const uint32_t owner = s->flows[id].owner;
        const uint8_t kind = s->flows[id].kind;
        if (kind == FLOW_MESSAGE) {
            message_sent(s, owner, id);
            continue;
        }
        flow_end(s, id);
        if (kind == FLOW_PULL)
            workgroup_go(s, owner);
        else
            workgroup_stored(s, owner);
    }
}

static void event_do(struct sim *s, const struct event *e)
{
    switch ((enum event_kind)e->kind) {
    case EVENT_START:
        task_begin(s, e->id);
        break;
    case EVENT_STEP:
        task_step(s, e->id);
        break;
    case EVENT_WORK:
        workgroup_go(s, e->id);
        break;
    case EVENT_MEMORY:
        (void)memory_ended(s, e->id);
        break;
    case EVENT_LINK:
        flows_ended(s, e->id);
        break;
    case EVENT_CORE:
        proxy_core(s, e->id);
        break;
    case EVENT_READY:
        adapter_ready(s, e->id);
        break;
    case EVENT_ARRIVE:
        message_arrive(s, e->id);
        break;
    case EVENT_DELIVER:
        message_deliver(s, e->id);
        break;
    }
}

/* Whether something has changed that is to be shared anew before time moves on. */
static bool is_unsettled(const struct sim *s)
{
    return s->nlooking > 0 || s->ndirty_links > 0 || s->ndirty_memories > 0;
}

static bool settle(struct sim *s)
{
    proxies_settle(s);
    return links_settle(s) && memories_settle(s) && !s->failed;
}

int sim_run(struct sim *s, const atomic_bool *stop, struct error *e)
{
    struct event next;
    bool well = !s->ran && workgroups_make(s);

    if (s->ran)
        return error_set(e, -EINVAL, "a simulation runs once");
    s->ran = true;
    s->tasks_left = s->ntasks;
    for (int r = 0; r < s->nranks; r++)
        rank_go(s, r);
    while (well && s->tasks_left) {
        if (is_unsettled(s) && !event_due(s) && !(well = settle(s)))
            break;
        if (!event_take(s, &next))
            break;
        s->now = next.at;
        if (s->now >= END_OF_TIME)
            return error_set(e, -EINVAL, "what is simulated takes more than %.0f days: simulated are shorter times",
                             (double)END_OF_TIME / PS_PER_S / 86400);
        event_do(s, &next);
        if (++s->events_done % EVENTS_BETWEEN_LOOKS == 0 && stop && atomic_load_explicit(stop, memory_order_relaxed))
            return error_set(e, -ECANCELED, "stopped");
        well = !s->failed;
    }
    if (!well)
        return error_set(e, -ENOMEM, "no memory for the simulation");
    s->until = s->now;
    return s->tasks_left ? stuck_explain(s, e) : 0;
}

/* ---- results ---- */

static double seconds(uint64_t ps)
{
    return (double)ps / PS_PER_S;
}

struct sim_times sim_operator_times(const struct sim *s, int op)
{
    const struct operator* o = & s->operators[op];
    uint64_t begin = NEVER, end = 0, first_end = NEVER;

    for (int r = 0; r < s->nranks; r++) {
        const struct task *t = &s->tasks[o->first + (uint32_t)r];
        begin = t->begin < begin ? t->begin : begin;
        end = t->end > end ? t->end : end;
        first_end = t->end < first_end ? t->end : first_end;
    }
    return (struct sim_times){.begin_s = seconds(begin), .end_s = seconds(end), .first_end_s = seconds(first_end)};
}

double sim_seconds(const struct sim *s)
{
    return seconds(s->until);
}

struct sim_counts sim_counts(const struct sim *s)
{
    struct sim_counts out = {
        .events = s->events_done, .slices = s->slices_done, .messages = s->messages_done, .message_bytes = s->message_bytes};
    uint32_t busiest = NONE;

    for (uint32_t i = 0; i + 1 < s->nlinks && s->now > 0; i++) {
        const double use = s->carried[i] / (s->links[i].bytes_s * seconds(s->now));
        if (use > out.busiest) {
            out.busiest = use;
            busiest = i;
        }
    }
    if (busiest != NONE)
        link_name(s, busiest, out.busiest_name);
    return out;
}

uint64_t sim_bytes(const struct sim *s)
{
    uint64_t bytes = s->ntasks * sizeof(*s->tasks) + s->nworkgroups * sizeof(*s->workgroups);

    for (uint32_t i = 0; i < s->noperators; i++) {
        const struct operator* op = & s->operators[i];
        for (uint32_t k = 0; !op->borrows && k < op->npatterns; k++)
            for (int r = 0; r < op->said.size; r++) {
                const struct plan *p = op->patterns[k].plans[r];
                bytes += p->nslices * sizeof(*p->slices) + p->ngroups * (sizeof(*p->groups) + sizeof(uint32_t)) + p->nflags / 8;
            }
    }
    return bytes;
}

/* ---- traces ---- */

void sim_trace(struct sim *s, int rank)
{
    uint32_t path[PATH_MAX_LINKS];

    s->traced = rank >= 0 && rank < s->nranks ? rank : -1;
    s->traced_link = NONE;
    if (s->traced < 0)
        return;
    if (s->m.nodes > 1)
        s->traced_link = s->nic_out + adapter_of(s, rank);
    else if (s->m.node.link == SIM_LINK_SWITCH && s->nranks > 1) {
        (void)node_path(s, rank, (rank + 1) % s->nranks, path);
        s->traced_link = path[0];
    }
}

void trace_span(struct sim *s, const struct workgroup *w)
{
    const struct task *t = &s->tasks[w->task];
    uint32_t room = (uint32_t)s->spans_room;

    if (t->rank != s->traced)
        return;
    if (!array_room(&s->spans, (uint32_t)s->nspans, &room, sizeof(*s->spans))) {
        s->failed = true;
        return;
    }
    s->spans_room = room;
    s->spans[s->nspans++] = (struct sim_span){.op = t->op,
                                              .workgroup = (uint32_t)(w - s->workgroups) - t->first,
                                              .kind = t->plan ? t->plan->slices[w->slice].kind : SLICE_COMPUTE,
                                              .wait_s = seconds(w->wait),
                                              .begin_s = seconds(w->begin),
                                              .end_s = seconds(s->now)};
}

const struct sim_span *sim_spans(const struct sim *s, size_t *n)
{
    *n = s->nspans;
    return s->spans;
}

const struct sim_rate *sim_rates(const struct sim *s, size_t *n)
{
    *n = s->nrates;
    return s->rates;
}
