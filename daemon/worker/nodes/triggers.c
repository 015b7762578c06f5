/* SPDX-License-Identifier: MIT
 *
 * triggers.c - pushes the triggers of launches, and tells the proxy what to send for each.
 *
 * A slice for a remote rank is stored into that rank's bounce buffer here, unless it lies somewhere else as it is to be sent (struct put_area:
 * from). Then the workgroup pushes a trigger, from which the proxy thread
 * finds (put_resolve()) the area of the bounce buffer and its destination. A flag's trigger is pushed after those of all slices of its group
 * (the countdown of slice_signal() orders them), so the flag follows their data. The last workgroup to leave a launch pushes END. The launch
 * is handed back to the engine when the proxy has sent everything before END, so bounce buffers are not overwritten before.
 */
#include <errno.h>
#include <stdlib.h>

#include "daemon/worker/device/device.h"
#include "daemon/worker/nodes/inside.h"
#include "daemon/worker/nodes/puts.h"
#include "proto/base/clock.h"

static_assert(PLAN_MAX_SLICES - 1u <= FCC_TRIGGER_NUMBER, "a slice has a number");

/* ---- the proxy's thread ---- */

/* False: there is nothing to send. */
static bool put_resolve(const struct entry *entry, const struct fcc_trigger *t, struct proxy_send *out)
{
    const struct launch *l = entry->launch;

    assert(l); /* only launches push PUT */
    const struct run *run = &l->runs[t->rank].run;
    const struct slice *s = &run->plan->slices[t->what & FCC_TRIGGER_NUMBER];
    const unsigned char *base = l->staging[t->dst];
    struct put_area area;

    cpu_slice_area(run, s, t->dst, &area);
    if (!area.planes || !area.rows || !area.row_bytes)
        return false;
    out->to.region = NET_STAGING;
    if (area.tensor != PUT_STAGING) {
        const struct buffer *b = l->submissions[t->dst]->buffers[area.tensor];
        out->to.region = b->handle;
        base = b->memory.data;
    } else { /* a rank's staging memory may be replaced by a larger one: its size tells which. Buffers' handles are not used again */
        out->to.version = launch_comm(l)->members[t->dst].dev->staging.bytes;
    }
    out->from =
        area.from ? area.from : area.at; /* until END has come back, neither an input nor a result is the client's again */
    out->to.offset = (uint64_t)(area.at - base);
    out->area = (struct net_area){.row_bytes = area.row_bytes, .stride = area.row_stride, .rows = area.rows};
    out->more = area.planes - 1;
    out->plane_bytes = area.plane_bytes;
    return true;
}

/* The number of turns of which the trigger has the lower half. entry->turns is this one (the pop has acquired what was stored before the push), or
 * a later one, by less than 2^32. The last DONE says nothing: requests may have stood for any number of them since. */
static uint64_t turns_complete(const struct entry *entry, uint32_t low)
{
    uint64_t turns = atomic_load_explicit(&entry->turns, memory_order_relaxed);

    return turns - ((uint32_t)turns - low);
}

bool nodes_resolve(void *ctx, const struct fcc_trigger *t, struct proxy_send *out)
{
    struct nodes_data *d = ctx;
    struct entry *entry = &d->entries[t->launch - 1];
    const struct entry *comm = entry->launch ? &d->entries[launch_comm(entry->launch)->nodes->channel - 1] : entry;

    if (entry->launch && atomic_load_explicit(entry->launch->status, memory_order_relaxed))
        return false; /* the launch has failed: no rank waits for its data */
    out->node = comm->ranks[t->dst].peer;
    out->rail = nodes_rail_of(d, out->node, comm->ranks[t->rank].source);
    out->to.comm = comm->ranks[t->dst].comm;
    out->to.rank = t->dst;
    if ((t->what & FCC_TRIGGER_KIND) == FCC_TRIGGER_PUT)
        return put_resolve(entry, t, out);
    out->flag = t->what & FCC_TRIGGER_NUMBER;
    out->epoch = entry->launch ? entry->launch->epoch : turns_complete(entry, t->epoch);
    return true;
}

void nodes_done(void *ctx, uint32_t number)
{
    struct nodes_data *d = ctx;
    struct entry *entry = &d->entries[number - 1];

    if (entry->launch) {
        worker_launch_finished(d->worker, &entry->launch->finished);
    } else if (entry->puts) {
        puts_end(entry->puts);
        nodes_news_post(d);
    } else {
        atomic_store_explicit(&entry->used, false, memory_order_release);
    }
}

/* ---- the engine's ---- */

/* Take a free entry. Returns its number. 0: there is none. */
static uint32_t entry_new(struct nodes_data *d)
{
    for (uint32_t i = 0; i < ENTRIES; i++) {
        struct entry *entry = &d->entries[i];
        if (atomic_load_explicit(&entry->used, memory_order_acquire))
            continue;
        free(entry->ranks); /* the proxy no longer uses the entry's previous owner (acquire) */
        entry->ranks = NULL;
        entry->launch = NULL;
        entry->puts = NULL;
        atomic_store_explicit(&entry->turns, 0, memory_order_relaxed);
        atomic_store_explicit(&entry->used, true, memory_order_relaxed);
        return i + 1;
    }
    return 0;
}

void nodes_channel_peers(const struct comm *c)
{
    if (!c->nodes->channel)
        return;
    struct entry *entry = &c->worker->data->entries[c->nodes->channel - 1];
    for (int r = 0; r < c->nranks; r++)
        entry->ranks[r].peer = c->members[r].peer ? (uint8_t)c->members[r].peer->index : 0;
}

int nodes_channel_open(struct comm *c, struct error *e)
{
    struct comm_nodes *n = c->nodes;
    struct entry *entry;

    if (n->node < 0)
        return 0; /* no rank is here: this node sends nothing */
    n->channel = entry_new(c->worker->data);
    if (!n->channel)
        return error_set(e, -ENOMEM, "%u communicators over several nodes and their operators are open already", ENTRIES);
    entry = &c->worker->data->entries[n->channel - 1];
    entry->ranks = calloc((size_t)c->nranks, sizeof(entry->ranks[0]));
    if (!entry->ranks) {
        atomic_store_explicit(&entry->used, false, memory_order_relaxed);
        n->channel = 0;
        return error_set(e, -ENOMEM, "no memory for %d ranks over several nodes", c->nranks);
    }
    nodes_channel_peers(c);
    for (int r = 0; r < c->nranks; r++) {
        entry->ranks[r].comm = nodes_memory_there(&c->members[r]);
        entry->ranks[r].source = nodes_source(&c->members[r]);
    }
    return 0;
}

/* If the engine leads the proxy, it makes room itself; otherwise the proxy's thread does. */
static void push(struct worker *w, const struct fcc_trigger *t)
{
    while (!fifo_has_room(w->data->fifo) && proxy_leads(w->data->proxy))
        if (!proxy_drive(w->data->proxy))
            spin_pause();
    (void)fifo_push(w->data->fifo, *t, NULL);
}

void nodes_channel_close(struct comm *c)
{
    if (c->nodes->channel) /* triggers that name the entry may be queued: END frees it behind them */
        push(c->worker, &(struct fcc_trigger){.launch = c->nodes->channel, .what = FCC_TRIGGER_END});
    c->nodes->channel = 0;
}

/* Before a trigger with that number is pushed. */
static void turns_note(const struct comm *c)
{
    const struct comm_nodes *n = c->nodes;

    if (n->channel)
        atomic_store_explicit(&c->worker->data->entries[n->channel - 1].turns, n->turns, memory_order_relaxed);
}

void nodes_done_send(struct comm *c)
{
    const struct comm_nodes *n = c->nodes;
    struct fcc_trigger t = {.launch = n->channel, .epoch = (uint32_t)n->turns};

    turns_note(c);
    for (int i = 0; n->channel && i < n->npeers; i++) {
        uint16_t ranks[NET_RAILS_MAX];
        uint32_t rails = nodes_rails_used(c, n->peers[i], ranks);
        t.dst = (uint16_t)n->peer_rank[i];
        for (uint32_t r = 0; r < rails; r++) {
            t.rank = ranks[r];
            t.what = FCC_TRIGGER_FLAG | (FLAG_DONE + done_number((uint32_t)n->node, rails, r));
            push(c->worker, &t);
        }
    }
}

bool nodes_messages_follow(const struct comm *c)
{
    const struct comm_nodes *n = c->nodes;
    uint16_t ranks[NET_RAILS_MAX];
    bool follow = n->channel && c->dev.ops->number == FCC_DEVICE_CPU; /* for a GPU, DONE waits for copies */

    for (int i = 0; i < n->npeers; i++)
        follow &= n->peers[i]->by_rail && nodes_rails_used(c, n->peers[i], ranks) == 1 &&
                  nodes_rail(&c->members[ranks[0]], n->peers[i]) == 0;
    return follow;
}

void nodes_left_send(const struct comm *c, int rank)
{
    const struct comm_nodes *n = c->nodes;
    struct fcc_trigger t = {.launch = n->channel,
                            .rank = (uint16_t)rank,
                            .what = FCC_TRIGGER_FLAG | (FLAG_LEFT + (uint32_t)rank),
                            .epoch = (uint32_t)n->turns};

    turns_note(c);
    for (int i = 0; n->channel && i < n->npeers; i++) {
        t.dst = (uint16_t)n->peer_rank[i];
        push(c->worker, &t);
    }
}

/* ---- puts of programs' kernels ---- */

struct puts_all *nodes_puts(const struct worker *w)
{
    return w->data ? w->data->puts : NULL;
}

int nodes_puts_enter(struct worker *w, struct puts *p, uint32_t *entry, struct error *e)
{
    uint32_t number = entry_new(w->data);

    if (!number)
        return error_set(e, -ENOMEM, "%u communicators over several nodes and their operators are open already", ENTRIES);
    w->data->entries[number - 1].puts = p;
    *entry = number;
    return 0;
}

void nodes_puts_leave(struct worker *w, uint32_t entry)
{
    atomic_store_explicit(&w->data->entries[entry - 1].used, false, memory_order_relaxed);
}

void nodes_puts_push_end(struct worker *w, uint32_t entry)
{
    push(w, &(struct fcc_trigger){.launch = entry, .what = FCC_TRIGGER_END});
}

void nodes_puts_look(struct worker *w)
{
    proxy_look(w->data->proxy);
}

void nodes_puts_news(const struct worker *w)
{
    nodes_news_post(w->data);
}

int nodes_launch_open(struct launch *l, struct error *e)
{
    l->nodes_number = entry_new(l->worker->data);
    if (!l->nodes_number)
        return error_set(e, -ENOMEM, "%u communicators over several nodes and their operators are open already", ENTRIES);
    l->worker->data->entries[l->nodes_number - 1].launch = l;
    l->engine_sends = proxy_leads(l->worker->data->proxy);
    return 0;
}

void nodes_launch_close(struct launch *l)
{
    if (l->nodes_number)
        atomic_store_explicit(&l->worker->data->entries[l->nodes_number - 1].used, false, memory_order_relaxed);
    l->nodes_number = 0;
}

/* ---- workgroups ---- */

static void launch_put(struct launch *l, const struct launch_run *r, uint32_t slice)
{
    const struct slice *s = &r->plan->slices[slice];
    struct fcc_trigger t = {
        .launch = l->nodes_number, .rank = (uint16_t)r->run.rank, .what = FCC_TRIGGER_PUT | slice, .epoch = (uint32_t)l->epoch};

    if (!slice_puts(s->kind))
        return; /* the slice's result stays on the rank */
    bool one = s->dst != SLICE_DST_ALL && !(s->dst & SLICE_DST_SET);
    for (int i = 1; i <= (one ? 1 : l->nranks); i++) {
        int dst = one ? s->dst : (r->run.rank + i) % l->nranks;
        if (l->runs[dst].device || !plan_reaches(r->plan, s->dst, dst))
            continue;
        t.dst = (uint16_t)dst;
        if (!fifo_push(l->worker->data->fifo, t, (const _Atomic uint32_t *)l->status))
            return; /* the operator has failed */
    }
}

static void launch_flag(struct launch *l, const struct launch_run *r, int dst, uint32_t flag)
{
    struct fcc_trigger t = {.launch = l->nodes_number,
                            .rank = (uint16_t)r->run.rank,
                            .dst = (uint16_t)dst,
                            .what = FCC_TRIGGER_FLAG | flag,
                            .epoch = (uint32_t)l->epoch};

    (void)fifo_push(l->worker->data->fifo, t, (const _Atomic uint32_t *)l->status);
}

static void launch_left(struct launch *l)
{
    l->left = true;
    l->computed_ns = clock_ns();
    if (proxy_has_sent(l->worker->data->proxy))
        worker_launch_finished(l->worker, &l->finished);
    else
        push(l->worker, &(struct fcc_trigger){.launch = l->nodes_number, .what = FCC_TRIGGER_END});
}

/* Half of the FIFO: a slice pushes two triggers for each rank at most. */
static bool launch_has_room(const struct launch *l)
{
    const struct fifo *f = l->worker->data->fifo;
    uint64_t tail = atomic_load_explicit(&f->tail, memory_order_acquire);

    return atomic_load_explicit(&f->head, memory_order_relaxed) - tail < f->capacity / 2;
}

static void launch_kernels(struct launch *l, bool run)
{
    proxy_stay_awake(l->worker->data->proxy, run);
}

const struct launch_ops nodes_launch_ops = {
    .ended = launch_left, .put = launch_put, .flag = launch_flag, .has_room = launch_has_room, .kernels = launch_kernels};
