/* SPDX-License-Identifier: MIT
 *
 * puts.h - puts: data that programs' own kernels send to ranks on other nodes (fccclient.h: fcc_put_register).
 *
 * A rank has a table of puts, each checked when it is registered, and a FIFO in memory that it shares with its client. The
 * proxy thread takes the FIFO's words (puts_next()), finds the put, and sends from the rank's own buffer: there is no bounce buffer.
 *
 * Lifetime. A put holds a reference on the buffer that it sends from. When the put is removed (because one of its buffers is freed or its
 * rank leaves), the proxy may still have rows of it in a link's queue. So the reference is kept until an END trigger, pushed after the
 * removal, has come back.
 */
#ifndef FCC_DAEMON_WORKER_NODES_PUTS_H
#define FCC_DAEMON_WORKER_NODES_PUTS_H

#include "daemon/net/proxy.h"
#include "daemon/worker/comm/buffer.h"
#include "daemon/worker/comm/comm.h"

struct put {
    bool used;
    struct proxy_send send;           /* what the proxy sends; the value comes with each use */
    struct buffer *from;              /* a reference. NULL: the put sends no rows, only a signal */
    const struct buffer *to, *signal; /* this rank's parts of the destination's allocations. Only compared */
    uint64_t serial;                  /* numbers are used again, serials are not */
    bool is_due;                      /* a rule has triggered it, and the proxy has not taken it yet */
    uint64_t value;                   /* of that use's signal */
};

/* A put that a rule of a tracker triggers. */
struct rule_put {
    struct puts *puts; /* NULL: none */
    uint32_t number;
    uint64_t serial; /* which put of that number it is */
};

struct puts;     /* the puts of one rank here: member.puts */
struct puts_all; /* the puts of all ranks here */

struct puts_all *puts_all_new(struct worker *w, struct error *e);
/* To be called when the proxy has stopped and all ranks have left. */
void puts_all_free(struct puts_all *all);

/* ---- the engine's ---- */

/* Make the rank's FIFO. *fd is its memory, for the client; it stays the worker's. -EOPNOTSUPP, -ENOMEM. */
int puts_open(struct member *m, int *fd, struct error *e);
/* Register a put; *number names it in triggers. -EINVAL, -ENOENT, -EOPNOTSUPP, -ENOMEM. */
int puts_register(struct member *m, const struct fcc_put_msg *msg, uint32_t *number, struct error *e);
/* The same for a rule, which triggers it without the FIFO. It must be ended before the rank leaves. */
int puts_rule_register(struct member *m, const struct fcc_put_msg *msg, struct rule_put *out, struct error *e);
/* Remove it; does nothing if there is none, or it is removed already. */
void puts_rule_end(const struct rule_put *put);
/* The rank leaves: nothing more is read from its FIFO. */
void puts_close(struct member *m);
/* The client has freed a buffer: remove the puts that name it. */
void puts_buffer_freed(const struct buffer *b);
/* A remote rank's part of an allocation is freed: remove the puts into it. */
void puts_target_freed(const struct comm *c, int rank, uint32_t handle);
/* A remote rank has left, or its node is lost: remove the puts to it. */
void puts_rank_gone(const struct comm *c, int rank);
/* Handle what the proxy thread has reported. */
void puts_poll(struct puts_all *all);

/* ---- puts_check.c ---- */

/* Check a registration, and fill in *put except `used`; takes no reference. -EINVAL, -ENOENT. */
int put_check(const struct member *m, const struct fcc_put_msg *msg, struct put *put, struct error *e);

/* ---- any one thread's ---- */

/* Trigger a rule's put. 0; -EAGAIN: its last use has not been taken yet; -ENOENT: it has been removed, as one of its buffers is freed. */
int puts_rule_trigger(const struct rule_put *put, uint64_t value);
/* Whether the proxy thread has taken the last use, which is sent then, whatever becomes of the put: 0, -EAGAIN or -ENOENT. */
int puts_rule_taken(const struct rule_put *put);

/* ---- the proxy thread's ---- */

bool puts_next(struct puts_all *all, struct proxy_send *out);
int puts_next_ms(struct puts_all *all);
void puts_end(struct puts *p); /* the END trigger of p has come back */

#endif
