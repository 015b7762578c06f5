/* SPDX-License-Identifier: MIT
 *
 * reduce_nodes.h - the exchange of partial sums on GPUs as plain f32 tiles with a flag for each tile: those of gemm, and those of
 * gemv when ranks are on several nodes. (Packets would double the data on the network and need a kernel that waits for them.)
 * The plan, flat or hierarchical, the order of additions and the layout are the same as on a cpu:
 * kernels/plan/exchange/reduce_nodes.c.
 *
 * Staging memory of a rank: its own partial sums of all tiles, unless fused; then its receive slots, for the tiles of its own
 * chunk and of the chunks that it is deputy for (kernels/plan/exchange/reduce.h). Each tile is dense, [M][columns]; a slice is
 * some rows of it, and names its slot. Where rows are scattered a tile has all columns, and slices, some columns each, are dense.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_REDUCE_NODES_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_REDUCE_NODES_H

#include "kernels/gpu/device/epilogue.h"
#include "kernels/gpu/device/execute.h"

/* Rank number `i`, from 0 on, in the order in which a rank serves them: beginning with the next one, itself last. */
GPU_DEVICE uint32_t gpu_rank_at(uint32_t i, uint32_t rank, uint32_t nranks)
{
    return rank + 1 + i < nranks ? rank + 1 + i : rank + 1 + i - nranks;
}

/* The owner of a column (by_rows: of a row): the rank whose chunk it is in. */
GPU_DEVICE uint32_t sums_owner_of(const struct gpu_shape &shape, uint32_t col)
{
    uint32_t least = 0, most = shape.nranks - 1;

    while (least < most) {
        uint32_t middle = (least + most) / 2;
        if (shape.first[middle + 1] > (int64_t)col)
            most = middle;
        else
            least = middle + 1;
    }
    return least;
}

/* Elements from the beginning of partial sums, whose first column (by_rows: row) is `first`, to the slice's. */
GPU_DEVICE int64_t sums_before(const struct gpu_shape &shape, const struct slice &s, int64_t first)
{
    if (shape.by_rows)
        return shape.n * ((int64_t)s.row - first) + (int64_t)s.rows * s.col;
    return shape.m * ((int64_t)s.col - first) + (int64_t)s.row * s.cols;
}

/* The slice's sums in a receive slot of rank `at`; its bounce buffer here if the rank is on another node. */
GPU_DEVICE float *sums_at(const struct gpu_call &call, uint32_t at, uint32_t slot, const struct slice &s)
{
    const struct gpu_shape &shape = call.fixed->shape;

    return (float *)(call.fixed->staging[at] + shape.local_bytes + slot * shape.slot_bytes) +
           sums_before(shape, s, shape.first[sums_owner_of(shape, shape.by_rows ? s.row : s.col)]);
}

/* The slice's own partial sums, unless fused. */
GPU_DEVICE float *sums_own_at(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    return (float *)call.fixed->staging[gpu_plan_of(call, run)->rank] + sums_before(call.fixed->shape, s, 0);
}

/* Where a slice that computes stores its sums. */
GPU_DEVICE float *sums_to(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    return s.kind == SLICE_COMPUTE ? sums_own_at(call, run, s) : sums_at(call, s.dst, s.slot, s);
}

/* Stores a sum at the destination of its slice. */
struct sums_put_each {
    typedef float *place;

    static __device__ __forceinline__ place at(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        return sums_to(call, run, s);
    }

    static __device__ __forceinline__ void put(const struct gpu_call &, uint32_t, const struct slice &s, place tile,
                                               uint32_t row, uint32_t col, float sum)
    {
        tile[(uint64_t)row * s.cols + (col - s.col)] = sum;
    }
};

/* All threads: put this rank's partial sums to the rank that collects them. */
GPU_DEVICE void sums_put(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    float *to = sums_at(call, s.dst, s.slot, s);
    const float *from = sums_own_at(call, run, s);

    for (uint32_t i = threadIdx.x; i < s.rows * s.cols; i += blockDim.x)
        to[i] = from[i];
}

/* Element i of a tile: the sum of this node's n partial sums, in rank order. `apart`: the distance from one to the next. */
GPU_DEVICE float sums_of_node(const float *first, uint64_t apart, uint32_t n, uint32_t i)
{
    float sum = first[i];

    for (uint32_t r = 1; r < n; r++)
        sum += first[r * apart + i];
    return sum;
}

/* All threads: put this node's sum of a tile to the tile's owner on another node. */
GPU_DEVICE void sums_reduce_node(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    const float *first = sums_at(call, gpu_plan_of(call, run)->rank, s.terms, s);
    const uint64_t apart = call.fixed->shape.slot_bytes / sizeof(float);
    float *to = sums_at(call, s.dst, s.slot, s);

    for (uint32_t i = threadIdx.x; i < s.rows * s.cols; i += blockDim.x)
        to[i] = sums_of_node(first, apart, s.wait_count, i);
}

/* Element i of a tile of this rank's chunk: the sum over all nodes, in node order. This node's term is the sum of its n ranks'
 * slots, the other nodes' slots are behind them. own: the index of this node. */
GPU_DEVICE float sums_total(const float *first, uint64_t apart, uint32_t n, uint32_t nodes, uint32_t own, uint32_t i)
{
    float here = sums_of_node(first, apart, n, i), total = own == 0 ? here : first[n * apart + i];

    for (uint32_t j = 1; j < nodes; j++)
        total += j == own ? here : first[(n + j - (j > own)) * apart + i];
    return total;
}

/* All threads: store a tile's sum into y of all its destinations, beginning with the next rank. The slice has waited for each
 * term's flag. */
template <typename T, bool EPILOGUE>
GPU_DEVICE void sums_reduce(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    const struct gpu_shape &shape = call.fixed->shape;
    const struct gpu_plan *plan = gpu_plan_of(call, run);
    const uint32_t nranks = shape.nranks, nodes = shape.nodes, rank = plan->rank, here = s.wait_count - (nodes - 1);
    const float *first = sums_at(call, rank, s.terms, s);

    for (uint32_t i = threadIdx.x; i < s.rows * s.cols; i += blockDim.x) {
        T result;
        float total = sums_total(first, shape.slot_bytes / sizeof(float), here, nodes, s.slot, i);
        if constexpr (EPILOGUE)
            total = gpu_epilogue_at<T>(call, run, s.dst_row, s.col).apply(total, i / s.cols, i % s.cols);
        gpu_from_f32(&result, total);
        for (uint32_t r = 0; r < nranks; r++) {
            uint32_t dst = gpu_rank_at(r, rank, nranks);
            const struct gpu_output &y = call.out[dst];
            if (gpu_plan_reaches(plan, s.dst, dst))
                ((T *)y.data)[(int64_t)(s.dst_row + i / s.cols) * y.stride[0] + s.col + i % s.cols] = result;
        }
    }
}

/* All threads: copy a tile of this rank's y, which has come from another node, into y of other ranks of this node. */
template <typename T> GPU_DEVICE void sums_forward(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    const struct gpu_plan *plan = gpu_plan_of(call, run);
    const uint32_t nranks = call.fixed->shape.nranks, rank = plan->rank;
    const struct gpu_output &from = call.out[rank];

    for (uint32_t i = threadIdx.x; i < s.rows * s.cols; i += blockDim.x) {
        int64_t row = s.row + i / s.cols, col = s.col + i % s.cols;
        T result = ((const T *)from.data)[row * from.stride[0] + col];
        for (uint32_t r = 0; r < nranks; r++) {
            uint32_t dst = gpu_rank_at(r, rank, nranks);
            if (gpu_plan_reaches(plan, s.dst, dst))
                ((T *)call.out[dst].data)[row * call.out[dst].stride[0] + col] = result;
        }
    }
}

/* All threads: a slice that computes nothing. */
template <typename T, bool EPILOGUE> GPU_DEVICE void sums_move(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    switch (s.kind) {
    case SLICE_REDUCE:
        sums_reduce<T, EPILOGUE>(call, run, s);
        break;
    case SLICE_REDUCE_NODE:
        sums_reduce_node(call, run, s);
        break;
    case SLICE_FORWARD:
        sums_forward<T>(call, run, s);
        break;
    default:
        sums_put(call, run, s);
        break;
    }
}

#endif
