/* SPDX-License-Identifier: MIT
 *
 * inside.h - state shared by the engine and the proxy thread, for data.c, triggers.c and rails.c. "The proxy thread" is whoever does the
 * proxy's work: where there are cpu devices and tcp only, the engine itself does (proxy_lead()).
 */
#ifndef FCC_DAEMON_WORKER_NODES_INSIDE_H
#define FCC_DAEMON_WORKER_NODES_INSIDE_H

#include <pthread.h>

#include "daemon/net/proxy.h"
#include "daemon/net/rails.h"
#include "daemon/worker/device/launch.h"
#include "daemon/worker/nodes/nodes.h"

#define ENTRIES 256u                    /* communicators and launches that the proxy knows at a time */
#define FLAGS_TABLE 2048u               /* ranks here, of all communicators over several nodes */
#define FLAG_DONE (PLAN_MAX_FLAGS + 1u) /* flag number of DONE, plus done_number(); above all flags of plans */
#define FLAG_LEFT (FLAG_DONE + SPAN_NODES * DONE_OF_NODE) /* flag number of LEFT, plus the rank that has left */
#define SOURCES (64u + NET_DEVICES_MAX)                   /* devices that a rank here may be on: cpu devices, then GPUs */
#define SOURCE_NONE 0xffu                                 /* the source of a rank on another node */

/* What a trigger's `launch` field names: a launch; or a communicator, for DONE and LEFT; or a rank's puts, for their END. An entry does
 * not change while it is in use, except for `turns`. */
struct entry {
    _Atomic bool used;
    struct launch *launch;
    struct puts *puts;
    _Atomic uint64_t turns;   /* communicator: turns that had ended when DONE or LEFT was last pushed */
    struct entry_rank *ranks; /* communicator: [nranks]. Freed when the entry is used again, or with nodes_data */
};

struct entry_rank {
    uint64_t comm;  /* remote rank: nodes_memory_there() */
    uint8_t peer;   /* remote rank: its node's peer.index */
    uint8_t source; /* rank here: nodes_source() of its device */
};

/* Where flags for a rank here are stored. The table is looked through from flags_begin() on. */
struct rank_flags {
    uint64_t comm;
    uint32_t rank;
    _Atomic uint64_t *flags;               /* NULL: the element is free. GPUs: host memory that the engine reads (gpu_data.c) */
    _Atomic uint64_t *done;                /* comm_nodes.done */
    uint64_t (*done_rails)[NET_RAILS_MAX]; /* comm_nodes.done_rails */
    _Atomic uint64_t *left;                /* comm_nodes.left: [RANKSET_WORDS] */
    struct early *early;                   /* comm_nodes.early */
    struct device *device;
};

struct nodes_data {
    struct worker *worker;
    struct net_regions *regions;
    struct proxy *proxy;
    struct fifo *fifo;
    struct event *proxy_event; /* the engine, which leads the proxy, sleeps until it has something to do */
    struct puts_all *puts;
    struct entry entries[ENTRIES]; /* entry n in [n - 1] */
    pthread_rwlock_t flags_lock;   /* the engine changes flags[], the proxy reads it */
    struct rank_flags flags[FLAGS_TABLE];
    /* The rail that data takes, by peer.index and source (rails.c). Set before the first trigger for that peer. A late trigger for an
     * earlier peer with this index may read either value: it is not sent anywhere. */
    _Atomic uint8_t rail_of[PEERS_MAX][SOURCES];
    _Atomic uint32_t news; /* not 0: the engine has something to handle, as a launch that has been sent, or a lost link */
    _Atomic uint64_t lost; /* a bit for each peer.index whose link has failed; errors[] says why */
    struct error errors[PEERS_MAX]; /* -ESHUTDOWN: the link was closed between two frames */
    pthread_mutex_t letters_lock;
    struct peer_letters letters;    /* what the engine is to handle (peer.c). Protected by letters_lock */
    uint64_t letters_of[PEERS_MAX]; /* by peer.index: bytes of these. Protected by letters_lock */
};
static_assert(PEERS_MAX <= 64 && PEERS_MAX <= PROXY_NODES, "a bit each");

/* Any thread: set `news` and wake the engine. */
void nodes_news_post(struct nodes_data *d);

/* ---- rails.c ---- */

/* A rank's device: a number below SOURCES, or SOURCE_NONE. */
uint8_t nodes_source(const struct member *m);

/* Any thread; the peer is open. */
static inline uint32_t nodes_rail_of(const struct nodes_data *d, uint32_t peer, uint8_t source)
{
    assert(source < SOURCES); /* only ranks here send */
    return atomic_load_explicit(&d->rail_of[peer][source], memory_order_relaxed);
}

/* The place where a rank's flags are; flags NULL: it has none here. */
struct rank_flags flags_find(struct nodes_data *d, uint64_t comm, uint32_t rank);

/* ---- early.c ---- */

/* The proxy thread: a callback of struct proxy_owner. */
int nodes_early_come(void *ctx, const struct net_early_head *head, uint64_t *offset);

/* ---- triggers.c ---- */

/* The proxy thread: callbacks of struct proxy_owner. */
bool nodes_resolve(void *ctx, const struct fcc_trigger *t, struct proxy_send *out);
void nodes_done(void *ctx, uint32_t number);
/* Free the communicator's entry when all triggers that name it have been handled. */
void nodes_channel_close(struct comm *c);

#endif
