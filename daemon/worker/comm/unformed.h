/* SPDX-License-Identifier: MIT
 *
 * unformed.h - communicators that did not form, remembered for the ranks that come too late to have heard.
 *
 * When one rank is refused, the communicator that forms ends for all that have joined. Ranks that come later would make it anew, and wait
 * for those that have been told and are gone. So the worker where the ranks meet remembers why, by the id, until every rank has heard or the
 * time limit has passed in which they had to come. A rank that has heard and comes again begins anew, and with it the communicator.
 */
#ifndef FCC_DAEMON_WORKER_COMM_UNFORMED_H
#define FCC_DAEMON_WORKER_COMM_UNFORMED_H

#include <stdint.h>
#include <sys/queue.h>

#include "kernels/plan/rankset.h"
#include "proto/base/error.h"
#include "proto/proto.h"

struct worker;

struct unformed {
    TAILQ_ENTRY(unformed) link; /* worker.unformed, the oldest first */
    struct fcc_unique_id unique_id;
    struct error error;
    struct rankset told; /* who has heard */
    uint64_t until_ns;
};

/* It has ended, and these ranks have heard. limit_ms: in which the others would have had to come. Without memory the others wait. */
void unformed_note(struct worker *w, const struct fcc_unique_id *id, const struct rankset *told, uint32_t limit_ms,
                   const struct error *e);
/* The same, of this rank alone; if it is any. */
void unformed_note_rank(struct worker *w, const struct fcc_unique_id *id, int rank, uint32_t limit_ms, const struct error *e);
/* The rank, which was refused, has heard, too. */
void unformed_told(struct worker *w, const struct fcc_unique_id *id, int rank);
/* A rank comes: has its communicator ended, without its having heard? True with the reason; it has heard now. */
bool unformed_tells(struct worker *w, const struct fcc_unique_id *id, int rank, struct error *e);
void unformed_free(struct worker *w);

#endif
