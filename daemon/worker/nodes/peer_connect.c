/* SPDX-License-Identifier: MIT
 *
 * peer_connect.c - finds the peer for a worker of a node, asks the broker for our connections, and takes over the peers' connections.
 */
#include "daemon/worker/engine/channel.h"
#include "daemon/worker/nodes/peer.h"

#include <errno.h>
#include <event2/buffer.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/nodes/nodes.h"
#include "proto/base/log.h"

#define CONNECT_MS 20000 /* time for a connection, also to a node where no process of the job has started yet */
#define PEER_SERIAL_MAX 0xffffffu

/* The peer that is this worker of that node. who NULL: the newest one, which takes new communicators. A peer whose worker is not known yet is
 * taken for the one asked for; if it turns out to be another one, it breaks (peer_is()). */
static struct peer *peer_find(const struct worker *w, const char *address, const struct incarnation *who)
{
    struct peer *p, *unknown = NULL;

    LIST_FOREACH(p, &w->peers, link) {
        if (p->broken.status || strcmp(p->address, address) != 0)
            continue;
        if (who ? incarnation_same(&p->who, who) : !p->is_past)
            return p;
        if (who && !p->who.number)
            unknown = p;
    }
    if (unknown)
        unknown->who = *who;
    return unknown;
}

/* A worker of that node is known now: break the peers of its predecessors, whose connections may not have ended yet. */
static void past_end(const struct worker *w, const char *address, const struct incarnation *who)
{
    struct peer *p;

    LIST_FOREACH(p, &w->peers, link)
        if (p->who.number && incarnation_before(&p->who, who) && !strcmp(p->address, address))
            peer_break(p, -ECONNRESET, "its worker has ended, and another one has taken its place");
}

/* Our connection to p has reached this worker. False: it is not the expected one, and p is broken. */
static bool peer_is(struct peer *p, const struct incarnation *who)
{
    past_end(p->worker, p->address, who);
    if (!p->who.number)
        p->who = *who;
    if (!incarnation_same(&p->who, who))
        peer_break(p, -ESTALE, "another worker has taken its worker's place");
    return !p->broken.status;
}

/* A free peer.index. Indices are taken in rotation, because data connections of a former peer may end later than the peer. */
static unsigned index_free(struct worker *w)
{
    uint64_t used = 0;
    struct peer *p;

    LIST_FOREACH(p, &w->peers, link)
        used |= UINT64_C(1) << p->index;
    for (unsigned i = 0; i < PEERS_MAX; i++) {
        unsigned index = w->peer_index++ % PEERS_MAX;
        if (!(used >> index & 1u))
            return index;
    }
    return PEERS_MAX;
}

static struct peer *peer_new(struct worker *w, const char *address, struct error *e)
{
    unsigned index = index_free(w);
    struct peer *p = index < PEERS_MAX ? calloc(1, sizeof(*p)) : NULL;

    if (!p || !(p->waiting = evbuffer_new()) || peers_ping_start(w)) {
        if (p && p->waiting)
            evbuffer_free(p->waiting);
        free(p);
        (void)error_set(e, -ENOMEM, "node %s: %s", address,
                        index < PEERS_MAX ? "no memory" : "this job is on 64 others already");
        return NULL;
    }
    p->worker = w;
    p->index = index;
    STAILQ_INIT(&p->held);
    p->serial = w->peer_serial = w->peer_serial % PEER_SERIAL_MAX + 1;
    text_copy(p->address, sizeof(p->address), address);
    LIST_INSERT_HEAD(&w->peers, p, link);
    nodes_link_begin(p);
    return p;
}

/* Ask the broker for a connection. */
static int connect_ask(struct peer *p, enum peer_purpose purpose, uint32_t rail, uint64_t *id, enum peer_state *state)
{
    struct worker *w = p->worker;
    struct control_connect m = {.msg = {.type = CONTROL_CONNECT, .id = ++w->connect_id},
                                .to = p->who,
                                .purpose = PEER_PURPOSE(purpose, rail, p->serial),
                                .limit_ms = CONNECT_MS};

    if (*state != PEER_CLOSED)
        return 0;
    text_copy(m.address, sizeof(m.address), p->address);
    if (control_send(w, &m.msg, sizeof(m)))
        return -EPIPE;
    *id = m.msg.id;
    *state = PEER_CONNECTING;
    return 0;
}

static int data_ask(struct peer *p, uint32_t rail)
{
    return connect_ask(p, PEER_DATA, rail, &p->data_request[rail], &p->data[rail]);
}

bool peer_rail_open(struct peer *p, uint32_t rail)
{
    if (p->broken.status)
        return false;
    if (data_ask(p, rail))
        peer_break(p, -EPIPE, "this node's broker is gone: nobody can connect");
    return p->data[rail] == PEER_OPEN;
}

struct peer *peer_get(struct worker *w, const char *address, const struct incarnation *who, struct error *e)
{
    struct peer *p = peer_find(w, address, who);

    if (!p && !(p = peer_new(w, address, e)))
        return NULL;
    if (who)
        p->who = *who;
    if (connect_ask(p, PEER_MESSAGES, 0, &p->out_request, &p->out) || data_ask(p, 0)) {
        (void)error_set(e, -EPIPE, "node %s: this node's broker is gone: nobody can connect", address);
        peer_break(p, -EPIPE, "this node's broker is gone: nobody can connect");
        return NULL;
    }
    return p;
}

static void socket_prepare(int sock)
{
    int one = 1;

    (void)evutil_make_socket_nonblocking(sock);
    (void)setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

/* The broker's text names the node, as ours do. */
static void peer_unreachable(struct peer *p, const struct control_connected *m)
{
    char text[FCC_TEXT_MAX], names[FCC_NODE_MAX + 16];
    int n = snprintf(names, sizeof(names), "node %s: ", p->address);

    text_copy(text, sizeof(text), m->text);
    text_copy(p->named, sizeof(p->named), m->named);
    p->is_unreachable = m->status != -ESTALE;
    peer_break(p, m->status < 0 ? m->status : -EPROTO, "%s", text + (strncmp(text, names, (size_t)n) ? 0 : n));
}

static void rail_open(struct peer *p, uint32_t rail, int sock)
{
    struct error e = {0};

    if (nodes_data_open(p, rail, sock, &e))
        peer_break(p, e.status, "%s", e.text);
    else
        p->data[rail] = PEER_OPEN;
    if (rail == 0 && p->data[0] == PEER_OPEN)
        peer_move(p);
}

void peer_connected(struct worker *w, const struct control_connected *m, int sock)
{
    struct peer *p;

    LIST_FOREACH(p, &w->peers, link) {
        bool out = p->out == PEER_CONNECTING && p->out_request == m->msg.id;
        uint32_t rail = 0;
        while (rail < NET_RAILS_MAX && (p->data[rail] != PEER_CONNECTING || p->data_request[rail] != m->msg.id))
            rail++;
        if (p->broken.status || (!out && rail == NET_RAILS_MAX))
            continue;
        if (m->status || sock < 0) {
            peer_unreachable(p, m);
            break;
        }
        if (!peer_is(p, &m->to))
            break;
        socket_prepare(sock);
        if (out)
            peer_writer_open(p, sock);
        else
            rail_open(p, rail, sock);
        if (peer_is_open(p))
            nodes_peer_open(p);
        return;
    }
    fd_close(&sock); /* no peer waits for this connection any more */
}

/* Whether serial a of a worker comes before its serial b, modulo PEER_SERIAL_MAX. */
static bool serial_before(uint32_t a, uint32_t b)
{
    return (b + PEER_SERIAL_MAX - a) % PEER_SERIAL_MAX < PEER_SERIAL_MAX / 2;
}

/* The peer for a connection that this worker has made; serial: its serial for us. NULL with the reason. */
static struct peer *arrival_peer(struct worker *w, const char *address, const struct incarnation *who, uint32_t serial,
                                 struct error *e)
{
    struct peer *p;

    LIST_FOREACH(p, &w->peers, link)
        if (incarnation_before(who, &p->who) && !strcmp(p->address, address)) {
            (void)error_set(e, -ESTALE, "its worker has ended, and another one has taken its place");
            return NULL;
        }
    past_end(w, address, who);
    p = peer_find(w, address, who);
    if (p && p->theirs && p->theirs != serial) {
        if (serial_before(serial, p->theirs)) {
            (void)error_set(e, -ESTALE, "it has been given up, and the worker has connected anew");
            return NULL;
        }
        peer_break(p, -ECONNRESET, "it has connected anew"); /* the end of its earlier connection has not been seen here */
        p = NULL;
    }
    if (!p && (p = peer_new(w, address, e)))
        p->who = *who;
    if (p)
        p->theirs = serial;
    return p;
}

void peer_arrived(struct worker *w, const struct control_peer *m, int sock)
{
    uint32_t purpose = PEER_PURPOSE_OF(m->purpose), rail = PEER_RAIL_OF(m->purpose), serial = PEER_SERIAL_OF(m->purpose);
    char address[FCC_NODE_MAX];
    struct error e = {0};
    struct peer *p = NULL;

    text_copy(address, sizeof(address), m->address);
    if (m->from.number && serial)
        p = arrival_peer(w, address, &m->from, serial, &e);
    socket_prepare(sock);
    w->arrival_index = p ? p->index : PEERS_MAX;
    w->arrival_purpose = purpose;
    if (p && purpose == PEER_MESSAGES && !p->reader) {
        if (peer_reader_open(p, sock))
            return;
        (void)error_set(&e, -ENOMEM, "no memory for its connection");
    } else if (p && purpose == PEER_DATA) {
        p->has_rail = true;
        if (!nodes_data_accept(p, rail, sock, &e))
            return;
        sock = -1; /* closed */
    }
    log_warning("node %s: a connection of it is refused: %s", address, e.status ? e.text : "it has no purpose, or comes twice");
    fd_close(&sock);
}

void peer_arrival_doubt(struct worker *w)
{
    struct peer *p;

    LIST_FOREACH(p, &w->peers, link)
        if (p->index == w->arrival_index)
            break;
    if (!p || p->broken.status)
        return;
    log_debug("node %s: the broker died over its connection: it has to connect again", p->address);
    if (w->arrival_purpose == PEER_DATA)
        nodes_data_doubt(p);
    else if (p->reader && !p->heard)
        peer_reader_drop(p);
}
