/* SPDX-License-Identifier: MIT
 *
 * proxy_inside.h - the proxy's parts: proxy.c is the thread and its triggers, proxy_connections.c what comes and goes.
 */
#ifndef FCC_DAEMON_NET_PROXY_INSIDE_H
#define FCC_DAEMON_NET_PROXY_INSIDE_H

#include <pthread.h>
#include <sys/queue.h>

#include "daemon/net/proxy.h"

#define PROXY_ENDS 256u /* END triggers that wait */

enum event_of { EVENT_DOORBELL, EVENT_LINK, EVENT_INCOMING };

/* What epoll tells of. Lives until the end of the turn after its fd is closed: `events` of the same look may name it still. */
struct source {
    enum event_of of;
    uint32_t node, rail;
    struct net_link *link;         /* EVENT_LINK; NULL: closed */
    struct net_receiver *receiver; /* EVENT_INCOMING; NULL: closed */
    bool is_ready;                 /* receiver: there may be more to take */
    uint64_t limit_ns; /* ... another rail of the node has ended in good order: this one has to, until then. 0: none has */
    TAILQ_ENTRY(source) entry; /* in arrivals, incoming or closed */
};
TAILQ_HEAD(source_head, source);

struct node {
    struct source *links[NET_RAILS_MAX];          /* by rail. NULL: there is none (any more) */
    uint64_t serials[NET_RAILS_MAX];              /* of the link: how many there have been */
    bool is_failed;                               /* and the owner knows */
    struct net_counts sent, received;             /* over all rails */
    struct net_rails rails[NET_RAILS_MAX];        /* proxy_rails(): who adds links */
    _Atomic(const char *) devices[NET_RAILS_MAX]; /* who adds a link, then the thread; any thread reads */
};

/* A launch that has pushed its last trigger: of each link, where its queue stood. */
struct end {
    uint32_t launch;
    struct {
        uint64_t serial, queued;
    } mark[NET_RAILS_MAX][PROXY_NODES]; /* those of rails that there were none of yet have serial 0, which no link has */
};

/* A FIFO, and the trigger that was taken out of it last. */
struct feed {
    struct fifo *fifo;
    bool is_held; /* it waits for room */
    bool is_done; /* since an END was taken: it has been seen empty */
    struct fcc_trigger held;
    struct proxy_send send; /* of a held PUT or FLAG: what is left of it */
};

struct proxy {
    struct fifo fifo;
    struct fifo_slot *own_slots;
    struct proxy_owner owner;
    struct proxy_options options;
    struct net_sink sink;
    int epoll, doorbell;
    pthread_t thread;
    _Atomic uint32_t stop;
    _Atomic uint32_t awake; /* proxy_stay_awake(): how many times */
    struct feed feeds
        [PROXY_FEEDS]; /* [0] has `fifo`. Who adds one (with `lock`) fills it in before nfeeds (release); then the thread's */
    _Atomic uint32_t nfeeds;
    /* Connections on their way to the thread. `arrived` is set after one is in the list. */
    pthread_mutex_t lock;
    struct source_head arrivals; /* lock */
    uint64_t forgotten;          /* lock: nodes, a bit each, whose connections are to be closed before these arrive */
    _Atomic uint32_t arrived;

    /* The thread's, the counts excepted. */
    struct node nodes[PROXY_NODES];
    uint32_t nrails; /* the largest number of them that any node has had */
    struct source_head incoming, closed;
    struct source bell;
    uint64_t now_ns;
    bool more_next;   /* owner.more is asked before the own FIFO: they take turns */
    struct end *ends; /* a ring of PROXY_ENDS: end n at [n % PROXY_ENDS] */
    uint32_t ends_first, ends_next;
};

/* ---- proxy_connections.c: the thread's, the bell excepted ---- */

void source_close(struct proxy *p, struct source *s);
void closed_free(struct source_head *head);
void node_links_close(struct proxy *p, struct node *node);
/* Tell the owner, if it does not know. */
void node_failed(struct proxy *p, uint32_t index, const struct error *e);
/* When to look at it even if nothing came. */
static inline uint64_t incoming_due(const struct source *s)
{
    return s->limit_ns && s->limit_ns < s->receiver->due_ns ? s->limit_ns : s->receiver->due_ns;
}

/* Receive. What net_receive() returns; if that is an error the connection is gone. */
int incoming_take(struct proxy *p, struct source *s);
/* A link of which net.h has said that it is broken. */
void link_failed(struct proxy *p, struct source *s);
/* Take over what proxy_link_add() and proxy_receive() have brought; true if there was something. */
bool arrivals_take(struct proxy *p);
void bell_ring(const struct proxy *p);

#endif
