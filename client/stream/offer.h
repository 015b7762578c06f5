/* SPDX-License-Identifier: MIT
 *
 * offer.h - operators that are repeated, and launched by their own processes.
 */
#ifndef FCC_CLIENT_STREAM_OFFER_H
#define FCC_CLIENT_STREAM_OFFER_H

#include "client/core/context.h"

/* What becomes of an operator beside its submission. */
struct offer {
    struct kind *kind;             /* NULL: nothing */
    uint64_t run;                  /* the how-manieth run of its kind it is; 0: none is counted yet */
    struct fcc_prepared *prepared; /* whose kernel is to be put onto the stream; NULL: the stream is to wait for the worker */
    bool asks;
    const uint64_t *addresses;
};
/* What an operator comes to: */
struct offered_to {
    const void *stream;
    bool unattended;
    const uint64_t *addresses; /* of its tensors' first elements on the rank's GPU */
};
/* comm->order held, before and after an operator is submitted. msg is finished but for what this adds. to is NULL: it comes to no stream. The
 * first may take long when the worker has prepared something. */
void offer_begin(struct fcc_comm *comm, struct fcc_submit *msg, const struct offered_to *to, struct offer *out);
void offer_end(const struct offer *o);
/* Of the tensors of one that has a kernel. */
void offer_addresses(const struct offer *o, uint64_t inputs[2], uint64_t *result);
/* comm->order not held. The communicator is about to be destroyed. */
void offers_end(struct fcc_comm *comm);
/* Of a communicator whose streams' words are in the memory of GPUs. */
extern const struct comm_hooks offer_hooks;

#endif
