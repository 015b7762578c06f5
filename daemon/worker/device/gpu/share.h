/* SPDX-License-Identifier: MIT
 *
 * share.h - the job's share of each GPU (daemon/common/share.h): how long the kernels that the worker launches occupy it is counted, and a communicator's
 * next operator is held back while the job has used its share up. Engine thread.
 *
 * Kernels that the ranks' own processes launch, runs of bound operators among them, are neither counted nor held back: they do not pass by here.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_SHARE_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_SHARE_H

#include <stdbool.h>
#include <stdint.h>

struct device_comm;
struct launch;

/* Of one GPU. */
struct gpu_use {
    uint64_t used_ns;  /* as share_said has it */
    uint32_t running;  /* launches there that have begun and not ended */
    uint32_t waiting;  /* communicators that are held back there */
    uint64_t since_ns; /* running: when the first of them was enqueued behind nothing */
    uint64_t from_ns;  /* ... and used_ns then */
    uint64_t ahead_ns; /* how long those that run will take, as far as they have run before */
};

/* The kernels of l->step are about to be enqueued; all of them have left. */
void gpu_share_begin(struct launch *l);
void gpu_share_end(struct launch *l);

#endif
