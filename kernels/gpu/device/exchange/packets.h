/* SPDX-License-Identifier: MIT
 *
 * packets.h - how gemv_all_reduce exchanges partial sums on the GPUs of one node: as packets, here called words (struct
 * gpu_stamped), in receive slots. Unless fused, the sums are first kept as plain f32 in the rank's own staging memory. Part of
 * kernels/gpu/device/compute/gemv.hip. kernels/plan/exchange/reduce_packets.c describes the plan, its phases and why their
 * order is right.
 *
 * A slot has one source rank's words for the columns that its owner reduces, in blocks of 8 columns: [columns / 8][M][8]. So a
 * workgroup stores its sums of 8 columns in whole cache lines, however many rows there are.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_PACKETS_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_PACKETS_H

#include "kernels/gpu/device/epilogue.h"
#include "kernels/gpu/device/exchange/reduce_nodes.h"
#include "kernels/gpu/device/execute.h"
#include "kernels/gpu/device/vector.h"

enum { GEMV_BLOCK = 8 /* columns of which words stand together */ };

/* A rank's own partial sums, unless fused: as y. */
GPU_DEVICE float *gemv_local_at(const struct gpu_call &call, uint32_t run, uint32_t row, uint32_t col)
{
    return (float *)call.fixed->staging[gpu_plan_of(call, run)->rank] + (uint64_t)row * call.fixed->shape.n + col;
}

/* The receive slot at `owner` for the words of `source`. */
GPU_DEVICE uint64_t *gemv_slot_at(const struct gpu_call &call, uint32_t owner, uint32_t source)
{
    return (uint64_t *)(call.fixed->slots[owner] + gpu_slots_at(call) + source * call.fixed->shape.slot_bytes);
}

/* Where a column's word stands in a slot for m rows. */
GPU_DEVICE uint64_t gemv_place(uint32_t m, uint32_t row, uint32_t col)
{
    return ((uint64_t)(col / GEMV_BLOCK) * m + row) * GEMV_BLOCK + col % GEMV_BLOCK;
}

GPU_DEVICE void gemv_word_store(uint64_t *at, float sum, uint32_t stamp)
{
    gpu_store_relaxed(at, (uint64_t)stamp << 32 | __float_as_uint(sum));
}

/* A guess of the column at which slice `number` of the first phase begins; UINT32_MAX: there is no such slice. It assumes that
 * all slices have the size of the first one and go from the last column to the first, as in most plans. It reads no GPU memory,
 * so it is known as soon as a kernel begins. Use it only to prefetch w. */
GPU_DEVICE uint32_t gemv_column_guess(const struct gpu_call &call, uint32_t run, uint32_t number)
{
    const struct gpu_plan *plan = gpu_plan_of(call, run);
    uint64_t n = (uint64_t)call.in[run].gemv.n, col = plan->free_col + (uint64_t)number * plan->free_cols;

    if (number >= plan->first[GPU_PHASE_FREE + 1])
        return UINT32_MAX;
    col -= col < n ? 0 : n;
    return col < n ? (uint32_t)col : UINT32_MAX;
}

/* The targets of a slice's words, up to four ranks at a time. All loads for them are under way at once. */
struct gemv_targets {
    uint64_t *slots[4];
    uint32_t first[4]; /* columns */
    uint32_t count, m;
};

/* The targets from index `number` on. */
GPU_DEVICE struct gemv_targets gemv_targets_get(const struct gpu_call &call, uint32_t run, uint32_t dst, uint32_t number)
{
    const struct gpu_shape &shape = call.fixed->shape;
    uint32_t rank = gpu_plan_of(call, run)->rank;
    bool all = dst == SLICE_DST_ALL;
    struct gemv_targets t;

    t.count = all ? shape.nranks : 1;
    t.m = (uint32_t)shape.m;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t to = all ? gpu_rank_at(number + i, rank, shape.nranks) : dst;
        to = number + i < t.count ? to : rank; /* not used */
        t.slots[i] = gemv_slot_at(call, to, rank);
        t.first[i] = (uint32_t)shape.first[to];
    }
    return t;
}

/* One thread: send COUNT sums, those that are `wanted`, to all targets of a slice. `t` has the first targets. */
template <int COUNT>
GPU_DEVICE void gemv_words_put(const struct gpu_call &call, uint32_t run, uint32_t dst, struct gemv_targets t,
                               const uint32_t (&row)[COUNT], const uint32_t (&col)[COUNT], const float (&sum)[COUNT],
                               const bool (&wanted)[COUNT])
{
    const uint32_t stamp = gpu_stamp(call);

    for (uint32_t number = 0;; t = gemv_targets_get(call, run, dst, number)) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < COUNT; j++)
                if (number + i < t.count && wanted[j])
                    gemv_word_store(t.slots[i] + gemv_place(t.m, row[j], col[j] - t.first[i]), sum[j], stamp);
        number += 4;
        if (number >= t.count)
            return;
    }
}

/* One thread: store a sum at the destination of its slice. */
GPU_DEVICE void gemv_sum_put(const struct gpu_call &call, uint32_t run, const struct slice &s, uint32_t row, uint32_t col,
                             float sum)
{
    if (s.kind == SLICE_COMPUTE)
        *gemv_local_at(call, run, row, col) = sum;
    else
        gemv_words_put<1>(call, run, s.dst, gemv_targets_get(call, run, s.dst, 0), {row}, {col}, {sum}, {true});
}

/* On one node: stores a sum at the destination of its slice (gemv_sum_put()). */
struct gemv_put_word {
    struct place {
    };

    static __device__ __forceinline__ place at(const struct gpu_call &, uint32_t, const struct slice &)
    {
        return place();
    }

    static __device__ __forceinline__ void put(const struct gpu_call &call, uint32_t run, const struct slice &s, place,
                                               uint32_t row, uint32_t col, float sum)
    {
        gemv_sum_put(call, run, s, row, col, sum);
    }
};

/* ---- reducing ---- */

enum { GEMV_QUAD = 4 /* neighbouring columns, of one block: what a thread reduces at a time */ };

/* The sums of a quad that a thread has already without receiving words: those of one rank. */
struct gemv_at_hand {
    uint32_t rank; /* UINT32_MAX: none */
    float sums[GEMV_QUAD];
};

/* One thread: await the words of a quad's first `count` columns from all ranks but the one at hand, and add them in rank order.
 * Two ranks' words are `slot` words apart. Calls give_up() now and then; returns false if that returned true. */
template <typename Ask>
GPU_DEVICE bool gemv_quad_add(const struct gpu_call &call, const uint64_t *from, uint64_t slot, uint32_t nranks, uint32_t count,
                              float (&sum)[GEMV_QUAD], Ask &give_up, const struct gemv_at_hand &own = {UINT32_MAX, {}})
{
    enum { AHEAD = 4, PAIRS = GEMV_QUAD / 2 };
    const uint32_t stamp = gpu_stamp(call);

    for (uint32_t first = 0; first < nranks; first += AHEAD) {
        uint64_t words[AHEAD][GEMV_QUAD];
        uint32_t missing[AHEAD][PAIRS], some = 1; /* not 0: some of them are */
#pragma unroll
        for (uint32_t r = 0; r < AHEAD; r++)
#pragma unroll
            for (uint32_t i = 0; i < PAIRS; i++) {
                bool is_here = first + r == own.rank;
                missing[r][i] = first + r < nranks && 2 * i < count && !is_here;
                words[r][2 * i] = (uint64_t)stamp << 32 | (is_here ? __float_as_uint(own.sums[2 * i]) : 0);
                words[r][2 * i + 1] = (uint64_t)stamp << 32 | (is_here ? __float_as_uint(own.sums[2 * i + 1]) : 0);
            }
        for (uint32_t spins = 1; some; spins++) {
            some = 0;
            /* Issue all loads before the first result is used; otherwise each load would take a whole round trip. */
#pragma unroll
            for (uint32_t r = 0; r < AHEAD; r++)
#pragma unroll
                for (uint32_t i = 0; i < PAIRS; i++)
                    gpu_load_relaxed_pair(missing[r][i], from + (first + r) * slot + 2 * i, &words[r][2 * i],
                                          &words[r][2 * i + 1]);
#pragma unroll
            for (uint32_t r = 0; r < AHEAD; r++)
#pragma unroll
                for (uint32_t i = 0; i < PAIRS; i++) {
                    missing[r][i] = (uint32_t)(words[r][2 * i] >> 32) ^ stamp;
                    missing[r][i] |= 2 * i + 1 < count ? (uint32_t)(words[r][2 * i + 1] >> 32) ^ stamp : 0;
                    some |= missing[r][i];
                }
            if (some && spins % GPU_LOOK_SPINS == 0 && give_up())
                return false;
        }
#pragma unroll
        for (uint32_t r = 0; r < AHEAD; r++)
#pragma unroll
            for (uint32_t i = 0; i < GEMV_QUAD; i++)
                if (first + r < nranks) {
                    float part = __uint_as_float((uint32_t)words[r][i]);
                    sum[i] = first + r == 0 ? part : sum[i] + part;
                }
    }
    return true;
}

struct gemv_must_leave {
    const struct gpu_call &call;
    uint32_t run;

    __device__ __forceinline__ bool operator()() const
    {
        return gpu_must_leave(call, run);
    }
};

/* Store neighbouring results, in one store where possible. */
template <typename T> GPU_DEVICE void gemv_quad_store(T *to, const T (&results)[GEMV_QUAD], uint32_t count)
{
    struct alignas(sizeof(T) * GEMV_QUAD) whole {
        typename gpu_bits_of<sizeof(T)>::type bits[GEMV_QUAD];
    } all;

    memcpy(&all, results, sizeof(all));
    if (count == GEMV_QUAD && (uint64_t)to % sizeof(all) == 0) {
        *(struct whole *)to = all;
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < GEMV_QUAD; i++)
        if (i < count)
            to[i] = results[i];
}

/* One thread: store the sums of a quad as results, from element `at` of y on. */
template <typename T>
GPU_DEVICE void gemv_quad_round(const struct gpu_call &call, uint64_t y, int64_t at, const float (&sum)[GEMV_QUAD],
                                uint32_t count)
{
    T results[GEMV_QUAD];

    if (call.each.wide) {
        gemv_quad_store((float *)y + at, sum, count);
        return;
    }
#pragma unroll
    for (int i = 0; i < GEMV_QUAD; i++)
        gpu_from_f32(&results[i], sum[i]);
    gemv_quad_store((T *)y + at, results, count);
}

/* ---- results as packets: through rings, in two steps. Elsewhere owners store results into other ranks' y, and raise flags ---- */

/* Words of a quad's results. */
template <typename T> struct gemv_result {
    enum { WORDS = GEMV_QUAD * sizeof(T) / sizeof(uint32_t) };
};

/* Where rank `at` receives the results of a quad that `owner` has reduced: behind the partial sums that come from there, in the order in which
 * an owner's threads go through a slice of all rows. */
template <typename T>
GPU_DEVICE uint64_t *gemv_result_at(const struct gpu_call &call, uint32_t at, uint32_t owner, uint32_t row, uint32_t col)
{
    const struct gpu_shape &shape = call.fixed->shape;
    const uint32_t quad = (col - (uint32_t)shape.first[owner]) / GEMV_QUAD;

    return gemv_slot_at(call, at, owner) + shape.local_bytes / sizeof(uint64_t) +
           ((uint64_t)quad * (uint32_t)shape.m + row) * gemv_result<T>::WORDS;
}

/* One thread: send a quad's results to all other ranks, beginning with the next one. */
template <typename T>
GPU_DEVICE void gemv_result_send(const struct gpu_call &call, uint32_t run, uint32_t row, uint32_t col,
                                 const T (&results)[GEMV_QUAD])
{
    const uint32_t rank = gpu_plan_of(call, run)->rank, nranks = call.rings.nranks;
    const uint64_t stamp = (uint64_t)gpu_stamp(call) << 32;
    uint32_t bits[gemv_result<T>::WORDS];

    memcpy(bits, results, sizeof(bits));
    for (uint32_t i = 0; i + 1 < nranks; i++) {
        uint64_t *to = gemv_result_at<T>(call, gpu_rank_at(i, rank, nranks), rank, row, col);
#pragma unroll
        for (int j = 0; j < gemv_result<T>::WORDS; j += 2)
            gpu_store_relaxed_pair(to + j, stamp | bits[j], stamp | bits[j + 1]);
    }
}

/* Await the results of a slice, which rank s.slot has reduced, and store them into this rank's y. False, in any thread: leave. */
template <typename T> GPU_DEVICE bool gemv_results_take(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    const uint32_t rank = gpu_plan_of(call, run)->rank, quads = (s.cols + GEMV_QUAD - 1) / GEMV_QUAD, stamp = gpu_stamp(call);
    const struct gpu_output &y = call.out[rank];
    struct gpu_walk at = gpu_walk_at(threadIdx.x, quads, s.rows), step = gpu_walk_at(blockDim.x, quads, s.rows);

    for (; at.z < 1; gpu_walk_next(&at, step, quads, s.rows)) {
        const uint32_t col = s.col + at.x * GEMV_QUAD, left = s.cols - at.x * GEMV_QUAD;
        const uint64_t *from = gemv_result_at<T>(call, rank, s.slot, at.y, col);
        uint64_t words[gemv_result<T>::WORDS] = {};
        uint32_t bits[gemv_result<T>::WORDS], missing = 1;
        T results[GEMV_QUAD];
        for (uint32_t spins = 1; missing; spins++) {
            missing = 0;
#pragma unroll
            for (int j = 0; j < gemv_result<T>::WORDS; j += 2)
                gpu_load_relaxed_pair(true, from + j, &words[j], &words[j + 1]);
#pragma unroll
            for (int j = 0; j < gemv_result<T>::WORDS; j++) {
                missing |= (uint32_t)(words[j] >> 32) ^ stamp;
                bits[j] = (uint32_t)words[j];
            }
            if (missing && spins % GPU_LOOK_SPINS == 0 && gpu_must_leave(call, run))
                return false;
        }
        memcpy(results, bits, sizeof(results));
        gemv_quad_store((T *)y.data + at.y * y.stride[0] + col, results, left < GEMV_QUAD ? left : GEMV_QUAD);
    }
    return true;
}

/* ---- reducing a slice ---- */

/* The words that a run reduces: where those of the first rank begin, for which column, and the distance to the next rank's. */
struct gemv_words {
    const uint64_t *first;
    uint64_t slot;
    uint32_t column, nranks;
};

/* Reduce all ranks' words of some columns into this rank's y, or into every rank's, beginning with the next rank; or send the others what they
 * store there. False, in any thread: leave. */
template <typename T, bool EPILOGUE>
GPU_DEVICE bool gemv_reduce(const struct gpu_call &call, uint32_t run, const struct slice &s, const struct gemv_words &words)
{
    const uint32_t nranks = words.nranks, rank = gpu_plan_of(call, run)->rank, quads = (s.cols + GEMV_QUAD - 1) / GEMV_QUAD;
    struct gpu_walk at = gpu_walk_at(threadIdx.x, quads, s.rows), step = gpu_walk_at(blockDim.x, quads, s.rows);
    const struct gemv_must_leave leave = {call, run};

    for (; at.z < 1; gpu_walk_next(&at, step, quads, s.rows)) {
        uint32_t col = at.x * GEMV_QUAD, count = s.cols - col < GEMV_QUAD ? s.cols - col : GEMV_QUAD;
        float sum[GEMV_QUAD];
        T results[GEMV_QUAD];
        if (!gemv_quad_add(call, words.first + gemv_place(s.rows, at.y, s.col + col - words.column), words.slot, nranks, count,
                           sum, leave))
            return false;
        if constexpr (EPILOGUE)
            for (uint32_t i = 0; i < count; i++)
                sum[i] = gpu_epilogue_at<T>(call, run, 0, s.col + col).apply(sum[i], at.y, i);
        if (call.each.wide) { /* in one step: to this rank's alone */
            gemv_quad_round<T>(call, call.out[rank].data, at.y * call.out[rank].stride[0] + s.col + col, sum, count);
            continue;
        }
#pragma unroll
        for (int i = 0; i < GEMV_QUAD; i++)
            gpu_from_f32(&results[i], sum[i]);
        const bool sends = s.dst == SLICE_DST_ALL && call.rings.nranks;
        if (sends)
            gemv_result_send<T>(call, run, at.y, s.col + col, results);
        for (uint32_t i = s.dst == SLICE_DST_ALL && !sends ? 0 : nranks - 1; i < nranks; i++) {
            const struct gpu_output &y = call.out[gpu_rank_at(i, rank, nranks)];
            gemv_quad_store((T *)y.data + at.y * y.stride[0] + s.col + col, results, count);
        }
    }
    return true;
}

/* The phases after computing: put a rank's partial sums to the ranks that reduce them, and reduce. */
template <typename T, bool EPILOGUE = false> struct gemv_rest {
    __device__ __forceinline__ bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        if (s.kind == SLICE_REDUCE) {
            const struct gpu_shape &shape = call.fixed->shape;
            uint32_t rank = gpu_plan_of(call, run)->rank;
            return gemv_reduce<T, EPILOGUE>(
                call, run, s,
                {gemv_slot_at(call, rank, 0), shape.slot_bytes / sizeof(uint64_t), (uint32_t)shape.first[rank], shape.nranks});
        }
        if (s.kind == SLICE_TAKE)
            return gemv_results_take<T>(call, run, s);
        /* Along a block's rows, in the order of its words. */
        struct gpu_walk at = gpu_walk_at(threadIdx.x, s.cols, s.rows), step = gpu_walk_at(blockDim.x, s.cols, s.rows);
        for (; at.z < 1; gpu_walk_next(&at, step, s.cols, s.rows))
            gemv_sum_put(call, run, s, at.y, s.col + at.x, *gemv_local_at(call, run, at.y, s.col + at.x));
        return true;
    }
};

#endif
