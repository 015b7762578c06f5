/* SPDX-License-Identifier: MIT
 *
 * matrix_mfma.h - the engine for AMD's matrix instructions (gfx90a, gfx940, gfx942). Part of matrix.h.
 *
 * A tile of 128 x 128 by four waves of 64 lanes, each with 64 x 64 sums: 2 x 2 blocks of 32 x 32.
 *
 * How lanes hold a block of v_mfma_f32_32x32x*: lane l gives row l % 32 of A and column l % 32 of B. With h = l / 32,
 * 32x32x8 (f16, bf16) takes k = 4h .. 4h+3 from a lane, and 32x32x2 (f32) takes k = h. Of the result a lane gets column l % 32,
 * in register r the row 8 (r / 4) + 4h + r % 4.
 *
 * So a lane always reads four k in a row of one row of A and of one column of B: for f16 and bf16 they are one instruction's;
 * for f32 number e of the four goes to instruction e, which so multiplies k = e of h 0 and k = 4 + e of h 1, the same in A and
 * B: a sum may be taken in any order. Shared memory has A as [row][k] and B as [column][k]; B is turned on its way, in
 * registers.
 *
 * Two steps of k are kept, and used as in matrix_fma.h.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_MATRIX_MFMA_H
#define FCC_KERNELS_GPU_DEVICE_MATRIX_MFMA_H

#include "kernels/gpu/device/matrix.h"

typedef float gpu_mfma_sums __attribute__((ext_vector_type(16)));

#if defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx942__)
/* sums += the products of 8 k of A and B. a and b: this lane's four elements of each. */
GPU_DEVICE void gpu_mfma_add(gpu_mfma_sums &sums, const gpu_f16 *a, const gpu_f16 *b)
{
    typedef _Float16 four __attribute__((ext_vector_type(4)));

    sums = __builtin_amdgcn_mfma_f32_32x32x8f16(*(const four *)a, *(const four *)b, sums, 0, 0, 0);
}

GPU_DEVICE void gpu_mfma_add(gpu_mfma_sums &sums, const gpu_bf16 *a, const gpu_bf16 *b)
{
    typedef short four __attribute__((ext_vector_type(4)));

    sums = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(*(const four *)a, *(const four *)b, sums, 0, 0, 0);
}

GPU_DEVICE void gpu_mfma_add(gpu_mfma_sums &sums, const float *a, const float *b)
{
    typedef float four __attribute__((ext_vector_type(4)));
    four left = *(const four *)a, right = *(const four *)b;

#pragma unroll
    for (int e = 0; e < 4; e++)
        sums = __builtin_amdgcn_mfma_f32_32x32x2f32(left[e], right[e], sums, 0, 0, 0);
}
#endif

template <typename T> struct gpu_mfma {
    static constexpr int ROWS = 128, COLS = 128;
    static constexpr int STEP = sizeof(T) == 2 ? 32 : 16; /* k of a step */
    static constexpr int PITCH = STEP + 4;                /* elements; a lane's four elements stay aligned */
    static constexpr int HALF = 128 * PITCH;              /* elements: one step of A or of B */
    static constexpr int OUT_PITCH = 64 + 16 / sizeof(T);
    static constexpr int OUT_ROWS = 32; /* rows that each wave stores at a time */
    static constexpr size_t SHARED_BYTES = 4 * HALF * sizeof(T);
    static constexpr int RESIDENT = 1;
    static_assert(4 * OUT_ROWS * OUT_PITCH * sizeof(T) <= SHARED_BYTES, "the finished rows use the same memory");
    static_assert(SHARED_BYTES <= 65536, "what a workgroup may have");

#if defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx942__)
    static constexpr int QUADS = STEP / 4;                    /* groups of four k in a step */
    static constexpr int A_ROWS = GPU_MATRIX_THREADS / QUADS; /* rows of A that all threads fetch at a time */
    static constexpr int A_TIMES = 128 / A_ROWS;
    static constexpr int B_COLS = 128 * QUADS / GPU_MATRIX_THREADS; /* columns of B that one thread fetches: 8 bytes */
    static_assert(B_COLS * sizeof(T) == 8, "one access");

    /* One thread's part of a step, with its loads in flight. */
    struct parcel {
        gpu_bits<T> a[A_TIMES][4]; /* [][k] */
        gpu_bits<T> b[4][B_COLS];  /* [k][column] */
    };

    /* Begins to fetch the step at k0. */
    template <typename C>
    static __device__ __forceinline__ void fetch(struct parcel &out, const struct gpu_tile<T, C> &p, int64_t k0, bool a_in_one,
                                                 bool b_in_one)
    {
        int ks = p.k - k0 < STEP ? (int)(p.k - k0) : STEP;
        int a_row = threadIdx.x / QUADS, a_k = threadIdx.x % QUADS * 4;
        int b_col = threadIdx.x % (128 / B_COLS) * B_COLS, b_k = threadIdx.x / (128 / B_COLS) * 4;

#pragma unroll
        for (int i = 0; i < A_TIMES; i++) {
            int row = a_row + A_ROWS * i;
            gpu_elements_load<T, 4>(out.a[i], p.a + row * p.a_stride + k0 + a_k, row < (int)p.rows ? ks - a_k : 0, a_in_one);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int k = b_k + i;
            gpu_elements_load<T, B_COLS>(out.b[i], p.b + (k0 + k) * p.b_stride + b_col, k < ks ? (int)p.cols - b_col : 0,
                                         b_in_one);
        }
    }

    struct alignas(4 * sizeof(T)) four {
        gpu_bits<T> bits[4];
    };

    static __device__ __forceinline__ void place(const struct parcel &in, T *a, T *b)
    {
        int a_row = threadIdx.x / QUADS, a_k = threadIdx.x % QUADS * 4;
        int b_col = threadIdx.x % (128 / B_COLS) * B_COLS, b_k = threadIdx.x / (128 / B_COLS) * 4;

#pragma unroll
        for (int i = 0; i < A_TIMES; i++)
            *(struct four *)&a[(a_row + A_ROWS * i) * PITCH + a_k] = {in.a[i][0], in.a[i][1], in.a[i][2], in.a[i][3]};
#pragma unroll
        for (int j = 0; j < B_COLS; j++)
            *(struct four *)&b[(b_col + j) * PITCH + b_k] = {in.b[0][j], in.b[1][j], in.b[2][j], in.b[3][j]};
    }

    /* The first row of this wave's 64 x 64 sums in the tile. */
    static __device__ __forceinline__ int wave_row()
    {
        return threadIdx.x / 128 * 64;
    }

    static __device__ __forceinline__ int wave_col()
    {
        return threadIdx.x / 64 % 2 * 64;
    }

    static __device__ __forceinline__ void compute(gpu_mfma_sums (&sums)[2][2], const T *a, const T *b)
    {
        int lane = threadIdx.x % 64;
        const T *left = a + (wave_row() + lane % 32) * PITCH + lane / 32 * 4;
        const T *right = b + (wave_col() + lane % 32) * PITCH + lane / 32 * 4;

#pragma unroll
        for (int k = 0; k < STEP; k += 8)
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 2; j++)
                    gpu_mfma_add(sums[i][j], left + i * 32 * PITCH + k, right + j * 32 * PITCH + k);
    }

    /* Stores the tile, 32 rows of each wave at a time through shared memory, so that neighbouring lanes store neighbouring
     * elements. */
    static __device__ __forceinline__ void store(const gpu_mfma_sums (&sums)[2][2], const struct gpu_tile<T> &p, T *shared)
    {
        int lane = threadIdx.x % 64;
        T *rows = shared + threadIdx.x / 64 * (OUT_ROWS * OUT_PITCH);

#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = wave_row() + i * OUT_ROWS, left = (int)p.rows - row, right = (int)p.cols - wave_col();
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int r = 0; r < 16; r++)
                    gpu_from_f32(&rows[(8 * (r / 4) + lane / 32 * 4 + r % 4) * OUT_PITCH + j * 32 + lane % 32], sums[i][j][r]);
            __syncthreads();
            gpu_rows_copy<T>(p.c + row * p.c_stride + wave_col(), p.c_stride, rows, OUT_PITCH,
                             left < OUT_ROWS ? left : OUT_ROWS, right < 64 ? right : 64, lane, 64);
            __syncthreads();
        }
    }

    /* Replaces each of this thread's sums inside the tile by visit(row, column, sum). */
    template <typename C, typename Visit>
    static __device__ __forceinline__ void each(gpu_mfma_sums (&sums)[2][2], const struct gpu_tile<T, C> &p, Visit visit)
    {
        int lane = threadIdx.x % 64;

#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int r = 0; r < 16; r++) {
                    int row = wave_row() + i * 32 + 8 * (r / 4) + lane / 32 * 4 + r % 4, col = wave_col() + j * 32 + lane % 32;
                    if (row < (int)p.rows && col < (int)p.cols)
                        sums[i][j][r] = visit(row, col, sums[i][j][r]);
                }
    }

    template <typename C, typename Finish>
    static __device__ __forceinline__ void multiply(const struct gpu_tile<T, C> &p, unsigned char *shared, const Finish &finish)
    {
        T *a = (T *)shared, *b = a + 2 * HALF;
        bool a_in_one = p.alignment >= 4 * sizeof(T), b_in_one = p.alignment >= 8;
        gpu_mfma_sums sums[2][2] = {};
        struct parcel next;
        int half = 0;

        if (p.k > 0) {
            fetch(next, p, 0, a_in_one, b_in_one);
            place(next, a, b);
        }
        __syncthreads();
#pragma unroll 1
        for (int64_t k = 0; k < p.k; k += STEP, half ^= 1) {
            bool more = k + STEP < p.k;
            if (more)
                fetch(next, p, k + STEP, a_in_one, b_in_one);
            compute(sums, a + half * HALF, b + half * HALF);
            if (more)
                place(next, a + (half ^ 1) * HALF, b + (half ^ 1) * HALF);
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
#endif
};

#endif
