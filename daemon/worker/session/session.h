/* SPDX-License-Identifier: MIT
 *
 * session.h - clients' (and fccctl's) connections: what comes in by the socket and by the submission ring. What goes out is
 * engine/endpoint.h.
 */
#ifndef FCC_DAEMON_WORKER_SESSION_SESSION_H
#define FCC_DAEMON_WORKER_SESSION_SESSION_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon/worker/engine/endpoint.h"
#include "proto/session.h"

/* ---- session.c ---- */

/* Take over a connection and greet it. Owns sock from now on. */
void session_open(struct worker *w, int sock, const struct control_session *who);
/* Free the broken sessions: each leaves its communicators, and its buffers go when no operator uses them. */
void sessions_sweep(struct worker *w);

/* ---- messages.c, query.c ---- */

/* Do what a message asks for, of `length` bytes and with so many descriptors, and answer it. */
void session_handle(struct session *s, const struct fcc_msg *m, size_t length, int nfds);
/* Answer what fccctl asks. */
void query_handle(struct session *s, const struct fcc_query *q);

/* ---- ring.c ---- */

int ring_open(struct session *s, int *memory_fd, struct error *e);
void ring_close(struct session *s);
/* Has the client put anything into its ring? If so, it is on its way here from the client's core. */
bool ring_look(const struct session *s);
/* Read what the client has put into its ring. True if there was anything. */
bool ring_poll(struct session *s);
void ring_set_sleeping(struct session *s, enum fcc_worker_sleeps sleeping);
bool ring_has_more(const struct session *s);

#endif
