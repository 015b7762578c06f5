/* SPDX-License-Identifier: MIT
 *
 * nodes.c - communicators whose ranks are on several nodes: how they take turns.
 *
 * Turns. Each worker has the queues of all ranks: a rank's requests are sent to all other nodes (SUBMIT) and queued there, too. So each
 * worker finds the next turn, checks whether the requests match, and makes the plans by itself, and all workers find the same. A turn begins
 * at a worker when all ranks have come to it and the turn before has ended on all nodes. A node reports that by DONE, which arrives after
 * all data that the node has put (data.c). So no data of an earlier operator arrives during a turn. Where a rank of that node has not yet come
 * to the next turn, nobody misses DONE before that rank's request; so the request says it, where it takes the same way as the data.
 *
 * Staging memory grows as operators need it. From the plans every worker knows which ranks' staging memory grows with a turn. It starts the
 * operator when the nodes of these ranks have made it (STAGED). A symmetric allocation is a turn, too (alloc.c).
 *
 * An operator that fails on one node (FAIL) fails on all nodes where it has not ended yet. The communicator's end is in end.c.
 */
#include "daemon/worker/nodes/nodes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/comm/turn.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/nodes/inside.h"
#include "daemon/worker/nodes/puts.h"
#include "proto/session.h"

#define METER_EVERY_NS 100000000u /* how often the broker is told what links have carried, by an engine that never sleeps */

/* The peer's own number of the communicator. 0: not known yet. */
static uint32_t comm_at(const struct comm *c, const struct peer *p)
{
    int peer = nodes_peer_number(c, p);

    if (peer >= 0)
        return c->members[c->nodes->peer_rank[peer]].comm_there;
    if (c->nodes->root == p)
        return c->nodes->root_comm;
    /* This node is the root. The peer of a rank's JOIN may be an earlier connection to the same worker. */
    for (int r = 0; r < c->nranks; r++)
        if (c->members[r].peer && !strcmp(c->members[r].peer->address, p->address) &&
            incarnation_same(&c->members[r].peer->who, &p->who))
            return c->members[r].comm_there;
    return 0;
}

void nodes_send(const struct comm *c, struct peer *p, struct peer_msg *m, enum peer_type type, size_t length)
{
    m->from = c->number;
    m->to = comm_at(c, p);
    peer_send(p, m, c->nodes->number, type, length);
}

void nodes_send_all(const struct comm *c, struct peer_msg *m, enum peer_type type, size_t length)
{
    for (int i = 0; i < c->nodes->npeers; i++)
        nodes_send(c, c->nodes->peers[i], m, type, length);
}

/* ---- turns ---- */

void nodes_measured(struct comm *c, const struct tune_sample *sample)
{
    c->nodes->measured = *sample;
}

void nodes_tune(struct comm *c)
{
    const struct tune_sample *sample = &c->members[0].next->sample;

    if (sample->ns && (sample->kind == FCC_SCHEDULE_FUSED || sample->kind == FCC_SCHEDULE_SEQUENTIAL))
        tune_record(c->tune, sample);
}

/* Whether a rank here has not come to the next turn. */
static bool rank_is_awaited(const struct comm *c)
{
    for (int r = 0; r < c->nranks; r++)
        if (!c->members[r].remote && !c->members[r].next)
            return true;
    return false;
}

static void submit_send(const struct member *m, const struct submission *sub, struct peer_msg *msg, size_t length)
{
    struct comm *c = m->comm;
    struct proxy_early early;

    for (int i = 0; i < c->nodes->npeers; i++) {
        nodes_early_fill(c, m, sub, i, &early);
        msg->from = c->number;
        msg->to = comm_at(c, c->nodes->peers[i]);
        peer_send_with(c->nodes->peers[i], msg, c->nodes->number, PEER_SUBMIT, length, &early);
        if (early.are_sent)
            nodes_early_sent(c, &early);
    }
}

void nodes_submit(const struct member *m, struct submission *sub, const struct fcc_submit *submit)
{
    static _Alignas(16) unsigned char buf[PEER_MSG_MAX]; /* the engine is one thread */
    struct peer_submit *p = (struct peer_submit *)buf;
    struct remote_request *r = &p->request;
    size_t length = sizeof(*p);

    memset(p, 0, sizeof(*p));
    r->rank = m->rank;
    r->kind = sub->kind;
    r->alloc_bytes = sub->alloc_bytes;
    r->status = sub->error.status;
    text_copy(r->text, sizeof(r->text), sub->error.text);
    if (m->rank == 0) {
        sub->sample = m->comm->nodes->measured;
        m->comm->nodes->measured.ns = 0;
    }
    r->sample = sub->sample;
    if (m->comm->nodes->done_waits && !rank_is_awaited(m->comm)) {
        p->ended = m->comm->nodes->turns;
        m->comm->nodes->done_waits = false;
    }
    for (int i = 0; i < FCC_MAX_TENSORS; i++)
        if (sub->buffers[i]) {
            r->buffers[i].bytes = sub->buffers[i]->bytes;
            r->buffers[i].symmetric = sub->args.tensors[i].symmetric;
        }
    if (submit) {
        memcpy(buf + length, submit, submit->msg.length);
        length += submit->msg.length;
    }
    p->early = nodes_early_room(m->comm);
    submit_send(m, sub, &p->msg, length);
    struct worker *w = m->comm->worker;
    if (!w->contended)
        return;
    w->contended--;
    if (sub->session && sub->slot != FCC_NO_SLOT)
        slot_running(sub->session, sub->slot);
}

/* Take what a request says of ended turns. A DONE that came later may have been stored before. */
static void ended_take(struct comm_nodes *n, int node, uint64_t ended)
{
    uint64_t known = atomic_load_explicit(&n->done[node], memory_order_relaxed);

    while (known < ended &&
           !atomic_compare_exchange_weak_explicit(&n->done[node], &known, ended, memory_order_acq_rel, memory_order_relaxed))
        ;
}

static void on_submit(struct peer *p, struct comm *c, const struct peer_submit *m)
{
    const struct remote_request *r = &m->request;
    struct member *member = nodes_member_at(c, p, r->rank);
    struct submission *sub;
    struct error e = {0};

    if (!member || r->kind > SUBMISSION_ALLOC || r->status > 0) {
        peer_break(p, -EPROTO, "a request of rank %d, which is not there, of kind %u, with status %d", r->rank, r->kind,
                   r->status);
        return;
    }
    if (m->ended > c->nodes->turns + 1) {
        peer_break(p, -EPROTO, "submit: %llu turns have ended there, and %llu here", (unsigned long long)m->ended,
                   (unsigned long long)c->nodes->turns);
        return;
    }
    ended_take(c->nodes, member->node, m->ended);
    c->nodes->early.room[member->node] = m->early;
    sub = submission_remote(member, (const struct fcc_submit *)(m + 1), m->msg.length - sizeof(*m), r, &e);
    if (sub)
        comm_submit(member, sub, NULL);
    else
        comm_abort(c, e.status, "rank %d (node %s): %s", r->rank, p->address, e.text);
    comm_release(c);
}

bool nodes_turn_ready(const struct comm *c)
{
    const struct comm_nodes *n = c->nodes;

    if (n->alloc || n->staging)
        return false;
    for (int i = 0; i < n->npeers; i++)
        if (atomic_load_explicit(&n->done[n->peer_node[i]], memory_order_acquire) < n->turns)
            return false;
    return true;
}

void nodes_turn_ended(struct comm *c)
{
    c->nodes->turns++;
    nodes_early_turn_ended(c);
    c->nodes->done_waits = nodes_messages_follow(c) && rank_is_awaited(c);
    if (!c->nodes->done_waits)
        nodes_done_send(c);
    nodes_leave_due(c);
    c->worker->links_stale = true;
    if (c->dev.turn_ns - c->worker->links_metered_ns > METER_EVERY_NS) {
        c->worker->links_metered_ns = c->dev.turn_ns;
        nodes_links_meter(c->worker);
    }
}

/* ---- operators ---- */

/* Whether all nodes with ranks whose staging memory grows have made room: their bounce buffers here were too small before. */
static bool staged_by_all(const struct comm *c, const struct launch *l)
{
    const struct comm_nodes *n = c->nodes;

    for (int r = 0; r < c->nranks; r++) {
        const struct member *m = &c->members[r];
        if (m->remote && m->peer && l->runs[r].plan->staging_bytes > m->staged_bytes && n->staged[m->node] <= n->turns)
            return false;
    }
    return true;
}

static void staged_note(struct comm *c, const struct launch *l)
{
    for (int r = 0; r < c->nranks; r++)
        if (l->runs[r].plan->staging_bytes > c->members[r].staged_bytes)
            c->members[r].staged_bytes = l->runs[r].plan->staging_bytes;
}

bool nodes_staged(struct comm *c, struct launch *l)
{
    struct peer_turn m = {.turn = c->nodes->turns + 1};
    bool grown = false;

    for (int r = 0; r < c->nranks; r++)
        grown |= !c->members[r].remote && l->runs[r].plan->staging_bytes > c->members[r].staged_bytes;
    if (grown)
        nodes_send_all(c, &m.msg, PEER_STAGED, sizeof(m));
    if (!staged_by_all(c, l)) {
        c->nodes->staging = l;
        return false;
    }
    staged_note(c, l);
    return true;
}

static void on_staged(struct peer *p, struct comm *c, const struct peer_turn *m)
{
    struct comm_nodes *n = c->nodes;
    struct launch *l = n->staging;

    if (n->staged[n->peer_node[nodes_peer_number(c, p)]] < m->turn)
        n->staged[n->peer_node[nodes_peer_number(c, p)]] = m->turn;
    if (!l || !staged_by_all(c, l))
        return;
    staged_note(c, l);
    n->staging = NULL;
    launch_start(l);
    nodes_launch_started(l);
}

/* An operator has failed on another node. The text names the rank and the operator. */
static void launch_fail_elsewhere(struct launch *l, const struct error *e)
{
    int32_t none = 0;

    if (!atomic_exchange_explicit(&l->failed, 1, memory_order_relaxed))
        l->error = *e;
    (void)atomic_compare_exchange_strong_explicit(l->status, &none, e->status, memory_order_relaxed, memory_order_relaxed);
}

void nodes_launch_started(struct launch *l)
{
    const struct comm_nodes *n = launch_comm(l)->nodes;

    nodes_early_start(launch_comm(l));
    if (!n->fail.status || n->fail_turn != n->turns)
        return;
    launch_fail_elsewhere(l, &n->fail);
    if (l->comm->ops->number != FCC_DEVICE_CPU)
        gpus_launch_abort(l);
}

void nodes_launch_failed(const struct launch *l)
{
    struct comm_nodes *n = launch_comm(l)->nodes;
    struct peer_turn m = {.turn = n->turns, .status = l->error.status};

    l->comm->late = true;
    if (n->fail.status && n->fail_turn == n->turns)
        return; /* this node has been told of the failure */
    text_copy(m.text, sizeof(m.text), l->error.text);
    nodes_send_all(launch_comm(l), &m.msg, PEER_FAIL, sizeof(m));
}

static void on_fail(struct peer *p, struct comm *c, const struct peer_turn *m)
{
    struct comm_nodes *n = c->nodes;

    (void)p;
    if (m->turn < n->turns || m->status >= 0)
        return; /* it has ended here */
    (void)error_set(&n->fail, m->status, "%.*s", (int)sizeof(m->text) - 1, m->text);
    n->fail_turn = m->turn;
    if (m->turn == n->turns && c->dev.current && c->dev.current != n->staging)
        nodes_launch_started(c->dev.current);
}

/* ---- what comes ---- */

/* Whether the message's rank or node is valid. JOINED and REFUSE name a rank here. HERE names a node, and may come before FORMED, when this node
 * does not know the nodes' numbers yet. */
static bool forming_may_be(struct peer *p, const struct comm *c, const struct peer_msg *m)
{
    const struct comm_nodes *n = c->nodes;
    int peer = nodes_peer_number(c, p);

    if (m->type == PEER_HERE) {
        uint32_t node = ((const struct peer_here *)m)->node;
        if (node < (uint32_t)c->nranks && node < SPAN_NODES && (!n->formed || peer < 0 || n->peer_node[peer] == (int)node))
            return true;
        peer_break(p, -EPROTO, "here: node %u: not its number among the nodes of %d ranks", node, c->nranks);
        return false;
    }
    if ((m->type != PEER_JOINED && m->type != PEER_REFUSE) || n->root != p)
        return true;
    int32_t rank = m->type == PEER_JOINED ? ((const struct peer_joined *)m)->rank : ((const struct peer_refuse *)m)->rank;
    if (rank >= 0 && rank < c->nranks && c->members[rank].state == MEMBER_JOINED && !c->members[rank].remote)
        return true;
    peer_break(p, -EPROTO, "%s: rank %d: none that has joined here", peer_type_name(m->type), rank);
    return false;
}

/* Whether the message's turn is valid. Nodes begin a turn when the one before has ended on all of them. So the sender is in the same turn as
 * this node, or one ahead. STAGED and FAIL name the turn that the sender is in, counted from 1; LEAVE and ABORT a number of ended turns. */
static bool turn_may_be(const struct comm *c, const struct peer_turn *m)
{
    uint64_t most = c->nodes->turns + (m->msg.type != PEER_FAIL);

    return m->turn <= most && (m->turn || m->msg.type != PEER_STAGED);
}

void nodes_message(struct peer *p, const struct peer_msg *m)
{
    struct comm *c;
    struct error e = {0};

    if (peer_message_check(m, &e)) {
        peer_break(p, e.status, "%s", e.text);
        return;
    }
    if (m->type == PEER_JOIN) {
        nodes_join_remote(p, (const struct peer_join *)m);
        return;
    }
    if (m->type == PEER_DENY) {
        nodes_deny_remote(p, (const struct peer_deny *)m);
        return;
    }
    c = nodes_comm_addressed(p->worker, p, m);
    if (!c)
        return; /* the communicator has ended here; another one with the same id may have begun */
    if (m->type <= PEER_GO) {
        if (c->state == COMM_FORMING && forming_may_be(p, c, m))
            nodes_forming_message(p, c, m);
        return;
    }
    if (m->type == PEER_ABORT) {
        /* A node that was refused sends its ABORT to the root, where the communicator may have formed without it. */
        if (c->nodes->root == p || nodes_peer_number(c, p) >= 0 || c->state == COMM_FORMING)
            nodes_abort_received(p, c, (const struct peer_turn *)m);
        return;
    }
    if (nodes_peer_number(c, p) < 0) {
        peer_break(p, -EPROTO, "%s of a communicator in which it has no rank", peer_type_name(m->type));
        return;
    }
    if ((m->type == PEER_STAGED || m->type == PEER_FAIL || m->type == PEER_LEAVE) &&
        !turn_may_be(c, (const struct peer_turn *)m)) {
        peer_break(p, -EPROTO, "%s: turn %llu: %llu have ended here", peer_type_name(m->type),
                   (unsigned long long)((const struct peer_turn *)m)->turn, (unsigned long long)c->nodes->turns);
        return;
    }
    switch (m->type) {
    case PEER_SUBMIT:
        on_submit(p, c, (const struct peer_submit *)m);
        break;
    case PEER_MEMORY:
        nodes_alloc_received(p, c, (const struct peer_memory *)m);
        break;
    case PEER_RESULT:
        nodes_result_received(p, c, (const struct peer_result *)m);
        break;
    case PEER_FREE:
        nodes_free_received(p, c, (const struct peer_free *)m);
        break;
    case PEER_STAGED:
        on_staged(p, c, (const struct peer_turn *)m);
        break;
    case PEER_FAIL:
        on_fail(p, c, (const struct peer_turn *)m);
        break;
    default:
        nodes_leave_received(p, c, (const struct peer_turn *)m);
        break;
    }
}
