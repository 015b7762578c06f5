/* SPDX-License-Identifier: MIT
 *
 * proxy.h - the thread that sends slices to other nodes, and receives from them; a thread of the owner may do its work (proxy_lead()).
 *
 * Workgroups push triggers into the proxy's FIFO. The proxy asks its owner what each means (resolve()), writes the slice over
 * that node's link, and raises flags in the order of their triggers, without waiting in between. It answers an END trigger by
 * done() when all sends of earlier triggers are flushed, that is, when their source memory is free.
 *
 *   workgroup              proxy                                other node's proxy
 *     store the slice in the
 *     send staging buffer
 *     fifo_push(PUT) ------> resolve(), net_write() ---rows---> into the region
 *     fifo_push(FLAG) -----> resolve(), net_flag()  ---flag---> raise()
 *   a program's own triggers
 *     (its trigger FIFO) <-- more(), net_write(), net_signal() -----> into the region
 *   engine
 *     fifo_push(END) ------> done(), when the rows have been sent
 *
 * Each GPU has a FIFO of its own, and cannot wake the proxy. So the proxy does not sleep while kernels run that may push
 * (proxy_stay_awake()); after an idle time of 25 times SPIN_US it polls every 100 us. A launch on GPUs pushes its END after its
 * kernels have ended, so all their triggers are in the GPUs' FIFOs by then. The proxy handles an END only after it has seen
 * these FIFOs empty.
 *
 * A node has one or several links, its rails. Each rail is ordered, and there is no order between rails. The owner chooses the
 * rail of each trigger, the same one for sends whose order matters. END covers all rails.
 *
 * If a link's queue is full, the FIFO waits, and so do the workgroups when the FIFO is full. What is queued on other links, and
 * receiving, go on. So two proxies that send to each other cannot deadlock: each one receives whatever the state of its own
 * sends, so the other's queue drains and has room again. The link gives up on a receiver that does not read at all after
 * NET_SILENT_MS.
 */
#ifndef FCC_DAEMON_NET_PROXY_H
#define FCC_DAEMON_NET_PROXY_H

#include "daemon/net/fifo.h"
#include "daemon/net/net.h"

#define PROXY_NODES 64u /* other nodes, numbered from 0 */
#define PROXY_FEEDS 17u /* the most FIFOs; the first is the proxy's own */

struct proxy;

/* The meaning of a trigger. */
struct proxy_send {
    uint32_t node, rail;
    struct net_place to;  /* PUT: the destination. FLAG: the communicator and rank */
    const void *from;     /* PUT: the first row, which must not change before done() */
    struct net_area area; /* PUT: the rows */
    uint32_t more;        /* PUT: number of further areas of the same shape */
    uint64_t plane_bytes; /* PUT: distance from one area to the next, at both ends */
    uint32_t flag;        /* FLAG: the flag's number */
    uint64_t epoch;       /* FLAG: the flag's value. From more(): the signal's value */
    /* From more() only: rows (if area.rows is not 0), then a signal (if has_signal). */
    bool is_written; /* the rows are queued; set by the proxy */
    bool has_signal;
    struct net_place signal;
};

#define PROXY_EARLY_SENDS 16u

/* Writes and flags that go with a message, before it is known whether the operator that they belong to will run (net.h: early()). */
struct proxy_early {
    struct net_early_head head; /* without the length */
    unsigned n;
    struct proxy_early_send {
        struct net_place to;
        const void *from; /* free again when proxy_message() returns */
        uint64_t bytes;   /* NET_EARLY_MOST, all together, at most */
        bool has_flag;    /* raise it behind the write */
        uint32_t flag;
        uint64_t epoch;
    } sends[PROXY_EARLY_SENDS];
    uint64_t slices; /* the owner's */
    bool are_sent;   /* set by proxy_message(): they are. Not if something else waits to be sent there */
};

/* The proxy's owner. One thread at a time calls all functions, the proxy's or the leader's; they must not wait (so must not push),
 * nor call proxy_stop(). */
struct proxy_owner {
    /* Sets *out to the meaning of a PUT or FLAG trigger. Returns false to drop the trigger. Called once for each, in their
     * order. */
    bool (*resolve)(void *ctx, const struct fcc_trigger *trigger, struct proxy_send *out);
    /* The answer to an END trigger: the source memory of all earlier triggers is free, as they were sent or given up. */
    void (*done)(void *ctx, uint32_t launch);
    /* The connections with a node have failed; if one rail fails, all are closed. -ESHUTDOWN: the node has closed them in an
     * orderly way. What it had sent before has been received, unless it was silent or hostile. Triggers for the node are dropped from now on. Called once, until a new connection to the node or from it is
     * added. */
    void (*failed)(void *ctx, uint32_t node, const struct error *e);
    /* struct net_sink's functions. */
    int (*raise)(void *ctx, uint64_t comm, uint32_t rank, uint32_t flag, uint64_t epoch);
    int (*message)(void *ctx, uint32_t node, const void *bytes, uint32_t length);
    int (*early)(void *ctx, const struct net_early_head *head, uint64_t *offset);
    void *ctx;
    /* Other things to send: sets *out and returns true, or returns false if there is nothing now. These sends are ordered among
     * themselves, and END covers them. NULL: there are none. */
    bool (*more)(void *ctx, struct proxy_send *out);
    /* The longest time in ms after which an idle proxy is to call more() again, as nobody wakes it for that. -1: not
     * necessary. */
    int (*more_ms)(void *ctx);
};

struct proxy_options {
    const struct net_ops *net_ops; /* the transport; NULL: choose() decides for each connection */
    /* Chooses a connection's transport, and may change that connection's options. Called with owner.ctx by the thread that adds
     * the connection. Not used if net_ops is set. Returns NULL on error. */
    const struct net_ops *(*choose)(void *ctx, int sock, struct net_options *net, struct error *e);
    struct net_options net;      /* for all connections, except `rail` */
    struct net_regions *regions; /* outlives the proxy */
    uint32_t capacity;           /* slots of the FIFO; a power of two */
    uint32_t producers;          /* the most threads that push at the same time; at most half of capacity */
    uint32_t spin_us;            /* how long the thread polls before it sleeps */
};

int proxy_start(const struct proxy_owner *owner, const struct proxy_options *options, struct proxy **out, struct error *e);
/* Stops the thread, which takes little time. After that no source memory is in use, no region is written, and no function of
 * the owner is called any more. Queued sends are lost. */
void proxy_stop(struct proxy *p);
/* Frees a stopped proxy. Nobody may push any more. */
void proxy_free(struct proxy *p);

/* The FIFO to push to. A push wakes the proxy. */
struct fifo *proxy_fifo(struct proxy *p);

/* Adds a FIFO whose producers do not wake the proxy. The caller owns it and keeps it until the proxy has been stopped. Any
 * thread. Returns
 * -ENOMEM if there are PROXY_FEEDS already. */
int proxy_feed_add(struct proxy *p, struct fifo *fifo, struct error *e);
/* Between a call with true and the matching call with false the proxy polls without sleeping. It finds what was pushed before
 * the call with false. Any thread. */
void proxy_stay_awake(struct proxy *p, bool awake);

/* The leader: a thread of the owner that does the proxy's work itself while it is awake, so that nobody need be woken to send or to
 * receive. It calls proxy_drive() again and again. It sleeps by proxy_rest(), then waits until proxy_rest_fd() is readable (and for
 * what else it waits for), then proxy_wake(). The proxy's thread stands in where the leader has not called for some milliseconds,
 * and for what falls due while it sleeps: heartbeats, a silent node.
 *
 * There is no leader where a GPU has a FIFO, or a link is not tcp's. proxy_drive() then does nothing and returns false. */
void proxy_lead(struct proxy *p);
/* Ends that for good, from the next turn on. Any thread that does not have the turn. */
void proxy_lead_end(struct proxy *p);
bool proxy_leads(const struct proxy *p);
/* Takes and sends what there is, for a bounded time, and never blocks. Returns whether there was anything. */
bool proxy_drive(struct proxy *p);
/* Announces that the leader is about to sleep. Returns false if it must not: there is a trigger. */
bool proxy_rest(struct proxy *p);
void proxy_wake(struct proxy *p);
int proxy_rest_fd(const struct proxy *p);

/* Adds a link to a node. The proxy takes the socket over, also if the call fails. Triggers pushed after the call use the link.
 * A new link replaces the node's old link of that rail; a new link of rail 0 replaces the links of all rails. Any thread. */
int proxy_link_add(struct proxy *p, uint32_t node, uint32_t rail, int sock, struct error *e);
/* Adds a receiving end for what a node sends on that rail of its own. A rail may have several. Any thread. */
int proxy_receive(struct proxy *p, uint32_t node, uint32_t rail, int sock, struct error *e);
/* The rails that the transport has made for the link added last for that node and rail. To be called by the thread that adds
 * links. */
struct net_rails proxy_rails(const struct proxy *p, uint32_t node, uint32_t rail);
/* The adapter of the link added last for that node and rail; NULL: none, or not yet known. Any thread. */
const char *proxy_rail_device(const struct proxy *p, uint32_t node, uint32_t rail);

/* Whether the source memory of all triggers is free that the calling thread, and threads that it has synchronised with, have pushed so far. Then
 * nobody need push END for them. False where that is not known: without a leader, or while somebody else is at it. Any thread; never waits. */
bool proxy_has_sent(struct proxy *p);

/* Sends a message to a node over its rail 0, behind all that was queued there before and in the order of calls; the node's owner gets it by
 * message(). The bytes are copied. `early` (NULL: nothing) goes behind it. Returns 0; -ENOTCONN: no link there carries messages, or it has failed; -ENOBUFS: too many wait; or
 * the link's error, of which the owner hears by failed(). The owner's thread, which leads if any does: what it has sent leaves with its next
 * proxy_drive(). */
int proxy_message(struct proxy *p, uint32_t node, const void *bytes, uint32_t length, struct proxy_early *early);
/* Handle frames that early() has kept. The owner's thread. */
int proxy_replay(struct proxy *p, const void *frames, uint64_t length, struct error *e);
/* Whether something waits to be sent over the node's rail 0. The owner's thread. */
bool proxy_is_sending(struct proxy *p, uint32_t node);
/* Before proxy_stop(): sends what the sockets take now. */
void proxy_flush(struct proxy *p);

/* Closes all connections with a node that the owner has given up. failed() is not called for it until there is a new
 * connection, except for a call that may be under way right now. Any thread. */
void proxy_forget(struct proxy *p, uint32_t node);
/* Closes a node's connections to here on which nothing has come yet: perhaps nobody has their other ends. The node is not told as failed, as it
 * is not when such a connection ends by itself. Any thread. */
void proxy_doubt(struct proxy *p, uint32_t node);

/* Wakes the proxy, because more() has something to send or more_ms() has changed. Any thread. */
void proxy_look(struct proxy *p);

/* A node's traffic since the proxy's start, over all rails. Any thread. */
const struct net_counts *proxy_sent(const struct proxy *p, uint32_t node);
const struct net_counts *proxy_received(const struct proxy *p, uint32_t node);

#endif
