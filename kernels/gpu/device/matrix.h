/* SPDX-License-Identifier: MIT
 *
 * matrix.h - products of dense matrices on a GPU: one tile of C = A . B by one workgroup. Sums are kept in f32.
 *
 * Three engines with one interface; which one a GPU runs is decided when its code is compiled:
 *     gpu_wgmma<T>   sm_90a, f16 and bf16: the warpgroups' matrix instructions
 *     gpu_mfma<T>    gfx90a, gfx940, gfx942: the waves' matrix instructions
 *     gpu_fma<T>     all others, and f32 on every NVIDIA GPU: there the matrix instructions would round f32 to 10 bits
 *
 * An engine has
 *     ROWS, COLS     the largest tile
 *     SHARED_BYTES   dynamic shared memory
 *     RESIDENT       workgroups that are to fit on a multiprocessor at a time
 *     template <typename C, typename Finish>
 *     static void multiply(const struct gpu_tile<T, C> &p, unsigned char *shared, const Finish &finish)
 * C is T, or f32: sums that are not rounded. finish is what sums go through before they are stored (gpu_as_they_are). multiply() is called by all GPU_MATRIX_THREADS threads of a workgroup with the same arguments. It begins with any access to
 * `shared` and ends with a barrier, so it may be called again at once.
 *
 * Rows and columns beyond p.rows, p.cols and p.k are never read; inside shared memory they are zeros. So a tile may lie at any
 * edge, and k = 0 gives zeros.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_MATRIX_H
#define FCC_KERNELS_GPU_DEVICE_MATRIX_H

#include "kernels/gpu/device/rows.h"
#include "kernels/gpu/platform.h"

#define GPU_MATRIX_THREADS 256

/* c[rows][cols] = a[rows][k] . b[k][cols]. Strides are distances between rows, in elements; a row is dense. Rows need only
 * an element's alignment; 16 bytes are faster. */
template <typename T, typename C = T> struct gpu_product {
    const T *a, *b;
    C *c;
    int64_t a_stride, b_stride, c_stride, k, rows, cols;
};

/* What an engine multiplies in one call: at least one row and column, at most its ROWS and COLS. */
template <typename T, typename C = T> struct gpu_tile : gpu_product<T, C> {
    unsigned alignment; /* alignment of all rows of a and b in bytes: 2, 4, 8 or 16 */
};

/* Loads COUNT elements from `at`. Only the first `valid` exist; the others become zeros. in_one: one access may load them
 * all. */
template <typename T, int COUNT>
GPU_DEVICE void gpu_elements_load(gpu_bits<T> (&out)[COUNT], const T *at, int valid, bool in_one)
{
    struct alignas(sizeof(T) * COUNT) whole {
        gpu_bits<T> bits[COUNT];
    };
    const gpu_bits<T> *bits = (const gpu_bits<T> *)at;

    if (in_one && valid >= COUNT) {
        struct whole all = *(const struct whole *)at;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            out[i] = all.bits[i];
        return;
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        out[i] = i < valid ? bits[i] : (gpu_bits<T>)0;
}

/* ---- the engines ---- */

/* What the sums of a product go through before they are rounded. CHANGES: operator()(row, column, sum) returns the sum to be stored.
 * at(): the same for the tile that begins there. */
struct gpu_as_they_are {
    static constexpr bool CHANGES = false;

    __device__ __forceinline__ struct gpu_as_they_are at(int64_t, int64_t) const
    {
        return {};
    }
};

/* Store a tile's sums as they are. */
struct gpu_sum_store {
    float *c;
    int64_t stride;

    __device__ __forceinline__ float operator()(int row, int col, float sum) const
    {
        return c[row * stride + col] = sum;
    }
};

#include "kernels/gpu/device/matrix_fma.h"
#if defined(__CUDACC__)
#include "kernels/gpu/device/matrix_wgmma.h"
#else
#include "kernels/gpu/device/matrix_mfma.h"
#endif

/* The engine for the GPU that the code is compiled for. For the host's side of the code it may be any. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <typename T> struct gpu_engine : gpu_wgmma<T> {
};
template <> struct gpu_engine<float> : gpu_fma<float> {
};
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#error "sm_90 lacks the matrix instructions that the host expects of such a GPU: build for sm_90a"
#elif defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx942__)
template <typename T> struct gpu_engine : gpu_mfma<T> {
};
#else
template <typename T> struct gpu_engine : gpu_fma<T> {
};
#endif

/* The tile of a product that begins at (row, col). */
template <typename T, typename C>
GPU_DEVICE void gpu_tile_make(struct gpu_tile<T, C> *out, const struct gpu_product<T, C> &whole, int64_t row, int64_t col)
{
    int64_t rows = whole.rows - row, cols = whole.cols - col;

    out->a = whole.a + row * whole.a_stride;
    out->b = whole.b + col;
    out->c = whole.c + row * whole.c_stride + col;
    out->a_stride = whole.a_stride;
    out->b_stride = whole.b_stride;
    out->c_stride = whole.c_stride;
    out->k = whole.k;
    out->rows = rows < gpu_engine<T>::ROWS ? rows : gpu_engine<T>::ROWS;
    out->cols = cols < gpu_engine<T>::COLS ? cols : gpu_engine<T>::COLS;
    uint64_t all = (uint64_t)out->a | (uint64_t)out->b | (uint64_t)(out->a_stride | out->b_stride) * sizeof(T) | 16;
    out->alignment = (unsigned)(all & -all);
}

/* All threads: a product of any size, tile by tile. Both arguments are in shared memory, so they take no registers while an
 * engine works. Begins and ends as an engine's multiply(). */
template <typename T, typename C, typename Finish = struct gpu_as_they_are>
GPU_DEVICE void gpu_multiply(const struct gpu_product<T, C> &whole, unsigned char *shared, const Finish &finish = {})
{
    __shared__ struct gpu_tile<T, C> tile;

    for (int64_t col = 0; col < whole.cols; col += gpu_engine<T>::COLS) {
        for (int64_t row = 0; row < whole.rows; row += gpu_engine<T>::ROWS) {
            if (threadIdx.x == 0)
                gpu_tile_make(&tile, whole, row, col);
            __syncthreads();
            gpu_engine<T>::multiply(tile, shared, finish.at(row, col));
        }
    }
}

/* ---- the host's side ---- */

/* The dynamic shared memory that a kernel with gpu_engine<T> needs on a GPU of this compute capability (AMD: on any GPU).
 * At least as much as the GPU's code was compiled with. */
template <typename T> static inline size_t gpu_matrix_shared_bytes(int major, int minor)
{
#if defined(__CUDACC__)
    if (major == 9 && minor == 0 && sizeof(T) == 2)
        return gpu_wgmma<T>::SHARED_BYTES;
    return gpu_fma<T>::SHARED_BYTES;
#else
    (void)major;
    (void)minor;
    return gpu_mfma<T>::SHARED_BYTES > gpu_fma<T>::SHARED_BYTES ? gpu_mfma<T>::SHARED_BYTES : gpu_fma<T>::SHARED_BYTES;
#endif
}

#endif
