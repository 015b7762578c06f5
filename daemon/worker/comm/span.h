/* SPDX-License-Identifier: MIT
 *
 * span.h - the interface by which comm/ calls nodes/, for communicators with ranks on several nodes. Engine thread.
 *
 * Such a communicator has comm.nodes, where nodes/ keeps its state. Functions are called for such communicators only, unless said otherwise.
 */
#ifndef FCC_DAEMON_WORKER_COMM_SPAN_H
#define FCC_DAEMON_WORKER_COMM_SPAN_H

#include "daemon/worker/comm/comm.h"

#define SPAN_NODES 65 /* nodes of a communicator, at most */

struct span_ops {
    /* ---- forming ---- */

    /* Any communicator: whether the ranks of that id meet on another node: its address in *root, otherwise NULL. -ENETUNREACH with the
     * reason if this node cannot get there. */
    int (*root)(const struct worker *w, const struct fcc_unique_id *id, const char **root, struct error *e);
    /* Any communicator: a rank here was refused that would have joined at that node. The communicator's ranks there hear of it. */
    void (*deny)(struct worker *w, const char *root, const struct fcc_comm_init_msg *m, const struct error *e);
    /* Any communicator: a rank here has joined; the communicator forms at the root. */
    int (*join)(struct comm *c, const struct member *m, const char *root, struct error *e);
    /* All ranks have joined, here. The caller releases the communicator. */
    void (*form)(struct comm *c);
    bool (*is_root)(const struct comm *c);    /* the communicator's root is this node */
    bool (*has_formed)(const struct comm *c); /* all ranks have joined, and the node of each is known */
    /* All ranks have joined, and the communicator has not formed: the addresses of the other nodes that are waited for, which stay the
     * communicator's. Returns how many; otherwise 0. */
    int (*awaited)(const struct comm *c, const char *addresses[SPAN_NODES]);
    /* Any communicator: the address of the node that a rank is on. "": it is here, or that node is lost. */
    const char *(*address)(const struct member *m);

    /* ---- turns ---- */

    /* A rank here has its next turn: tell the others. `submit` is NULL for an allocation. */
    void (*submitted)(const struct member *m, struct submission *sub, const struct fcc_submit *submit);
    /* Whether the turns before have ended on all nodes. */
    bool (*turn_ready)(const struct comm *c);
    /* A turn is about to begin: record the measured time that rank 0 has sent with it. */
    void (*tune)(struct comm *c);
    /* The turn is a symmetric allocation: begin it. It may have ended when this returns, or end later. */
    void (*alloc)(struct comm *c);
    void (*turn_ended)(struct comm *c);
    /* A launch is about to begin; its memory is there. -EAGAIN: try again when nothing runs. */
    int (*launch_open)(struct launch *l, struct error *e);
    /* The launch is about to get the ranks' next requests; submission.stamp tells which are those of its last run. */
    void (*launch_settle)(struct comm *c, struct launch *l);
    /* The launch's staging memory is made here. False: not on all other nodes; nodes/ calls launch_start() when it is. */
    bool (*staged)(struct comm *c, struct launch *l);
    void (*launch_started)(struct launch *l); /* the launch may have failed on another node already */
    void (*launch_failed)(const struct launch *l);
    void (*launch_close)(struct launch *l);
    /* Rank 0 is here: a measured time, which all nodes are to record in the same turn. */
    void (*measured)(struct comm *c, const struct tune_sample *sample);
    const struct launch_ops *launch_ops;

    /* ---- memory ---- */

    /* Replace the staging memory of a rank, here or remote, by one of that size. */
    int (*staging_make)(struct member *m, uint64_t bytes, struct error *e);
    /* Let other nodes put into a buffer for results of a rank here. */
    int (*buffer_open)(struct member *m, const struct buffer *b, struct error *e);
    /* Tell the other nodes of a result buffer, which is no part of a symmetric allocation. */
    void (*result_made)(const struct comm *c, const struct buffer *b);
    /* The client has freed the buffer. */
    void (*buffer_freed)(const struct comm *c, const struct buffer *b);
    /* The buffer's memory is about to be freed: when this returns nothing is put into it any more. */
    void (*buffer_close)(const struct comm *c, const struct buffer *b);

    /* ---- the end ---- */

    /* A rank here has left. `why` is NULL if it has done so in good order. */
    void (*left)(const struct member *m, const char *why);
    /* The communicator ends because a rank has left in good order: turns that have ended here end well on all nodes. */
    void (*ends_well)(struct comm *c);
    void (*aborted)(struct comm *c, bool was_forming);
    void (*release)(struct comm *c); /* free comm.nodes */

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
