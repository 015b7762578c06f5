/* SPDX-License-Identifier: MIT
 *
 * unformed.h - remembers why communicators did not form, for ranks that join too late to have been told.
 *
 * When one rank is refused, the forming communicator ends for all ranks that have joined. Ranks that join later would form it anew, and wait
 * in vain for those that have left. So the root's worker remembers the reason by the unique id, until every rank has heard it or the time
 * limit for joining has passed. A rank that has heard and joins again begins a new communicator.
 */
#ifndef FCC_DAEMON_WORKER_COMM_UNFORMED_H
#define FCC_DAEMON_WORKER_COMM_UNFORMED_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/plan/rankset.h"
#include "proto/base/error.h"
#include "proto/base/list.h"
#include "proto/proto.h"

struct worker;

struct unformed {
    TAILQ_ENTRY(unformed) link; /* worker.unformed, the oldest first */
    struct fcc_unique_id unique_id;
    struct error error;
    struct rankset told; /* the ranks that have heard */
    uint64_t until_ns;
};

/* A forming communicator has ended, and the ranks `told` have been told. The others have limit_ms to join. Without memory
 * for the note, late ranks wait for their time limit. */
void unformed_note(struct worker *w, const struct fcc_unique_id *id, const struct rankset *told, uint32_t limit_ms,
                   const struct error *e);
/* As unformed_note(), if only this rank was told. The rank may be invalid. */
void unformed_note_rank(struct worker *w, const struct fcc_unique_id *id, int rank, uint32_t limit_ms, const struct error *e);
/* This rank, which was refused, was told as well. */
void unformed_told(struct worker *w, const struct fcc_unique_id *id, int rank);
/* A rank joins. True, with the reason in *e: its communicator has ended and the rank had not heard; now it has. */
bool unformed_tells(struct worker *w, const struct fcc_unique_id *id, int rank, struct error *e);
void unformed_free(struct worker *w);

#endif
