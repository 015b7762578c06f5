/* SPDX-License-Identifier: MIT
 *
 * overlap.h - refuses inputs that overlap a result.
 *
 * All ranks store into a rank's result while inputs are still read. So no element of an input may be an element of a result. Inputs may
 * overlap each other. They may also lie in the gaps between a result's rows, which an operator does not touch.
 */
#ifndef FCC_DAEMON_WORKER_COMM_REQUEST_OVERLAP_H
#define FCC_DAEMON_WORKER_COMM_REQUEST_OVERLAP_H

#include "daemon/worker/comm/comm.h"

/* Check one rank's resolved request. -EINVAL: the text names both arguments and the ranges of bytes. Sets sub->reads_others. */
int overlap_check(struct submission *sub, const struct member *m, struct error *e);
/* Check all ranks' next requests: the inputs of each rank against the results of the others. */
int overlap_match(const struct comm *c, struct error *e);

#endif
