/* SPDX-License-Identifier: MIT
 *
 * whole_rows.hip - a kernel of the rank's own, behind a product on its stream: what an epilogue does with whole rows.
 */
#include "kernels/gpu/device/registry.h"
#include "kernels/gpu/device/whole_rows.h"
#include "kernels/gpu/plugin/inside.h"
#include "kernels/gpu/plugin/whole_rows.h"

#define WORKGROUPS_MOST INT64_C(4096)

/* PIECES: that a thread has in registers; 0: rows of any length, of which it has none. */
template <typename T, int PIECES, bool ALIGNED, bool PLAIN>
static __global__ void __launch_bounds__(GPU_ROWS_THREADS_MOST) gpu_rows_kernel(GPU_PARAMETER struct gpu_rows rows)
{
    typedef struct gpu_piece<T, 16> piece;
    __shared__ float room[2 * gpu_rows_team::ROOM];

    gpu_follow();
    gpu_let_follow();
    if constexpr (PIECES) {
        gpu_row_maker<T, piece, PIECES, ALIGNED, PLAIN> maker(rows, gpu_rows_team_of(room));
        for (int64_t row = blockIdx.x; row < rows.m; row += gridDim.x)
            maker.make(row);
    } else {
        gpu_long_row_maker<T, piece, gpu_rows_from_memory<T>> maker = {rows, gpu_rows_team_of(room), {}};
        for (int64_t row = blockIdx.x; row < rows.m; row += gridDim.x)
            maker.make(row);
    }
}

/* Plain rows of 16-byte pieces have kernels of their own. */
template <typename T, int PIECES> static const void *kernel_with(bool aligned, bool plain)
{
    return aligned && plain ? (const void *)gpu_rows_kernel<T, PIECES, true, true>
           : aligned        ? (const void *)gpu_rows_kernel<T, PIECES, true, false>
                            : (const void *)gpu_rows_kernel<T, PIECES, false, false>;
}

/* Four pieces of 16-bit elements, 32 numbers, would not fit into the registers of 1024 threads. */
template <typename T> static const void *kernel_of(int64_t pieces, bool aligned, bool plain)
{
    if (pieces <= 1)
        return kernel_with<T, 1>(aligned, plain);
    if (pieces <= 2)
        return kernel_with<T, 2>(aligned, plain);
    if constexpr (sizeof(T) == 4)
        if (pieces <= 4)
            return kernel_with<T, 4>(aligned, plain);
    return (const void *)gpu_rows_kernel<T, 0, false, false>;
}

const void *rows_kernel(void)
{
    return kernel_of<float>(1, true, true);
}

bool rows_tensor_is_aligned(uint64_t at, int64_t stride, int64_t m, uint64_t size, uint64_t to)
{
    return at % to == 0 && (m <= 1 || (uint64_t)stride * size % to == 0);
}

bool rows_are_aligned(const struct gpu_rows *r, uint64_t size, uint64_t to)
{
    return (uint64_t)r->n * size % to == 0 && rows_tensor_is_aligned(r->y, r->y_stride, r->m, size, to) &&
           rows_tensor_is_aligned(r->sum, r->sum_stride, r->m, size, to) &&
           rows_tensor_is_aligned(r->residual, r->residual_stride, r->m, size, to) &&
           rows_tensor_is_aligned(r->gate, r->gate_stride, r->m, size, to) &&
           rows_tensor_is_aligned(r->wide, r->n, r->m, sizeof(float), to) &&
           rows_tensor_is_aligned(r->weight | r->bias | r->added_bias, 0, 1, size, to);
}

int rows_start(int gpu, const struct gpu_rows *rows, hipStream_t stream, struct error *e)
{
    struct gpu_rows what = *rows;
    void *arguments[] = {&what};

    if (!rows->is_there || rows->m == 0 || rows->n == 0)
        return 0;
    /* The threads of a row are a function of its length and dtype: all ranks add its elements in the same order. */
    const int64_t size = rows->dtype == FCC_F32 ? 4 : 2, length = 16 / size, all = (rows->n + length - 1) / length;
    const int64_t waves = (all + 63) / 64 * 64, threads = waves < GPU_ROWS_THREADS_MOST ? waves : GPU_ROWS_THREADS_MOST;
    const void *kernel = GPU_BY_DTYPE(rows->dtype, kernel_of, (all + threads - 1) / threads,
                                      rows_are_aligned(rows, (uint64_t)size, 16), gpu_rows_are_plain(rows));
    const uint32_t workgroups = (uint32_t)(rows->m < WORKGROUPS_MOST ? rows->m : WORKGROUPS_MOST);
    hipError_t status = gpu_kernel_launch(kernel, workgroups, (uint32_t)threads, arguments, 0, stream,
                                          gpus[gpu].follows && gpu_graphs_follow());
    return status == hipSuccess ? 0 : gpu_error(e, gpu, "launching an epilogue's kernel", status);
}
