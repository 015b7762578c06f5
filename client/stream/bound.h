/* SPDX-License-Identifier: MIT
 *
 * bound.h - operators that this process launches itself: what the rest of the library needs of them.
 */
#ifndef FCC_CLIENT_STREAM_BOUND_H
#define FCC_CLIENT_STREAM_BOUND_H

#include "client/memory/buffer.h"
#include "client/stream/bound_plan.h"
#include "kernels/gpu/bound.h"

/* What an operator works on, of this rank. NULL: absent. */
struct prepared_buffers {
    const fcc_buffer *inputs[2]; /* gemv's x and w, gemm's a and b */
    const fcc_buffer *result;
};

/* Prepare what the finished message says, with all other ranks. recv_rows [nranks] is set, unless it is NULL. */
int comm_prepare(struct fcc_comm *comm, struct fcc_submit *msg, size_t length, int64_t *recv_rows,
                 const struct prepared_buffers *buffers, fcc_prepared **out);
/* What the worker has prepared under this number, to be offered (offer.c); `place` is its words'. NULL: this process cannot have it, which the
 * worker is told. Takes long. The communicator has it. */
struct fcc_prepared *prepared_adopt(struct fcc_comm *comm, uint32_t number, uint32_t place,
                                    const struct prepared_wanted *wanted);
uint32_t prepared_number(const struct fcc_prepared *p);
uint32_t prepared_place(const struct fcc_prepared *p);
/* Will the worker still grant runs? */
bool prepared_is_wanted(const struct fcc_prepared *p);
/* Have all runs ended that were offered? */
bool prepared_is_idle(const struct fcc_prepared *p);
/* comm->order held, the GPU is the current one. Put a run's kernel onto the stream. 0, -EIO. */
int prepared_offer(struct fcc_prepared *p, const struct gpu_offered_run *run, void *stream);
/* ... which could not be put there: whoever waits for its end need not. */
void prepared_run_lost(struct fcc_prepared *p, uint64_t run);
/* Those of a communicator that is about to be destroyed. */
void prepared_free_all(struct fcc_comm *comm);
/* The context is about to be freed: no messages, and nobody else has it. */
void prepared_forget_all(struct fcc_context *c);
/* In the child of a fork: the lock of the plug-ins is free. */
void prepared_forked(void);
/* The context is dead, or about to be freed: let their kernels leave. Not locked. */
void prepared_release(struct fcc_context *c);

#endif
