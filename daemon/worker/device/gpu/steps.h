/* SPDX-License-Identifier: MIT
 *
 * steps.h - splits an operator over several nodes into successive kernels, its steps (steps.c). Engine thread, unless said otherwise.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_STEPS_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_STEPS_H

#include "daemon/worker/device/launch.h"

/* Find out which steps the launch has and which flags each waits for. Once per launch. */
int gpus_steps_make(struct launch *l, struct error *e);
/* A run of the launch begins: no flag has been seen yet, and l->step is the first step. */
void gpus_steps_begin(struct launch *l);
/* The step after l->step. GPU_STEPS: there is none. */
enum gpu_step gpus_step_next(const struct launch *l);
/* Whether the flags that the step waits for have arrived. Engine or watching thread. */
bool gpus_step_may_begin(struct launch *l, enum gpu_step step);
/* The kernel arguments of l->step on device d. */
void gpus_nodes_fill(const struct launch *l, const struct device *d, struct gpu_nodes *out);

#endif
