/* SPDX-License-Identifier: MIT
 *
 * launcher.h - who launches a communicator's next operator: the worker, or the ranks' own processes, to which it is bound (struct
 * fcc_binding in session.h). Engine thread.
 *
 * Binding. When all ranks ask for the same next operator, the worker binds it, announces it, and runs this one itself. When all clients
 * have adopted it, the worker sets `first`, FCC_SLOTS + 1 operators after the newest that it has seen of any rank. A rank has at most FCC_SLOTS
 * operators in flight. So before it submits operator `first` it has seen the end of a later one than the newest, which the worker told it
 * after the news (release, acquire), and knows `first`.
 *
 * Running. From then on a rank launches every operator with the bound arguments itself and submits it as run n of the bound operator.
 * The worker has nothing to plan, to stage or to launch: it counts the run as running until all ranks' kernels have said that they have
 * ended, so that whoever waits for the operator, the time limit and fccctl hold for it as for any other.
 *
 * Recall. A rank cannot know the arguments of the others' operators. So operator m may be a run on some ranks only: one rank has other
 * strides, or is on no stream. Or the worker has set `until`, since it wants to launch operators itself (for their times, fccctl trace; or a
 * second communicator has come to the GPUs; or a rank has freed the result), and one rank has seen that and another has not. Then the worker
 * waits until everything before m has ended, stores the failure epoch of the bound operator at all ranks, and launches m and what is
 * behind it itself. The kernels of m and of later runs hand over: they write and await the stream words of their slots, as the stream does
 * around an operator that the worker launches. An operator that all ranks have launched is never recalled: its kernels may have ended.
 *
 * Why no run meets another operator's. The runs of all ranks are numbered from the same number on, one number for each operator that the rank
 * launches. A client launches an operator only behind all its earlier ones: the stream waits for the end of the one before if that is not on
 * the stream already, and an operator that is on no stream must have completed (client/stream/repeated.c). Suppose that run n is
 * operator a on rank A and a later operator b on rank B, and that n is the first such run. Then B has submitted a, but not as a run, so the
 * worker recalls A's run n before it launches a. B's kernel of run n begins after a has ended on B. It finds the failure epoch, which
 * was there before a was launched (stores_settle()). So it hands over, whether it has looked before its end or not. What it stores before
 * is stored again by the worker's launch of b, and b has no input where results are stored. A's run n has not ended meanwhile: every plan of
 * several ranks waits for each of them, by its packets or by the barrier before its stores.
 *
 * Memory. The worker keeps the control memory and the results of a bound operator until all ranks have freed it, which a client does when its
 * runs have ended. tests/model/ enumerates what a worker, two ranks and two slots can do.
 */
#ifndef FCC_DAEMON_WORKER_COMM_BOUND_LAUNCHER_H
#define FCC_DAEMON_WORKER_COMM_BOUND_LAUNCHER_H

#include <stdbool.h>

struct comm;
struct launch;
struct prepared;
struct worker;

/* LAUNCH_RECALLED: the worker, when nothing runs any more and the runs of some ranks have been recalled. */
enum launcher { LAUNCH_WORKER, LAUNCH_BOUND, LAUNCH_RECALLED };

/* Who launches the operator that all ranks have submitted next. Recalls the runs of some ranks if nothing runs. */
enum launcher comm_launcher(struct comm *c);
/* Whether one more run may count as running. */
bool bound_has_room(const struct comm *c);
/* Begin c's next operator, a run. -ENOMEM */
int bound_begin(struct comm *c);
/* A run has ended. */
void bound_end(struct launch *l);

/* All ranks ask for c's next operator to be bound, and it may be: binding_make() does so when nothing runs. */
bool binding_is_asked(const struct comm *c);
void binding_make(struct comm *c);

/* To be called before c's turns: give adopted bindings their `first`; end all where c does not have its GPUs to itself or is traced. */
void bindings_look(struct comm *c);
/* Whether no rank waits for another, and some have bound operators (FCC_WORKER_SLEEPS_SOUNDLY). */
bool bindings_sleep_soundly(const struct worker *w);
/* The worker launches p's operator itself, as soon as the ranks see that. */
void binding_end(struct prepared *p);
/* A communicator has come to GPUs: end the bindings of all others. */
void bindings_end_beside(struct comm *c);

#endif
