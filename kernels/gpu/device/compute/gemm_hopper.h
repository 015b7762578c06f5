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
    using storing::call, storing::maps, storing::shared, storing::rank, storing::store;
    using storing::make, storing::job_make, storing::job_await, storing::job_done, storing::stage_load, storing::everyone,
        storing::parts_run;

    /* ---- taker ---- */

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
                stage_load(ring.at, &maps.runs[job.run].a, &maps.runs[job.run].b, maps.a_bytes[job.run], k, (int32_t)job.row,
                           (int32_t)job.col, job.in_common != 0);
            }
        }
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
        parts_run(gemm_as_it_is(), [&] {
            if (threadIdx.x == 0 && rank == 0)
                take();
            else if (threadIdx.x == 32)
                load();
            else if (threadIdx.x / 32 == 2)
                store();
            else if (threadIdx.x / 32 == 3)
                landing_serve<T>(call, &shared.stored);
        });
        return !shared.leave;
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
            {shared, stages, PAIR ? gpu_cluster_rank() : 0}, call, maps
        }
    };
    struct gemm_rest<T> rest;

    gpu_bring_nearer(call);
    gpu_follow();
    gpu_execute_from(call, rest, GPU_PHASE_FREE + 1, parts.run(), landing_end<T>());
#endif
}

#endif
