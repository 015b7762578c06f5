/* SPDX-License-Identifier: MIT
 *
 * leave.h - launches whose kernels are to leave the GPUs without having done their work: gpus_launch_abort() and gpus_comm_abort()
 * (device.h). The engine's.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_LEAVE_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_LEAVE_H

#include "daemon/worker/device/gpu/gpus.h"

int gpu_leave_open(struct gpus *g, struct error *e);
/* Nothing is in flight that has not been given up. */
void gpu_leave_close(struct gpus *g);
/* The launch is over: none of its kernels is to leave any more. */
void gpu_launch_has_left(struct launch *l);

#endif
