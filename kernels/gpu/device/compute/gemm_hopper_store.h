/* SPDX-License-Identifier: MIT
 *
 * gemm_hopper_store.h - the shared memory of gemm_hopper.h, and its storer: a warp that stores finished tiles at their
 * destination ranks, once these may be stored to, and spread over the time of a tile.
 *
 * Workgroups finish their tiles at about the same time, and their stores to other GPUs are then more than the links take at
 * once. Stores that wait for a link block the multiprocessor's output, and the next tile's loads queue behind them: 8 to 14 %
 * of a kernel (tests/bench/TRIED.md). So where workgroups have enough tiles for their own GPU to end with, the storer stores
 * other ranks' rows a few at a time, spread over most of a tile's time (gemm_maps.spread). It goes by the shortest tile so far:
 * longer times include waiting, also for a late storer, which would then stay late.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMM_HOPPER_STORE_H
#define FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMM_HOPPER_STORE_H

#include "kernels/gpu/device/compute/gemm_hopper_shape.h"
#include "kernels/gpu/device/exchange/landing.h"
#include "kernels/gpu/device/execute.h"
#include "kernels/gpu/device/hopper.h"
#include "kernels/gpu/device/tiles/gemm_loop.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* The storer's warp: wait until other ranks' memory may be stored into. Through rings this is when all have begun the run. False: the operator
 * must leave. */
GPU_DEVICE bool gemm_gates_await(const struct gpu_call &call, const struct gemm_maps &maps)
{
    uint32_t lane = threadIdx.x % 32;
    bool leave = call.rings.place_bytes && !landing_meet(call);

    if (lane < maps.ngates && !leave) {
        const uint64_t *word = (const uint64_t *)maps.gates[lane];
        uint32_t value = call.series.numbered ? (uint32_t)gpu_epoch(call) : maps.gate_values[lane];
        for (uint32_t spins = 1; (int32_t)((uint32_t)gpu_load_relaxed(word) - value) < 0 && !leave; spins++)
            if (spins % GPU_LOOK_SPINS == 0)
                leave = gpu_must_leave(call, 0);
        (void)gpu_load_acquire(word);
    }
    leave = __any_sync(0xffffffffu, leave);
    gpu_fence_proxies();
    return !leave;
}

/* A workgroup of the kernel. */
template <typename T, typename S> struct gemm_storing : gemm_loop<T, S> {
    typedef gemm_loop<T, S> loop;
    using loop::shared, loop::stages, loop::job_await, loop::job_done, loop::rows_store;
    const struct gpu_call &call;
    const struct gemm_maps &maps;

    /* ---- storer ---- */

    /* All lanes: begin to store the part of a slice that the tile has in this turn, 16 bytes and more at a time. A COMPUTE
     * slice goes to staging memory, where it is dense. The rows were finished at now_ns, and the tile took took_ns. */
    __device__ __forceinline__ void part_store(const struct gemm_job &job, const struct slice &s, uint32_t turn,
                                               uint64_t now_ns, uint64_t took_ns)
    {
        bool spread = maps.spread && s.kind != SLICE_COMPUTE && s.dst != gpu_plan_of(call, job.run)->rank;
        uint32_t first = s.row > job.row ? s.row - job.row : 0; /* row of the tile */
        uint32_t end = min(s.row + s.rows - job.row, (uint32_t)S::ROWS),
                 cols = min(s.col + s.cols - job.col, (uint32_t)S::COLS);
        int64_t n = call.fixed->shape.n, pitch = s.kind == SLICE_COMPUTE ? n : call.out[s.dst].stride[0];
        T *to = s.kind == SLICE_COMPUTE
                    ? (T *)call.fixed->staging[gpu_plan_of(call, job.run)->rank] + job.row * n + job.col
                    : landing_to<T>(call, s, pitch) + ((int64_t)job.row - s.row) * pitch + (job.col - s.col);

        rows_store(to, pitch, first, end, cols, turn, spread ? took_ns : 0, now_ns);
    }

    /* One thread: signal a slice. Each slice of a tile has another thread, so that all fences and counts take as long as
     * one. */
    __device__ __forceinline__ void part_signal(const struct gemm_job &job, uint32_t index, const struct slice &s)
    {
        struct slice_time *times = (struct slice_time *)gpu_plan_of(call, job.run)->times;

        gpu_slice_signal(call, job.run, s);
        times[index] = {0, job.start, gpu_clock(), blockIdx.x, (uint32_t)call.epoch};
    }

    /* Store the tile's part of all its slices. The first slice for another rank waits until that rank may be stored to; through rings the first
     * one of all, because it is not known before where this rank's own rows lie. After a failure nothing is stored at other ranks. */
    __device__ __forceinline__ void tile_store(const struct gemm_job &job, const struct slice *slices, uint32_t turn,
                                               uint64_t took_ns, enum gemm_gate *gate)
    {
        uint64_t now_ns = gpu_clock();

        for (uint32_t i = 0; i < job.together; i++) {
            bool is_own = slices[i].kind == SLICE_COMPUTE || slices[i].dst == gpu_plan_of(call, job.run)->rank;
            bool waits = !is_own || call.rings.place_bytes;
            if (waits && *gate == GEMM_GATE_UNKNOWN) {
                *gate = gemm_gates_await(call, maps) ? GEMM_GATE_OPEN : GEMM_GATE_SHUT;
                now_ns = gpu_clock();
            }
            if (call.rings.place_bytes && *gate == GEMM_GATE_OPEN && !landing_is_free(call, slices[i])) {
                *gate = landing_place_await(call, slices[i]) ? GEMM_GATE_OPEN : GEMM_GATE_SHUT;
            }
            if (slices[i].slot >= LANDING_PLACES && call.rings.place_bytes)
                gpu_fence_proxies(); /* the receiver has read the place by loads; the copy engine stores there */
            if (!waits || *gate == GEMM_GATE_OPEN)
                part_store(job, slices[i], turn, now_ns, took_ns);
        }
    }

    __device__ __forceinline__ void store()
    {
        uint32_t lane = threadIdx.x % 32;
        enum gemm_gate gate = GEMM_GATE_UNKNOWN;
        gemm_ring<GEMM_JOBS> jobs;
        gemm_ring<1> out;
        uint64_t before_ns = 0, least_ns = UINT64_MAX;
        uint32_t run = UINT32_MAX;

        if (blockIdx.x == 0)
            gpu_say_come(call);
        for (;; jobs.next()) {
            job_await(jobs);
            const struct gemm_job job = shared.jobs[jobs.at];
            if (job.steps == 0) {
                if (lane == 0)
                    shared.stored = 1;
                return;
            }
            const struct slice *slices = (const struct slice *)gpu_plan_of(call, job.run)->slices + job.index;
            for (uint32_t turn = 0; turn < S::TURNS; turn++, out.next()) {
                gpu_barrier_await(&shared.out_full, out.parity);
                if (turn == 0) {
                    uint64_t now_ns = gpu_clock(), took_ns = now_ns - (before_ns ? before_ns : job.start);
                    before_ns = now_ns;
                    least_ns = job.run == run ? min(least_ns, took_ns) : took_ns;
                    run = job.run;
                }
                tile_store(job, slices, turn, least_ns, &gate);
                gpu_bulk_end_group();
                gpu_bulk_await_read();
                __syncwarp();
                if (lane == 0)
                    gpu_barrier_arrive(&shared.out_empty);
            }
            gpu_bulk_await();
            __syncwarp();
            for (uint32_t i = lane; i < job.together && job.last; i += 32)
                part_signal(job, job.index + i, slices[i]);
            __syncwarp();
            if (lane == 0)
                job_done(jobs);
        }
    }
};

#endif
#endif
