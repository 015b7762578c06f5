/* SPDX-License-Identifier: MIT
 *
 * overlap.h - inputs that lie in the memory of a result.
 *
 * A rank's result is stored into while inputs are still read: by the rank itself and by all others. So no element of an input may be one
 * of a result. Inputs may overlap each other, and may lie in the gaps of a result: an operator leaves the bytes between its rows as they are.
 */
#ifndef FCC_DAEMON_WORKER_COMM_OVERLAP_H
#define FCC_DAEMON_WORKER_COMM_OVERLAP_H

#include "daemon/worker/comm/comm.h"

/* One rank's request, resolved and checked: 0, or -EINVAL, which names both arguments and the ranges of bytes. Notes in the submission
 * whether an input lies in memory for results that is another rank's. */
int overlap_check(struct submission *sub, const struct member *m, struct error *e);
/* All ranks' next requests: inputs of one rank against the results of the others. */
int overlap_match(const struct comm *c, struct error *e);

#endif
