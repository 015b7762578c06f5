/* SPDX-License-Identifier: MIT
 *
 * recall.h - a kernel of a bound operator that is recalled hands over to the worker's kernel (struct gpu_recall).
 */
#ifndef FCC_KERNELS_GPU_DEVICE_RECALL_H
#define FCC_KERNELS_GPU_DEVICE_RECALL_H

#include "kernels/gpu/abi.h"
#include "kernels/gpu/platform.h"

/* One thread, when all other threads of the kernel have done their work: do what the stream does around an operator that the
 * worker launches. The stream's earlier work is over and is released with the words (release, system). The wait has no other
 * end than `finished`, which somebody sets in any case (kernels/gpu/bound.h). What the worker's kernel stored comes before it. */
GPU_DEVICE void gpu_hand_over(const struct gpu_recall &recall)
{
    const struct gpu_stream_places *places = (const struct gpu_stream_places *)recall.places;
    const int32_t *finished = (const int32_t *)(places->finished.address + recall.slot * places->finished.pitch);

    gpu_fence_system();
    for (uint32_t i = 0; i < places->n; i++)
        gpu_store_relaxed((uint32_t *)(places->started[i].address + recall.slot * places->started[i].pitch), recall.value);
    while ((int32_t)((uint32_t)gpu_load_relaxed(finished) - recall.value) < 0)
        ;
    gpu_fence_system();
}

#endif
