/* SPDX-License-Identifier: MIT
 *
 * gemm_hopper.h - gemm's compute slices on Hopper (sm_90a; f16 and bf16), where a, b, c and staging begin at
 * multiples of 16 bytes. Part of gemm.hip, which has a kernel for everything else.
 *
 * A workgroup stays on its multiprocessor and goes from tile to tile without a pause. Its parts hand over to each other through
 * rings in shared memory, so the loads of the next tile and the stores of the last one overlap the matrix instructions of this
 * one.
 *
 *   taker    one thread: takes slices and makes jobs: a tile each. A slice may be several tiles, and where destinations get
 *            only a few rows, the slices of several destinations one tile: those of the same columns
 *   loader   one thread: has the copy engine bring A and B, 64 k (a stage) at a time
 *   groups   two warpgroups: multiply; each has a half of the tile's sums in registers. They leave the finished tile in shared
 *            memory; the largest one in two turns, one in the middle of the next tile (below)
 *   storer   one warp: has the copy engine store the tile's rows at the destination, on whichever GPU that is; when they are
 *            there, signals, if this was the last tile of its slices. The first time that it has something for another rank it
 *            waits until that rank's stream has come (gemm_maps.gates). gemm_hopper_store.h
 *   server   one warp: through rings, moves what comes from other ranks, which wait for it (exchange/landing.h)
 *
 * The copy engine is slow for rows outside of a matrix. So if a matrix has fewer rows than a tile, only these are loaded. The
 * sums of the other rows are computed from undefined data, and are not stored.
 *
 * Shared memory: STAGES stages, each A [ROWS][64 k] and B [64 k][COLS] as the copy engine writes and wgmma reads them with
 * 128-byte swizzle (kernels/gpu/device/matrix_wgmma.h has the layout); then the finished tile, or half of it, rows OUT_PITCH
 * apart.
 *
 * TURNS: next to a whole finished tile of 128 x 256, shared memory has room for three stages. With three, the matrix units
 * waited for the first loads of each tile, which queue behind the last tile's stores: a tenth of the time for K 3584
 * (tests/bench/TRIED.md). So a group writes every other 8 rows to shared memory at the end of a tile, and keeps the rest, as
 * elements, in registers until halfway in the next tile (or until it knows that there is none). That makes room for a fourth
 * stage. It needs more than 168 registers, so the groups take some of the other warps' registers.
 *
 * Barriers, all with phases that alternate (struct gemm_ring):
 *   job_full      the taker has written the job           job_empty    all other parts have read it and are done with it
 *   stage_full    the copy engine has brought the stage   stage_empty  the warps have multiplied it
 *   out_full      the warps have written a turn's rows    out_empty    the copy engine has read them
 *   half_full     one group has left its half of the sums half_empty   the other one has added it (SPLIT only)
 * Progress. A part waits only for the parts before it, and for room. The storer waits for the tile and, once, for the other
 * ranks' streams, which come, or the operator fails. A tile's second turn comes with the next job, which the taker makes before
 * this one is done: there are three places. A workgroup that must leave (the taker checks once a slice) still finishes the jobs
 * it has.
 *
 * PAIR: two workgroups, a cluster, work on two tiles at a time that follow each other. Usually these have the same columns:
 * then each loads half of B into both, which spares the L2 a third of its traffic. The first one's taker makes the jobs of
 * both, so they have the same number of jobs and steps; where one tile is left over, the second one multiplies the same and
 * stores nothing. A stage is empty when both have multiplied it, and jobs' places are empty when both have done with them.
 * Neither ends before the other, which may still arrive at its barriers.
 *
 * Memory order. What the copy engine brings is ordered by the barrier that it completes. A group's reads of a stage by wgmma
 * are over (wait_group) before its warps arrive at stage_empty; who arrives there or at job_empty has what it read in
 * registers, so it has nothing to release to the cluster's other workgroup. Finished elements are stored by all threads, each
 * of which fences for the copy engine before it arrives at out_full. The copy engine's stores are visible to the storer's lanes
 * when they have awaited them; __syncwarp() passes that on to those that signal, a slice each; the fences in gpu_slice_signal()
 * are cumulative.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMM_HOPPER_H
#define FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMM_HOPPER_H

#include "kernels/gpu/device/compute/gemm_hopper_shape.h"
#include "kernels/gpu/device/compute/gemm_hopper_store.h"
#include "kernels/gpu/device/execute.h"
#include "kernels/gpu/device/hopper.h"
#include "kernels/gpu/runtime.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <typename T, typename S> struct gemm_parts : gemm_storing<T, S> {
    typedef gemm_storing<T, S> storing;
    using storing::call, storing::maps, storing::shared, storing::stages, storing::rank;
    using storing::job_await, storing::job_done, storing::store;

    __device__ __forceinline__ void make()
    {
        for (int i = 0; i < S::STAGES; i++) {
            gpu_barrier_make(&shared.stage_full[i], 1);
            gpu_barrier_make(&shared.stage_empty[i], GEMM_WARPS * S::CLUSTER);
        }
        for (int i = 0; i < GEMM_JOBS; i++) {
            gpu_barrier_make(&shared.job_full[i], 1);
            gpu_barrier_make(&shared.job_empty[i], (GEMM_WARPS + 2) * S::CLUSTER);
        }
        gpu_barrier_make(&shared.out_full, S::OUT_WARPS);
        gpu_barrier_make(&shared.out_empty, 1);
        gpu_barrier_make(&shared.half_full, GEMM_WARPS / 2);
        gpu_barrier_make(&shared.half_empty, GEMM_WARPS / 2);
        gpu_barriers_made();
    }

    /* One thread of a warp: the warp has multiplied the stage. */
    __device__ __forceinline__ void stage_done(uint32_t at)
    {
        gpu_barrier_arrive(&shared.stage_empty[at]);
        if constexpr (S::PAIR)
            gpu_barrier_done_at(&shared.stage_empty[at], rank ^ 1);
    }

    /* ---- taker ---- */

    /* Make a job for workgroup `to` of the cluster, once there is room. */
    __device__ __forceinline__ void job_make(const gemm_ring<GEMM_JOBS> &ring, uint32_t to, const struct gemm_job &made)
    {
        gpu_barrier_await(&shared.job_empty[ring.at], ring.parity ^ 1);
        if (to == 0) {
            shared.jobs[ring.at] = made;
            gpu_barrier_arrive(&shared.job_full[ring.at]);
            return;
        }
        uint64_t words[sizeof(made) / sizeof(uint64_t)];
        memcpy(words, &made, sizeof(made));
#pragma unroll
        for (uint32_t i = 0; i < sizeof(made) / sizeof(uint64_t); i++)
            gpu_cluster_store(&shared.job_words[ring.at][i], to, words[i]);
        gpu_barrier_arrive_at(&shared.job_full[ring.at], to);
    }

    /* Make a job for each tile of the slices that begin with s. */
    __device__ __forceinline__ void jobs_make(gemm_ring<GEMM_JOBS> *ring, uint32_t run, uint32_t index, const struct slice &s)
    {
        uint32_t together = maps.together[run];
        int32_t steps = (int32_t)((call.in[run].gemm.k + GEMM_STEP - 1) / GEMM_STEP);

        for (uint32_t col = 0; col < s.cols; col += S::COLS) {
            for (uint32_t row = 0; row < s.rows; row += S::ROWS, ring->next()) {
                uint32_t last = col + S::COLS >= s.cols && row + S::ROWS >= s.rows;
                job_make(*ring, 0, {steps, s.row + row, s.col + col, run, index, together, last, 0, gpu_clock()});
            }
        }
    }

    /* Make jobs for two tiles, the first of which begins with s. If only one is left, both workgroups get it. */
    __device__ __forceinline__ void pair_make(gemm_ring<GEMM_JOBS> *ring, uint32_t run, uint32_t index, const struct slice &s)
    {
        const struct gpu_plan *plan = gpu_plan_of(call, run);
        uint32_t together = maps.together[run];
        bool both = index + together < plan->first[GPU_PHASE_FREE + 1];
        uint32_t second = both ? index + together : index;
        const struct slice other = ((const struct slice *)plan->slices)[second];
        int32_t steps = (int32_t)((call.in[run].gemm.k + GEMM_STEP - 1) / GEMM_STEP);
        uint32_t in_common = other.col == s.col;
        uint64_t now = gpu_clock();

        job_make(*ring, 0, {steps, s.row, s.col, run, index, together, 1, in_common, now});
        job_make(*ring, 1, {steps, other.row, other.col, run, second, both ? together : 0, 1, in_common, now});
        ring->next();
    }

    __device__ __forceinline__ void take()
    {
        gemm_ring<GEMM_JOBS> ring;
        struct gpu_group &group = shared.taken;

        group.leave = 0;
        for (uint32_t i = 0; i < call.nruns && !group.leave; i++) {
            uint32_t run = (blockIdx.x / S::CLUSTER + i) % call.nruns;
            for (;;) {
                gpu_slice_take(call, run, GPU_PHASE_FREE, &group, maps.together[run] * S::CLUSTER);
                if (group.leave || group.index == SLICE_NO_GROUP)
                    break;
                if constexpr (S::PAIR)
                    pair_make(&ring, run, group.index, group.slice);
                else
                    jobs_make(&ring, run, group.index, group.slice);
            }
        }
        for (uint32_t to = 0; to < S::CLUSTER; to++)
            job_make(ring, to, {0, 0, 0, 0, 0, 0, group.leave, 0, 0});
    }

    /* ---- loader ---- */

    /* k from `k` on, of A's rows from `row` and B's columns from `col` on. */
    __device__ __forceinline__ void stage_load(uint32_t at, const gemm_maps::gemm_run_maps &m, uint32_t a_bytes, int32_t k,
                                               int32_t row, int32_t col, bool in_common)
    {
        unsigned char *stage = stages + at * S::STAGE_BYTES;
        uint64_t *full = &shared.stage_full[at];

        gpu_barrier_arrive_expecting(full, S::STAGE_BYTES - S::A_BYTES + a_bytes);
        gpu_box_load(stage, &m.a, k, row, full);
#pragma unroll
        for (int i = 0; i < S::COLS / 64; i++) {
            unsigned char *part = stage + S::A_BYTES + i * S::B_PART;
            if (!S::PAIR || !in_common)
                gpu_box_load(part, &m.b, col + i * 64, k, full);
            else if ((uint32_t)i * 128 / S::COLS == rank)
                gpu_box_load_both(part, &m.b, col + i * 64, k, full);
        }
    }

    __device__ __forceinline__ void load()
    {
        gemm_ring<GEMM_JOBS> jobs;
        gemm_ring<S::STAGES> ring;

        for (;; jobs.next()) {
            job_await(jobs);
            const struct gemm_job job = shared.jobs[jobs.at];
            if (job.steps == 0) {
                shared.leave = job.last;
                return;
            }
            job_done(jobs);
            for (int32_t k = 0; k < job.steps * GEMM_STEP; k += GEMM_STEP, ring.next()) {
                gpu_barrier_await(&shared.stage_empty[ring.at], ring.parity ^ 1);
                stage_load(ring.at, maps.runs[job.run], maps.a_bytes[job.run], k, (int32_t)job.row, (int32_t)job.col,
                           job.in_common != 0);
            }
        }
    }

    /* ---- groups ---- */

    /* All steps of a tile. `a` and `b`: this group's, as wgmma wants them, in the first stage. Halfway, under the matrix
     * instructions, it calls between(). */
    template <typename Between>
    __device__ __forceinline__ void multiply(float (&sums)[S::SUMS], int32_t steps, uint64_t a, uint64_t b,
                                             gemm_ring<S::STAGES> *ring, Between between)
    {
        constexpr int EACH = GEMM_STEP / 16 / (S::SPLIT ? 2 : 1);
        uint32_t before = 0;

#pragma unroll 1
        for (int32_t n = 0; n < steps; n++) {
            uint32_t stage = ring->at * (S::STAGE_BYTES / 16);
            gpu_barrier_await(&shared.stage_full[ring->at], ring->parity);
            gpu_wgmma_begin();
#pragma unroll
            for (int k = 0; k < EACH; k++)
                gpu_wgmma_add(sums, a + stage + k * (32 / 16), b + stage + k * (2048 / 16), n > 0 || k > 0, T());
            gpu_wgmma_end_group();
            if (n == steps / 2)
                between();
            gpu_wgmma_await_all_but<1>();
            if (n > 0 && threadIdx.x % 32 == 0)
                stage_done(before);
            before = ring->at;
            ring->next();
        }
        gpu_wgmma_await_all_but<0>();
        if (threadIdx.x % 32 == 0)
            stage_done(before);
        gpu_wgmma_pin(sums);
    }

    /* SPLIT: the second group passes its sums to the first, which adds them. False: this group has nothing left to do for the
     * tile. */
    __device__ __forceinline__ bool halves_add(float (&sums)[S::SUMS], uint32_t parity)
    {
        float *half = (float *)(stages + S::STAGES * S::STAGE_BYTES + S::TILE_BYTES) + threadIdx.x % 128;
        bool gives = threadIdx.x >= 256;

        gpu_barrier_await(gives ? &shared.half_empty : &shared.half_full, gives ? parity ^ 1 : parity);
#pragma unroll
        for (int i = 0; i < S::SUMS; i++)
            if (gives)
                half[i * 128] = sums[i];
            else
                sums[i] += half[i * 128];
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            gpu_barrier_arrive(gives ? &shared.half_full : &shared.half_empty);
        return !gives;
    }

    /* Of a warp's 16 rows a thread has rows lane / 4 and 8 more, of them columns 8j + lane % 4 * 2 and the next: sums 4j and 4j
     * + 1 of the one row, 4j + 2 and 4j + 3 of the other. What leaves in the second turn stays in registers. */
    __device__ __forceinline__ void finish(const float (&sums)[S::SUMS], T *at, uint32_t (&held)[S::HELD])
    {
#pragma unroll
        for (int i = 0; i < S::SUMS; i += 4) {
            uint32_t second = gpu_wgmma_pair(sums[i + 2], sums[i + 3], T());
            *(uint32_t *)(at + i * 2) = gpu_wgmma_pair(sums[i], sums[i + 1], T());
            if constexpr (S::TURNS == 1)
                *(uint32_t *)(at + i * 2 + 8 * S::OUT_PITCH) = second;
            else
                held[i / 4] = second;
        }
        gpu_fence_for_async();
    }

    __device__ __forceinline__ void held_put(T *at, const uint32_t (&held)[S::HELD])
    {
#pragma unroll
        for (int i = 0; i < S::HELD; i++)
            *(uint32_t *)(at + i * 8) = held[i];
        gpu_fence_for_async();
    }

    /* A warp: room for finished rows, which put() writes. */
    template <typename Put> __device__ __forceinline__ void rows_leave(gemm_ring<1> *out, Put put)
    {
        gpu_barrier_await(&shared.out_empty, out->parity ^ 1);
        put();
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            gpu_barrier_arrive(&shared.out_full);
        out->next();
    }

    __device__ __forceinline__ void group()
    {
        uint32_t thread = threadIdx.x - 128, number = thread / 128, lane = thread % 32;
        uint32_t row = S::ROWS == 128 ? number * 64 : 0, col = S::ROWS == 128 || S::SPLIT ? 0 : number * S::GROUP_COLS;
        uint32_t k = S::SPLIT ? number * (GEMM_STEP / 32) : 0; /* in units of 16 */
        uint32_t base = gpu_shared_address(stages);
        uint64_t a = gpu_wgmma_matrix(base + row * 128 + k * 32, 16, 1024);
        uint64_t b = gpu_wgmma_matrix(base + S::A_BYTES + col / 64 * S::B_PART + k * 2048, S::B_PART, 1024);
        T *at = (T *)(stages + S::STAGES * S::STAGE_BYTES) +
                ((row + thread % 128 / 32 * 16) / S::TURNS + lane / 4) * S::OUT_PITCH + col + lane % 4 * 2;
        gemm_ring<GEMM_JOBS> jobs;
        gemm_ring<S::STAGES> ring;
        gemm_ring<1> out;
        uint32_t held[S::HELD], tile = 0;
        /* The second turn of the tile before, if there was one. */
        auto rest_leave = [&] {
            if (S::TURNS > 1 && tile > 0)
                rows_leave(&out, [&] { held_put(at, held); });
        };

        for (;; jobs.next(), tile++) {
            float sums[S::SUMS];
            job_await(jobs);
            int32_t steps = shared.jobs[jobs.at].steps;
            if (steps == 0)
                break;
            __syncwarp();
            if (lane == 0)
                job_done(jobs);
            multiply(sums, steps, a, b, &ring, rest_leave);
            if (S::SPLIT && !halves_add(sums, tile % 2))
                continue;
            rows_leave(&out, [&] { finish(sums, at, held); });
        }
        rest_leave();
    }

    /* All threads. False: leave. */
    __device__ __forceinline__ bool run()
    {
        gpu_begin(call);
        if (threadIdx.x == 0) {
            make();
            shared.stored = 0;
        }
        everyone();
        if (threadIdx.x >= 128) {
            if constexpr (S::TURNS > 1)
                gpu_registers_more<GEMM_GROUP_REGISTERS>();
            group();
            if constexpr (S::TURNS > 1) {
                gpu_barrier_some<GEMM_BARRIER_GROUPS, 256>();
                gpu_registers_fewer<GEMM_REGISTERS>();
            }
        } else {
            if constexpr (S::TURNS > 1)
                gpu_registers_fewer<GEMM_OTHER_REGISTERS>();
            if (threadIdx.x == 0 && rank == 0)
                take();
            else if (threadIdx.x == 32)
                load();
            else if (threadIdx.x / 32 == 2)
                store();
            else if (threadIdx.x / 32 == 3)
                landing_serve<T>(call, &shared.stored);
            __syncwarp();
            if constexpr (S::TURNS > 1) {
                gpu_barrier_some<GEMM_BARRIER_OTHERS, 128>();
                gpu_registers_more<GEMM_REGISTERS>();
            }
        }
        __syncwarp();
        everyone();
        return !shared.leave;
    }

    __device__ __forceinline__ void everyone()
    {
        if constexpr (S::PAIR)
            gpu_cluster_barrier();
        else
            __syncthreads();
    }
};

#endif

/* The phases after the computing: puts from staging, and waits. */
template <typename T> struct gemm_rest {
    __device__ __forceinline__ bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        int64_t n = call.fixed->shape.n, stride = call.out[s.dst].stride[0];
        const T *here = (const T *)call.fixed->staging[gpu_plan_of(call, run)->rank] + s.row * n + s.col;

        gpu_rows_copy<T>((T *)call.out[s.dst].data + s.dst_row * stride + s.dst_col, stride, here, n, s.rows, s.cols,
                         threadIdx.x, blockDim.x);
        return true;
    }
};

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define GEMM_CLUSTER(n) /* this code is empty, and is never launched */
#else
#define GEMM_CLUSTER(n) __cluster_dims__(n, 1, 1)
#endif

template <typename T, int ROWS, int COLS, bool PAIR>
__global__ void __launch_bounds__(GEMM_THREADS, 1) GEMM_CLUSTER(PAIR ? 2 : 1)
    gemm_hopper_kernel(GPU_PARAMETER struct gpu_call call, GPU_PARAMETER struct gemm_maps maps)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef gemm_shape<T, ROWS, COLS, PAIR> shape;
    __shared__ struct gemm_shared<shape> shared;
    unsigned char *stages = gemm_shared_bytes + (-gpu_shared_address(gemm_shared_bytes) & (shape::ALIGN - 1));
    struct gemm_parts<T, shape> parts = {
        {
            call, maps, shared, stages, PAIR ? gpu_cluster_rank() : 0
        }
    };
    struct gemm_rest<T> rest;

    gpu_bring_nearer(call);
    gpu_follow();
    gpu_execute_from(call, rest, GPU_PHASE_FREE + 1, parts.run(), landing_end<T>());
#endif
}

#endif
