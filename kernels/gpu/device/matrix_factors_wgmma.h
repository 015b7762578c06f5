/* SPDX-License-Identifier: MIT
 *
 * matrix_factors_wgmma.h - the engine of matrix_factors.h for Hopper's matrix instructions (sm_90a), where the result is f16 or bf16: codes of e4m3
 * become elements of that dtype, which has their values, on their way to shared memory, and are multiplied as such. (The instructions for e4m3
 * keep fewer bits of the sums.) Part of matrix_factors.h.
 *
 * A tile of 128 x 128 by two warpgroups, which have 64 rows each: 64 sums in each thread. Shared memory has 3 stages of 64 k, each A [128][64] K-major
 * and B, either [64][128] N-major in two parts of 64 columns, or [128][64] K-major as A, in the layouts of matrix_wgmma.h.
 *
 * Step n: all threads store what they have loaded of it into stage n % 3, and begin to load step n + 1; barrier; the matrix instructions of step n
 * start; each warpgroup awaits those of step n - 1. So the stage is free when step n + 3 is stored: behind the barrier of step n + 2 all have awaited
 * step n.
 *
 * Scales of whole rows and columns multiply the sums in the end. Where scales differ along K, the sums of each 128 k are added up by themselves, and
 * then to the totals, times their scales, which stand in shared memory by turns in two places.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_MATRIX_FACTORS_WGMMA_H
#define FCC_KERNELS_GPU_DEVICE_MATRIX_FACTORS_WGMMA_H

#include "kernels/gpu/device/matrix_factors.h"

/* B_ROWS: b is stored [columns][k]; otherwise [k][columns]. */
template <typename T, bool B_ROWS> struct gpu_factors_wgmma {
    static constexpr int ROWS = 128, COLS = 128, STEP = 64, STAGES = 3,
                         UNITS = 4 /* of 8 elements, of a thread's, of each factor */;
    static constexpr uint32_t A_BYTES = ROWS * STEP * 2, STAGE_BYTES = A_BYTES + STEP * COLS * 2, B_PART = STEP * 128,
                              ALIGN = 1024;
    static constexpr int OUT_PITCH = COLS + 8;
    static constexpr size_t SCALES_BYTES = 2 * (ROWS + COLS) * sizeof(float),
                            SHARED_BYTES = STAGES * STAGE_BYTES + SCALES_BYTES + ALIGN;
    static constexpr int RESIDENT = 1;
    static_assert(ROWS * OUT_PITCH * 2 <= STAGES * STAGE_BYTES, "the finished rows use the same memory");

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef gpu_wgmma<T> plain; /* its layouts */

    /* 8 elements as they are stored: 16 bytes, or 8. */
    struct unit {
        uint32_t words[4];
    };

    template <bool F8>
    static __device__ __forceinline__ void unit_load_as(struct unit &u, const void *matrix, int64_t at, int valid)
    {
        typedef typename gpu_stored<T, F8>::type stored;
        gpu_elements<T, F8, 8> e;
        const stored *from = (const stored *)matrix + at;

        e.load(from, valid, (uint64_t)from % (8 * sizeof(stored)) == 0);
#pragma unroll
        for (int i = 0; i < gpu_elements<T, F8, 8>::WORDS; i++)
            u.words[i] = e.words[i];
    }

    static __device__ __forceinline__ void unit_load(struct unit &u, const void *matrix, int64_t at, int valid, bool f8)
    {
        if (f8)
            unit_load_as<true>(u, matrix, at, valid);
        else
            unit_load_as<false>(u, matrix, at, valid);
    }

    /* As elements of T, to shared memory. */
    static __device__ __forceinline__ void unit_store(unsigned char *to, const struct unit &u, bool f8)
    {
        uint4 out = make_uint4(u.words[0], u.words[1], u.words[2], u.words[3]);

        if (f8) {
            float low[4], high[4];
            gpu_f8_to_f32(low, u.words[0]);
            gpu_f8_to_f32(high, u.words[1]);
            out = make_uint4(gpu_wgmma_pair(low[0], low[1], T()), gpu_wgmma_pair(low[2], low[3], T()),
                             gpu_wgmma_pair(high[0], high[1], T()), gpu_wgmma_pair(high[2], high[3], T()));
        }
        *(uint4 *)to = out;
    }

    /* A thread's share of a step: unit thread % 8 of rows thread / 8 + 32 i of what is K-major; of b [k][columns] unit thread % 16 of k thread / 16 + 16 i. */
    struct share {
        struct unit a[UNITS], b[UNITS];
    };

    template <typename C>
    static __device__ __forceinline__ void fetch(struct share &s, const struct gpu_factors_product<T, C> &p, int64_t k)
    {
        const int left = (int)(p.k - k < STEP ? p.k - k : STEP), row = threadIdx.x / 8, at = threadIdx.x % 8 * 8;

#pragma unroll
        for (int i = 0; i < UNITS; i++)
            unit_load(s.a[i], p.a, (row + 32 * i) * p.a_stride + k + at, row + 32 * i < (int)p.rows ? left - at : 0, p.a_f8);
#pragma unroll
        for (int i = 0; i < UNITS; i++) {
            const int b_k = threadIdx.x / 16 + 16 * i, col = threadIdx.x % 16 * 8;
            if (B_ROWS)
                unit_load(s.b[i], p.b, (row + 32 * i) * p.b_stride + k + at, row + 32 * i < (int)p.cols ? left - at : 0,
                          p.b_f8);
            else
                unit_load(s.b[i], p.b, (k + b_k) * p.b_stride + col, b_k < left ? (int)p.cols - col : 0, p.b_f8);
        }
    }

    template <typename C>
    static __device__ __forceinline__ void place(const struct share &s, const struct gpu_factors_product<T, C> &p,
                                                 unsigned char *stage)
    {
        const uint32_t row = threadIdx.x / 8, at = threadIdx.x % 8;

#pragma unroll
        for (int i = 0; i < UNITS; i++) {
            unit_store(stage + plain::a_place(row + 32 * i, at), s.a[i], p.a_f8);
            const uint32_t to =
                B_ROWS ? plain::a_place(row + 32 * i, at) : plain::b_place(threadIdx.x / 16 + 16 * i, threadIdx.x % 16);
            unit_store(stage + A_BYTES + to, s.b[i], p.b_f8);
        }
    }

    /* Starts this warpgroup's matrix instructions on a stage. fresh: the sums are 0 before. */
    static __device__ __forceinline__ void step_compute(float (&sums)[64], uint32_t stage, bool fresh)
    {
        const uint64_t a = gpu_wgmma_matrix(stage + threadIdx.x / 128 * 64 * 128, 16, 1024);
        const uint64_t b =
            B_ROWS ? gpu_wgmma_matrix(stage + A_BYTES, 16, 1024) : gpu_wgmma_matrix(stage + A_BYTES, B_PART, 1024);

        gpu_wgmma_begin();
#pragma unroll
        for (int k = 0; k < STEP / 16; k++)
            if constexpr (B_ROWS)
                gpu_wgmma_add_rows(sums, a + k * (32 / 16), b + k * (32 / 16), k > 0 || !fresh, T());
            else
                gpu_wgmma_add(sums, a + k * (32 / 16), b + k * (2048 / 16), k > 0 || !fresh, T());
        gpu_wgmma_end_group();
    }

    /* Of the tile's rows and columns, for the block of k that `k` is in: [ROWS], then [COLS]. */
    template <typename C>
    static __device__ __forceinline__ void scales_load(float *to, const struct gpu_factors_product<T, C> &p, int64_t k)
    {
        const int i = threadIdx.x % 128, col = (int)p.b_col + i;

        if (threadIdx.x < 128)
            to[i] = i < (int)p.rows ? gpu_scale(p.a_scales, p.a_row + i, (uint32_t)k) : 0.0f;
        else
            to[ROWS + i] = i >= (int)p.cols ? 0.0f
                           : B_ROWS         ? gpu_scale(p.b_scales, (uint32_t)col, (uint32_t)k)
                                            : gpu_scale(p.b_scales, (uint32_t)k, (uint32_t)col);
    }

    /* The sum i of this thread is of this row and column of the tile. */
    static __device__ __forceinline__ int row_of(int i)
    {
        return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8;
    }
    static __device__ __forceinline__ int col_of(int i)
    {
        return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
    }

    /* to = what it was, if `add`, and the sums times their scales. */
    static __device__ __forceinline__ void scale(float (&to)[64], const float (&sums)[64], const float *scales, bool add)
    {
        const float rows[2] = {scales[row_of(0)], scales[row_of(2)]};

#pragma unroll
        for (int i = 0; i < 64; i++) {
            const float by = rows[i / 2 % 2] * scales[ROWS + col_of(i)];
            to[i] = add ? fmaf(sums[i], by, to[i]) : sums[i] * by;
        }
    }

    template <bool BLOCKS, typename C>
    static __device__ __forceinline__ void sums_compute(float (&sums)[64], const struct gpu_factors_product<T, C> &p,
                                                        unsigned char *shared)
    {
        const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
        float *scales = (float *)(shared + STAGES * STAGE_BYTES);
        float total[BLOCKS ? 64 : 1] = {};
        struct share s;
        uint32_t stage = 0, step = 0;

        if (p.k > 0)
            fetch(s, p, 0);
#pragma unroll 1
        for (int64_t k = 0; k < p.k; k += STEP, step++) {
            place(s, p, shared + stage * STAGE_BYTES);
            if (BLOCKS ? step % 2 == 0 : step == 0)
                scales_load(scales + (step / 2 % 2) * (ROWS + COLS), p, k);
            if (k + STEP < p.k)
                fetch(s, p, k + STEP);
            gpu_fence_for_async();
            __syncthreads();
            step_compute(sums, base + stage * STAGE_BYTES, BLOCKS ? step % 2 == 0 : step == 0);
            stage = (stage + 1) % STAGES;
            if (BLOCKS && (step % 2 == 1 || k + STEP >= p.k)) {
                gpu_wgmma_await_all_but<0>();
                gpu_wgmma_pin(sums);
                if constexpr (BLOCKS)
                    scale(total, sums, scales + (step / 2 % 2) * (ROWS + COLS), true);
                gpu_wgmma_pin(sums);
            } else {
                gpu_wgmma_await_all_but<1>();
            }
        }
        gpu_wgmma_await_all_but<0>();
        gpu_wgmma_pin(sums);
        if constexpr (BLOCKS) {
#pragma unroll
            for (int i = 0; i < 64; i++)
                sums[i] = total[i];
        } else if (p.k > 0 && (p.a_scales.at || p.b_scales.at)) {
            scale(sums, sums, scales, false);
        }
    }

    template <typename C, typename Visit>
    static __device__ __forceinline__ void each(float (&sums)[64], const struct gpu_tile<T, C> &to, Visit visit)
    {
#pragma unroll
        for (int i = 0; i < 64; i++)
            if (row_of(i) < (int)to.rows && col_of(i) < (int)to.cols)
                sums[i] = visit(row_of(i), col_of(i), sums[i]);
    }

    /* Each warp writes its 16 rows to shared memory and stores them from there; it reads only what it wrote itself. */
    static __device__ __forceinline__ void store(const float (&sums)[64], const struct gpu_tile<T> &to, unsigned char *shared)
    {
        const int row = threadIdx.x / 32 * 16, left = (int)to.rows - row;
        T *rows = (T *)shared + row * OUT_PITCH, *at = rows + threadIdx.x % 32 / 4 * OUT_PITCH + threadIdx.x % 4 * 2;

#pragma unroll
        for (int i = 0; i < 64; i += 4) {
            *(uint32_t *)(at + i * 2) = gpu_wgmma_pair(sums[i], sums[i + 1], T());
            *(uint32_t *)(at + i * 2 + 8 * OUT_PITCH) = gpu_wgmma_pair(sums[i + 2], sums[i + 3], T());
        }
        __syncwarp();
        gpu_rows_copy<T>(to.c + row * to.c_stride, to.c_stride, rows, OUT_PITCH, left < 16 ? left : 16, (int)to.cols,
                         threadIdx.x % 32, 32);
    }

    template <typename C, typename Finish>
    static __device__ __forceinline__ void multiply(const struct gpu_factors_product<T, C> &p, const struct gpu_tile<T, C> &to,
                                                    unsigned char *shared, const Finish &finish)
    {
        float sums[64] = {};

        shared += -(uint32_t)__cvta_generic_to_shared(shared) % ALIGN;
        gpu_wgmma_pin(sums);
        if (gpu_scales_differ_along_k(p.a_scales, p.b_scales, B_ROWS))
            sums_compute<true>(sums, p, shared);
        else
            sums_compute<false>(sums, p, shared);
        __syncthreads(); /* the other warpgroup has read all stages */
        if constexpr (Finish::CHANGES)
            each(sums, to, finish);
        if constexpr (sizeof(C) == sizeof(T))
            store(sums, to, shared);
        else
            each(sums, to, gpu_sum_store{to.c, to.c_stride});
        __syncthreads();
    }
#endif
};

#endif
