/* SPDX-License-Identifier: MIT
 *
 * idle.h - the loop's part of a worker's end by itself. What sessions and the broker say of it is in worker.h.
 */
#ifndef FCC_DAEMON_WORKER_IDLE_H
#define FCC_DAEMON_WORKER_IDLE_H

#include <event2/util.h>
#include <stdbool.h>

struct worker;

/* Has a communicator an operator that has not ended? */
bool worker_anything_runs(const struct worker *w);
/* The callback of worker.idle_event. */
void worker_on_idle(evutil_socket_t sock, short what, void *worker);

#endif
