/* SPDX-License-Identifier: MIT
 *
 * offer.h - kernels that stand on a client's stream before it is known whether they are to run (struct gpu_offer).
 */
#ifndef FCC_KERNELS_GPU_DEVICE_OFFER_H
#define FCC_KERNELS_GPU_DEVICE_OFFER_H

#include "kernels/gpu/device/execute.h"

/* One thread: until the worker has said whether an offered run is to begin. True: its kernel stands back. What says something of a later
 * run took the place of this one's refusal: of one that is granted the word is kept until its kernel has ended. */
template <typename Ask> GPU_DEVICE bool gpu_offer_await(const struct gpu_offer &offer, uint64_t run, Ask must_leave)
{
    const uint64_t *word = (const uint64_t *)offer.word;
    uint64_t said = gpu_load_relaxed(word);

    for (uint32_t spins = 1; said >> 1 < run; said = gpu_load_relaxed(word), spins++)
        if (spins % GPU_LOOK_SPINS == 0 && must_leave())
            return false;
    return said != GPU_GRANTED(run);
}

/* One thread: what the stream would have done around an operator that the worker runs. What the stream has done before is over, and comes
 * before the words (release, system); and what the worker's kernel has stored comes before `finished`. */
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

/* All threads, before gpu_follow(): a kernel that was offered stands back, or goes on. While it waits here its workgroups take
 * room that others could have, as those do that wait for other ranks' words (kernels/gpu/bound.h). All workgroups of a kernel get the same
 * answer: see there. Where the failure epoch ends the wait they go on, and leave as they find it. True: the
 * run is over, and the kernel is to return. */
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
