/* SPDX-License-Identifier: MIT
 *
 * gemv_row.h - gemv_all_reduce of one row of x in one step, on Hopper (sm_90a): a kernel of its own, for calls of about ten
 * microseconds, of which a round trip to the GPU's memory is a tenth. Part of gemv.hip.
 *
 * So the kernel loads nothing that can be known before. The addresses of words are in its arguments. Columns (rows of w) are
 * dealt out evenly to the workgroups, one on each multiprocessor. The parts of a workgroup:
 *   waves    8 of them, each with columns of its own and a ring in shared memory. One lane has the copy engine bring w, up to 4
 *            KiB of a column at a time, as far ahead as there is room; all lanes multiply. Sums leave in pairs, by the wave
 *   reducer  one more wave: has x brought, then awaits all ranks' words of as many columns, adds them, and stores them into y
 * No wave waits for another one of its workgroup but for x and at the end.
 *
 * The columns of each workgroup are fixed. So a workgroup that awaits words could wait for a workgroup that is not resident
 * yet, for example because other jobs' kernels occupy its GPU. So a workgroup that has waited for long after its own columns
 * finds out which columns of its GPU's ranks are missing (their own words are not there) and computes these, too, with all
 * waves. It does so once, since none is missing then. So one resident workgroup on each GPU is enough to end the operator. A
 * word may be sent by two workgroups: it is the same word, and no later call stores at its address before this kernel has
 * ended.
 *
 * Memory order. What the copy engine brings is ordered by the barrier that it completes. A part of the ring is asked for again
 * when all lanes have read it: __syncwarp(). Words need no order (kernels/gpu/abi.h). Results are stored by the reducer, before
 * the barrier of the workgroup in gpu_leave().
 *
 * Before it waits for the end of the kernel before it, a workgroup prefetches its first parts of w into the L2. The L2 stays
 * coherent with later stores. Then the ring loads the same parts, so that at first more is under way than there is room for in
 * shared memory.
 *
 * Where a column is one vector, for which the ring would take longer than the multiplying, each lane has a column.
 *
 * Same bits as compute_tile()'s: a lane has the same k, adds in the same order, and so does the wave.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMV_ROW_H
#define FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMV_ROW_H

#include "kernels/gpu/device/compute/gemv_multiply.h"
#include "kernels/gpu/device/exchange/packets.h"
#include "kernels/gpu/device/hopper.h"
#include "kernels/gpu/runtime.h"

enum {
    ROW_WAVES = 8,
    ROW_THREADS = (ROW_WAVES + 1) * 32,
    ROW_PART = 4096, /* bytes of a column */
    ROW_PARTS = 3,   /* of a wave, in shared memory: 96 KiB on each multiprocessor; all take longer with twice as many */
    ROW_RING = ROW_WAVES * ROW_PARTS * ROW_PART,
    ROW_X_LEAST = 24 << 10, /* room for x: so much that there is one workgroup on a multiprocessor */
    ROW_X_MOST = 128 << 10,
    ROW_LEAST = 8,        /* columns of a workgroup: fewer workgroups where there are not so many */
    ROW_NEARER_LEAST = 2, /* parts of a wave that are brought into the L2 when the kernel begins; */
    ROW_NEARER_MOST = 6,  /* ... a fifth of those that it has, up to so many: more, and all take longer (TRIED.md) */
};

/* So many for each of `parts`, and one more for the first ones. */
struct row_deal {
    uint32_t each, more;
};

/* The kernel's second argument. */
struct gemv_row {
    uint32_t parts; /* workgroups of a run: [run * parts, (run + 1) * parts) */
    uint32_t nranks, n;
    struct row_deal cols, quads;
    uint32_t tile, reduced; /* columns of a slice of the first phase and of one that is reduced: for their times */
    uint64_t slot_bytes;
    struct {
        uint64_t x, w, pitch; /* pitch: bytes from a column to the next */
        uint32_t whole, rank; /* whole: bytes of x and of a column in whole vectors */
    } runs[GPU_MAX_RUNS];
    uint64_t slots[GPU_MAX_RANKS]; /* of each rank, for this call; numbered: without gpu_slots_at() */
};

GPU_DEVICE uint32_t row_first(const struct row_deal &d, uint32_t part)
{
    return part * d.each + (part < d.more ? part : d.more);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct row_shared {
    uint64_t full[ROW_WAVES][ROW_PARTS];
    uint64_t x_full;
    uint64_t computed;             /* all waves have sent their sums */
    uint64_t slots[GPU_MAX_RANKS]; /* where this rank's words go, of the ranks in the order in which it serves them */
};

extern __shared__ __align__(128) unsigned char row_dynamic[]; /* the rings, then x */

GPU_DEVICE unsigned char *row_ring(uint32_t wave)
{
    return row_dynamic + wave * (ROW_PARTS * ROW_PART);
}

GPU_DEVICE const struct gpu_words *row_x()
{
    return (const struct gpu_words *)(row_dynamic + ROW_RING);
}

/* A wave's loads. All lanes know where they are; the first one asks. */
template <typename T> struct row_loader {
    const char *from;
    uint64_t policy;
    uint32_t part, parts, left; /* of the column; to be asked for */
    uint32_t whole;
    uint64_t pitch;

    __device__ __forceinline__ uint32_t bytes_of(uint32_t number) const
    {
        return number + 1 == parts ? whole - number * ROW_PART : ROW_PART;
    }

    __device__ __forceinline__ void ask(uint32_t wave, uint32_t at, struct row_shared &shared)
    {
        if (left == 0)
            return;
        if (threadIdx.x % 32 == 0) {
            uint32_t bytes = bytes_of(part);
            gpu_barrier_arrive_expecting(&shared.full[wave][at], bytes);
            gpu_bulk_load_as(policy, row_ring(wave) + at * ROW_PART, from + part * ROW_PART, bytes, &shared.full[wave][at]);
        }
        left--;
        if (++part == parts) {
            part = 0;
            from += pitch;
        }
    }
};

/* One instruction for each element. */
template <typename T> GPU_DEVICE void row_to_f32(float out[gpu_vector<T>::LENGTH], const struct gpu_words &w)
{
    gpu_vector<T>::to_f32(out, w);
}

template <>
__device__ __forceinline__ void row_to_f32<gpu_bf16>(float out[gpu_vector<gpu_bf16>::LENGTH], const struct gpu_words &w)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = __uint_as_float(w.at[i] << 16);
        out[2 * i + 1] = __uint_as_float(w.at[i] & 0xffff0000u);
    }
}

/* One vector of a lane. */
template <typename T> GPU_DEVICE void row_multiply(float *sum, const struct gpu_words &x, const struct gpu_words &w)
{
    enum { LENGTH = gpu_vector<T>::LENGTH };
    float a[LENGTH], b[LENGTH];

    row_to_f32<T>(a, x);
    row_to_f32<T>(b, w);
#pragma unroll
    for (int i = 0; i < LENGTH; i++)
        *sum = fmaf(a[i], b[i], *sum);
}

/* A part of a column, `bytes` long. */
template <typename T>
GPU_DEVICE float row_part_add(float sum, const struct gpu_words *x, const struct gpu_words *w, uint32_t bytes)
{
    enum { STEPS = 4, WIDTH = 32 * sizeof(struct gpu_words) };
    uint32_t i = threadIdx.x % 32, end = bytes / sizeof(struct gpu_words);

    for (; bytes >= STEPS * WIDTH; bytes -= STEPS * WIDTH, i += STEPS * 32) {
        struct gpu_words a[STEPS], b[STEPS];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            a[s] = x[i + s * 32];
            b[s] = w[i + s * 32];
        }
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            row_multiply<T>(&sum, a[s], b[s]);
    }
#pragma unroll 1
    for (; i < end; i += 32)
        row_multiply<T>(&sum, x[i], w[i]);
    return sum;
}

template <typename T> struct row_group {
    const struct gpu_call &call;
    const struct gemv_row &row;
    struct row_shared &shared;
    uint32_t run, part; /* this workgroup's; it may have none: part is row.parts */

    /* A rank's packet memory, for this call. */
    __device__ __forceinline__ uint64_t slots_of(uint32_t of) const
    {
        return row.slots[of] + (call.series.numbered ? gpu_slots_at(call) : 0);
    }

    /* A wave's first parts of w, a lane each. */
    __device__ __forceinline__ void bring_nearer(uint32_t wave)
    {
        const auto &r = row.runs[run];
        const uint32_t parts = (r.whole + ROW_PART - 1) / ROW_PART, lane = threadIdx.x % 32;
        uint32_t of = row_first(row.cols, part), all = row_first(row.cols, part + 1) - of;
        uint32_t first = of + all * wave / ROW_WAVES, end = of + all * (wave + 1) / ROW_WAVES, has = parts * (end - first);

        if (lane >= has || lane >= max((uint32_t)ROW_NEARER_LEAST, min(has / 5, (uint32_t)ROW_NEARER_MOST)) || is_narrow())
            return;
        uint32_t at = lane % parts * ROW_PART, bytes = r.whole - at < ROW_PART ? r.whole - at : ROW_PART;
        gpu_prefetch_bytes((const char *)r.w + (first + lane / parts) * r.pitch + at, bytes);
    }

    /* The wave: words of the columns `col` and, if `pair`, the one before it, to all ranks. */
    __device__ __forceinline__ void send(uint32_t col, bool pair, float before, float sum)
    {
#pragma unroll 1
        for (uint32_t i = threadIdx.x % 32; i < 2 * row.nranks; i += 32) {
            uint32_t odd = i % 2;
            if (odd == col % 2 || pair)
                gemv_word_store((uint64_t *)shared.slots[i / 2] + (col - col % 2 + odd), odd == col % 2 ? sum : before,
                                gpu_stamp(call));
        }
    }

    /* What lies beyond the last whole vector, and the lanes' sums together. */
    __device__ __forceinline__ float column_end(uint32_t of, uint32_t col, float sum)
    {
        const auto &r = row.runs[of];
        uint32_t k = r.whole / sizeof(T) + threadIdx.x % 32;

        if (k < (uint32_t)call.in[of].gemv.k)
            sum = fmaf(gpu_vector<T>::element((const T *)r.x + k), gpu_vector<T>::element((const T *)(r.w + col * r.pitch) + k),
                       sum);
        return gpu_wave_sum(sum);
    }

    /* A slice's times are those of the wave that has its first column. `number` is the first such slice of the phase that
     * begins at slice_first, `slice` their width. */
    __device__ __forceinline__ void times_note(uint32_t slice_first, uint32_t number, uint32_t slice, uint32_t end,
                                               uint64_t start_ns)
    {
        struct slice_time *times = (struct slice_time *)gpu_plan_of(call, run)->times + slice_first;
        uint64_t now = gpu_clock();

#pragma unroll 1
        for (number += threadIdx.x % 32; number * slice < end; number += 32)
            times[number] = {0, start_ns, now, blockIdx.x, (uint32_t)call.epoch};
    }

    /* Columns of a single vector: what is left of the operator is its AllReduce. */
    __device__ __forceinline__ bool is_narrow() const
    {
        return call.in[run].gemv.k == gpu_vector<T>::LENGTH;
    }

    /* A wave's columns, one for each lane, without the ring. The same bits: the other lanes' sums would be 0. */
    __device__ __forceinline__ void compute_narrow(uint32_t first, uint32_t end)
    {
        const auto &r = row.runs[run];
        const struct gpu_words x = *(const struct gpu_words *)r.x;
        uint32_t col = first + threadIdx.x % 32;
        struct gpu_words w = {};

        if (col < end)
            w = *(const struct gpu_words *)(r.w + col * r.pitch);
        uint64_t start_ns = gpu_clock();
        gpu_barrier_some<1, ROW_THREADS>(); /* slots are there */
#pragma unroll 1
        while (col < end) {
            float sum = 0;
            row_multiply<T>(&sum, x, w);
            sum += 0.0f; /* -0 + 0 */
#pragma unroll 1
            for (uint32_t i = 0; i < row.nranks; i++)
                gemv_word_store((uint64_t *)shared.slots[i] + col, sum, gpu_stamp(call));
            col += 32;
            if (col < end)
                w = *(const struct gpu_words *)(r.w + col * r.pitch);
        }
        computed(first, end, start_ns);
    }

    /* A wave has sent its sums. */
    __device__ __forceinline__ void computed(uint32_t first, uint32_t end, uint64_t start_ns)
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            gpu_barrier_arrive(&shared.computed);
        times_note(0, (first + row.tile - 1) / row.tile, row.tile, end, start_ns);
    }

    /* One of the waves: its columns. */
    __device__ __forceinline__ void compute(uint32_t wave)
    {
        uint32_t of = row_first(row.cols, part), all = row_first(row.cols, part + 1) - of;
        uint32_t first = of + all * wave / ROW_WAVES, end = of + all * (wave + 1) / ROW_WAVES;

        if (is_narrow())
            compute_narrow(first, end);
        else
            compute_wide(wave, first, end);
    }

    __device__ __forceinline__ void compute_wide(uint32_t wave, uint32_t first, uint32_t end)
    {
        const auto &r = row.runs[run];
        uint32_t lane = threadIdx.x % 32, at = 0, parity = 0;
        const uint32_t parts = (r.whole + ROW_PART - 1) / ROW_PART;
        struct row_loader<T> loader = {
            (const char *)r.w + first *r.pitch, gpu_policy_once(), 0, parts, parts *(end - first), r.whole, r.pitch
        };
        float before = 0;

        if (lane == 0) {
            for (int i = 0; i < ROW_PARTS; i++)
                gpu_barrier_make(&shared.full[wave][i], 1);
            gpu_barriers_made();
        }
#pragma unroll 1
        for (uint32_t i = 0; i < ROW_PARTS; i++)
            loader.ask(wave, i, shared);
        uint64_t start_ns = gpu_clock();
        gpu_barrier_some<1, ROW_THREADS>(); /* barriers and slots are there */
        if (r.whole)
            gpu_barrier_await(&shared.x_full, 0);
#pragma unroll 1
        for (uint32_t col = first; col < end; col++) {
            float sum = 0;
#pragma unroll 1
            for (uint32_t i = 0; i < parts; i++) {
                gpu_barrier_await(&shared.full[wave][at], parity);
                sum = row_part_add<T>(sum, row_x() + i * (ROW_PART / sizeof(struct gpu_words)),
                                      (const struct gpu_words *)(row_ring(wave) + at * ROW_PART), loader.bytes_of(i));
                __syncwarp();
                loader.ask(wave, at, shared);
                parity ^= at == ROW_PARTS - 1;
                at = at == ROW_PARTS - 1 ? 0 : at + 1;
            }
            sum = column_end(run, col, sum);
            if (col % 2 || col + 1 == end)
                send(col, col % 2 && col > first, before, sum);
            before = sum;
        }
        computed(first, end, start_ns);
    }

    /* The reducer. */
    __device__ __forceinline__ void begin()
    {
        const auto &r = row.runs[run];
        uint32_t lane = threadIdx.x % 32;

        if (lane == 0) {
            gpu_barrier_make(&shared.x_full, 1);
            gpu_barrier_make(&shared.computed, ROW_WAVES);
            gpu_barriers_made();
            if (r.whole && !is_narrow()) {
                gpu_barrier_arrive_expecting(&shared.x_full, r.whole);
                gpu_bulk_load((void *)row_x(), (const void *)r.x, r.whole, &shared.x_full);
            }
        }
#pragma unroll 1
        for (uint32_t i = lane; i < row.nranks; i += 32)
            shared.slots[i] = slots_of(gpu_rank_at(i, r.rank, row.nranks)) + r.rank * row.slot_bytes;
        gpu_barrier_some<1, ROW_THREADS>();
    }

    /* What a lane that waits looks at now and then. */
    struct look {
        const struct row_group &g;
        bool patient; /* will not say that it takes long */
        uint32_t looks = 0;
        bool slow = false;

        __device__ __forceinline__ bool operator()()
        {
            slow = !patient && gpu_barrier_over(&g.shared.computed, 0) && ++looks > 1;
            return slow || gpu_must_leave(g.call, g.run);
        }
    };

    /* The reducer, or wave number `wave` of several: its columns. False: it takes long. */
    __device__ __forceinline__ bool reduce(bool patient, uint32_t wave, uint32_t waves)
    {
        uint32_t rank = row.runs[run].rank, of = row_first(row.quads, part), all = row_first(row.quads, part + 1) - of;
        uint32_t first = of + all * wave / waves, end = of + all * (wave + 1) / waves;
        const uint64_t *words = (const uint64_t *)slots_of(rank);
        const uint64_t y = call.out[rank].data;
        uint32_t number = gpu_hide((first * GEMV_QUAD + row.reduced - 1) / row.reduced); /* divided while there is time */
        uint64_t start_ns = gpu_clock();

#pragma unroll 1
        for (uint32_t quad = first + threadIdx.x % 32; quad < end; quad += 32) {
            uint32_t col = quad * GEMV_QUAD, count = row.n - col < GEMV_QUAD ? row.n - col : GEMV_QUAD;
            float sum[GEMV_QUAD];
            struct look look = {*this, patient};
            if (!gemv_quad_add(call, words + col, row.slot_bytes / sizeof(uint64_t), row.nranks, count, sum, look))
                return !look.slow;
            gemv_quad_round<T>(call, y, col, sum, count);
        }
        times_note(gpu_plan_of(call, run)->first[GPU_PHASE_REDUCE], number, row.reduced, end * GEMV_QUAD, start_ns);
        return true;
    }
};

/* All waves: the columns of the GPU's ranks that nobody has sent yet. */
template <typename T>
static __device__ __noinline__ void row_rescue(const struct gpu_call &call, const struct gemv_row &row,
                                               struct row_shared &shared)
{
    uint32_t wave = threadIdx.x / 32, lane = threadIdx.x % 32, blocks = (row.n + 31) / 32;

    for (uint32_t run = 0; run < call.nruns; run++) {
        struct row_group<T> g = {
            call, row, shared, run, 0
        };
        const operands<T> p = operands_get<T>(call, run);
        const uint64_t *own = (const uint64_t *)(g.slots_of(row.runs[run].rank) + row.runs[run].rank * row.slot_bytes);
        __syncthreads();
        if (wave == 0)
            for (uint32_t i = lane; i < row.nranks; i += 32)
                shared.slots[i] =
                    g.slots_of(gpu_rank_at(i, row.runs[run].rank, row.nranks)) + row.runs[run].rank * row.slot_bytes;
        __syncthreads();
        for (uint32_t i = wave; i < blocks; i += ROW_WAVES + 1) { /* each workgroup begins elsewhere */
            uint32_t block = (i + (uint32_t)((uint64_t)blocks * blockIdx.x / gridDim.x)) % blocks, col = block * 32 + lane;
            uint64_t missing = gpu_wave_vote(col < row.n && (uint32_t)(gpu_load_relaxed(own + col) >> 32) != gpu_stamp(call));
            for (; missing; missing &= missing - 1) {
                uint32_t at = block * 32 + (uint32_t)__ffsll((long long)missing) - 1;
                float sum = 0;
                multiply<T, 1, 1, true>(&sum, 1, p, p.x, p.w + (uint64_t)at * p.w_stride, 1);
                g.send(at, false, 0, gpu_team_get(sum, 0, 32));
            }
        }
    }
}

#endif

template <typename T>
__global__ void __launch_bounds__(ROW_THREADS, 1)
    gemv_row_kernel(GPU_PARAMETER struct gpu_call call, GPU_PARAMETER struct gemv_row row)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    __shared__ struct row_shared shared;
    __shared__ struct gpu_group group;
    struct row_group<T> g = {
        call, row, shared, 0, blockIdx.x
    };
    const uint32_t wave = gpu_team_get(threadIdx.x / 32, 0, 32); /* so the compiler sees that it is one for all lanes */
    bool rescued = false, again;

    for (; g.part >= row.parts; g.part -= row.parts)
        g.run++;
    if (wave < ROW_WAVES)
        g.bring_nearer(wave);
    gpu_follow();
    gpu_number(call);
    if (gpu_is_over(call)) {
        gpu_leave(call, &group);
        return;
    }
    /* The first of the waves that reduce: all do, when they have sent theirs, where that is more than one column's time. */
    const uint32_t first = g.is_narrow() && row.quads.each > 32 ? 0 : ROW_WAVES;
    if (wave < ROW_WAVES)
        g.compute(wave);
    else {
        if (threadIdx.x == ROW_WAVES * 32 && blockIdx.x == 0) {
            gpu_note_begin(call);
            gpu_prefetch(&call.fixed->left);
        }
        g.begin();
        through_meet(call);
        __syncwarp();
    }
    do {
        again = __syncthreads_or(wave >= first && !g.reduce(rescued, wave - first, ROW_WAVES + 1 - first)) != 0;
        if (again)
            row_rescue<T>(call, row, shared);
        rescued = true;
    } while (again);
    gpu_leave(call, &group);
#endif
}

#endif
