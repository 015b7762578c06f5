/* SPDX-License-Identifier: MIT
 *
 * reduce_hopper.h - how gemv_hopper.h's workgroups reduce in one step. Part of kernels/gpu/device/compute/gemv.hip.
 *
 * There nobody waits for results, so reducing need not be taken in slices. Fused, warps that have nothing else to do reduce while the others
 * multiply: so when the last words have come there is little left. (Reducing after multiplying, each workgroup had what it had got of all
 * columns before it, and M64 N8192 took 5.5 us from the last product to the last result.) They reduce what their own workgroup has
 * computed, in that order: so this rank's sums need not go through the GPU's memory as words, 8 bytes for each, written and read again,
 * in the way of w (M64 N8192: 2.2 us of 46.8). Only what there is no room for does. All ranks go from the first column to the last, so the
 * others' words of a job come at much the same time, or have come.
 *
 * Where slices are such that a workgroup's columns do not make whole blocks, or there are too many jobs for the list, each warp that reduces
 * has its share of all words instead, and knows it when the kernel begins: many small parts from all over the columns. Sequential, all
 * warps have, when the workgroup has put what it took.
 *
 * Why that ends, whichever workgroups run: who reduces waits for words only. These come from slices of earlier phases, which are
 * taken, by parts of workgroups that wait for no reducer, so that one resident workgroup per GPU finishes them everywhere. Then
 * those that run finish their shares, leave, and make room. In two steps that would not be so: a workgroup that waits for results
 * would wait for shares of workgroups that do not run yet.
 *
 * gemv_kernel's workgroups take their reduce slices. With shares in it the compiler has too few registers left for
 * gemv_stream.h's loop, and puts what a lane has loaded of w on the stack, which waits for it.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_REDUCE_HOPPER_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_REDUCE_HOPPER_H

#include "kernels/gpu/device/compute/gemv_hopper_shape.h"
#include "kernels/gpu/device/exchange/packets.h"
#include "kernels/gpu/device/hopper.h"

/* All runs' plans are of one problem: all in one step, or none. */
GPU_DEVICE bool gemv_in_one_step(const struct gpu_call &call)
{
    return !gpu_phase_is_empty(call, 0, GPU_PHASE_REDUCE) && gpu_phase_is_empty(call, 0, GPU_PHASE_WAIT);
}

/* Whether words come while workgroups multiply: nothing is put after it. */
GPU_DEVICE bool gemv_reduces_beside(const struct gpu_call &call)
{
    return gemv_in_one_step(call) && gpu_phase_is_empty(call, 0, GPU_PHASE_PUT);
}

/* The warps that reduce while others multiply: those beside the taker, and, where one thread loads, those beside it. */
GPU_DEVICE bool gemv_is_reducer(uint32_t warp, bool one_loads)
{
    return warp > 3 * GEMV_WARPS || (one_loads && warp > 2 * GEMV_WARPS && warp < 3 * GEMV_WARPS);
}

/* Their numbers, from 0 on. */
GPU_DEVICE uint32_t gemv_reducer(uint32_t warp)
{
    return warp > 3 * GEMV_WARPS ? warp - 3 * GEMV_WARPS - 1 : GEMV_WARPS - 1 + warp - 2 * GEMV_WARPS - 1;
}

GPU_DEVICE uint32_t gemv_reducers(bool one_loads)
{
    return one_loads ? 2 * (GEMV_WARPS - 1) : GEMV_WARPS - 1;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* A warp: until the first of a part's words are there, of the first ranks but `own`, or the workgroup is done with multiplying; then there
 * is nothing that a look could disturb. So far one word of each rank is looked at, as the looks of all lanes take a good part of
 * what the L2 can give, and w comes through it. False, in all lanes: leave. */
GPU_DEVICE bool gemv_part_await(const struct gpu_call &call, uint32_t run, const uint64_t *words, uint64_t slot,
                                uint32_t nranks, uint32_t own, uint64_t *computed)
{
    uint32_t lane = threadIdx.x % 32;

    for (uint32_t looks = 1;; looks++) {
        bool missing = lane < nranks && lane != own && (uint32_t)(gpu_load_relaxed(words + lane * slot) >> 32) != call.stamp;
        if (gpu_wave_vote(missing && !gpu_barrier_over(computed, 0)) == 0)
            return true;
        if (looks % GPU_LOOK_SPINS == 0 && gpu_wave_vote(gpu_must_leave(call, run)))
            return false;
    }
}

/* One lane, the one that has the last quad of a reduce slice: its times, which are that quad's. */
GPU_DEVICE void gemv_result_time(const struct gpu_call &call, uint32_t run, uint32_t block, uint64_t start_ns)
{
    const struct gpu_plan *plan = gpu_plan_of(call, run);
    uint32_t first = plan->first[GPU_PHASE_REDUCE], cols = ((const struct slice *)plan->slices)[first].cols;
    uint32_t end = (block + 1) * GEMV_BLOCK, n = (uint32_t)call.in[run].gemv.n;

    if (end % cols == 0 || end >= n)
        ((struct slice_time *)plan->times)[first + block * GEMV_BLOCK / cols] = {0, start_ns, gpu_clock(), blockIdx.x,
                                                                                 (uint32_t)call.epoch};
}

/* A warp: one quad of a run for each lane that has one: number `at` of block `block`, as their words stand in the slots: [block][row][half of
 * the block]. `computed`: as gemv_part_await(); NULL: the workgroup multiplies no more. False, in any lane: leave. */
template <typename T>
GPU_DEVICE bool gemv_quads_reduce(const struct gpu_call &call, uint32_t run, uint32_t block, uint32_t at,
                                  const struct gemv_at_hand &own, uint64_t *computed)
{
    const uint32_t rank = gpu_plan_of(call, run)->rank, nranks = call.fixed->shape.nranks;
    const uint32_t m = (uint32_t)call.in[run].gemv.m, n = (uint32_t)call.in[run].gemv.n;
    const uint32_t col = block * GEMV_BLOCK + at % 2 * GEMV_QUAD;
    const uint64_t *words = gemv_slot_at(call, rank, 0) + ((uint64_t)block * 2 * m + at) * GEMV_QUAD, start_ns = gpu_clock();
    const uint64_t slot = call.fixed->shape.slot_bytes / sizeof(uint64_t);
    const struct gemv_must_leave leave = {call, run};
    float sum[GEMV_QUAD];
    T results[GEMV_QUAD];

    if (computed &&
        !gemv_part_await(call, run, (const uint64_t *)gpu_team_get((uint64_t)words, 0, 32), slot, nranks, own.rank, computed))
        return false;
    if (col < n && at < 2 * m) {
        uint32_t count = n - col < GEMV_QUAD ? n - col : GEMV_QUAD;
        if (!gemv_quad_add(call, words, slot, nranks, count, sum, leave, own))
            return false;
#pragma unroll
        for (int i = 0; i < GEMV_QUAD; i++)
            gpu_from_f32(&results[i], sum[i]);
        gemv_quad_store((T *)call.out[rank].data + at / 2 * call.out[rank].stride[0] + col, results, count);
    }
    if (at == 2 * m - 1 && block * GEMV_BLOCK < n)
        gemv_result_time(call, run, block, start_ns);
    return true;
}

/* Warp number `warp` of `warps` that reduce in each workgroup: its share of all runs' results. Neighbouring parts are different
 * runs' and different workgroups'. */
template <typename T>
GPU_DEVICE void gemv_share_reduce(const struct gpu_call &call, uint32_t warp, uint32_t warps, uint64_t *computed)
{
    const uint32_t m = (uint32_t)call.in[0].gemv.m, n = (uint32_t)call.in[0].gemv.n;
    const uint32_t parts = ((n + GEMV_BLOCK - 1) / GEMV_BLOCK * 2 * m + 31) / 32 * call.nruns;
    bool well = true;

#pragma unroll 1
    for (uint32_t i = warp * gridDim.x + blockIdx.x; i < parts && well; i += warps * gridDim.x) {
        uint32_t quad = i / call.nruns * 32 + threadIdx.x % 32;
        well = gpu_wave_vote(!gemv_quads_reduce<T>(call, i % call.nruns, quad / (2 * m), quad % (2 * m), {UINT32_MAX, {}},
                                                   computed)) == 0;
    }
}

/* ---- what the workgroup has computed ---- */

/* A job on a workgroup's list: its run, and the block of columns that the workgroup has of it. */
GPU_DEVICE uint32_t gemv_listed_make(uint32_t run, uint32_t block)
{
    return run << 28 | block;
}

/* The list, and the own sums of its first `kept` jobs, `pitch` numbers apart. */
struct gemv_own {
    const uint32_t *list;
    const float *sums;
    uint32_t pitch, kept;
};

/* A warp: until the senders have left all of the job with this number. False: there is none. */
GPU_DEVICE bool gemv_listed_await(const struct gemv_shared &shared, uint32_t number)
{
    const uint32_t lane = threadIdx.x % 32;

    for (;; __nanosleep(40)) {
        uint32_t left = lane < GEMV_WARPS ? gpu_shared_acquire(&shared.listed[lane]) : UINT32_MAX;
        bool missing = left / 2 <= number;
        if (gpu_wave_vote(missing && left % 2))
            return false;
        if (gpu_wave_vote(missing) == 0)
            break;
    }
    __syncwarp();
    return true;
}

/* Warp number `warp` of `warps` that reduce in the workgroup: its share of what the workgroup has computed, in that order, which is much the
 * same on all ranks. */
template <typename T>
GPU_DEVICE void gemv_own_reduce(const struct gpu_call &call, const struct gemv_own &own, uint32_t warp, uint32_t warps,
                                struct gemv_shared *shared)
{
    const uint32_t m = (uint32_t)call.in[0].gemv.m, parts = (2 * m + 31) / 32;

#pragma unroll 1
    for (uint32_t i = warp; gemv_listed_await(*shared, i / parts); i += warps) {
        const uint32_t number = i / parts, at = i % parts * 32 + threadIdx.x % 32;
        const uint32_t run = own.list[number] >> 28, block = own.list[number] & 0xfffffff;
        struct gemv_at_hand hand = {UINT32_MAX, {}};
        if (number < own.kept) {
            hand.rank = gpu_plan_of(call, run)->rank;
            if (at < 2 * m)
                memcpy(hand.sums, __builtin_assume_aligned(own.sums + number * own.pitch + at * GEMV_QUAD, 16),
                       sizeof(hand.sums));
        }
        if (gpu_wave_vote(!gemv_quads_reduce<T>(call, run, block, at, hand, &shared->computed)))
            return;
    }
}

/* All threads: the phases after the first one, but for the results where they were reduced beside it. */
template <typename T> GPU_DEVICE void gemv_rest_run(const struct gpu_call &call, struct gpu_group *group)
{
    struct gemv_rest<T> rest;
    bool go_on = true;

    for (uint32_t phase = GPU_PHASE_FREE + 1; phase < GPU_PHASES && go_on; phase++) {
        if (phase == GPU_PHASE_REDUCE && gemv_in_one_step(call)) {
            if (!gemv_reduces_beside(call))
                gemv_share_reduce<T>(call, threadIdx.x / 32, blockDim.x / 32, NULL);
            return;
        }
        for (uint32_t i = 0; i < call.nruns && go_on; i++) /* who would ask ahead for what is reduced would have two slices */
            go_on = gpu_phase_run(call, gpu_run_of(call, i), phase, group, rest, phase != GPU_PHASE_REDUCE);
    }
}

#endif
#endif
