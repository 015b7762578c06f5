/* SPDX-License-Identifier: MIT
 *
 * stream.h - the clients' streams, as far as GPUs wait for them and tell them: by words in the memory of GPUs or of the
 * sessions (struct fcc_stream_words and struct fcc_slot in proto.h say which word is what). The engine's, but for what says
 * otherwise.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_STREAM_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_STREAM_H

#include "daemon/worker/device/gpu/gpus.h"
#include "daemon/worker/device/launch.h"

struct gpu_words;

/* The launch begins: where its kernels tell the ranks' streams (launch.streams). Returns how many ranks have a stream. */
int streams_prepare(struct launch *l);
/* Kernels that the ranks' own processes have launched (launch_stream.kernel). Any thread that has the launch. */
bool kernels_have_ended(const struct launch *l);
bool kernel_has_begun(const struct launch *l, int rank);
/* What a GPU has to wait for, behind words[n], to come after such kernels; returns how many there are then. */
int kernels_await(const struct launch *l, uint64_t words[], uint32_t values[], int n);
/* They are not waited for any more. */
void kernels_pass(const struct launch *l);
/* By the words that CPUs see. Any thread that has the launch. */
bool streams_have_come(const struct launch *l);
/* What one GPU has to wait for, behind words[n]: the streams of its own ranks, or those of all others; returns how many there are then.
 * Any thread that has the launch. */
int streams_await(const struct launch *l, const struct launch_part *p, bool own, uint64_t words[], uint32_t values[], int n);
/* What the kernel there has to set. */
void streams_tell(const struct launch *l, const struct launch_part *p, struct gpu_end *end);
/* Does a GPU that waits for a word to reach `value` go on at `seen`, whichever way it compares: cyclically (CUDA), or as numbers (HIP)? */
static inline bool gpu_word_reached(uint32_t seen, uint32_t value)
{
    return (int32_t)(seen - value) >= 0 && seen >= value;
}
/* A kernel that stands behind a client's stream must first come: that is not waited for any more, unless the client, who can write there,
 * too, takes that back. */
void streams_pass(struct launch *l);
/* The launch has come to its end: nothing is left of streams_pass() where a slot's next operator would take it for its own. */
void streams_restore(struct launch *l);
/* Store a word in a GPU's memory, soon and in passing. */
void gpus_word_store(struct gpus *g, int gpu, uint64_t at, uint64_t value);
/* The same where no operator stores: no launch has to wait for it to be there. */
void gpus_word_post(struct gpus *g, int gpu, uint64_t at, uint64_t value);
/* What the former has stored has been stored: an operator may now store there itself. */
int stores_settle(struct gpus *g, uint32_t mask, struct error *e);
/* What either has stored in that GPU's memory has been stored: it may be freed. */
void stores_settle_all(struct gpus *g, int gpu);
/* No launch knows of them any more. NULL: nothing. */
void gpu_words_free(struct gpus *g, struct gpu_words *words);

#endif
