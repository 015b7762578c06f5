/* SPDX-License-Identifier: MIT
 *
 * rings.h - collectives through rings, inside of the plug-in: what the host's side has of the kernels.
 */
#ifndef FCC_KERNELS_GPU_PLUGIN_RINGS_H
#define FCC_KERNELS_GPU_PLUGIN_RINGS_H

#include "kernels/gpu/device/exchange/rings_rows_call.h"
#include "kernels/gpu/runtime.h"

/* Loads all kernels. bulk: on the thread's current GPU they use the copy engine (rings_bulk.h). */
hipError_t rings_kernels_prepare(bool bulk);

struct rings_launch {
    const void *kernel;
    uint32_t workgroups, threads, shared_bytes, cluster;
};
struct rings_launch rings_launch_of(const struct rings_call *c, bool bulk);
/* Makes rows of a vector that need not be whole ones: sets the call's m, n, parts and elements. */
void rings_rows_of_vector(struct rings_rows_call *call, int64_t elements);
/* Of rows that the ranks add up; sets call->parts and cluster, unless rings_rows_of_vector() has. One of the kernels, which are loaded together: of any call. clusters: the GPU has them. */
struct rings_launch rings_rows_launch_of(struct rings_rows_call *call, bool clusters);

#endif
