/* SPDX-License-Identifier: MIT
 *
 * matrix_factors.h - products whose factors may be e4m3 (factors.h), by f32 multiply-adds, tile by tile as in matrix_fma.h: elements are converted,
 * and multiplied by their scales, on their way from global to shared memory. An element's products are added in the order of k, whatever the number
 * of rows and wherever in a tile it lies.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_MATRIX_FACTORS_H
#define FCC_KERNELS_GPU_DEVICE_MATRIX_FACTORS_H

#include "kernels/gpu/device/factors.h"
#include "kernels/gpu/device/matrix.h"

/* c[rows][cols] = a[rows][k] . b[k][cols], as struct gpu_product. Element [0][0] of a has indices [a_row][0] among those of its scales, that of b
 * [0][b_col]. */
template <typename T, typename C = T> struct gpu_factors_product {
    const void *a, *b;
    C *c;
    int64_t a_stride, b_stride, c_stride, k, rows, cols;
    uint32_t a_row, b_col;
    struct gpu_scales a_scales, b_scales;
    bool a_f8, b_f8;
};

template <typename T> struct gpu_factors_fma : gpu_fma<T> {
    typedef gpu_fma<T> plain;
    enum { FOUR = 4 };

    /* A thread's share of a step, as that of gpu_fma: numbers, but for their scales. */
    struct numbers {
        float a[FOUR], b[FOUR];
    };

    /* Four neighbouring elements, of which `valid` exist. */
    static __device__ __forceinline__ void four_load(float (&out)[FOUR], const void *matrix, int64_t at, int valid, bool f8)
    {
        if (f8) {
            gpu_elements<T, true, FOUR> e;
            e.load((const uint8_t *)matrix + at, valid, ((uint64_t)matrix + at) % FOUR == 0);
            e.to_f32(out);
        } else {
            gpu_bits<T> bits[FOUR];
            gpu_elements_load<T, FOUR>(bits, (const T *)matrix + at, valid,
                                       (uint64_t)((const T *)matrix + at) % (FOUR * sizeof(T)) == 0);
#pragma unroll
            for (int i = 0; i < FOUR; i++)
                out[i] = plain::number(bits[i]);
        }
    }

    /* The step from element k on. */
    template <typename C>
    static __device__ __forceinline__ void fetch(struct numbers &n, const struct gpu_factors_product<T, C> &p, int64_t k)
    {
        const int left = (int)(p.k - k < plain::STEP ? p.k - k : plain::STEP);
        const int a_row = threadIdx.x / 2, a_k = threadIdx.x % 2 * FOUR, b_k = threadIdx.x / 32, b_col = threadIdx.x % 32 * FOUR;

        four_load(n.a, p.a, a_row * p.a_stride + k + a_k, a_row < (int)p.rows ? left - a_k : 0, p.a_f8);
        four_load(n.b, p.b, (k + b_k) * p.b_stride + b_col, b_k < left ? (int)p.cols - b_col : 0, p.b_f8);
        if (p.a_scales.at && a_row < (int)p.rows && a_k < left) {
            const float scale = gpu_scale(p.a_scales, p.a_row + a_row, (uint32_t)k + a_k);
#pragma unroll
            for (int i = 0; i < FOUR; i++)
                n.a[i] *= scale;
        }
#pragma unroll
        for (int i = 0; i < FOUR && p.b_scales.at && b_k < left; i++)
            if (b_col + i < (int)p.cols)
                n.b[i] *= gpu_scale(p.b_scales, (uint32_t)k + b_k, p.b_col + b_col + i);
    }

    static __device__ __forceinline__ void place(const struct numbers &n, float *a, float *b)
    {
        const int a_row = threadIdx.x / 2, a_k = threadIdx.x % 2 * FOUR, b_k = threadIdx.x / 32, b_col = threadIdx.x % 32 * FOUR;

#pragma unroll
        for (int i = 0; i < FOUR; i++)
            a[(a_k + i) * plain::PITCH + a_row] = n.a[i];
        *(float4 *)&b[b_k * plain::PITCH + b_col] = make_float4(n.b[0], n.b[1], n.b[2], n.b[3]);
    }

    /* All threads: one tile. `to`: where it goes. */
    template <typename C, typename Finish>
    static __device__ __forceinline__ void multiply(const struct gpu_factors_product<T, C> &p, const struct gpu_tile<T, C> &to,
                                                    unsigned char *shared, const Finish &finish)
    {
        float *a = (float *)shared, *b = a + 2 * plain::HALF;
        float sums[8][8] = {};
        struct numbers n = {};
        int half = 0;

        if (p.k > 0) {
            fetch(n, p, 0);
            place(n, a, b);
        }
        __syncthreads();
#pragma unroll 1
        for (int64_t k = 0; k < p.k; k += plain::STEP) {
            const bool more = k + plain::STEP < p.k;
            if (more)
                fetch(n, p, k + plain::STEP);
            plain::compute(sums, a + half, b + half);
            half ^= plain::HALF;
            if (more)
                place(n, a + half, b + half);
            __syncthreads();
        }
        if constexpr (Finish::CHANGES)
            plain::each(sums, to, finish);
        if constexpr (sizeof(C) == sizeof(T)) {
            plain::store(sums, to, (T *)shared);
        } else {
            plain::each(sums, to, gpu_sum_store{to.c, to.c_stride});
            __syncthreads();
        }
    }
};

/* All threads: a product of any size, in shared memory, tile by tile. Begins and ends as gpu_multiply(). */
template <typename T, typename C, typename Finish = struct gpu_as_they_are>
GPU_DEVICE void gpu_factors_multiply(const struct gpu_factors_product<T, C> &whole, unsigned char *shared,
                                     const Finish &finish = {})
{
    typedef gpu_factors_fma<T> engine;
    __shared__ struct gpu_factors_product<T, C> part;
    __shared__ struct gpu_tile<T, C> to;

    for (int64_t col = 0; col < whole.cols; col += engine::COLS)
        for (int64_t row = 0; row < whole.rows; row += engine::ROWS) {
            if (threadIdx.x == 0) {
                part = whole;
                part.a = (const char *)whole.a + row * whole.a_stride * (whole.a_f8 ? 1 : (int64_t)sizeof(T));
                part.b = (const char *)whole.b + col * (whole.b_f8 ? 1 : (int64_t)sizeof(T));
                part.a_row += (uint32_t)row;
                part.b_col += (uint32_t)col;
                part.rows = whole.rows - row < engine::ROWS ? whole.rows - row : engine::ROWS;
                part.cols = whole.cols - col < engine::COLS ? whole.cols - col : engine::COLS;
                to.c = whole.c + row * whole.c_stride + col;
                to.c_stride = whole.c_stride;
                to.rows = part.rows;
                to.cols = part.cols;
            }
            __syncthreads();
            engine::multiply(part, to, shared, finish.at(row, col));
        }
}

#endif
