/* SPDX-License-Identifier: MIT
 *
 * whole_rows.hip - a kernel of the rank's own, behind a product on its stream: what an epilogue does with whole rows.
 */
#include "kernels/gpu/device/registry.h"
#include "kernels/gpu/device/whole_rows.h"
#include "kernels/gpu/plugin/inside.h"
#include "kernels/gpu/plugin/whole_rows.h"

#define WORKGROUPS_MOST INT64_C(4096)

template <typename T> __global__ void __launch_bounds__(GPU_ROWS_THREADS) gpu_rows_kernel(GPU_PARAMETER struct gpu_rows rows)
{
    __shared__ float room[GPU_ROWS_THREADS];

    for (int64_t row = blockIdx.x; row < rows.m; row += gridDim.x)
        gpu_row_make<T>(rows, row, room);
}

template <typename T> static const void *kernel_of(void)
{
    return (const void *)gpu_rows_kernel<T>;
}

const void *rows_kernel(void)
{
    return kernel_of<float>();
}

int rows_start(int gpu, const struct gpu_rows *rows, hipStream_t stream, struct error *e)
{
    struct gpu_rows what = *rows;
    void *arguments[] = {&what};
    const uint32_t workgroups = (uint32_t)(rows->m < WORKGROUPS_MOST ? rows->m : WORKGROUPS_MOST);

    if (!rows->is_there || rows->m == 0 || rows->n == 0)
        return 0;
    hipError_t status =
        gpu_kernel_launch(GPU_BY_DTYPE(rows->dtype, kernel_of), workgroups, GPU_ROWS_THREADS, arguments, 0, stream, false);
    return status == hipSuccess ? 0 : gpu_error(e, gpu, "launching an epilogue's kernel", status);
}
