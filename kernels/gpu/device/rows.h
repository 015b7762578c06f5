/* SPDX-License-Identifier: MIT
 *
 * rows.h - the copy of a rectangle of elements by many threads of a GPU.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_ROWS_H
#define FCC_KERNELS_GPU_DEVICE_ROWS_H

#include "kernels/gpu/platform.h"

/* The bits of an element, for moving elements without computing. */
template <size_t size> struct gpu_bits_of;
template <> struct gpu_bits_of<2> {
    typedef uint16_t type;
};
template <> struct gpu_bits_of<4> {
    typedef uint32_t type;
};
template <typename T> using gpu_bits = typename gpu_bits_of<sizeof(T)>::type;

/* A thread's places in rows of `cols`, `step` apart, without a division each. */
struct gpu_row_walk {
    uint32_t row, col, more_rows, more_cols, cols;

    __device__ __forceinline__ void next()
    {
        row += more_rows;
        col += more_cols;
        if (col >= cols) {
            col -= cols;
            row++;
        }
    }
};

/* Copies columns [0, cols) of rows, sizeof(V) bytes at a time, as thread `first` of `step` threads. AT_ONCE loads are in flight
 * before the first store. */
template <typename V, int AT_ONCE>
GPU_DEVICE void gpu_rows_copy_by(unsigned char *to, int64_t to_stride, const unsigned char *from, int64_t from_stride,
                                 uint32_t rows, uint32_t cols, uint32_t first, uint32_t step)
{
    struct gpu_row_walk in = {first / cols, first % cols, step / cols, step % cols, cols}, out = in;

    while (in.row < rows) {
        V held[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++, in.next())
            if (in.row < rows)
                held[i] = *((const V *)(from + in.row * from_stride) + in.col);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++, out.next())
            if (out.row < rows)
                *((V *)(to + out.row * to_stride) + out.col) = held[i];
    }
}

template <typename T, typename V, int AT_ONCE>
GPU_DEVICE void gpu_rows_copy_mostly_by(T *to, int64_t to_stride, const T *from, int64_t from_stride, uint32_t rows,
                                        uint32_t cols, uint32_t first, uint32_t step)
{
    constexpr uint32_t PER = sizeof(V) / sizeof(T);
    uint32_t whole = cols / PER, done = whole * PER;
    int64_t size = sizeof(T);

    if (whole)
        gpu_rows_copy_by<V, AT_ONCE>((unsigned char *)to, to_stride * size, (const unsigned char *)from, from_stride * size,
                                     rows, whole, first, step);
    if (done < cols)
        gpu_rows_copy_by<gpu_bits<T>, AT_ONCE>((unsigned char *)(to + done), to_stride * size,
                                               (const unsigned char *)(from + done), from_stride * size, rows, cols - done,
                                               first, step);
}

/* Copies a rectangle in global or shared memory, as thread `first` of `step` threads, with the widest accesses that both
 * ends allow. Strides in elements. rows and cols may be 0 or less: nothing is copied. `from` is never read through a cache
 * that may be stale. */
template <typename T, int AT_ONCE = 4>
GPU_DEVICE void gpu_rows_copy(T *to, int64_t to_stride, const T *from, int64_t from_stride, int64_t rows, int64_t cols,
                              uint32_t first, uint32_t step)
{
    uint64_t all = (uint64_t)to | (uint64_t)from | (uint64_t)(to_stride | from_stride) * sizeof(T);
    uint32_t m = (uint32_t)rows, n = (uint32_t)cols;

    if (rows <= 0 || cols <= 0)
        return;
    if (all % 16 == 0)
        gpu_rows_copy_mostly_by<T, uint4, AT_ONCE>(to, to_stride, from, from_stride, m, n, first, step);
    else if (all % 8 == 0)
        gpu_rows_copy_mostly_by<T, uint2, 4>(to, to_stride, from, from_stride, m, n, first, step);
    else if (all % 4 == 0)
        gpu_rows_copy_mostly_by<T, uint32_t, 4>(to, to_stride, from, from_stride, m, n, first, step);
    else
        gpu_rows_copy_mostly_by<T, gpu_bits<T>, 4>(to, to_stride, from, from_stride, m, n, first, step);
}

#endif
