/* SPDX-License-Identifier: MIT
 *
 * rings.h - collectives through rings, inside of the plug-in: what the host's side has of the kernels.
 */
#ifndef FCC_KERNELS_GPU_PLUGIN_RINGS_H
#define FCC_KERNELS_GPU_PLUGIN_RINGS_H

#include "kernels/gpu/device/exchange/rings_run.h"

/* The kernel of a call, and how many workgroups of how many threads it takes. */
const void *rings_kernel(const struct gpu_collective *what, uint32_t nranks);
void rings_grid(const struct rings_call *c, uint32_t *workgroups, uint32_t *threads);

#endif
