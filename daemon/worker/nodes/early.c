/* SPDX-License-Identifier: MIT
 *
 * early.c - data that goes to other nodes with the request for its operator, before it is known whether that runs.
 *
 * Without this a rank's data waits until all nodes' requests have come: as long as a small operator takes. A rank that submits the same request as
 * some operators ago most likely takes part in the same operator again. So those slices of that operator's cached launch that are sent from the
 * rank's input as it is go at once, with their flags, as one sequence of frames with a head (net.h: struct net_early_head).
 *
 * At the receiver, if the operator has started there, the frames are handled as they come. Otherwise they are kept in memory that nobody else
 * writes, and handled when it starts, or dropped. So nothing is stored into a result, or into staging memory, of which not all ranks have agreed.
 *
 * A guess is right if the turn's launch has run before in the turn that the guess names (launch.nodes_turn), with the same requests of all ranks
 * (submission.stamp). All nodes run the same launches in the same turns, and keep the same ones; all have all requests. So all find the same: the
 * sender runs those slices in the turn if and only if the receivers drop the frames. That the launch and the requests are the same is why the
 * offsets in the frames, and the epoch of the flags, are right.
 *
 * Two places for each node, by the turn's parity. A node sends for turn n + 1 when n has ended there, so when all nodes have begun n, and so have
 * ended n - 1. What comes is of the turn that is next or runs here, or of the one after it; what was kept for n - 1 is not read any more.
 *
 * The sources are free when proxy_message() returns. So it does not matter what becomes of the operator.
 *
 * Nodes with one rank of the communicator send early; of at most EARLY_NODES nodes. A node that keeps frames says so in its requests, from
 * the first launch on from which data could come early.
 */
#include <errno.h>

#include "daemon/net/frame.h"
#include "daemon/worker/comm/buffer.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/nodes/inside.h"
#include "proto/base/clock.h"

#define GUESSES 4 /* cached launches that are considered */
#define PLACE_BYTES                                                                                                            \
    (NET_EARLY_MOST + 2 * PROXY_EARLY_SENDS * sizeof(struct net_frame)) /* that a node keeps of another one's turn */
#define SLICES (8 * sizeof(((struct launch_run *)NULL)->early))         /* the first ones, which can go early */

/* ---- the proxy's thread ---- */

int nodes_early_come(void *ctx, const struct net_early_head *head, uint64_t *offset)
{
    struct rank_flags f = flags_find(ctx, head->comm, head->rank);
    struct early *e = f.flags ? f.early : NULL;

    if (!e || head->node >= EARLY_NODES || head->length > PLACE_BYTES)
        return (enum net_early_fate) - EPROTO;
    uint64_t ended = atomic_load_explicit(&e->ended, memory_order_acquire);
    if (head->turn <= ended)
        return NET_EARLY_DROP; /* its operator has failed */
    if (head->turn > ended + 2)
        return (enum net_early_fate) - EPROTO;
    if (atomic_load_explicit(&e->open, memory_order_acquire) == head->turn)
        return atomic_load_explicit(&e->open_guess, memory_order_relaxed) == head->guess ? NET_EARLY_TAKE : NET_EARLY_DROP;
    struct early_kept *k = &e->kept[head->node][head->turn & 1];
    if (k->turn == head->turn)
        return (enum net_early_fate) - EPROTO; /* it has come already */
    k->turn = head->turn;
    k->guess = head->guess;
    k->length = head->length;
    *offset = (2 * head->node + (head->turn & 1)) * PLACE_BYTES;
    return NET_EARLY_KEEP;
}

/* Frames have come whole, into their place. */
static int kept_whole(void *ctx, uint64_t offset, const struct net_area *area, struct error *e)
{
    struct early *early = ctx;
    struct early_kept *k = &early->kept[offset / PLACE_BYTES / 2][offset / PLACE_BYTES % 2];

    (void)area, (void)e;
    atomic_store_explicit(&k->whole, k->turn, memory_order_release);
    nodes_news_post(early->worker->data);
    return 0;
}

/* ---- the engine: sending ---- */

uint32_t nodes_early_room(const struct comm *c)
{
    return c->nodes->early.memory.bytes ? NET_EARLY_MOST : 0;
}

/* A cached launch that the rank's request repeats. NULL: there is none. */
static const struct launch *guess(const struct comm *c, const struct member *m, const struct submission *sub)
{
    const struct launch *l = c->cache;

    for (int i = 0; l && i < GUESSES; i++, l = l->next_cached)
        if (l->stepwise && l->nodes_turn && l->stamps[m->rank] == sub->stamp && !l->error.status)
            return l;
    return NULL;
}

/* Where a slice goes. False: nowhere that is known. */
static bool place_find(const struct comm *c, const struct launch *l, int dst, const struct put_area *area, struct net_place *to)
{
    const unsigned char *base = l->staging[dst];
    const struct buffer *b;

    to->comm = nodes_memory_there(&c->members[dst]);
    to->rank = (uint32_t)dst;
    to->region = NET_STAGING;
    if (area->tensor == PUT_STAGING) {
        to->offset = (uint64_t)(area->at - base);
        return true;
    }
    LIST_FOREACH(b, &c->members[dst].bounces, link) {
        uint64_t at = (uint64_t)((uintptr_t)area->at - (uintptr_t)b->memory.data);
        if (at >= b->memory.bytes)
            continue;
        to->region = b->handle;
        to->offset = at;
        return true;
    }
    return false;
}

/* A slice that is sent as it lies in the rank's input, and whose flag nothing else belongs to. The operator may overwrite the input (put_area.before): it
 * begins when what goes early has left, or been copied. */
static bool slice_fill(const struct comm *c, const struct launch *l, const struct launch_run *r, uint32_t number,
                       const struct peer *p, struct proxy_early_send *out)
{
    const struct slice *s = &r->plan->slices[number];
    struct put_area area;

    if (s->kind != SLICE_COMPUTE_PUT || s->wait_count || s->dst >= (unsigned)c->nranks || c->members[s->dst].peer != p ||
        s->group == SLICE_NO_GROUP || r->plan->groups[s->group].slices != 1 || r->plan->groups[s->group].dst != s->dst)
        return false;
    cpu_slice_area(&r->run, s, s->dst, &area);
    if (!area.before || area.planes != 1 || area.rows != 1 || !area.row_bytes || !place_find(c, l, s->dst, &area, &out->to))
        return false;
    out->from = area.before;
    out->bytes = area.row_bytes;
    out->has_flag = true;
    out->flag = r->plan->groups[s->group].flag;
    out->epoch = c->epoch + 1;
    return true;
}

/* Whether the rank's request is for the turn that comes next here, and nothing runs. */
static bool is_next(const struct comm *c, const struct member *m, const struct submission *sub)
{
    const struct comm_nodes *n = c->nodes;

    return c->state == COMM_ACTIVE && c->here == 1 && !c->dev.current && !n->alloc && !n->staging && m->next == sub &&
           TAILQ_FIRST(&m->queue) == sub && sub->kind == SUBMISSION_OPERATOR && !sub->error.status && !sub->prepare;
}

/* Calls slice_fill() for the first slices, as far as there is room. Returns the bits of those that were filled in. */
static uint64_t slices_fill(const struct comm *c, const struct launch *l, const struct launch_run *r, const struct peer *p,
                            uint32_t room, struct proxy_early *out)
{
    uint64_t slices = 0;

    for (uint32_t i = 0; i < r->plan->nslices && i < SLICES && out->n < PROXY_EARLY_SENDS; i++) {
        struct proxy_early_send *s = &out->sends[out->n];
        if (!slice_fill(c, l, r, i, p, s))
            continue;
        if (s->bytes > room)
            break;
        room -= (uint32_t)s->bytes;
        out->n++;
        slices |= UINT64_C(1) << i;
    }
    return slices;
}

void nodes_early_fill(const struct comm *c, const struct member *m, const struct submission *sub, int peer,
                      struct proxy_early *out)
{
    const struct comm_nodes *n = c->nodes;
    const struct peer *p = n->peers[peer];
    uint32_t room = n->early.room[n->peer_node[peer]];

    out->n = 0;
    out->are_sent = false;
    if (!room || n->node >= (int)EARLY_NODES || !is_next(c, m, sub) || !nodes_messages_follow(c))
        return;
    const struct launch *l = guess(c, m, sub);
    if (!l)
        return;
    out->slices = slices_fill(c, l, &l->runs[m->rank], p, room < NET_EARLY_MOST ? room : NET_EARLY_MOST, out);
    out->head = (struct net_early_head){.comm = nodes_memory_there(&c->members[n->peer_rank[peer]]),
                                        .rank = (uint32_t)n->peer_rank[peer],
                                        .node = (uint32_t)n->node,
                                        .turn = n->turns + 1,
                                        .guess = l->nodes_turn};
}

void nodes_early_sent(struct comm *c, const struct proxy_early *sent)
{
    struct early *e = &c->nodes->early;

    if (e->turn != sent->head.turn)
        e->slices = 0;
    e->turn = sent->head.turn;
    e->guess = sent->head.guess;
    e->sent_ns = clock_ns();
    e->slices |= sent->slices;
}

/* ---- the engine: the turn ---- */

/* Make the memory for what comes, if l is a launch from which it may. Without it nothing comes. */
static void memory_make(struct comm *c, const struct launch *l)
{
    struct early *e = &c->nodes->early;
    struct net_bounce bounce = {.received = kept_whole, .ctx = e};
    int rank = 0, most = 0;
    struct error ignored;

    if (e->tried || !l->stepwise)
        return;
    e->tried = true;
    e->worker = c->worker;
    error_clear(&ignored);
    for (int r = c->nranks; r-- > 0;) {
        rank = c->members[r].remote ? rank : r;
        most = c->members[r].node > most ? c->members[r].node : most;
    }
    struct device *d = c->members[rank].dev->device;
    if (most >= (int)EARLY_NODES || device_memory_alloc(d, 2 * PLACE_BYTES * ((uint64_t)most + 1), &e->memory, NULL, &ignored))
        return;
    if (net_region_add_bounce(c->worker->data->regions, nodes_memory_here(c), (uint32_t)rank, NET_EARLY, e->memory.data,
                              e->memory.bytes, &bounce, &ignored))
        device_memory_free(d, &e->memory);
}

void nodes_early_settle(struct comm *c, struct launch *l)
{
    struct early *e = &c->nodes->early;
    uint64_t turn = c->nodes->turns + 1;
    bool same = l->nodes_turn != 0;

    if (c->dev.ops->number != FCC_DEVICE_CPU)
        return;
    memory_make(c, l);
    for (int r = 0; r < c->nranks; r++) {
        same &= l->stamps[r] == c->members[r].next->stamp;
        l->stamps[r] = c->members[r].next->stamp;
    }
    e->expected = same ? l->nodes_turn : 0;
    l->nodes_turn = turn;
    if (e->turn != turn || e->guess != e->expected)
        return;
    for (int r = 0; r < c->nranks; r++) {
        if (c->members[r].remote)
            continue;
        l->runs[r].early = e->slices;
        for (uint32_t i = 0; i < SLICES; i++)
            if (e->slices >> i & 1u)
                l->runs[r].times[l->turn][i] = (struct slice_time){.start_ns = e->sent_ns, .end_ns = e->sent_ns};
    }
    l->early_ns = e->sent_ns;
}

void nodes_early_look(struct comm *c)
{
    struct early *e = &c->nodes->early;
    uint64_t turn = c->nodes->turns + 1;
    struct error why = {0};

    if (!e->memory.bytes || atomic_load_explicit(&e->open, memory_order_relaxed) != turn)
        return;
    for (int i = 0; i < c->nodes->npeers; i++) {
        uint32_t node = (uint32_t)c->nodes->peer_node[i];
        const struct early_kept *k = &e->kept[node][turn & 1];
        if (atomic_load_explicit(&k->whole, memory_order_acquire) != turn || e->handled[node] == turn)
            continue;
        e->handled[node] = turn;
        const unsigned char *frames = e->memory.data;
        if (k->guess == e->expected &&
            proxy_replay(c->worker->data->proxy, frames + (2 * node + (turn & 1)) * PLACE_BYTES, k->length, &why))
            peer_break(c->nodes->peers[i], why.status, "%s", why.text);
    }
}

void nodes_early_start(struct comm *c)
{
    struct early *e = &c->nodes->early;

    if (c->dev.ops->number != FCC_DEVICE_CPU)
        return;
    atomic_store_explicit(&e->open_guess, e->expected, memory_order_relaxed);
    atomic_store_explicit(&e->open, c->nodes->turns + 1, memory_order_release);
    nodes_early_look(c);
}

void nodes_early_turn_ended(struct comm *c)
{
    atomic_store_explicit(&c->nodes->early.ended, c->nodes->turns, memory_order_release);
}

void nodes_early_close(struct comm *c)
{
    struct early *e = &c->nodes->early;

    for (int r = 0; r < c->nranks && e->memory.bytes; r++)
        if (!c->members[r].remote) {
            device_memory_free(c->members[r].dev->device, &e->memory);
            e->memory.bytes = 0;
        }
}
