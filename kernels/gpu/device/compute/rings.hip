/* SPDX-License-Identifier: MIT
 *
 * rings.hip - the kernels of collectives through rings (kernels/gpu/rings.h).
 *
 * All workgroups share the packets. Pieces are handled by workgroups with one task each, for one channel, which need each other: those of
 * this GPU and those of the others must all come onto their GPUs. They are few enough that several communicators' kernels fit at a time.
 */
#include "kernels/gpu/device/exchange/rings_parts.h"
#include "kernels/gpu/device/registry.h"
#include "kernels/gpu/plugin/rings.h"

enum { THREADS = 256, RESIDENT = 4, MOVE_TASKS = 2, REDUCE_TASKS = 3 };

/* ---- what is only moved ---- */

/* A channel's pieces for all ranks, in turns. */
GPU_DEVICE void pieces_send(const struct rings_call &c, const struct rings_run &run, uint32_t channel)
{
    bool some = true;

    for (uint64_t number = 0; some; number++) {
        some = false;
        for (uint32_t k = 1; k < c.nranks; k++) {
            const uint32_t dst = gpu_rank_at(k - 1, c.rank, c.nranks);
            const struct pieces p = pieces_of(c, channel, run.send[dst], are_packets(c, run.send[dst]));
            const char *from = (const char *)c.what.in + (uint64_t)run.send_at[dst] * c.what.element_bytes;
            if (!p.has(number))
                continue;
            some = true;
            if (!piece_send(c, run, {0, channel, c.rank, dst}, number, from + p.at(number), p.length(number)))
                return;
        }
    }
}

GPU_DEVICE void pieces_take(const struct rings_call &c, const struct rings_run &run, uint32_t channel)
{
    bool some = true;

    for (uint64_t number = 0; some; number++) {
        some = false;
        for (uint32_t k = 1; k < c.nranks; k++) {
            const uint32_t src = (c.rank + c.nranks - k) % c.nranks; /* in the order in which they send to this rank */
            const struct pieces p = pieces_of(c, channel, run.get[src], are_packets(c, run.get[src]));
            char *to = (char *)c.what.out + (uint64_t)run.get_at[src] * c.what.element_bytes;
            if (!p.has(number))
                continue;
            some = true;
            if (!piece_take(c, run, {0, channel, src, c.rank}, number, to + p.at(number), p.length(number)))
                return;
        }
    }
}

static __global__ void __launch_bounds__(THREADS, RESIDENT) rings_move_kernel(GPU_PARAMETER struct rings_call c)
{
    __shared__ struct rings_run run;
    const bool waits =
        c.what.in_share == VECTOR_ROOT && c.what.out_share == VECTOR_OWN; /* what is sent depends on the headers */
    const uint32_t channel = blockIdx.x / MOVE_TASKS;
    bool go_on = rings_begin(c, &run) && (!waits || rings_meet(c, &run, false));

    if (go_on)
        packets_send(c, run);
    go_on = go_on && (waits || rings_meet(c, &run, false));
    if (go_on)
        own_copy(c, run);
    go_on = __syncthreads_or(go_on && !packets_take(c, run)) == 0 && go_on;
    if (go_on && channel < RINGS_CHANNELS && blockIdx.x % MOVE_TASKS == 0)
        pieces_send(c, run, channel);
    else if (go_on && channel < RINGS_CHANNELS)
        pieces_take(c, run, channel);
    rings_end(c, run);
}

/* ---- reductions ---- */

/* The rank that gets the results of all chunks, number i of those that do, beginning with the next one; the number of ranks: none. */
GPU_DEVICE uint32_t receiver_at(const struct rings_call &c, uint32_t i)
{
    if (c.what.out_share == VECTOR_ALL)
        return i < c.nranks ? gpu_rank_at(i, c.rank, c.nranks) : c.nranks;
    return i == 0 && c.what.out_share == VECTOR_ROOT ? c.what.root : c.nranks;
}

GPU_DEVICE struct pieces chunk_pieces(const struct rings_call &c, const struct rings_run &run, uint32_t channel, uint32_t owner)
{
    return pieces_of(c, channel, run.chunk[owner + 1] - run.chunk[owner], false);
}

/* Task 0: this rank's terms, to the owners of the other chunks. */
GPU_DEVICE void terms_send(const struct rings_call &c, const struct rings_run &run, uint32_t channel)
{
    bool some = true;

    for (uint64_t number = 0; some; number++) {
        some = false;
        for (uint32_t k = 1; k < c.nranks; k++) {
            const uint32_t owner = gpu_rank_at(k - 1, c.rank, c.nranks);
            const struct pieces p = chunk_pieces(c, run, channel, owner);
            const char *from = (const char *)c.what.in + (uint64_t)run.chunk[owner] * c.what.element_bytes;
            if (!p.has(number))
                continue;
            some = true;
            if (!piece_send(c, run, {0, channel, c.rank, owner}, number, from + p.at(number), p.length(number)))
                return;
        }
    }
}

/* All threads: waits for all that a piece of the own chunk needs, and writes down where it lies. False: leave. */
GPU_DEVICE bool piece_find(const struct rings_call &c, struct rings_run *run, uint32_t channel, uint64_t number, uint64_t at)
{
    struct combine_vectors *v = &run->vectors;
    const uint64_t begin = (uint64_t)run->chunk[c.rank] * c.what.element_bytes + at;

    for (uint32_t r = 0; r < c.nranks; r++)
        if (r != c.rank && !piece_await(c, *run, {0, channel, r, c.rank}, number))
            return false;
    for (uint32_t i = 0; receiver_at(c, i) < c.nranks; i++)
        if (receiver_at(c, i) != c.rank && !room_await(c, *run, {1, channel, c.rank, receiver_at(c, i)}, number))
            return false;
    if (threadIdx.x == 0) {
        v->nterms = v->nranks = c.nranks;
        v->reduction = c.what.reduction;
        v->nresults = 0;
        for (uint32_t r = 0; r < c.nranks; r++)
            v->term[r] = r == c.rank ? c.what.in + begin : (uint64_t)piece_at(c, {0, channel, r, c.rank}, number);
        for (uint32_t i = 0; receiver_at(c, i) < c.nranks; i++)
            v->result[v->nresults++] = receiver_at(c, i) == c.rank
                                           ? c.what.out + begin
                                           : (uint64_t)piece_at(c, {1, channel, c.rank, receiver_at(c, i)}, number);
        if (c.what.out_share == VECTOR_OWN)
            v->result[v->nresults++] = c.what.out + at;
    }
    __syncthreads();
    return true;
}

/* Task 1: the own chunk. */
template <typename T> GPU_DEVICE void terms_reduce(const struct rings_call &c, struct rings_run *run, uint32_t channel)
{
    const struct pieces p = chunk_pieces(c, *run, channel, c.rank);

    for (uint64_t number = 0; p.has(number); number++) {
        if (!piece_find(c, run, channel, number, p.at(number)))
            return;
        combine_group<T, sizeof(T) == 1 ? 1 : 2>{run->vectors}.run((int64_t)(p.length(number) / sizeof(T)));
        __syncthreads();
        if (threadIdx.x)
            continue;
        gpu_fence_system();
        for (uint32_t i = 0; receiver_at(c, i) < c.nranks; i++)
            if (receiver_at(c, i) != c.rank)
                piece_tell(c, *run, {1, channel, c.rank, receiver_at(c, i)}, number);
        for (uint32_t r = 0; r < c.nranks; r++)
            if (r != c.rank)
                room_tell(c, *run, {0, channel, r, c.rank}, number);
    }
}

/* Task 2: the other chunks' results, if this rank gets them. */
GPU_DEVICE void results_take(const struct rings_call &c, const struct rings_run &run, uint32_t channel)
{
    bool some = rings_gets_all(c, c.rank);

    for (uint64_t number = 0; some; number++) {
        some = false;
        for (uint32_t k = 1; k < c.nranks; k++) {
            const uint32_t owner = (c.rank + c.nranks - k) % c.nranks;
            const struct pieces p = chunk_pieces(c, run, channel, owner);
            char *to = (char *)c.what.out + (uint64_t)run.chunk[owner] * c.what.element_bytes;
            if (!p.has(number))
                continue;
            some = true;
            if (!piece_take(c, run, {1, channel, owner, c.rank}, number, to + p.at(number), p.length(number)))
                return;
        }
    }
}

/* All threads of the kernel: combines all ranks' packets, which are the elements of this rank's result. False, in any thread: leave. */
template <typename T>
GPU_DEVICE bool packets_reduce(const struct rings_call &c, const struct rings_run &run, int64_t at, int64_t elements)
{
    enum { LENGTH = 8 / sizeof(T) };
    typedef typename combine_in<T>::type S;
    const uint64_t bytes = (uint64_t)elements * sizeof(T);
    const char *in = (const char *)c.what.in + (uint64_t)at * sizeof(T);
    char *out = (char *)c.what.out;

    for (uint64_t i = rings_thread(); 8 * i < bytes; i += rings_threads()) {
        S sum[LENGTH], next[LENGTH];
        T term[LENGTH];
        for (uint32_t r = 0; r < c.nranks; r++) {
            uint64_t data;
            if (r == c.rank)
                data = eight_load(in + 8 * i, bytes - 8 * i);
            else if (!packet_await(c, run, packets_of(c, run, c.rank, r), i, &data))
                return false;
            __builtin_memcpy(term, &data, sizeof(term));
#pragma unroll
            for (int j = 0; j < LENGTH; j++)
                next[j] = combine_load<T, S>(term[j]);
            if (r > 0)
                combine(c.what.reduction, sum, next);
#pragma unroll
            for (int j = 0; j < LENGTH && r == 0; j++)
                sum[j] = next[j];
        }
        combine_end(c.what.reduction, c.nranks, sum);
#pragma unroll
        for (int j = 0; j < LENGTH; j++)
            term[j] = combine_round<T, S>(sum[j]);
        uint64_t result;
        __builtin_memcpy(&result, term, sizeof(result));
        eight_store(out + 8 * i, result, bytes - 8 * i);
    }
    return true;
}

/* In one step. */
template <typename T>
__global__ void __launch_bounds__(THREADS, RESIDENT) rings_reduce_packets_kernel(GPU_PARAMETER struct rings_call c)
{
    __shared__ struct rings_run run;
    const bool waits = c.what.out_share == VECTOR_OWN; /* what is sent depends on the headers */
    bool go_on = rings_begin(c, &run) && (!waits || rings_meet(c, &run, true));

    if (go_on)
        packets_send(c, run);
    if (go_on && !waits)
        rings_check(c, run);
    if (go_on && (waits || rings_gets_all(c, c.rank)))
        (void)packets_reduce<T>(c, run, waits ? run.chunk[c.rank] : 0, c.what.out_elements);
    rings_end(c, run);
}

template <typename T>
__global__ void __launch_bounds__(THREADS, RESIDENT) rings_reduce_pieces_kernel(GPU_PARAMETER struct rings_call c)
{
    __shared__ struct rings_run run;
    const uint32_t channel = blockIdx.x / REDUCE_TASKS, task = blockIdx.x % REDUCE_TASKS;

    if (rings_begin(c, &run) && rings_meet(c, &run, true)) {
        if (task == 0)
            terms_send(c, run, channel);
        else if (task == 1)
            terms_reduce<T>(c, &run, channel);
        else
            results_take(c, run, channel);
    }
    rings_end(c, run);
}

/* ---- for the host ---- */

template <typename T> static const void *reduce_kernel_of(bool at_once)
{
    return at_once ? (const void *)rings_reduce_packets_kernel<T> : (const void *)rings_reduce_pieces_kernel<T>;
}

const void *rings_kernel(const struct gpu_collective *what, uint32_t nranks)
{
    const bool at_once = rings_at_once(nranks, (uint64_t)what->in_elements * what->element_bytes);

    if (!what->reduces)
        return (const void *)rings_move_kernel;
    switch (what->dtype) {
    case FCC_U8:
        return reduce_kernel_of<uint8_t>(at_once);
    case FCC_I8:
        return reduce_kernel_of<int8_t>(at_once);
    case FCC_I32:
        return reduce_kernel_of<int32_t>(at_once);
    case FCC_I64:
        return reduce_kernel_of<int64_t>(at_once);
    case FCC_F64:
        return reduce_kernel_of<double>(at_once);
    default:
        return GPU_BY_DTYPE(what->dtype, reduce_kernel_of, at_once);
    }
}

/* As many workgroups as packets keep busy; where there may be pieces, one for each task of each channel. */
static uint32_t workgroups_for(bool as_packets, uint64_t bytes, uint32_t tasks)
{
    uint64_t n = (bytes / 8 + THREADS - 1) / THREADS;

    if (!as_packets)
        return tasks * RINGS_CHANNELS;
    return n < 1 ? 1 : n < RINGS_CHANNELS ? (uint32_t)n : RINGS_CHANNELS;
}

void rings_grid(const struct rings_call *c, uint32_t *workgroups, uint32_t *threads)
{
    const struct gpu_collective *w = &c->what;
    uint64_t in = (uint64_t)w->in_elements * c->what.element_bytes, out = (uint64_t)w->out_elements * c->what.element_bytes;
    uint64_t most = in > out ? in : out;

    *threads = THREADS;
    *workgroups = w->reduces ? workgroups_for(rings_at_once(c->nranks, in), in, REDUCE_TASKS)
                             : workgroups_for(most <= RINGS_PACKETS_MOST, most, MOVE_TASKS);
}
