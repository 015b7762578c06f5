/* SPDX-License-Identifier: MIT
 *
 * factors_rows.hip - x . w^T where a factor is e4m3 (device/matrix_factors.h), of many rows, by a kernel of its own, as the vendor's library makes other
 * products: the rows are rounded, and added up by another kernel behind it (rings_rows.hip). A workgroup makes a tile; those of
 * the same columns follow each other.
 */
#include "kernels/gpu/device/matrix_factors.h"
#include "kernels/gpu/device/registry.h"
#include "kernels/gpu/plugin/inside.h"
#include "kernels/gpu/plugin/product.h"

extern __shared__ __align__(16) unsigned char rows_shared_bytes[];

namespace
{

/* What a kernel is told: the whole product, whose result is dense. */
struct factor_rows {
    uint64_t x, w, to;
    int64_t x_stride, w_stride, m, n, k;
    struct gpu_factor_scales scales;
    uint32_t factors, zero;
};

template <typename T>
__global__ void __launch_bounds__(GPU_MATRIX_THREADS, (gpu_factors_engine<T, true>::RESIDENT))
    factors_rows_kernel(GPU_PARAMETER struct factor_rows p)
{
    typedef gpu_factors_engine<T, true> engine;
    __shared__ struct gpu_factors_product<T> product;

    gpu_follow();
    if (threadIdx.x == 0)
        product = {(const void *)p.x,
                   (const void *)p.w,
                   (T *)p.to,
                   p.x_stride,
                   p.w_stride,
                   p.n,
                   p.k,
                   p.m,
                   p.n,
                   0,
                   0,
                   p.scales.of[0],
                   p.scales.of[1],
                   (p.factors & FACTORS_FIRST_F8) != 0,
                   (p.factors & FACTORS_SECOND_F8) != 0};
    __syncthreads();
    const uint32_t high = (uint32_t)((p.m + engine::ROWS - 1) / engine::ROWS);
    gpu_factors_tile<engine, T, true>(product, (int64_t)(blockIdx.x % high) * engine::ROWS,
                                      (int64_t)(blockIdx.x / high) * engine::COLS, rows_shared_bytes, gpu_as_they_are());
}

template <typename T> hipError_t rows_launch(const struct factor_rows *p, int gpu, hipStream_t stream)
{
    typedef gpu_factors_fma<T, true> plain; /* tiles of every engine are as large */
    const void *kernel = (const void *)factors_rows_kernel<T>;
    const int64_t tiles = (p->m + plain::ROWS - 1) / plain::ROWS * ((p->n + plain::COLS - 1) / plain::COLS);
    struct factor_rows what = *p;
    void *arguments[] = {&what};
    hipDeviceProp_t properties;
    hipError_t status = hipGetDeviceProperties(&properties, gpu);

    if (status != hipSuccess)
        return status;
    const size_t shared = gpu_factors_shared_bytes<T>(properties.major, properties.minor);
    status = hipFuncSetAttribute(kernel, hipFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (status != hipSuccess || tiles == 0)
        return status;
    return gpu_kernel_launch(kernel, (uint32_t)tiles, GPU_MATRIX_THREADS, arguments, shared, stream,
                             gpus[gpu].follows && gpu_graphs_follow());
}

} // namespace

const void *factor_rows_kernel(void)
{
    return (const void *)factors_rows_kernel<float>;
}

int factor_rows_product(int gpu, const struct rings_product *what, int64_t row, int64_t rows, uint64_t to, hipStream_t stream,
                        struct error *e)
{
    struct factor_rows p = {};

    p.x = what->x + (uint64_t)row * factor_bytes(what, 0) * (uint64_t)what->x_stride;
    p.w = what->w;
    p.to = to;
    p.x_stride = what->x_stride;
    p.w_stride = what->w_stride;
    p.m = rows;
    p.n = what->n;
    p.k = what->k;
    p.scales.of[0] = gpu_scales_from(&what->scales.of[0], row);
    p.scales.of[1] = what->scales.of[1];
    p.factors = what->factors;
    const hipError_t status = GPU_BY_DTYPE(what->dtype, rows_launch, &p, gpu, stream);
    return status == hipSuccess ? 0 : gpu_error(e, gpu, "launching a product of factors in e4m3", status);
}
