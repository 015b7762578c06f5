/* SPDX-License-Identifier: MIT
 *
 * share.h - a communicator's next operator is held back while its job has used up its share of the communicator's GPUs. Engine thread.
 * daemon/worker/device/gpu/share.c has what is counted, and why nothing deadlocks.
 */
#ifndef FCC_DAEMON_WORKER_COMM_SHARE_H
#define FCC_DAEMON_WORKER_COMM_SHARE_H

#include <stdbool.h>

#include "daemon/common/events.h"

struct comm;

/* Whether c's next turn may launch on its devices. */
bool comm_has_share(const struct comm *c);
/* c's next turn, for which all ranks have come, is held back: again(c) is called soon, which is to advance it. False: it has been for as long as may be. */
bool comm_hold(struct comm *c, event_callback_fn again);
/* Nothing is held back any more: the turn begins, or never will. */
void comm_hold_end(struct comm *c);

#endif
