/* SPDX-License-Identifier: MIT
 *
 * offers.h - operators whose kernels the ranks' own processes put onto their streams before this process has decided about them (struct
 * fcc_prepared_words in proto.h). The engine's, but for what is said to be any thread's.
 *
 * An operator is granted if all ranks offer the same run of it. Then it runs like any other that has its place on streams, but nothing is
 * given to the GPUs: what its kernels say of their begin and end in the sessions' memory takes the place of what those of the worker tell
 * (device/gpu/stream.h: kernels_have_ended()). If one rank does not offer it, or it is to be traced, or other communicators take turns with this one,
 * it is declined: the worker runs it, and the kernels that stand on the streams write and await the streams' words. Either way it has
 * been decided before its ranks are told of its end. When the communicator is aborted nobody waits for granted kernels: whatever they use
 * is mapped by the clients, too, and stays as long as it is.
 *
 * Behind it. Within a rank all operators that are in flight are on one stream, or none is offered (client/stream/offer.c), so they follow
 * each other there. What is launched by this process behind a granted operator, and has to wait for the end of the one before on all
 * GPUs, waits for the words by which its kernels say so (device/gpu/stream.h: kernels_await()).
 */
#ifndef FCC_DAEMON_WORKER_COMM_BOUND_OFFERS_H
#define FCC_DAEMON_WORKER_COMM_BOUND_OFFERS_H

#include "daemon/worker/device/launch.h"
#include "kernels/gpu/abi.h"

struct member;
struct offer_word;

/* All ranks ask for c's next operator, and may have it prepared: when nothing runs, by offers_make(). */
bool offers_are_asked(const struct comm *c);
void offers_make(struct comm *c);

/* A request that says it is offered: find the word by which that is decided. False: there is no such operator. */
bool offer_find(const struct member *m, const struct fcc_submit *submit, struct offer_word *out);
/* Its kernel is to stand back. */
void offer_decline(struct gpus *g, const struct offer_word *word, uint64_t run);

/* l is about to be given to the GPUs: all its ranks' kernels may run (true), or those that were offered stand back. */
bool offers_decide(struct launch *l);
/* l is about to be given to the GPUs, and is not granted: find the newest granted launch before it, whose end it has to wait for. */
void offers_note(struct launch *l);

#endif
