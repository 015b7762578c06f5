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

/* Begin the operator that is every member's next. 0: it runs, or is small and has run already; then comm_advance() is due. Otherwise an error
 * for all ranks; but while other launches of c run the caller reports no error and tries again when they have finished. */
int launch_begin(struct comm *c, struct error *e);
/* The same of a run of a bound operator (bound/launcher.h): its launch, whose streams are filled in, has no plans. */
void launch_begin_bound(struct comm *c, struct launch *l);
/* Give a launch that has been begun to the devices. */
void launch_start(struct launch *l);
/* The engine: the launch was handed back. True: it is over, the ranks have been told, and comm_advance() is due. */
bool launch_returned(struct launch *l);
void launch_finish(struct launch *l);
/* launch_ops.ended of launches whose ranks are all here: hand the launch back, and tell the ranks if it succeeded. */
void launch_end(struct launch *l);
/* The engine: finish the launches that devices have handed back. True if there were any. To be called before the engine reads requests: a
 * workgroup may have told the client of its operator's end already. */
bool launches_collect(struct worker *w);
/* The engine, while it is awake: finish the launches on GPUs that have ended. True if there were any. */
bool launches_poll(struct worker *w);
/* Compare the ranks' requests, args[nranks], and fill in c->problem. */
int launch_match(struct comm *c, const struct op_args args[], struct error *e);
/* Make the plan's staging memory if what the ranks have is too small, and fill in l->staging. -EAGAIN: try again when nothing runs. */
int launch_staging_prepare(struct comm *c, const struct launch *l, struct error *e);
/* Prepare the launch for its next run: counters are as before the first slice. */
void launch_reset(struct launch *l);

/* ---- launches.c ---- */

extern const struct launch_ops launch_ops_here;       /* of launches whose ranks are all here */
struct tune_class launch_class(const struct comm *c); /* the class of c->problem */
/* A launch of c->problem, with its plans: taken from the cache, or new. NULL with the reason. */
struct launch *launch_get(struct comm *c, enum fcc_schedule_kind kind, enum plan_route route, struct error *e);
/* Put the launch into the cache, from which the least recently used ones are freed. */
void launch_keep(struct comm *c, struct launch *l);
/* Free a launch that does not run. */
void launch_forget(struct launch *l);

/* ---- early.c ---- */

/* While the engine waits for other ranks of c's next operator: run slices of it that need no other rank. True if any were run. */
bool launch_early_run(struct comm *c);
/* The next operator is l; NULL: it does not run. True: slices of l have run already. Results of slices of another launch are discarded. */
bool launch_early_take(struct comm *c, struct launch *l);
void launch_early_end(struct launch *l); /* l is over, or its early slices are discarded */

#endif
