/* SPDX-License-Identifier: MIT
 *
 * reader.h - the reading thread, which copies out of GPUs' memory what ranks' own kernels have noted of their runs there (kernels/plan/exchange/run_record.h),
 * and knows the GPUs' clocks. The engine asks and takes, and never waits, but before it frees what is being read (gpu_read_settle()).
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_READER_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_READER_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "kernels/gpu/abi.h"

struct gpus;

/* Memory of some GPUs to be read. The engine's, but for what the thread sets, from gpu_read_ask() until gpu_read_is_done(). */
struct gpu_read {
    STAILQ_ENTRY(gpu_read) link;
    unsigned n;
    uint64_t bytes; /* of each part */
    struct {
        int gpu;
        uint64_t from;
        void *to;
        struct gpu_moment moment; /* set: of the GPU's clock; rate 0: it is not known */
    } parts[GPU_MAX_RANKS];
    _Atomic uint32_t done; /* set (release) behind all else */
    struct error error;    /* set; status 0: all was read */
};

/* Begins a read. -errno: there is no thread. */
int gpu_read_ask(struct gpus *g, struct gpu_read *r, struct error *e);
static inline bool gpu_read_is_done(const struct gpu_read *r)
{
    return atomic_load_explicit(&r->done, memory_order_acquire) != 0;
}
/* Waits until it is done, which takes as long as a copy. False: a GPU does not answer, and may yet: what is read, and to where, must stay for ever. */
bool gpu_read_settle(const struct gpu_read *r);
/* What has been asked for is done first. */
void gpu_reader_stop(struct gpus *g);

/* A time of the GPU's clock in CLOCK_MONOTONIC's, at most `now`. 0: that makes no sense: kernels' memory is the ranks' programs', too. */
uint64_t gpu_moment_ns(const struct gpu_moment *m, uint64_t clock, uint64_t since, uint64_t now);

#endif
