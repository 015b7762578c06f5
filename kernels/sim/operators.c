/* SPDX-License-Identifier: MIT
 *
 * operators.c - operators are added, their plans made, and their tasks begin and end: one for each rank.
 *
 * A rank begins operators in the order in which they were added, as the worker gives all ranks one order: the next one when it has ended those that it is
 * said to come after, and its device has workgroups left. The ranks of a node begin an operator together, when all of them that take part have come. Groups whose
 * ranks lie on nodes in the same way have the same plans, which are made once; so have operators of the same problem and schedule.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/inside.h"

/* ---- adding ---- */

static int operator_check(const struct sim *s, const struct sim_operator *o, struct error *e)
{
    if (o->size < 1 || o->stride < 1 || s->nranks % ((int64_t)o->size * o->stride))
        return error_set(e, -EINVAL, "%s: groups of %d ranks, %d apart: allowed are such as divide %d ranks", o->name, o->size,
                         o->stride, s->nranks);
    if (!(o->share > 0 && o->share <= 1))
        return error_set(e, -EINVAL, "%s: share: allowed is more than 0, at most 1", o->name);
    for (int i = 0; i < o->nafter; i++)
        if (o->after[i] < 0 || (uint32_t)o->after[i] >= s->noperators)
            return error_set(e, -EINVAL, "%s: comes after operator %d, which is not there yet", o->name, o->after[i]);
    if (o->problem && o->problem->nranks != o->size)
        return error_set(e, -EINVAL, "%s: a problem of %d ranks in groups of %d", o->name, o->problem->nranks, o->size);
    return 0;
}

static void pattern_free(struct pattern *p, int size)
{
    for (int i = 0; p->plans && i < size; i++)
        plan_free(p->plans[i]);
    free(p->plans);
    free(p->node_of);
    problem_free(p->problem);
}

/* Nodes of a group's ranks, counted from the first rank's. */
static void nodes_set(const struct sim *s, const struct sim_operator *o, int group, int32_t out[])
{
    for (int i = 0; i < o->size; i++)
        out[i] = node_of(s, rank_of(o, group, i)) - node_of(s, rank_of(o, group, 0));
}

static int plans_make(struct pattern *p, const struct sim_operator *o, struct error *e)
{
    for (int i = 0; i < o->size; i++) {
        struct error why = {0};
        if (plan_make(p->problem, i, &o->schedule, &p->plans[i], &why))
            return error_set(e, why.status, "%s: rank %d: %s", o->name, i, why.text);
        struct plan *plan = p->plans[i];
        struct slice *fit =
            plan->nslices ? realloc(plan->slices, plan->nslices * sizeof(*fit)) : NULL; /* what grew by doubling */
        plan->slices = fit ? fit : plan->slices;
    }
    return 0;
}

static int pattern_add(struct operator* op, const int32_t nodes[], struct plan *plans[], struct error *e)
{
    const struct sim_operator *o = &op->said;
    struct pattern *grown = realloc(op->patterns, (op->npatterns + 1) * sizeof(*grown));

    if (!grown)
        return error_set(e, -ENOMEM, "%s: no memory for plans", o->name);
    op->patterns = grown;
    struct pattern *p = &grown[op->npatterns++];
    *p = (struct pattern){.node_of = malloc((size_t)o->size * sizeof(int32_t)),
                          .problem = problem_copy(o->problem),
                          .plans = calloc((size_t)o->size, sizeof(struct plan *))};
    if (!p->node_of || !p->problem || !p->plans)
        return error_set(e, -ENOMEM, "%s: no memory for plans", o->name);
    memcpy(p->node_of, nodes, (size_t)o->size * sizeof(int32_t));
    memcpy(p->problem->node_of, nodes, (size_t)o->size * sizeof(int32_t));
    if (!plans)
        return plans_make(p, o, e);
    memcpy(p->plans, plans, (size_t)o->size * sizeof(struct plan *));
    return 0;
}

/* An operator with the same problem, schedule and groups, whose plans serve again. */
static const struct operator* like_find(const struct sim *s, const struct sim_operator *o)
{
    for (uint32_t i = 0; i < s->noperators; i++) {
        const struct sim_operator *a = &s->operators[i].said;
        if (a->problem == o->problem && a->size == o->size && a->stride == o->stride &&
            !memcmp(&a->schedule, &o->schedule, sizeof(a->schedule)))
            return &s->operators[i];
    }
    return NULL;
}

static int patterns_make(struct sim *s, struct operator* op, struct plan *plans[], struct error *e)
{
    const struct sim_operator *o = &op->said;
    const struct operator* like = plans ? NULL : like_find(s, o);
    int status = 0;

    op->ngroups = (uint32_t)(s->nranks / o->size);
    op->pattern_of = calloc(op->ngroups, sizeof(*op->pattern_of));
    if (!op->pattern_of)
        return error_set(e, -ENOMEM, "%s: no memory for its groups", o->name);
    if (like) {
        op->borrows = true;
        op->patterns = like->patterns;
        op->npatterns = like->npatterns;
        memcpy(op->pattern_of, like->pattern_of, op->ngroups * sizeof(*op->pattern_of));
        return 0;
    }
    int32_t *nodes = malloc((size_t)o->size * sizeof(*nodes));
    if (!nodes)
        return error_set(e, -ENOMEM, "%s: no memory for its groups", o->name);
    for (uint32_t g = 0; !status && g < op->ngroups; g++) {
        uint32_t i = 0;
        nodes_set(s, o, (int)g, nodes);
        while (i < op->npatterns && memcmp(op->patterns[i].node_of, nodes, (size_t)o->size * sizeof(*nodes)) != 0)
            i++;
        if (i == op->npatterns)
            status = pattern_add(op, nodes, plans, e);
        op->pattern_of[g] = i;
    }
    free(nodes);
    return status;
}

/* Whether the engine runs it, by the worker's own rule. */
static bool runs_inline(const struct sim *s, const struct operator* op)
{
    struct work sum = {0};
    const struct problem *p = op->said.problem;

    if (!(s->m.device.inline_s > 0) || s->m.device.target != PLAN_CPU || !p || plan_is_over_nodes(op->patterns[0].problem))
        return false;
    for (int r = 0; r < p->nranks; r++) {
        const struct work work = plan_work(p, r);
        sum.bytes += work.bytes;
        sum.flops += work.flops;
    }
    return work_core_ns(sum, p->dtype) < WORK_INLINE_NS;
}

static int tasks_add(struct sim *s, struct operator* op, struct error *e)
{
    const uint32_t n = (uint32_t)s->nranks, number = s->noperators;
    struct task *tasks = realloc(s->tasks, (s->ntasks + n) * sizeof(*tasks));

    if (!tasks)
        return error_set(e, -ENOMEM, "%s: no memory for %u ranks", op->said.name, n);
    s->tasks = tasks;
    op->first = s->ntasks;
    op->left = n;
    for (uint32_t r = 0; r < n; r++) {
        struct task *t = &tasks[s->ntasks++];
        *t = (struct task){.op = number,
                           .group = (uint32_t)group_of(&op->said, (int)r),
                           .rank = (int)r,
                           .place = place_in_group(&op->said, (int)r),
                           .blocked = NONE,
                           .idle = NONE};
        if (!op->npatterns)
            continue;
        const struct pattern *p = &op->patterns[op->pattern_of[t->group]];
        t->plan = p->plans[t->place];
        task_costs(s, op, p->problem, t);
    }
    return 0;
}

int sim_add_plans(struct sim *s, const struct sim_operator *o, struct plan *plans[], struct error *e)
{
    if (operator_check(s, o, e))
        return e->status;
    if (!array_room(&s->operators, s->noperators, &s->operators_room, sizeof(*s->operators)))
        return error_set(e, -ENOMEM, "%s: no memory", o->name);
    struct operator* op = & s->operators[s->noperators];
    *op = (struct operator){.said = *o, .come = calloc((size_t)s->nranks, sizeof(*op->come))};
    op->workgroups = (uint32_t)(s->m.device.workgroups * o->share);
    op->workgroups = op->workgroups > 0 ? op->workgroups : 1;
    int status = op->come ? 0 : error_set(e, -ENOMEM, "%s: no memory", o->name);
    if (!status && o->problem)
        status = patterns_make(s, op, plans, e);
    op->is_inline = !status && runs_inline(s, op);
    if (!status)
        status = tasks_add(s, op, e);
    s->noperators++; /* whatever it has is freed with the others */
    return status ? status : (int)s->noperators - 1;
}

int sim_add(struct sim *s, const struct sim_operator *o, struct error *e)
{
    return sim_add_plans(s, o, NULL, e);
}

/* ---- begin and end ---- */

bool task_flags(struct sim *s, uint32_t task)
{
    struct task *t = &s->tasks[task];

    if (t->flags || !t->plan)
        return true;
    t->flags = calloc(t->plan->nflags / 8 + 1, 1);
    t->left = malloc((t->plan->ngroups + 1) * sizeof(*t->left));
    s->failed |= !t->flags || !t->left;
    for (uint32_t i = 0; t->left && i < t->plan->ngroups; i++)
        t->left[i] = t->plan->groups[i].slices;
    return !s->failed;
}

/* The first rank of the group on this rank's node, and how many there are. */
static int node_part(const struct sim *s, const struct sim_operator *o, int rank, int *n)
{
    const int group = group_of(o, rank);
    int first = place_in_group(o, rank), end = first + 1;

    while (first > 0 && node_of(s, rank_of(o, group, first - 1)) == node_of(s, rank))
        first--;
    while (end < o->size && node_of(s, rank_of(o, group, end)) == node_of(s, rank))
        end++;
    *n = end - first;
    return rank_of(o, group, first);
}

/* A rank has come to an operator. When all of its node have, they begin. */
static void task_come(struct sim *s, struct operator* op, int rank)
{
    const struct sim_operator *o = &op->said;
    const double wait = (op->is_inline ? s->m.device.inline_s : s->m.device.hand_over_s) + s->m.device.launch_s +
                        (s->tasks[op->first + (uint32_t)rank].tile_s > 0 ? s->m.device.tile_begin_s : 0);
    int n = 1, first = rank;

    s->tasks[op->first + (uint32_t)rank].begin = s->now;
    if (o->problem)
        first = node_part(s, o, rank, &n);
    if (++op->come[first] < (uint32_t)n)
        return;
    for (int i = 0; i < n; i++) {
        const int r = first + i * o->stride;
        const double late = s->m.stragglers.start_s > 0
                                ? s->m.stragglers.start_s * random_of(s, (uint64_t)r, (uint64_t)op->first << 20 | 1u)
                                : 0;
        (void)event_put(s, EVENT_START, op->first + (uint32_t)r, ps_after(s->now, ps_of(wait + late)));
    }
}

void rank_go(struct sim *s, int rank)
{
    uint32_t *next = &s->next_operator[rank];

    for (; *next < s->noperators; ++*next) {
        struct operator* op = & s->operators[*next];
        for (int i = 0; i < op->said.nafter; i++)
            if (!s->tasks[s->operators[op->said.after[i]].first + (uint32_t)rank].ended)
                return;
        if (s->free_workgroups[rank] < op->workgroups)
            return;
        s->free_workgroups[rank] -= op->workgroups;
        task_come(s, op, rank);
    }
}

void task_finish(struct sim *s, uint32_t task)
{
    struct task *t = &s->tasks[task];
    struct operator* op = & s->operators[t->op];

    t->ended = true;
    t->end = s->now;
    s->tasks_left--;
    op->left--;
    free(t->flags);
    free(t->left);
    t->flags = NULL;
    t->left = NULL;
    s->free_workgroups[t->rank] += op->workgroups;
    rank_go(s, t->rank);
}

/* ---- a simulation ---- */

static void tables_free(struct sim *s)
{
    for (uint32_t i = 0; i < s->nlinks && s->links; i++) {
        free(s->links[i].flows);
        free(s->links[i].held);
    }
    for (uint32_t i = 0; i < s->nmemories && s->memories; i++) {
        for (uint32_t c = 0; c < s->memories[i].n; c++)
            free(s->memories[i].classes[c].jobs);
        free(s->memories[i].classes);
    }
    for (int i = 0; s->adapters && i < s->m.nodes * s->m.node.rails; i++)
        free(s->adapters[i].ring);
    for (uint32_t i = 0; i < s->ntasks; i++) {
        free(s->tasks[i].flags);
        free(s->tasks[i].left);
    }
    for (uint32_t i = 0; i < s->noperators; i++) {
        struct operator* op = & s->operators[i];
        for (uint32_t k = 0; !op->borrows && k < op->npatterns; k++)
            pattern_free(&op->patterns[k], op->said.size);
        if (!op->borrows)
            free(op->patterns);
        free(op->pattern_of);
        free(op->come);
    }
}

void sim_free(struct sim *s)
{
    if (!s)
        return;
    tables_free(s);
    events_free(s);
    void *const parts[] = {s->links,          s->gauges,     s->found,    s->carried,         s->paces,         s->hops,
                           s->hop_at,         s->flows,      s->memories, s->flows_free,      s->dirty_links,   s->timed_links,
                           s->dirty_memories, s->limits,     s->next_hop, s->torus_at,        s->link_to,       s->homes,
                           s->adapters,       s->proxies,    s->looking,  s->free_workgroups, s->next_operator, s->operators,
                           s->tasks,          s->workgroups, s->messages, s->spans,           s->rates,         s};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        free(parts[i]);
}

static int machine_check(const struct sim_machine *m, struct error *e)
{
    if (m->nodes < 1 || m->nodes > SIM_MAX_NODES)
        return error_set(e, -EINVAL, "nodes: %d: allowed are 1 to %d", m->nodes, SIM_MAX_NODES);
    if (m->node.ranks < 1 || (int64_t)m->node.ranks * m->nodes > SIM_MAX_RANKS)
        return error_set(e, -EINVAL, "ranks: %d on each of %d nodes: allowed are %d ranks in all", m->node.ranks, m->nodes,
                         SIM_MAX_RANKS);
    if (m->node.rails < 1 || m->node.rails > m->node.ranks)
        return error_set(e, -EINVAL, "rails: %d: allowed are 1 to %d, the ranks of a node", m->node.rails, m->node.ranks);
    if (m->device.workgroups < 1 || m->device.workgroups > 4096)
        return error_set(e, -EINVAL, "workgroups: %u: allowed are 1 to 4096", m->device.workgroups);
    if (!(m->device.memory_bytes_s > 0) || (m->nodes > 1 && !(m->fabric.bytes_s > 0)))
        return error_set(e, -EINVAL, "a memory or an adapter without bandwidth");
    if (m->node.ranks > 1 && m->node.link != SIM_LINK_MEMORY && !(m->node.link_bytes_s > 0))
        return error_set(e, -EINVAL, "a node's links without bandwidth");
    if (m->fabric.in_flight < 1 || m->fabric.in_flight > SIM_MAX_FLYING)
        return error_set(e, -EINVAL, "in_flight: %d: allowed are 1 to %d", m->fabric.in_flight, SIM_MAX_FLYING);
    return 0;
}

/* Makes what ranks and adapters are. What has been made when it fails is sim_free()'s. */
static int machine_make(struct sim *s, struct error *e)
{
    const struct sim_machine *m = &s->m;
    const size_t ranks = (size_t)s->nranks, adapters = (size_t)m->nodes * (size_t)m->node.rails;

    s->nmemories = (uint32_t)(m->node.shared_memory ? m->nodes : s->nranks);
    s->memories = aligned_alloc(sizeof(*s->memories), (s->nmemories + 1) * sizeof(*s->memories));
    if (s->memories)
        memset(s->memories, 0, (s->nmemories + 1) * sizeof(*s->memories));
    s->dirty_memories = calloc(s->nmemories, sizeof(*s->dirty_memories));
    s->homes = calloc(ranks, sizeof(*s->homes));
    s->adapters = calloc(adapters, sizeof(*s->adapters));
    s->proxies = calloc((size_t)m->nodes, sizeof(*s->proxies));
    s->looking = calloc((size_t)m->nodes, sizeof(*s->looking));
    s->free_workgroups = calloc(ranks, sizeof(*s->free_workgroups));
    s->next_operator = calloc(ranks, sizeof(*s->next_operator));
    if (!s->memories || !s->dirty_memories || !s->homes || !s->adapters || !s->proxies || !s->looking || !s->free_workgroups ||
        !s->next_operator)
        return error_set(e, -ENOMEM, "no memory for %d ranks", s->nranks);
    for (uint32_t i = 0; i <= s->nmemories; i++)
        s->memories[i] = (struct memory){.bytes_s = m->device.memory_bytes_s};
    for (int i = 0; i < s->nranks; i++) {
        const int node = i / m->node.ranks;
        s->homes[i] = (struct home){.node = node,
                                    .memory = (uint32_t)(m->node.shared_memory ? node : i),
                                    .adapter = (uint32_t)(node * m->node.rails + i % m->node.ranks % m->node.rails)};
        s->free_workgroups[i] = m->device.workgroups;
    }
    for (int i = 0; i < m->nodes; i++)
        s->proxies[i].first = s->proxies[i].last = NONE;
    for (size_t i = 0; i < adapters; i++) {
        struct adapter *a = &s->adapters[i];
        a->node = (int)i / m->node.rails;
        a->rail = (int)i % m->node.rails;
        a->left = NOWHERE;
        a->empty = UINT64_MAX;
    }
    return fabric_make(s, e);
}

int sim_new(const struct sim_machine *machine, uint64_t seed, struct sim **out, struct error *e)
{
    if (machine_check(machine, e))
        return e->status;
    struct sim *s = calloc(1, sizeof(*s));
    if (!s)
        return error_set(e, -ENOMEM, "no memory for a simulation");
    s->m = *machine;
    s->seed = seed;
    s->nranks = machine->node.ranks * machine->nodes;
    s->messages_free = NONE;
    s->stopped.flow = NONE;
    s->traced = -1;
    s->traced_link = NONE;
    const int status = machine_make(s, e);
    if (status) {
        sim_free(s);
        return status;
    }
    *out = s;
    return 0;
}
