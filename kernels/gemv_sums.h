/* SPDX-License-Identifier: MIT
 *
 * gemv_sums.h - how gemv_all_reduce's partial sums come together on GPUs when ranks are on several nodes: as they are, tile by tile,
 * with a flag for each tile. A word that carries its stamp would have to be sent word by word, and be waited for in a kernel. The plan is
 * gemv_all_reduce.c's, as on a cpu, and so is where tiles lie. Part of gemv_all_reduce.hip.
 *
 * Staging memory of a rank: its own partial sums of all tiles, unless fused; behind these for each rank a slot for the tiles of its own chunk,
 * each tile dense, [M][columns].
 */
#ifndef FCC_GEMV_SUMS_H
#define FCC_GEMV_SUMS_H

#include "gemv_words.h"

/* Where `source` puts a tile that `owner` reduces: on another node that is the owner's shadow. */
GPU_DEVICE float *gemv_tile_at(const struct gpu_call &call, uint32_t owner, uint32_t source, uint32_t col)
{
    const struct gpu_shape &shape = call.fixed->shape;

    return (float *)(call.fixed->staging[owner] + shape.local_bytes + source * shape.slot_bytes) +
           shape.m * (int64_t)(col - shape.first[owner]);
}

/* A rank's own partial sums of a tile, unless fused. */
GPU_DEVICE float *gemv_own_tile_at(const struct gpu_call &call, uint32_t run, uint32_t col)
{
    const struct gpu_shape &shape = call.fixed->shape;

    return (float *)call.fixed->staging[gpu_plan_of(call, run)->rank] + shape.m * (int64_t)col;
}

/* A sum to where its slice says. */
struct gemv_put_sum {
    static __device__ __forceinline__ void put(const struct gpu_call &call, uint32_t run, const struct slice &s, uint32_t row,
                                               uint32_t col, float sum)
    {
        float *tile = s.kind == SLICE_COMPUTE ? gemv_own_tile_at(call, run, s.col)
                                              : gemv_tile_at(call, s.dst, gpu_plan_of(call, run)->rank, s.col);

        tile[(uint64_t)row * s.cols + (col - s.col)] = sum;
    }
};

/* All threads: the own partial sums of a tile to who reduces it. */
GPU_DEVICE void gemv_tile_put(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    float *to = gemv_tile_at(call, s.dst, gpu_plan_of(call, run)->rank, s.col);
    const float *from = gemv_own_tile_at(call, run, s.col);

    for (uint32_t i = threadIdx.x; i < s.rows * s.cols; i += blockDim.x)
        to[i] = from[i];
}

/* All threads: all ranks' partial sums of a tile, added in rank order, into every rank's y, beginning with the next one. */
template <typename T> GPU_DEVICE void gemv_tile_reduce(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    const struct gpu_shape &shape = call.fixed->shape;
    const uint32_t nranks = shape.nranks, rank = gpu_plan_of(call, run)->rank;
    const float *first = gemv_tile_at(call, rank, 0, s.col);

    for (uint32_t i = threadIdx.x; i < s.rows * s.cols; i += blockDim.x) {
        float sum = first[i];
        for (uint32_t r = 1; r < nranks; r++)
            sum += first[r * (shape.slot_bytes / sizeof(float)) + i];
        T result;
        gpu_from_f32(&result, sum);
        for (uint32_t r = 0; r < nranks; r++) {
            const struct gpu_output &y = call.out[gemv_rank_at(r, rank, nranks)];
            ((T *)y.data)[(int64_t)(i / s.cols) * y.stride[0] + s.col + i % s.cols] = result;
        }
    }
}

#endif
