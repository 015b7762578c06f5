/* SPDX-License-Identifier: MIT
 *
 * gemv_factors.hip - gemv.hip's partial sums where a factor is e4m3. A tile's columns are dealt out to the waves of a workgroup. A wave goes along K
 * with one or two columns at a time, 16 bytes of w a lane, and reads the next ones while it multiplies those that it has, with all rows of x, up to
 * ROWS_MOST at a time.
 *
 * Scales of blocks of K multiply the sum of a lane's 16 bytes, which are of one block; those of whole rows multiply the sum in the end.
 *
 * Same bits, in every run, with every schedule and for any number of rows: a lane adds its products in the order of k; then the lanes are added in
 * a fixed order. Which k a lane has depends on which factor is e4m3, and on the dtype, only. What lies beyond K counts as 0.
 */
#include "kernels/gpu/device/compute/gemv_multiply.h"
#include "kernels/gpu/device/exchange/packets.h"
#include "kernels/gpu/device/exchange/reduce_nodes.h"
#include "kernels/gpu/device/execute.h"
#include "kernels/gpu/device/factors.h"
#include "kernels/gpu/runtime.h"

namespace
{

enum { FACTOR_ROWS = 8 /* of x at a time, at most */, FACTOR_SUMS = 4096, FACTOR_STEPS = 2 };

/* A rank's factors, in shared memory. */
template <typename T, bool X8, bool W8> struct factors {
    const typename gpu_stored<T, X8>::type *x;
    const typename gpu_stored<T, W8>::type *w;
    struct gpu_scales x_scales, w_scales;
    uint32_t x_stride, w_stride;
    uint32_t m, k;
    bool x_aligned, w_aligned;
    bool blocks; /* scales of one of them differ along K */
};

template <typename T, bool X8, bool W8>
GPU_DEVICE struct factors<T, X8, W8> factors_get(const struct gpu_call &call, const struct gpu_scales_argument &scales,
                                                 uint32_t run) {
    const struct gpu_input &in = call.in[run];
    struct factors<T, X8, W8> p;

    p.x = (const typename gpu_stored<T, X8>::type *)in.gemv.x;
    p.w = (const typename gpu_stored<T, W8>::type *)in.gemv.w;
    p.x_scales = scales.runs[run].of[0];
    p.w_scales = scales.runs[run].of[1];
    p.x_stride = (uint32_t)in.gemv.x_stride;
    p.w_stride = (uint32_t)in.gemv.w_stride;
    p.m = (uint32_t)in.gemv.m;
    p.k = (uint32_t)in.gemv.k;
    p.x_aligned = gpu_stored_aligned(p.x, p.m, in.gemv.x_stride);
    p.w_aligned = gpu_stored_aligned(p.w, in.gemv.n, in.gemv.w_stride);
    p.blocks = (p.x_scales.at && p.x_scales.cols == GPU_SCALES_BLOCK) || (p.w_scales.at && p.w_scales.cols == GPU_SCALES_BLOCK);
    return p;
}

/* One wave: COLS columns, from `col` on, by up to ROWS rows, from `row` on, of which there are `rows`, into sums[row][col] of a piece of the tile that
 * is `cols` wide. */
template <typename T, bool X8, bool W8, int ROWS, int COLS>
GPU_DEVICE void factors_multiply(float *sums, uint32_t cols, const struct factors<T, X8, W8> &p, uint32_t row, uint32_t rows,
                                 uint32_t col)
{
    enum { LENGTH = 16 / (int)sizeof(typename gpu_stored<T, W8>::type), NEXT = GPU_WAVE * LENGTH };
    typedef gpu_elements<T, W8, LENGTH> w_elements;
    typedef gpu_elements<T, X8, LENGTH> x_elements;
    const typename gpu_stored<T, W8>::type *w = p.w + (uint64_t)col * p.w_stride;
    const typename gpu_stored<T, X8>::type *x = p.x + (uint64_t)row * p.x_stride;
    const uint32_t lane = threadIdx.x % GPU_WAVE, k_end = p.k;
    float sum[ROWS][COLS] = {};
    w_elements now[FACTOR_STEPS][COLS], next[FACTOR_STEPS][COLS];

    const auto fetch = [&](w_elements(&to)[FACTOR_STEPS][COLS], uint32_t k) {
#pragma unroll
        for (int step = 0; step < FACTOR_STEPS; step++)
#pragma unroll
            for (int c = 0; c < COLS; c++)
                to[step][c].load(w + (uint64_t)c * p.w_stride + k + step * NEXT, (int64_t)k_end - k - step * NEXT, p.w_aligned);
    };
    fetch(now, lane * LENGTH);
#pragma unroll 1
    for (uint32_t k = lane * LENGTH; k < k_end; k += FACTOR_STEPS * NEXT) { /* K is below 2^31: no overflow */
        fetch(next, k + FACTOR_STEPS * NEXT);
#pragma unroll
        for (int step = 0; step < FACTOR_STEPS; step++) {
            const uint32_t at = k + step * NEXT;
            float b[COLS][LENGTH], w_scale[COLS];
            if (at >= k_end)
                continue;
#pragma unroll
            for (int c = 0; c < COLS; c++) {
                now[step][c].to_f32(b[c]);
                w_scale[c] = p.blocks ? gpu_scale(p.w_scales, col + c, at) : 1.0f;
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (r >= (int)rows)
                    continue;
                x_elements elements;
                float a[LENGTH];
                elements.load(x + (uint64_t)r * p.x_stride + at, (int64_t)k_end - at, p.x_aligned);
                elements.to_f32(a);
                const float x_scale = p.blocks ? gpu_scale(p.x_scales, row + r, at) : 1.0f;
#pragma unroll
                for (int c = 0; c < COLS; c++) {
                    float some = p.blocks ? 0.0f : sum[r][c];
#pragma unroll
                    for (int i = 0; i < LENGTH; i++)
                        some = fmaf(a[i], b[c][i], some);
                    sum[r][c] = p.blocks ? fmaf(some, x_scale * w_scale[c], sum[r][c]) : some;
                }
            }
        }
#pragma unroll
        for (int step = 0; step < FACTOR_STEPS; step++)
#pragma unroll
            for (int c = 0; c < COLS; c++)
                now[step][c] = next[step][c];
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            const float total = gpu_wave_sum(sum[r][c]);
            if (lane == 0 && r < (int)rows)
                sums[r * cols + c] =
                    p.blocks ? total : total * (gpu_scale(p.x_scales, row + r, 0) * gpu_scale(p.w_scales, col + c, 0));
        }
}

/* One wave: its columns of a piece, which begins at column `first`, by up to ROWS rows. */
template <typename T, bool X8, bool W8, int ROWS>
GEMV_APART void factors_columns(float *sums, uint32_t cols, const struct factors<T, X8, W8> &p, uint32_t row, uint32_t rows,
                                uint32_t first)
{
    const uint32_t wave = threadIdx.x / GPU_WAVE, end = cols * (wave + 1) / WAVES;
    uint32_t col = cols * wave / WAVES;

    for (; col + 2 <= end; col += 2)
        factors_multiply<T, X8, W8, ROWS, 2>(sums + col, cols, p, row, rows, first + col);
    if (col < end)
        factors_multiply<T, X8, W8, ROWS, 1>(sums + col, cols, p, row, rows, first + col);
}

/* Computes a tile of any width, in pieces that fit into shared memory. */
template <typename T, bool X8, bool W8, typename Put>
GPU_DEVICE void factors_tile(const struct gpu_call &call, const struct gpu_scales_argument &scales, uint32_t run,
                             const struct slice &s)
{
    __shared__ float sums[FACTOR_SUMS];
    __shared__ struct factors<T, X8, W8> p;

    if (threadIdx.x == 0)
        p = factors_get<T, X8, W8>(call, scales, run);
    __syncthreads();
    for (uint32_t first = 0, most = FACTOR_SUMS / p.m / GEMV_BLOCK * GEMV_BLOCK; first < s.cols; first += most) {
        const uint32_t cols = s.cols - first < most ? s.cols - first : most;
        for (uint32_t row = 0; row < p.m; row += FACTOR_ROWS) {
            const uint32_t rows = p.m - row < FACTOR_ROWS ? p.m - row : FACTOR_ROWS;
            if (rows == 1)
                factors_columns<T, X8, W8, 1>(sums + row * cols, cols, p, row, rows, s.col + first);
            else
                factors_columns<T, X8, W8, FACTOR_ROWS>(sums + row * cols, cols, p, row, rows, s.col + first);
        }
        __syncthreads();
        struct gpu_walk at = gpu_walk_at(threadIdx.x, cols, p.m), step = gpu_walk_at(THREADS, cols, p.m);
        typename Put::place to = Put::at(call, run, s);
        for (; at.z < 1; gpu_walk_next(&at, step, cols, p.m))
            Put::put(call, run, s, to, at.y, s.col + first + at.x, sums[at.y * cols + at.x]);
        if (first + cols < s.cols)
            __syncthreads();
    }
}

/* ---- on one node ---- */

template <typename T, bool X8, bool W8> struct factors_gemv {
    const struct gpu_scales_argument &scales;

    __device__ __forceinline__ bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        gemv_rest<T, true> rest;

        if (s.kind == SLICE_REDUCE || s.kind == SLICE_PUT || s.kind == SLICE_TAKE)
            return rest.slice(call, run, s);
        factors_tile<T, X8, W8, gemv_put_word>(call, scales, run, s);
        return true;
    }
};

template <typename T, bool X8, bool W8>
__global__ void __launch_bounds__(THREADS, 2)
    factors_kernel(GPU_PARAMETER struct gpu_call call, GPU_PARAMETER struct gpu_scales_argument scales)
{
    __shared__ struct gpu_group group[2];
    struct factors_gemv<T, X8, W8> op = {
        scales
    };
    bool go_on = true;

    gpu_bring_nearer(call);
    gpu_follow();
    gpu_begin(call);
    go_on = !gpu_is_over(call);
    for (uint32_t phase = 0; phase < GPU_PHASES && go_on; phase++) {
        if (phase == GPU_PHASE_REDUCE && threadIdx.x / GPU_WAVE == WAVES - 1) /* others may wait for words by now */
            through_meet(call);
        for (uint32_t i = 0; i < call.nruns && go_on; i++)
            go_on = gpu_phase_run(call, gpu_run_of(call, i), phase, group, op);
    }
    gpu_leave(call, group);
}

/* ---- over nodes ---- */

template <typename T, bool X8, bool W8> struct factors_gemv_over_nodes {
    const struct gpu_scales_argument &scales;

    __device__ __forceinline__ bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        if (s.kind == SLICE_COMPUTE || s.kind == SLICE_COMPUTE_PUT)
            factors_tile<T, X8, W8, sums_put_each>(call, scales, run, s);
        else
            sums_move<T, true>(call, run, s);
        return true;
    }
};

template <typename T, bool X8, bool W8>
__global__ void __launch_bounds__(THREADS, 2)
    factors_over_nodes_kernel(GPU_PARAMETER struct gpu_call call, GPU_PARAMETER struct gpu_scales_argument scales)
{
    struct factors_gemv_over_nodes<T, X8, W8> op = {
        scales
    };

    gpu_execute_over_nodes(call, op);
}

template <typename T, bool X8, bool W8> const void *function_with(const struct gpu_shape *shape)
{
    return shape->over_nodes ? (const void *)factors_over_nodes_kernel<T, X8, W8> : (const void *)factors_kernel<T, X8, W8>;
}

template <typename T> const void *function_of(const struct gpu_shape *shape)
{
    switch (shape->factors & FACTORS_F8) {
    case FACTORS_FIRST_F8:
        return function_with<T, true, false>(shape);
    case FACTORS_SECOND_F8:
        return function_with<T, false, true>(shape);
    default:
        return function_with<T, true, true>(shape);
    }
}

} // namespace

bool gpu_gemv_factors_fits(const struct gpu_shape *shape, int, const struct gpu_run[], int, struct gpu_choice *out)
{
    out->kernel = {GPU_BY_DTYPE(shape->dtype, function_of, shape), THREADS, 0, 0};
    return true;
}

void *gpu_factors_params(const struct gpu_choice *, const struct gpu_call *call, const struct gpu_fixed *)
{
    static thread_local struct gpu_scales_argument scales;

    scales = {};
    if (call->scales)
        memcpy(scales.runs, call->scales, call->nruns * sizeof(scales.runs[0]));
    return &scales;
}
