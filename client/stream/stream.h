/* SPDX-License-Identifier: MIT
 *
 * stream.h - operators in the order of a stream of the program, and the stream words by which that stream and the worker
 * synchronize.
 */
#ifndef FCC_CLIENT_STREAM_STREAM_H
#define FCC_CLIENT_STREAM_STREAM_H

#include "client/core/context.h"
#include "client/device/accelerator.h"
#include "client/memory/buffer.h"
#include "proto/session.h"

/* Submit a message as an operator of comm, in the order of a stream. places: where its tensors lie. If out is NULL, the program
 * gets no request to wait for (fcc_request.unattended). */
int comm_enqueue(struct fcc_comm *comm, struct fcc_submit *msg, size_t length, const struct tensor_place places[],
                 int64_t *recv_rows, void *stream, fcc_request **out);
/* Not locked. Set fcc_request.past of the communicator's unattended operators whose streams have passed them; only of requests
 * whose ids are at most `last`. This may read GPU memory: 0 or -EIO. */
int streams_look(struct fcc_comm *comm, uint64_t last);

/* ---- stream words in GPU memory (struct fcc_stream_words): words.c ---- */

/* context->accelerator_lock held, and the watch thread runs. Map the session's stream words on these GPUs (a bit for each: words_gpus
 * of struct fcc_comm_init_reply). On success comm->words_gpus is `gpus`, or stays 0 if this process cannot use the words. Returns 0,
 * -ENOMEM, -EPROTO, or the error that ended the context. */
int words_open(struct fcc_comm *comm, struct accelerator *a, uint32_t gpus);
/* Not locked. The context is dead or about to be freed: end all waits of streams for these words. */
void words_release(struct fcc_context *c);
/* The GPU is the current one. Steps 1 and 3 of stream.c: enqueue the stores of the operator's number (before it is submitted), and
 * the wait for its end (after). started: address of the slot's stream_started, which is stored last. */
int words_begin(const struct fcc_request *r, const struct accelerator *a, uint64_t started, void *stream);
int words_end(const struct fcc_request *r, const struct accelerator *a, void *stream);
/* The address, on the rank's GPU, of the word that a request's stream waits for, by the request's slot. */
uint64_t words_finished_at(const struct accelerator *a, uint32_t slot);
/* Not locked. Read the `finished` words of all slots from the memory of the rank's GPU. 0 or -EIO. */
int words_finished(const struct fcc_comm *comm, uint32_t out[FCC_SLOTS]);

/* ---- groups, whose operators' streams wait only when the group ends: group.c ---- */

/* Has the calling thread begun a group that has not ended? */
bool group_is_open(void);
/* Add a wait to the thread's open group: the stream will wait for `word` to reach the request's number when the group ends. If the
 * group is full, its earlier waits are enqueued first. 0, or the first error of those. */
int group_add(const struct fcc_request *r, const struct accelerator *a, void *stream, uint64_t word);
/* The context is about to be freed: drop the waits of its operators from the calling thread's group. */
void group_forget(const struct fcc_context *c);

#endif
