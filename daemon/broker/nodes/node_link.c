/* SPDX-License-Identifier: MIT
 *
 * node_link.c - this node's link to each other node, which is begun again whenever it ends; and accepted connections: links of
 * other nodes, whose heartbeats are answered, and requests for workers.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/broker/nodes/node.h"
#include "proto/base/log.h"

static const struct conn_ops link_ops;

const char *node_state_name(enum node_state state)
{
    static const char *const names[] = {
        [NODE_CONNECTING] = "connecting", [NODE_CONNECTED] = "connected", [NODE_LOST] = "lost", [NODE_REFUSED] = "refused"};
    return names[state];
}

static void state_set(struct node *n, enum node_state state, const char *why)
{
    bool same = n->state == state;

    if (same && !strcmp(n->why, why))
        return;
    text_copy(n->why, sizeof(n->why), why);
    if (!same)
        n->since_ns = clock_ns();
    n->state = state;
    if (n->configured)
        trouble_update(n->nodes);
}

/* ---- the link that this node begins ---- */

static void retry_later(struct node *n)
{
    (void)event_add_ms(&n->timer, n->backoff_ms);
    n->backoff_ms = 2 * n->backoff_ms < BACKOFF_LAST_MS ? 2 * n->backoff_ms : BACKOFF_LAST_MS;
}

static void link_failed(struct node *n, bool refused, const struct error *why)
{
    bool was = n->state == NODE_CONNECTED;

    n->errors++;
    if (refused)
        state_set(n, NODE_REFUSED, why->text);
    else
        state_set(n, n->was_connected ? NODE_LOST : NODE_CONNECTING, why->text);
    if (was)
        log_warning("node %s is lost: %s", n->address, why->text);
    else
        nodes_complain(n->nodes, n->address, why);
    retry_later(n);
}

static void on_timer(evutil_socket_t sock, short what, void *arg)
{
    const struct node_request request = {.what = NODE_LINK};
    struct node *n = arg;
    struct error e;

    (void)sock, (void)what;
    if (n->conn)
        return;
    if (!n->configured && n->state != NODE_CONNECTED && clock_ns() - n->since_ns > FORGET_MS * 1000000ull) {
        log_info("node %s is forgotten: it is not in NODES, and not there", n->address);
        node_free(n);
        return;
    }
    int status = conn_open(n->nodes, n->address, &request, 0, 0, &link_ops, n, &n->conn, &e);
    if (!status)
        n->conn->node = n;
    else if (status == -EAGAIN)
        retry_later(n); /* too many names are being resolved: not an error of the node */
    else
        link_failed(n, false, &e);
}

void node_start(struct node *n)
{
    (void)evtimer_assign(&n->timer, n->nodes->broker->base, on_timer, n);
    (void)event_add_ms(&n->timer, 0);
}

/* The node has connected to this one, so its link may succeed now: tries at once. */
static void node_hurry(struct node *n)
{
    if (n->conn)
        return;
    n->backoff_ms = BACKOFF_FIRST_MS;
    (void)event_add_ms(&n->timer, 0);
}

static void link_answered(struct conn *c)
{
    struct node *n = c->owner;

    log_info("node %s is connected", n->address);
    state_set(n, NODE_CONNECTED, "");
    n->was_connected = true;
    n->backoff_ms = BACKOFF_FIRST_MS;
    conn_beat(c);
}

static void link_beat(struct conn *c, uint64_t round_trip_ns)
{
    struct node *n = c->owner;

    n->round_trip_ns = round_trip_ns;
    conn_limit(c, HEARTBEAT_MS);
}

static void link_ended(struct conn *c, const struct error *why)
{
    struct node *n = c->owner;

    n->conn = NULL;
    n->losses += n->state == NODE_CONNECTED && !n->nodes->closing;
    link_failed(n, conn_refused(c, why), why);
}

static const struct conn_ops link_ops = {.answered = link_answered, .beat = link_beat, .late = conn_beat, .ended = link_ended};

/* ---- the connections of others ---- */

static void guest_asked(struct conn *c)
{
    struct node *n = node_know(c->nodes, c->who);

    if (!strcmp(c->who, c->nodes->own)) {
        (void)conn_answer(c, -EADDRNOTAVAIL, "its NODE_ADDRESS is that of the node that asks");
        conn_end(c, -EPROTO, "its NODE_ADDRESS is that of this node");
        return;
    }
    c->node = n;
    if (n)
        node_hurry(n);
    if (c->request.what == NODE_PEER) {
        peer_hold(c);
        return;
    }
    int status = conn_answer(c, 0, "");
    conn_limit(c, LINK_IDLE_MS);
    if (status)
        conn_end(c, status, "%s", strerror(-status));
}

static void guest_late(struct conn *c)
{
    if (c->state == CONN_LINKED) {
        conn_end(c, -ETIMEDOUT, "its link has been silent for %d ms", LINK_IDLE_MS);
        return;
    }
    char text[FCC_TEXT_MAX];
    (void)snprintf(text, sizeof(text), "job %u/%s has no process there", c->request.uid, c->request.job);
    (void)conn_answer(c, -ETIMEDOUT, text);
    conn_end(c, -ETIMEDOUT, "%s", text);
}

static void guest_ended(struct conn *c, const struct error *why)
{
    bool known = c->state == CONN_HELD || c->state == CONN_LINKED;

    if (c->nodes->closing)
        return;
    if (known && why->status != -EPROTO && why->status != -EACCES) {
        log_debug("node %s: %s", c->who, why->text);
        return;
    }
    c->nodes->refused++;
    nodes_complain(c->nodes, c->who, why);
}

const struct conn_ops guest_ops = {.asked = guest_asked, .late = guest_late, .ended = guest_ended};
