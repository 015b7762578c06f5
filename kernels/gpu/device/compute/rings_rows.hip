/* SPDX-License-Identifier: MIT
 *
 * rings_rows.hip - the kernels of all_reduce with an epilogue (device/exchange/rings_rows.h), and of all_reduces that are not too large. A workgroup, or a
 * cluster, has whole rows, the same as on every other rank; it waits for no other workgroup of its own GPU.
 */
#include "kernels/gpu/device/exchange/rings_rows.h"
#include "kernels/gpu/plugin/rings.h"

/* SPARE: threads of a workgroup beside those that make rows: a wave, which compares the headers. */
#if defined(__CUDACC__)
enum { WAVE = GPU_WAVE, SPARE = WAVE };
#else
enum { WAVE = GPU_WAVE_MOST, SPARE = 0 };
#endif
enum {
    THREADS = 1024, /* of a workgroup */
    HALF = 512,     /* of one that makes one row of many; two of these are on a multiprocessor */
    LONG = 512,     /* of one whose rows have any length */
    /* Workgroups. Those of five communicators cannot fill two GPUs so that none of any finds its other half: 64 multiprocessors at most. */
    MOST = 64,
    HALVES_MOST = 2 * MOST
};
static_assert(RINGS_UNITS % MOST == 0 && RINGS_UNITS % HALVES_MOST == 0, "workgroups count runs together");

/* What a workgroup does with its rows, of whose pieces each thread has some in registers. */
template <typename T, int PIECES, bool PLAIN, bool ALIGNED> struct row_worker {
    typedef struct rings_rows<T, ALIGNED, PLAIN> rows_type;
    typedef typename rows_type::piece piece;
    typedef typename rows_type::moved moved;
    enum {
        LEAD = 2,           /* rows that are sent before the first is waited for */
        EARLY = PIECES == 1 /* there are registers for what a row needs besides the sums, while these are awaited */
    };
    const struct rings_rows_call &call;
    const rows_type rows;
    gpu_row_maker<T, piece, PIECES, ALIGNED, PLAIN> maker;
    bool *failed;       /* in shared memory: a thread has seen that the run was given up */
    moved mine[PIECES]; /* of the row that is made next */
    struct gpu_row_inputs<piece> in[PIECES];
    /* In the first thread of the first workgroup: the failure epoch, as it was when the last row's packets were there. */
    uint64_t failure = 0;

    __device__ __forceinline__ row_worker(const struct rings_rows_call &what, struct rings_run &run,
                                          const struct gpu_rows_team &team, bool *gone)
        : call(what), rows{what, run}, maker(what.rows, team), failed(gone)
    {
    }

    /* The workgroup's first row, and from one to the next. */
    __device__ __forceinline__ int64_t first_row() const
    {
        return blockIdx.x / call.parts;
    }
    __device__ __forceinline__ int64_t rows_apart() const
    {
        return gridDim.x / call.parts;
    }

    __device__ __forceinline__ bool is_there(int64_t row) const
    {
        return row < call.rows.m;
    }

    __device__ __forceinline__ gpu_row<T> row_at(int64_t number) const
    {
        return gpu_row<T>(call.rows, number, maker.first);
    }

    /* What this rank has for a row. */
    __device__ __forceinline__ void load(int64_t number)
    {
        rows.template load<PIECES>(number, maker.first, maker.distance, mine);
    }

    __device__ __forceinline__ void inputs_load(const struct gpu_row<T> &row)
    {
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            in[i] = gpu_row_inputs_load<piece, ALIGNED>(call.rows, row, maker.some(i));
    }

    __device__ __forceinline__ void send_loaded(int64_t number) const
    {
        rows.template send<PIECES>(number, maker.first, maker.distance, mine);
    }

    /* A row for later: also brings nearer what it will need. */
    __device__ __forceinline__ void send(int64_t number) const
    {
        const struct gpu_row<T> row = row_at(number);
        moved pieces[PIECES];

        rows.template load<PIECES>(number, maker.first, maker.distance, pieces);
#pragma unroll
        for (int i = 0; i < PIECES && call.rows.residual; i++)
            if (maker.some(i).valid > 0)
                gpu_prefetch(row.residual + maker.some(i).from);
        rows.template send<PIECES>(number, maker.first, maker.distance, pieces);
    }

    /* Whether threads meet in reductions. */
    __device__ __forceinline__ bool needs_whole_rows() const
    {
        return call.rows.norm || call.cluster || (!PLAIN && call.rows.quantization);
    }

    /* All of a row's threads: find whether they can go on. */
    __device__ __forceinline__ void meet()
    {
        (void)maker.team.template all<GPU_ROWS_SUM>(0.0f);
    }

    /* The workgroup does not take part in the run. Others of its cluster may, and find that out at the first row's reduction. */
    __device__ __forceinline__ void stay_away()
    {
        if (!call.cluster || !is_there(first_row()))
            return;
        *(volatile bool *)failed = true;
        meet();
    }

    /* Makes the row that is loaded. False, in all its threads: leave. They tell each other at the norm's barrier. */
    __device__ __forceinline__ bool make(int64_t number)
    {
        const struct gpu_row<T> row = row_at(number);

        if (EARLY)
            inputs_load(row);
        const bool here = rows.template add_up<PIECES>(number, maker.first, maker.distance, mine, maker.v);
        if (!here)
            *(volatile bool *)failed = true;
        maker.left = rows.length(number) - maker.first;
        if (threadIdx.x == 0 && blockIdx.x == 0)
            failure = gpu_load_relaxed(rings_failure_of(call.rings, call.rings.rank));
        if (!EARLY)
            inputs_load(row);
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            gpu_row_add<piece, ALIGNED, PLAIN>(call.rows, row, in[i], maker.v[i], maker.some(i));
        const struct gpu_row_norm norm = maker.norm_of();
        if (!call.rows.norm && needs_whole_rows())
            meet();
        if (needs_whole_rows() ? maker.team.gone : !here)
            return false;
        maker.make_of(norm, row, number, in);
        return true;
    }

    /* All of them, from the one that is loaded and sent on. False: leave. */
    __device__ __forceinline__ bool make_all()
    {
        const int64_t apart = rows_apart();
        int64_t row = first_row();

        for (int i = 1; i < LEAD && is_there(row + i * apart); i++)
            send(row + i * apart);
        for (; is_there(row); row += apart) {
            if (is_there(row + LEAD * apart))
                send(row + LEAD * apart);
            if (!make(row))
                return false;
            if (is_there(row + apart))
                load(row + apart);
        }
        return true;
    }
};

/* PIECES: of a row that a thread has in registers. PLAIN: sums, and gpu_rows_are_plain(). */
template <typename T, int GROUP, int PIECES, bool PLAIN, bool ALIGNED>
static __global__ void __launch_bounds__(GROUP, THREADS / GROUP) rings_rows_kernel(GPU_PARAMETER struct rings_rows_call call)
{
    __shared__ struct rings_run run;
    __shared__ float room[2 * gpu_rows_team::ROOM];
    __shared__ bool failed;
    __shared__ struct gpu_rows_across across;
    const struct gpu_rows_team team = {
        blockDim.x - SPARE, room, &failed, call.parts, blockIdx.x % call.parts, call.cluster ? &across : nullptr, 0, false};
    row_worker<T, PIECES, PLAIN, ALIGNED> worker(call, run, team, &failed);
    const bool makes = threadIdx.x < team.threads, has = makes && worker.is_there(worker.first_row());

    if (threadIdx.x == 0)
        failed = false;
    team.begin();
    /* What follows does not come before this kernel leaves: a large kernel that only waits would take the room that a cluster of another
     * communicator needs, for which this GPU's peer may be waiting. */
    gpu_follow();
    if (has)
        worker.load(worker.first_row());
    const bool go_on = rings_begin(call.rings, &run);
    if (go_on && has)
        worker.send_loaded(worker.first_row());
    if (go_on && (SPARE == 0 || !makes))
        rings_check(call.rings, run);
    if (go_on && has)
        (void)worker.make_all();
    else if (makes)
        worker.stay_away();
    rings_end_after(call.rings, run, worker.failure >= run.number);
}

/* Rows of any length, and at any place: each pass over a row takes its packets anew. */
template <typename T>
static __global__ void __launch_bounds__(LONG, 1) rings_long_rows_kernel(GPU_PARAMETER struct rings_rows_call call)
{
    typedef struct rings_rows<T, false, false> rows_type;
    typedef typename rows_type::piece piece;
    __shared__ struct rings_run run;
    __shared__ float room[2 * gpu_rows_team::ROOM];
    const rows_type rows = {call, run};
    gpu_long_row_maker<T, piece, rings_rows_source<T>> maker = {call.rows, gpu_rows_team_of(room), {rows}};

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

/* A kernel, and its workgroups. */
struct row_kernel {
    const void *function;
    uint32_t threads, most;
};

template <typename T, int GROUP, int PIECES> static struct row_kernel kernel_with(bool aligned, bool plain)
{
    return {!aligned ? (const void *)rings_rows_kernel<T, GROUP, PIECES, false, false>
            : plain  ? (const void *)rings_rows_kernel<T, GROUP, PIECES, true, true>
                     : (const void *)rings_rows_kernel<T, GROUP, PIECES, false, true>,
            GROUP, THREADS / GROUP * MOST};
}

/* Of many rows each has fewer threads, if they have registers for it. Which elements a thread has, and so the order in which they are added, follows
 * from what all ranks share; whether this rank's tensors are aligned does not change it. */
template <typename T> static struct row_kernel kernel_of(uint64_t packets, bool aligned, bool many, bool plain)
{
    if (many && packets <= HALF - SPARE)
        return kernel_with<T, HALF, 1>(aligned, plain);
    if (many && packets <= 2 * (HALF - SPARE))
        return kernel_with<T, HALF, 2>(aligned, plain);
    if (packets <= THREADS - SPARE)
        return kernel_with<T, THREADS, 1>(aligned, plain);
    if (packets <= 2 * (THREADS - SPARE))
        return kernel_with<T, THREADS, 2>(aligned, plain);
    if (packets <= 3 * (THREADS - SPARE))
        return kernel_with<T, THREADS, 3>(aligned, plain);
    return {(const void *)rings_long_rows_kernel<T>, 0, MOST};
}

enum { LEAST = 192 /* packets that a workgroup has at least, where it could have as many */ };

/* The most workgroups of a kernel that has clusters. All of a cluster find room or none does, so these take half of what others may: kernels of four
 * communicators fit onto a GPU. Two small workgroups share a multiprocessor. */
static uint32_t clustered_most(uint64_t packets)
{
    return packets <= HALF - SPARE ? MOST : MOST / 2;
}

/* How many workgroups make a row together: of few rows more. */
static uint32_t parts_for(const struct rings_rows_call *call, uint64_t packets, bool clusters)
{
    uint32_t parts = 1;

    while (clusters && !call->batch_invariant && parts < GPU_ROWS_PARTS_MOST && packets >= 2 * LEAST * parts &&
           2 * parts * call->rows.m <= clustered_most((packets + 2 * parts - 1) / (2 * parts)))
        parts *= 2;
    return parts;
}

void rings_rows_of_vector(struct rings_rows_call *call, int64_t elements)
{
    const uint32_t length = call->rows.dtype == FCC_F32 ? 3 : 6; /* of a packet */
    const int64_t packets = (elements + length - 1) / length, most = (int64_t)MOST * (THREADS - SPARE);
    const int64_t rows = (packets + most - 1) / most, each = (packets + rows - 1) / rows;

    call->parts = 1;
    while (call->parts < MOST && each >= 2 * LEAST * (int64_t)call->parts)
        call->parts *= 2;
    /* A row is as many packets as the workgroups' threads, so that each has one; the last may have fewer. */
    const int64_t threads = ((each + call->parts - 1) / call->parts + WAVE - 1) / WAVE * WAVE;
    call->rows.n = threads * call->parts * length;
    call->rows.m = (elements + call->rows.n - 1) / call->rows.n;
    call->elements = elements;
}

/* As few threads as have a piece each, or as many pieces as others, in whole waves; and the spare ones. Sets call->parts. */
struct rings_launch rings_rows_launch_of(struct rings_rows_call *call, bool clusters)
{
    const uint32_t dtype = call->rows.dtype;
    const uint64_t whole = rings_row_packets(call->rows.n, dtype == FCC_F32 ? 4 : 2);
    const bool vector = call->parts != 0;
    if (!vector) {
        call->parts = parts_for(call, whole, clusters);
        call->cluster = call->parts > 1;
    }
    const uint64_t packets = (whole + call->parts - 1) / call->parts;
    const bool plain = call->reduction == FCC_SUM && gpu_rows_are_plain(&call->rows),
               many = call->rows.m > MOST && !call->batch_invariant;
    const struct row_kernel k = GPU_BY_DTYPE(dtype, kernel_of, packets, call->aligned, many && call->parts == 1, plain);
    uint32_t workgroups = 1;

    while (2 * workgroups * call->parts <= k.most && workgroups < call->rows.m)
        workgroups *= 2;
    if (!k.threads)
        return {k.function, workgroups, LONG, 0, 1};
    const uint64_t most = k.threads - SPARE, pieces = (packets + most - 1) / most, each = pieces ? pieces : 1;
    const uint64_t waves = ((packets + each - 1) / each + WAVE - 1) / WAVE;
    return {k.function, workgroups * call->parts, (uint32_t)(waves ? waves : 1) * WAVE + SPARE, 0,
            call->cluster ? call->parts : 1};
}
