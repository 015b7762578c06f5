/* SPDX-License-Identifier: MIT
 *
 * offer.h - repeated operators, whose kernels the ranks' own processes launch.
 */
#ifndef FCC_CLIENT_STREAM_OFFER_H
#define FCC_CLIENT_STREAM_OFFER_H

#include "client/core/context.h"

/* Whether this process launches an operator's kernel. Filled in by offer_begin(). */
struct offer {
    struct kind *kind;             /* NULL: operators of this kind are not counted */
    uint64_t run;                  /* the index of this run among those of its kind, from 1 on; 0: not counted */
    struct fcc_prepared *prepared; /* its kernel goes onto the stream; NULL: the worker launches, and the stream waits for it */
    bool asks;
    const uint64_t *addresses;
};
/* The stream that an operator is enqueued on. */
struct offered_to {
    const void *stream;
    bool unattended;
    const uint64_t *addresses; /* of its tensors' first elements on the rank's GPU */
};
/* comm->order held. Called before and after an operator is submitted. offer_begin() may add to msg, which is otherwise
 * complete; it is slow when the worker has prepared something. `to` is NULL: the operator is on no stream. */
void offer_begin(struct fcc_comm *comm, struct fcc_submit *msg, const struct offered_to *to, struct offer *out);
void offer_end(const struct offer *o);
/* The addresses of the tensors of an operator that this process launches. */
void offer_addresses(const struct offer *o, uint64_t inputs[2], uint64_t *result);
/* comm->order not held. The communicator is about to be destroyed. */
void offers_end(struct fcc_comm *comm);
/* The hooks of a communicator whose stream words are in GPU memory. */
extern const struct comm_hooks offer_hooks;

#endif
