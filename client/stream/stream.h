/* SPDX-License-Identifier: MIT
 *
 * stream.h - operators that have their places on streams of the program.
 */
#ifndef FCC_CLIENT_STREAM_STREAM_H
#define FCC_CLIENT_STREAM_STREAM_H

#include "client/core/context.h"
#include "client/device/accelerator.h"

/* Submit a message as an operator of comm that takes its place on a stream. With out NULL nobody attends to it. addresses: where its tensors'
 * first elements are on the rank's GPU. */
int comm_enqueue(struct fcc_comm *comm, struct fcc_submit *msg, size_t length, const uint64_t addresses[], int64_t *recv_rows,
                 void *stream, fcc_request **out);
/* Mark the communicator's unattended operators, up to message `last`, that their streams have gone past. Not locked: it may ask the
 * GPU. 0 or -EIO. */
int streams_look(struct fcc_comm *comm, uint64_t last);

/* ---- the words of streams in the memory of GPUs: words.c ---- */

/* context->accelerator_lock held, and the watch runs. Get the words of the communicator's streams in the memory of these GPUs
 * (struct fcc_comm_init_reply): comm->words_gpus; 0, if they cannot be used here. -ENOMEM, -EPROTO, or the context's end. */
int words_open(struct fcc_comm *comm, struct accelerator *a, uint32_t gpus);
/* Let every stream go on that waits by such words. Not locked. The context is dead, or about to be freed. */
void words_release(struct fcc_context *c);
/* The GPU is the current one. The request's place on its stream: what comes before it is submitted, and after. */
int words_begin(const struct fcc_request *r, const struct accelerator *a, uint64_t started, void *stream);
int words_end(const struct fcc_request *r, const struct accelerator *a, void *stream);
/* What `finished` says on the communicator's GPU now, for each slot. Not locked. 0 or -EIO. */
int words_finished(const struct fcc_comm *comm, uint32_t out[FCC_SLOTS]);

/* ---- operators whose streams wait for them later, together: group.c ---- */

/* Has the calling thread begun a group that has not ended? */
bool group_is_open(void);
/* ... in which a stream is still to wait for an operator? */
bool group_is_waiting(void);
/* The thread's group: the request's stream is to wait for the word when the group ends. 0, or the first error of those before, which
 * did not fit any more and have been put onto their streams. */
int group_add(const struct fcc_request *r, const struct accelerator *a, void *stream, uint64_t word);
/* The context is about to be freed: its operators are over. */
void group_forget(const struct fcc_context *c);

#endif
