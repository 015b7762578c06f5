/* SPDX-License-Identifier: MIT
 *
 * parts.h - enqueues a launch on its GPUs, and the memory that its kernels share with the engine. For device.c.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_PARTS_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_PARTS_H

#include "daemon/worker/device/device.h"
#include "daemon/worker/device/gpu/call.h"
#include "daemon/worker/device/gpu/lanes.h"
#include "daemon/worker/device/launch.h"

#define AHEAD 4u         /* launches of a communicator that the worker enqueues at a time, at most; a power of two */
#define EPOCHS_AHEAD 32u /* epochs of a communicator's launches that run at a time, runs of bound operators among them */

/* What the kernels of one launch report. */
struct gpu_told {
    /* By step and GPU: stored by the last workgroup to leave that kernel (gpu_done_make()). On one node only step GPU_STEP_WAIT is used. */
    _Atomic uint64_t done[GPU_STEPS][GPU_MAX_GPUS];
    struct gpu_failure failures[GPU_MAX_RANKS]; /* by rank. kind 0: none; so when the launch begins */
};

struct gpu_shared {
    struct comm_shared common;   /* the engine and the watching thread */
    uint64_t address;            /* the engine's: the GPUs' address of this structure. 0: it is not mapped for them yet */
    struct gpu_lanes lanes;      /* the engine's */
    struct gpu_told told[AHEAD]; /* the launch of epoch n reports in [n % AHEAD] */
};

static inline struct gpu_shared *shared_of(const struct device_comm *c)
{
    return (struct gpu_shared *)c->shared;
}

static inline struct gpu_told *told_of(const struct launch *l)
{
    return &shared_of(l->comm)->told[l->epoch % AHEAD];
}

/* Enqueue all parts of the launch. waits: each GPU waits for the words of streams and of other kernels first. If one part cannot be enqueued,
 * the others are made to leave: now, or when the launch has become the current one (launch_finish()). */
void gpu_parts_start(struct launch *l, bool waits);

#endif
