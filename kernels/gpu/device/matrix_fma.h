/* SPDX-License-Identifier: MIT
 *
 * matrix_fma.h - the engine that needs nothing but f32 multiply-adds. Part of matrix.h.
 *
 * A tile of 128 x 128; each of 256 threads has 8 x 8 sums: rows y*4.. and 64+y*4.., columns x*4.. and 64+x*4.., with x = thread
 * % 16, y = thread / 16. So a thread reads four elements at a time from shared memory, and the threads beside it read beside
 * it.
 *
 * Shared memory holds two steps of 8 k, as f32: A as [k][row], B as [k][column]. While one step is computed with, the next is
 * on its way from global memory to registers; it is then stored into the other half. One barrier for each step is enough: a
 * half is written after the barrier that ended the step in which it was read.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_MATRIX_FMA_H
#define FCC_KERNELS_GPU_DEVICE_MATRIX_FMA_H

#include "kernels/gpu/device/matrix.h"

template <typename T> struct gpu_fma {
    static constexpr int ROWS = 128, COLS = 128, STEP = 8;
    static constexpr int PITCH = 128 + 4;                  /* keeps 16-byte alignment; spreads the stores of A over the banks */
    static constexpr int HALF = STEP * PITCH;              /* floats: one step of A or of B */
    static constexpr int OUT_PITCH = 128 + 16 / sizeof(T); /* distance between finished rows in shared memory */
    static constexpr size_t STEPS_BYTES = 4 * HALF * sizeof(float), OUT_BYTES = 64 * OUT_PITCH * sizeof(T);
    static constexpr size_t SHARED_BYTES = STEPS_BYTES > OUT_BYTES ? STEPS_BYTES : OUT_BYTES;
    static constexpr int RESIDENT = 2;

    /* One thread's share of a step: 4 elements along k of row thread / 2 of A, 4 elements along the columns of k thread / 32 of
     * B. */
    struct share {
        const T *a, *b;
        gpu_bits<T> a_bits[4], b_bits[4]; /* loads in flight */
    };

    template <typename C> static __device__ __forceinline__ struct share share_make(const struct gpu_tile<T, C> &p)
    {
        int a_row = threadIdx.x / 2, a_k = threadIdx.x % 2 * 4, b_k = threadIdx.x / 32, b_col = threadIdx.x % 32 * 4;
        struct share out;

        out.a = p.a + a_row * p.a_stride + a_k;
        out.b = p.b + b_k * p.b_stride + b_col;
        return out;
    }

    /* Begins to fetch the next step, of which `left` k exist. */
    template <typename C>
    static __device__ __forceinline__ void fetch(struct share &s, const struct gpu_tile<T, C> &p, int64_t left)
    {
        int k = left < STEP ? (int)left : STEP, a_row = threadIdx.x / 2, a_k = threadIdx.x % 2 * 4;
        int b_k = threadIdx.x / 32, b_col = threadIdx.x % 32 * 4;
        bool in_one = p.alignment >= 4 * sizeof(T);

        gpu_elements_load<T, 4>(s.a_bits, s.a, a_row < (int)p.rows ? k - a_k : 0, in_one);
        gpu_elements_load<T, 4>(s.b_bits, s.b, b_k < k ? (int)p.cols - b_col : 0, in_one);
        s.a += STEP;
        s.b += STEP * p.b_stride;
    }

    static __device__ __forceinline__ float number(gpu_bits<T> bits)
    {
        T x;

        memcpy(&x, &bits, sizeof(x));
        return gpu_to_f32(x);
    }

    static __device__ __forceinline__ void place(const struct share &s, float *a, float *b)
    {
        int a_row = threadIdx.x / 2, a_k = threadIdx.x % 2 * 4, b_k = threadIdx.x / 32, b_col = threadIdx.x % 32 * 4;

#pragma unroll
        for (int i = 0; i < 4; i++)
            a[(a_k + i) * PITCH + a_row] = number(s.a_bits[i]);
        *(float4 *)&b[b_k * PITCH + b_col] =
            make_float4(number(s.b_bits[0]), number(s.b_bits[1]), number(s.b_bits[2]), number(s.b_bits[3]));
    }

    static __device__ __forceinline__ void compute(float (&sums)[8][8], const float *a, const float *b)
    {
        int x = threadIdx.x % 16, y = threadIdx.x / 16;

#pragma unroll
        for (int k = 0; k < STEP; k++) {
            float4 a0 = *(const float4 *)&a[k * PITCH + y * 4], a1 = *(const float4 *)&a[k * PITCH + 64 + y * 4];
            float4 b0 = *(const float4 *)&b[k * PITCH + x * 4], b1 = *(const float4 *)&b[k * PITCH + 64 + x * 4];
            float left[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w};
            float right[8] = {b0.x, b0.y, b0.z, b0.w, b1.x, b1.y, b1.z, b1.w};
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int j = 0; j < 8; j++)
                    sums[i][j] += left[i] * right[j];
        }
    }

    /* Stores the tile, 64 rows at a time through shared memory, so that neighbouring threads store neighbouring elements. */
    static __device__ __forceinline__ void store(const float (&sums)[8][8], const struct gpu_tile<T> &p, T *rows)
    {
        int x = threadIdx.x % 16, y = threadIdx.x / 16;

#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 8; j++)
                    gpu_from_f32(&rows[(y * 4 + i) * OUT_PITCH + j / 4 * 64 + x * 4 + j % 4], sums[half * 4 + i][j]);
            __syncthreads();
            int left = (int)p.rows - half * 64;
            gpu_rows_copy<T>(p.c + half * 64 * p.c_stride, p.c_stride, rows, OUT_PITCH, left < 64 ? left : 64, (int)p.cols,
                             threadIdx.x, GPU_MATRIX_THREADS);
            __syncthreads();
        }
    }

    /* Replaces each of this thread's sums inside the tile by visit(row, column, sum). */
    template <typename C, typename Visit>
    static __device__ __forceinline__ void each(float (&sums)[8][8], const struct gpu_tile<T, C> &p, Visit visit)
    {
        int x = threadIdx.x % 16, y = threadIdx.x / 16;

#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                int row = i / 4 * 64 + y * 4 + i % 4, col = j / 4 * 64 + x * 4 + j % 4;
                if (row < (int)p.rows && col < (int)p.cols)
                    sums[i][j] = visit(row, col, sums[i][j]);
            }
    }

    template <typename C, typename Finish>
    static __device__ __forceinline__ void multiply(const struct gpu_tile<T, C> &p, unsigned char *shared, const Finish &finish)
    {
        float *a = (float *)shared, *b = a + 2 * HALF;
        float sums[8][8] = {};
        struct share s = share_make(p);
        int half = 0;

        if (p.k > 0) {
            fetch(s, p, p.k);
            place(s, a, b);
        }
        __syncthreads();
#pragma unroll 1
        for (int64_t left = p.k; left > 0; left -= STEP) { /* k that are left, this step's included */
            if (left > STEP)
                fetch(s, p, left - STEP);
            compute(sums, a + half, b + half);
            half ^= HALF;
            if (left > STEP)
                place(s, a + half, b + half);
            __syncthreads();
        }
        if constexpr (Finish::CHANGES)
            each(sums, p, finish);
        if constexpr (sizeof(C) == sizeof(T)) {
            store(sums, p, (T *)shared);
        } else {
            each(sums, p, gpu_sum_store{p.c, p.c_stride});
            __syncthreads();
        }
    }
};

#endif
