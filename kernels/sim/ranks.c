/* SPDX-License-Identifier: MIT
 *
 * ranks.c - the workgroups of a rank take the slices of its plan in order, each slice once, as on every device.
 *
 * What a slice does, one after the other: waits for its flags; costs its workgroup what every slice costs; reads other ranks' memory, if it does; computes,
 * reads and writes its own memory, at the pace of whichever is slower; stores over the links of the node. Messages for other nodes are the proxy's. Then
 * it has finished, and the last slice of a signal group raises the group's flag.
 *
 * On GPUs over several nodes an operator is up to three kernels (daemon/worker/device/gpu/steps.c): slices of a later one begin when all slices of the ones
 * before have finished and the flags that theirs wait for, but from ranks here, have come.
 */
#include <string.h>

#include "kernels/sim/inside.h"

/* ROOM: it waits until its stores before have ended. STORED: it waits for its stores. TAKEN: it waits for flags, or for nothing. */
enum phase { PHASE_COST, PHASE_PULL, PHASE_WORK, PHASE_ROOM, PHASE_STORED, PHASE_TAKEN };

#define SLICES_AHEAD 4

bool flag_has(const struct task *t, uint32_t flag)
{
    return t->flags && t->flags[flag / 8] >> flag % 8 & 1;
}

static const struct slice *slice_of(const struct task *t, uint32_t i)
{
    return &t->plan->slices[i];
}

/* ---- steps ---- */

static bool has_steps(const struct sim *s, const struct task *t)
{
    return s->m.device.target == PLAN_GPU && plan_is_over_nodes(t->costs.problem);
}

static uint32_t step_of(const struct slice *s)
{
    if (s->kind == SLICE_WAIT || s->kind == SLICE_FORWARD || s->kind == SLICE_ROWS ||
        (s->kind == SLICE_COMPUTE_PUT && s->wait_count && !s->is_here))
        return 2;
    return s->kind == SLICE_REDUCE;
}

/* Looks whether the next step may begin: from the first slice that nobody has taken on, which is its first. */
static void step_look(struct sim *s, uint32_t task)
{
    struct task *t = &s->tasks[task];

    if (!t->begun || t->ended || t->step_asked || t->idle == NONE || t->done < t->next)
        return;
    if (t->step_slice < t->next)
        t->step_slice = t->next;
    const uint32_t step = step_of(slice_of(t, t->next));
    for (; t->step_slice < t->plan->nslices && step_of(slice_of(t, t->step_slice)) == step; t->step_slice++, t->step_wait = 0) {
        const struct slice *slice = slice_of(t, t->step_slice);
        for (; !slice->is_here && t->step_wait < slice->wait_count; t->step_wait++)
            if (!flag_has(t, slice->wait_first + t->step_wait * slice->wait_stride))
                return;
    }
    t->step_asked = true;
    (void)event_put(s, EVENT_STEP, task, ps_after(s->now, ps_of(s->m.device.step_s)));
}

/* ---- slices ---- */

/* It adds partial sums, and computes nothing else. */
static bool slice_adds(const struct slice *slice)
{
    return slice->kind == SLICE_REDUCE || slice->kind == SLICE_REDUCE_NODE;
}

/* A slice's share of the device: what its workgroup computes and moves in a second, at most. cost: NULL where a rank computes by itself. */
static void work_begin(struct sim *s, uint32_t workgroup, const struct slice_cost *cost)
{
    struct workgroup *w = &s->workgroups[workgroup];
    const struct task *t = &s->tasks[w->task];
    const struct sim_device *d = &s->m.device;
    const struct sim_operator *o = &s->operators[t->op].said;
    double flops = o->flops, bytes = o->bytes, waits = 0, most = d->memory_bytes_s * o->share,
           rate = d->flops_s[o->compute] * o->share;
    double exposed = d->exposed, longer = spread_of(s, s->m.stragglers.rank_spread, (uint64_t)t->rank, 1);

    if (cost) {
        const struct slice *slice = slice_of(t, w->slice);
        flops = cost->flops + cost->added;
        if (s->m.node.link == SIM_LINK_MEMORY && s->m.node.link_bytes_s > 0)
            waits = cost->fresh / s->m.node.link_bytes_s;
        const double moved = cost->read + slice_stored_here(s, t, slice, cost->payload) +
                             (s->m.node.link == SIM_LINK_MEMORY ? cost->pulled * (t->plan->nranks - 1) : 0);
        bytes = moved - cost->read * t->found;
        most = d->workgroup_bytes_s > 0 ? d->workgroup_bytes_s : d->memory_bytes_s;
        if (cost->is_random && d->table_bytes_s > 0) {
            most = d->table_bytes_s < most ? d->table_bytes_s : most;
            exposed = 0;
        }
        most *= t->found > 0 ? bytes / moved : 1; /* what a cache has takes its workgroup as long, and memory nothing */
        rate = slice_adds(slice) ? t->adds_s : t->flops_s;
        bytes *= t->of_memory; /* cores of a node have one cache */
        longer *= s->operators[t->op].is_inline ? t->plan->nranks : 1;
        longer *= spread_of(s, s->m.stragglers.slice_spread, (uint64_t)t->op << 32 | (uint64_t)t->rank, w->slice + UINT64_C(2));
    }
    const double computing = cost && t->tile_s > 0 && cost->flops > 0 && !slice_adds(slice_of(t, w->slice)) ? t->tile_s
                             : rate > 0 && flops > 0                                                        ? flops / rate
                                                                                                            : 0;
    const double seconds = computing + waits;
    w->phase = PHASE_WORK;
    proxy_computing(s, (uint32_t)t->rank, true);
    if (!(bytes > 0)) {
        (void)event_put(s, EVENT_WORK, workgroup, ps_after(s->now, ps_of(seconds * longer)));
        return;
    }
    (void)job_begin(s, memory_of(s, t->rank), bytes * longer, cost_pace(bytes, seconds, most, exposed), workgroup);
}

static void slice_finished(struct sim *s, uint32_t workgroup, uint32_t number)
{
    struct workgroup *w = &s->workgroups[workgroup];
    struct task *t = &s->tasks[w->task];

    s->slices_done++;
    if (!t->plan) {
        task_finish(s, w->task);
        return;
    }
    const struct slice *slice = slice_of(t, number);
    t->done++;
    if (slice->group != SLICE_NO_GROUP && --t->left[slice->group] == 0)
        group_finished(s, w->task, slice->group, w->carries && w->stored == number ? slice : NULL);
    if (t->done == t->plan->nslices && !t->ended) /* raising the flag may have run the last slices */
        task_finish(s, w->task);
}

/* What a slice's workgroup does next: DONE: the slice has finished. NEXT: its stores go on, and the next slice may be taken. BUSY: neither yet. */
enum progress { BUSY, NEXT, DONE };

/* What every slice costs its workgroup, and each row that it stores; false: nothing. */
static bool slice_begins(struct sim *s, uint32_t workgroup, const struct slice *slice)
{
    struct workgroup *w = &s->workgroups[workgroup];
    const struct task *t = &s->tasks[w->task];
    const double row_s = s->m.device.row_s;
    const double cost_s = s->m.device.slice_s + (row_s > 0 ? row_s * slice_rows(&t->costs, slice) : 0);

    if (!(cost_s > 0))
        return false;
    w->phase = PHASE_COST;
    proxy_computing(s, (uint32_t)t->rank, true);
    if (row_s > 0) /* each slice has another time, so these are no lane's */
        (void)event_put(s, EVENT_WORK, workgroup, ps_after(s->now, ps_of(cost_s)));
    else
        (void)event_put_lane(s, LANE_SLICE, EVENT_WORK, workgroup, ps_of(cost_s));
    return true;
}

/* Goes through the phases that take no time. */
static enum progress phases_go(struct sim *s, uint32_t workgroup, enum phase phase)
{
    struct workgroup *w = &s->workgroups[workgroup];
    const struct task *t = &s->tasks[w->task];

    if (!t->plan) {
        if (phase < PHASE_ROOM)
            work_begin(s, workgroup, NULL);
        return phase < PHASE_ROOM ? BUSY : DONE;
    }
    const struct slice *slice = slice_of(t, w->slice);
    if (slice->kind == SLICE_WAIT)
        return DONE;
    if (phase == PHASE_COST && slice_begins(s, workgroup, slice))
        return BUSY;
    const struct slice_cost cost = slice_cost(&t->costs, slice);
    if (phase <= PHASE_PULL && cost.pulled > 0 && (w->pending = slice_pull(s, workgroup, cost.pulled))) {
        w->phase = PHASE_PULL;
        return BUSY;
    }
    if (phase <= PHASE_WORK) {
        work_begin(s, workgroup, &cost);
        return BUSY;
    }
    if (!slice_puts(slice->kind) || !(cost.payload > 0))
        return DONE;
    w->phase = PHASE_ROOM;
    if (w->storing)
        return BUSY;
    w->stored = w->slice;
    w->storing = slice_store(s, workgroup, cost.payload);
    w->phase = w->storing && s->m.device.stores_wait ? PHASE_STORED : PHASE_TAKEN;
    return !w->storing ? DONE : s->m.device.stores_wait ? BUSY : NEXT;
}

/* Goes on if all flags are there; otherwise the workgroup is on the list of those that wait. */
static bool flags_look(struct sim *s, uint32_t workgroup)
{
    struct workgroup *w = &s->workgroups[workgroup];
    const struct task *t = &s->tasks[w->task];
    const struct slice *slice = slice_of(t, w->slice);

    while (w->flag < slice->wait_count && flag_has(t, slice->wait_first + w->flag * slice->wait_stride))
        w->flag++;
    return w->flag == slice->wait_count;
}

/* Takes the next slice. Returns whether the workgroup can begin it; otherwise it is done, or on a list. */
static bool workgroup_take(struct sim *s, uint32_t workgroup)
{
    struct workgroup *w = &s->workgroups[workgroup];
    struct task *t = &s->tasks[w->task];

    if (!t->plan || t->next == t->plan->nslices)
        return false;
    if (has_steps(s, t) && step_of(slice_of(t, t->next)) > t->step) {
        w->next = t->idle;
        t->idle = workgroup;
        return false;
    }
    w->slice = t->next++;
    __builtin_prefetch(slice_of(t, t->next + SLICES_AHEAD)); /* there are more of them than caches have room for */
    w->wait = s->now;
    w->flag = 0;
    w->phase = PHASE_TAKEN;
    if (flags_look(s, workgroup))
        return true;
    w->next = t->blocked;
    t->blocked = workgroup;
    return false;
}

/* Begins the slice that the workgroup has taken, and takes further ones as long as they take no time. */
static void workgroup_run(struct sim *s, uint32_t workgroup)
{
    const uint32_t task = s->workgroups[workgroup].task;

    do {
        s->workgroups[workgroup].begin = s->now;
        const enum progress progress = phases_go(s, workgroup, PHASE_COST);
        if (progress == BUSY)
            return;
        if (progress == DONE)
            slice_finished(s, workgroup, s->workgroups[workgroup].slice);
    } while (workgroup_take(s, workgroup));
    step_look(s, task);
}

static void workgroup_next(struct sim *s, uint32_t workgroup)
{
    if (workgroup_take(s, workgroup))
        workgroup_run(s, workgroup);
    else
        step_look(s, s->workgroups[workgroup].task);
}

void workgroup_go(struct sim *s, uint32_t workgroup)
{
    struct workgroup *w = &s->workgroups[workgroup];
    enum progress progress = BUSY;

    if (w->phase == PHASE_COST || w->phase == PHASE_WORK)
        proxy_computing(s, (uint32_t)s->tasks[w->task].rank, false);
    if (w->phase == PHASE_COST) {
        progress = phases_go(s, workgroup, PHASE_PULL);
    } else if (w->phase == PHASE_WORK) {
        trace_span(s, w);
        progress = phases_go(s, workgroup, PHASE_ROOM);
    } else if (--w->pending == 0) { /* what it has read from other ranks is here */
        progress = phases_go(s, workgroup, PHASE_WORK);
    }
    if (progress == DONE)
        slice_finished(s, workgroup, w->slice);
    if (progress != BUSY)
        workgroup_next(s, workgroup);
}

void workgroup_stored(struct sim *s, uint32_t workgroup)
{
    struct workgroup *w = &s->workgroups[workgroup];
    const enum phase phase = (enum phase)w->phase;

    if (--w->storing)
        return;
    slice_finished(s, workgroup, w->stored);
    if (phase == PHASE_ROOM && w->phase == PHASE_ROOM && phases_go(s, workgroup, PHASE_ROOM) == DONE)
        slice_finished(s, workgroup, w->slice);
    if (phase == PHASE_STORED || (phase == PHASE_ROOM && w->phase == PHASE_TAKEN))
        workgroup_next(s, workgroup);
    else
        step_look(s, w->task); /* it may be the last that a step waited for */
}

void flag_raise(struct sim *s, uint32_t task, uint32_t flag)
{
    struct task *t = &s->tasks[task];
    uint32_t *at = &t->blocked, ready = NONE;

    if (t->ended || !task_flags(s, task))
        return;
    t->flags[flag / 8] |= (uint8_t)(1u << flag % 8);
    while (*at != NONE) {
        struct workgroup *w = &s->workgroups[*at];
        const struct slice *slice = slice_of(t, w->slice);
        const uint32_t i = *at;
        if (slice->wait_first + w->flag * slice->wait_stride != flag || !flags_look(s, i)) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        w->next = ready;
        ready = i;
    }
    for (uint32_t next; ready != NONE; ready = next) {
        next = s->workgroups[ready].next;
        workgroup_run(s, ready);
    }
    step_look(s, task);
}

void task_begin(struct sim *s, uint32_t task)
{
    struct task *t = &s->tasks[task];

    t->begun = true;
    if (!t->plan) {
        s->workgroups[t->first].begin = s->workgroups[t->first].wait = s->now;
        (void)phases_go(s, t->first, PHASE_COST);
        return;
    }
    if (!task_flags(s, task))
        return;
    for (uint32_t i = 0; i < t->workgroups && !t->ended; i++)
        if (workgroup_take(s, t->first + i))
            workgroup_run(s, t->first + i);
    step_look(s, task);
}

void task_step(struct sim *s, uint32_t task)
{
    struct task *t = &s->tasks[task];
    uint32_t idle = t->idle;

    t->step = step_of(slice_of(t, t->next));
    t->step_asked = false;
    t->idle = NONE;
    for (uint32_t next; idle != NONE; idle = next) {
        next = s->workgroups[idle].next;
        if (workgroup_take(s, idle))
            workgroup_run(s, idle);
    }
    step_look(s, task);
}
