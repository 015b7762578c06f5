/* SPDX-License-Identifier: MIT
 *
 * request.h - requests, from an operator's message to its result, over the session memory or the socket; operators refused in
 * this process.
 */
#ifndef FCC_CLIENT_CORE_REQUEST_H
#define FCC_CLIENT_CORE_REQUEST_H

#include "client/core/context.h"

/* ---- a slot, a record in the submission ring, the doorbell: ring.c ---- */

/* Locked; releases the lock while no slot is free. Take a free slot and mark it PENDING: r->slot. Returns 0, -ETIMEDOUT, or the
 * error that ended the context. */
int slot_take(struct fcc_context *c, struct fcc_request *r);
/* Needs no lock. Has the run's kernel said that it is over? */
bool run_is_over(const struct fcc_context *c, const struct slot_run *run);
/* Locked. Return a slot whose request was not submitted. `late`: a stream has still to write to its words; the slot is late until
 * then. */
void slot_return(struct fcc_context *c, uint32_t slot, bool late);
/* Locked. True if the worker has completed r: r->result is then filled and the slot is free. */
bool slot_collect(struct fcc_request *r);
/* Needs no lock. Of the request's slot. DONE: a hint that slot_collect() would succeed; RUNNING: the worker has started the
 * operator and asks clients not to spin. */
uint32_t slot_state(const struct fcc_request *r);
bool ring_is_taken(const struct fcc_context *c); /* the worker has read all records of the ring */
/* Sleep until the slot's state changes, at most until the deadline or WAIT_SLICE_NS. May return early. */
void slot_sleep(struct fcc_request *r, int64_t deadline);
void slot_wake(const struct fcc_request *r);
/* Append a message to the ring and ring the doorbell if the worker sleeps; quiet: not if it sleeps soundly (enum
 * fcc_worker_sleeps). 0, -ETIMEDOUT, -EPROTO, or the error that ended the context. */
int ring_push(struct fcc_context *c, const struct fcc_submit *msg, bool quiet);
/* Wake the worker if there is something in the ring that it has not read. */
void ring_hurry(struct fcc_context *c);

/* ---- completion.c ---- */

/* Fill in a request and its message, but for the slot and the id. */
void request_begin(struct fcc_request *r, struct fcc_comm *comm, struct fcc_submit *msg, size_t length, int64_t *recv_rows);
/* The worker has not heard of the request, which has its slot: end it. `written`: the stream may still be on its way to the slot's
 * word. */
void request_close(struct fcc_request *r, bool written);
/* Submit a message as an operator of comm. If out is NULL, waits and returns the result. Otherwise *out is the request. */
int comm_submit(struct fcc_comm *comm, struct fcc_submit *msg, size_t length, int64_t *recv_rows, fcc_request **out);
/* Locked. Collect every completion that is there and free orphans that have finished. */
void context_collect(struct fcc_context *c);
/* A barrier of all ranks, by an operator that does nothing. Waits. */
int comm_meet(struct fcc_comm *comm);
/* Locked. Is an operator of comm in flight, with or without a handle? */
bool comm_is_busy(const struct fcc_comm *comm);

/* ---- refusal.c ---- */

#define OP_PREPARED 0x8000u /* added to an operator's number: the operator is prepared, not called */
const char *operator_name(uint16_t op);
/* The text after a leading "rank N: ", if there is one. */
const char *text_without_rank(int rank, const char *text);
/* comm->order not held. Refuse an operator in this process (FCC_OP_COUNT: a symmetric allocation; with OP_PREPARED: its
 * preparation). `text` names the argument and the reason, without the rank and the operator. The refused operator takes its
 * place in the rank's order, so all ranks hear of it and stay in step; with `wait`, before this returns. Returns status, or the
 * error that ended the communicator, as the last error. */
int comm_refuse(struct fcc_comm *comm, unsigned op, int status, const char *text, bool wait);
/* comm_refuse() with the thread's last error as text and without a wait. Does nothing if that error has ended the
 * communicator for this rank already. */
int comm_refuse_last(struct fcc_comm *comm, unsigned op, int status);
/* comm->order held. An operator that other ranks may have started could not be submitted, so this rank's next one would be
 * matched with it. Ends the communicator for this rank and tells the others, if that is possible. Returns status, with the last
 * error. */
int comm_lose(struct fcc_comm *comm, int status);
/* comm->order held. 0, or as the last error why the communicator is over for this rank. */
int comm_lost(const struct fcc_comm *comm);

#endif
