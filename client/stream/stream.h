/* SPDX-License-Identifier: MIT
 *
 * stream.h - operators that have their places on streams of the program.
 */
#ifndef FCC_CLIENT_STREAM_STREAM_H
#define FCC_CLIENT_STREAM_STREAM_H

#include "client/core/context.h"
#include "client/device/accelerator.h"
#include "client/memory/buffer.h"
#include "proto/session.h"

/* Submit a message as an operator of comm, in the order of a stream. If out is NULL, the request is unattended. places: of
 * its tensors. */
int comm_enqueue(struct fcc_comm *comm, struct fcc_submit *msg, size_t length, const struct tensor_place places[],
                 int64_t *recv_rows, void *stream, fcc_request **out);
/* Not locked. Mark the communicator's unattended operators, up to message `last`, that their streams have passed. It may have
 * to read GPU memory: 0 or -EIO. */
int streams_look(struct fcc_comm *comm, uint64_t last);

/* ---- the words of streams in the memory of GPUs: words.c ---- */

/* context->accelerator_lock held, and the watch thread runs. Map the words of the communicator's streams in the memory of these
 * GPUs (struct fcc_comm_init_reply). Sets comm->words_gpus, to 0 if this process cannot use them. Returns 0, -ENOMEM, -EPROTO,
 * or the error that ended the context. */
int words_open(struct fcc_comm *comm, struct accelerator *a, uint32_t gpus);
/* Not locked. The context is dead or about to be freed: release every stream that waits for such a word. */
void words_release(struct fcc_context *c);
/* The GPU is the current one. Put onto the stream what hands over to the operator (before it is submitted) and waits for it
 * (after). */
int words_begin(const struct fcc_request *r, const struct accelerator *a, uint64_t started, void *stream);
int words_end(const struct fcc_request *r, const struct accelerator *a, void *stream);
/* The address, for the rank's GPU, of the word that the request's stream waits for. */
uint64_t words_finished_at(const struct fcc_request *r, const struct accelerator *a);
/* Not locked. Read each slot's `finished` word from the communicator's GPU. 0 or -EIO. */
int words_finished(const struct fcc_comm *comm, uint32_t out[FCC_SLOTS]);

/* ---- operators whose streams wait for them later, together: group.c ---- */

/* Has the calling thread begun a group that has not ended? */
bool group_is_open(void);
/* Add to the thread's group: the request's stream waits for the word when the group ends. If the group is full, the waits that
 * it has are put onto their streams first. 0, or the first error of those. */
int group_add(const struct fcc_request *r, const struct accelerator *a, void *stream, uint64_t word);
/* The context is about to be freed: drop its operators from the group. */
void group_forget(const struct fcc_context *c);

#endif
