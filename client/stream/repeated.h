/* SPDX-License-Identifier: MIT
 *
 * repeated.h - operators that come to streams again and again, whose kernels the ranks' own processes launch.
 */
#ifndef FCC_CLIENT_STREAM_REPEATED_H
#define FCC_CLIENT_STREAM_REPEATED_H

#include "client/memory/buffer.h"
#include "kernels/gpu/bound.h"

/* Whether this process launches an operator. Filled in by repeat_begin(). */
struct repeat {
    struct kind *kind;             /* NULL: operators of this kind are not counted */
    struct fcc_prepared *prepared; /* this process launches its next run, `run`; NULL: the worker launches the operator */
    struct gpu_repeated_run run;   /* without slot and value */
};
/* comm->order held. Called before and after an operator is put onto a stream. repeat_begin() may add to msg, which is otherwise
 * complete; it is slow when the worker has bound something. places: of its tensors. */
void repeat_begin(struct fcc_comm *comm, struct fcc_submit *msg, const struct tensor_place places[], struct repeat *out);
void repeat_end(const struct repeat *r);
/* comm->order not held. The communicator is about to be destroyed. */
void repeats_end(struct fcc_comm *comm);
/* comm->order not held. A buffer is about to be freed, and with it what is bound to it. */
void repeats_forget(struct fcc_comm *comm, uint32_t handle);

#endif
