/* SPDX-License-Identifier: MIT
 *
 * gemm_loop.h - the main loop of products on Hopper (sm_90a; f16 and bf16), for kernels that stay on their multiprocessors and go from tile to tile:
 * gemm_hopper.h, which has the whole picture, and tiles_hopper.h. What they have in common is here: the barriers and rings between a workgroup's parts,
 * jobs, the loading of stages, the groups that multiply, and the storing of a finished tile's rows. What tiles there are, in which order, and where they go, is
 * the kernels' own.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_TILES_GEMM_LOOP_H
#define FCC_KERNELS_GPU_DEVICE_TILES_GEMM_LOOP_H

#include "kernels/gpu/device/compute/gemm_hopper_shape.h"
#include "kernels/gpu/device/execute.h"
#include "kernels/gpu/device/hopper.h"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define GEMM_CLUSTER(n) /* this code is empty, and is never launched */
#else
#define GEMM_CLUSTER(n) __cluster_dims__(n, 1, 1)
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* An index in a ring of N places, and the parity of the phase that fills the place. The phase that empties it has the other
 * parity. */
template <int N> struct gemm_ring {
    uint32_t at = 0, parity = 0;

    __device__ __forceinline__ void next()
    {
        at = at + 1 == N ? 0 : at + 1;
        parity ^= at == 0;
    }
};

template <typename S> struct gemm_shared {
    uint64_t stage_full[S::STAGES], stage_empty[S::STAGES], job_full[GEMM_JOBS], job_empty[GEMM_JOBS];
    uint64_t out_full, out_empty, half_full, half_empty;
    uint32_t leave;
    uint32_t stored; /* 1: the storer has done */
    struct gpu_group taken;
    union {
        struct gemm_job jobs[GEMM_JOBS];
        uint64_t job_words[GEMM_JOBS][sizeof(struct gemm_job) / sizeof(uint64_t)];
    };
};

/* What is done with the sums of a tile before they are rounded: nothing. A change that CHANGES has
 *     job(const struct gemm_job &)                         a warp knows its next job
 *     add(loop &, float sums[], gemm_ring<STAGES> *ring)   all 256 threads of the groups: the sums are there; takes further stages of the ring, as many
 *                                                          as the loader gives it
 *     end()                                                a warp has no more jobs */
struct gemm_as_it_is {
    static constexpr bool CHANGES = false;
};

template <typename T, typename S> struct gemm_loop {
    struct gemm_shared<S> &shared;
    unsigned char *stages; /* then the finished tile */
    uint32_t rank;         /* in the cluster */

    /* Wait for the next job, which may come from the cluster's other workgroup. */
    __device__ __forceinline__ void job_await(const gemm_ring<GEMM_JOBS> &ring)
    {
        if constexpr (S::PAIR)
            gpu_barrier_await_cluster(&shared.job_full[ring.at], ring.parity);
        else
            gpu_barrier_await(&shared.job_full[ring.at], ring.parity);
    }

    /* One thread of a part: it has done with the job. */
    __device__ __forceinline__ void job_done(const gemm_ring<GEMM_JOBS> &ring)
    {
        if constexpr (S::PAIR)
            gpu_barrier_done_at(&shared.job_empty[ring.at], 0);
        else
            gpu_barrier_arrive(&shared.job_empty[ring.at]);
    }

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

    /* ---- jobs ---- */

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

    /* ---- loader ---- */

    /* k from `k` on, of A's rows from `row` and B's columns from `col` on. */
    __device__ __forceinline__ void stage_load(uint32_t at, const CUtensorMap *a, const CUtensorMap *b, uint32_t a_bytes,
                                               int32_t k, int32_t row, int32_t col, bool in_common)
    {
        unsigned char *stage = stages + at * S::STAGE_BYTES;
        uint64_t *full = &shared.stage_full[at];

        gpu_barrier_arrive_expecting(full, S::STAGE_BYTES - S::A_BYTES + a_bytes);
        gpu_box_load(stage, a, k, row, full);
#pragma unroll
        for (int i = 0; i < S::COLS / 64; i++) {
            unsigned char *part = stage + S::A_BYTES + i * S::B_PART;
            if (!S::PAIR || !in_common)
                gpu_box_load(part, b, col + i * 64, k, full);
            else if ((uint32_t)i * 128 / S::COLS == rank)
                gpu_box_load_both(part, b, col + i * 64, k, full);
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
     * + 1 of the one row, 4j + 2 and 4j + 3 of the other. What leaves in the second turn stays in registers. `at`: where the first row's columns lane % 4 * 2 go. */
    static __device__ __forceinline__ uint32_t *pair_place(T *at, uint32_t j)
    {
        if constexpr (S::BOXES)
            return (uint32_t *)((unsigned char *)at + S::chunk_place(j, threadIdx.x % 32 / 4));
        else
            return (uint32_t *)(at + j * 8);
    }

    __device__ __forceinline__ void finish(const float (&sums)[S::SUMS], T *at, uint32_t (&held)[S::HELD])
    {
#pragma unroll
        for (int i = 0; i < S::SUMS; i += 4) {
            uint32_t second = gpu_wgmma_pair(sums[i + 2], sums[i + 3], T());
            *pair_place(at, i / 4) = gpu_wgmma_pair(sums[i], sums[i + 1], T());
            if constexpr (S::TURNS == 1)
                *pair_place(at + (S::BOXES ? S::HALF_BOX / sizeof(T) : 8 * S::OUT_PITCH), i / 4) = second;
            else
                held[i / 4] = second;
        }
        gpu_fence_for_async();
    }

    __device__ __forceinline__ void held_put(T *at, const uint32_t (&held)[S::HELD])
    {
#pragma unroll
        for (int i = 0; i < S::HELD; i++)
            *pair_place(at, i) = held[i];
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

    template <typename Change> __device__ __forceinline__ void group(Change change)
    {
        uint32_t thread = threadIdx.x - 128, number = thread / 128, lane = thread % 32;
        uint32_t row = S::ROWS == 128 ? number * 64 : 0, col = S::ROWS == 128 || S::SPLIT ? 0 : number * S::GROUP_COLS;
        uint32_t k = S::SPLIT ? number * (GEMM_STEP / 32) : 0; /* in units of 16 */
        uint32_t base = gpu_shared_address(stages);
        uint64_t a = gpu_wgmma_matrix(base + row * 128 + k * 32, 16, 1024);
        uint64_t b = gpu_wgmma_matrix(base + S::A_BYTES + col / 64 * S::B_PART + k * 2048, S::B_PART, 1024);
        const uint32_t first = row + thread % 128 / 32 * 16 + lane / 4; /* of this thread's two rows */
        T *at = (T *)(stages + S::STAGES * S::STAGE_BYTES) + lane % 4 * 2 +
                (S::BOXES ? S::row_place(first) / (uint32_t)sizeof(T)
                          : ((row + thread % 128 / 32 * 16) / S::TURNS + lane / 4) * S::OUT_PITCH + col);
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
            if constexpr (Change::CHANGES)
                change.job(shared.jobs[jobs.at]);
            __syncwarp();
            if (lane == 0)
                job_done(jobs);
            multiply(sums, steps, a, b, &ring, rest_leave);
            if constexpr (Change::CHANGES)
                change.add(*this, sums, &ring);
            if (S::SPLIT && !halves_add(sums, tile % 2))
                continue;
            rows_leave(&out, [&] { finish(sums, at, held); });
        }
        rest_leave();
        if constexpr (Change::CHANGES)
            change.end();
    }

    /* All threads: the groups multiply, the other 128 threads do others(). */
    template <typename Change, typename Others> __device__ __forceinline__ void parts_run(Change change, Others others)
    {
        if (threadIdx.x >= 128) {
            if constexpr (S::TURNS > 1)
                gpu_registers_more<GEMM_GROUP_REGISTERS>();
            group(change);
            if constexpr (S::TURNS > 1) {
                gpu_barrier_some<GEMM_BARRIER_GROUPS, 256>();
                gpu_registers_fewer<GEMM_REGISTERS>();
            }
        } else {
            if constexpr (S::TURNS > 1)
                gpu_registers_fewer<GEMM_OTHER_REGISTERS>();
            others();
            __syncwarp();
            if constexpr (S::TURNS > 1) {
                gpu_barrier_some<GEMM_BARRIER_OTHERS, 128>();
                gpu_registers_more<GEMM_REGISTERS>();
            }
        }
        __syncwarp();
        everyone();
    }

    /* ---- storer ---- */

    /* All lanes of a warp: begin to store rows `first` to `end` of the tile, as far as they leave in this turn, 16 bytes and more at a time. spread_ns: 0; or
     * how long the tile took: a few rows at a time then, from now_ns on, spread over most of that (gemm_hopper_store.h). */
    __device__ __forceinline__ void rows_store(T *to, int64_t pitch, uint32_t first, uint32_t end, uint32_t cols, uint32_t turn,
                                               uint64_t spread_ns, uint64_t now_ns)
    {
        const uint64_t each_ns = spread_ns * GEMM_SPREAD_PERCENT / 100 * GEMM_SPREAD_ROWS / S::ROWS;
        const uint32_t most = spread_ns ? GEMM_SPREAD_ROWS : 32;
        const T *out = (const T *)(stages + S::STAGES * S::STAGE_BYTES);

        for (uint32_t at = S::TURNS == 1 ? first : 0; at < (S::TURNS == 1 ? end : S::OUT_ROWS); at += most) {
            uint32_t lane = threadIdx.x % 32, row = S::row_leaving(at + lane, turn);
            if (lane < most && row >= first && row < end)
                gpu_bulk_store(to + row * pitch, out + (at + lane) * S::OUT_PITCH, cols * (uint32_t)sizeof(T));
            now_ns += each_ns;
            while (spread_ns && (int64_t)(gpu_clock() - now_ns) < 0)
                __nanosleep(GEMM_SPREAD_NAP_NS);
            __syncwarp();
        }
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
#endif
