/* SPDX-License-Identifier: MIT
 *
 * nodes.h - communicators whose ranks are on several nodes.
 *
 *   join.c      ranks on other nodes join
 *   form.c      how they form: what the workers of the nodes say to each other about it
 *   nodes.c           how they take turns and end
 *   alloc.c     ... and allocate
 *   data.c      their data: the connections, and where what the proxy receives goes
 *   rails.c     ... which of several links to a node each rank's takes
 *   triggers.c  ... and what it sends, by which triggers
 *   landings.c  ... where the ranks are on GPUs
 *   links.c     what has been exchanged with each node
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

/* What a communicator over several nodes has besides. comm.nodes; NULL: all its ranks are here. */
struct launch_run;

struct comm_nodes {
    uint64_t number;                     /* between nodes: the same on all of them, and of all communicators with its id */
    struct peer *root;                   /* where its ranks meet; NULL: here */
    uint32_t root_comm;                  /* ... its number of the communicator; 0: it has not said so yet */
    char root_address[FCC_NODE_MAX];     /* ... "": here */
    bool renamed;                        /* ... which is not that in the id: the node there said that it is called so */
    bool known;                          /* the root has said that it knows of a rank of ours */
    unsigned tries;                      /* how often our ranks have joined anew, at another worker there */
    unsigned lost;                       /* connections to others that have ended while it formed, and were made anew */
    int npeers;                          /* other nodes that have ranks */
    struct peer *peers[SPAN_NODES];      /* ... */
    int peer_node[SPAN_NODES];           /* ... their numbers in the communicator, the same on all nodes */
    int peer_rank[SPAN_NODES];           /* ... the first rank there */
    int node;                            /* this one's; -1: it has no ranks */
    bool formed;                         /* all ranks have joined, and are known with their nodes */
    const struct peer *here[SPAN_NODES]; /* by its number in the communicator: who has said HERE. Only compared */
    bool ready;                          /* formed, and this node has its connections, and has said so */
    bool ready_nodes[SPAN_NODES];        /* root: other nodes that are ready, by their numbers */
    uint64_t turns;                      /* that have ended here */
    /* Turns that have ended at each node, by its number: what it put into our memory came before. Written by the proxy thread
     * (release), read by the engine (acquire). */
    _Atomic uint64_t done[SPAN_NODES];
    uint64_t done_rails[SPAN_NODES][NET_RAILS_MAX]; /* ... as told over each of its rails. The proxy thread's */
    /* Ranks elsewhere that have left in good order, a bit each, and all that they had put by themselves is here. Likewise. */
    _Atomic uint64_t left[RANKSET_WORDS];
    struct rankset left_seen;      /* by the engine */
    uint64_t staged[SPAN_NODES];   /* each node's last turn for which it has made room */
    uint32_t channel;              /* triggers.c's number for it; 0: none */
    struct launch *staging;        /* the operator that waits for that */
    struct alloc_turn *alloc;      /* a symmetric allocation whose turn it is */
    struct alloc_turn *next_alloc; /* the same, or, before its turn has come here, what others have told of it */
    struct error alloc_error;
    const struct peer *aborter; /* the other node that has told of its end; NULL: none. Only compared */
    bool is_left;               /* it ends since a rank has left in good order: elsewhere what has ended here still ends well */
    struct error due;           /* another node has said so: it ends so when turn due_turn has ended here. Status 0: no */
    const struct peer *due_from; /* ... which. Only compared */
    uint64_t due_turn;
    struct tune_sample measured; /* rank 0's node: not sent yet; ns 0: there is none */
    struct error fail;           /* the operator of turn fail_turn has failed elsewhere */
    uint64_t fail_turn;
};

/* What comm/ asks of this folder. */
extern const struct span_ops span_over_nodes;

/* ---- join.c ---- */

/* A rank on another node comes to form a communicator here. */
void nodes_join_remote(struct peer *p, const struct peer_join *m);
/* A rank on another node has been refused there. */
void nodes_deny_remote(struct peer *p, const struct peer_deny *m);
/* The same, as the root of c, which forms, has learned it otherwise. It may free c. */
void nodes_comm_deny(struct comm *c, int rank, const struct error *e);
/* The communicator that a peer's message is meant for. NULL: it has ended here. */
struct comm *nodes_comm_addressed(const struct worker *w, const struct peer *p, const struct peer_msg *m);

/* ---- form.c ---- */

/* Whether the ranks of that id meet on another node: its address in *root, otherwise NULL. -ENETUNREACH with the reason if this node cannot get
 * there. */
int nodes_root(const struct worker *w, const struct fcc_unique_id *id, const char **root, struct error *e);
/* A communicator has ranks on several nodes from now on, if it has not; it forms at root, or (NULL) here. */
int nodes_begin(struct comm *c, struct peer *root, struct error *e);
void nodes_joined(const struct comm *c, struct peer *p, const struct peer_join *m);
void nodes_refuse(struct peer *p, const struct peer_join *m, const struct error *e);
/* A rank has joined here, a communicator that forms elsewhere. */
int nodes_join(struct comm *c, const struct member *m, const char *root, struct error *e);
/* All ranks have joined, here, and some of them are on other nodes. The caller releases the communicator. */
void nodes_form(struct comm *c);
/* JOINED, REFUSE, FORMED, HERE, READY or GO, while it forms. */
void nodes_forming_message(struct peer *p, struct comm *c, const struct peer_msg *m);
/* p is lost, which was its root: can its ranks join anew? Then let them; the communicator may be freed. */
bool nodes_may_join_again(const struct comm *c, const struct peer *p);
void nodes_join_again(struct comm *c, const struct peer *p);
/* p is lost, and so far it has said at most HERE: can this node connect to its worker anew? Then do; the communicator may be freed. */
bool nodes_may_connect_again(const struct comm *c, const struct peer *p);
void nodes_connect_again(struct comm *c, const struct peer *p);
void nodes_here_forget(struct comm *c, const struct peer *p);
/* All ranks have joined, and it has not formed: the addresses of the other nodes that are waited for, which stay the communicator's; how many.
 * Otherwise 0. */
int nodes_awaited(const struct comm *c, const char *addresses[SPAN_NODES]);
void nodes_peer_open(struct peer *p); /* both connections to it are there */

/* ---- members.c ---- */

/* Where a peer stands in c->nodes->peers; -1: not there. */
int nodes_peer_number(const struct comm *c, const struct peer *p);
/* The member that a peer's message is of: NULL if it is none of that node's. */
struct member *nodes_member_at(struct comm *c, const struct peer *p, int32_t rank);
/* What a node's memory for a communicator is known by to those who put into it: `comm` is that node's own number of it. So what is still under way
 * for one that has ended never comes into the memory of another one with the same id. */
uint64_t nodes_memory_number(const struct comm *c, uint32_t comm);
/* That of this node, and of the node of a rank elsewhere. */
uint64_t nodes_memory_here(const struct comm *c);
uint64_t nodes_memory_there(const struct member *m);

/* ---- nodes.c ---- */

void nodes_tell(const struct comm *c, struct peer *p, struct peer_msg *m, enum peer_type type, size_t length);
void nodes_tell_all(const struct comm *c, struct peer_msg *m, enum peer_type type, size_t length);
/* A rank here has its next turn: tell the others. `submit` is NULL for an allocation. */
void nodes_submit(const struct member *m, struct submission *sub, const struct fcc_submit *submit);
/* `auto` has to take the same schedule on all nodes, so all record the times that rank 0's node has measured, in the same turn: they
 * go with rank 0's next submission, and are recorded when its turn begins. */
void nodes_measured(struct comm *c, const struct tune_sample *sample);
void nodes_tune(struct comm *c);
/* Whether the other nodes have done with all that came before. */
bool nodes_turn_ready(const struct comm *c);
void nodes_turn_ended(struct comm *c);
/* Staging memory for an operator has been made here: tell. False: other nodes have to make some, and have not; they start the operator when
 * they have. */
bool nodes_staged(struct comm *c, struct launch *l);
/* An operator that has just been started has failed on another node already. */
void nodes_launch_started(struct launch *l);
/* It has ended here. */
void nodes_launch_failed(const struct launch *l);
void nodes_message(struct peer *p, const struct peer_msg *m);

/* ---- deny.c ---- */

/* A rank here was refused that would have joined at that node: its ranks hear of it. */
void nodes_deny(struct worker *w, const char *root, const struct fcc_comm_init_msg *m, const struct error *e);
/* The same of a rank here that had joined, and found that this node cannot speak to that one. */
void nodes_deny_rank(const struct member *m, const char *root, const struct error *e);
/* The same of what nodes_deny() has said to p, which cannot be reached. */
void nodes_deny_unsaid(const struct peer *p);
/* Somebody says so of a rank elsewhere. It is believed if he has the communicator's id. */
void nodes_denial_heard(struct worker *w, const struct control_denied *m);

/* ---- end.c ---- */

/* A rank here has left: tell the others. `why` is NULL if it has done so in good order. */
void nodes_left(const struct member *m, const char *why);
void nodes_leave_told(struct peer *p, struct comm *c, const struct peer_turn *m); /* the communicator may be freed */
/* A turn has ended here: those leave that took part in no later one. */
void nodes_leave_due(struct comm *c);
/* It has been aborted here. */
void nodes_aborted(struct comm *c, bool was_forming);
void nodes_abort_told(struct peer *p, struct comm *c, const struct peer_turn *m); /* likewise */
void nodes_release(struct comm *c);                                               /* with its communicator */
/* p->broken says why. Was there a communicator that has ended with it, or goes on with another connection? */
bool nodes_peer_lost(struct peer *p);

/* ---- alloc.c ---- */

/* The ranks' next turn is an allocation: begin it; later it ends with its turn. */
void nodes_alloc(struct comm *c);
void nodes_alloc_told(struct peer *p, struct comm *c, const struct peer_memory *m);
/* The communicator ends: nobody gets what is under way. */
void nodes_alloc_drop(struct comm *c);
/* A result buffer of a rank here. */
void nodes_result_tell(const struct comm *c, const struct buffer *b);
void nodes_result_told(struct peer *p, struct comm *c, const struct peer_result *m);
void nodes_buffer_freed(const struct comm *c, int rank, uint32_t handle);
void nodes_free_told(struct peer *p, struct comm *c, const struct peer_free *m);

/* ---- data.c ---- */

/* The proxy's connections; both own the socket, also if they fail. */
int nodes_data_open(struct peer *p, uint32_t rail, int sock, struct error *e);
int nodes_data_accept(struct peer *p, uint32_t rail, int sock, struct error *e);
/* The peer is lost: its data connections end, too. */
void nodes_data_forget(const struct peer *p);
/* Memory of a rank here that others put into. */
int nodes_region_add(struct comm *c, int rank, uint32_t region, const struct device_memory *m, uint64_t bytes, struct error *e);
void nodes_region_remove(struct worker *w, uint64_t number, int rank, uint32_t region);
/* The flags of a rank here; and where the ranks of others say that they are done. */
int nodes_flags_add(struct comm *c, int rank, struct error *e);
/* Nobody waits for what comes for the communicator any more: it is dropped, and breaks nothing if its memory is gone. */
void nodes_data_drop(const struct comm *c);
/* It is released. Its memory may be freed when this returns (net_comm_end()). */
void nodes_data_end(struct comm *c);
/* The adapter that serves an open rail; NULL: it has none, or does not know it yet. */
const char *nodes_rail_device(const struct peer *p, uint32_t rail);
/* What the proxy has counted for it (with others that had its index before); NULL: there is no proxy. */
const struct net_counts *nodes_counts(const struct peer *p, bool sent);
/* The engine: what the proxy has heard. True if there was anything. */
bool nodes_poll(struct worker *w);
bool nodes_have_news(const struct worker *w);
/* At the end: the proxy's thread, then, when the devices are closed, whose workgroups push to it, the rest. */
void nodes_data_stop(struct worker *w);
void nodes_data_free(struct worker *w);

/* ---- rails.c ---- */

/* Whose memory the rails serve, for the choice of adapters. */
void nodes_rails_options(const struct worker *w, struct net_options *net);
/* A peer's first rail is there: which ones its data takes from now on. */
void nodes_rails_set(struct peer *p, const struct net_rails *rails);
/* What a rank here sends to that peer goes over this one. */
uint32_t nodes_rail(const struct member *m, const struct peer *p);
/* The rails to a peer that the ranks here take: of each, the first rank that does. How many: at least 1. */
uint32_t nodes_rails_used(const struct comm *c, const struct peer *p, uint16_t ranks[NET_RAILS_MAX]);

/* ---- triggers.c ---- */

/* Its number for the proxy. */
int nodes_channel_open(struct comm *c, struct error *e);
void nodes_channel_peers(const struct comm *c); /* its ranks' peers are others now */
/* A launch that has runs on other nodes: before it starts, and when it is over. */
int nodes_launch_open(struct launch *l, struct error *e);
void nodes_launch_close(struct launch *l);
/* What launches of communicators over nodes tell. */
extern const struct launch_ops nodes_launch_ops;
/* Tell every other node that so many turns have ended here, behind all that was sent before. */
void nodes_done_tell(struct comm *c);
/* ... that a rank here has left. */
void nodes_left_tell(const struct comm *c, int rank);
/* Puts of programs' kernels (puts.h). What they need of the proxy: an entry for their END triggers; to be looked at; to tell
 * the engine. */
struct puts_all *nodes_puts(const struct worker *w);
int nodes_puts_enter(struct worker *w, struct puts *p, uint32_t *entry, struct error *e);
void nodes_puts_leave(struct worker *w, uint32_t entry);
void nodes_puts_push_end(struct worker *w, uint32_t entry);
void nodes_puts_look(struct worker *w);
void nodes_puts_news(const struct worker *w);

/* ---- links.c ---- */

/* With a peer that is new, and one that goes: with an error for ranks here? */
void nodes_link_begin(struct peer *p);
void nodes_link_end(const struct peer *p, bool was_needed);
void nodes_links_free(struct worker *w);
/* The caller puts it. */
struct json_object;
struct json_object *nodes_links_describe(const struct worker *w);

#endif
