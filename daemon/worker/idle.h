/* SPDX-License-Identifier: MIT
 *
 * idle.h - when a worker ends by itself.
 */
#ifndef FCC_DAEMON_WORKER_IDLE_H
#define FCC_DAEMON_WORKER_IDLE_H

#include <event2/util.h>
#include <stdbool.h>

struct worker;

/* Whether any communicator has an operator that has not ended. */
bool worker_anything_runs(const struct worker *w);
/* The broker has handed over a connection: the worker is not idle, even if it has asked to retire (control.h). */
void worker_handed(struct worker *w);
/* Another broker has taken the worker over. */
void worker_adopted(struct worker *w);
/* The answer to CONTROL_RETIRE: the worker may end. */
void worker_retire(struct worker *w);
/* The callback of worker.idle_event. */
void worker_on_idle(evutil_socket_t sock, short what, void *worker);

#endif
