/* SPDX-License-Identifier: MIT
 *
 * bound.h - operators that are prepared here, and launched by the ranks' own processes (kernels/gpu/bound.h). The engine's.
 *
 * What this process does for one: it checks and compares the ranks' requests, makes the plans and the memory, keeps what the kernels use
 * until all ranks have freed the operator, and watches the runs by what kernels say in the sessions' memory: so a run in which a
 * rank is missing ends as any operator would. It believes that nothing but that: a client can spoil its own job only.
 */
#ifndef FCC_DAEMON_WORKER_COMM_BOUND_BOUND_H
#define FCC_DAEMON_WORKER_COMM_BOUND_BOUND_H

#include "daemon/worker/comm/comm.h"

struct json_object;

/* The next submissions of c's ranks, which have been found to ask for the same, are to prepare an operator: do that, and tell the ranks. On
 * failure nobody has been told. Nothing of c runs. */
int prepared_make(struct comm *c, struct error *e);
/* PREPARED: the memory that the message names. The descriptor stays the operator's. */
int prepared_give(const struct member *m, const struct fcc_prepared_msg *msg, struct fcc_prepared_reply *out, int *fd,
                  struct error *e);
/* PREPARED_FREE. -ENOENT */
int prepared_drop(struct member *m, uint32_t number, struct error *e);
/* RUN_REFUSED. -ENOENT, -EINVAL, -ENOMEM */
int prepared_refuse(const struct member *m, const struct fcc_run_refused_msg *msg, struct error *e);
/* The client has freed it: nothing that would be offered may store into it. */
void prepared_buffer_freed(struct session *s, const struct buffer *b);
/* The rank has left. */
void prepared_leave(struct member *m);
/* Does a run of another rank wait for this one, which leaves? dead: what it has begun it will not end. */
bool prepared_awaits(const struct member *m, bool dead);
/* Let all kernels leave, those that come later, too. */
void prepared_abort(struct comm *c);
/* All ranks have left. */
void prepared_close(struct comm *c);
/* For fccctl comms: those that run; NULL: none. */
struct json_object *prepared_describe(const struct comm *c);

#endif
