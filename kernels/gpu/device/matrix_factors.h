/* SPDX-License-Identifier: MIT
 *
 * matrix_factors.h - products whose factors may be e4m3 (factors.h), tile by tile: by f32 multiply-adds, as in matrix_fma.h, where elements are converted,
 * and multiplied by their scales, on their way from global to shared memory; on Hopper by its matrix instructions (matrix_factors_wgmma.h). An element's products are added in the order of k, whatever the number
 * of rows and wherever in a tile it lies.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_MATRIX_FACTORS_H
#define FCC_KERNELS_GPU_DEVICE_MATRIX_FACTORS_H

#include "kernels/gpu/device/factors.h"
#include "kernels/gpu/device/matrix.h"

/* c[rows][cols] = a[rows][k] . b[k][cols], as struct gpu_product; b is stored so, or [cols][k], as the engine has it (B_ROWS). Column 0 of the product has
 * the index b_col among those of b's scales, row 0 the index a_row among those of a's. */
template <typename T, typename C = T> struct gpu_factors_product {
    const void *a, *b;
    C *c;
    int64_t a_stride, b_stride, c_stride, k, rows, cols;
    uint32_t a_row, b_col;
    struct gpu_scales a_scales, b_scales;
    bool a_f8, b_f8;
};

template <typename T, bool B_ROWS = false> struct gpu_factors_fma : gpu_fma<T> {
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

    /* The step from element k on. Of b stored [cols][k] as of a: 4 elements along k of column thread / 2. */
    template <typename C>
    static __device__ __forceinline__ void fetch(struct numbers &n, const struct gpu_factors_product<T, C> &p, int64_t k)
    {
        const int left = (int)(p.k - k < plain::STEP ? p.k - k : plain::STEP);
        const int a_row = threadIdx.x / 2, a_k = threadIdx.x % 2 * FOUR, b_k = threadIdx.x / 32,
                  b_col = threadIdx.x % 32 * FOUR;

        four_load(n.a, p.a, a_row * p.a_stride + k + a_k, a_row < (int)p.rows ? left - a_k : 0, p.a_f8);
        if (B_ROWS)
            four_load(n.b, p.b, a_row * p.b_stride + k + a_k, a_row < (int)p.cols ? left - a_k : 0, p.b_f8);
        else
            four_load(n.b, p.b, (k + b_k) * p.b_stride + b_col, b_k < left ? (int)p.cols - b_col : 0, p.b_f8);
        if (p.a_scales.at && a_row < (int)p.rows && a_k < left) {
            const float scale = gpu_scale(p.a_scales, p.a_row + a_row, (uint32_t)k + a_k);
#pragma unroll
            for (int i = 0; i < FOUR; i++)
                n.a[i] *= scale;
        }
        if (B_ROWS && p.b_scales.at && a_row < (int)p.cols && a_k < left) {
            const float scale = gpu_scale(p.b_scales, p.b_col + a_row, (uint32_t)k + a_k);
#pragma unroll
            for (int i = 0; i < FOUR; i++)
                n.b[i] *= scale;
        }
#pragma unroll
        for (int i = 0; i < FOUR && !B_ROWS && p.b_scales.at && b_k < left; i++)
            if (b_col + i < (int)p.cols)
                n.b[i] *= gpu_scale(p.b_scales, (uint32_t)k + b_k, p.b_col + b_col + i);
    }

    static __device__ __forceinline__ void place(const struct numbers &n, float *a, float *b)
    {
        const int a_row = threadIdx.x / 2, a_k = threadIdx.x % 2 * FOUR, b_k = threadIdx.x / 32,
                  b_col = threadIdx.x % 32 * FOUR;

#pragma unroll
        for (int i = 0; i < FOUR; i++)
            a[(a_k + i) * plain::PITCH + a_row] = n.a[i];
#pragma unroll
        for (int i = 0; i < FOUR && B_ROWS; i++)
            b[(a_k + i) * plain::PITCH + a_row] = n.b[i];
        if (!B_ROWS)
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

/* Whether the scales of a product's rows or columns differ along K. b_rows: b is stored [columns][k]. */
GPU_DEVICE bool gpu_scales_differ_along_k(const struct gpu_scales &a, const struct gpu_scales &b, bool b_rows)
{
    return (a.at && a.cols != GPU_SCALES_WHOLE) || (b.at && (b_rows ? b.cols : b.rows) != GPU_SCALES_WHOLE);
}

#if defined(__CUDACC__)
#include "kernels/gpu/device/matrix_factors_wgmma.h"
#endif

/* The engine for the GPU that the code is compiled for. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <typename T, bool B_ROWS = false> struct gpu_factors_engine : gpu_factors_wgmma<T, B_ROWS> {
};
template <bool B_ROWS> struct gpu_factors_engine<float, B_ROWS> : gpu_factors_fma<float, B_ROWS> {
};
#else
template <typename T, bool B_ROWS = false> struct gpu_factors_engine : gpu_factors_fma<T, B_ROWS> {
};
#endif

/* The dynamic shared memory of a kernel with gpu_factors_engine<T> on a GPU of this compute capability (AMD: on any GPU). */
template <typename T> static inline size_t gpu_factors_shared_bytes(int major, int minor)
{
#if defined(__CUDACC__)
    if (major == 9 && minor == 0 && sizeof(T) == 2)
        return gpu_factors_wgmma<T, false>::SHARED_BYTES;
#endif
    (void)major;
    (void)minor;
    return gpu_factors_fma<T>::SHARED_BYTES;
}

/* All threads: the tile of a product that begins at (row, col). */
template <typename Engine, typename T, bool B_ROWS, typename C, typename Finish>
GPU_DEVICE void gpu_factors_tile(const struct gpu_factors_product<T, C> &whole, int64_t row, int64_t col, unsigned char *shared,
                                 const Finish &finish)
{
    __shared__ struct gpu_factors_product<T, C> part;
    __shared__ struct gpu_tile<T, C> to;

    if (threadIdx.x == 0) {
        part = whole;
        part.a = (const char *)whole.a + row * whole.a_stride * (whole.a_f8 ? 1 : (int64_t)sizeof(T));
        part.b = (const char *)whole.b + col * (B_ROWS ? whole.b_stride : 1) * (whole.b_f8 ? 1 : (int64_t)sizeof(T));
        part.a_row += (uint32_t)row;
        part.b_col += (uint32_t)col;
        part.rows = whole.rows - row < Engine::ROWS ? whole.rows - row : Engine::ROWS;
        part.cols = whole.cols - col < Engine::COLS ? whole.cols - col : Engine::COLS;
        to.c = whole.c + row * whole.c_stride + col;
        to.c_stride = whole.c_stride;
        to.rows = part.rows;
        to.cols = part.cols;
    }
    __syncthreads();
    Engine::multiply(part, to, shared, finish.at(row, col));
}

/* All threads: a product of any size, in shared memory, tile by tile. Begins and ends as gpu_multiply(). */
template <typename T, bool B_ROWS = false, typename C, typename Finish = struct gpu_as_they_are>
GPU_DEVICE void gpu_factors_multiply(const struct gpu_factors_product<T, C> &whole, unsigned char *shared,
                                     const Finish &finish = {})
{
    typedef gpu_factors_engine<T, B_ROWS> engine;

    for (int64_t col = 0; col < whole.cols; col += engine::COLS)
        for (int64_t row = 0; row < whole.rows; row += engine::ROWS)
            gpu_factors_tile<engine, T, B_ROWS>(whole, row, col, shared, finish);
}

#endif
