/* SPDX-License-Identifier: MIT
 *
 * span.h - what comm/ asks of whoever knows other nodes (nodes/), for communicators with ranks on several of them. The engine's.
 *
 * comm.nodes is not NULL for such a communicator, and nodes/ keeps there what it knows of it. But for what is said otherwise, functions are
 * called for such communicators only.
 */
#ifndef FCC_DAEMON_WORKER_COMM_SPAN_H
#define FCC_DAEMON_WORKER_COMM_SPAN_H

#include "daemon/worker/comm/comm.h"

#define SPAN_NODES 65 /* nodes that have ranks of a communicator, at most */

struct span_ops {
    /* ---- forming ---- */

    /* Any communicator: whether the ranks of that id meet on another node: its address in *root, otherwise NULL. -ENETUNREACH with the
     * reason if this node cannot get there. */
    int (*root)(const struct worker *w, const struct fcc_unique_id *id, const char **root, struct error *e);
    /* Any communicator: a rank here was refused that would have joined at that node. The communicator's ranks there hear of it. */
    void (*deny)(struct worker *w, const char *root, const struct fcc_comm_init_msg *m, const struct error *e);
    /* Any communicator: a rank has joined here one that forms at that node. */
    int (*join)(struct comm *c, const struct member *m, const char *root, struct error *e);
    /* All ranks have joined, here. The caller releases the communicator. */
    void (*form)(struct comm *c);
    bool (*is_root)(const struct comm *c);    /* its ranks meet here */
    bool (*has_formed)(const struct comm *c); /* all ranks have joined, and are known with their nodes */
    /* All ranks have joined, and the communicator has not formed: the addresses of the other nodes that are waited for, which stay the
     * communicator's. Returns how many; otherwise 0. */
    int (*awaited)(const struct comm *c, const char *addresses[SPAN_NODES]);
    /* Any communicator: the address of the node that a rank is on. "": it is here, or that node is lost. */
    const char *(*address)(const struct member *m);

    /* ---- turns ---- */

    /* A rank here has its next turn: tell the others. `submit` is NULL for an allocation. */
    void (*submitted)(const struct member *m, struct submission *sub, const struct fcc_submit *submit);
    /* Whether the other nodes have done with all that came before. */
    bool (*turn_ready)(const struct comm *c);
    /* A turn is about to begin: what rank 0 has sent with it of measured times is recorded. */
    void (*tune)(struct comm *c);
    /* The turn is a symmetric allocation. It has ended when this returns, or will end later. */
    void (*alloc)(struct comm *c);
    void (*turn_ended)(struct comm *c);
    /* A launch is about to begin, with all its memory. 0, -EAGAIN: when nothing runs, or an error. */
    int (*launch_open)(struct launch *l, struct error *e);
    /* False: other nodes have to make room for it, and have not; they start the launch when they have (launch_start()). */
    bool (*staged)(struct comm *c, struct launch *l);
    void (*launch_started)(struct launch *l); /* the launch may have failed on another node already */
    void (*launch_failed)(const struct launch *l);
    void (*launch_close)(struct launch *l);
    /* Rank 0 is here: a time of an operator under `auto`, which all nodes are to record in the same turn. */
    void (*measured)(struct comm *c, const struct tune_sample *sample);
    const struct launch_ops *launch_ops;

    /* ---- memory ---- */

    /* Staging memory of a rank, here or elsewhere, is to have that size; what it had is freed. */
    int (*staging_make)(struct member *m, uint64_t bytes, struct error *e);
    /* A buffer for results of a rank here: other nodes may put into it; one that is no symmetric allocation's is told to them. */
    int (*buffer_open)(struct member *m, const struct buffer *b, struct error *e);
    void (*result_made)(const struct comm *c, const struct buffer *b);
    /* Its handle has gone; its memory is about to go: nothing is put there any more when this returns. */
    void (*buffer_freed)(const struct comm *c, const struct buffer *b);
    void (*buffer_close)(const struct comm *c, const struct buffer *b);

    /* ---- the end ---- */

    /* A rank here has left. `why` is NULL if it has done so in good order. */
    void (*left)(const struct member *m, const char *why);
    /* The communicator ends since a rank has left in good order: what has ended here still ends well elsewhere. */
    void (*ends_well)(struct comm *c);
    void (*aborted)(struct comm *c, bool was_forming);
    void (*release)(struct comm *c); /* with its communicator */

    /* ---- puts of programs' kernels (nodes/puts.h) ---- */

    void (*puts_close)(struct member *m);              /* member.puts is not NULL: the rank leaves */
    void (*puts_buffer_freed)(const struct buffer *b); /* any buffer of a rank here: its handle goes */
    void (*puts_rank_gone)(const struct comm *c,
                           int rank); /* any communicator: nothing is put into that rank's memory any more */
};

static inline const struct span_ops *span(const struct comm *c)
{
    return c->worker->span;
}

#endif
