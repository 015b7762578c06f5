/* SPDX-License-Identifier: MIT
 *
 * reduce_hopper.h - how the workgroups of gemv_hopper.h reduce in one-step plans. Part of kernels/gpu/device/compute/gemv.hip.
 *
 * No workgroup waits for results there, so reducing need not be taken in slices. Fused, idle warps reduce while the others
 * multiply, so that little is left when the last words have come. (Reducing after multiplying, M64 N8192 took 5.5 us from the
 * last product to the last result.) These warps reduce the columns that their own workgroup has computed, in that order. So
 * this rank's own sums stay in shared memory, as far as there is room, and do not compete with w as words of 8 bytes that are
 * written and read again (M64 N8192: 2.2 us of 46.8). All ranks go from the first column to the last, so other ranks' words of
 * a job come at about the same time.
 *
 * If a workgroup's columns do not make whole blocks, or there are too many jobs for the list, each reducing warp has a fixed
 * share of all words instead: many small parts from all over the columns, known when the kernel begins. In sequential plans all
 * warps have such shares, and begin when the workgroup has put its slices.
 *
 * Why this ends, whichever workgroups are resident: reducing waits for words only. Words come from slices of earlier phases.
 * Those are taken by warps that wait for no reducing warp, so one resident workgroup per GPU finishes them everywhere. Then the
 * resident workgroups finish their shares, leave, and make room. In two steps this would not hold: a workgroup that waits for
 * results would wait for shares of workgroups that are not resident yet.
 *
 * gemv_kernel takes its reduce slices instead. With shares in it the compiler has too few registers for the loop of
 * gemv_stream.h, and spills the loaded parts of w to the stack, which waits for the loads.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_REDUCE_HOPPER_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_REDUCE_HOPPER_H

#include "kernels/gpu/device/compute/gemv_hopper_shape.h"
#include "kernels/gpu/device/exchange/packets.h"
#include "kernels/gpu/device/hopper.h"

/* Do the plans reduce in one step? All runs' plans are of one problem, so all do or none. */
GPU_DEVICE bool gemv_in_one_step(const struct gpu_call &call)
{
    return !gpu_phase_is_empty(call, 0, GPU_PHASE_REDUCE) && gpu_phase_is_empty(call, 0, GPU_PHASE_WAIT);
}

/* Do words come while workgroups multiply? Then no slices are put afterwards. */
GPU_DEVICE bool gemv_reduces_beside(const struct gpu_call &call)
{
    return gemv_in_one_step(call) && gpu_phase_is_empty(call, 0, GPU_PHASE_PUT);
}

/* Does this warp reduce while others multiply? These are the warps of the taker's group besides the taker and, where one thread
 * loads, those beside that one. */
GPU_DEVICE bool gemv_is_reducer(uint32_t warp, bool one_loads)
{
    return warp > 3 * GEMV_WARPS || (one_loads && warp > 2 * GEMV_WARPS && warp < 3 * GEMV_WARPS);
}

/* The index of a reducing warp, from 0 on. */
GPU_DEVICE uint32_t gemv_reducer(uint32_t warp)
{
    return warp > 3 * GEMV_WARPS ? warp - 3 * GEMV_WARPS - 1 : GEMV_WARPS - 1 + warp - 2 * GEMV_WARPS - 1;
}

GPU_DEVICE uint32_t gemv_reducers(bool one_loads)
{
    return one_loads ? 2 * (GEMV_WARPS - 1) : GEMV_WARPS - 1;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* A warp: wait until the first words of a part have come from the first ranks but `own`, or until the workgroup has done all
 * its products. Until then it polls only one word of each rank: polling by all lanes would take much of the L2's bandwidth,
 * through which w comes. False, in all lanes: leave. */
GPU_DEVICE bool gemv_part_await(const struct gpu_call &call, uint32_t run, const uint64_t *words, uint64_t slot,
                                uint32_t nranks, uint32_t own, uint64_t *computed)
{
    const uint32_t lane = threadIdx.x % 32, stamp = gpu_stamp(call);

    for (uint32_t looks = 1;; looks++) {
        bool missing = lane < nranks && lane != own && (uint32_t)(gpu_load_relaxed(words + lane * slot) >> 32) != stamp;
        if (gpu_wave_vote(missing && !gpu_barrier_over(computed, 0)) == 0)
            return true;
        if (looks % GPU_LOOK_SPINS == 0 && gpu_wave_vote(gpu_must_leave(call, run)))
            return false;
    }
}

/* The lane that has the last quad of a reduce slice: record the slice's times, which are this quad's. */
GPU_DEVICE void gemv_result_time(const struct gpu_call &call, uint32_t run, uint32_t block, uint64_t start_ns)
{
    const struct gpu_plan *plan = gpu_plan_of(call, run);
    uint32_t first = plan->first[GPU_PHASE_REDUCE], cols = ((const struct slice *)plan->slices)[first].cols;
    uint32_t end = (block + 1) * GEMV_BLOCK, n = (uint32_t)call.in[run].gemv.n;

    if (end % cols == 0 || end >= n)
        ((struct slice_time *)plan->times)[first + block * GEMV_BLOCK / cols] = {0, start_ns, gpu_clock(), blockIdx.x,
                                                                                 (uint32_t)call.epoch};
}

/* A warp: reduce one quad of a run for each lane that has one, number `at` of block `block`. Quads are in the order of the
 * words in the slots: [block][row][half of the block]. `computed`: as in gemv_part_await(); NULL: the workgroup has done all
 * its products. False, in any lane: leave. */
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

    if (computed &&
        !gemv_part_await(call, run, (const uint64_t *)gpu_team_get((uint64_t)words, 0, 32), slot, nranks, own.rank, computed))
        return false;
    if (col < n && at < 2 * m) {
        uint32_t count = n - col < GEMV_QUAD ? n - col : GEMV_QUAD;
        if (!gemv_quad_add(call, words, slot, nranks, count, sum, leave, own))
            return false;
        gemv_quad_round<T>(call, call.out[rank].data, at / 2 * call.out[rank].stride[0] + col, sum, count);
    }
    if (at == 2 * m - 1 && block * GEMV_BLOCK < n)
        gemv_result_time(call, run, block, start_ns);
    return true;
}

/* Reducing warp `warp` of `warps` in each workgroup: reduce its share of all runs' results. Neighbouring parts belong to
 * different runs and different workgroups. */
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

/* ---- reducing the columns that the workgroup has computed ---- */

/* An entry of a workgroup's job list: the run, and the block of columns that the workgroup has of the job. */
GPU_DEVICE uint32_t gemv_listed_make(uint32_t run, uint32_t block)
{
    return run << 28 | block;
}

/* The job list, and this rank's sums of its first `kept` jobs, `pitch` numbers apart. */
struct gemv_own {
    const uint32_t *list;
    const float *sums;
    uint32_t pitch, kept;
};

/* A warp: wait until the senders have stored all sums of this job. False: there is no job of this number. */
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

/* Reducing warp `warp` of `warps` in the workgroup: reduce its share of the columns that the workgroup has computed, in that
 * order, which is about the same on all ranks. */
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

/* All threads: the phases after the first one, without the results that were already reduced during it. */
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
        for (uint32_t i = 0; i < call.nruns && go_on; i++) /* not ahead: a workgroup would hold a second slice to reduce */
            go_on = gpu_phase_run(call, gpu_run_of(call, i), phase, group, rest, phase != GPU_PHASE_REDUCE);
    }
}

#endif
#endif
