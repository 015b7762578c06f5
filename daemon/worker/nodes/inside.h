/* SPDX-License-Identifier: MIT
 *
 * inside.h - what the proxy and the engine have in common: of data.c and triggers.c.
 */
#ifndef FCC_DAEMON_WORKER_NODES_INSIDE_H
#define FCC_DAEMON_WORKER_NODES_INSIDE_H

#include <pthread.h>

#include "daemon/net/proxy.h"
#include "daemon/net/rails.h"
#include "daemon/worker/device/launch.h"
#include "daemon/worker/nodes/nodes.h"

#define ENTRIES 256u                                      /* communicators and launches that the proxy knows at a time */
#define FLAGS_TABLE 256u                                  /* ranks here, of all communicators over several nodes */
#define FLAG_DONE (PLAN_MAX_FLAGS + 1u)                   /* and done_number(): behind a rank's own flags */
#define FLAG_LEFT (FLAG_DONE + SPAN_NODES * DONE_OF_NODE) /* and the number of a rank */
#define SOURCES (64u + NET_DEVICES_MAX)                   /* devices that a rank here may be on: cpu devices, then GPUs */
#define SOURCE_NONE 0xffu                                 /* it is on another node */

/* What a trigger's `launch` names: a launch or, without one, a communicator, for what is not of a launch. Does not change while it is in
 * use, but for `turns`. */
struct entry {
    _Atomic bool used;
    struct launch *launch;
    struct puts *puts;        /* only for its END */
    uint64_t turns;           /* a communicator's: that were told last. The proxy thread's */
    struct entry_rank *ranks; /* a communicator's, [nranks]. Freed when the entry is used again, or with all of them */
};

struct entry_rank {
    uint64_t comm;  /* of a rank elsewhere: its node's nodes_memory_number() */
    uint8_t peer;   /* of a rank's node: the peer's index */
    uint8_t source; /* of a rank here: its device, nodes_source() */
};

/* Of a rank here. */
struct rank_flags {
    uint64_t comm;
    uint32_t rank;
    _Atomic uint64_t *flags;               /* NULL: free. A GPU's: member.arrived */
    _Atomic uint64_t *done;                /* comm_nodes.done */
    uint64_t (*done_rails)[NET_RAILS_MAX]; /* comm_nodes.done_rails */
    _Atomic uint64_t *left;                /* comm_nodes.left: [RANKSET_WORDS] */
    struct device *device;
};

struct nodes_data {
    struct worker *worker;
    struct net_regions *regions;
    struct proxy *proxy;
    struct fifo *fifo;
    struct puts_all *puts;
    struct entry entries[ENTRIES]; /* number - 1 */
    pthread_rwlock_t flags_lock;   /* the engine changes flags[], the proxy reads it */
    struct rank_flags flags[FLAGS_TABLE];
    /* By a peer's index and a device here: rails.c. Set before there is a trigger for that peer; a trigger for who had the index before
     * may see either, and goes nowhere. */
    _Atomic uint8_t rail_of[PEERS_MAX][SOURCES];
    _Atomic uint32_t news;          /* the engine is to look: some are done, or a link is lost */
    _Atomic uint64_t lost;          /* by index: the link has failed, and why: errors[] */
    struct error errors[PEERS_MAX]; /* -ESHUTDOWN: it was closed between two frames */
};
static_assert(PEERS_MAX <= 64 && PEERS_MAX <= PROXY_NODES, "a bit each");

/* The engine is to look. Any thread. */
void nodes_news_tell(struct nodes_data *d);

/* ---- rails.c ---- */

/* A rank's device: a number below SOURCES, or SOURCE_NONE. */
uint8_t nodes_source(const struct member *m);

/* Any thread, of an open peer. */
static inline uint32_t nodes_rail_of(const struct nodes_data *d, uint32_t peer, uint8_t source)
{
    assert(source < SOURCES); /* only ranks here send */
    return atomic_load_explicit(&d->rail_of[peer][source], memory_order_relaxed);
}

/* ---- triggers.c ---- */

/* The proxy's: struct proxy_owner's. */
bool nodes_resolve(void *ctx, const struct fcc_trigger *t, struct proxy_send *out);
void nodes_done(void *ctx, uint32_t number);
/* A communicator's number is given back, behind all triggers that name it. */
void nodes_channel_close(struct comm *c);

#endif
