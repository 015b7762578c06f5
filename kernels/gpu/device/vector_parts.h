/* SPDX-License-Identifier: MIT
 *
 * vector_parts.h - where the slices of collectives lie: kernels/plan/compute/vector.h on a GPU.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_VECTOR_PARTS_H
#define FCC_KERNELS_GPU_DEVICE_VECTOR_PARTS_H

#include "kernels/gpu/device/exchange/reduce_nodes.h"

/* A slice's elements: of what one rank has for another, from `at` on in the part; or of the whole vector. */
struct vector_piece {
    int64_t at, count;
};

GPU_DEVICE struct vector_piece vector_piece_make(const struct gpu_shape &shape, int64_t begin, int64_t columns, int64_t end)
{
    int64_t count = columns * shape.unit;

    return {begin, count < end - begin ? count : end - begin};
}

/* Of collectives that only move: the slice's piece of what the run's rank has for the slice's destination. */
GPU_DEVICE struct vector_piece vector_piece_moved(const struct gpu_shape &shape, const int64_t *parts, const struct slice &s)
{
    return vector_piece_make(shape, s.col * shape.unit, s.cols, parts[2 * shape.nranks + s.dst]);
}

/* Of collectives that reduce: the slice's piece of the whole vector. Its owner reduces it. */
GPU_DEVICE struct vector_piece vector_piece_reduced(const struct gpu_shape &shape, uint32_t owner, const struct slice &s)
{
    int64_t begin = shape.elements[owner] + ((int64_t)s.col - shape.first[owner]) * shape.unit;

    return vector_piece_make(shape, begin, s.cols, shape.elements[owner + 1]);
}

/* Where an element of the whole vector is in the result of a rank that gets what `owner` has reduced. */
GPU_DEVICE char *vector_result_at(const struct gpu_call &call, uint32_t rank, uint32_t owner, int64_t element)
{
    const struct gpu_shape &shape = call.fixed->shape;

    return (char *)call.out[rank].data + (element - (shape.keeps_own ? shape.elements[owner] : 0)) * shape.element_bytes;
}

#endif
