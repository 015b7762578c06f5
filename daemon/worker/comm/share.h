/* SPDX-License-Identifier: MIT
 *
 * share.h - a communicator's next operator is held back while its job has used up its share of the communicator's GPUs. Engine thread.
 * daemon/worker/device/gpu/share.c has what is counted, and why nothing deadlocks.
 */
#ifndef FCC_DAEMON_WORKER_COMM_SHARE_H
#define FCC_DAEMON_WORKER_COMM_SHARE_H

#include <stdbool.h>

struct comm;

/* Whether c's next turn, for which all ranks have come, is to be held back for now: c is advanced again soon. */
bool comm_is_held(struct comm *c);
/* Nothing is held back any more: the turn begins, or never will. */
void comm_hold_end(struct comm *c);

#endif
