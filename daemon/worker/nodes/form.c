/* SPDX-License-Identifier: MIT
 *
 * form.c - how communicators form whose ranks are on several nodes.
 *
 * The unique id names the root, the node where the ranks meet. Each worker sends the root's worker the ranks that join at it:
 *
 *   worker                    root
 *     JOIN a rank ------------->|   refused by the root: <-- REFUSE. Refused by the worker: DENY instead of JOIN
 *     <------------------ JOINED|
 *     <------------------ FORMED|   all have joined: who is where
 *     connects to all others    |   (so does the root), and each says HERE to each
 *     READY ------------------->|   when it has received HERE from all
 *     <---------------------- GO|   all are ready: the ranks are told
 *
 * The root's worker may end, for want of clients, while a JOIN is in flight. If the connection ends before JOINED, the rank joins again at the
 * next worker of that node. After JOINED the end of the root's worker ends the communicator.
 *
 * Two workers other than the root may have an old connection whose end only one of them has seen, if the link between them was down. So a
 * worker sends READY only after it has received HERE from all others, which proves that those connections work. Until READY, a worker that
 * loses a connection to a node other than the root connects again and sends HERE again. After READY such a loss ends the communicator. With
 * the root, JOIN, FORMED and READY prove both directions.
 *
 * The id may name the root by another address than it uses itself. The root's broker then gives that one (CONTROL_CONNECTED), and the ranks
 * join at that address, or here if it is this node's.
 */
#include "daemon/worker/nodes/nodes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/device/device.h"
#include "proto/base/address.h"
#include "proto/base/log.h"

#define JOIN_TRIES 4    /* comm_nodes.tries, at most */
#define CONNECT_TRIES 4 /* comm_nodes.lost, at most */

/* ---- who ---- */

/* Whether a unique id is well formed. One that is not is refused at once, and not searched for a node's address. */
static bool id_is_one(const struct fcc_unique_id_layout *l)
{
    static const unsigned char zero[sizeof(l->zero)];
    struct error e;

    return memchr(l->root, '\0', sizeof(l->root)) && !memcmp(l->zero, zero, sizeof(zero)) &&
           (!*l->root || !address_check("id", l->root, NULL, &e));
}

int nodes_root(const struct worker *w, const struct fcc_unique_id *id, const char **root, struct error *e)
{
    const struct fcc_unique_id_layout *l = (const struct fcc_unique_id_layout *)id;

    *root = NULL;
    if (!id_is_one(l))
        return error_set(e, -EINVAL, "id: is none that fcc_get_unique_id() made");
    if (!*l->root && *w->node)
        return error_set(e, -ENETUNREACH, "id: the node that made it speaks to no other (NODE_LISTEN), this one is %s",
                         w->node);
    if (!*l->root || !strcmp(l->root, w->node) || !strcmp(l->root, w->alias))
        return 0;
    if (!*w->node)
        return error_set(e, -ENETUNREACH, "id: its ranks meet on node %s: this node speaks to no other (NODE_LISTEN)", l->root);
    *root = l->root;
    return 0;
}

/* ---- forming ---- */

int nodes_begin(struct comm *c, struct peer *root, struct error *e)
{
    if (c->nodes)
        return 0;
    c->nodes = calloc(1, sizeof(*c->nodes));
    c->dev.over_nodes = c->nodes != NULL;
    if (!c->nodes)
        return error_set(e, -ENOMEM, "no memory for a communicator");
    c->nodes->number = id_number(&c->unique_id);
    c->nodes->root = root;
    text_copy(c->nodes->root_address, sizeof(c->nodes->root_address), root ? root->address : "");
    return 0;
}

static void join_send(const struct comm *c, const struct member *m)
{
    struct peer_join join = {.unique_id = c->unique_id,
                             .nranks = c->nranks,
                             .rank = m->rank,
                             .time_limit_ms = c->dev.time_limit_ms,
                             .device_kind = c->dev.ops->number,
                             .pid = m->pid};

    nodes_send(c, c->nodes->root, &join.msg, PEER_JOIN, sizeof(join));
}

int nodes_join(struct comm *c, const struct member *m, const char *root, struct error *e)
{
    struct peer *p = c->nodes ? c->nodes->root : peer_get(c->worker, root, NULL, e);

    if (!p || nodes_begin(c, p, e)) {
        nodes_deny_rank(m, root, e);
        return e->status;
    }
    join_send(c, m);
    return 0;
}

/* Let all ranks here join at root_address. */
static void join_all(struct comm *c)
{
    struct error e = {0};

    c->nodes->root_comm = 0;
    c->nodes->root = peer_get(c->worker, c->nodes->root_address, NULL, &e);
    if (!c->nodes->root) {
        comm_abort(c, e.status, "%s", e.text);
        comm_release(c);
        return;
    }
    for (int r = 0; r < c->nranks; r++)
        if (c->members[r].session)
            join_send(c, &c->members[r]);
}

/* The root is this node, under another address. Remote ranks may already have joined here by either address. */
static void root_is_here(struct comm *c, const char *alias)
{
    int remote = 0;

    text_copy(c->worker->alias, sizeof(c->worker->alias), alias);
    for (int r = 0; r < c->nranks; r++)
        remote += c->members[r].remote;
    c->nodes->root = NULL;
    c->nodes->root_address[0] = '\0';
    if (!remote) { /* perhaps all ranks are here; a remote rank that joins makes c->nodes again */
        free(c->nodes);
        c->nodes = NULL;
        c->dev.over_nodes = false;
    }
    if (c->present == c->nranks)
        comm_complete(c);
    comm_release(c);
}

bool nodes_may_join_again(const struct comm *c, const struct peer *p)
{
    const struct comm_nodes *n = c->nodes;

    if (c->state != COMM_FORMING || n->root != p || n->known)
        return false;
    return *p->named ? !n->renamed : !p->is_unreachable && n->tries < JOIN_TRIES;
}

void nodes_join_again(struct comm *c, const struct peer *p)
{
    struct comm_nodes *n = c->nodes;

    if (*p->named) {
        log_info("comm %u: its ranks meet at node %s, which is called %s", c->number, p->address, p->named);
        n->renamed = true;
        text_copy(n->root_address, sizeof(n->root_address), p->named);
    } else {
        n->tries++;
        log_info("comm %u: its ranks join at node %s again: %s", c->number, p->address, p->broken.text);
    }
    if (strcmp(n->root_address, c->worker->node) != 0)
        join_all(c);
    else
        root_is_here(c, p->address);
}

void nodes_joined(const struct comm *c, struct peer *p, const struct peer_join *m)
{
    struct peer_joined j = {.msg = {.from = c->number, .to = m->msg.from}, .rank = m->rank};
    struct error ignored = {0};
    struct peer *back =
        peer_get(p->worker, p->address, &p->who, &ignored); /* the peer has connected to us; this is our connection to it */

    if (back)
        peer_send(back, &j.msg, id_number(&m->unique_id), PEER_JOINED, sizeof(j));
}

void nodes_refuse(struct peer *p, const struct peer_join *m, const struct error *e)
{
    struct peer_refuse r = {.msg.to = m->msg.from, .rank = m->rank, .status = e->status};
    struct error ignored = {0};
    struct peer *back = peer_get(p->worker, p->address, &p->who, &ignored);

    text_copy(r.text, sizeof(r.text), e->text);
    if (back)
        peer_send(back, &r.msg, id_number(&m->unique_id), PEER_REFUSE, sizeof(r));
}

static void on_refuse(struct peer *p, struct comm *c, const struct peer_refuse *m)
{
    if (m->status == -ESTALE && !c->nodes->known && c->nodes->tries++ < JOIN_TRIES) {
        p->is_past = true;
        join_all(c);
        return;
    }
    comm_abort(c, m->status < 0 ? m->status : -EPROTO, "%.*s", (int)sizeof(m->text) - 1, m->text);
    comm_release(c);
}

/* Number the workers of all ranks as nodes, and fill in FORMED. */
static void formed_fill(const struct comm *c, struct peer_formed *f)
{
    f->nranks = (uint32_t)c->nranks;
    f->time_limit_ms = c->dev.time_limit_ms;
    for (int r = 0; r < c->nranks; r++) {
        const struct member *m = &c->members[r];
        const char *address = m->remote ? m->peer->address : c->worker->node;
        const struct incarnation *worker = m->remote ? &m->peer->who : &c->worker->self;
        uint32_t n = 0;
        while (n < f->nnodes && (strcmp(f->addresses[n], address) != 0 || !incarnation_same(&f->workers[n], worker)))
            n++;
        if (n == f->nnodes) {
            f->workers[n] = *worker;
            f->comms[n] = m->remote ? m->comm_there : c->number;
            text_copy(f->addresses[f->nnodes++], FCC_NODE_MAX, address);
        }
        f->node_of[r] = (uint16_t)n;
        f->pids[r] = m->pid;
    }
}

static void here_say(const struct comm *c, int peer)
{
    struct peer_here m = {.node = (uint32_t)c->nodes->node};

    if (c->nodes->node >= 0 && c->nodes->root && c->nodes->root != c->nodes->peers[peer])
        nodes_send(c, c->nodes->peers[peer], &m.msg, PEER_HERE, sizeof(m));
}

/* Whether HERE has come from that node, on its present connection; not needed from or by the root. */
static bool is_here(const struct comm_nodes *n, int peer)
{
    return n->node < 0 || !n->root || n->peers[peer] == n->root || n->here[n->peer_node[peer]] == n->peers[peer];
}

void nodes_here_forget(struct comm *c, const struct peer *p)
{
    for (int i = 0; i < SPAN_NODES; i++)
        if (c->nodes->here[i] == p)
            c->nodes->here[i] = NULL;
}

/* Whether all rails that ranks here take to that node are open. Missing ones are opened, and nodes_peer_open() is called then. */
static bool connection_is_open(const struct comm *c, int peer)
{
    struct peer *p = c->nodes->peers[peer];
    bool all = true;

    if (!peer_is_open(p))
        return false;
    for (int r = 0; r < c->nranks; r++)
        if (!c->members[r].remote)
            all &= peer_rail_open(p, nodes_rail(&c->members[r], p));
    return all;
}

/* Whether that node is waited for: before this node is READY, for connections and HERE; after that, at the root, for its READY. */
static bool is_awaited(const struct comm *c, int peer)
{
    const struct comm_nodes *n = c->nodes;

    if (n->ready)
        return !n->ready_nodes[n->peer_node[peer]];
    return !connection_is_open(c, peer) || !is_here(n, peer);
}

static bool all_have_come(const struct comm *c)
{
    bool all = true;

    for (int i = 0; i < c->nodes->npeers; i++)
        all &= !is_awaited(c, i);
    return all;
}

int nodes_awaited(const struct comm *c, const char *addresses[SPAN_NODES])
{
    const struct comm_nodes *n = c->nodes;
    int awaited = 0;

    if (!n || !n->formed || c->state != COMM_FORMING)
        return 0;
    if (n->ready && n->root) { /* only GO is missing; the root knows which nodes are not ready */
        addresses[0] = n->root_address;
        return 1;
    }
    for (int i = 0; i < n->npeers; i++)
        if (is_awaited(c, i))
            addresses[awaited++] = n->peers[i]->address;
    return awaited;
}

/* If all connections of this node work, it is ready. The caller releases the communicator, which may have no rank here. */
static void ready_check(struct comm *c)
{
    struct comm_nodes *n = c->nodes;
    struct peer_msg m = {0};

    if (!n->formed || c->state != COMM_FORMING)
        return;
    if (!n->ready && !all_have_come(c))
        return;
    if (!n->ready && n->root)
        nodes_send(c, n->root, &m, PEER_READY, sizeof(m));
    n->ready = true;
    if (n->root || !all_have_come(c))
        return;
    nodes_send_all(c, &m, PEER_GO, sizeof(m));
    comm_active(c);
}

/* Whether FORMED lists the ranks that have joined here as this node's. If not, another process has joined elsewhere as the same rank: that is
 * an error for all, which names both processes. */
static int ranks_here_check(const struct comm *c, const struct peer_formed *f, struct error *e)
{
    for (int r = 0; r < c->nranks; r++) {
        uint32_t node = f->node_of[r];
        if (c->members[r].session && !incarnation_same(&f->workers[node], &c->worker->self))
            return joined_twice(c, r, f->pids[r], f->addresses[node], e);
    }
    return 0;
}

/* Take over the nodes of all ranks from FORMED. */
static int formed_apply(struct comm *c, const struct peer_formed *f, struct error *e)
{
    struct comm_nodes *n = c->nodes;
    struct peer *peers[SPAN_NODES] = {NULL};
    bool has_ranks = false;

    if (ranks_here_check(c, f, e))
        return e->status;
    n->node = -1;
    for (uint32_t i = 0; i < f->nnodes; i++) {
        if (incarnation_same(&f->workers[i], &c->worker->self)) {
            n->node = (int)i;
            continue;
        }
        if (!strcmp(f->addresses[i], c->worker->node))
            return error_set(e, -ESTALE, "node %s: another worker of this job has ranks there, too: of an fccd that is gone",
                             c->worker->node);
        peers[i] = peer_get(c->worker, f->addresses[i], &f->workers[i], e);
        if (!peers[i])
            return e->status;
        n->peer_node[n->npeers] = (int)i;
        for (int r = c->nranks; r-- > 0;)
            if (f->node_of[r] == i)
                n->peer_rank[n->npeers] = r;
        n->peers[n->npeers++] = peers[i];
    }
    for (int r = 0; r < c->nranks; r++) {
        struct member *m = &c->members[r];
        struct peer *p = peers[f->node_of[r]];
        m->node = f->node_of[r];
        if (!p && (m->state != MEMBER_JOINED || m->remote))
            return error_set(e, -EPROTO, "rank %d: has joined at this node, says the root: it has not", r);
        has_ranks |= !p;
        if (!p)
            continue;
        if (m->state != MEMBER_JOINED)
            c->present++;
        m->state = MEMBER_JOINED;
        m->remote = true;
        m->peer = p;
        m->comm_there = f->comms[m->node];
        m->pid = f->pids[r];
        LIST_INIT(&m->bounces);
    }
    if (n->node >= 0 && !has_ranks)
        return error_set(e, -EPROTO, "node %s: is said to have ranks, and has none", c->worker->node);
    n->formed = true;
    for (int r = 0; r < c->nranks; r++)
        if (!c->members[r].remote && nodes_flags_add(c, r, e))
            return e->status;
    return nodes_channel_open(c, e);
}

void nodes_form(struct comm *c)
{
    struct peer_formed f = {.nnodes = 0};
    struct error e = {0};

    formed_fill(c, &f);
    if (formed_apply(c, &f, &e)) {
        comm_abort(c, e.status, "%s", e.text);
        return;
    }
    nodes_send_all(c, &f.msg, PEER_FORMED, sizeof(f));
    ready_check(c);
}

static void on_formed(struct comm *c, const struct peer_formed *f)
{
    struct error e = {0};
    bool well = f->nranks == (uint32_t)c->nranks && f->nnodes >= 1 && f->nnodes <= f->nranks && f->nnodes <= SPAN_NODES &&
                !c->nodes->formed;

    for (int r = 0; well && r < c->nranks; r++)
        well = f->node_of[r] < f->nnodes;
    for (uint32_t i = 0; well && i < f->nnodes; i++)
        well = memchr(f->addresses[i], '\0', FCC_NODE_MAX) != NULL;
    if (!well)
        (void)error_set(&e, -EPROTO, "node %s: who has joined makes no sense", c->nodes->root->address);
    else
        (void)formed_apply(c, f, &e);
    if (e.status) {
        comm_abort(c, e.status, "%s", e.text);
        comm_release(c);
        return;
    }
    comm_limit_set(c, f->time_limit_ms);
    for (int i = 0; i < c->nodes->npeers; i++)
        here_say(c, i);
    ready_check(c);
}

/* ---- an old connection that has ended ---- */

bool nodes_may_connect_again(const struct comm *c, const struct peer *p)
{
    const struct comm_nodes *n = c->nodes;
    bool is_gone = p->is_unreachable || p->broken.status == -ESTALE;

    return c->state == COMM_FORMING && n->formed && !n->ready && n->root && n->root != p && nodes_peer_number(c, p) >= 0 &&
           !is_gone && n->lost < CONNECT_TRIES;
}

void nodes_connect_again(struct comm *c, const struct peer *p)
{
    struct comm_nodes *n = c->nodes;
    int peer = nodes_peer_number(c, p);
    struct error e = {0};
    struct peer *next = peer_get(c->worker, p->address, &p->who, &e); /* the peer that has connected to us again, if any */

    n->lost++;
    nodes_here_forget(c, p);
    if (!next) {
        comm_abort(c, e.status, "%s", e.text);
        comm_release(c);
        return;
    }
    n->peers[peer] = next;
    for (int r = 0; r < c->nranks; r++)
        if (c->members[r].peer == p)
            c->members[r].peer = next;
    nodes_channel_peers(c);
    here_say(c, peer);
    ready_check(c);
}

/* ---- what comes ---- */

void nodes_forming_message(struct peer *p, struct comm *c, const struct peer_msg *m)
{
    struct comm_nodes *n = c->nodes;
    int peer = nodes_peer_number(c, p);

    if (m->type == PEER_READY && !n->root && peer >= 0) {
        n->ready_nodes[n->peer_node[peer]] = true;
        ready_check(c);
        comm_release(c);
    } else if (m->type == PEER_JOINED || m->type == PEER_REFUSE) { /* by whom our ranks have left for another: no matter */
        if (n->root == p && m->type == PEER_JOINED) {
            n->known = true;
            n->root_comm = m->from;
        } else if (n->root == p)
            on_refuse(p, c, (const struct peer_refuse *)m);
    } else if (m->type == PEER_HERE) {
        n->here[((const struct peer_here *)m)->node] = p;
        ready_check(c);
    } else if (m->type == PEER_FORMED && n->root == p) {
        on_formed(c, (const struct peer_formed *)m);
    } else if (m->type == PEER_GO && n->root == p && n->ready) {
        comm_active(c);
        comm_advance(c); /* other nodes may have received GO earlier, and their ranks may have submitted */
    } else {
        peer_break(p, -EPROTO, "%s, which it may not say now", peer_type_name(m->type));
    }
}

void nodes_peer_open(struct peer *p)
{
    struct comm *c, *next;

    LIST_FOREACH_SAFE(c, &p->worker->comms, link, next) {
        if (!c->nodes || c->state != COMM_FORMING)
            continue;
        ready_check(c);
        comm_release(c);
    }
}
