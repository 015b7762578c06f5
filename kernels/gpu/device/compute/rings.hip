/* SPDX-License-Identifier: MIT
 *
 * rings.hip - the kernels of collectives through rings (kernels/gpu/rings.h).
 *
 * All workgroups share the packets. Pieces are handled by workgroups with one task each, for one channel, which need each other: those of
 * this GPU and those of the others must all come onto their GPUs. They are few enough that several communicators' kernels fit at a time.
 */
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
    SHARED_BYTES = BULK_BYTES + (2 << 10) /* at least struct bulk_shared */
};
static_assert(RINGS_UNITS % (MOVE_TASKS * RINGS_CHANNELS) == 0 && RINGS_UNITS % (REDUCE_TASKS * RINGS_CHANNELS) == 0 &&
                  RINGS_UNITS % (2 * PACKETS_MOST) == 0,
              "workgroups count runs together");
static_assert(sizeof(struct bulk_shared) <= SHARED_BYTES, "what a launch asks for");

extern __shared__ __align__(128) unsigned char rings_shared[]; /* struct bulk_shared, where there may be pieces */

/* ---- pieces ---- */

/* Of what is only moved: whether one of this rank's parts may be too long for packets. */
static bool may_have_pieces(const struct gpu_collective &w, uint32_t nranks)
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

/* PIECES: one of this rank's parts may be too long for packets. (Instructions that are not needed take time to load, too.) */
template <bool PIECES> __global__ void __launch_bounds__(THREADS, RESIDENT) rings_move_kernel(GPU_PARAMETER struct rings_call c)
{
    __shared__ struct rings_run run;
    const bool waits =
        c.what.in_share == VECTOR_ROOT && c.what.out_share == VECTOR_OWN; /* what is sent depends on the headers */
    const uint32_t channel = blockIdx.x / MOVE_TASKS;

    gpu_follow();
    bool go_on = rings_begin(c, &run) && (!waits || rings_meet(c, &run, false, PIECES));
    if (go_on)
        packets_send(c, run);
    go_on = go_on && (waits || rings_meet(c, &run, false, PIECES));
    if (go_on) {
        rings_received_tell(c, run);
        if (!BULK_MOVES || !PIECES)
            own_copy(c, run);
    }
    go_on = __syncthreads_or(go_on && !packets_take(c, run)) == 0 && go_on;
    if (PIECES && go_on && blockIdx.x % MOVE_TASKS == 0)
        pieces_move<false>(c, run, (struct bulk_shared *)rings_shared, 0, channel, true);
    else if (PIECES && go_on)
        pieces_move<true>(c, run, (struct bulk_shared *)rings_shared, 0, channel, true);
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

    for (uint64_t i = rings_thread(); 8 * i < bytes; i += rings_threads()) {
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
    bool go_on = rings_begin(c, &run) && (!waits || rings_meet(c, &run, true, false));
    if (go_on)
        packets_send(c, run);
    if (go_on && !waits)
        rings_check(c, run);
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

/* ---- for the host ---- */

template <typename T> static const void *reduce_kernel_of(bool at_once)
{
    return at_once ? (const void *)rings_reduce_packets_kernel<T> : (const void *)rings_reduce_pieces_kernel<T>;
}

static const void *rings_kernel(const struct gpu_collective *what, uint32_t nranks)
{
    const bool at_once = rings_at_once(nranks, (uint64_t)what->in_elements * what->element_bytes);

    if (!what->reduces)
        return may_have_pieces(*what, nranks) ? (const void *)rings_move_kernel<true> : (const void *)rings_move_kernel<false>;
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

hipError_t rings_kernels_prepare(bool bulk)
{
    static const uint32_t dtypes[] = {FCC_U8, FCC_I8, FCC_I32, FCC_I64, FCC_F16, FCC_BF16, FCC_F32, FCC_F64};
    struct gpu_collective what = {};
    hipError_t status = hipSuccess;
    const int shared_bytes = bulk ? SHARED_BYTES : 0;

    what.element_bytes = 1;
    what.in_elements = INT64_MAX;
    status = hipFuncSetAttribute(rings_kernel(&what, 1), hipFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    what.reduces = 1;
    for (uint32_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]) && status == hipSuccess; i++) {
        what.dtype = dtypes[i];
        status = hipFuncSetAttribute(rings_kernel(&what, 1), hipFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    }
    return status;
}

/* As many workgroups as packets keep busy, a power of two; where there may be pieces, one for each task of each channel. */
static uint32_t workgroups_for(bool as_packets, uint64_t bytes, uint32_t tasks)
{
    uint32_t n = 1;

    if (!as_packets)
        return tasks * RINGS_CHANNELS;
    while (n < (bytes > PACKETS_MOST_OF ? 2 * PACKETS_MOST : PACKETS_MOST) && (uint64_t)n * THREADS * 8 < bytes)
        n *= 2;
    return n;
}

struct rings_launch rings_launch_of(const struct rings_call *c, bool bulk)
{
    const struct gpu_collective *w = &c->what;
    const uint64_t in = (uint64_t)w->in_elements * w->element_bytes, out = (uint64_t)w->out_elements * w->element_bytes;
    const bool pieces = w->reduces ? !rings_at_once(c->nranks, in) : may_have_pieces(*w, c->nranks);
    const uint32_t workgroups = workgroups_for(!pieces, in > out ? in : out, w->reduces ? REDUCE_TASKS : MOVE_TASKS);

    return {rings_kernel(w, c->nranks), workgroups, THREADS, pieces && bulk ? (uint32_t)SHARED_BYTES : 0, 1};
}
