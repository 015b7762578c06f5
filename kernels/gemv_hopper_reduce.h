/* SPDX-License-Identifier: MIT
 *
 * gemv_hopper_reduce.h - how gemv_hopper.h's workgroups reduce in one step. Part of gemv_all_reduce.hip.
 *
 * There nobody waits for results, so the reduce slices need not be taken: each workgroup has its share of them, and knows it
 * when the kernel begins. A workgroup that waits has none in hand that another one could have done, and after the last words
 * have come nobody asks for slices any more.
 *
 * That may not be so in two steps: a workgroup that waits for results would wait for shares of workgroups that do not run yet.
 * In one step a workgroup that reduces waits for words only. These come from slices of earlier phases, which are taken, so that
 * one resident workgroup per GPU finishes them everywhere. Then those that run finish their shares, leave, and make room.
 *
 * gemv_kernel's workgroups take their reduce slices. With shares in it the compiler has too few registers left for
 * gemv_stream.h's loop, and puts what a lane has loaded of w on the stack, which waits for it.
 */
#ifndef FCC_GEMV_HOPPER_REDUCE_H
#define FCC_GEMV_HOPPER_REDUCE_H

#include "gemv_words.h"

/* A share's slice and where its words lie, as it comes from the GPU's memory, 16 bytes at a time. */
struct alignas(16) gemv_share {
    struct slice slice;
    struct {
        uint32_t op, dtype, nranks, zero;
    } shape;                          /* begins struct gpu_shape */
    uint64_t slots[2], slot_bytes[2]; /* of each, one is what is wanted; the other is its neighbour */
};
static_assert(offsetof(struct gpu_shape, nranks) == 8 && sizeof(((struct gemv_share *)0)->shape) == 16, "is copied");

/* All runs' plans are of one problem: all in one step, or none. */
GPU_DEVICE bool gemv_has_shares(const struct gpu_call &call, uint32_t phase)
{
    return phase == GPU_PHASE_REDUCE && gpu_phase_is_empty(call, 0, GPU_PHASE_WAIT);
}

/* A workgroup's first share of a run, and every gridDim.x-th from there on. */
GPU_DEVICE uint32_t gemv_share_first(const struct gpu_call &call, uint32_t run)
{
    return (blockIdx.x + run * (gridDim.x / call.nruns)) % gridDim.x;
}

GPU_DEVICE uint32_t gemv_shares(const struct gpu_call &call, uint32_t run)
{
    const struct gpu_plan *plan = gpu_plan_of(call, run);

    return plan->first[GPU_PHASE_REDUCE + 1] - plan->first[GPU_PHASE_REDUCE];
}

/* One thread: a share, if there is one of this number, into shared memory, where it is after gpu_copies_await(). Nothing of it
 * changes while the kernel runs. */
GPU_DEVICE void gemv_share_ask(const struct gpu_call &call, uint32_t run, uint32_t number, struct gemv_share *to)
{
    const struct gpu_plan *plan = gpu_plan_of(call, run);
    const char *slice = (const char *)((const struct slice *)plan->slices + plan->first[GPU_PHASE_REDUCE] + number);
    const uint64_t whole = ~(uint64_t)15;

    if (number >= gemv_shares(call, run))
        return;
#pragma unroll
    for (uint32_t i = 0; i < sizeof(struct slice); i += 16)
        gpu_copy_16((char *)&to->slice + i, slice + i);
    gpu_copy_16(&to->shape, &call.fixed->shape);
    gpu_copy_16(to->slots, (const void *)((uint64_t)&call.fixed->slots[plan->rank] & whole));
    gpu_copy_16(to->slot_bytes, (const void *)((uint64_t)&call.fixed->shape.slot_bytes & whole));
}

/* In one step all columns are reduced, from the first on. */
GPU_DEVICE struct gemv_words gemv_share_words(const struct gpu_call &call, uint32_t run, const struct gemv_share &share)
{
    uint64_t slots = share.slots[(uint64_t)&call.fixed->slots[gpu_plan_of(call, run)->rank] / sizeof(uint64_t) % 2];
    uint64_t bytes = share.slot_bytes[(uint64_t)&call.fixed->shape.slot_bytes / sizeof(uint64_t) % 2];

    return {(const uint64_t *)(slots + call.slots_at), bytes / sizeof(uint64_t), 0, share.shape.nranks};
}

/* All threads: a run's shares. share[0] has been asked for by the taker if `asked`. False: leave. */
template <typename T>
GPU_DEVICE bool gemv_shares_reduce(const struct gpu_call &call, uint32_t run, struct gemv_share share[2], bool asked)
{
    const struct gpu_plan *plan = gpu_plan_of(call, run);
    const uint32_t all = gemv_shares(call, run);
    uint32_t number = gemv_share_first(call, run);

    if (number >= all)
        return true;
    if (!asked && gpu_is_taker())
        gemv_share_ask(call, run, number, &share[0]);
    for (uint32_t turn = 0; number < all; number += gridDim.x, turn ^= 1) {
        struct slice_time t = {0, gpu_clock(), 0, blockIdx.x, (uint32_t)call.epoch};
        gpu_copies_await();
        __syncthreads();
        if (gpu_is_taker())
            gemv_share_ask(call, run, number + gridDim.x, &share[turn ^ 1]);
        const struct slice s = share[turn].slice;
        bool well = gemv_reduce<T>(call, run, s, gemv_share_words(call, run, share[turn]));
        if (__syncthreads_or(!well))
            return false;
        t.end_ns = gpu_clock();
        if (threadIdx.x == 0)
            ((struct slice_time *)plan->times)[plan->first[GPU_PHASE_REDUCE] + number] = t;
    }
    return true;
}

/* All threads, when the kernel begins: the workgroup's first share is on its way. */
GPU_DEVICE void gemv_shares_begin(const struct gpu_call &call, struct gemv_share share[2])
{
    uint32_t run = gpu_run_of(call, 0);

    if (gpu_is_taker() && gemv_has_shares(call, GPU_PHASE_REDUCE))
        gemv_share_ask(call, run, gemv_share_first(call, run), &share[0]);
}

/* One phase of one run, number i in gpu_run_of()'s order, as gpu_phase_run(). In two steps nobody asks ahead for what is
 * reduced: workgroups that begin to wait early would have two slices each while others have none. */
template <typename T, typename Operator>
GPU_DEVICE bool gemv_phase_run(const struct gpu_call &call, uint32_t i, uint32_t phase, struct gpu_group *group,
                               struct gemv_share share[2], Operator &op)
{
    uint32_t run = gpu_run_of(call, i);

    return gemv_has_shares(call, phase) ? gemv_shares_reduce<T>(call, run, share, i == 0)
                                        : gpu_phase_run(call, run, phase, group, op, phase != GPU_PHASE_REDUCE);
}

#endif
