/* SPDX-License-Identifier: MIT
 *
 * rings_rows.hip - the kernels of all_reduce with an epilogue (device/exchange/rings_rows.h). A workgroup has whole rows, the same as on every other
 * rank; it waits for no other workgroup of its own GPU.
 */
#include "kernels/gpu/device/exchange/rings_rows.h"
#include "kernels/gpu/plugin/rings.h"

enum {
    THREADS = 512,
    FEW = 16 /* workgroups: the next kernel comes onto the GPU beside them */
};

/* Workgroups, of which the most fit onto a GPU beside those of other communicators: of pieces that a thread has in registers. */
static constexpr uint32_t workgroups_most(int pieces)
{
    return pieces && pieces <= 2 ? 64 : 32;
}
static_assert(RINGS_UNITS % workgroups_most(1) == 0, "workgroups count runs together");

/* Whether there are registers for what a row needs besides the sums while these are awaited. */
template <int PIECES> static constexpr bool EARLY = PIECES <= 3;

/* False, in all threads: leave. */
template <typename T, int PIECES, bool PLAIN>
GPU_DEVICE bool row_make(const struct rings_rows<T, PIECES != 0, PLAIN> &rows, float *room, int64_t number)
{
    typedef typename rings_rows<T, PIECES != 0, PLAIN>::piece piece;
    const struct gpu_rows &p = rows.call.rows;

    if constexpr (PIECES != 0) {
        gpu_row_maker<T, piece, PIECES, true, PLAIN> maker(p, room);
        const struct gpu_row<T> row(p, number, maker.first);
        struct gpu_row_inputs<piece> in[PIECES];
#pragma unroll
        for (int i = 0; i < PIECES && EARLY<PIECES>; i++)
            in[i] = gpu_row_inputs_load<piece, true>(p, row, maker.some(i));
        const bool here = rows.template add_up<PIECES>(number, maker.first, maker.distance, maker.v);
        if (__syncthreads_or(!here))
            return false;
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            if (!EARLY<PIECES>)
                in[i] = gpu_row_inputs_load<piece, true>(p, row, maker.some(i));
            gpu_row_add<piece, true>(p, row, in[i], maker.v[i], maker.some(i));
        }
        maker.make_of_sums(row, number, EARLY<PIECES> ? in : nullptr);
        return true;
    } else {
        gpu_long_row_maker<T, piece, rings_rows_source<T>>{p, room, {rows}}.make(number);
        return __syncthreads_or(rows.run.leave) == 0;
    }
}

/* PIECES: that a thread has in registers; 0: rows of any length and at any place. PLAIN: sums, and gpu_rows_are_plain(). */
template <typename T, int PIECES, bool PLAIN>
static __global__ void __launch_bounds__(THREADS, PIECES && PIECES <= 2 ? 2 : 1)
    rings_rows_kernel(GPU_PARAMETER struct rings_rows_call call)
{
    __shared__ struct rings_run run;
    __shared__ float room[THREADS / 32];
    const struct rings_rows<T, PIECES != 0, PLAIN> rows = {call, run};
    const int64_t m = call.rows.m;

    gpu_follow();
    if (gridDim.x <= FEW)
        gpu_let_follow();
    bool go_on = rings_begin(call.rings, &run);
    for (int64_t row = blockIdx.x; go_on && row < m; row += gridDim.x)
        rows.send(row);
    if (go_on)
        rings_check(call.rings, run);
    for (int64_t row = blockIdx.x; go_on && row < m; row += gridDim.x)
        go_on = row_make<T, PIECES, PLAIN>(rows, room, row);
    rings_end(call.rings, run);
}

/* ---- for the host ---- */

/* The pieces of a thread, of those that there are kernels for. */
static int pieces_of(const struct rings_rows_call *call, uint32_t element_bytes)
{
    static const int kernels[] = {1, 2, 3, 6};
    const uint64_t packets = rings_row_packets(call->rows.n, element_bytes);

    for (unsigned i = 0; call->aligned && i < sizeof(kernels) / sizeof(kernels[0]); i++)
        if (packets <= (uint64_t)kernels[i] * THREADS)
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
    case 6:
        return kernel_with<T, 6>(plain);
    default:
        return (const void *)rings_rows_kernel<T, 0, false>;
    }
}

/* As few threads as have a piece each, in whole waves; at least as many as there are ranks. */
struct rings_launch rings_rows_launch_of(const struct rings_rows_call *call)
{
    const uint32_t dtype = call->rows.dtype;
    const int pieces = pieces_of(call, dtype == FCC_F32 ? 4 : 2);
    const uint64_t packets = rings_row_packets(call->rows.n, dtype == FCC_F32 ? 4 : 2), each = pieces > 0 ? (uint64_t)pieces : 1;
    const uint64_t threads = ((packets + each - 1) / each + 63) / 64 * 64;
    const bool plain = call->reduction == FCC_SUM && gpu_rows_are_plain(&call->rows);
    uint32_t workgroups = 1;

    while (workgroups < workgroups_most(pieces) && workgroups < call->rows.m)
        workgroups *= 2;
    return {GPU_BY_DTYPE(dtype, kernel_of, pieces, plain), workgroups, threads < THREADS ? (uint32_t)threads : (uint32_t)THREADS, 0};
}
