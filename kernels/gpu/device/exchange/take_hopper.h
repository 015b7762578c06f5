/* SPDX-License-Identifier: MIT
 *
 * take_hopper.h - the taker of gemv_hopper.h: a warp of a cluster's first workgroup that takes slices, makes jobs of them for
 * all workgroups, and signals a job's slices when all workgroups have done it.
 *
 * Loading a job's part of w takes 3 to 4 microseconds, as long as four round trips to a GPU memory that is busy with it. Two
 * round trips lie between room for a job and the job: which slices, and their contents, which were prefetched when the kernel
 * began. A job is sent to the other workgroups (gpu_cluster_send_...()), since a store and release would wait for all stores of
 * the warp. The first jobs are dealt out. A slice is requested only when there is room for its job, because no other cluster
 * can do a slice that this one holds: with five jobs in hand instead of three, and one more requested, clusters ended up to 11
 * us apart.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_TAKE_HOPPER_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_TAKE_HOPPER_H

#include "kernels/gpu/device/compute/gemv_hopper_shape.h"
#include "kernels/gpu/device/execute.h"
#include "kernels/gpu/device/hopper.h"
#include "kernels/gpu/device/vector.h"

/* The i-th run of a cluster, as gpu_run_of() for a workgroup. i is 0: the run with which the cluster begins. */
GPU_DEVICE uint32_t gemv_run_at(const struct gpu_call &call, uint32_t i)
{
    return (blockIdx.x / GEMV_PARTS + i) % call.nruns;
}

/* All threads of all workgroups: prefetch the slices that clusters begin with. */
GPU_DEVICE void gemv_slices_prefetch(const struct gpu_call &call)
{
    const struct gpu_plan *plan = gpu_plan_of(call, gemv_run_at(call, 0));
    uint32_t i = blockIdx.x + threadIdx.x * gridDim.x;

    if (i < plan->first[GPU_PHASES])
        gpu_prefetch((const struct slice *)plan->slices + i);
}

/* The column of a cluster's first job. UINT32_MAX: there is none, or the copy engine cannot read it. */
GPU_DEVICE uint32_t gemv_early_column(const struct gpu_call &call, const struct gemv_maps &maps)
{
    uint32_t run = gemv_run_at(call, 0), cluster = blockIdx.x / GEMV_PARTS;

    return maps.w_by_engine[run] ? gemv_column_guess(call, run, cluster / call.nruns * maps.together[run]) : UINT32_MAX;
}

/* A workgroup's part of K, in steps. */
GPU_DEVICE void gemv_steps_get(const struct gpu_call &call, uint32_t run, uint32_t rank, uint32_t *first, uint32_t *end)
{
    uint32_t steps = ((uint32_t)call.in[run].gemv.k + GEMV_STEP - 1) / GEMV_STEP;

    *first = steps * rank / GEMV_PARTS;
    *end = steps * (rank + 1) / GEMV_PARTS;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* One thread, when the kernel begins: prefetch a workgroup's part of the first job's input, as much as there will be room for
 * when the job is known. */
GPU_DEVICE void gemv_early_prefetch(const struct gpu_call &call, const struct gemv_maps &maps, uint32_t rank)
{
    uint32_t run = gemv_run_at(call, 0), col = gemv_early_column(call, maps), first, end;

    gemv_steps_get(call, run, rank, &first, &end);
    for (uint32_t step = first; step < end && step < first + maps.stages && col != UINT32_MAX; step++)
        gpu_box_prefetch(&maps.runs[run].w, (int32_t)(step * GEMV_STEP), (int32_t)col);
}

/* ---- dealt slices: assigned in advance, and claimed ----
 *
 * Requesting slices and then reading them takes two round trips to the GPU's memory. A request also has to wait for the end of
 * the kernel before, because the counters are reset between calls. So the first slices of a run are dealt out: cluster c begins
 * with the part that it would get if clusters asked in order, and the counters give out the slices behind these. Nothing may
 * depend on cluster c, which may not become resident beside other kernels. So each cluster claims its part, and when the
 * counters have no more slices, the running clusters claim the parts that nobody has.
 *
 * A claim is an atomic maximum with the call's epoch. It is never reset, so it may be made before the kernel before this one
 * has ended. A claim of this call would make a later claim of that kernel fail, but all its claims are made by then: this
 * kernel begins when all workgroups there have allowed it, which they do after their cluster's barrier, which follows the
 * answer to its claim.
 *
 * A numbered kernel (kernels/gpu/device/numbers.h) knows its epoch only when the kernel before it has ended. It claims then. */

/* The number of clusters that have dealt slices. */
GPU_DEVICE uint32_t gemv_dealt()
{
    return min(gridDim.x / GEMV_PARTS, (uint32_t)GPU_CLAIMS);
}

/* The number of those that begin with this run. */
GPU_DEVICE uint32_t gemv_dealt_of(const struct gpu_call &call, uint32_t run)
{
    return (gemv_dealt() + call.nruns - 1 - run) / call.nruns;
}

/* All lanes of the warp. */
struct gemv_taker {
    const struct gpu_call &call;
    const struct gemv_maps &maps;
    struct gemv_shared &shared;
    gemv_ring ring;
    uint32_t made = 0, leave = 0;

    __device__ __forceinline__ static uint32_t lane_get()
    {
        return threadIdx.x % 32;
    }

    __device__ __forceinline__ static uint32_t slices_of(const struct gpu_plan *plan)
    {
        return plan->first[GPU_PHASE_FREE + 1] - plan->first[GPU_PHASE_FREE];
    }

    /* The slices dealt to cluster `of`: their run and the number of the first one. False: there are none. */
    __device__ __forceinline__ bool share_of(uint32_t of, uint32_t *run, uint32_t *number) const
    {
        *run = of % call.nruns;
        *number = of / call.nruns * maps.together[*run];
        return of < gemv_dealt() && *number < slices_of(gpu_plan_of(call, *run));
    }

    /* The warp: claim the slices dealt to cluster `of`. False: another cluster has them. */
    __device__ __forceinline__ bool claim(uint32_t of) const
    {
        unsigned long long *at = (unsigned long long *)call.fixed->claims + of, before = 0;
        const uint64_t epoch = gpu_epoch(call);

        if (lane_get() == 0)
            before = atomicMax(at, (unsigned long long)epoch);
        return gpu_team_get((uint32_t)(before < epoch), 0, 32) != 0;
    }

    /* Claim this cluster's own slices, before the cluster's barrier and before the kernel before this one has ended. */
    __device__ __forceinline__ void first_claim()
    {
        uint32_t run, number, own = blockIdx.x / GEMV_PARTS;

        bool has = !gpu_is_over(call) && share_of(own, &run, &number) && claim(own);
        if (lane_get() == 0)
            *(volatile uint32_t *)&shared.has_first = has; /* the store waits for the claim's answer */
        __syncwarp();
    }

    /* Wait until there is room for a job: all workgroups have done the job that was there. */
    __device__ __forceinline__ void room_await()
    {
        uint32_t lane = lane_get();

        gpu_barrier_await_cluster(&shared.job_empty[ring.at], ring.parity ^ 1);
        if (made < GEMV_JOBS)
            return;
        const struct gemv_taken &taken = shared.taken[ring.at];
        if (lane < taken.count) {
            struct slice s = {};
            s.group = taken.groups[lane];
            gpu_slice_signal(call, taken.run, s);
            ((struct slice_time *)gpu_plan_of(call, taken.run)->times)[taken.index + lane] = {0, taken.start, gpu_clock(),
                                                                                              blockIdx.x, (uint32_t)call.epoch};
        }
        __syncwarp();
    }

    /* `group`: the signal group of a lane's slice, if it has one. */
    __device__ __forceinline__ void job_make(const struct gemv_job &job, const struct gemv_taken &taken, uint32_t group)
    {
        constexpr uint32_t WORDS = sizeof(job) / sizeof(uint64_t);
        uint32_t lane = lane_get();

        room_await();
        if (lane < taken.count)
            shared.taken[ring.at].groups[lane] = group;
        if (lane == 0) {
            shared.taken[ring.at].run = taken.run;
            shared.taken[ring.at].index = taken.index;
            shared.taken[ring.at].count = taken.count;
            shared.taken[ring.at].start = taken.start;
        }
        if (lane < GEMV_PARTS) {
            uint32_t there = gpu_cluster_address(&shared.jobs[ring.at], lane);
            uint32_t full = gpu_cluster_address(&shared.job_full[ring.at], lane);
            uint64_t words[WORDS];
            memcpy(words, &job, sizeof(job));
            gpu_barrier_expect_at(&shared.job_full[ring.at], lane, sizeof(job));
#pragma unroll
            for (uint32_t i = 0; i < WORDS; i += 2)
                gpu_cluster_send_words(there + i * sizeof(uint64_t), words[i], words[i + 1], full);
        }
        __syncwarp();
        ring.next(GEMV_JOBS);
        made++;
    }

    /* Make the jobs of a run's slices that are taken together, from `number` on: a wide slice gives several jobs, narrow
     * neighbours one. */
    __device__ __forceinline__ void jobs_make(uint32_t run, uint32_t number)
    {
        const struct gpu_plan *plan = gpu_plan_of(call, run);
        const uint32_t index = plan->first[GPU_PHASE_FREE] + number;
        const uint32_t count = min(maps.together[run], slices_of(plan) - number);
        const struct slice *slices = (const struct slice *)plan->slices + index;
        uint32_t lane = lane_get(), mine = lane < count ? lane : 0, n;
        uint32_t col = slices[mine].col, cols = slices[mine].cols, dst = slices[mine].dst, kind = slices[mine].kind;
        uint32_t group = slices[mine].group;
        uint64_t now = gpu_clock();

        for (uint32_t i = 0; i < count; i += n) {
            uint32_t first = gpu_team_get(col, i, 32), all = gpu_team_get(cols, i, 32), to = gpu_team_get(dst, i, 32);
            bool goes_on = true;
            for (n = 1; i + n < count && goes_on; n += goes_on) {
                uint32_t more = gpu_team_get(cols, i + n, 32);
                goes_on = gpu_team_get(col, i + n, 32) == first + all && all + more <= GEMV_COLS &&
                          gpu_team_get(dst, i + n, 32) == to;
                all += goes_on ? more : 0;
            }
            uint32_t its_group = gpu_team_get(group, i + lane, 32);
            for (uint32_t at = 0; at < all; at += GEMV_COLS) {
                uint32_t left = all - at, last = left <= GEMV_COLS;
                job_make({1, 0, run, kind, to, first + at, last ? left : GEMV_COLS, 0},
                         {run, index + i, last ? n : 0, 0, now, {}}, its_group);
            }
        }
    }

    /* Make the first jobs, after the cluster's barrier, so that workgroups have work when the kernel before this one has
     * ended. */
    __device__ __forceinline__ void first_make()
    {
        uint32_t run, number;

        if (shared.has_first && share_of(blockIdx.x / GEMV_PARTS, &run, &number))
            jobs_make(run, number);
    }

    /* Request the next slices behind the dealt ones, when there is room for a job. */
    __device__ __forceinline__ struct gpu_ticket ask(uint32_t run) const
    {
        struct gpu_ticket t = {0, 0};

        gpu_barrier_await_cluster(&shared.job_empty[ring.at], ring.parity ^ 1);
        if (threadIdx.x == GEMV_ASKS)
            t = gpu_slice_ask(call, run, GPU_PHASE_FREE, maps.together[run]);
        return t;
    }

    /* Claim slices dealt to clusters that are not resident, and make their jobs. */
    __device__ __forceinline__ void left_over_make()
    {
        uint32_t run, number;
        bool is_free =
            share_of(lane_get(), &run, &number) && gpu_load_relaxed(call.fixed->claims + lane_get()) < gpu_epoch(call);

        for (uint64_t some = gpu_wave_vote(is_free); some; some &= some - 1) {
            uint32_t of = (uint32_t)__ffsll((long long)some) - 1;
            if (share_of(of, &run, &number) && claim(of))
                jobs_make(run, number);
        }
    }

    __device__ __forceinline__ void take()
    {
        if (lane_get() < min(made, (uint32_t)GEMV_JOBS))
            shared.taken[lane_get()].start = gpu_clock(); /* the jobs have waited for the kernel before this one until now */
        __syncwarp();
        for (uint32_t i = 0; i < call.nruns && !leave; i++) {
            uint32_t run = gemv_run_at(call, i), all = slices_of(gpu_plan_of(call, run));
            uint32_t dealt = gemv_dealt_of(call, run) * maps.together[run];
            for (;;) {
                struct gpu_ticket next = ask(run);
                uint32_t number = gpu_team_get(next.number, 0, 32) + dealt;
                leave = gpu_team_get((uint32_t)(next.failed >= gpu_epoch(call)), 0, 32);
                if (leave)
                    gpu_left_early(call);
                if (leave || number >= all)
                    break;
                jobs_make(run, number);
            }
        }
        if (!leave)
            left_over_make();
        job_make({0, leave, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, {}}, 0);
        for (int i = 1; i < GEMV_JOBS; i++, made++, ring.next(GEMV_JOBS)) /* the last jobs are still under way */
            room_await();
    }
};

#endif
#endif
