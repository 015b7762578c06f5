/* SPDX-License-Identifier: MIT
 *
 * proxy.h - the thread that sends slices to other nodes, and takes what comes from there.
 *
 * Workgroups push triggers into its FIFO; the owner says what each means (resolve); the proxy writes the slice over the link of
 * that node, and flags behind it in the order of their triggers, without waiting for anything in between. An END trigger is
 * answered by done() when nothing that was pushed before it needs its source any more.
 *
 *   workgroup              proxy                                other node's proxy
 *     slice stored in shadow
 *     fifo_push(PUT) ------> resolve(), net_write() ---rows---> into the region
 *     fifo_push(FLAG) -----> resolve(), net_flag()  ---flag---> raise()
 *   somebody else's FIFO
 *     (programs' triggers) <- more(), net_write(), net_signal() -----> into the region
 *   engine
 *     fifo_push(END) ------> done(), when the rows have left
 *
 * GPUs have a FIFO each beside that of the CPU's workgroups, and cannot wake the proxy: it does not sleep while somebody has said that
 * kernels run that may push (proxy_stay_awake()), but looks every 100 us when there has been nothing for 25 times SPIN_US. An END waits
 * until these FIFOs have been seen empty: a launch on GPUs has ended, and all that it has pushed is there to be seen, before its END is
 * pushed.
 *
 * To each node there are one or several links, its rails. Each keeps its own order, and there is none between them: the owner says for each
 * trigger which one it takes, the same one for what has to stay in order. END covers all of them.
 *
 * A link's queue that is full holds up the FIFO (and so, when that is full, the workgroups), but not what other links have in
 * their queues, and nothing that comes in. So two proxies that send to each other cannot stop each other: each goes on receiving
 * whatever the state of its own sends, so what the other one sends drains, so its queue has room again. A receiver that
 * does not read at all is given up by the link after NET_SILENT_MS.
 */
#ifndef FCC_DAEMON_NET_PROXY_H
#define FCC_DAEMON_NET_PROXY_H

#include "daemon/net/fifo.h"
#include "daemon/net/net.h"

#define PROXY_NODES 64u /* other nodes, numbered from 0 */
#define PROXY_FEEDS 17u /* FIFOs: the first is its own */

struct proxy;

/* What a trigger means. */
struct proxy_send {
    uint32_t node, rail;
    struct net_place to; /* a flag: its communicator and rank */
    const void *from;    /* until done(): a put's rows, the first of them here */
    struct net_area area;
    uint32_t more;        /* areas like this one that follow, each plane_bytes further on at both ends */
    uint64_t plane_bytes; /* ... */
    uint32_t flag;
    uint64_t epoch;
    /* What more() tells of: rows, if there are any, and behind them a signal, if there is one. */
    bool is_written; /* the rows are; the proxy's */
    bool has_signal;
    struct net_place signal; /* its value is `epoch` */
};

/* Who it works for. All are called by the proxy's thread, and must neither wait (so not push either) nor call proxy_stop(). */
struct proxy_owner {
    /* Say what a PUT or FLAG trigger means: true. False: drop it. Called once for each, in their order. */
    bool (*resolve)(void *ctx, const struct fcc_trigger *trigger, struct proxy_send *out);
    /* An END trigger: the sources of all triggers before it are free, sent or given up. */
    void (*done)(void *ctx, uint32_t launch);
    /* The connections with a node are lost, all of its rails with the first one that is (-ESHUTDOWN: closed by it, in good order); triggers
     * for it are dropped from now on. Once, until there is a new connection to it or from it. */
    void (*failed)(void *ctx, uint32_t node, const struct error *e);
    /* See net_sink. */
    int (*raise)(void *ctx, uint64_t comm, uint32_t rank, uint32_t flag, uint64_t epoch);
    void *ctx;
    /* What is to be sent besides: true and *out, or false: nothing now. What it sends is in order with itself, and END covers
     * it. NULL: there never is any. */
    bool (*more)(void *ctx, struct proxy_send *out);
    /* Nobody rings for it: it is asked again after so many ms at most, when there is nothing else to do. -1: there will be
     * none. */
    int (*more_ms)(void *ctx);
};

struct proxy_options {
    const struct net_ops *net_ops; /* NULL: choose() says for each connection */
    /* By who adds the connection, with owner.ctx; it may change this connection's options. NULL: none */
    const struct net_ops *(*choose)(void *ctx, int sock, struct net_options *net, struct error *e);
    struct net_options net;      /* but for `rail` */
    struct net_regions *regions; /* lives longer than the proxy */
    struct fifo_slot *slots;     /* zeroed memory for the FIFO, which lives longer than the proxy; NULL: the proxy's own */
    uint32_t capacity;           /* of the FIFO; a power of two */
    uint32_t producers;          /* threads that push at the same time, at most half of that */
    uint32_t spin_us;            /* how long it looks for more before it sleeps */
};

int proxy_start(const struct proxy_owner *owner, const struct proxy_options *options, struct proxy **out, struct error *e);
/* Returns soon: the thread waits for nothing but its sockets. Then no source is in use, no region is written, and no callback
 * comes any more; what was queued is lost. */
void proxy_stop(struct proxy *p);
/* A stopped one; nobody pushes any more. */
void proxy_free(struct proxy *p);

/* Where to push. Rings the doorbell by itself. */
struct fifo *proxy_fifo(struct proxy *p);

/* Any thread. Another FIFO, whose producers do not ring. It is the caller's, and lives until the proxy has been stopped. -ENOMEM: there
 * are PROXY_FEEDS already. */
int proxy_feed_add(struct proxy *p, struct fifo *fifo, struct error *e);
/* Any thread, in pairs: until it is false again, look for triggers without sleeping. What was pushed before it becomes false is
 * found. */
void proxy_stay_awake(struct proxy *p, bool awake);

/* Any thread. The socket is the proxy's from here on, also if this fails. Triggers that are pushed after it find the link; there
 * is one for each node and rail, and a new one takes the place of the old, the first rail's of all. */
int proxy_link_add(struct proxy *p, uint32_t node, uint32_t rail, int sock, struct error *e);
/* The same for what that node sends, on that rail of its own. There may be several. */
int proxy_receive(struct proxy *p, uint32_t node, uint32_t rail, int sock, struct error *e);
/* Who adds links, of the one added last for that node and rail: what its transport makes of the rails. And any thread: its adapter; NULL: it
 * has none, or does not know it yet. */
struct net_rails proxy_rails(const struct proxy *p, uint32_t node, uint32_t rail);
const char *proxy_rail_device(const struct proxy *p, uint32_t node, uint32_t rail);

/* Any thread. Close all connections with a node: the owner gives it up, and hears nothing more of it until there is a new connection, but
 * for what may be on its way to failed() right now. */
void proxy_forget(struct proxy *p, uint32_t node);

/* Any thread: there is something for more() now, or another more_ms(). */
void proxy_look(struct proxy *p);

/* Any thread: a node's traffic since the proxy began, over all rails. */
const struct net_counts *proxy_sent(const struct proxy *p, uint32_t node);
const struct net_counts *proxy_received(const struct proxy *p, uint32_t node);

#endif
