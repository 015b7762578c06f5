/* SPDX-License-Identifier: MIT
 *
 * trace.h - what fccctl trace shows: the times of the slices of one operator.
 */
#ifndef FCC_DAEMON_WORKER_COMM_TRACE_H
#define FCC_DAEMON_WORKER_COMM_TRACE_H

#include <stdint.h>

struct comm;
struct error;
struct fcc_query;
struct session;
struct worker;

/* The communicator with this number; with 0 the one that began an operator last. NULL: there is none; e says which there are. */
struct comm *comm_by_number(const struct worker *w, uint32_t n, struct error *e);
/* Answer a trace query: with the last operator, or (--next) when the next one has ended. */
void trace_query(struct session *s, const struct fcc_query *q);
/* Answer all queries that wait for c's next operator: it has ended, well or with error *e, or the communicator has ended. */
void trace_waiters_answer(struct comm *c, const struct error *e);
/* The session ends: drop its waiting queries. */
void trace_waiters_forget(struct session *s);

#endif
