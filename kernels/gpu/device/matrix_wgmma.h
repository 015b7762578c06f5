/* SPDX-License-Identifier: MIT
 *
 * matrix_wgmma.h - the engine for Hopper's warpgroup matrix instructions (sm_90a; f16 and bf16). Part of matrix.h.
 *
 * A tile of 128 x 256 by two warpgroups of 128 threads. Each has the sums of 64 rows x 256 columns, 128 in each thread, and
 * runs four wgmma m64n256k16 for each stage of 64 k.
 *
 * Shared memory: 4 stages, each A [128 rows][64 k] and then B [64 k][256 columns], in the layouts that the matrix instructions
 * read with 128-byte swizzle (PTX ISA, "Asynchronous warpgroup level matrix shared memory layout"). They are made of units of
 * 16 bytes, 8 elements; in each block of 1024 bytes (8 lines of 128 bytes) unit u of line l stands at place u ^ l.
 *     A, K-major: line r is row r; its 8 units are the 64 k. From 8 rows to the next 8 rows: 1024 bytes (the stride offset).
 *     The next 16 k lie 32 bytes further on, before the swizzle.
 *     B, N-major: four parts of 64 columns, 8192 bytes each (the leading offset). In a part, line k has the columns of k, in
 *     8 units. From 8 k to the next 8 k: 1024 bytes (the stride offset). The next 16 k lie 2048 bytes further on.
 *
 * What happens to the stage of step n, which is stage n % 4:
 *   1. At the beginning of step n - 2 all threads copy into it: cp.async, 16 bytes at a time, what does not exist as zeros; or,
 *      where addresses are not aligned, plain loads and stores. In every thread each step ends one group of copies, even if it
 *      is empty, so groups can be counted.
 *   2. Step n begins: each thread waits for its own copies of step n (all groups but the newest, which is step n + 1's), makes
 *      what it wrote visible to the matrix units (fence.proxy.async), and goes through the barrier. Now everyone's is there.
 *   3. The matrix instructions of step n are started. They run on while the next step begins.
 *   4. At the end of step n + 1 each warpgroup waits until its own are done (all groups of matrix instructions but the newest).
 *      After the barrier of step n + 2 that holds for both; there the stage is copied into again, for step n + 4.
 * So copies have two steps of time, and the matrix units always have a step's work waiting.
 *
 * After the last step and a barrier the same memory takes the finished rows: each warp writes 16 rows of 256 and stores them,
 * 512 bytes side by side; it reads only what it wrote itself, so __syncwarp() is enough.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_MATRIX_WGMMA_H
#define FCC_KERNELS_GPU_DEVICE_MATRIX_WGMMA_H

#include "kernels/gpu/device/hopper.h"
#include "kernels/gpu/device/matrix.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Copies 16 bytes from global to shared memory, asynchronously. */
GPU_DEVICE void gpu_copy_async(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}

/* Copies 16 bytes of which only the first `valid` are read; the others become zeros. */
GPU_DEVICE void gpu_copy_async(void *to, const void *from, uint32_t valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(valid)
                 : "memory");
}

GPU_DEVICE void gpu_copy_async_end_group()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int newest> GPU_DEVICE void gpu_copy_async_await_all_but()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(newest) : "memory");
}

#endif

template <typename T> struct gpu_wgmma {
    static constexpr int ROWS = 128, COLS = 256, STEP = 64, STAGES = 4;
    static constexpr int AHEAD = STAGES - 2; /* steps that are copied ahead */
    static constexpr uint32_t A_BYTES = ROWS * STEP * 2, STAGE_BYTES = A_BYTES + STEP * COLS * 2;
    static constexpr uint32_t B_PART = STEP * 128; /* bytes of 64 columns of a stage of B */
    static constexpr uint32_t ALIGN = 1024;
    static constexpr int OUT_PITCH = COLS + 8; /* elements; rows are 16-byte aligned, and 8 rows are in different banks */
    static constexpr size_t SHARED_BYTES = STAGES * STAGE_BYTES + ALIGN;
    static constexpr int RESIDENT = 1;
    static_assert(ROWS * OUT_PITCH * 2 <= STAGES * STAGE_BYTES, "the finished rows use the same memory");

    /* The offset in A's part of a stage of the 8 elements [row][unit * 8]; and in B's part of [k][unit * 8]. */
    static __host__ __device__ __forceinline__ uint32_t a_place(uint32_t row, uint32_t unit)
    {
        return row * 128 + (unit ^ row % 8) * 16;
    }

    static __host__ __device__ __forceinline__ uint32_t b_place(uint32_t k, uint32_t unit)
    {
        return unit / 8 * B_PART + k * 128 + (unit % 8 ^ k % 8) * 16;
    }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

    /* A thread's share of a stage: A, unit thread % 8 of rows thread / 8 + 32 i; B, unit thread % 32 of k thread / 32 + 8 i. A
     * warp reads whole lines of 128 bytes of A, and of 512 of B. */
    struct share {
        const T *a, *b;         /* addresses in the step that is copied next */
        int64_t a_next, b_next; /* elements between two units of this thread */
        uint32_t a_to, b_to;
        bool whole; /* the tile has its full size */
        /* a_rows: rows of A from this thread's first on. b_bytes: existing bytes of this thread's unit of B */
        int a_rows, b_bytes;
    };

    template <typename C> static __device__ __forceinline__ struct share share_make(const struct gpu_tile<T, C> &p)
    {
        uint32_t a_row = threadIdx.x / 8, a_unit = threadIdx.x % 8, b_k = threadIdx.x / 32, b_unit = threadIdx.x % 32;
        struct share out;

        out.a = p.a + a_row * p.a_stride + a_unit * 8;
        out.b = p.b + b_k * p.b_stride + b_unit * 8;
        out.a_next = 32 * p.a_stride;
        out.b_next = 8 * p.b_stride;
        out.a_to = a_place(a_row, a_unit);
        out.b_to = A_BYTES + b_place(b_k, b_unit);
        out.whole = p.rows == ROWS && p.cols == COLS;
        out.a_rows = (int)p.rows - (int)a_row;
        out.b_bytes = bytes_of((int)p.cols - (int)b_unit * 8);
        return out;
    }

    /* The bytes of the first `elements` of a unit of 16 bytes. */
    static __device__ __forceinline__ int bytes_of(int elements)
    {
        return min(max(elements, 0), 8) * 2;
    }

    /* Copies one unit, of which `bytes` exist. */
    template <bool aligned> static __device__ __forceinline__ void unit_copy(unsigned char *to, const T *from, int bytes)
    {
        if (aligned) {
            gpu_copy_async(to, from, (uint32_t)bytes);
        } else {
            uint16_t elements[8];
            gpu_elements_load<T, 8>(elements, from, bytes / 2, false);
            uint4 unit;
            memcpy(&unit, elements, sizeof(unit));
            *(uint4 *)to = unit;
        }
    }

    /* Begins to copy the next step, of which `left` k exist (0 or less: nothing is copied), and ends its group of copies. */
    template <bool aligned>
    static __device__ __forceinline__ void step_copy(struct share &s, int64_t left, unsigned char *stage)
    {
        unsigned char *a_to = stage + s.a_to, *b_to = stage + s.b_to;

        if (aligned && s.whole && left >= STEP) {
#pragma unroll
            for (int i = 0; i < ROWS / 32; i++)
                gpu_copy_async(a_to + i * 32 * 128, s.a + i * s.a_next);
#pragma unroll
            for (int i = 0; i < STEP / 8; i++)
                gpu_copy_async(b_to + i * 8 * 128, s.b + i * s.b_next);
        } else if (left > 0) {
            int k = left < STEP ? (int)left : STEP;
            int a_bytes = bytes_of(k - (int)(threadIdx.x % 8) * 8), b_rows = k - (int)(threadIdx.x / 32);
#pragma unroll(aligned ? 4 : 1)
            for (int i = 0; i < ROWS / 32; i++)
                unit_copy<aligned>(a_to + i * 32 * 128, s.a + i * s.a_next, i * 32 < s.a_rows ? a_bytes : 0);
#pragma unroll(aligned ? 8 : 1)
            for (int i = 0; i < STEP / 8; i++)
                unit_copy<aligned>(b_to + i * 8 * 128, s.b + i * s.b_next, i * 8 < b_rows ? s.b_bytes : 0);
        }
        s.a += STEP;
        s.b += STEP / 8 * s.b_next;
        gpu_copy_async_end_group();
    }

    /* Starts this warpgroup's matrix instructions on a stage. The next 16 k are at a fixed distance, which is added to the
     * address in units of 16 bytes. */
    static __device__ __forceinline__ void step_compute(float (&sums)[128], uint32_t stage)
    {
        uint64_t a = gpu_wgmma_matrix(stage + threadIdx.x / 128 * 64 * 128, 16, 1024);
        uint64_t b = gpu_wgmma_matrix(stage + A_BYTES, B_PART, 1024);

        gpu_wgmma_begin();
#pragma unroll
        for (int k = 0; k < STEP / 16; k++)
            gpu_wgmma_add(sums, a + k * (32 / 16), b + k * (2048 / 16), true, T());
        gpu_wgmma_end_group();
    }

    template <bool aligned, typename C>
    static __device__ __forceinline__ void sums_compute(float (&sums)[128], const struct gpu_tile<T, C> &p,
                                                        unsigned char *shared)
    {
        uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
        struct share s = share_make(p);
        int64_t left = p.k; /* k that have not been copied */
        uint32_t stage = 0; /* the stage of this step */

        for (int i = 0; i < AHEAD; i++, left -= STEP)
            step_copy<aligned>(s, left, shared + i * STAGE_BYTES);
#pragma unroll 1
        for (; left > -AHEAD * STEP; left -= STEP) {
            gpu_copy_async_await_all_but<AHEAD - 1>();
            gpu_fence_for_async();
            __syncthreads();
            step_copy<aligned>(s, left, shared + (stage + AHEAD) % STAGES * STAGE_BYTES);
            step_compute(sums, base + stage * STAGE_BYTES);
            gpu_wgmma_await_all_but<1>();
            stage = (stage + 1) % STAGES;
        }
        gpu_wgmma_await_all_but<0>();
    }

    /* Stores the tile. Of its warp's 16 rows a thread has row lane / 4 and the 8th row after it, and of these columns 8j +
     * lane % 4 * 2 and the next: sums 4j and 4j + 1 of the first row, 4j + 2 and 4j + 3 of the other. */
    static __device__ __forceinline__ void store(const float (&sums)[128], const struct gpu_tile<T> &p, unsigned char *shared)
    {
        /* row: the first of this warp's 16 rows. left: existing rows from there on */
        int row = threadIdx.x / 32 * 16, left = (int)p.rows - row;
        T *rows = (T *)shared + row * OUT_PITCH;
        T *at = rows + threadIdx.x % 32 / 4 * OUT_PITCH + threadIdx.x % 4 * 2;

#pragma unroll
        for (int i = 0; i < 128; i += 4) {
            *(uint32_t *)(at + i * 2) = gpu_wgmma_pair(sums[i], sums[i + 1], T());
            *(uint32_t *)(at + i * 2 + 8 * OUT_PITCH) = gpu_wgmma_pair(sums[i + 2], sums[i + 3], T());
        }
        __syncwarp();
        gpu_rows_copy<T>(p.c + row * p.c_stride, p.c_stride, rows, OUT_PITCH, left < 16 ? left : 16, (int)p.cols,
                         threadIdx.x % 32, 32);
    }

    /* Replaces each of this thread's sums inside the tile by visit(row, column, sum). */
    template <typename C, typename Visit>
    static __device__ __forceinline__ void each(float (&sums)[128], const struct gpu_tile<T, C> &p, Visit visit)
    {
#pragma unroll
        for (int i = 0; i < 128; i++) {
            int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8,
                col = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
            if (row < (int)p.rows && col < (int)p.cols)
                sums[i] = visit(row, col, sums[i]);
        }
    }

    template <typename C, typename Finish>
    static __device__ __forceinline__ void multiply(const struct gpu_tile<T, C> &p, unsigned char *shared, const Finish &finish)
    {
        float sums[128] = {};

        shared += -(uint32_t)__cvta_generic_to_shared(shared) % ALIGN;
        gpu_wgmma_pin(sums);
        if (p.alignment == 16)
            sums_compute<true>(sums, p, shared);
        else
            sums_compute<false>(sums, p, shared);
        gpu_wgmma_pin(sums);
        __syncthreads(); /* the other warpgroup has read all stages */
        if constexpr (Finish::CHANGES)
            each(sums, p, finish);
        if constexpr (sizeof(C) == sizeof(T))
            store(sums, p, shared);
        else
            each(sums, p, gpu_sum_store{p.c, p.c_stride});
        __syncthreads();
    }
#endif
};

#endif
