/* SPDX-License-Identifier: MIT
 *
 * gemv_multiply.h - gemv.hip's products of any shape: a workgroup multiplies some columns (rows of w) with all rows of x.
 * gemv.hip says how, and why all ways give the same bits.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMV_MULTIPLY_H
#define FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMV_MULTIPLY_H

#include "kernels/gpu/abi.h"
#include "kernels/gpu/device/vector.h"

enum {
    THREADS = 256,
    WAVES = THREADS / GPU_WAVE,
    ROWS_MOST = 16,
    ROWS_UNALIGNED = 4,
};

/* Not inlined by nvcc, so that its loops need no registers for its caller's other ways. AMD's calls cost more than that. */
#if defined(__CUDACC__)
#define GEMV_APART static __device__ __noinline__
#else
#define GEMV_APART GPU_DEVICE
#endif

/* A rank's operands, in shared memory. Strides are in elements; sizes and strides are below 2^31 (tensor_check()). */
template <typename T> struct operands {
    const T *x, *w;
    uint32_t x_stride, w_stride;
    uint32_t m, k;
    bool aligned; /* rows of x and w are 16-byte aligned */
};

template <typename T> GPU_DEVICE operands<T> operands_get(const struct gpu_call &call, uint32_t run)
{
    const struct gpu_input &in = call.in[run];
    operands<T> p;

    p.x = (const T *)in.gemv.x;
    p.w = (const T *)in.gemv.w;
    p.x_stride = (uint32_t)in.gemv.x_stride;
    p.w_stride = (uint32_t)in.gemv.w_stride;
    p.m = (uint32_t)in.gemv.m;
    p.k = (uint32_t)in.gemv.k;
    p.aligned = gpu_rows_aligned(p.x, p.m, in.gemv.x_stride) && gpu_rows_aligned(p.w, in.gemv.n, in.gemv.w_stride);
    return p;
}

/* ---- products ---- */

/* Loads LENGTH elements; zeros if not `wanted`. */
template <typename T, bool ALIGNED, bool ONCE> GPU_DEVICE struct gpu_words elements_load(const T *at, bool wanted)
{
    if (!ALIGNED)
        return gpu_vector<T>::gather(at, wanted);
    return ONCE ? gpu_words_load_once(at, wanted) : gpu_words_load(at, wanted);
}

/* STEPS vectors of each of COLS columns: a lane's part of w at a time. */
template <typename T, int COLS, int STEPS, bool ALIGNED> struct part {
    enum { LENGTH = gpu_vector<T>::LENGTH, NEXT = GPU_WAVE * LENGTH, WIDTH = STEPS * NEXT };
    struct gpu_words words[STEPS][COLS];

    /* Loads from element k on. `whole`: the end of the last whole vector. */
    __device__ __forceinline__ void load(const T *w, uint32_t w_stride, uint32_t k, uint32_t whole)
    {
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int col = 0; col < COLS; col++)
                words[step][col] =
                    elements_load<T, ALIGNED, true>(w + (uint64_t)col * w_stride + k + step * NEXT, k + step * NEXT < whole);
    }

    /* Multiplies with as many elements of up to ROWS rows of x. Only the first `rows` sums are used. */
    template <int ROWS>
    __device__ __forceinline__ void multiply(float (&sum)[ROWS][COLS], const T *x, uint32_t x_stride, uint32_t rows, uint32_t k,
                                             uint32_t whole) const
    {
        x_stride = gpu_hide(x_stride);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            float a[LENGTH], b[COLS][LENGTH];
            const T *row = x + k + step * NEXT;
#pragma unroll
            for (int col = 0; col < COLS; col++)
                gpu_vector<T>::to_f32(b[col], words[step][col]);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                gpu_vector<T>::to_f32(a, elements_load<T, ALIGNED, false>(row, k + step * NEXT < whole));
#pragma unroll
                for (int col = 0; col < COLS; col++)
#pragma unroll
                    for (int i = 0; i < LENGTH; i++)
                        sum[r][col] = fmaf(a[i], b[col][i], sum[r][col]);
                row += r + 1 < (int)rows ? x_stride : 0;
            }
        }
    }
};

/* Adds the products of the elements behind the last whole vector, each by one lane. */
template <typename T, int ROWS, int COLS>
GPU_DEVICE void add_rest(float (&sum)[ROWS][COLS], const operands<T> &p, const T *x, const T *w, uint32_t rows, uint32_t k)
{
    float b[COLS];

#pragma unroll
    for (int col = 0; col < COLS; col++)
        b[col] = gpu_vector<T>::element(w + (uint64_t)col * p.w_stride + k);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float a = gpu_vector<T>::element(x + k);
#pragma unroll
        for (int col = 0; col < COLS; col++)
            sum[r][col] = fmaf(a, b[col], sum[r][col]);
        x += r + 1 < (int)rows ? p.x_stride : 0;
    }
}

/* One wave: multiplies COLS columns from w on with up to ROWS rows from x on, into sums[row][col] of a piece of the tile
 * that is `cols` wide. */
template <typename T, int ROWS, int COLS, bool ALIGNED>
GPU_DEVICE void multiply(float *sums, uint32_t cols, const operands<T> &p, const T *x, const T *w, uint32_t rows)
{
    /* One part is loaded while another is multiplied. */
    typedef part<T, COLS, (!ALIGNED ? 1 : ROWS <= 2 ? 8 : ROWS <= 4 ? 4 : 2) / COLS, ALIGNED> own_part;
    float sum[ROWS][COLS] = {{0}};
    const uint32_t whole = p.k / own_part::LENGTH * own_part::LENGTH, lane = threadIdx.x % GPU_WAVE;
    own_part now, next;

    now.load(w, p.w_stride, lane * own_part::LENGTH, whole);
    for (uint32_t k = lane * own_part::LENGTH; k < whole; k += own_part::WIDTH) { /* K is below 2^31: no overflow */
        next.load(w, p.w_stride, k + own_part::WIDTH, whole);
        now.multiply(sum, x, p.x_stride, rows, k, whole);
        now = next;
    }
    if (lane < p.k - whole)
        add_rest(sum, p, x, w, rows, whole + lane);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int col = 0; col < COLS; col++) {
            float total = gpu_wave_sum(sum[r][col]);
            if (lane == 0 && r < (int)rows)
                sums[r * cols + col] = total;
        }
}

/* One wave: multiplies its columns of a piece with up to ROWS rows. */
template <typename T, int ROWS, bool ALIGNED>
GPU_DEVICE void multiply_columns(float *sums, uint32_t cols, const operands<T> &p, const T *x, const T *w, uint32_t rows)
{
    uint32_t wave = threadIdx.x / GPU_WAVE, col = cols * wave / WAVES, end = cols * (wave + 1) / WAVES;

    if (ALIGNED)
        for (; col + 2 <= end; col += 2)
            multiply<T, ROWS, ALIGNED ? 2 : 1, ALIGNED>(sums + col, cols, p, x, w + (uint64_t)col * p.w_stride, rows);
    for (; col < end; col++)
        multiply<T, ROWS, 1, ALIGNED>(sums + col, cols, p, x, w + (uint64_t)col * p.w_stride, rows);
}

/* The workgroup: multiplies a piece with all rows. */
template <typename T, bool ALIGNED> GPU_DEVICE void multiply_piece(float *sums, uint32_t cols, const operands<T> &p, const T *w)
{
    const uint32_t most = ALIGNED ? ROWS_MOST : ROWS_UNALIGNED;

    for (uint32_t row = 0; row < p.m; row += most) {
        const T *x = p.x + (uint64_t)row * p.x_stride;
        float *out = sums + row * cols;
        uint32_t rows = p.m - row < most ? p.m - row : most;
        if (rows == 1)
            multiply_columns<T, 1, ALIGNED>(out, cols, p, x, w, rows);
        else if constexpr (!ALIGNED)
            multiply_columns<T, ROWS_UNALIGNED, false>(out, cols, p, x, w, rows);
        else if (rows == 2)
            multiply_columns<T, 2, true>(out, cols, p, x, w, rows);
        else if (rows <= 4)
            multiply_columns<T, 4, true>(out, cols, p, x, w, rows);
        else if (rows <= 8)
            multiply_columns<T, 8, true>(out, cols, p, x, w, rows);
        else
            multiply_columns<T, ROWS_MOST, true>(out, cols, p, x, w, rows);
    }
}

#endif
