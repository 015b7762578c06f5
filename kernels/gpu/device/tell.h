/* SPDX-License-Identifier: MIT
 *
 * tell.h - what a kernel tells others when it begins and ends: the ranks' streams, the other GPUs, and the host.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_TELL_H
#define FCC_KERNELS_GPU_DEVICE_TELL_H

#include "kernels/gpu/abi.h"
#include "kernels/gpu/device/numbers.h"
#include "kernels/gpu/device/through_rings.h"
#include "kernels/gpu/platform.h"

/* One thread, after the fence: signal the end to the ranks' streams and the other GPUs. */
GPU_DEVICE void gpu_tell(const struct gpu_end &end)
{
    for (uint32_t i = 0; i < end.nwords; i++)
        gpu_store_relaxed((uint32_t *)end.words[i], end.values[i]);
    for (uint32_t i = 0; i < end.npeers; i++)
        gpu_store_relaxed((uint32_t *)end.peers[i], end.epoch);
}

/* One thread, after the last fence: signal the end to the host, which may free memory then. */
GPU_DEVICE void gpu_tell_host(const struct gpu_end &end, uint32_t epoch, uint64_t ticks)
{
    ticks = ticks < UINT32_MAX ? ticks : UINT32_MAX;
    gpu_store_relaxed((uint64_t *)end.done, ticks << 32 | epoch);
}

/* One thread, when the kernel begins, so that the store to the host has completed long before the first fence. */
GPU_DEVICE void gpu_say_begun(const struct gpu_end &end, uint64_t epoch)
{
    if (end.begun)
        gpu_store_relaxed((uint64_t *)end.begun, epoch);
}

/* One wave: tell the other GPUs that this stream has come. Its earlier work is over (gpu_follow()) and released with the words
 * (release, system). */
GPU_DEVICE void gpu_say_come(const struct gpu_call &call)
{
    for (uint32_t i = threadIdx.x % GPU_WAVE; i < call.barrier.n && !gpu_is_over(call); i += GPU_WAVE)
        gpu_store_release((uint64_t *)call.barrier.words[i], gpu_epoch(call));
}

/* One thread of the first workgroup. */
GPU_DEVICE void gpu_note_begin(const struct gpu_call &call)
{
    struct gpu_fixed *fixed = (struct gpu_fixed *)call.fixed;

    if (gpu_is_over(call) || call.rings.nranks) /* through rings: through_wait() */
        return;
    if (call.series.numbered && call.end.begun)
        (void)atomicAdd(&fixed->left, GPU_LEFT_TOLD); /* not waited for; otherwise the barrier's kernel has done it */
    else
        fixed->began = gpu_clock(); /* visible to the last workgroup: this thread leaves before */
    if (call.series.word && call.end.begun)
        gpu_record_begin_alone(call.series.word, gpu_epoch(call), gpu_clock());
    gpu_say_begun(call.end, gpu_epoch(call));
}

/* One thread, gpu_number()'s: the end of a numbered kernel of GPU_IN_STREAM. A run that has not told the host that it has begun
 * does not tell it that it has ended: the host's memory may be gone (numbers.h). What another run has added meanwhile stays. */
GPU_DEVICE void gpu_leave_numbered(const struct gpu_call &call)
{
    struct gpu_fixed *fixed = (struct gpu_fixed *)call.fixed;
    const uint64_t epoch = gpu_epoch(call);
    const uint32_t all = atomicAdd(&fixed->left, 1u) + 1, told = all / GPU_LEFT_TOLD;

    if (all % GPU_LEFT_BEGUN != gridDim.x)
        return;
    (void)atomicSub(&fixed->left, all);
    if (!told)
        return;
    gpu_store_relaxed((uint64_t *)call.series.word, epoch);
    gpu_record_end_alone(call.series.word, epoch);
    if (told != 1 || all % GPU_LEFT_TOLD / GPU_LEFT_BEGUN != gridDim.x)
        gpu_clash(call.series, epoch);
    gpu_tell_host(call.end, (uint32_t)epoch, 0);
}

#endif
