/* SPDX-License-Identifier: MIT
 *
 * puts.h - what programs' own kernels send to ranks on other nodes (fccclient.h: fcc_put_register).
 *
 * A rank has a table of puts, each checked when it is registered, and a FIFO in memory that it shares with its client. The
 * proxy thread takes the FIFO's words (puts_next()), finds the put, and sends from the rank's own buffer: there is no bounce buffer.
 *
 * Lifetime. A put holds a reference on the buffer that it sends from, but the proxy may have rows of it in a link's queue when
 * the put goes (with one of its buffers) or its rank leaves. So the reference is kept until an END trigger that was pushed
 * after that has come back.
 */
#ifndef FCC_DAEMON_WORKER_NODES_PUTS_H
#define FCC_DAEMON_WORKER_NODES_PUTS_H

#include "daemon/net/proxy.h"
#include "daemon/worker/comm/buffer.h"
#include "daemon/worker/comm/comm.h"

struct put {
    bool used;
    struct proxy_send send;           /* but for the value */
    struct buffer *from;              /* a reference; NULL: no rows */
    const struct buffer *to, *signal; /* this rank's parts: compared only */
};

struct puts;     /* of a rank here: member.puts */
struct puts_all; /* of all of them */

struct puts_all *puts_all_new(struct worker *w, struct error *e);
/* The proxy has stopped, and all ranks have left. */
void puts_all_free(struct puts_all *all);

/* ---- the engine's ---- */

/* The FIFO's memory, for the client; *fd stays ours. -EOPNOTSUPP, -ENOMEM. */
int puts_open(struct member *m, int *fd, struct error *e);
/* -EINVAL, -ENOENT, -EOPNOTSUPP, -ENOMEM. */
int puts_register(struct member *m, const struct fcc_put_msg *msg, uint32_t *number, struct error *e);
/* The member leaves: nothing more of its FIFO is taken. */
void puts_close(struct member *m);
/* The handle of a buffer of a rank here goes, and with it the puts that name it. */
void puts_buffer_freed(const struct buffer *b);
/* The part of a rank elsewhere goes: nothing is put there any more. */
void puts_target_freed(const struct comm *c, int rank, uint32_t handle);
/* A rank elsewhere has left, or its node is lost. */
void puts_rank_gone(const struct comm *c, int rank);
/* What the proxy thread has told. */
void puts_poll(struct puts_all *all);

/* ---- puts_check.c ---- */

/* What a message asks for, if it may: all of *put but for `used`, without a reference. -EINVAL, -ENOENT. */
int put_check(const struct member *m, const struct fcc_put_msg *msg, struct put *put, struct error *e);

/* ---- the proxy thread's ---- */

bool puts_next(struct puts_all *all, struct proxy_send *out);
int puts_next_ms(struct puts_all *all);
void puts_end(struct puts *p); /* its END trigger has come back */

#endif
