/* SPDX-License-Identifier: MIT
 *
 * stream.h - synchronization of operators with the clients' streams, by words in the memory of GPUs or of sessions (session.h: struct
 * fcc_stream_words, struct fcc_slot). Engine thread, unless said otherwise.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_STREAM_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_STREAM_H

#include "daemon/worker/device/gpu/gpus.h"
#include "daemon/worker/device/launch.h"

struct gpu_words;

/* The launch begins: fill in launch.streams. Returns how many ranks have a stream. */
int streams_prepare(struct launch *l);
/* Whether the kernels that the ranks' own processes have launched (launch_stream.kernel) have ended, or one has begun. Any thread that has the
 * launch. */
bool kernels_have_ended(const struct launch *l);
bool kernel_has_begun(const struct launch *l, int rank);
/* Whether all ranks' streams have come to the operator, by the words in the session memory. Any thread that has the launch. */
bool streams_have_come(const struct launch *l);
/* Append to words[n] what one GPU waits for: the streams of its own ranks (own), or of all other ranks. Returns the new n. Any thread that
 * has the launch. */
int streams_await(const struct launch *l, const struct launch_part *p, bool own, uint64_t words[], uint32_t values[], int n);
/* The words that this part's kernel sets at its end. */
void streams_tell(const struct launch *l, const struct launch_part *p, struct gpu_end *end);
/* Whether a GPU that waits for a word to reach `value` goes on at `seen`, both if it compares cyclically (CUDA) and as numbers (HIP). */
static inline bool gpu_word_reached(uint32_t seen, uint32_t value)
{
    return (int32_t)(seen - value) >= 0 && seen >= value;
}
/* Let kernels start that wait for a client's stream: store the words for the streams. The client can write the same words, and undo this. */
void streams_pass(struct launch *l);
/* The launch has ended: overwrite what streams_pass() has stored, so that the slot's next operator does not take it for its own stream. */
void streams_restore(struct launch *l);
/* Enqueue a store of a word into a GPU's memory, on its side stream. */
void gpus_word_store(struct gpus *g, int gpu, uint64_t at, uint64_t value);
/* Wait until all gpus_word_store()s to these GPUs are complete, so that kernels may store to the same words, and its memory may be freed. */
int stores_settle(struct gpus *g, uint32_t mask, struct error *e);
/* To be called when no launch refers to the words. words may be NULL. */
void gpu_words_free(struct gpus *g, struct gpu_words *words);

#endif
