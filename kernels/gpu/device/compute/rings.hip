/* SPDX-License-Identifier: MIT
 *
 * rings.hip - the kernels of collectives through rings (kernels/gpu/rings.h).
 *
 * All workgroups share the packets, and their waves the lines. Pieces are handled by workgroups with one task each, for one channel, which need each other: those of
 * this GPU and those of the others must all come onto their GPUs. They are few enough that several communicators' kernels fit at a time.
 */
#include "kernels/gpu/device/exchange/rings_lines.h"
#include "kernels/gpu/device/exchange/rings_packets.h"
#include "kernels/gpu/device/exchange/rings_reduce.h"
#include "kernels/gpu/device/registry.h"
#include "kernels/gpu/plugin/rings.h"

enum {
    THREADS = 256,
    RESIDENT = 4,
    MOVE_TASKS = 2,
    REDUCE_TASKS = 3,
    PACKETS_MOST = 64,                    /* workgroups that exchange packets, */
    PACKETS_MOST_OF = 512 << 10,          /* ... but of vectors of more bytes twice as many */
    LINES_GROUPS = 96,                    /* workgroups that exchange lines */
    SHARED_BYTES = BULK_BYTES + (2 << 10) /* at least struct bulk_shared */
};
/* Threads of a workgroup that exchange no packets: those of the first one compare the headers meanwhile. */
#if defined(__CUDACC__)
enum { SPARE = GPU_WAVE };
#else
enum { SPARE = GPU_WAVE_MOST };
#endif
static_assert(RINGS_UNITS % (MOVE_TASKS * RINGS_CHANNELS) == 0 && RINGS_UNITS % (REDUCE_TASKS * RINGS_CHANNELS) == 0 &&
                  RINGS_UNITS % (2 * PACKETS_MOST) == 0 && RINGS_UNITS % LINES_GROUPS == 0,
              "workgroups count runs together");
static_assert((uint32_t)LINES_GROUPS * THREADS / 32 == RINGS_LINES_WAVES, "a ring for each wave of lines");
static_assert(sizeof(struct bulk_shared) <= SHARED_BYTES, "what a launch asks for");

extern __shared__ __align__(128) unsigned char rings_shared[]; /* struct bulk_shared, where there may be pieces */

/* ---- pieces ---- */

/* Of what is only moved: whether one of this rank's parts may be too long for packets. */
static bool may_have_long_parts(const struct gpu_collective &w, uint32_t nranks)
{
    const uint64_t most = (uint64_t)(w.in_elements > w.out_elements ? w.in_elements : w.out_elements);

    return most * w.element_bytes > rings_packets_most(nranks);
}

/* A channel's pieces for all ranks, or (TAKES) from all ranks, in turns. `moves`: a collective that only moves, whose parts may be packets, and whose own part
 * is copied by the waves that have nothing to do with pieces, and by the others at the end. */
template <bool TAKES>
GPU_DEVICE void pieces_move(const struct rings_call &c, struct rings_run &run, struct bulk_shared *shared, uint32_t step,
                            uint32_t channel, bool moves)
{
    if (threadIdx.x == 0)
        run.copied = 0;
    bulk_begin(shared, 1);
    if (BULK_MOVES && moves && threadIdx.x >= BULK_IDLE)
        own_copy_beside(c, run, &run.copied);
    struct bulk_mover<TAKES> bulk(c, run, *shared);
    bool some = true, leave = false;

    for (uint64_t number = 0; some && !leave; number++) {
        some = false;
        for (uint32_t k = 1; k < c.nranks && !leave; k++) {
            /* taken in the order in which they send to this rank */
            const uint32_t peer = TAKES ? (c.rank + c.nranks - k) % c.nranks : gpu_rank_at(k - 1, c.rank, c.nranks);
            const int64_t at = TAKES ? run.get_at[peer] : run.send_at[peer], elements = TAKES ? run.get[peer] : run.send[peer];
            const struct pieces p = pieces_of(c, channel, elements);
            const struct ring ring = {step, channel, TAKES ? peer : c.rank, TAKES ? c.rank : peer};
            if (!p.has(number) || (moves && are_packets(c, elements)))
                continue;
            char *memory = (char *)(TAKES ? c.what.out : c.what.in) + (uint64_t)at * c.what.element_bytes + p.at(number);
            some = true;
            if (bulk_suits(memory, p.length(number))) {
                bulk.move(ring, number, memory, p.length(number));
                continue;
            }
            bulk.drain();
            leave = __syncthreads_or(run.leave) || (TAKES ? !piece_take(c, run, ring, number, memory, p.length(number))
                                                          : !piece_send(c, run, ring, number, memory, p.length(number)));
        }
    }
    bulk.drain();
    gpu_wave_sync();
    if (BULK_MOVES && moves && threadIdx.x < BULK_IDLE)
        own_copy_beside(c, run, &run.copied);
}

/* ---- what is only moved ---- */

/* How parts travel that are too long for packets. PACKETS: there are none. (Instructions that are not needed take time to load, too.) */
enum way { PACKETS, LINES, PIECES };

/* Finds what comes from where. */
template <enum way WAY> GPU_DEVICE bool moves_learn(const struct rings_call &c, struct rings_run *run)
{
    return WAY == PIECES ? rings_meet(c, run, false, true) : rings_learn(c, run, false);
}

#if defined(__CUDACC__)
/* Of two ranks: what goes to the other one and comes from it, as far as it is no packets, and this rank's own part. */
GPU_DEVICE void lines_exchange(const struct rings_call &c, struct rings_run &run)
{
    const uint32_t other = 1 - c.rank;
    const int64_t size = c.what.element_bytes, sent = are_packets(c, run.send[other]) ? 0 : run.send[other] * size,
                  got = are_packets(c, run.get[other]) ? 0 : run.get[other] * size;
    const struct own_share own = own_part_of(c, run);

    lines_move(c, run, (const char *)c.what.in + run.send_at[other] * size, sent, (char *)c.what.out + run.get_at[other] * size,
               got, own.from, own.to, (int64_t)own.bytes);
}
#endif

/* What remains for a workgroup when all that travels as packets has come. */
template <enum way WAY> GPU_DEVICE void long_parts_move(const struct rings_call &c, struct rings_run &run)
{
    const uint32_t channel = blockIdx.x / MOVE_TASKS;
    struct bulk_shared *shared = (struct bulk_shared *)rings_shared;

#if defined(__CUDACC__)
    if (WAY == LINES)
        lines_exchange(c, run);
#endif
    if (WAY == PIECES && blockIdx.x % MOVE_TASKS == 0)
        pieces_move<false>(c, run, shared, 0, channel, true);
    else if (WAY == PIECES)
        pieces_move<true>(c, run, shared, 0, channel, true);
}

template <enum way WAY>
__global__ void __launch_bounds__(THREADS, RESIDENT) rings_move_kernel(GPU_PARAMETER struct rings_call c)
{
    __shared__ struct rings_run run;
    const bool waits =
        c.what.in_share == VECTOR_ROOT && c.what.out_share == VECTOR_OWN; /* what is sent depends on the headers */
    const uint32_t spare = WAY == PACKETS ? SPARE : 0;

    gpu_follow();
    bool go_on = rings_begin<WAY != PIECES, false>(c, &run) && (!waits || moves_learn<WAY>(c, &run));
    const bool keeps = WAY == PACKETS && go_on && run.knows;
    if (keeps)
        packets_send_and_keep(c, run, spare);
    else if (go_on)
        packets_send(c, run, spare);
    go_on = go_on && (waits || moves_learn<WAY>(c, &run));
    if (go_on) {
        if (WAY != PIECES && run.knows)
            rings_check<true>(c, run);
        rings_received_tell(c, run);
        if ((WAY == PACKETS && !keeps) || (WAY == PIECES && !BULK_MOVES))
            own_copy(c, run);
    }
    go_on = __syncthreads_or(go_on && !packets_take(c, run, spare)) == 0 && go_on;
    if (WAY != PACKETS && go_on)
        long_parts_move<WAY>(c, run);
    rings_end(c, run);
}

/* ---- reductions ---- */

/* Combines all ranks' packets, which are the elements of this rank's result; all threads of the kernel, each what it has sent itself if all
 * ranks get the whole result. False, in any thread: leave. */
template <typename T>
GPU_DEVICE bool packets_reduce(const struct rings_call &c, struct rings_run &run, int64_t at, int64_t elements)
{
    enum { LENGTH = 8 / sizeof(T) };
    typedef typename combine_in<T>::type S;
    const uint64_t bytes = (uint64_t)elements * sizeof(T);
    const char *in = (const char *)c.what.in + (uint64_t)at * sizeof(T);
    char *out = (char *)c.what.out;

    for (uint64_t i = rings_thread(SPARE); 8 * i < bytes; i += rings_threads(SPARE)) {
        const uint64_t own = eight_load(in + 8 * i, bytes - 8 * i);
        S sum[LENGTH], next[LENGTH];
        T term[LENGTH];
        for (uint32_t r = 0; r < c.nranks; r++) {
            uint64_t data = own;
            if (r != c.rank && !packets_await<1>(c, run, packets_of(c, run, c.rank, r), i, 0, UINT64_MAX, &data))
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

    gpu_follow();
    bool go_on = rings_begin<true, true>(c, &run) && rings_learn(c, &run, true);
    if (go_on)
        packets_send(c, run, SPARE);
    if (go_on && run.knows)
        rings_check<true>(c, run);
    if (go_on && (waits || rings_gets_all(c, c.rank)))
        (void)packets_reduce<T>(c, run, waits ? run.send_at[c.rank] : 0, c.what.out_elements);
    rings_end(c, run);
}

template <typename T>
__global__ void __launch_bounds__(THREADS, RESIDENT) rings_reduce_pieces_kernel(GPU_PARAMETER struct rings_call c)
{
    __shared__ struct rings_run run;
    struct bulk_shared *bulk = (struct bulk_shared *)rings_shared;
    const uint32_t channel = blockIdx.x / REDUCE_TASKS, task = blockIdx.x % REDUCE_TASKS;

    gpu_follow();
    if (rings_begin(c, &run) && rings_meet(c, &run, true, true)) {
        if (task == 0) /* this rank's terms, to those who reduce them */
            pieces_move<false>(c, run, bulk, 0, channel, false);
        else if (task == 1 || run.twins) /* the own chunk */
            terms_reduce<T>(c, run, bulk, channel, task - 1);
        else /* the other chunks' results */
            pieces_move<true>(c, run, bulk, 1, channel, false);
    }
    rings_end(c, run);
}

#if defined(__CUDACC__)
/* Of two ranks. */
template <typename T>
__global__ void __launch_bounds__(THREADS, RESIDENT) rings_reduce_lines_kernel(GPU_PARAMETER struct rings_call c)
{
    __shared__ struct rings_run run;
    const uint32_t other = 1 - c.rank;

    gpu_follow();
    if (rings_begin<true, true>(c, &run) && rings_learn(c, &run, true)) {
        const T *in = (const T *)c.what.in;
        if (run.knows)
            rings_check<true>(c, run);
        lines_reduce<T>(c, run, (const char *)(in + run.send_at[other]), run.send[other] * (int64_t)sizeof(T),
                        (const char *)(in + run.send_at[c.rank]), (char *)c.what.out, run.send[c.rank] * (int64_t)sizeof(T));
    }
    rings_end(c, run);
}
#endif

/* ---- for the host ---- */

template <typename T> static const void *reduce_kernel_of(enum way way)
{
#if defined(__CUDACC__)
    if (way == LINES)
        return (const void *)rings_reduce_lines_kernel<T>;
#endif
    return way == PACKETS ? (const void *)rings_reduce_packets_kernel<T> : (const void *)rings_reduce_pieces_kernel<T>;
}

static const void *move_kernel_of(enum way way)
{
#if defined(__CUDACC__)
    if (way == LINES)
        return (const void *)rings_move_kernel<LINES>;
#endif
    return way == PACKETS ? (const void *)rings_move_kernel<PACKETS> : (const void *)rings_move_kernel<PIECES>;
}

/* What is the same on all ranks decides, but for packets of what is only moved: see may_have_long_parts(). Where not all ranks know how long the whole is,
 * lines are taken for any length, though pieces would take some 5 % less of the link for what is longer than RINGS_LINES_MOST. */
static enum way way_of(const struct rings_call *c)
{
    const struct gpu_collective *w = &c->what;
    const uint64_t most = (uint64_t)(w->in_elements > w->out_elements ? w->in_elements : w->out_elements) * w->element_bytes;
    const bool small = w->reduces ? rings_at_once(c->nranks, (uint64_t)w->in_elements * w->element_bytes)
                                  : !may_have_long_parts(*w, c->nranks);
    const bool known = w->reduces || w->in_share == VECTOR_ALL || w->out_share == VECTOR_ALL;

    return small ? PACKETS : c->lines && (!known || most <= RINGS_LINES_MOST) ? LINES : PIECES;
}

static const void *rings_kernel(const struct gpu_collective *what, enum way way)
{
    if (!what->reduces)
        return move_kernel_of(way);
    switch (what->dtype) {
    case FCC_U8:
        return reduce_kernel_of<uint8_t>(way);
    case FCC_I8:
        return reduce_kernel_of<int8_t>(way);
    case FCC_I32:
        return reduce_kernel_of<int32_t>(way);
    case FCC_I64:
        return reduce_kernel_of<int64_t>(way);
    case FCC_F64:
        return reduce_kernel_of<double>(way);
    default:
        return GPU_BY_DTYPE(what->dtype, reduce_kernel_of, way);
    }
}

hipError_t rings_kernels_prepare(bool bulk)
{
    static const uint32_t dtypes[] = {FCC_U8, FCC_I8, FCC_I32, FCC_I64, FCC_F16, FCC_BF16, FCC_F32, FCC_F64};
    struct gpu_collective what = {};
    hipError_t status = hipSuccess;
    const int shared_bytes = bulk ? SHARED_BYTES : 0;

    status = hipFuncSetAttribute(rings_kernel(&what, PIECES), hipFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    what.reduces = 1;
    for (uint32_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]) && status == hipSuccess; i++) {
        what.dtype = dtypes[i];
        status = hipFuncSetAttribute(rings_kernel(&what, PIECES), hipFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    }
    return status;
}

/* As many workgroups as packets keep busy, a power of two. */
static uint32_t workgroups_for_packets(uint64_t bytes)
{
    uint32_t n = 1;

    while (n < (bytes > PACKETS_MOST_OF ? 2 * PACKETS_MOST : PACKETS_MOST) && (uint64_t)n * (THREADS - SPARE) * 8 < bytes)
        n *= 2;
    return n;
}

/* Of each way, as many as it has work for: one more would take a channel that there is not, or waves whose lines have no place. */
static uint32_t workgroups_of(const struct gpu_collective *w, enum way way)
{
    const uint64_t in = (uint64_t)w->in_elements * w->element_bytes, out = (uint64_t)w->out_elements * w->element_bytes;

    switch (way) {
    case PACKETS:
        return workgroups_for_packets(in > out ? in : out);
    case LINES:
        return LINES_GROUPS;
    default:
        return (w->reduces ? REDUCE_TASKS : MOVE_TASKS) * RINGS_CHANNELS;
    }
}

struct rings_launch rings_launch_of(const struct rings_call *c, bool bulk)
{
    const struct gpu_collective *w = &c->what;
    const enum way way = way_of(c);

    return {rings_kernel(w, way), workgroups_of(w, way), THREADS, way == PIECES && bulk ? (uint32_t)SHARED_BYTES : 0, 1};
}
