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
/* Over several nodes, where only the worker of a client knows which buffers its ranks share, and all workers must find the same: check a rank's
 * request, which is about to be queued, against what other ranks of the same client have queued for the same turn. The error, which names the
 * rank and the operator, becomes the request's own, and travels with it. Requests of all members take turns together, so the n-th behind
 * member.next is of the same turn for all. */
int overlap_nodes_check(const struct submission *sub, const struct member *m, struct error *e);

#endif
