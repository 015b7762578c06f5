/* SPDX-License-Identifier: MIT
 *
 * parts.h - a launch on its way into the GPUs' queues, and what its kernels and the engine share. device.c's.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_PARTS_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_PARTS_H

#include "daemon/worker/device/device.h"
#include "daemon/worker/device/gpu/call.h"
#include "daemon/worker/device/gpu/lanes.h"
#include "daemon/worker/device/launch.h"

#define AHEAD 4u /* launches of a communicator that this process has in the GPUs' queues at most; a power of two */

/* And of those that its ranks have there, which it has only to allow (offers.h). The GPUs go on while the engine has not seen the end of one,
 * for as long as 15 more take. */
#define GRANTED_AHEAD 16u

/* What kernels tell of one launch. */
struct gpu_told {
    /* Of each GPU's part (over nodes: of each step of it), by the last workgroup to leave: gpu_done_make() */
    _Atomic uint64_t done[GPU_STEPS][GPU_MAX_GPUS];
    struct gpu_failure failures[FCC_MAX_RANKS]; /* kind 0 when the launch begins */
};

struct gpu_shared {
    struct comm_shared common;   /* the engine's and the watching thread's */
    uint64_t address;            /* where the GPUs see all this; 0: they do not yet. The engine's */
    struct gpu_lanes lanes;      /* the engine's */
    struct gpu_told told[AHEAD]; /* of launch n in [n % AHEAD] */
};

static inline struct gpu_shared *shared_of(const struct device_comm *c)
{
    return (struct gpu_shared *)c->shared;
}

static inline struct gpu_told *told_of(const struct launch *l)
{
    return &shared_of(l->comm)->told[l->epoch % AHEAD];
}

/* Enqueue all parts of the launch; `waits`: behind what their words say. Those of a launch of which one cannot be are to leave:
 * now, or when it has become the current one (launch_finish()). */
void gpu_parts_start(struct launch *l, bool waits);

#endif
