/* SPDX-License-Identifier: MIT
 *
 * node_ping.c - fccctl ping: makes a connection to a node, and sends heartbeats on it, one after the other.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/broker/nodes/node.h"
#include "proto/base/json_fd.h"

#define PINGS_AT_ONCE 8 /* pings of one user */

struct ping {
    struct visitor *visitor;
    struct conn *conn;
    uint32_t count, done;
    uint64_t times_ns[];
};

static int order(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static struct json_object *ping_describe(struct ping *p, const char *address)
{
    struct json_object *o = json_object_new_object();
    const uint64_t *t = p->times_ns;
    uint32_t below = (p->count - 1) / 2, above = p->count / 2;

    qsort(p->times_ns, p->count, sizeof(p->times_ns[0]), order);
    JSON_ADD(o, {"address", json_text(address)}, {"round_trips", json_int(p->count)},
             {"min_us", json_double((double)t[0] / 1e3)}, {"median_us", json_double((double)(t[below] + t[above]) / 2e3)},
             {"max_us", json_double((double)t[p->count - 1] / 1e3)});
    return o;
}

static void ping_finish(struct conn *c)
{
    struct ping *p = c->owner;
    struct visitor *v = p->visitor;
    struct error e = {0};
    int fd = json_to_fd(ping_describe(p, c->who), &e);

    (void)conn_release(c, false);
    free(p);
    visitor_pinged(v, fd, &e);
}

static void ping_beat(struct conn *c, uint64_t round_trip_ns)
{
    struct ping *p = c->owner;

    p->times_ns[p->done++] = round_trip_ns;
    if (p->done == p->count)
        ping_finish(c);
    else
        conn_beat(c);
}

static void ping_ended(struct conn *c, const struct error *why)
{
    struct ping *p = c->owner;
    struct visitor *v = p->visitor;
    struct error e;

    (void)error_set(&e, why->status, "node %s: %s", c->who, why->text);
    free(p);
    visitor_pinged(v, -1, &e);
}

static const struct conn_ops ping_ops = {.answered = conn_beat, .beat = ping_beat, .ended = ping_ended};

/* May the visitor ping that address? A broker that runs as root must not connect anywhere for anybody. So only root and the
 * broker's own user may ping a node that is not in NODES, even if NODES is empty: unlike a job, a ping is not needed for
 * work. */
static int ping_permit(const struct visitor *v, const char *address, struct error *e)
{
    const struct visitor *other;
    const struct node *n = node_find(v->broker->nodes, address);
    unsigned pings = 0;

    if (v->uid != 0 && v->uid != geteuid() && !(n && n->configured))
        return error_set(e, -EPERM, "ping: node %s is not in this node's NODES: only root may ask for others, not uid %u",
                         address, v->uid);
    LIST_FOREACH(other, &v->broker->visitors, link)
        pings += other->ping && other->user == v->user;
    if (pings >= PINGS_AT_ONCE)
        return error_set(e, -EAGAIN, "ping: uid %u waits for %u at a time already: allowed are %d", v->uid, pings,
                         PINGS_AT_ONCE);
    return 0;
}

int ping_start(struct visitor *v, const struct fcc_query *q, struct error *e)
{
    const struct node_request request = {.what = NODE_LINK};
    struct nodes *ns = v->broker->nodes;
    struct ping *p;

    if (!memchr(q->text, 0, FCC_NODE_MAX))
        return error_set(e, -EINVAL, "ping: the node's address: allowed is " ADDRESS_ALLOWED);
    if (q->comm < 1 || q->comm > FCC_PINGS_MAX)
        return error_set(e, -EINVAL, "ping: %u round trips: allowed are 1 to %u", q->comm, FCC_PINGS_MAX);
    if (node_check(ns, q->text, e) || ping_permit(v, q->text, e))
        return e->status;
    p = calloc(1, sizeof(*p) + q->comm * sizeof(p->times_ns[0]));
    if (!p)
        return error_set(e, -ENOMEM, "out of memory");
    p->visitor = v;
    p->count = q->comm;
    int status = conn_open(ns, q->text, &request, 0, v->uid, &ping_ops, p, &p->conn, e);
    if (status) {
        free(p);
        return status;
    }
    v->ping = p;
    return 0;
}

void ping_forget(struct ping *p)
{
    (void)conn_release(p->conn, false);
    free(p);
}
