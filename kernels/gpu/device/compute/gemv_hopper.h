/* SPDX-License-Identifier: MIT
 *
 * gemv_hopper.h - gemv_all_reduce's compute slices on Hopper (sm_90a; f16 and bf16), several rows of x. Part of
 * gemv.hip.
 *
 * Eight workgroups, a cluster, multiply 64 columns (rows of w) at a time, each an eighth of K: so each keeps its part of x in
 * shared memory for all tiles (or, where that does not fit, loads it along with w), and w streams through. Then the eight parts
 * of the sums are exchanged: each workgroup gets those of 8 of the columns, adds them in order, and sends them off. A workgroup
 * goes from tile to tile without a pause; its parts hand over to each other through rings in shared memory:
 *
 *   taker    one warp of the first workgroup: takes slices, several that follow each other where they are narrow, and makes
 *            jobs of up to 64 columns for all workgroups. When all have done with a job, it signals its slices
 *   loader   one thread has the copy engine bring 64 k (a stage) of w at a time. Where a matrix does not suit the copy engine,
 *            all threads of four warps copy instead, element by element. x comes with the first tile. Another warp brings the
 *            first part of w nearer when the kernel begins
 *   group    one warpgroup: multiplies, columns of y in place of rows, rows of x in place of columns. Sends its sums to the
 *            workgroups of the cluster
 *   senders  four warps: add, and store to wherever the slice says
 *   reducers the warps that are left: in one step they add all ranks' words meanwhile
 *   (kernels/gpu/device/exchange/reduce_hopper.h), and this rank's sums,
 *            which the senders keep for them in shared memory, as far as there is room
 *
 * The dynamic shared memory: the sums on their way, once or twice [part][column][ROWS, padded]; x, blocks of [ROWS][64 k];
 * STAGES stages, each [64 columns][64 k] of w, and a block of x if it is not kept; the own sums, [job][row][8 columns], and a
 * list of their jobs. All blocks of x and w as the copy engine writes and wgmma
 * reads them, K-major with 128-byte swizzle (kernels/gpu/device/matrix_wgmma.h has the layout).
 *
 * Barriers, all with phases that alternate (struct gemv_ring):
 *   job_full      the job is there                           job_empty    all parts of all workgroups have done with it
 *   stage_full    the stage is there                         stage_empty  the warps of the group have multiplied it
 *   x_full        the run's x is there, where threads copy   x_empty      the group is done with the run
 *   sums_full     the sums of this workgroup's 8 columns are there, of all workgroups
 *   sums_empty    the senders of the two workgroups that a warp of the group leaves sums to have read the last ones
 *   computed     the senders have ended
 * and beside them a count, `listed`, as the reducers may come any number of jobs later.
 * Progress. A part waits only for the parts before it, and for room. The eight workgroups of a cluster run at the same time. A
 * cluster that must leave (the taker checks once a job) still finishes the jobs it has.
 *
 * Memory order. What the copy engine brings is ordered by the barrier that it completes; what threads copy, by their fence for
 * it before the barrier. The group's reads of a stage are over (wait_group) before its warps arrive at stage_empty. Jobs, and
 * sums for another workgroup, are sent (st.async): the barrier beside them is told of their bytes, which releases them; who
 * reads them awaits it (acquire, cluster). Its one arrival tells how many bytes to expect: for a job the taker's, for sums a
 * sender's, once the last ones have come. They may come before it does, and then are counted, but not before the last ones have
 * been read: the groups await sums_empty. Who only tells that it has read something (job_empty, sums_empty) has it in
 * registers, and releases nothing: a release would wait for the words that are on their way to other GPUs. The sums that the
 * senders keep, and their list, are released by their count within the workgroup, which waits for no other memory. Words need
 * no order. Sums in staging memory are stored by the senders, who then do release at job_empty; the fence in the taker's
 * gpu_slice_signal() is cumulative.
 *
 * Same bits: the parts of K, and the order of all additions, depend on K, M and the dtype only.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMV_HOPPER_H
#define FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMV_HOPPER_H

#include "kernels/gpu/device/compute/gemv_hopper_load.h"
#include "kernels/gpu/device/compute/gemv_hopper_shape.h"
#include "kernels/gpu/device/exchange/packets.h"
#include "kernels/gpu/device/exchange/reduce_hopper.h"
#include "kernels/gpu/device/exchange/take_hopper.h"
#include "kernels/gpu/device/hopper.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

extern __shared__ __align__(16) unsigned char gemv_shared_bytes[];

/* The parts that use the loaded data (group, senders), and the workgroup as a whole. */
template <typename T, typename S> struct gemv_parts : gemv_loading<T, S> {
    typedef gemv_loading<T, S> loading;
    using loading::call, loading::maps, loading::shared, loading::rank;
    using loading::exchange, loading::x_kept, loading::sums_kept, loading::list, loading::stage_bytes, loading::stage,
        loading::steps_get, loading::sums_expect;
    using loading::make, loading::job_get, loading::job_done, loading::thread_get, loading::load;

    /* ---- group ---- */

    /* A block in shared memory as wgmma wants it, in two halves: the upper one is the same for all, and known to the compiler;
     * the lower one counts in units of 16 bytes. */
    __device__ __forceinline__ static uint64_t matrix(uint32_t lower)
    {
        return gpu_wgmma_matrix(0, 0, 1024) | lower;
    }

    __device__ __forceinline__ static uint32_t lower_of(const void *block)
    {
        return (uint32_t)gpu_wgmma_matrix(gpu_shared_address(block), 16, 1024);
    }

    /* This workgroup's part of a tile. x: its first block's lower half, if it is kept. Here, too, a stage has 450 cycles. */
    __device__ __forceinline__ void multiply(float (&sums)[S::SUMS], uint32_t steps, uint32_t x, gemv_ring *ring)
    {
        const uint32_t w = lower_of(stage(0)), next = stage_bytes() / 16, stages = maps.stages;
        const bool x_too = maps.x_bytes == 0;
        uint32_t a = w + ring->at * next, before = 0;

#pragma unroll
        for (int i = 0; i < S::SUMS; i++)
            sums[i] = 0;
        gpu_wgmma_pin(sums);
#pragma unroll 1
        for (uint32_t n = 0; n < steps; n++, x += S::X_BLOCK / 16) {
            uint32_t b = x_too ? a + S::W_BYTES / 16 : x;
            gpu_barrier_await(&shared.stage_full[ring->at], ring->parity);
            gpu_wgmma_begin();
#pragma unroll
            for (int k = 0; k < GEMV_STEP / 16; k++)
                gpu_wgmma_add_rows(sums, matrix(a + k * (32 / 16)), matrix(b + k * (32 / 16)), true, T());
            gpu_wgmma_end_group();
            gpu_wgmma_await_all_but<1>();
            if (n > 0 && threadIdx.x % 32 == 0)
                gpu_barrier_arrive(&shared.stage_empty[before]);
            before = ring->at;
            ring->next(stages);
            a = ring->at ? a + next : w;
        }
        gpu_wgmma_await_all_but<0>();
        if (steps > 0 && threadIdx.x % 32 == 0)
            gpu_barrier_arrive(&shared.stage_empty[before]);
        gpu_wgmma_pin(sums);
    }

    /* A warp has 16 columns, for workgroups 2 warp and the next. A thread has columns lane / 4 of both, of them rows 8j + lane
     * % 4 * 2 and the next: sums 4j and 4j + 1 of the one column, 4j + 2 and 4j + 3 of the other. Two neighbours exchange
     * these, so that one has four rows of the one column, the other of the other. */
    __device__ __forceinline__ void sums_leave(const float (&sums)[S::SUMS], const gemv_ring &tile)
    {
        uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, to = 2 * warp + lane % 2;
        const float *at = exchange(tile.at) + (rank * GEMV_BLOCK + lane / 4) * S::PITCH + lane % 4 / 2 * 4;
        uint32_t there = gpu_cluster_address(at, to), full = gpu_cluster_address(&shared.sums_full[tile.at], to);
        bool odd = lane % 2;

        gpu_barrier_await(&shared.sums_empty[warp][tile.at], tile.parity ^ 1);
#pragma unroll
        for (uint32_t i = 0; i < S::SUMS; i += 4) {
            float got[2] = {gpu_lane_across(odd ? sums[i] : sums[i + 2], 1),
                            gpu_lane_across(odd ? sums[i + 1] : sums[i + 3], 1)};
            gpu_cluster_send_four(there + i * 2 * sizeof(float), odd ? got[0] : sums[i], odd ? got[1] : sums[i + 1],
                                  odd ? sums[i + 2] : got[0], odd ? sums[i + 3] : got[1], full);
        }
        __syncwarp();
    }

    __device__ __forceinline__ void group()
    {
        const uint32_t x_first = lower_of(x_kept());
        uint32_t lane = threadIdx.x % 32, run = UINT32_MAX, first, end;
        gemv_ring jobs, ring, tile, x;

        for (;; jobs.next(GEMV_JOBS), tile.next(maps.exchanges)) {
            float sums[S::SUMS];
            gpu_barrier_await_cluster(&shared.job_full[jobs.at], jobs.parity);
            uint32_t more = shared.jobs[jobs.at].more, next = shared.jobs[jobs.at].run;
            if (!more)
                break;
            __syncwarp();
            if (lane == 0)
                job_done(jobs);
            if (maps.x_bytes && next != run && run != UINT32_MAX) { /* the first job's x is loaded anyway */
                if (lane == 0)
                    gpu_barrier_arrive(&shared.x_empty);
                x.next(1);
            }
            run = next;
            if (maps.x_bytes && !maps.all_by_engine) /* otherwise it comes with w */
                gpu_barrier_await(&shared.x_full, x.parity);
            steps_get(run, &first, &end);
            multiply(sums, end - first, x_first, &ring);
            sums_leave(sums, tile);
        }
        /* What is said of the last sums comes into this workgroup's memory, too. */
        for (uint32_t i = 0; i < maps.exchanges; i++, tile.next(maps.exchanges))
            gpu_barrier_await(&shared.sums_empty[threadIdx.x / 32][tile.at], tile.parity ^ 1);
    }

    /* ---- senders ---- */

    /* All senders' threads: add a job to the list. True: the thread's sums of the job are kept in shared memory. */
    template <int COUNT>
    __device__ __forceinline__ bool sums_keep(const struct gemv_job &job, uint32_t number, const float (&sum)[COUNT])
    {
        constexpr uint32_t THREADS = GEMV_WARPS * 32;
        float *to = sums_kept() + number * (S::KEPT_BYTES / sizeof(float));
        bool kept = number < maps.kept;

#pragma unroll
        for (uint32_t j = 0; j < COUNT; j++)
            if (kept && thread_get() + j * THREADS < S::KEPT_BYTES / sizeof(float))
                to[thread_get() + j * THREADS] = sum[j];
        if (thread_get() == 0)
            list()[number] = gemv_listed_make(job.run, job.col / GEMV_BLOCK + rank);
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            gpu_shared_release(&shared.listed[thread_get() / 32], 2 * (number + 1));
        return kept;
    }

    __device__ __forceinline__ void send()
    {
        constexpr int COUNT = (S::ROWS * GEMV_BLOCK + GEMV_WARPS * 32 - 1) / (GEMV_WARPS * 32);
        uint32_t lane = threadIdx.x % 32, number = 0; /* on the list */
        gemv_ring jobs, tile;

        for (;; jobs.next(GEMV_JOBS), tile.next(maps.exchanges)) {
            const struct gemv_job job = job_get(jobs);
            uint32_t row[COUNT], col[COUNT];
            bool wanted[COUNT];
            float sum[COUNT];
            if (!job.more)
                break;
            struct gemv_targets targets = gemv_targets_get(call, job.run, job.kind == SLICE_COMPUTE ? 0 : job.dst, 0);
            gpu_barrier_await_cluster(&shared.sums_full[tile.at], tile.parity);
            if (thread_get() == 0)
                sums_expect(tile.at); /* none come before all senders have these: sums_empty */
#pragma unroll
            for (int j = 0; j < COUNT; j++) {
                uint32_t i = thread_get() + j * GEMV_WARPS * 32, place = i % GEMV_BLOCK;
                row[j] = i / GEMV_BLOCK;
                col[j] = job.col + rank * GEMV_BLOCK + place;
                wanted[j] = row[j] < targets.m && rank * GEMV_BLOCK + place < job.cols;
                const float *from = exchange(tile.at) + place * S::PITCH + (wanted[j] ? row[j] : 0);
                sum[j] = *from;
#pragma unroll
                for (int part = 1; part < GEMV_PARTS; part++)
                    sum[j] += from[part * GEMV_BLOCK * S::PITCH];
            }
            __syncwarp();
            if (lane < GEMV_PARTS)
                gpu_barrier_done_at(&shared.sums_empty[rank / 2][tile.at], lane);
            if (maps.listed && rank * GEMV_BLOCK < job.cols)
                targets.count -= sums_keep(job, number++, sum); /* this rank is the last of them */
            if (job.kind != SLICE_COMPUTE)
                gemv_words_put<COUNT>(call, job.run, job.dst, targets, row, col, sum, wanted);
#pragma unroll
            for (int j = 0; j < COUNT; j++)
                if (job.kind == SLICE_COMPUTE && wanted[j])
                    *gemv_local_at(call, job.run, row[j], col[j]) = sum[j];
            __syncwarp();
            if (lane == 0 && job.kind == SLICE_COMPUTE)
                gpu_barrier_arrive_at(&shared.job_empty[jobs.at], 0); /* and its sums are in staging memory */
            else if (lane == 0)
                job_done(jobs);
        }
        if (lane == 0) {
            gpu_shared_release(&shared.listed[thread_get() / 32], 2 * number + 1);
            gpu_barrier_arrive(&shared.computed);
        }
    }

    /* All threads, before the kernel before this one has ended: prepare, so that the workgroups have work when it ends. Reads
     * nothing that a stream could change: w is only prefetched into the L2, which stays coherent with later stores. A numbered
     * kernel claims and makes its first jobs only after that end, which tells it its epoch. */
    __device__ __forceinline__ void prepare(struct gemv_taker *taker)
    {
        uint32_t warp = threadIdx.x / 32;

        if (threadIdx.x == (3 * GEMV_WARPS + 1) * 32)
            gemv_early_prefetch(call, maps, rank);
        if (threadIdx.x == 2 * GEMV_WARPS * 32)
            make();
        if (call.series.numbered) {
            gpu_follow();
            gpu_number(call);
        }
        if (warp == 3 * GEMV_WARPS && rank == 0)
            taker->first_claim();
        if (threadIdx.x < call.nruns && maps.all_by_engine) {
            gpu_map_prefetch(&maps.runs[threadIdx.x].x);
            gpu_map_prefetch(&maps.runs[threadIdx.x].w);
        }
        gpu_bring_nearer(call);
        gemv_slices_prefetch(call);
        __syncwarp();
        gpu_cluster_meet(); /* barriers that were made are there for all: gpu_barriers_made() */
        if (warp == 3 * GEMV_WARPS && rank == 0)
            taker->first_make();
    }

    /* All threads. False: leave. The workgroup goes on, and ends, by itself: it has awaited whatever the cluster's others send
     * it. */
    __device__ __forceinline__ bool run()
    {
        uint32_t warp = threadIdx.x / 32;
        struct gemv_taker taker = {call, maps, shared};

        prepare(&taker);
        if (warp / GEMV_WARPS != 2 || gemv_is_reducer(warp, maps.all_by_engine)) { /* who loads does so when it knows what */
            gpu_follow();
            gpu_let_follow(); /* there is no room for another workgroup beside this one: they come where one has left */
            gpu_begin_numbered(call);
        }
        if (warp < GEMV_WARPS)
            group();
        else if (warp < 2 * GEMV_WARPS)
            send();
        else if (gemv_is_reducer(warp, maps.all_by_engine)) {
            if (gemv_reducer(warp) == 0)
                through_meet(call);
            __syncwarp();
            if (maps.listed)
                gemv_own_reduce<T>(call, {list(), sums_kept(), S::KEPT_BYTES / sizeof(float), maps.kept}, gemv_reducer(warp),
                                   gemv_reducers(maps.all_by_engine), &shared);
            else if (gemv_reduces_beside(call))
                gemv_share_reduce<T>(call, gemv_reducer(warp), gemv_reducers(maps.all_by_engine), &shared.computed);
        } else if (warp < 3 * GEMV_WARPS) {
            if (thread_get() == 0 || !maps.all_by_engine)
                load();
        } else if (rank == 0)
            taker.take();
        __syncwarp();
        __syncthreads();
        return !shared.leave;
    }
};

#endif

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define GEMV_CLUSTER /* this code is empty, and is never launched */
#else
#define GEMV_CLUSTER __cluster_dims__(GEMV_PARTS, 1, 1)
#endif

template <typename T, int ROWS>
__global__ void __launch_bounds__(GEMV_THREADS, 1) GEMV_CLUSTER
    gemv_hopper_kernel(GPU_PARAMETER struct gpu_call call, GPU_PARAMETER struct gemv_maps maps)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef gemv_shape<T, ROWS> shape;
    __shared__ struct gemv_shared shared;
    unsigned char *dynamic = gemv_shared_bytes + (-gpu_shared_address(gemv_shared_bytes) & (shape::ALIGN - 1));
    struct gemv_parts<T, shape> parts = {
        {
            call, maps, shared, dynamic, gpu_cluster_rank()
        }
    };
    __shared__ struct gpu_group group;

    if (parts.run())
        gemv_rest_run<T>(call, &group);
    gpu_leave(call, &group);
#endif
}

#endif
