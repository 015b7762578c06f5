/* SPDX-License-Identifier: MIT
 *
 * request.h - requests: from the operator's message to its result, by the session memory or the socket; and operators that this process refuses.
 */
#ifndef FCC_CLIENT_CORE_REQUEST_H
#define FCC_CLIENT_CORE_REQUEST_H

#include "client/core/context.h"

/* ---- a slot, a record in the submission ring, the doorbell: ring.c ---- */

/* Locked; releases the lock while there is none. Take a free slot and mark it PENDING: r->slot. -ETIMEDOUT, or the context's
 * end. */
int slot_take(struct fcc_context *c, struct fcc_request *r);
/* Locked. Streams have caught up with some slots, perhaps. */
void slots_catch_up(struct fcc_context *c);
/* Needs no lock. As its kernel has said. */
bool run_is_over(const struct fcc_context *c, const struct slot_run *run);
/* Locked. Give back a slot whose request was not submitted. */
void slot_return(struct fcc_context *c, uint32_t slot);
void slot_return_late(struct fcc_context *c, uint32_t slot); /* ... and whose word a stream has still to write */
/* Locked. If the worker has completed r: r->result is filled, the slot is free, and true. */
bool slot_collect(struct fcc_request *r);
/* Needs no lock. A look at the slot without taking anything: maybe it is worth to take the lock now. */
bool slot_is_done(const struct fcc_request *r);
bool slot_is_running(const struct fcc_request *r); /* the worker asks not to spin for it */
bool ring_is_taken(const struct fcc_context *c);   /* the worker has read all that is in it */
/* Sleep until the slot is done (or the state changes, or for nothing), at most until the deadline or WAIT_SLICE_NS. */
void slot_sleep(struct fcc_request *r, int64_t deadline);
void slot_wake(const struct fcc_request *r);
/* Append a message to the ring and ring the doorbell if the worker sleeps. -ETIMEDOUT, -EPROTO, or the context's end. */
int ring_push(struct fcc_context *c, const struct fcc_submit *msg);

/* ---- completion.c ---- */

/* Fill in a request and its message, but for the slot and the id. */
void request_begin(struct fcc_request *r, struct fcc_comm *comm, struct fcc_submit *msg, size_t length, int64_t *recv_rows);
/* Submit a message as an operator of comm. Blocking if out is NULL: returns its result. Else *out is the request. */
int comm_submit(struct fcc_comm *comm, struct fcc_submit *msg, size_t length, int64_t *recv_rows, fcc_request **out);
/* Locked. True if r has finished; makes it so if its completion is there or the context is dead. */
bool request_poll(struct fcc_request *r);
/* Locked. Take every completion that is there; frees orphans that have finished. */
void context_collect(struct fcc_context *c);
/* An operator of all ranks that does nothing: they are all there when it ends. Waits. */
int comm_meet(struct fcc_comm *comm);
/* Locked. Is an operator of comm in flight, with or without a handle? */
bool comm_is_busy(const struct fcc_comm *comm);

/* ---- refusal.c ---- */

#define OP_PREPARED 0x8000u /* with an operator's number: it is not called, but prepared */
const char *operator_name(uint16_t op);
/* Behind the "rank N: " that it may begin with. */
const char *text_without_rank(int rank, const char *text);
/* The operator (FCC_OP_COUNT: a symmetric allocation; with OP_PREPARED what prepares it) is refused in this process; its text says which
 * argument and why, without the rank and the operator. It takes its place among the rank's operators, so that all ranks hear of it and stay in step. comm->order is not held. `wait`: until
 * that is so. Returns status, or what has ended the communicator, as the last error. */
int comm_refuse(struct fcc_comm *comm, unsigned op, int status, const char *text, bool wait);
/* The same with the last error as text, unless it is one that has ended the communicator for this rank already. Does not wait. */
int comm_refuse_last(struct fcc_comm *comm, unsigned op, int status);
/* comm->order held. An operator that others may be in could not be submitted, and what comes later would be taken for it: the communicator
 * is over for this rank, and the others are told, if that can be. Returns status, with the last error. */
int comm_lose(struct fcc_comm *comm, int status);
/* comm->order held. 0, or as the last error why the communicator is over for this rank. */
int comm_lost(const struct fcc_comm *comm);

#endif
