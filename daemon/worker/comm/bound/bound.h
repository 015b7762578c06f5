/* SPDX-License-Identifier: MIT
 *
 * bound.h - bound operators, which the worker prepares and the ranks' own processes launch (kernels/gpu/bound.h). Engine thread.
 *
 * The worker checks and compares the ranks' requests, makes plans and memory, and keeps the memory until all ranks have freed the operator.
 * It watches the runs by the words that kernels store in the session memory, so that a run in which a rank is missing ends by the time
 * limit, as any operator would. Clients can write those words: the worker uses them for nothing else, and a client can spoil its own job only.
 */
#ifndef FCC_DAEMON_WORKER_COMM_BOUND_BOUND_H
#define FCC_DAEMON_WORKER_COMM_BOUND_BOUND_H

#include "daemon/worker/comm/comm.h"

struct json_object;

/* Bind the operator that the next submissions of c's ranks ask for, which have been found to match, and tell the ranks; on failure the caller
 * tells them. No launch of c runs. */
int prepared_make(struct comm *c, struct error *e);
/* PREPARED: give the client the memory that the message names. *fd stays the operator's. */
int prepared_give(const struct member *m, const struct fcc_prepared_msg *msg, struct fcc_prepared_reply *out, int *fd,
                  struct error *e);
/* Whether the rank has the repeated operator of this number. */
bool prepared_holds(const struct member *m, uint32_t number);
/* PREPARED_FREE. -ENOENT */
int prepared_drop(struct member *m, uint32_t number, struct error *e);
/* RUN_REFUSED. -ENOENT, -EINVAL, -ENOMEM */
int prepared_refuse(const struct member *m, const struct fcc_run_refused_msg *msg, struct error *e);
/* The client has freed a buffer: repeated operators whose results lie there are not bound any more. */
void prepared_buffer_freed(struct session *s, const struct buffer *b);
/* The rank has left. */
void prepared_leave(struct member *m);
/* Whether another rank's run waits for m, which leaves. dead: m's process has died, so runs that it has begun will not end. */
bool prepared_awaits(const struct member *m, bool dead);
/* The operator that the rank's own process has launched and that is under way, and its run; NULL: there is none. Not of repeated ones, which
 * fccd knows as operators. */
const char *prepared_run_of(const struct member *m, uint32_t *run);
/* Let all kernels of bound operators leave, including those launched later. */
void prepared_abort(struct comm *c);
/* All ranks have left: free the bound operators. */
void prepared_close(struct comm *c);
/* For fccctl comms: the bound operators that run. NULL: none. */
struct json_object *prepared_describe(const struct comm *c);

#endif
