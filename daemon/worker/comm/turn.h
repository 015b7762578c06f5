/* SPDX-License-Identifier: MIT
 *
 * turn.h - one operator of all ranks: from their requests to a launch, and from its end to the ranks.
 */
#ifndef FCC_DAEMON_WORKER_COMM_TURN_H
#define FCC_DAEMON_WORKER_COMM_TURN_H

#include "daemon/worker/comm/tune.h"
#include "daemon/worker/device/launch.h"

struct comm;

/* ---- turn.c ---- */

/* Begin the operator that is every member's next. 0: it runs, or (small) has run already and comm_advance() is due; otherwise
 * an error for all ranks, or, while others run, for none: then it is to be tried again when they have finished. */
int launch_begin(struct comm *c, struct error *e);
/* Give a launch that has been begun to the devices. */
void launch_start(struct launch *l);
/* The engine, when the launch was handed back: true if it is over; then the ranks have been told, and it is time to go on. */
bool launch_returned(struct launch *l);
void launch_finish(struct launch *l);
/* The last workgroup of a launch whose ranks are all here (launch_ops.ended): hand it back, and tell the ranks if it went well. */
void launch_end(struct launch *l);
/* The engine: what devices have handed back is over. True if something was. To be called before the engine hears what clients want that
 * may have been told of an operator's end by a workgroup. */
bool launches_collect(struct worker *w);
/* The engine, while it is awake: what runs on GPUs and has ended is over. True if something was. */
bool launches_poll(struct worker *w);
/* Compare the ranks' requests, args[nranks], and fill in c->problem. */
int launch_match(struct comm *c, const struct op_args args[], struct error *e);
/* Where the plan's staging memory is, which is made if it has to be. 0, -EAGAIN: when nothing runs, or an error. */
int launch_staging_prepare(struct comm *c, const struct launch *l, struct error *e);
/* All is as before its first slice. */
void launch_reset(struct launch *l);

/* ---- launches.c ---- */

struct tune_class launch_class(const struct comm *c); /* c->problem's */
/* A launch of c->problem, with its plans: a kept one, which then is kept no more, or a new one; NULL with an error. */
struct launch *launch_get(struct comm *c, enum fcc_schedule_kind kind, enum plan_route route, struct error *e);
/* Keep it until the same problem comes, or until others have come since. */
void launch_keep(struct comm *c, struct launch *l);
/* Free a launch that does not run. */
void launch_forget(struct launch *l);

/* ---- early.c ---- */

/* While the engine waits for the other ranks of c's next operator: run what may be run of it. True if something was done. */
bool launch_early_run(struct comm *c);
/* l is the next operator, NULL: it is not to run. True if slices of l have run already; what has run of another one is forgotten. */
bool launch_early_take(struct comm *c, struct launch *l);
void launch_early_end(struct launch *l); /* it is over, or forgotten */

#endif
