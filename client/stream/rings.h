/* SPDX-License-Identifier: MIT
 *
 * rings.h - collectives that this process's own kernels run, in any memory (kernels/gpu/rings.h).
 */
#ifndef FCC_CLIENT_STREAM_RINGS_H
#define FCC_CLIENT_STREAM_RINGS_H

#include "client/core/context.h"
#include "kernels/plan/program.h"

/* Whether one of the tensors has FCC_ADDRESS. */
bool rings_are_needed(const struct op_spec *op, const void *args);
/* Whether this communicator's collectives can be launched here; asks the other ranks once, as an operator of its own: all ranks call
 * this for the same collective. 1: yes. 0: no, and why (-EOPNOTSUPP) is in *why. Another status: an error, which all ranks have. */
int rings_get(struct fcc_comm *comm, struct error *why);
/* Launch a collective, whose public arguments these are, onto a stream, or refuse it with an error for all ranks. */
int rings_enqueue(struct fcc_comm *comm, const struct op_spec *op, const void *args, void *stream);
/* The first error of a run that has ended and was not reported yet; 0: there is none. Sets the last error. */
int rings_error(struct fcc_comm *comm);

#endif
