/* SPDX-License-Identifier: MIT
 *
 * gemv_hopper_load.h - the shared memory of gemv_hopper.h (barriers, sums, x and stages), and the loader, which fills it.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMV_HOPPER_LOAD_H
#define FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMV_HOPPER_LOAD_H

#include "kernels/gpu/device/exchange/take_hopper.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* A workgroup of the kernel. T: dtype; S: gemv_shape. */
template <typename T, typename S> struct gemv_loading {
    const struct gpu_call &call;
    const struct gemv_maps &maps;
    struct gemv_shared &shared;
    unsigned char *dynamic; /* aligned */
    uint32_t rank;          /* in the cluster */

    __device__ __forceinline__ float *exchange(uint32_t at) const
    {
        return (float *)dynamic + at * S::EXCHANGE;
    }

    __device__ __forceinline__ unsigned char *x_kept() const
    {
        return dynamic + maps.exchanges * S::EXCHANGE_BYTES;
    }

    __device__ __forceinline__ uint32_t stage_bytes() const
    {
        return S::W_BYTES + (maps.x_bytes ? 0 : S::X_BLOCK);
    }

    __device__ __forceinline__ unsigned char *stage(uint32_t at) const
    {
        return x_kept() + maps.x_bytes + at * stage_bytes();
    }

    /* The sums of this rank that are kept for the reducers, [job][row][8 columns], followed by the list of jobs. */
    __device__ __forceinline__ float *sums_kept() const
    {
        return (float *)stage(maps.stages);
    }

    __device__ __forceinline__ uint32_t *list() const
    {
        return (uint32_t *)((unsigned char *)sums_kept() + maps.kept * S::KEPT_BYTES);
    }

    __device__ __forceinline__ void steps_get(uint32_t run, uint32_t *first, uint32_t *end) const
    {
        gemv_steps_get(call, run, rank, first, end);
    }

    /* One thread: the next sums at this place, of all parts. */
    __device__ __forceinline__ void sums_expect(uint32_t at)
    {
        gpu_barrier_arrive_expecting(&shared.sums_full[at], S::SENT_BYTES);
    }

    /* One thread, the loader's. */
    __device__ __forceinline__ void make()
    {
        for (uint32_t i = 0; i < maps.stages; i++) {
            gpu_barrier_make(&shared.stage_full[i], 1);
            gpu_barrier_make(&shared.stage_empty[i], GEMV_WARPS);
        }
        for (int i = 0; i < GEMV_JOBS; i++) {
            gpu_barrier_make(&shared.job_full[i], 1);
            gpu_barrier_make(&shared.job_empty[i], (2 * GEMV_WARPS + 1) * GEMV_PARTS);
        }
        gpu_barrier_make(&shared.x_full, 1);
        gpu_barrier_make(&shared.x_empty, GEMV_WARPS);
        gpu_barrier_make(&shared.computed, GEMV_WARPS);
        for (int i = 0; i < 2; i++) {
            gpu_barrier_make(&shared.sums_full[i], 1);
            for (int w = 0; w < GEMV_WARPS; w++)
                gpu_barrier_make(&shared.sums_empty[w][i], 2 * GEMV_WARPS);
        }
        for (int i = 0; i < GEMV_WARPS; i++)
            shared.listed[i] = 0;
        gpu_barriers_made();
        for (uint32_t i = 0; i < maps.exchanges; i++)
            sums_expect(i);
    }

    /* The next job, once it is there. */
    __device__ __forceinline__ struct gemv_job job_get(const gemv_ring &ring)
    {
        gpu_barrier_await_cluster(&shared.job_full[ring.at], ring.parity);
        return shared.jobs[ring.at];
    }

    /* One thread of a part: the part has finished the job. */
    __device__ __forceinline__ void job_done(const gemv_ring &ring)
    {
        gpu_barrier_done_at(&shared.job_empty[ring.at], 0);
    }

    /* ---- loader ---- */

    __device__ __forceinline__ static uint32_t thread_get()
    {
        return threadIdx.x % (GEMV_WARPS * 32);
    }

    /* All threads of the four warps, if any matrix does not suit the copy engine; one of them otherwise. */
    __device__ __forceinline__ void everyone_loading() const
    {
        if (!maps.all_by_engine)
            gpu_barrier_some<1, GEMV_WARPS * 32>();
    }

    /* Arrive at `full` after all loading threads' copies, and expect the bytes that the copy engine brings. */
    __device__ __forceinline__ void copied(uint64_t *full, uint32_t bytes, bool some_by_hand)
    {
        if (some_by_hand)
            gpu_fence_for_async();
        everyone_loading();
        if (thread_get() == 0)
            gpu_barrier_arrive_expecting(full, bytes);
    }

    __device__ __forceinline__ void x_block_load(unsigned char *to, uint32_t run, uint32_t step, uint64_t *full)
    {
        if (thread_get() == 0)
            gpu_box_load(to, &maps.runs[run].x, (int32_t)(step * GEMV_STEP), 0, full);
    }

    __device__ __forceinline__ void x_block_copy(unsigned char *to, uint32_t run, uint32_t step)
    {
        const struct gpu_input &in = call.in[run];

        gemv_block_copy(to, (const T *)in.gemv.x, in.gemv.x_stride, 0, in.gemv.m, (int64_t)step * GEMV_STEP, in.gemv.k,
                        S::ROWS);
    }

    /* All of the run's x that this workgroup needs, steps [first, end), where the engine does not bring all of everything. */
    __device__ __forceinline__ void x_load(uint32_t run, uint32_t first, uint32_t end)
    {
        uint32_t by_engine = maps.x_by_engine[run];

        for (uint32_t i = first; i < end && !by_engine; i++)
            x_block_copy(x_kept() + (i - first) * S::X_BLOCK, run, i);
        copied(&shared.x_full, by_engine ? (end - first) * S::X_BLOCK : 0, !by_engine);
        for (uint32_t i = first; i < end && by_engine; i++)
            x_block_load(x_kept() + (i - first) * S::X_BLOCK, run, i, &shared.x_full);
    }

    __device__ __forceinline__ void stage_load(uint32_t at, const struct gemv_job &job, uint32_t step, uint64_t once)
    {
        const struct gpu_input &in = call.in[job.run];
        uint64_t *full = &shared.stage_full[at];
        unsigned char *to = stage(at);
        uint32_t x_by_engine = maps.x_by_engine[job.run], w_by_engine = maps.w_by_engine[job.run], bytes = 0;
        bool with_x = maps.x_bytes == 0;

        if (w_by_engine)
            bytes += S::W_BYTES;
        else
            gemv_block_copy(to, (const T *)in.gemv.w, in.gemv.w_stride, job.col, (int64_t)job.col + job.cols,
                            (int64_t)step * GEMV_STEP, in.gemv.k, GEMV_COLS);
        if (with_x && x_by_engine)
            bytes += S::X_BLOCK;
        else if (with_x)
            x_block_copy(to + S::W_BYTES, job.run, step);
        copied(full, bytes, !w_by_engine || (with_x && !x_by_engine));
        if (w_by_engine && thread_get() == 0)
            gpu_box_load_as(once, to, &maps.runs[job.run].w, (int32_t)(step * GEMV_STEP), (int32_t)job.col, full);
        if (with_x && x_by_engine)
            x_block_load(to + S::W_BYTES, job.run, step, full);
    }

    /* One thread: load this workgroup's part of a tile, where the copy engine brings all of it and x is kept. This is the path
     * whose speed matters. 8 KiB of w come within some 450 cycles, a quarter of a microsecond, so as little as possible happens
     * between the room for a stage and its load. with_x: this is the run's first tile here. x is loaded stage by stage along
     * with w, because all of x takes 2 us if there are many rows. */
    __device__ __forceinline__ void tile_load(const struct gemv_job &job, uint32_t first, uint32_t end, uint64_t once,
                                              bool with_x, gemv_ring *ring)
    {
        const void *map = &maps.runs[job.run].w;
        int32_t col = (int32_t)job.col, k = (int32_t)(first * GEMV_STEP), k_end = (int32_t)(end * GEMV_STEP);
        const uint32_t stages = maps.stages;
        unsigned char *to = stage(ring->at), *x = x_kept();

#pragma unroll 1
        for (; k < k_end; k += GEMV_STEP) {
            uint64_t *full = &shared.stage_full[ring->at];
            gpu_barrier_await(&shared.stage_empty[ring->at], ring->parity ^ 1);
            gpu_barrier_arrive_expecting(full, with_x ? S::W_BYTES + S::X_BLOCK : S::W_BYTES);
            gpu_box_load_as(once, to, map, k, col, full);
            if (with_x) {
                gpu_box_load(x, &maps.runs[job.run].x, k, 0, full);
                x += S::X_BLOCK;
            }
            ring->next(stages);
            to = ring->at ? to + S::W_BYTES : to + S::W_BYTES - stages * S::W_BYTES;
        }
    }

    __device__ __forceinline__ void load()
    {
        const uint64_t once = gpu_policy_once();
        gemv_ring jobs, ring, x;
        struct gemv_job job = job_get(jobs); /* the one that was dealt is there before gpu_follow() */
        uint32_t run = job.run, first, end;

        steps_get(run, &first, &end);
        gpu_follow();
        if (maps.x_bytes && !maps.all_by_engine)
            x_load(run, first, end);
        for (bool is_new = true;; jobs.next(GEMV_JOBS), job = job_get(jobs)) {
            everyone_loading();
            if (!job.more) {
                if (thread_get() == 0)
                    shared.leave = job.leave;
                break;
            }
            if (thread_get() == 0)
                job_done(jobs);
            if (job.run != run) {
                run = job.run;
                steps_get(run, &first, &end);
                is_new = true;
                if (maps.x_bytes) {
                    gpu_barrier_await(&shared.x_empty, x.parity);
                    x.next(1);
                    if (!maps.all_by_engine)
                        x_load(run, first, end);
                }
            }
            if (maps.all_by_engine && maps.x_bytes) {
                tile_load(job, first, end, once, is_new, &ring);
                is_new = false;
                continue;
            }
            for (uint32_t step = first; step < end; step++, ring.next(maps.stages)) {
                gpu_barrier_await(&shared.stage_empty[ring.at], ring.parity ^ 1);
                stage_load(ring.at, job, step, once);
            }
        }
        if (maps.x_bytes && !maps.all_by_engine) /* perhaps nobody has waited for it */
            gpu_barrier_await(&shared.x_full, x.parity);
    }
};

#endif

#endif
