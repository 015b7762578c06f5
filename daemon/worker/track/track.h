/* SPDX-License-Identifier: MIT
 *
 * track.h - trackers: the rules by which what a rank's threads count as produced is stored at other ranks (fccclient.h, "trackers").
 *
 *   track.c   trackers and their rules: how they begin and end
 *   check.c   what a rule may be
 *   work.c    the thread that works off rules
 *   gpu.c     ... of ranks on GPUs: what it gives to the GPUs' queues, and what it sees of their words
 *   show.c    what fccctl and errors say of them
 *   runs.c    when they were worked off, for fccctl trace --rules
 *
 * Threads. The engine makes and removes trackers and rules. One thread for all of them, started with the first, looks at counts and
 * words and moves rows. Both hold tracking.lock while they touch a rule; the thread lets go of it after every PIECE_BYTES, so that the
 * engine waits for no more than that. So a rule needs no reference on the buffers that it names: who frees one removes the rule first.
 *
 * Memory order. A producer's stores happen before its addition to the count (release), which the thread loads (acquire) before it reads
 * the rows; additions are read-modify-writes, so the last one carries all that came before. The thread's stores happen before the signal
 * (release) and before `done` (release). A word that a rule awaits is loaded (acquire) before its rows are moved.
 *
 * Ranks on GPUs. The thread gives a run that is due to a queue of a GPU: copies, or an addition by a few workgroups, behind them the store of
 * the signal, and behind that one into host memory, which tells the thread that the run has landed. Words that are awaited lie in a GPU's
 * memory, and are copied into host memory by a queue of their own, again and again while a rule waits for them. Clients' streams count by a
 * kernel of one thread (fcc_rule_state.streams) and wait by another one. Before a buffer that a rule names is freed, and before the tracker is,
 * the engine waits until what is under way has landed; nothing in those queues waits for anything else.
 *
 * Why rules do not deadlock by themselves: the thread never waits. A rule that is not due is passed over, so whatever is due is worked
 * off; what never becomes due is found by the time limit.
 */
#ifndef FCC_DAEMON_WORKER_TRACK_TRACK_H
#define FCC_DAEMON_WORKER_TRACK_TRACK_H

#include "daemon/worker/comm/comm.h"
#include "daemon/worker/comm/track.h"

struct json_object;

extern const struct track_ops track_over_rules; /* this folder's implementation of comm/track.h */

/* Make the rank's tracker. fds[0] is its memory, fds[1] the eventfd with which it wakes the thread; both stay the worker's.
 * -EALREADY, -EIO, -ENOMEM, -EMFILE, or the error with which the communicator has ended. */
int track_open(struct member *m, int fds[2], struct error *e);
/* Free it. -ENOENT: the rank has none. */
int track_free(struct member *m, struct error *e);
/* Add a rule; *number names it. -EINVAL, -ENOENT, -ENOMEM, -EOPNOTSUPP. */
int track_rule(struct member *m, const struct fcc_rule_msg *msg, uint32_t *number, struct error *e);

/* The engine's turn: end the communicators of rules for which nothing has come within the time limit. True if there were any. */
bool track_poll(struct worker *w);
bool track_has_news(const struct worker *w);
/* The worker ends, and no rank is left. */
void track_close(struct worker *w);

struct json_object *track_describe(struct worker *w); /* for fccctl track */
/* For fccctl trace --rules: the last runs of the rules of communicator `comm`; 0: of the one whose rule was worked off last. NULL with the
 * reason. */
struct json_object *track_runs_describe(struct worker *w, uint32_t comm, struct error *e);

#endif
