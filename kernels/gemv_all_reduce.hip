/* SPDX-License-Identifier: MIT
 *
 * gemv_all_reduce.hip - y = sum over ranks r, in rank order, of x_r . w_r^T, on GPUs. The plan, its phases, the layout of
 * slots and tiles and the argument why the order is right are gemv_all_reduce.c's; the rest is gpu_execute.h's.
 *
 * A partial sum is bound by reading w once. A tile's columns are dealt out to the waves of the workgroup; a wave goes along K
 * with one or two columns at a time, 16 bytes a lane, and reads the next ones while it multiplies those that it has. These
 * stay in registers while it goes through the rows of x, up to ROWS_MOST at a time; x is small and stays in the caches. More
 * rows than that take another pass over w.
 *
 * The tile comes together in shared memory and leaves from there in whole lines.
 *
 * Same bits, every run and with every schedule: a lane adds its products in the order of k, by one fused multiply-add each;
 * then the lanes of the wave are added in a fixed order. Which k a lane has depends on K and the dtype only: neither on where
 * x and w lie, nor on the tile or the number of columns and rows at a time. What lies beyond K counts as 0.
 */
#include "gpu_execute.h"
#include "gpu_vector.h"

enum {
    THREADS = 256,
    WAVES = THREADS / GPU_WAVE,
    ROWS_MOST = 16,
    ROWS_UNALIGNED = 4,
    SUMS = 4096, /* of a tile that are put together at a time: at least FCC_GEMV_MAX_M * WAVES */
};

/* What a rank multiplies, in shared memory. Strides in elements; sizes and strides are below 2^31 (tensor_check()). */
template <typename T> struct operands {
    const T *x, *w;
    uint32_t x_stride, w_stride;
    uint32_t m, k;
    bool aligned; /* rows of x and w begin at multiples of 16 bytes */
};

template <typename T> GPU_DEVICE operands<T> operands_get(const struct gpu_call &call, uint32_t run)
{
    const struct gpu_input &in = call.in[run];
    operands<T> p;

    p.x = (const T *)in.gemv.x;
    p.w = (const T *)in.gemv.w;
    p.x_stride = (uint32_t)in.gemv.x_stride;
    p.w_stride = (uint32_t)in.gemv.w_stride;
    p.m = (uint32_t)call.fixed->shape.m;
    p.k = (uint32_t)in.gemv.k;
    p.aligned = gpu_rows_aligned(p.x, p.m, in.gemv.x_stride) && gpu_rows_aligned(p.w, call.fixed->shape.n, in.gemv.w_stride);
    return p;
}

/* ---- products ---- */

/* LENGTH elements. Not `wanted`: 0. */
template <typename T, bool ALIGNED, bool ONCE> GPU_DEVICE struct gpu_words elements_load(const T *at, bool wanted)
{
    if (!ALIGNED)
        return gpu_vector<T>::gather(at, wanted);
    return ONCE ? gpu_words_load_once(at, wanted) : gpu_words_load(at, wanted);
}

/* STEPS vectors of each of COLS columns: what a lane has of w at a time. */
template <typename T, int COLS, int STEPS, bool ALIGNED> struct part {
    enum { LENGTH = gpu_vector<T>::LENGTH, NEXT = GPU_WAVE * LENGTH, WIDTH = STEPS * NEXT };
    struct gpu_words words[STEPS][COLS];

    /* From element k on; `whole` is where the last whole vector ends. */
    __device__ __forceinline__ void load(const T *w, uint32_t w_stride, uint32_t k, uint32_t whole)
    {
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int col = 0; col < COLS; col++)
                words[step][col] =
                    elements_load<T, ALIGNED, true>(w + (uint64_t)col * w_stride + k + step * NEXT, k + step * NEXT < whole);
    }

    /* Times as many of up to ROWS rows. The first `rows` are wanted; the others' sums are of no use. */
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

/* The elements after the last whole vector, each by a lane of its own. */
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

/* One wave: COLS columns from w on times up to ROWS rows from x on, into sums[row][col] of a piece of the tile, `cols` wide. */
template <typename T, int ROWS, int COLS, bool ALIGNED>
GPU_DEVICE void multiply(float *sums, uint32_t cols, const operands<T> &p, const T *x, const T *w, uint32_t rows)
{
    /* One part is under way while another one is multiplied. */
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

/* One wave: its columns of a piece, for up to ROWS rows. */
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

/* The workgroup: all rows. */
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

/* ---- slices ---- */

GPU_DEVICE float *slot_at(const struct gpu_call &call, uint32_t owner, uint32_t source, uint32_t col)
{
    const struct gpu_shape &shape = call.fixed->shape;

    return (float *)(call.fixed->staging[owner] + source * shape.slot_bytes) + shape.m * (col - shape.first[owner]);
}

/* This rank's own copy, unless fused. */
GPU_DEVICE float *local_at(const struct gpu_call &call, uint32_t run, uint32_t col)
{
    const struct gpu_shape &shape = call.fixed->shape;

    return (float *)(call.fixed->staging[gpu_plan_of(call, run)->rank] + shape.nranks * shape.slot_bytes) + shape.m * col;
}

/* A tile of any width in pieces that fit into shared memory. */
template <typename T> GPU_DEVICE void compute_tile(const struct gpu_call &call, uint32_t run, const struct slice &s, float *out)
{
    __shared__ float sums[SUMS];
    __shared__ operands<T> p;

    if (threadIdx.x == 0)
        p = operands_get<T>(call, run);
    __syncthreads();
    for (uint32_t first = 0, most = SUMS / p.m; first < s.cols; first += most) {
        uint32_t cols = s.cols - first < most ? s.cols - first : most;
        const T *w = p.w + (uint64_t)(s.col + first) * p.w_stride;
        if (p.aligned)
            multiply_piece<T, true>(sums, cols, p, w);
        else
            multiply_piece<T, false>(sums, cols, p, w);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < p.m * cols; i += THREADS)
            out[(uint64_t)(i / cols) * s.cols + first + i % cols] = sums[i];
        if (first + cols < s.cols)
            __syncthreads();
    }
}

/* One thread adds all ranks' partial sums of an element, in rank order, and stores the result at all of them, beginning with
 * the next rank, as the puts do. */
template <typename T> GPU_DEVICE void reduce_tile(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    const struct gpu_shape &shape = call.fixed->shape;
    uint32_t nranks = shape.nranks, rank = gpu_plan_of(call, run)->rank;
    const float *first = slot_at(call, rank, 0, s.col);
    uint64_t slot = shape.slot_bytes / sizeof(float);
    struct gpu_walk at = gpu_walk_at(threadIdx.x, s.cols, s.rows), step = gpu_walk_at(THREADS, s.cols, s.rows);

    for (; at.z < 1; gpu_walk_next(&at, step, s.cols, s.rows)) {
        const float *from = first + (uint64_t)at.y * s.cols + at.x;
        float sum = *from;
        T rounded;
#pragma unroll 4
        for (uint32_t r = 1; r < nranks; r++)
            sum += from[r * slot];
        gpu_from_f32(&rounded, sum);
        for (uint32_t i = 1; i <= nranks; i++) {
            const struct gpu_output &y = call.out[rank + i < nranks ? rank + i : rank + i - nranks];
            ((T *)y.data)[at.y * y.stride[0] + s.col + at.x] = rounded;
        }
    }
}

template <typename T> struct gemv {
    __device__ __forceinline__ bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        uint32_t rank = gpu_plan_of(call, run)->rank;

        if (s.kind == SLICE_REDUCE) {
            reduce_tile<T>(call, run, s);
        } else if (s.kind == SLICE_PUT) {
            float *to = slot_at(call, s.dst, rank, s.col);
            const float *from = local_at(call, run, s.col);
            for (uint64_t i = threadIdx.x; i < (uint64_t)s.rows * s.cols; i += THREADS)
                to[i] = from[i];
        } else {
            compute_tile<T>(call, run, s,
                            s.kind == SLICE_COMPUTE ? local_at(call, run, s.col) : slot_at(call, s.dst, rank, s.col));
        }
        return true;
    }
};

template <typename T> __global__ void __launch_bounds__(THREADS, 2) gemv_kernel(GPU_PARAMETER struct gpu_call call)
{
    struct gemv<T> op;

    gpu_execute(call, op);
}

struct gpu_kernel gpu_gemv_kernel(enum fcc_dtype dtype)
{
    struct gpu_kernel k = {NULL, THREADS, 0, 0, 0};

    k.function = dtype == FCC_F16    ? (const void *)gemv_kernel<gpu_f16>
                 : dtype == FCC_BF16 ? (const void *)gemv_kernel<gpu_bf16>
                                     : (const void *)gemv_kernel<float>;
    return k;
}
