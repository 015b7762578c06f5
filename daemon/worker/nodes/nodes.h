/* SPDX-License-Identifier: MIT
 *
 * nodes.h - communicators whose ranks are on several nodes.
 *
 *   join.c      ranks on other nodes join a communicator here
 *   deny.c      ranks that were refused on the way to another node
 *   form.c      the messages by which the workers of the nodes form a communicator
 *   nodes.c     turns
 *   alloc.c     symmetric allocations
 *   end.c       the end: ranks leave, the communicator is aborted, a worker is lost
 *   data.c      data connections, and where the proxy stores what it receives
 *   rails.c     which of several links to a node (rails) a rank's data takes
 *   triggers.c  the triggers by which workgroups let the proxy send
 *   gpu_data.c  data from and to GPUs
 *   regroup.c   new groups of ranks
 *   early.c     data that goes before its operator has begun
 *   links.c     counts of what was exchanged with each node
 */
#ifndef FCC_DAEMON_WORKER_NODES_NODES_H
#define FCC_DAEMON_WORKER_NODES_NODES_H

#include "daemon/net/region.h"
#include "daemon/worker/comm/span.h"
#include "daemon/worker/comm/tune.h"
#include "daemon/worker/nodes/peer.h"
#include "kernels/plan/rankset.h"

struct puts;
struct puts_all;

struct launch_run;
struct proxy_early;

#define EARLY_NODES 8u /* nodes of a communicator whose data goes early */

/* early.c: what goes to other nodes, and comes from them, before its operator has begun. Turns are counted from 1. The engine's, but for what is
 * said otherwise. */
struct early {
    struct worker *worker;
    struct device_memory memory;           /* the region NET_EARLY: two places for each node. No bytes: there is none */
    bool tried;                            /* to make it */
    uint32_t room[SPAN_NODES];             /* by node: what it keeps */
    uint64_t turn, guess, slices, sent_ns; /* what this node has sent last: a bit for each slice of its rank */
    uint64_t expected;                     /* of the turn that has begun last: the guess that is right. 0: none is */
    uint64_t handled[SPAN_NODES];          /* by node: the last turn whose kept frames were handled */
    /* Stored by the engine, loaded by the proxy thread. Relaxed where not said otherwise: frames of a turn that is over may be handled or
     * dropped, since its data is over when DONE has come. */
    _Atomic uint64_t ended; /* turns that have ended here (release, acquire: their kept frames are not read any more) */
    _Atomic uint64_t open,
        open_guess; /* the last operator that has started here, and the guess that is right (release, acquire) */
    /* By node and parity of the turn. The proxy thread's until `whole` is the turn (release), then the engine's (acquire). */
    struct early_kept {
        _Atomic uint64_t whole;
        uint64_t turn, guess, length;
    } kept[EARLY_NODES][2];
};

/* comm.nodes: the part of a communicator that only communicators over several nodes have. The root is the node whose worker the ranks
 * join; the unique id names it. "Node n" is the node's number in the communicator, the same on all nodes. */
struct comm_nodes {
    uint64_t number;                 /* id_number(): the same on all nodes, and for all communicators with this unique id */
    struct peer *root;               /* the root's worker. NULL: this node is the root */
    uint32_t root_comm;              /* the root's number of the communicator (peer_msg.from). 0: not known yet */
    char root_address[FCC_NODE_MAX]; /* the root's address. "": this node is the root */
    bool renamed;                    /* root_address is not the id's: the root's broker has said that the node is called so */
    bool known;                      /* the root has answered JOINED for a rank of this node */
    unsigned tries;                  /* how often the ranks here have joined again, at another worker of the root's node */
    unsigned lost;                   /* connections to nodes other than the root that ended while the communicator formed */
    int npeers;                      /* number of other nodes that have ranks. Three arrays by peer: */
    struct peer *peers[SPAN_NODES];
    int peer_node[SPAN_NODES];           /* the peer's node number */
    int peer_rank[SPAN_NODES];           /* the first rank on the peer's node */
    int node;                            /* this node's number. -1: it has no ranks */
    bool formed;                         /* all ranks have joined, and the node of each is known */
    const struct peer *here[SPAN_NODES]; /* by node: the peer that has sent HERE. Only compared */
    bool ready;                          /* formed, this node has all its connections, and has sent READY */
    bool ready_nodes[SPAN_NODES];        /* at the root, by node: the node has sent READY */
    uint64_t turns;                      /* number of turns that have ended here */
    bool done_waits; /* the other nodes have not been told of the last one's end: the next request tells them */
    /* By node: number of turns that have ended there. What that node put for them is in our memory. Stored by the proxy thread (release),
     * loaded by the engine (acquire). */
    _Atomic uint64_t done[SPAN_NODES];
    uint64_t done_rails[SPAN_NODES][NET_RAILS_MAX]; /* by node and rail: the last DONE received. The proxy thread's */
    /* One bit per remote rank: the rank has left in good order, and all puts of its own kernels are here. Stored by the proxy thread
     * (release), loaded by the engine (acquire). */
    _Atomic uint64_t left[RANKSET_WORDS];
    struct rankset left_seen;    /* the bits of `left` that the engine has handled */
    uint64_t staged[SPAN_NODES]; /* by node: the last turn for which the node has made its staging memory */
    uint32_t channel;            /* the communicator's entry in nodes_data.entries (triggers.c). 0: none */
    struct launch *staging;      /* a launch that starts when other nodes have made their staging memory. NULL: none */
    struct alloc_turn *alloc;    /* the symmetric allocation whose turn it is. NULL: none */
    /* the next symmetric allocation: what other nodes have sent of it before its turn has begun here */
    struct alloc_turn *next_alloc;
    struct error alloc_error;
    const struct peer *aborter; /* the peer that has sent ABORT. NULL: none. Only compared */
    bool is_left;     /* the communicator ends because a rank has left in good order: ended turns end well everywhere */
    struct error due; /* an ABORT or LEAVE that takes effect when turn due_turn has ended here. status 0: none */
    const struct peer *due_from; /* the peer that has sent it. Only compared */
    uint64_t due_turn;
    struct tune_sample measured; /* on rank 0's node: a measured time that has not been sent yet. ns 0: none */
    struct error fail;           /* why the operator of turn fail_turn has failed on another node */
    uint64_t fail_turn;
    struct early early;
};

/* This folder's implementation of span.h, for comm/. */
extern const struct span_ops span_over_nodes;

/* ---- join.c ---- */

/* A rank on another node comes to form a communicator here. */
void nodes_join_remote(struct peer *p, const struct peer_join *m);
/* DENY: a rank on another node was refused by its own worker. */
void nodes_deny_remote(struct peer *p, const struct peer_deny *m);
/* End c, which forms here, because this rank was refused elsewhere. It may free c. */
void nodes_comm_deny(struct comm *c, int rank, const struct error *e);
/* The communicator that a peer's message is meant for. NULL: it has ended here. */
struct comm *nodes_comm_addressed(const struct worker *w, const struct peer *p, const struct peer_msg *m);

/* ---- form.c ---- */

/* Whether the ranks of that id meet on another node: its address in *root, otherwise NULL. -ENETUNREACH with the reason if this node cannot get
 * there. */
int nodes_root(const struct worker *w, const struct fcc_unique_id *id, const char **root, struct error *e);
/* Give c its comm.nodes, if it has none: it forms at root; NULL: here. */
int nodes_begin(struct comm *c, struct peer *root, struct error *e);
/* Answer a JOIN: JOINED, or REFUSE. */
void nodes_joined(const struct comm *c, struct peer *p, const struct peer_join *m);
void nodes_refuse(struct peer *p, const struct peer_join *m, const struct error *e);
/* A rank here has joined a communicator whose root is another node: send JOIN there. */
int nodes_join(struct comm *c, const struct member *m, const char *root, struct error *e);
/* All ranks have joined, here, and some of them are on other nodes. The caller releases the communicator. */
void nodes_form(struct comm *c);
/* Handle JOINED, REFUSE, FORMED, HERE, READY or GO while c forms. */
void nodes_forming_message(struct peer *p, struct comm *c, const struct peer_msg *m);
/* The root's worker p is lost. Whether the ranks here may join another worker of that node; nodes_join_again() lets them, and may
 * free c. */
bool nodes_may_join_again(const struct comm *c, const struct peer *p);
void nodes_join_again(struct comm *c, const struct peer *p);
/* The connection to p, which is not the root, is lost while c forms. Whether this node may connect to that worker again;
 * nodes_connect_again() does, and may free c. */
bool nodes_may_connect_again(const struct comm *c, const struct peer *p);
void nodes_connect_again(struct comm *c, const struct peer *p);
void nodes_here_forget(struct comm *c, const struct peer *p);
/* All ranks have joined, but c has not formed: the addresses of the nodes it waits for, which stay c's. Returns how many; otherwise 0. */
int nodes_awaited(const struct comm *c, const char *addresses[SPAN_NODES]);
void nodes_peer_open(struct peer *p); /* a connection to p has opened: communicators that waited for it go on */

/* ---- members.c ---- */

/* The peer's index in c->nodes->peers; -1: the peer is not there. */
int nodes_peer_number(const struct comm *c, const struct peer *p);
/* The member of that rank. NULL: the rank is not on p's node. */
struct member *nodes_member_at(struct comm *c, const struct peer *p, int32_t rank);
/* The number by which senders address memory of the communicator: memory of ranks here, and memory of a remote rank. */
uint64_t nodes_memory_here(const struct comm *c);
uint64_t nodes_memory_there(const struct member *m);

/* ---- nodes.c ---- */

void nodes_send(const struct comm *c, struct peer *p, struct peer_msg *m, enum peer_type type, size_t length);
void nodes_send_all(const struct comm *c, struct peer_msg *m, enum peer_type type, size_t length);
/* A rank here has its next turn: send it to the other nodes. `submit` is NULL for an allocation. */
void nodes_submit(const struct member *m, struct submission *sub, const struct fcc_submit *submit);
/* All nodes must choose the same schedule for `auto`. So all record the times measured on rank 0's node, in the same turn: a time travels
 * with rank 0's next submission (nodes_measured()) and is recorded when that turn begins (nodes_tune()). */
void nodes_measured(struct comm *c, const struct tune_sample *sample);
void nodes_tune(struct comm *c);
/* Whether all turns that have ended here have ended on all other nodes, so the next may begin. */
bool nodes_turn_ready(const struct comm *c);
void nodes_turn_ended(struct comm *c);
/* This node has made its staging memory for l: tell the other nodes. False: some of them have not made theirs; l starts when their STAGED
 * has come. */
bool nodes_staged(struct comm *c, struct launch *l);
/* l has started: if it has already failed on another node, it fails here. */
void nodes_launch_started(struct launch *l);
/* l has failed here: tell the other nodes. */
void nodes_launch_failed(const struct launch *l);
void nodes_message(struct peer *p, const struct peer_msg *m);

/* ---- early.c ---- */

/* A rank here submits: which of its data may go to that node with the request. Nothing: out->n is 0. */
void nodes_early_fill(const struct comm *c, const struct member *m, const struct submission *sub, int peer,
                      struct proxy_early *out);
/* That was sent. */
void nodes_early_sent(struct comm *c, const struct proxy_early *sent);
/* The ranks' next requests are those of l: whether what was sent, and has come, is right. */
void nodes_early_settle(struct comm *c, struct launch *l);
/* l has started: what has come is handled, and what comes is taken at once. */
void nodes_early_start(struct comm *c);
/* Handle what has come meanwhile. */
void nodes_early_look(struct comm *c);
void nodes_early_turn_ended(struct comm *c);
void nodes_early_close(struct comm *c); /* the communicator is released; its regions are gone */
/* How much of other nodes' early data this one keeps. */
uint32_t nodes_early_room(const struct comm *c);

/* ---- deny.c ---- */

/* A rank here was refused before it could join: tell the root at that address, so that the other ranks get the reason. */
void nodes_deny(struct worker *w, const char *root, const struct fcc_comm_init_msg *m, const struct error *e);
/* As nodes_deny(), for a rank that had joined here when this node turned out to be unable to reach the root. */
void nodes_deny_rank(const struct member *m, const char *root, const struct error *e);
/* As nodes_deny(), for denials that were queued for p, which cannot be reached. */
void nodes_deny_unsaid(const struct peer *p);
/* A denial from another node has come. It is believed if its sender has the communicator's id. */
void nodes_denial_heard(struct worker *w, const struct control_denied *m);

/* ---- end.c ---- */

/* A rank here has left: tell the other nodes. `why` is NULL if the rank has left in good order. */
void nodes_left(const struct member *m, const char *why);
void nodes_leave_received(struct peer *p, struct comm *c, const struct peer_turn *m); /* the communicator may be freed */
/* A turn has ended here: ranks leave that took part in no later turn. */
void nodes_leave_due(struct comm *c);
/* The communicator has been aborted here. */
void nodes_aborted(struct comm *c, bool was_forming);
void nodes_abort_received(struct peer *p, struct comm *c, const struct peer_turn *m); /* the communicator may be freed */
void nodes_release(struct comm *c); /* called when the communicator is freed */
/* p is lost; p->broken says why. Returns whether a communicator has ended with it or has to connect again. */
bool nodes_peer_lost(struct peer *p);

/* ---- alloc.c ---- */

/* The next turn of c is a symmetric allocation: begin it. nodes_alloc() ends the turn, now or later. */
void nodes_alloc(struct comm *c);
void nodes_alloc_received(struct peer *p, struct comm *c, const struct peer_memory *m);
/* The communicator ends: free an allocation that has not finished. */
void nodes_alloc_drop(struct comm *c);
/* Tell the other nodes of a result buffer of a rank here; take such a message from another node. */
void nodes_result_send(const struct comm *c, const struct buffer *b);
void nodes_result_received(struct peer *p, struct comm *c, const struct peer_result *m);
void nodes_buffer_freed(const struct comm *c, int rank, uint32_t handle);
void nodes_free_received(struct peer *p, struct comm *c, const struct peer_free *m);

/* ---- regroup.c ---- */

void nodes_regroup_tell(const struct comm *c, int rank, const struct regroup_entry *entry);
void nodes_regrouped(const struct comm *c, const struct regroup_decision *d);
/* A message for c, or (c NULL) for a communicator that has been aborted. True: it was one of new groups, or of a rank that leaves an aborted
 * communicator, and is handled; c may be freed. */
bool nodes_regroup_message(struct peer *p, struct comm *c, const struct peer_msg *m);

/* ---- data.c ---- */

/* Hand a data connection to the proxy: ours to the peer, the peer's to us. Both own the socket, also on failure. */
int nodes_data_open(struct peer *p, uint32_t rail, int sock, struct error *e);
int nodes_data_accept(struct peer *p, uint32_t rail, int sock, struct error *e);
/* The peer is lost: end its data connections. */
void nodes_data_forget(const struct peer *p);
/* Close the peer's data connections on which nothing has come. */
void nodes_data_doubt(const struct peer *p);
/* Register memory of a rank here as a region that remote ranks put into. */
int nodes_region_add(struct comm *c, int rank, uint32_t region, const struct device_memory *m, uint64_t bytes, struct error *e);
void nodes_region_remove(struct worker *w, uint64_t number, int rank, uint32_t region);
/* Register the flags of a rank here, and the words that other nodes' DONE and LEFT go to. */
int nodes_flags_add(struct comm *c, int rank, struct error *e);
/* From now on the proxy drops what it receives for c, also where its memory is gone. */
void nodes_data_drop(const struct comm *c);
/* c is released. When this returns the proxy stores into none of its memory any more (net_comm_end()). */
void nodes_data_end(struct comm *c);
/* The adapter that serves an open rail; NULL: it has none, or does not know it yet. */
const char *nodes_rail_device(const struct peer *p, uint32_t rail);
/* The proxy's counts for the peer's index, those of earlier peers with that index included. NULL: there is no proxy. */
const struct net_counts *nodes_counts(const struct peer *p, bool sent);
/* Whether something waits to be sent over the peer's first rail. */
bool nodes_rail_is_busy(const struct peer *p);
/* The engine: do the proxy's work if the engine leads it, and handle what it has reported. True if there was anything. */
bool nodes_poll(struct worker *w);
/* The engine: whether it leads the proxy. Before and after it sleeps; false: it must not. */
bool nodes_lead(const struct worker *w);
bool nodes_rest(struct worker *w);
void nodes_wake(struct worker *w);
bool nodes_have_news(const struct worker *w);
/* End the proxy's thread; free the rest when the devices, whose workgroups push triggers, are closed. */
void nodes_data_stop(struct worker *w);
void nodes_data_free(struct worker *w);

/* ---- rails.c ---- */

/* Fill in the devices whose memory the rails serve, for the choice of adapters. */
void nodes_rails_options(const struct worker *w, struct net_options *net);
/* The first rail to p is open: set which rail the data of each device takes. */
void nodes_rails_set(struct peer *p, const struct net_rails *rails);
/* The rail that data of a rank here takes to p. */
uint32_t nodes_rail(const struct member *m, const struct peer *p);
/* The rails to p that ranks here take; ranks[]: the first rank of each. Returns how many, at least 1. */
uint32_t nodes_rails_used(const struct comm *c, const struct peer *p, uint16_t ranks[NET_RAILS_MAX]);

/* ---- triggers.c ---- */

/* Give c an entry that the proxy's triggers can name. */
int nodes_channel_open(struct comm *c, struct error *e);
void nodes_channel_peers(const struct comm *c); /* peers of c's ranks have changed: fill in its entry again */
/* Give a launch with remote ranks an entry that triggers can name before it starts; take the entry back when it is over. */
int nodes_launch_open(struct launch *l, struct error *e);
void nodes_launch_close(struct launch *l);
/* launch.ops of communicators over several nodes. */
extern const struct launch_ops nodes_launch_ops;
/* DONE: tell every other node how many turns have ended here, behind all data sent before. */
void nodes_done_send(struct comm *c);
/* Whether a message to any other node goes behind all data that was sent there before, and that is at its place then (no GPU has to copy it). */
bool nodes_messages_follow(const struct comm *c);
/* LEFT: tell every other node that a rank here has left, behind all data it sent before. */
void nodes_left_send(const struct comm *c, int rank);
/* For puts.c: an entry for END triggers, taken and given back; push an END; let the proxy look at the FIFOs; let the engine look. */
struct puts_all *nodes_puts(const struct worker *w);
int nodes_puts_enter(struct worker *w, struct puts *p, uint32_t *entry, struct error *e);
void nodes_puts_leave(struct worker *w, uint32_t entry);
void nodes_puts_push_end(struct worker *w, uint32_t entry);
void nodes_puts_look(struct worker *w);
void nodes_puts_news(const struct worker *w);

/* ---- links.c ---- */

/* Begin to count for a new peer, and end for one that goes. was_needed: its loss was an error for ranks here. */
void nodes_link_begin(struct peer *p);
void nodes_link_end(const struct peer *p, bool was_needed);
void nodes_links_meter(struct worker *w); /* reports what was exchanged with each node to the broker */
void nodes_links_free(struct worker *w);
/* For fccctl: the counts of all nodes. The caller releases the object. */
struct json_object;
struct json_object *nodes_links_describe(const struct worker *w);

#endif
