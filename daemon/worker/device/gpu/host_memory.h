/* SPDX-License-Identifier: MIT
 *
 * host_memory.h - pinned host memory that GPUs can access. Engine thread.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_HOST_MEMORY_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_HOST_MEMORY_H

#include "daemon/worker/device/memory.h"
#include "proto/base/error.h"

struct gpus;
struct worker;

/* Zeroed memory at the same address for GPUs and the CPU, charged to the user. gpus_host_free() keeps it mapped while kernels run. */
int gpus_host_alloc(struct worker *w, uint64_t bytes, struct device_memory *out, struct error *e);
void gpus_host_free(struct device_memory *m);
/* No launch is in flight, or no GPU accesses the memory any more: unmap what gpus_host_free() has kept. */
void gpus_host_retired_free(struct gpus *g);

#endif
