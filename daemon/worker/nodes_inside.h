/* SPDX-License-Identifier: MIT
 *
 * nodes_inside.h - what the proxy and the engine have in common: of nodes_data.c and nodes_triggers.c.
 */
#ifndef FCCD_NODES_INSIDE_H
#define FCCD_NODES_INSIDE_H

#include <pthread.h>

#include "launch.h"
#include "nodes.h"
#include "proxy.h"

#define ENTRIES 256u                          /* communicators and launches that the proxy knows at a time */
#define FLAGS_TABLE 256u                      /* ranks here, of all communicators over several nodes */
#define FLAG_DONE (PLAN_MAX_FLAGS + 1u)       /* and the node's number: behind a rank's own flags */
#define FLAG_LEFT (FLAG_DONE + FCC_MAX_RANKS) /* and the number of a rank */

/* What a trigger's `launch` names: a launch or, without one, a communicator, for what is not of a launch. Does not change while it is in
 * use, but for `turns`. */
struct entry {
    _Atomic bool used;
    struct launch *launch;
    struct puts *puts; /* only for its END */
    uint64_t comm;
    uint64_t turns;              /* a communicator's: that were told last. The proxy thread's */
    uint8_t peer[FCC_MAX_RANKS]; /* a communicator's: of each rank's node, the index */
};

/* Of a rank here. */
struct rank_flags {
    uint64_t comm;
    uint32_t rank;
    _Atomic uint64_t *flags; /* NULL: free. A GPU's: member.arrived */
    _Atomic uint64_t *done;  /* comm_nodes.done */
    _Atomic uint64_t *left;  /* comm_nodes.left */
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
    _Atomic uint32_t news; /* the engine is to look: some are done, or a link is lost */
    _Atomic uint64_t lost; /* by index: the link has failed, and why: errors[] */
    struct error errors[PEERS_MAX];
};
static_assert(PEERS_MAX <= 64 && PEERS_MAX <= PROXY_NODES, "a bit each");

/* The engine is to look. Any thread. */
void nodes_news_tell(struct nodes_data *d);

/* ---- nodes_triggers.c ---- */

/* The proxy's: struct proxy_owner's. */
bool nodes_resolve(void *ctx, const struct fcc_trigger *t, struct proxy_send *out);
void nodes_done(void *ctx, uint32_t number);
/* A communicator's number is given back, behind all triggers that name it. */
void nodes_channel_close(struct comm *c);

#endif
