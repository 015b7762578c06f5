/* SPDX-License-Identifier: MIT
 *
 * gemv_stream.h - the partial sums of one row of x that fits into shared memory: the case of decoding, where a microsecond
 * counts. Part of gemv.hip.
 *
 * Waves read w without a pause: while a wave multiplies one part of its columns, the next part is in flight, also if it is in
 * the next slice, which the workgroup knows by then. Each wave sends its own sums. A slice has one barrier, at a point where
 * loads are in flight; it tells the waves the next slice.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMV_STREAM_H
#define FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMV_STREAM_H

#include "kernels/gpu/device/compute/gemv_multiply.h"
#include "kernels/gpu/device/exchange/packets.h"

enum { X_BYTES = 24 << 10 /* the most bytes of x that are kept in shared memory, in whole parts */ };

template <typename T> struct streamed {
    enum { COLS = 2, STEPS = 4, LENGTH = gpu_vector<T>::LENGTH, NEXT = GPU_WAVE * LENGTH, WIDTH = STEPS * NEXT };
    static_assert(X_BYTES % (WIDTH * sizeof(T)) == 0, "parts of x are whole");

    /* A wave's place in a slice: `cols` columns from `col` on. The last one or two of them are the current pair, from k on
     * (the wave's k; each lane has LENGTH elements of every NEXT). No columns: nothing to do. */
    struct place {
        uint32_t col, cols, k;
    };

    static __device__ __forceinline__ bool pair_ends(const struct place &at, uint32_t whole)
    {
        return at.k + WIDTH >= whole;
    }

    /* The next part of the same slice. No columns: there is none. */
    static __device__ __forceinline__ struct place after(const struct place &at, uint32_t whole)
    {
        if (!pair_ends(at, whole) && at.cols > 0)
            return {at.col, at.cols, at.k + WIDTH};
        return {at.col + COLS, at.cols > COLS ? at.cols - COLS : 0, 0};
    }

    struct gpu_words words[STEPS][COLS];

    static __device__ __forceinline__ struct place begin(const struct slice &s, bool some)
    {
        uint32_t wave = threadIdx.x / GPU_WAVE, first = s.cols * wave / WAVES, end = s.cols * (wave + 1) / WAVES;

        return {s.col + first, some ? end - first : 0, 0};
    }

    __device__ __forceinline__ void load(const T *w, uint32_t w_stride, const struct place &at, uint32_t whole)
    {
        uint32_t k = at.k + threadIdx.x % GPU_WAVE * LENGTH;
        const T *from = w + (uint64_t)at.col * w_stride + k;

#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int col = 0; col < COLS; col++)
                words[step][col] = gpu_words_load_once(from + (col ? w_stride : 0) + step * NEXT,
                                                       k + step * NEXT < whole && (uint32_t)col < at.cols);
    }

    __device__ __forceinline__ void multiply(float (&sum)[COLS], const struct gpu_words *x, uint32_t at_k) const
    {
        const struct gpu_words *from = x + at_k / LENGTH + threadIdx.x % GPU_WAVE;

#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            float a[LENGTH], b[LENGTH];
            gpu_vector<T>::to_f32(a, from[step * GPU_WAVE]);
#pragma unroll
            for (int col = 0; col < COLS; col++) {
                gpu_vector<T>::to_f32(b, words[step][col]);
#pragma unroll
                for (int i = 0; i < LENGTH; i++)
                    sum[col] = fmaf(a[i], b[i], sum[col]);
            }
        }
    }
};

/* Whether stream_run() can execute a run's first phase. */
template <typename T> GPU_DEVICE bool streams(const struct gpu_call &call, uint32_t run)
{
    const struct gpu_input &in = call.in[run];

    return gpu_plan_of(call, run)->free_kind != SLICE_PUT && in.gemv.m == 1 && in.gemv.k * (int64_t)sizeof(T) <= X_BYTES &&
           gpu_rows_aligned((const T *)in.gemv.w, in.gemv.n, in.gemv.w_stride);
}

/* The workgroup, when the kernel begins: prefetches the part of w that its first slice probably needs, while it requests
 * that slice. */
template <typename T> GPU_DEVICE void stream_prefetch(const struct gpu_call &call)
{
    enum { BYTES = 4096 /* bytes of a column that waves have in flight at a time */ };
    const uint32_t run = gpu_run_of(call, 0), col = gemv_column_guess(call, run, blockIdx.x / call.nruns);
    const struct gpu_input &in = call.in[run];
    const uint32_t whole = (uint32_t)in.gemv.k * sizeof(T) / 16 * 16, bytes = whole < BYTES ? whole : BYTES;

    if (!streams<T>(call, run) || col == UINT32_MAX || bytes == 0)
        return;
    /* Different waves prefetch neighbouring columns. */
    for (uint32_t i = threadIdx.x % GPU_WAVE * WAVES + threadIdx.x / GPU_WAVE;
         i < gpu_plan_of(call, run)->free_cols && col + i < in.gemv.n; i += THREADS)
        gpu_prefetch_bytes((const T *)in.gemv.w + (uint64_t)(col + i) * in.gemv.w_stride, bytes);
}

/* The workgroup: copies the whole vectors of x into shared memory, and zeros up to the end of the last part. */
template <typename T, bool ALIGNED> GPU_DEVICE void x_fill(struct gpu_words *to, const T *x, uint32_t whole)
{
    enum { LENGTH = streamed<T>::LENGTH, WIDTH = streamed<T>::WIDTH, STEP = THREADS * LENGTH, STEPS = 4 };
    uint32_t end = whole ? (whole + WIDTH - 1) / WIDTH * WIDTH : WIDTH;

    for (uint32_t k = threadIdx.x * LENGTH; k < end; k += STEPS * STEP) {
        struct gpu_words v[STEPS];
#pragma unroll
        for (uint32_t i = 0; i < STEPS; i++)
            v[i] = elements_load<T, ALIGNED, false>(x + k + i * STEP, k + i * STEP < whole);
#pragma unroll
        for (uint32_t i = 0; i < STEPS; i++)
            if (k + i * STEP < end)
                to[(k + i * STEP) / LENGTH] = v[i];
    }
}

/* One wave: adds up the sums of a pair of columns over its lanes, with the elements behind the last whole vector, and sends
 * them. */
template <typename T>
GPU_DEVICE void pair_finish(const struct gpu_call &call, uint32_t run, const struct slice &s,
                            const typename streamed<T>::place &at, const float (&sums)[2], uint32_t whole)
{
    const struct gpu_input &in = call.in[run];
    const uint32_t lane = threadIdx.x % GPU_WAVE, cols = at.cols < 2 ? at.cols : 2, k = whole + lane;
    float total[2];

#pragma unroll
    for (uint32_t col = 0; col < 2; col++) {
        float sum = sums[col];
        if (k < (uint32_t)in.gemv.k && col < cols)
            sum = fmaf(gpu_vector<T>::element((const T *)in.gemv.x + k),
                       gpu_vector<T>::element((const T *)in.gemv.w + (uint64_t)(at.col + col) * in.gemv.w_stride + k), sum);
        total[col] = gpu_wave_sum(sum);
    }
    uint32_t nranks = call.fixed->shape.nranks, rank = gpu_plan_of(call, run)->rank;
    bool all = s.dst == SLICE_DST_ALL;
    /* Each lane sends one packet, beginning with the next rank. The packets of one row have the layout of y. */
    for (uint32_t i = lane; i < (all ? 2 * nranks : 2); i += GPU_WAVE) {
        uint32_t to = all ? gpu_rank_at(i / 2, rank, nranks) : s.dst, at_col = at.col + i % 2;
        float sum = i % 2 ? total[1] : total[0];
        if (i % 2 >= cols)
            continue;
        if (s.kind == SLICE_COMPUTE)
            *gemv_local_at(call, run, 0, at_col) = sum;
        else
            gemv_word_store(gemv_slot_at(call, to, rank) + (at_col - (uint32_t)call.fixed->shape.first[to]), sum,
                            gpu_stamp(call));
    }
}

/* A slice, as the waves of a workgroup know it. */
struct taken {
    struct slice slice;
    uint32_t index;
    bool some, leave; /* some: the slice is to be executed. leave: all waves leave */
};

GPU_DEVICE struct taken taken_get(const struct gpu_group *group)
{
    bool leave = group->leave != 0;

    return {gpu_slice_of(group), group->index, group->index != SLICE_NO_GROUP && !leave, leave};
}

/* Finishes a slice that all waves have executed, or will have as far as its signal needs. */
GPU_DEVICE void slice_finish(const struct gpu_call &call, uint32_t run, const struct taken &s, uint64_t start_ns)
{
    if (s.slice.group != SLICE_NO_GROUP)
        __syncthreads();
    if (threadIdx.x == 0) {
        gpu_slice_signal(call, run, s.slice);
        ((struct slice_time *)gpu_plan_of(call, run)->times)[s.index] = {0, start_ns, gpu_clock(), blockIdx.x,
                                                                         (uint32_t)call.epoch};
    }
}

/* A wave's state. */
template <typename T> struct stream {
    struct gpu_group *group; /* [2], used alternately */
    const struct gpu_words *x;
    uint32_t whole; /* elements of x, and of a column, in whole vectors */
    uint32_t turn;  /* index in `group` of the next slice */
    struct taken s; /* the current slice */
    uint64_t start_ns;
    struct gpu_ticket ticket;
    bool asked; /* the next slice is requested and has not arrived (the taker's) */
    typename streamed<T>::place at;
    float sum[2];
};

template <typename T>
GPU_DEVICE void slice_begin(const struct gpu_call &call, uint32_t run, stream<T> &w, const struct taken &s)
{
    w.s = s;
    w.start_ns = gpu_clock();
    w.turn ^= 1;
    w.asked = s.some && gpu_is_taker();
    if (w.asked)
        w.ticket = gpu_slice_ask(call, run, GPU_PHASE_FREE);
}

template <typename T> GPU_DEVICE void slice_follows(const struct gpu_call &call, uint32_t run, stream<T> &w)
{
    if (w.asked)
        gpu_slice_get(call, run, GPU_PHASE_FREE, w.ticket, &w.group[w.turn]);
    w.asked = false;
}

/* Multiplies the part in `now`, whose loads may be in flight, while the next part is loaded into `next`. */
template <typename T>
GPU_DEVICE void part_step(const struct gpu_call &call, uint32_t run, stream<T> &w, const streamed<T> &now, streamed<T> &next)
{
    const struct gpu_input &in = call.in[run];
    typename streamed<T>::place then = streamed<T>::after(w.at, w.whole);
    struct taken following = w.s;
    bool last = then.cols == 0;

    if (last) {
        slice_follows(call, run, w);
        gpu_copies_await();
        __syncthreads();
        following = taken_get(&w.group[w.turn]);
        then = streamed<T>::begin(following.slice, following.some);
    }
    next.load((const T *)in.gemv.w, (uint32_t)in.gemv.w_stride, then, w.whole);
    slice_follows(call, run, w); /* first round of a slice: the answer has been in flight as long as this part of w */
    now.multiply(w.sum, w.x, w.at.k);
    if (streamed<T>::pair_ends(w.at, w.whole)) {
        pair_finish<T>(call, run, w.s.slice, w.at, w.sum, w.whole);
        w.sum[0] = w.sum[1] = 0;
    }
    w.at = then;
    if (last) {
        slice_finish(call, run, w.s, w.start_ns);
        slice_begin(call, run, w, following);
    }
}

/* Executes the first phase of a run that streams(), as gpu_phase_run() does. All waves reach the barrier once per slice,
 * when they have begun all of its parts. By then the taker has the next slice. It stores that in place of the slice before
 * the current one, which all waves have read before the previous barrier. A slice's times are the first wave's. */
template <typename T> GEMV_APART bool stream_run(const struct gpu_call &call, uint32_t run, struct gpu_group group[2])
{
    __shared__ struct gpu_words x[X_BYTES / sizeof(struct gpu_words)];
    const struct gpu_input &in = call.in[run];
    const uint32_t whole = (uint32_t)in.gemv.k / streamed<T>::LENGTH * streamed<T>::LENGTH;
    struct gpu_ticket first = {0, 0};
    streamed<T> a, b;

    if (gpu_phase_is_empty(call, run, GPU_PHASE_FREE))
        return true;
    if (gpu_is_taker())
        first = gpu_slice_ask(call, run, GPU_PHASE_FREE);
    if (gpu_rows_aligned((const T *)in.gemv.x, 1, 0))
        x_fill<T, true>(x, (const T *)in.gemv.x, whole);
    else
        x_fill<T, false>(x, (const T *)in.gemv.x, whole);
    if (gpu_is_taker())
        gpu_slice_get(call, run, GPU_PHASE_FREE, first, &group[0]);
    gpu_copies_await();
    __syncthreads();
    struct taken s = taken_get(&group[0]);
    stream<T> w = {group, x, whole, 0, s, 0, first, false, streamed<T>::begin(s.slice, s.some), {0, 0}};
    a.load((const T *)in.gemv.w, (uint32_t)in.gemv.w_stride, w.at, whole);
    slice_begin(call, run, w, s);
    while (w.s.some) { /* two rounds with exchanged buffers: moving data between them would wait for the loads */
        part_step(call, run, w, a, b);
        if (w.s.some)
            part_step(call, run, w, b, a);
    }
    __syncthreads(); /* after this `group` and x may be overwritten */
    return !w.s.leave;
}

#endif
