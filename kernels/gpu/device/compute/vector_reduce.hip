/* SPDX-License-Identifier: MIT
 *
 * vector_reduce.hip - collectives that reduce. On one node, the owner of a slice reads its elements from all ranks' inputs, in rank order,
 * and stores what it has combined into the results. Over nodes the terms travel as on a cpu (kernels/plan/exchange/reduce_nodes.c): each
 * rank puts its elements, in the type in which they are combined, into a receive slot; nodes' ranks come first, then the nodes.
 *
 * Memory order, on one node. A kernel begins after all ranks' streams have come, so it sees their inputs; a rank's input stays until all
 * owners' flags have come, each of which is raised after its owner's loads (__syncthreads(), then the fence of gpu_slice_signal()).
 */
#include "kernels/gpu/device/compute/vector_parts.h"
#include "kernels/gpu/device/exchange/combine.h"
#include "kernels/gpu/device/registry.h"

enum { THREADS = 512, RESIDENT = 1 };

/* ---- on one node ---- */

/* A slice's places: its terms, one of each rank, and its results. Where: the first element's byte. */
template <typename T> struct direct {
    typedef typename combine_in<T>::type S;
    typedef combine_words<T> words;
    enum { LENGTH = words::LENGTH, UNROLL = sizeof(T) == 1 ? 2 : 4 };

    const struct gpu_call &call;
    const struct gpu_plan *plan;
    const struct slice &s;
    const struct vector_piece piece;
    const uint32_t nranks, reduction;

    __device__ __forceinline__ direct(const struct gpu_call &call_, uint32_t run, const struct slice &s_)
        : call(call_), plan(gpu_plan_of(call_, run)), s(s_),
          piece(vector_piece_reduced(call_.fixed->shape, gpu_plan_of(call_, run)->rank, s_)), nranks(call_.fixed->shape.nranks),
          reduction(call_.fixed->shape.reduction)
    {
    }

    __device__ __forceinline__ const T *term(uint32_t rank) const
    {
        return (const T *)call.out[rank].in + piece.at;
    }

    __device__ __forceinline__ T *result(uint32_t rank) const
    {
        return (T *)vector_result_at(call, rank, plan->rank, piece.at);
    }

    /* The number of elements before the first that is aligned to 16 bytes in all places; the slice's, if there is no such element. */
    __device__ __forceinline__ int64_t head() const
    {
        const uint64_t place = (uint64_t)term(0) % 16;
        int64_t n = (int64_t)((16 - place) % 16 / sizeof(T));
        bool alike = place % sizeof(T) == 0;

        for (uint32_t r = 0; r < nranks; r++) {
            alike = alike && (uint64_t)term(r) % 16 == place;
            alike = alike && (!gpu_plan_reaches(plan, s.dst, r) || (uint64_t)result(r) % 16 == place);
        }
        return alike && n < piece.count ? n : piece.count;
    }

    /* Elements [from, until), one at a time. */
    __device__ __forceinline__ void singly(int64_t from, int64_t until) const
    {
        for (int64_t i = from + threadIdx.x; i < until; i += blockDim.x) {
            S sum[1] = {combine_load<T, S>(term(0)[i])};
            for (uint32_t r = 1; r < nranks; r++) {
                const S next[1] = {combine_load<T, S>(term(r)[i])};
                combine(reduction, sum, next);
            }
            combine_end(reduction, nranks, sum);
            for (uint32_t r = 0; r < nranks; r++) {
                uint32_t dst = gpu_rank_at(r, plan->rank, nranks);
                if (gpu_plan_reaches(plan, s.dst, dst))
                    result(dst)[i] = combine_round<T, S>(sum[0]);
            }
        }
    }

    /* UNROLL times 16 bytes, `apart` elements from each other, the first at element i: of the first n of them. Two ranks' terms are on
     * their way at a time. */
    __device__ __forceinline__ void some(int64_t i, int64_t apart, int n) const
    {
        S sum[UNROLL][LENGTH], next[LENGTH];
        struct gpu_words w[2][UNROLL];

        for (uint32_t r = 0; r < nranks; r += 2) {
            const T *first = term(r) + i, *second = term(r + 1 < nranks ? r + 1 : r) + i;
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                w[0][u] = gpu_words_load_once(first + u * apart, u < n);
                w[1][u] = gpu_words_load_once(second + u * apart, u < n && r + 1 < nranks);
            }
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                if (r == 0)
                    words::load(sum[u], w[0][u]);
                if (r > 0) {
                    words::load(next, w[0][u]);
                    combine(reduction, sum[u], next);
                }
                if (r + 1 < nranks) {
                    words::load(next, w[1][u]);
                    combine(reduction, sum[u], next);
                }
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            combine_end(reduction, nranks, sum[u]);
            w[0][u] = words::store(sum[u]);
        }
        for (uint32_t r = 0; r < nranks; r++) {
            uint32_t dst = gpu_rank_at(r, plan->rank, nranks);
            if (!gpu_plan_reaches(plan, s.dst, dst))
                continue;
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (u < n)
                    gpu_words_store(result(dst) + i + u * apart, w[0][u]);
        }
    }

    __device__ __forceinline__ void reduce() const
    {
        const int64_t begin = head(), end = begin + (piece.count - begin) / LENGTH * LENGTH, apart = (int64_t)blockDim.x * LENGTH;
        int64_t i = begin + (int64_t)threadIdx.x * LENGTH;

        singly(0, begin);
        for (; i < end; i += UNROLL * apart) {
            int64_t left = (end - i + apart - 1) / apart;
            some(i, apart, left < UNROLL ? (int)left : UNROLL);
        }
        singly(end, piece.count);
    }
};

/* ---- over nodes ---- */

template <typename S> GPU_DEVICE S *slot_at(const struct gpu_call &call, uint32_t at, uint32_t slot, const struct slice &s, uint32_t owner)
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
        const T *in = (const T *)call.in[run].vector.in + piece.at, *own = (const T *)vector_result_at(call, rank, owner, piece.at);
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
        direct<T>(call, run, s).reduce();
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

template <typename T> __global__ void __launch_bounds__(THREADS, RESIDENT) vector_reduce_kernel(GPU_PARAMETER struct gpu_call call)
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
