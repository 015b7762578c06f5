/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "proxy_inside.h"

#define PROXY_LAST_READS 64 /* from a node whose link was lost */

/* Closing the fd alone does not take it out of epoll's set, if another process (which handed it over) still has it open. */
void source_close(struct proxy *p, struct source *s)
{
    assert(s->link || s->receiver); /* it is open */
    (void)epoll_ctl(p->epoll, EPOLL_CTL_DEL, s->link ? s->link->fd : s->receiver->fd, NULL);
    if (s->link)
        s->link->ops->link_close(s->link);
    else
        s->receiver->ops->receiver_close(s->receiver);
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

void node_link_close(struct proxy *p, struct node *node)
{
    if (node->link)
        source_close(p, node->link);
    node->link = NULL;
}

void node_failed(struct proxy *p, uint32_t index, const struct error *e)
{
    struct node *node = &p->nodes[index];

    if (node->is_failed)
        return;
    node->is_failed = true;
    p->owner.failed(p->owner.ctx, index, e);
}

int incoming_take(struct proxy *p, struct source *s)
{
    uint32_t index = s->node;
    int status = net_receive(s->receiver, p->now_ns);

    s->is_ready = status > 0;
    if (status >= 0)
        return status;
    struct error e = s->receiver->error;
    if (status != -ESHUTDOWN) {
        net_count(&p->nodes[index].received.errors, 1);
        node_link_close(p, &p->nodes[index]); /* a node that is silent or hostile takes nothing either */
    }
    TAILQ_REMOVE(&p->incoming, s, entry);
    source_close(p, s);
    node_failed(p, index, &e);
    return status;
}

/* A node that has sent its last and ends closes all its connections. What it sent before comes first: the owner may find that
 * nothing is missing. */
void link_failed(struct proxy *p, struct source *s)
{
    uint32_t index = s->node;
    struct error e = s->link->error;
    struct source *in, *next;

    if (e.status != -ESHUTDOWN)
        net_count(&p->nodes[index].sent.errors, 1);
    node_link_close(p, &p->nodes[index]);
    for (in = TAILQ_FIRST(&p->incoming); in; in = next) {
        next = TAILQ_NEXT(in, entry);
        for (int reads = 0; in->node == index && reads < PROXY_LAST_READS && incoming_take(p, in) > 0;)
            reads++;
    }
    node_failed(p, index, &e);
}

static void arrival_take(struct proxy *p, struct source *s)
{
    struct node *node = &p->nodes[s->node];
    struct epoll_event event = {.events = s->link ? EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET : EPOLLIN, .data.ptr = s};

    node->is_failed = false;
    if (s->link) {
        node_link_close(p, node);
        node->link = s;
        node->serial++;
    } else {
        TAILQ_INSERT_TAIL(&p->incoming, s, entry);
    }
    if (!epoll_ctl(p->epoll, EPOLL_CTL_ADD, s->link ? s->link->fd : s->receiver->fd, &event))
        return;
    struct error *e = s->link ? &s->link->error : &s->receiver->error; /* found at the next turn */
    (void)error_set(e, -errno, "cannot watch a connection: %s", strerror(errno));
    s->is_ready = true;
}

static void node_forget(struct proxy *p, uint32_t index)
{
    struct source *in, *next;

    node_link_close(p, &p->nodes[index]);
    for (in = TAILQ_FIRST(&p->incoming); in; in = next) {
        next = TAILQ_NEXT(in, entry);
        if (in->node != index)
            continue;
        TAILQ_REMOVE(&p->incoming, in, entry);
        source_close(p, in);
    }
    p->nodes[index].is_failed = true; /* the owner knows */
}

bool arrivals_take(struct proxy *p)
{
    struct source_head taken = TAILQ_HEAD_INITIALIZER(taken);
    struct source *s;
    uint64_t forgotten;

    if (!atomic_load_explicit(&p->arrived, memory_order_acquire))
        return false;
    (void)pthread_mutex_lock(&p->lock);
    atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
    TAILQ_CONCAT(&taken, &p->arrivals, entry);
    forgotten = p->forgotten;
    p->forgotten = 0;
    (void)pthread_mutex_unlock(&p->lock);
    for (; forgotten; forgotten &= forgotten - 1)
        node_forget(p, (uint32_t)__builtin_ctzll(forgotten));
    while ((s = TAILQ_FIRST(&taken))) {
        TAILQ_REMOVE(&taken, s, entry);
        arrival_take(p, s);
    }
    return true;
}

/* ---- for others ---- */

void bell_ring(const struct proxy *p)
{
    static const uint64_t one = 1;
    ssize_t n = write(p->doorbell, &one, sizeof(one)); /* fails only if it rings already */
    (void)n;
}

static int connection_add(struct proxy *p, enum event_of of, uint32_t node, int sock, struct error *e)
{
    struct source *s = node < PROXY_NODES ? calloc(1, sizeof(*s)) : NULL;
    int status;

    if (!s) {
        (void)close(sock);
        return node < PROXY_NODES ? error_set(e, -ENOMEM, "no memory for a connection")
                                  : error_set(e, -EINVAL, "node %u: there are %u at most", node, PROXY_NODES);
    }
    const struct net_ops *ops = p->options.net_ops ? p->options.net_ops : p->options.choose(p->owner.ctx, sock, e);
    struct net_counts *counts = of == EVENT_LINK ? &p->nodes[node].sent : &p->nodes[node].received;
    atomic_store_explicit(&counts->device, NULL, memory_order_relaxed); /* the end says which, if it has one */
    s->of = of;
    s->node = node;
    if (!ops)
        status = e->status;
    else if (of == EVENT_LINK)
        status = ops->link_open(sock, &p->options.net, counts, &s->link, e);
    else
        status = ops->receiver_open(sock, &p->options.net, &p->sink, counts, &s->receiver, e);
    if (status) {
        (void)close(sock);
        free(s);
        return status;
    }
    assert(ops); /* or status said why not */
    atomic_store_explicit(&counts->transport, ops->name, memory_order_release);
    (void)pthread_mutex_lock(&p->lock);
    TAILQ_INSERT_TAIL(&p->arrivals, s, entry);
    atomic_store_explicit(&p->arrived, 1, memory_order_release);
    (void)pthread_mutex_unlock(&p->lock);
    bell_ring(p);
    return 0;
}

static_assert(PROXY_NODES <= 64, "a bit each");

void proxy_forget(struct proxy *p, uint32_t node)
{
    struct source *s, *next;

    (void)pthread_mutex_lock(&p->lock);
    for (s = TAILQ_FIRST(&p->arrivals); s; s = next) { /* the thread has not seen these */
        next = TAILQ_NEXT(s, entry);
        if (s->node != node)
            continue;
        TAILQ_REMOVE(&p->arrivals, s, entry);
        if (s->link)
            s->link->ops->link_close(s->link);
        else
            s->receiver->ops->receiver_close(s->receiver);
        free(s);
    }
    p->forgotten |= UINT64_C(1) << node;
    atomic_store_explicit(&p->arrived, 1, memory_order_release);
    (void)pthread_mutex_unlock(&p->lock);
    bell_ring(p);
}

int proxy_link_add(struct proxy *p, uint32_t node, int sock, struct error *e)
{
    return connection_add(p, EVENT_LINK, node, sock, e);
}

int proxy_receive(struct proxy *p, uint32_t node, int sock, struct error *e)
{
    return connection_add(p, EVENT_INCOMING, node, sock, e);
}
