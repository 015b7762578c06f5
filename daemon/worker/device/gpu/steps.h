/* SPDX-License-Identifier: MIT
 *
 * steps.h - communicators over several nodes whose ranks are on GPUs: steps.c says how. The engine's, but for what says
 * otherwise.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_STEPS_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_STEPS_H

#include "daemon/worker/device/launch.h"

/* Which steps it has, and what each waits for; once. */
int gpus_steps_make(struct launch *l, struct error *e);
/* It begins: nothing has come. l->step is the first. */
void gpus_steps_begin(struct launch *l);
/* The one after l->step; GPU_STEPS: there is none. */
enum gpu_step gpus_step_next(const struct launch *l);
/* The engine or the watching thread: may the step begin? */
bool gpus_step_may_begin(struct launch *l, enum gpu_step step);
/* What the kernels of l->step are told. */
void gpus_nodes_fill(const struct launch *l, const struct device *d, struct gpu_nodes *out);

#endif
