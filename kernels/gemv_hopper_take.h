/* SPDX-License-Identifier: MIT
 *
 * gemv_hopper_take.h - gemv_hopper.h's taker: a warp of a cluster's first workgroup that takes slices, makes jobs of them for
 * all workgroups, and signals a job's slices when all have done with it.
 *
 * w's bytes for a job come within 3 to 4 microseconds; as long take four answers of a GPU's memory that is busy with them. So
 * between a job's room and the job there is nothing that waits for the memory, but for the slices themselves: the next ones are
 * always asked for while jobs are made, they have been brought near when the kernel began, and a job is sent, not stored and
 * released, which would wait until the memory has everything that the warp has stored.
 */
#ifndef FCC_GEMV_HOPPER_TAKE_H
#define FCC_GEMV_HOPPER_TAKE_H

#include "gemv_hopper_shape.h"
#include "gpu_execute.h"
#include "gpu_hopper.h"
#include "gpu_vector.h"

/* The run with which a cluster begins (i is 0), and those that follow: as gpu_run_of(), the same for a cluster. */
GPU_DEVICE uint32_t gemv_run_at(const struct gpu_call &call, uint32_t i)
{
    return (blockIdx.x / GEMV_PARTS + i) % call.nruns;
}

/* All threads of all workgroups: the slices that clusters begin with come nearer. */
GPU_DEVICE void gemv_slices_prefetch(const struct gpu_call &call)
{
    const struct gpu_plan *plan = gpu_plan_of(call, gemv_run_at(call, 0));
    uint32_t i = blockIdx.x + threadIdx.x * gridDim.x;

    if (i < plan->first[GPU_PHASES])
        gpu_prefetch((const struct slice *)plan->slices + i);
}

/* The column of a cluster's first job, if clusters get slices in their order. Whichever order it is: together the clusters get
 * these. UINT32_MAX: there is none, or the copy engine cannot read it. */
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

/* One thread, when the kernel begins: a workgroup's part of what the first job reads comes nearer, as much as there will be
 * room for when it is known. */
GPU_DEVICE void gemv_early_prefetch(const struct gpu_call &call, const struct gemv_maps &maps, uint32_t rank)
{
    uint32_t run = gemv_run_at(call, 0), col = gemv_early_column(call, maps), first, end;

    gemv_steps_get(call, run, rank, &first, &end);
    for (uint32_t step = first; step < end && step < first + maps.stages && col != UINT32_MAX; step++)
        gpu_box_prefetch(&maps.runs[run].w, (int32_t)(step * GEMV_STEP), (int32_t)col);
}

/* All lanes of the warp. */
struct gemv_taker {
    const struct gpu_call &call;
    const struct gemv_maps &maps;
    struct gemv_shared &shared;

    /* There is room for a job. If it was another one's, that has been done by all. */
    __device__ __forceinline__ void room_await(const gemv_ring &ring, uint32_t made)
    {
        uint32_t lane = threadIdx.x % 32;

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

    /* `group`: a lane's, if there is a slice for it. */
    __device__ __forceinline__ void job_make(gemv_ring *ring, uint32_t *made, const struct gemv_job &job,
                                             const struct gemv_taken &taken, uint32_t group)
    {
        constexpr uint32_t WORDS = sizeof(job) / sizeof(uint64_t);
        uint32_t lane = threadIdx.x % 32;

        room_await(*ring, *made);
        if (lane < taken.count)
            shared.taken[ring->at].groups[lane] = group;
        if (lane == 0) {
            shared.taken[ring->at].run = taken.run;
            shared.taken[ring->at].index = taken.index;
            shared.taken[ring->at].count = taken.count;
            shared.taken[ring->at].start = taken.start;
        }
        if (lane < GEMV_PARTS) {
            uint32_t there = gpu_cluster_address(&shared.jobs[ring->at], lane);
            uint32_t full = gpu_cluster_address(&shared.job_full[ring->at], lane);
            uint64_t words[WORDS];
            memcpy(words, &job, sizeof(job));
            gpu_barrier_expect_at(&shared.job_full[ring->at], lane, sizeof(job));
#pragma unroll
            for (uint32_t i = 0; i < WORDS; i += 2)
                gpu_cluster_send_words(there + i * sizeof(uint64_t), words[i], words[i + 1], full);
        }
        __syncwarp();
        ring->next(GEMV_JOBS);
        ++*made;
    }

    /* The jobs of `count` slices from index on: wide ones in pieces, narrow neighbours together. */
    __device__ __forceinline__ void jobs_make(gemv_ring *ring, uint32_t *made, uint32_t run, uint32_t index, uint32_t count)
    {
        const struct slice *slices = (const struct slice *)gpu_plan_of(call, run)->slices + index;
        uint32_t lane = threadIdx.x % 32, mine = lane < count ? lane : 0, n;
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
                job_make(ring, made, {1, 0, run, kind, to, first + at, last ? left : GEMV_COLS, 0},
                         {run, index + i, last ? n : 0, 0, now, {}}, its_group);
            }
        }
    }

    /* `next`: the first lane has asked for it, of the first run. The next one is always on its way while jobs are made: the
     * cluster has it in hand beside its jobs, none of which waits for anything but room. */
    __device__ __forceinline__ void take(struct gpu_ticket next)
    {
        gemv_ring ring;
        uint32_t made = 0, leave = 0;

        for (uint32_t i = 0; i < call.nruns && !leave; i++) {
            uint32_t run = gemv_run_at(call, i), first = gpu_plan_of(call, run)->first[GPU_PHASE_FREE];
            uint32_t all = gpu_plan_of(call, run)->first[GPU_PHASE_FREE + 1] - first, together = maps.together[run];
            if (i > 0 && threadIdx.x == GEMV_ASKS)
                next = gpu_slice_ask(call, run, GPU_PHASE_FREE, together);
            for (;;) {
                uint32_t number = gpu_team_get(next.number, 0, 32);
                leave = gpu_team_get((uint32_t)(next.failed >= call.epoch), 0, 32);
                if (leave || number >= all)
                    break;
                if (threadIdx.x == GEMV_ASKS)
                    next = gpu_slice_ask(call, run, GPU_PHASE_FREE, together);
                jobs_make(&ring, &made, run, first + number, min(together, all - number));
            }
        }
        job_make(&ring, &made, {0, leave, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, {}}, 0);
        for (int i = 1; i < GEMV_JOBS; i++, made++, ring.next(GEMV_JOBS)) /* the last jobs are still under way */
            room_await(ring, made);
    }
};

#endif
#endif
