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

/* The parts of worker_run(), for programs that have several workers or a loop of their own. */

/* Open a worker that is WORKER_CLOSED(). account: descriptor of its user's account, which stays the caller's. The caller calls worker_close()
 * on failure, too; that also closes the channel. */
int worker_open(struct worker *w, const struct control_start *start, int account);
void worker_close(struct worker *w);
/* One turn of the loop without libevent's part; does not wait. True if there was anything to do. */
bool worker_turn(struct worker *w, const struct spin *spin);

#endif
