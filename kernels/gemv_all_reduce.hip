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
 * One row of x that fits into shared memory (stream_run()) is what decodes wait for, and a microsecond counts. The waves then
 * read w without a pause: a wave has the next part of its columns under way while it multiplies one, also when the next part
 * is of the next slice, which the workgroup knows by then. Each wave sends its sums off by itself. The one barrier of a slice
 * stands where loads are under way, and is there to tell the waves the next slice.
 *
 * Same bits, every run and with every schedule: a lane adds its products in the order of k, by one fused multiply-add each;
 * then the lanes of the wave are added in a fixed order. Which k a lane has depends on K and the dtype only: neither on where
 * x and w lie, nor on the tile or the number of columns and rows at a time. What lies beyond K counts as 0.
 */
#include "gpu_execute.h"
#include "gpu_gemv_multiply.h"

enum {
    SUMS = 4096,        /* of a tile that are put together at a time: at least FCC_GEMV_MAX_M * WAVES */
    X_BYTES = 24 << 10, /* of x that stream_run() keeps in shared memory: whole parts */
};

/* ---- slices ---- */

GPU_DEVICE float *slot_at(const struct gpu_call &call, uint32_t owner, uint32_t source, uint32_t col)
{
    const struct gpu_shape &shape = call.fixed->shape;

    return (float *)(call.fixed->staging[owner] + source * shape.slot_bytes) + shape.m * (col - shape.first[owner]);
}

/* Where sums lie as they are, in memory of a rank: [row][column]. */
struct sums_place {
    float *at;
    uint64_t stride;
};

/* This rank's own copy, unless fused: tile by tile, dense, or, in one step, as y. */
GPU_DEVICE struct sums_place local_at(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    const struct gpu_shape &shape = call.fixed->shape;
    float *staging = (float *)call.fixed->staging[gpu_plan_of(call, run)->rank];

    if (shape.one_shot)
        return {staging + s.col, (uint64_t)shape.n};
    return {staging + shape.nranks * shape.slot_bytes / sizeof(float) + shape.m * s.col, s.cols};
}

/* Where a slice's sums go that are not words. */
GPU_DEVICE struct sums_place sums_at(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    if (s.kind == SLICE_COMPUTE)
        return local_at(call, run, s);
    return {slot_at(call, s.dst, gpu_plan_of(call, run)->rank, s.col), s.cols};
}

/* ---- words, in slots of [M][N] ---- */

GPU_DEVICE uint64_t *word_at(const struct gpu_call &call, uint32_t owner, uint32_t source, uint32_t row, uint32_t col)
{
    const struct gpu_shape &shape = call.fixed->shape;

    return (uint64_t *)(call.fixed->slots[owner] + call.slots_at + source * shape.slot_bytes) + (uint64_t)row * shape.n + col;
}

GPU_DEVICE void word_store(uint64_t *at, float sum, uint32_t stamp)
{
    gpu_store_relaxed(at, (uint64_t)stamp << 32 | __float_as_uint(sum));
}

/* One thread: a sum to all ranks, beginning with the next one. */
GPU_DEVICE void word_send(const struct gpu_call &call, uint32_t run, uint32_t row, uint32_t col, float sum)
{
    uint32_t nranks = call.fixed->shape.nranks, rank = gpu_plan_of(call, run)->rank;

    for (uint32_t i = 1; i <= nranks; i++)
        word_store(word_at(call, rank + i < nranks ? rank + i : rank + i - nranks, rank, row, col), sum, call.stamp);
}

/* One thread awaits an element's words of all ranks, `slot` words apart, and adds them in rank order. False: leave. */
GPU_DEVICE bool words_add(const struct gpu_call &call, uint32_t run, const uint64_t *from, uint64_t slot, float *out)
{
    enum { AHEAD = 4 };
    const uint32_t nranks = call.fixed->shape.nranks;
    float sum = 0;

    for (uint32_t first = 0; first < nranks; first += AHEAD) {
        uint64_t words[AHEAD];
        bool missing = true;
        for (uint32_t spins = 1; missing; spins++) {
            missing = false;
#pragma unroll
            for (uint32_t r = 0; r < AHEAD; r++)
                if (first + r < nranks)
                    words[r] = gpu_load_relaxed(from + (first + r) * slot);
#pragma unroll
            for (uint32_t r = 0; r < AHEAD; r++)
                missing |= first + r < nranks && (uint32_t)(words[r] >> 32) != call.stamp;
            if (missing && spins % GPU_LOOK_SPINS == 0 && gpu_must_leave(call, run))
                return false;
        }
#pragma unroll
        for (uint32_t r = 0; r < AHEAD; r++)
            if (first + r < nranks)
                sum = first + r == 0 ? __uint_as_float((uint32_t)words[r]) : sum + __uint_as_float((uint32_t)words[r]);
    }
    *out = sum;
    return true;
}

/* All ranks' words of a tile into the own y. */
template <typename T> GPU_DEVICE bool reduce_words(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    const struct gpu_shape &shape = call.fixed->shape;
    const struct gpu_output &y = call.out[gpu_plan_of(call, run)->rank];
    const uint64_t *first = word_at(call, gpu_plan_of(call, run)->rank, 0, 0, s.col);
    struct gpu_walk at = gpu_walk_at(threadIdx.x, s.cols, s.rows), step = gpu_walk_at(THREADS, s.cols, s.rows);

    for (; at.z < 1; gpu_walk_next(&at, step, s.cols, s.rows)) {
        float sum;
        T rounded;
        if (!words_add(call, run, first + at.y * shape.n + at.x, shape.slot_bytes / sizeof(uint64_t), &sum))
            return false;
        gpu_from_f32(&rounded, sum);
        ((T *)y.data)[at.y * y.stride[0] + s.col + at.x] = rounded;
    }
    return true;
}

/* A tile of any width in pieces that fit into shared memory. */
template <typename T> GPU_DEVICE void compute_tile(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    __shared__ float sums[SUMS];
    __shared__ operands<T> p;
    __shared__ struct sums_place to;

    if (threadIdx.x == 0) {
        p = operands_get<T>(call, run);
        if (s.dst != SLICE_DST_ALL)
            to = sums_at(call, run, s);
    }
    __syncthreads();
    for (uint32_t first = 0, most = SUMS / p.m; first < s.cols; first += most) {
        uint32_t cols = s.cols - first < most ? s.cols - first : most;
        const T *w = p.w + (uint64_t)(s.col + first) * p.w_stride;
        if (p.aligned)
            multiply_piece<T, true>(sums, cols, p, w);
        else
            multiply_piece<T, false>(sums, cols, p, w);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < p.m * cols; i += THREADS) {
            if (s.dst == SLICE_DST_ALL)
                word_send(call, run, i / cols, s.col + first + i % cols, sums[i]);
            else
                to.at[i / cols * to.stride + first + i % cols] = sums[i];
        }
        if (first + cols < s.cols)
            __syncthreads();
    }
}

/* A tile from the rank's own copy to where it is reduced: to its owner or, as words, to all ranks. */
GPU_DEVICE void put_tile(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    const struct sums_place from = local_at(call, run, s);
    float *to = s.dst == SLICE_DST_ALL ? NULL : slot_at(call, s.dst, gpu_plan_of(call, run)->rank, s.col);

    for (uint32_t i = threadIdx.x; i < s.rows * s.cols; i += THREADS) {
        float sum = from.at[i / s.cols * from.stride + i % s.cols];
        if (to)
            to[i] = sum;
        else
            word_send(call, run, i / s.cols, s.col + i % s.cols, sum);
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
        if (s.kind == SLICE_REDUCE && s.dst != SLICE_DST_ALL)
            return reduce_words<T>(call, run, s);
        if (s.kind == SLICE_REDUCE)
            reduce_tile<T>(call, run, s);
        else if (s.kind == SLICE_PUT)
            put_tile(call, run, s);
        else
            compute_tile<T>(call, run, s);
        return true;
    }
};

/* ---- one row of x, without a pause ---- */

template <typename T> struct streamed {
    enum { COLS = 2, STEPS = 4, LENGTH = gpu_vector<T>::LENGTH, NEXT = GPU_WAVE * LENGTH, WIDTH = STEPS * NEXT };
    static_assert(X_BYTES % (WIDTH * sizeof(T)) == 0, "parts of x are whole");

    /* A wave's place in a slice: `cols` columns from `col` on, of which the last one or two make the pair at hand, from k on
     * (the wave's; each lane has LENGTH elements of every NEXT). No columns: nothing to do. */
    struct place {
        uint32_t col, cols, k;
    };

    static __device__ __forceinline__ bool pair_ends(const struct place &at, uint32_t whole)
    {
        return at.k + WIDTH >= whole;
    }

    /* The next part of the same slice; no columns: there is none. */
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

/* Whether stream_run() can do a run's first phase. */
template <typename T> GPU_DEVICE bool streams(const struct gpu_call &call, uint32_t run)
{
    const struct gpu_input &in = call.in[run];

    return gpu_plan_of(call, run)->free_kind != SLICE_PUT && in.gemv.m == 1 && in.gemv.k * (int64_t)sizeof(T) <= X_BYTES &&
           gpu_rows_aligned((const T *)in.gemv.w, in.gemv.n, in.gemv.w_stride);
}

/* The workgroup: the whole vectors of x into shared memory, and 0 up to the end of the last part. */
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

/* One wave: the sums of a pair of columns, over its lanes, and the elements after the last whole vector; then off they go. */
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
    if (s.dst != SLICE_DST_ALL) {
        if (lane < cols)
            sums_at(call, run, s).at[at.col + lane - s.col] = lane ? total[1] : total[0];
        return;
    }
    uint32_t nranks = call.fixed->shape.nranks, rank = gpu_plan_of(call, run)->rank;
    for (uint32_t i = lane; i < 2 * nranks; i += GPU_WAVE) /* each word by a lane of its own, beginning with the next rank */
        if (i % 2 < cols) {
            uint32_t to = rank + 1 + i / 2 < nranks ? rank + 1 + i / 2 : rank + 1 + i / 2 - nranks;
            word_store(word_at(call, to, rank, 0, at.col + i % 2), i % 2 ? total[1] : total[0], call.stamp);
        }
}

/* What the waves of a workgroup know of a slice. */
struct taken {
    struct slice slice;
    uint32_t index;
    bool some, leave; /* it is to be done; everybody is to leave */
};

GPU_DEVICE struct taken taken_get(const struct gpu_group *group)
{
    bool leave = group->leave != 0;

    return {group->slice, group->index, group->index != SLICE_NO_GROUP && !leave, leave};
}

/* All waves are done with a slice, or will be, as far as they have to be for its signal. */
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

/* Where a wave is. */
template <typename T> struct stream {
    struct gpu_group *group; /* [2], by turns */
    const struct gpu_words *x;
    uint32_t whole; /* elements of x and of a column in whole vectors */
    uint32_t turn;  /* where the next slice will be */
    struct taken s; /* the one at hand */
    uint64_t start_ns;
    struct gpu_ticket ticket;
    bool asked; /* and not yet got: the taker only */
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

/* Multiply the part that is in `now`, or on its way there, while the next one is on its way to `next`. */
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
    slice_follows(call, run, w); /* in a slice's first round: the answer has been on its way as long as this part of w */
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

/* The first phase of a run that streams(): as gpu_phase_run(). All waves come to the barrier once for each slice, when they
 * have begun with all of its parts; by then the taker has the next slice. It puts it where the slice before the one at hand
 * was, which all have read before the barrier before. A slice's times are the first wave's. */
template <typename T> GPU_DEVICE bool stream_run(const struct gpu_call &call, uint32_t run, struct gpu_group group[2])
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
    while (w.s.some) { /* two rounds, so that nothing moves from one buffer to the other: that would wait for it */
        part_step(call, run, w, a, b);
        if (w.s.some)
            part_step(call, run, w, b, a);
    }
    __syncthreads(); /* `group` and x may be written again */
    return !w.s.leave;
}

template <typename T> __global__ void __launch_bounds__(THREADS, 2) gemv_kernel(GPU_PARAMETER struct gpu_call call)
{
    __shared__ struct gpu_group group[2];
    struct gemv<T> op;
    bool go_on = true;

    gpu_begin(call);
    for (uint32_t phase = 0; phase < GPU_PHASES && go_on; phase++)
        for (uint32_t i = 0; i < call.nruns && go_on; i++) {
            uint32_t run = gpu_run_of(call, i);
            if (phase == GPU_PHASE_FREE && streams<T>(call, run))
                go_on = stream_run<T>(call, run, group);
            else
                go_on = gpu_phase_run(call, run, phase, group, op);
        }
    gpu_leave(call, group);
}

struct gpu_kernel gpu_gemv_kernel(enum fcc_dtype dtype)
{
    struct gpu_kernel k = {NULL, THREADS, 0, 0, 0, 0};

    k.function = dtype == FCC_F16    ? (const void *)gemv_kernel<gpu_f16>
                 : dtype == FCC_BF16 ? (const void *)gemv_kernel<gpu_bf16>
                                     : (const void *)gemv_kernel<float>;
    return k;
}
