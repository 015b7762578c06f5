/* SPDX-License-Identifier: MIT
 *
 * offer.h - kernels that a client puts onto its stream before the worker has granted the run (struct gpu_offer).
 */
#ifndef FCC_KERNELS_GPU_DEVICE_OFFER_H
#define FCC_KERNELS_GPU_DEVICE_OFFER_H

#include "kernels/gpu/device/execute.h"

/* One thread: wait until the worker has granted or declined an offered run. Returns true if the run was declined. A word that
 * already names a later run means declined, too: the worker overwrites the word of a granted run only after its kernel has
 * ended. */
template <typename Ask> GPU_DEVICE bool gpu_offer_await(const struct gpu_offer &offer, uint64_t run, Ask must_leave)
{
    const uint64_t *word = (const uint64_t *)offer.word;
    uint64_t said = gpu_load_relaxed(word);

    for (uint32_t spins = 1; said >> 1 < run; said = gpu_load_relaxed(word), spins++)
        if (spins % GPU_LOOK_SPINS == 0 && must_leave())
            return false;
    return said != GPU_GRANTED(run);
}

/* One thread: hand over to the worker's kernel and wait for it, as the stream itself does around an operator that the worker
 * runs. The stream's earlier work is over and is released with the words (release, system). What the worker's kernel stored
 * comes before `finished`. */
template <typename Ask> GPU_DEVICE void gpu_words_pass(const struct gpu_offer &offer, Ask must_leave)
{
    const struct gpu_stream_places *places = (const struct gpu_stream_places *)offer.places;
    const int32_t *finished = (const int32_t *)(places->finished.address + offer.slot * places->finished.pitch);

    gpu_fence_system();
    for (uint32_t i = 0; i < places->n; i++)
        gpu_store_relaxed((uint32_t *)(places->started[i].address + offer.slot * places->started[i].pitch), offer.value);
    for (uint32_t spins = 1; (int32_t)((uint32_t)gpu_load_relaxed(finished) - offer.value) < 0; spins++)
        if (spins % GPU_LOOK_SPINS == 0 && must_leave())
            break;
    gpu_fence_system();
}

/* All threads, before gpu_follow(): wait whether an offered run is granted. Returns true if it was declined: the worker's
 * kernel has run instead, and this kernel must return. All workgroups of a kernel get the same answer (kernels/gpu/bound.h).
 * Workgroups that wait here occupy the GPU, as those do that wait for other ranks' packets. If the failure epoch ends the wait
 * they go on, and leave when they see it. */
GPU_DEVICE bool gpu_stands_back(const struct gpu_call &call)
{
    auto must_leave = [&] { return gpu_must_leave(call, 0); };

    if (!call.offer.word)
        return false;
    if (!__syncthreads_or(threadIdx.x == 0 && gpu_offer_await(call.offer, call.epoch, must_leave)))
        return false;
    gpu_follow();
    gpu_begin(call);
    if (blockIdx.x == 0 && threadIdx.x == 0)
        gpu_words_pass(call.offer, must_leave);
    __syncthreads();
    gpu_leave_in_stream(call);
    return true;
}

#endif
