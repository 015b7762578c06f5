/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "daemon/net/proxy_inside.h"
#include "proto/base/clock.h"

#define PROXY_LAST_READS 64 /* reads from a node after its link has failed */

static void end_close(const struct source *s)
{
    if (s->link)
        s->link->ops->link_close(s->link);
    else
        s->receiver->ops->receiver_close(s->receiver);
}

/* close() alone does not remove a descriptor from epoll's set if another process (the broker that handed it over) still has it
 * open. */
void source_close(struct proxy *p, struct source *s)
{
    assert(s->link || s->receiver); /* the source is open */
    (void)epoll_ctl(p->epoll, EPOLL_CTL_DEL, s->link ? s->link->fd : s->receiver->fd, NULL);
    end_close(s);
    s->link = NULL;
    s->receiver = NULL;
    TAILQ_INSERT_TAIL(&p->closed, s, entry);
}

void closed_free(struct source_head *head)
{
    struct source *s;

    while ((s = TAILQ_FIRST(head))) {
        TAILQ_REMOVE(head, s, entry);
        free(s);
    }
}

void node_links_close(struct proxy *p, struct node *node)
{
    node_letters_free(node);
    for (uint32_t r = 0; r < NET_RAILS_MAX; r++) {
        if (node->links[r])
            source_close(p, node->links[r]);
        node->links[r] = NULL;
    }
}

void node_failed(struct proxy *p, uint32_t index, const struct error *e)
{
    struct node *node = &p->nodes[index];

    if (node->is_failed)
        return;
    node->is_failed = true;
    node->is_ending = false;
    p->owner.failed(p->owner.ctx, index, e);
}

/* To be called when a node has closed one of its connections, whichever way data goes on it. That node closes all of them, but data may still
 * be in flight on others. So these are read to their end, which must come within silent_ms. Returns true if there are any. */
static bool others_end(struct proxy *p, uint32_t index)
{
    struct source *in;
    bool any = false;

    TAILQ_FOREACH(in, &p->incoming, entry) {
        if (in->node != index)
            continue;
        any = true;
        if (!in->limit_ns)
            in->limit_ns = p->now_ns + p->options.net.silent_ms * UINT64_C(1000000);
    }
    return any;
}

int incoming_take(struct proxy *p, struct source *s)
{
    uint32_t index = s->node;
    int status = net_receive(s->receiver, p->now_ns);

    if (status >= 0 && s->limit_ns && p->now_ns >= s->limit_ns)
        status = error_set(&s->receiver->error, -ECONNRESET, "it has closed one of its connections, and not this one");
    s->is_ready = status > 0;
    if (status >= 0)
        return status;
    if (!s->receiver->heard && !p->nodes[index].is_ending && (status == -ESHUTDOWN || status == -ECONNRESET)) {
        /* Between the brokers it was lost before the sender had it (daemon/broker/nodes/node_peer.c); who lives connects again. */
        TAILQ_REMOVE(&p->incoming, s, entry);
        source_close(p, s);
        return status;
    }
    struct error e = s->receiver->error;
    if (status != -ESHUTDOWN) {
        /* After a failure, errors of the node's other rails are not counted. */
        net_count(&p->nodes[index].received.errors, !p->nodes[index].is_failed);
        node_links_close(p, &p->nodes[index]); /* nothing more is sent to a silent or hostile node */
    }
    TAILQ_REMOVE(&p->incoming, s, entry);
    source_close(p, s);
    if (status == -ESHUTDOWN && others_end(p, index) && !p->nodes[index].is_failed)
        p->nodes[index].is_ending = true; /* the last of them tells */
    else if (status != -ESHUTDOWN || !others_end(p, index))
        node_failed(p, index, &e);
    return status;
}

/* A node that ends closes all its connections, in whatever order, and their ends may overtake each other on the way here. What it sent before
 * is received before the owner is told, which may then find that nothing is missing. */
void link_failed(struct proxy *p, struct source *s)
{
    uint32_t index = s->node;
    struct error e = s->link->error;
    struct source *in, *next;

    p->now_ns = clock_ns(); /* the caller's turn may have begun long ago */
    if (e.status != -ESHUTDOWN)
        net_count(&p->nodes[index].sent.errors, 1);
    node_links_close(p, &p->nodes[index]);
    TAILQ_FOREACH_SAFE(in, &p->incoming, entry, next) {
        for (int reads = 0; in->node == index && reads < PROXY_LAST_READS && incoming_take(p, in) > 0;)
            reads++;
    }
    if ((e.status == -ESHUTDOWN || e.status == -ECONNRESET) && !p->nodes[index].is_failed && others_end(p, index))
        p->nodes[index].is_ending = true; /* the last of them tells */
    else
        node_failed(p, index, &e);
}

static void arrival_take(struct proxy *p, struct source *s)
{
    struct node *node = &p->nodes[s->node];
    struct epoll_event event = {.events = s->link ? EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET : EPOLLIN, .data.ptr = s};

    node->is_failed = node->is_ending = false;
    if (s->link) {
        if (s->rail == 0) /* a node's first link: older links belong to a former node of this number */
            node_links_close(p, node);
        else if (node->links[s->rail])
            source_close(p, node->links[s->rail]);
        node->links[s->rail] = s;
        node->serials[s->rail]++;
        if (p->nrails <= s->rail)
            p->nrails = s->rail + 1;
        if (p->nnodes <= s->node)
            p->nnodes = s->node + 1;
    } else {
        TAILQ_INSERT_TAIL(&p->incoming, s, entry);
    }
    if (!epoll_ctl(p->epoll, EPOLL_CTL_ADD, s->link ? s->link->fd : s->receiver->fd, &event))
        return;
    struct error *e = s->link ? &s->link->error : &s->receiver->error; /* handled in the thread's next iteration */
    (void)error_set(e, -errno, "cannot watch a connection: %m");
    s->is_ready = true;
}

static void node_forget(struct proxy *p, uint32_t index)
{
    struct source *in, *next;

    node_links_close(p, &p->nodes[index]);
    TAILQ_FOREACH_SAFE(in, &p->incoming, entry, next) {
        if (in->node != index)
            continue;
        TAILQ_REMOVE(&p->incoming, in, entry);
        source_close(p, in);
    }
    p->nodes[index].is_ending = false;
    p->nodes[index].is_failed = true; /* the owner, who gave the node up, need not be told */
}

static void node_doubt(struct proxy *p, uint32_t index)
{
    struct source *in, *next;

    if (p->nodes[index].is_ending) /* the last connection tells */
        return;
    TAILQ_FOREACH_SAFE(in, &p->incoming, entry, next) {
        assert(in->receiver); /* as in all of this list */
        if (in->node != index || in->receiver->heard)
            continue;
        TAILQ_REMOVE(&p->incoming, in, entry);
        source_close(p, in);
    }
}

bool arrivals_take(struct proxy *p)
{
    struct source_head taken = TAILQ_HEAD_INITIALIZER(taken);
    struct source *s;
    uint64_t forgotten, doubted;

    if (!atomic_load_explicit(&p->arrived, memory_order_acquire))
        return false;
    (void)pthread_mutex_lock(&p->lock);
    atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
    TAILQ_CONCAT(&taken, &p->arrivals, entry);
    forgotten = p->forgotten;
    p->forgotten = 0;
    doubted = p->doubted;
    p->doubted = 0;
    (void)pthread_mutex_unlock(&p->lock);
    for (; forgotten; forgotten &= forgotten - 1)
        node_forget(p, (uint32_t)__builtin_ctzll(forgotten));
    while ((s = TAILQ_FIRST(&taken))) {
        TAILQ_REMOVE(&taken, s, entry);
        arrival_take(p, s);
    }
    for (; doubted; doubted &= doubted - 1)
        node_doubt(p, (uint32_t)__builtin_ctzll(doubted));
    return true;
}

/* ---- for others ---- */

void proxy_look(struct proxy *p)
{
    static const uint64_t one = 1;
    ssize_t n = write(p->doorbell, &one, sizeof(one)); /* fails only if the counter is full, so the bell rings already */
    (void)n;
}

/* Opens the sending or receiving end of a new connection. If that fails, the caller closes the socket. */
static int source_open(struct proxy *p, struct source *s, int sock, struct error *e)
{
    struct net_options net = p->options.net;
    struct node *node = &p->nodes[s->node];
    int status;

    net.rail = s->rail;
    const struct net_ops *ops = p->options.net_ops ? p->options.net_ops : p->options.choose(p->owner.ctx, sock, &net, e);
    if (!ops)
        return e->status;
    if (s->of == EVENT_LINK)
        status = ops->link_open(sock, &net, &node->sent, &s->link, e);
    else
        status = ops->receiver_open(sock, &net, &s->sink, &node->received, &s->receiver, e);
    if (status)
        return status;
    if (ops != &net_tcp)
        proxy_lead_end(p);
    if (s->of == EVENT_LINK) {
        node->rails[s->rail] = s->link->rails;
        atomic_store_explicit(&node->devices[s->rail], s->link->device, memory_order_relaxed);
    }
    atomic_store_explicit(s->of == EVENT_LINK ? &node->sent.transport : &node->received.transport, ops->name,
                          memory_order_release);
    return 0;
}

static int connection_add(struct proxy *p, enum event_of of, uint32_t node, uint32_t rail, int sock, struct error *e)
{
    struct source *s = node < PROXY_NODES && rail < NET_RAILS_MAX ? calloc(1, sizeof(*s)) : NULL;
    int status;

    if (node >= PROXY_NODES)
        status = error_set(e, -EINVAL, "node %u: there are %u at most", node, PROXY_NODES);
    else if (rail >= NET_RAILS_MAX)
        status = error_set(e, -EINVAL, "rail %u: there are %u at most", rail, NET_RAILS_MAX);
    else if (!s)
        status = error_set(e, -ENOMEM, "no memory for a connection");
    else {
        *s = (struct source){.of = of, .node = node, .rail = rail, .sink = p->sink};
        s->sink.node = node;
        status = source_open(p, s, sock, e);
    }
    if (status) {
        (void)close(sock);
        free(s);
        return status;
    }
    (void)pthread_mutex_lock(&p->lock);
    TAILQ_INSERT_TAIL(&p->arrivals, s, entry);
    atomic_store_explicit(&p->arrived, 1, memory_order_release);
    (void)pthread_mutex_unlock(&p->lock);
    proxy_look(p);
    return 0;
}

static_assert(PROXY_NODES <= 64, "`forgotten` has a bit for each node");

void proxy_forget(struct proxy *p, uint32_t node)
{
    struct source *s, *next;

    (void)pthread_mutex_lock(&p->lock);
    TAILQ_FOREACH_SAFE(s, &p->arrivals, entry, next) { /* the proxy's thread has not taken these over */
        if (s->node != node)
            continue;
        TAILQ_REMOVE(&p->arrivals, s, entry);
        end_close(s);
        free(s);
    }
    p->forgotten |= UINT64_C(1) << node;
    atomic_store_explicit(&p->arrived, 1, memory_order_release);
    (void)pthread_mutex_unlock(&p->lock);
    proxy_look(p);
}

void proxy_doubt(struct proxy *p, uint32_t node)
{
    (void)pthread_mutex_lock(&p->lock);
    p->doubted |= UINT64_C(1) << node;
    atomic_store_explicit(&p->arrived, 1, memory_order_release);
    (void)pthread_mutex_unlock(&p->lock);
    proxy_look(p);
}

int proxy_link_add(struct proxy *p, uint32_t node, uint32_t rail, int sock, struct error *e)
{
    return connection_add(p, EVENT_LINK, node, rail, sock, e);
}

int proxy_receive(struct proxy *p, uint32_t node, uint32_t rail, int sock, struct error *e)
{
    return connection_add(p, EVENT_INCOMING, node, rail, sock, e);
}
