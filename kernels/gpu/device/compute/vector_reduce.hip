/* SPDX-License-Identifier: MIT
 *
 * vector_reduce.hip - collectives that reduce. On one node, the owner of a slice reads its elements from all ranks' inputs, in rank order,
 * and stores what it has combined into the results. Over nodes the terms travel as on a cpu (kernels/plan/exchange/reduce_nodes.c): each
 * rank puts its elements, in the type in which they are combined, into a receive slot; nodes' ranks come first, then the nodes.
 *
 * Memory order, on one node. A kernel begins after all ranks' streams have come, so it sees their inputs; a rank's input stays until all
 * owners' flags have come, each of which is raised after its owner's loads (__syncthreads(), then the fence of gpu_slice_signal()).
 */
#include "kernels/gpu/device/exchange/combine_group.h"
#include "kernels/gpu/device/registry.h"
#include "kernels/gpu/device/vector_parts.h"

enum { THREADS = 512, RESIDENT = 1 };

/* ---- on one node ---- */

/* One thread: the slice's elements in all ranks' inputs, and in the results that get it, beginning with the next rank's. */
GPU_DEVICE void vectors_find(const struct gpu_call &call, const struct gpu_plan *plan, const struct slice &s, int64_t element,
                             struct combine_vectors *v)
{
    const struct gpu_shape &shape = call.fixed->shape;
    const uint32_t nranks = shape.nranks;

    v->nterms = v->nranks = nranks;
    v->nresults = 0;
    v->reduction = shape.reduction;
    for (uint32_t r = 0; r < nranks; r++) {
        uint32_t dst = gpu_rank_at(r, plan->rank, nranks);
        v->term[r] = call.out[r].in + (uint64_t)element * shape.element_bytes;
        if (gpu_plan_reaches(plan, s.dst, dst))
            v->result[v->nresults++] = (uint64_t)vector_result_at(call, dst, plan->rank, element);
    }
}

/* ---- over nodes ---- */

template <typename S>
GPU_DEVICE S *slot_at(const struct gpu_call &call, uint32_t at, uint32_t slot, const struct slice &s, uint32_t owner)
{
    const struct gpu_shape &shape = call.fixed->shape;

    return (S *)(call.fixed->staging[at] + shape.local_bytes + slot * shape.slot_bytes) +
           ((int64_t)s.col - shape.first[owner]) * shape.unit;
}

template <typename T> struct over_nodes {
    typedef typename combine_in<T>::type S;

    /* Combines n terms in order: element i of each. */
    static __device__ __forceinline__ S in_order(uint32_t reduction, const S *first, uint64_t apart, uint32_t n, int64_t i)
    {
        S sum[1] = {first[i]};

        for (uint32_t t = 1; t < n; t++) {
            const S next[1] = {first[t * apart + i]};
            combine(reduction, sum, next);
        }
        return sum[0];
    }

    /* This node's term, and the other nodes', in the order of the nodes. */
    static __device__ __forceinline__ S total(const struct gpu_shape &shape, const struct slice &s, const S *first, int64_t i)
    {
        const uint32_t nodes = shape.nodes, here = s.wait_count - (nodes - 1);
        const uint64_t apart = shape.slot_bytes / sizeof(S);
        const S own = in_order(shape.reduction, first, apart, here, i);
        S sum[1] = {s.slot == 0 ? own : first[here * apart + i]};

        for (uint32_t j = 1; j < nodes; j++) {
            const S next[1] = {j == s.slot ? own : first[(here + j - (j > s.slot)) * apart + i]};
            combine(shape.reduction, sum, next);
        }
        combine_end(shape.reduction, shape.nranks, sum);
        return sum[0];
    }

    static __device__ __forceinline__ void slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        const struct gpu_shape &shape = call.fixed->shape;
        const struct gpu_plan *plan = gpu_plan_of(call, run);
        const uint32_t owner = sums_owner_of(shape, s.col), nranks = shape.nranks, rank = plan->rank;
        const struct vector_piece piece = vector_piece_reduced(shape, owner, s);
        const T *in = (const T *)call.in[run].vector.in + piece.at,
                *own = (const T *)vector_result_at(call, rank, owner, piece.at);
        const S *terms = slot_at<S>(call, rank, s.terms, s, owner);
        S *slot = slot_at<S>(call, s.dst & SLICE_DST_SET ? rank : s.dst, s.slot, s, owner); /* of slices that have one */

        for (int64_t i = threadIdx.x; i < piece.count; i += blockDim.x) {
            if (s.kind == SLICE_COMPUTE_PUT) {
                slot[i] = combine_load<T, S>(in[i]);
                continue;
            }
            if (s.kind == SLICE_REDUCE_NODE) {
                slot[i] = in_order(shape.reduction, terms, shape.slot_bytes / sizeof(S), s.wait_count, i);
                continue;
            }
            const T result = s.kind == SLICE_FORWARD ? own[i] : combine_round<T, S>(total(shape, s, terms, i));
            for (uint32_t r = 0; r < nranks; r++) {
                uint32_t dst = gpu_rank_at(r, rank, nranks);
                if (gpu_plan_reaches(plan, s.dst, dst))
                    ((T *)vector_result_at(call, dst, owner, piece.at))[i] = result;
            }
        }
    }
};

/* ---- kernels ---- */

template <typename T> struct vector_reduce {
    __device__ __forceinline__ bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        __shared__ struct combine_vectors v;
        const struct gpu_plan *plan = gpu_plan_of(call, run);
        const struct vector_piece piece = vector_piece_reduced(call.fixed->shape, plan->rank, s);

        if (threadIdx.x == 0)
            vectors_find(call, plan, s, piece.at, &v);
        __syncthreads();
        combine_group<T, sizeof(T) == 1 ? 2 : 4>{v}.run(piece.count);
        return true;
    }
};

template <typename T> struct vector_reduce_over_nodes {
    __device__ __forceinline__ bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        over_nodes<T>::slice(call, run, s);
        return true;
    }
};

template <typename T>
__global__ void __launch_bounds__(THREADS, RESIDENT) vector_reduce_kernel(GPU_PARAMETER struct gpu_call call)
{
    struct vector_reduce<T> op;

    gpu_execute(call, op);
}

template <typename T>
__global__ void __launch_bounds__(THREADS, RESIDENT) vector_reduce_over_nodes_kernel(GPU_PARAMETER struct gpu_call call)
{
    struct vector_reduce_over_nodes<T> op;

    gpu_execute_over_nodes(call, op);
}

template <typename T> static const void *function_of(const struct gpu_shape *shape)
{
    return shape->over_nodes ? (const void *)vector_reduce_over_nodes_kernel<T> : (const void *)vector_reduce_kernel<T>;
}

static const void *function_by_dtype(const struct gpu_shape *shape)
{
    switch (shape->dtype) {
    case FCC_U8:
        return function_of<uint8_t>(shape);
    case FCC_I8:
        return function_of<int8_t>(shape);
    case FCC_I32:
        return function_of<int32_t>(shape);
    case FCC_I64:
        return function_of<int64_t>(shape);
    case FCC_F64:
        return function_of<double>(shape);
    default:
        return GPU_BY_DTYPE(shape->dtype, function_of, shape);
    }
}

bool gpu_vector_reduce_fits(const struct gpu_shape *shape, int, const struct gpu_run[], int, struct gpu_choice *out)
{
    out->kernel = {function_by_dtype(shape), THREADS, 0, 0};
    return true;
}
