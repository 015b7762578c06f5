/* SPDX-License-Identifier: MIT
 *
 * run.h - a worker, put together: start, loop, end.
 */
#ifndef FCC_DAEMON_WORKER_RUN_H
#define FCC_DAEMON_WORKER_RUN_H

#include <stdbool.h>

#include "daemon/worker/engine/engine.h"

struct spin;

/* The process: its argument is the user that it is to be. Returns its exit status. */
int worker_run(int argc, char *argv[]);

/* What the process is made of, for programs that have several workers, or somebody else's loop. */

/* Open a worker that is WORKER_CLOSED(). account: its user's, a descriptor that stays the caller's. 0 or -errno; the worker is to be closed in
 * either case, and then its channel is closed, too. */
int worker_open(struct worker *w, const struct control_start *start, int account);
void worker_close(struct worker *w);
/* One turn of the loop: all that there is to do but what the event loop does; nothing is waited for. Was there anything? */
bool worker_turn(struct worker *w, const struct spin *spin);
/* Finish what runs, refuse the rest, end. */
void worker_drain(struct worker *w, const char *why);

#endif
