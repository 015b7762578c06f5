/* SPDX-License-Identifier: MIT
 *
 * leave.h - aborted launches, whose kernels leave the GPUs with their work undone: gpus_launch_abort() and gpus_comm_abort() (device.h).
 * Engine thread.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_LEAVE_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_LEAVE_H

#include "daemon/worker/device/gpu/gpus.h"

int gpu_leave_open(struct gpus *g, struct error *e);
/* To be called when every launch in flight has been given up. */
void gpu_leave_close(struct gpus *g);
/* The launch is over: stop telling its kernels to leave. */
void gpu_launch_has_left(struct launch *l);

#endif
