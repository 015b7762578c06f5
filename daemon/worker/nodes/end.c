/* SPDX-License-Identifier: MIT
 *
 * end.c - how a communicator over several nodes ends: its ranks leave, it is aborted, or a node's worker is lost.
 *
 * ABORT ends the communicator on all nodes. LEAVE takes effect on a node when the turns that the rank has taken part in have ended there. So
 * does an ABORT whose reason is a rank that has left in good order: an operator that has succeeded on one node succeeds on all.
 *
 * When the communicator has ended on a node, ranks there hear why, and leave. Their LEAVE may reach a third node before the ABORT that was the
 * reason. So it has the reason with it: the third node's ranks hear of that, and not of ranks that left because of it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/comm/bounce.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/nodes/nodes.h"
#include "daemon/worker/nodes/puts.h"

/* ---- ranks that leave ---- */

void nodes_left(const struct member *m, const char *why)
{
    const struct comm *c = m->comm;
    struct peer_turn t = {.turn = c->nodes->turns, .rank = m->rank};

    if (!c->nodes->formed)
        return; /* the root has been told by ABORT */
    t.status = c->state == COMM_ABORTED ? c->error.status : 0;
    text_copy(t.text, sizeof(t.text), t.status ? c->error.text : why ? why : "");
    nodes_send_all(c, &t.msg, PEER_LEAVE, sizeof(t));
    if (!why && c->state == COMM_ACTIVE) /* otherwise the other nodes get an ABORT with the reason */
        nodes_left_send(c, m->rank);
}

static void abort_from(struct comm *c, const struct peer *p, const struct error *e)
{
    c->nodes->aborter = p;
    comm_abort(c, e->status, "%s", e->text);
}

/* The other node's reason for which the communicator has ended, or will when the message's turns have ended here. */
static void abort_take(struct peer *p, struct comm *c, const struct peer_turn *m, bool later)
{
    bool is_placed = strstr(m->text, " on node ") || strstr(m->text, "(node ");
    struct comm_nodes *n = c->nodes;
    struct error e = {0};

    if (is_placed)
        (void)error_set(&e, m->status < 0 ? m->status : -EPROTO, "%s", m->text);
    else
        (void)error_set(&e, m->status < 0 ? m->status : -EPROTO, "%s (node %s)", m->text, p->address);
    if (!later) {
        abort_from(c, p, &e);
    } else if (!n->due.status) {
        n->due = e;
        n->due_from = p;
        n->due_turn = m->turn;
    }
}

void nodes_leave_received(struct peer *p, struct comm *c, const struct peer_turn *m)
{
    struct member *member = nodes_member_at(c, p, m->rank);
    char why[FCC_TEXT_MAX];

    if (!member || member->leaving)
        return;
    if (m->status && c->state == COMM_ACTIVE)
        abort_take(p, c, m, m->turn > c->nodes->turns);
    text_copy(why, sizeof(why), m->status ? "" : m->text);
    if (m->turn > c->nodes->turns) {
        member->leaving = strdup(why);
        member->leaving_turns = m->turn;
        return;
    }
    comm_leave_remote(member, *why ? why : NULL);
    comm_advance(c);
    comm_release(c);
}

void nodes_leave_due(struct comm *c)
{
    if (c->nodes->due.status && c->nodes->due_turn <= c->nodes->turns)
        abort_from(c, c->nodes->due_from, &c->nodes->due);
    for (int r = 0; r < c->nranks; r++) {
        struct member *m = &c->members[r];
        if (!m->leaving || m->leaving_turns > c->nodes->turns)
            continue;
        char *why = m->leaving;
        m->leaving = NULL;
        comm_leave_remote(m, *why ? why : NULL);
        free(why);
    }
}

/* ---- abort ---- */

/* Our connection to a worker that has connected to us. */
static struct peer *peer_again(const struct peer *p, struct error *e)
{
    return p->broken.status ? NULL : peer_get(p->worker, p->address, &p->who, e);
}

/* The root could not be reached when the communicator ended: tell it of one rank that was here, which ends the communicator there. */
static void deny_send(const struct comm *c)
{
    for (int r = 0; r < c->nranks; r++) {
        if (c->members[r].remote || c->members[r].state == MEMBER_ABSENT)
            continue;
        nodes_deny_rank(&c->members[r], c->nodes->root_address, &c->error);
        return;
    }
}

/* Send ABORT to the root, too, although the aborting node does so itself: a rank here may join again at once, and the root has to learn of
 * the end before that JOIN. */
static void root_send(const struct comm *c)
{
    struct peer_turn m = {.status = c->error.status};

    text_copy(m.text, sizeof(m.text), c->error.text);
    nodes_send(c, c->nodes->root, &m.msg, PEER_ABORT, sizeof(m));
}

/* Send ABORT. A node that has received FORMED knows all other nodes and tells them itself. Before that it knows only the root, and the root
 * may have refused it. So while the communicator forms, the root tells all nodes except the one that has told it. */
static void abort_send(const struct comm *c)
{
    const struct comm_nodes *n = c->nodes;
    struct peer_turn m = {.turn = n->is_left ? n->turns : 0, .status = c->error.status};
    struct error ignored = {0};

    text_copy(m.text, sizeof(m.text), c->error.text);
    for (int i = 0; n->formed && i < n->npeers; i++)
        if (n->peers[i] != n->aborter)
            nodes_send(c, n->peers[i], &m.msg, PEER_ABORT, sizeof(m));
    if (!n->formed && n->root && n->root->is_unreachable)
        deny_send(c);
    else if (!n->formed && n->root)
        nodes_send(c, n->root, &m.msg, PEER_ABORT, sizeof(m));
    for (int r = 0; !n->formed && !n->root && r < c->nranks; r++) {
        struct peer *p =
            c->members[r].peer && c->members[r].peer != n->aborter ? peer_again(c->members[r].peer, &ignored) : NULL;
        if (p)
            nodes_send(c, p, &m.msg, PEER_ABORT, sizeof(m));
    }
}

void nodes_aborted(struct comm *c, bool was_forming)
{
    struct comm_nodes *n = c->nodes;
    struct launch *l = n->staging;

    /* The ranks here have been told, and will free their buffers, while other nodes still send into them. */
    nodes_data_drop(c);
    if (n->alloc || n->next_alloc)
        nodes_alloc_drop(c);
    n->staging = NULL;
    if (!n->aborter || (was_forming && !n->root))
        abort_send(c);
    else if (was_forming && n->root != n->aborter)
        root_send(c);
    if (l) /* the launch has not started: end it at once */
        l->ops->ended(l);
}

void nodes_abort_received(struct peer *p, struct comm *c, const struct peer_turn *m)
{
    bool later = c->state == COMM_ACTIVE && m->turn == c->nodes->turns + 1; /* a node is at most one turn ahead */

    abort_take(p, c, m, later);
    if (!later)
        comm_release(c);
}

void nodes_release(struct comm *c)
{
    nodes_alloc_drop(c);
    nodes_data_end(c);
    nodes_early_close(c);
    for (int r = 0; r < c->nranks; r++) {
        struct member *m = &c->members[r];
        struct buffer *b;
        free(m->leaving);
        free((void *)m->dev->arrived);
        m->dev->arrived = NULL;
        if (!m->remote)
            continue;
        while ((b = LIST_FIRST(&m->bounces)))
            bounce_drop(b);
        bounce_free(&m->dev->staging);
    }
    free(c->nodes);
    c->nodes = NULL;
    c->dev.over_nodes = false;
}

/* ---- a worker that is lost ---- */

/* Whether c has ranks on p's node that have not left. Ranks that have left, or will have when their turns have ended here, do not need p any
 * more: their data is in flight on the data connections, which the proxy reads to their ends. */
static bool comm_needs(const struct comm *c, const struct peer *p)
{
    bool needs = c->nodes && c->state == COMM_FORMING && c->nodes->root == p;

    for (int r = 0; c->nodes && r < c->nranks; r++)
        needs |= c->members[r].peer == p && c->members[r].state == MEMBER_JOINED && !c->members[r].leaving;
    return needs;
}

/* Remove all references of c to the peer. */
static void peer_forget(struct comm *c, const struct peer *p)
{
    struct comm_nodes *n = c->nodes;
    bool had_left = false;
    int kept = 0;

    for (int i = 0; i < n->npeers; i++)
        if (n->peers[i] != p) {
            n->peer_node[kept] = n->peer_node[i];
            n->peer_rank[kept] = n->peer_rank[i];
            n->peers[kept++] = n->peers[i];
        }
    n->npeers = kept;
    nodes_here_forget(c, p);
    n->root = n->root == p ? NULL : n->root;
    for (int r = 0; r < c->nranks; r++) {
        if (c->members[r].peer != p)
            continue;
        had_left |= c->members[r].state == MEMBER_LEFT;
        puts_rank_gone(c, r);
        c->members[r].peer = NULL;
    }
    if (had_left) /* no more data, and no LEFT, comes from that node */
        comm_status_raise(c, -ECONNABORTED);
}

bool nodes_peer_lost(struct peer *p)
{
    struct comm *c, *next;
    bool was_needed = false;

    if (p->is_unreachable)
        nodes_deny_unsaid(p);
    LIST_FOREACH_SAFE(c, &p->worker->comms, link, next) {
        if (!c->nodes)
            continue;
        if (nodes_may_join_again(c, p)) {
            peer_forget(c, p);
            nodes_join_again(c, p);
            continue;
        }
        if (nodes_may_connect_again(c, p)) {
            was_needed = true;
            nodes_connect_again(c, p);
            continue;
        }
        if (comm_needs(c, p)) {
            was_needed = true;
            comm_abort(c, p->broken.status, "%s", p->broken.text);
        }
        peer_forget(c, p);
        comm_release(c);
    }
    return was_needed;
}
