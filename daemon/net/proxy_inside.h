/* SPDX-License-Identifier: MIT
 *
 * proxy_inside.h - the proxy's internals. proxy.c has the thread and the triggers, proxy_connections.c the connections,
 * proxy_lead.c the thread that does the proxy's work in its stead, proxy_messages.c the owner's messages.
 */
#ifndef FCC_DAEMON_NET_PROXY_INSIDE_H
#define FCC_DAEMON_NET_PROXY_INSIDE_H

#include <pthread.h>

#include "daemon/net/proxy.h"
#include "proto/base/list.h"

#define PROXY_ENDS 256u /* the most END triggers that can wait */

enum event_of { EVENT_DOORBELL, EVENT_LINK, EVENT_INCOMING };

/* What an epoll event refers to. A closed source is freed only after the events of the same epoll_wait() have been handled, as
 * one of them may still refer to it. */
struct source {
    enum event_of of;
    uint32_t node, rail;
    struct net_sink sink;          /* EVENT_INCOMING: where what it receives goes */
    struct net_link *link;         /* EVENT_LINK; NULL: closed */
    struct net_receiver *receiver; /* EVENT_INCOMING; NULL: closed */
    bool is_ready;                 /* EVENT_INCOMING: there may be more to receive */
    /* EVENT_INCOMING: another rail of the node has been closed in an orderly way, and this one must be closed before this time.
     * 0: none has been closed. */
    uint64_t limit_ns;
    TAILQ_ENTRY(source) entry; /* in arrivals, incoming or closed */
};
TAILQ_HEAD(source_head, source);

/* A message that waits. */
struct letter {
    TAILQ_ENTRY(letter) entry; /* node.letters */
    uint32_t length;
    unsigned char bytes[];
};
TAILQ_HEAD(letter_head, letter);

struct node {
    struct source *links[NET_RAILS_MAX]; /* the link of each rail; NULL: none */
    struct letter_head letters;          /* messages for which rail 0's queue has had no room, in their order */
    uint64_t letters_bytes;
    uint64_t serials[NET_RAILS_MAX]; /* number of links that each rail has had; identifies the current one */
    bool is_failed;                  /* the connections have failed, and the owner has been told */
    bool is_ending; /* the node has closed what we send over; when what it has sent has been read, the owner is told */
    struct net_counts sent, received;      /* over all rails */
    struct net_rails rails[NET_RAILS_MAX]; /* for proxy_rails(); belongs to the thread that adds links */
    /* written when a link is added, later by the proxy's thread; read by any thread */
    _Atomic(const char *) devices[NET_RAILS_MAX];
};

/* An END trigger that waits, with the position of each link's queue when the trigger was taken. */
struct end {
    uint32_t launch;
    struct {
        uint64_t serial, queued;
    } mark[NET_RAILS_MAX][PROXY_NODES]; /* serial 0, which no link has: the rail had no link yet */
};

/* A FIFO, and the trigger that was last taken out of it. */
struct feed {
    struct fifo *fifo;
    bool is_held;            /* `held` waits for room in a link's queue */
    bool is_done;            /* the FIFO has been seen empty since the last END was taken */
    struct fcc_trigger held; /* the last trigger */
    struct proxy_send send;  /* the rest of a held PUT or FLAG */
};

struct proxy {
    struct fifo fifo;
    struct fifo_slot *slots; /* of `fifo` */
    struct proxy_owner owner;
    struct proxy_options options;
    struct net_sink sink;
    int epoll, doorbell;
    pthread_t thread;
    _Atomic uint32_t stop;
    /* Who holds this mutex is the proxy's thread for the time of a turn. */
    pthread_mutex_t turn;
    /* The leader (proxy_lead.c). `led`: there is one; changed under `turn`. `drives`: turns that it has done. `rests`: it sleeps
     * until `epoll` is readable. `relief` rings the thread that stands in for it. */
    _Atomic uint32_t led, drives, rests;
    bool may_not_lead; /* protected by turn: a connection or FIFO needs the proxy's own thread */
    int relief;
    _Atomic uint32_t awake; /* calls of proxy_stay_awake(true) without a matching call with false */
    /* feeds[0] has `fifo`. A thread that adds a feed holds `lock`, fills the feed in, then stores nfeeds (release). After that
     * the feed belongs to the proxy's thread. */
    struct feed feeds[PROXY_FEEDS];
    _Atomic uint32_t nfeeds;
    /* Connections that the proxy's thread has yet to take over. `arrived` is set after one was added to the list. */
    pthread_mutex_t lock;
    struct source_head arrivals; /* protected by lock */
    /* protected by lock: a bit for each node whose connections are to be closed before arrivals are taken */
    uint64_t forgotten;
    uint64_t
        doubted; /* protected by lock: a bit for each node whose connections to here are to be closed on which nothing has come */
    _Atomic uint32_t arrived;

    /* The fields from here on belong to the thread that has the turn, except for the nodes' counts, rails and devices. */
    struct node nodes[PROXY_NODES];
    uint32_t nrails; /* the largest number of rails that any node has had */
    uint32_t nnodes; /* nodes from here on have had no link, so each END's marks of theirs are 0 */
    struct source_head incoming, closed;
    struct source bell;
    uint64_t now_ns;
    uint64_t looked_ns; /* when epoll was asked last */
    bool more_next;     /* owner.more() and the proxy's own FIFO take turns: owner.more() is asked first next time */
    struct end *ends;   /* a ring: end n is at [n % PROXY_ENDS] */
    uint32_t ends_first, ends_next;
};

/* ---- proxy.c: called with the turn ---- */

/* Does once what there is to do; never blocks. Returns whether there was anything. */
bool proxy_turn(struct proxy *p);
/* Time in ms until something is due; -1: nothing is. */
int proxy_due_ms(const struct proxy *p);

/* ---- proxy_lead.c ---- */

static inline bool proxy_is_led(const struct proxy *p)
{
    return atomic_load_explicit(&p->led, memory_order_acquire);
}

/* The proxy's thread, while there is a leader: sleeps, and does what the leader leaves undone. Returns after a short time. */
void proxy_stand_in(struct proxy *p);
/* Any thread: wakes the thread from that. */
void proxy_relieve(struct proxy *p);
/* With the turn: whether it is to read by proxy_incoming_try() instead of asking epoll; sets now_ns then. */
bool proxy_reads_at_once(struct proxy *p);
/* Reads all connections to here. Returns whether anything had come, or ended. */
bool proxy_incoming_try(struct proxy *p);

/* ---- proxy_connections.c: called with the turn ---- */

void source_close(struct proxy *p, struct source *s);
void closed_free(struct source_head *head);
void node_links_close(struct proxy *p, struct node *node);
/* Tells the owner of a node's failure unless it has been told. */
void node_failed(struct proxy *p, uint32_t index, const struct error *e);
/* When to call incoming_take() even if nothing has arrived. */
static inline uint64_t incoming_due(const struct source *s)
{
    return s->limit_ns && s->limit_ns < s->receiver->due_ns ? s->limit_ns : s->receiver->due_ns;
}

/* Receives. Returns net_receive()'s result; an error means that the connection has been closed. */
int incoming_take(struct proxy *p, struct source *s);
/* Handles a link that is broken (net_link.error). */
void link_failed(struct proxy *p, struct source *s);
/* Takes over connections that proxy_link_add() and proxy_receive() have added. Returns true if there were any. */
bool arrivals_take(struct proxy *p);

/* ---- proxy_messages.c: called with the turn ---- */

/* Queues the messages that wait for a node with a rail 0, as far as there is room. Returns true if there was any. */
bool node_letters_send(struct proxy *p, uint32_t index);
/* Frees the messages that wait for a node. */
void node_letters_free(struct node *node);

#endif
