/* SPDX-License-Identifier: MIT
 *
 * rings_rows.hip - the kernels of all_reduce with an epilogue (device/exchange/rings_rows.h). A workgroup has whole rows, the same as on every other
 * rank; it waits for no other workgroup of its own GPU.
 */
#include "kernels/gpu/device/exchange/rings_rows.h"
#include "kernels/gpu/plugin/rings.h"

#if defined(__CUDACC__)
enum { WAVE = GPU_WAVE };
#else
enum { WAVE = GPU_WAVE_MOST };
#endif
enum {
    THREADS = 512,
    ROW_THREADS = THREADS - WAVE, /* of those, what has pieces of rows in registers */
    FEW = 16                      /* workgroups: the next kernel comes onto the GPU beside them */
};

/* Workgroups, of which the most fit onto a GPU beside those of other communicators: of pieces that a thread has in registers. */
static constexpr uint32_t workgroups_most(int pieces)
{
    return pieces && pieces <= 2 ? 64 : 32;
}
static_assert(RINGS_UNITS % workgroups_most(1) == 0, "workgroups count runs together");

/* Whether there are registers for what a row needs besides the sums while these are awaited. */
template <int PIECES> static constexpr bool EARLY = PIECES <= 4;

/* What a workgroup does with its rows, of whose pieces each thread has some in registers. */
template <typename T, int PIECES, bool PLAIN> struct row_worker {
    typedef struct rings_rows<T, true, PLAIN> rows_type;
    typedef typename rows_type::piece piece;
    typedef typename rows_type::moved moved;
    enum { LEAD = 2 /* rows that are sent before the first is waited for */ };
    const struct rings_rows_call &call;
    const struct rings_rows<T, true, PLAIN> rows;
    gpu_row_maker<T, piece, PIECES, true, PLAIN> maker;
    moved mine[PIECES]; /* of the row that is made next */
    struct gpu_row_inputs<piece> in[PIECES];
    uint64_t failure = 0; /* in the first thread of the first workgroup: the failure epoch, as it was when the last row's packets were there */

    __device__ __forceinline__ row_worker(const struct rings_rows_call &what, struct rings_run &run, float *room)
        : call(what), rows{what, run}, maker(what.rows, room)
    {
    }

    __device__ __forceinline__ bool is_there(int64_t row) const
    {
        return row < call.rows.m;
    }

    __device__ __forceinline__ void inputs_load(const struct gpu_row<T> &row)
    {
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            in[i] = gpu_row_inputs_load<piece, true>(call.rows, row, maker.some(i));
    }

    /* What this rank has for a row. */
    __device__ __forceinline__ void load(int64_t number)
    {
        rows.template load<PIECES>(number, maker.first, maker.distance, mine);
        if (EARLY<PIECES>)
            inputs_load(gpu_row<T>(call.rows, number, maker.first));
    }

    __device__ __forceinline__ void send_loaded(int64_t number) const
    {
        rows.template send<PIECES>(number, maker.first, maker.distance, mine);
    }

    __device__ __forceinline__ void send(int64_t number) const
    {
        moved pieces[PIECES];

        rows.template load<PIECES>(number, maker.first, maker.distance, pieces);
        rows.template send<PIECES>(number, maker.first, maker.distance, pieces);
    }

    /* Makes the row that is loaded. False, in all threads: leave. */
    __device__ __forceinline__ bool make(int64_t number)
    {
        const struct gpu_row<T> row(call.rows, number, maker.first);
        const bool here = rows.template add_up<PIECES>(number, maker.first, maker.distance, mine, maker.v);

        if (__syncthreads_or(!here))
            return false;
        if (threadIdx.x == 0 && blockIdx.x == 0)
            failure = gpu_load_relaxed(rings_failure_of(call.rings, call.rings.rank));
        if (!EARLY<PIECES>)
            inputs_load(row);
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            gpu_row_add<piece, true>(call.rows, row, in[i], maker.v[i], maker.some(i));
        maker.make_of_sums(row, number, EARLY<PIECES> ? in : nullptr);
        return true;
    }

    /* All of them, from the one that is loaded on. False: leave. */
    __device__ __forceinline__ bool make_all()
    {
        int64_t row = blockIdx.x;

        for (int i = 1; i < LEAD && is_there(row + i * (int64_t)gridDim.x); i++)
            send(row + i * (int64_t)gridDim.x);
        for (; is_there(row); row += gridDim.x) {
            if (is_there(row + LEAD * (int64_t)gridDim.x))
                send(row + LEAD * (int64_t)gridDim.x);
            if (!make(row))
                return false;
            if (is_there(row + gridDim.x))
                load(row + gridDim.x);
        }
        return true;
    }
};

/* PIECES: of a row that a thread has in registers. The last wave has none, and compares the headers meanwhile. PLAIN: sums, and
 * gpu_rows_are_plain(). */
template <typename T, int PIECES, bool PLAIN>
static __global__ void __launch_bounds__(THREADS, PIECES <= 2 ? 2 : 1)
    rings_rows_kernel(GPU_PARAMETER struct rings_rows_call call)
{
    __shared__ struct rings_run run;
    __shared__ float room[THREADS / 32];
    row_worker<T, PIECES, PLAIN> worker(call, run, room);

    gpu_follow();
    if (gridDim.x <= FEW)
        gpu_let_follow();
    if (worker.is_there(blockIdx.x))
        worker.load(blockIdx.x);
    bool go_on = rings_begin(call.rings, &run);
    if (go_on && worker.is_there(blockIdx.x))
        worker.send_loaded(blockIdx.x);
    if (go_on)
        rings_check(call.rings, run);
    if (go_on)
        (void)worker.make_all();
    rings_end_after(call.rings, run, worker.failure >= run.number);
}

/* Rows of any length, and at any place: each pass over a row takes its packets anew. */
template <typename T>
static __global__ void __launch_bounds__(THREADS, 1) rings_long_rows_kernel(GPU_PARAMETER struct rings_rows_call call)
{
    typedef struct rings_rows<T, false, false> rows_type;
    typedef typename rows_type::piece piece;
    __shared__ struct rings_run run;
    __shared__ float room[THREADS / 32];
    const rows_type rows = {call, run};
    const gpu_long_row_maker<T, piece, rings_rows_source<T>> maker = {call.rows, room, {rows}};

    gpu_follow();
    bool go_on = rings_begin(call.rings, &run);
    for (int64_t row = blockIdx.x; go_on && row < call.rows.m; row += gridDim.x)
        for (int64_t at = (int64_t)threadIdx.x * piece::LENGTH; at < call.rows.n; at += (int64_t)blockDim.x * piece::LENGTH) {
            typename piece::moved mine[1];
            rows.template load<1>(row, at, 0, mine);
            rows.template send<1>(row, at, 0, mine);
        }
    if (go_on)
        rings_check(call.rings, run);
    for (int64_t row = blockIdx.x; go_on && row < call.rows.m; row += gridDim.x) {
        maker.make(row);
        go_on = __syncthreads_or(run.leave) == 0;
    }
    rings_end(call.rings, run);
}

/* ---- for the host ---- */

/* The pieces of a thread, of those that there are kernels for. */
static int pieces_of(const struct rings_rows_call *call, uint32_t element_bytes)
{
    static const int kernels[] = {1, 2, 3, 4, 6};
    const uint64_t packets = rings_row_packets(call->rows.n, element_bytes);

    for (unsigned i = 0; call->aligned && i < sizeof(kernels) / sizeof(kernels[0]); i++)
        if (packets <= (uint64_t)kernels[i] * ROW_THREADS)
            return kernels[i];
    return 0;
}

template <typename T, int PIECES> static const void *kernel_with(bool plain)
{
    return plain ? (const void *)rings_rows_kernel<T, PIECES, true> : (const void *)rings_rows_kernel<T, PIECES, false>;
}

template <typename T> static const void *kernel_of(int pieces, bool plain)
{
    switch (pieces) {
    case 1:
        return kernel_with<T, 1>(plain);
    case 2:
        return kernel_with<T, 2>(plain);
    case 3:
        return kernel_with<T, 3>(plain);
    case 4:
        return kernel_with<T, 4>(plain);
    case 6:
        return kernel_with<T, 6>(plain);
    default:
        return (const void *)rings_long_rows_kernel<T>;
    }
}

/* As few threads as have a piece each, in whole waves, and where rows are in registers a wave more. */
struct rings_launch rings_rows_launch_of(const struct rings_rows_call *call)
{
    const uint32_t dtype = call->rows.dtype;
    const int pieces = pieces_of(call, dtype == FCC_F32 ? 4 : 2);
    const uint64_t packets = rings_row_packets(call->rows.n, dtype == FCC_F32 ? 4 : 2), each = pieces > 0 ? (uint64_t)pieces : 1;
    const uint64_t all = (packets + each - 1) / each, threads = pieces == 0 && all > THREADS ? (uint64_t)THREADS : all;
    const bool plain = call->reduction == FCC_SUM && gpu_rows_are_plain(&call->rows);
    uint32_t workgroups = 1;

    while (workgroups < workgroups_most(pieces) && workgroups < call->rows.m)
        workgroups *= 2;
    return {GPU_BY_DTYPE(dtype, kernel_of, pieces, plain), workgroups, (uint32_t)((threads + WAVE - 1) / WAVE + (pieces > 0)) * WAVE, 0};
}
