/* SPDX-License-Identifier: MIT
 *
 * gemm_factors.hip - gemm.hip's products where a factor is e4m3 (device/matrix_factors.h): slices, memory order and epilogues are the same.
 */
#include "kernels/gpu/device/epilogue.h"
#include "kernels/gpu/device/exchange/landing.h"
#include "kernels/gpu/device/exchange/reduce_nodes.h"
#include "kernels/gpu/device/execute.h"
#include "kernels/gpu/device/matrix_factors.h"
#include "kernels/gpu/runtime.h"

extern __shared__ __align__(16) unsigned char factors_shared_bytes[];

namespace
{

template <typename T, typename C>
GPU_DEVICE struct gpu_factors_product<T, C> factors_product(const struct gpu_call &call,
                                                            const struct gpu_scales_argument &scales, uint32_t run,
                                                            const struct slice &s, C *to, int64_t stride) {
    const struct gpu_input &in = call.in[run];
    const bool a_f8 = call.fixed->shape.factors & FACTORS_FIRST_F8, b_f8 = call.fixed->shape.factors & FACTORS_SECOND_F8;

    return {(const char *)in.gemm.a + s.row * in.gemm.a_stride * (a_f8 ? 1 : (int64_t)sizeof(T)),
            (const char *)in.gemm.b + s.col *(b_f8 ? 1 : (int64_t)sizeof(T)),
            to,
            in.gemm.a_stride,
            in.gemm.b_stride,
            stride,
            in.gemm.k,
            s.rows,
            s.cols,
            s.row,
            s.col,
            scales.runs[run].of[0],
            scales.runs[run].of[1],
            a_f8,
            b_f8};
}

/* ---- sent ---- */

template <typename T>
struct factors_operator {
    const struct gpu_scales_argument &scales;
    struct gpu_factors_product<T> *product; /* in shared memory, to save registers while it is computed */
    struct gpu_epilogue<T> *stages;         /* the same */

    __device__ __forceinline__ bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        int64_t n = call.fixed->shape.n, stride = n;
        T *here = (T *)call.fixed->staging[gpu_plan_of(call, run)->rank] + s.row * n + s.col, *to = here;

        if (!landing_open<T>(call, s))
            return false;
        if (s.kind != SLICE_COMPUTE) {
            stride = call.out[s.dst].stride[0];
            to = landing_to<T>(call, s, stride);
        }
        if (s.kind == SLICE_PUT) {
            gpu_rows_copy<T>(to, stride, here, n, s.rows, s.cols, threadIdx.x, GPU_MATRIX_THREADS);
            return true;
        }
        if (threadIdx.x == 0) {
            *product = factors_product<T, T>(call, scales, run, s, to, stride);
            *stages = gpu_epilogue_at<T>(call, run, s.row, s.col);
        }
        __syncthreads();
        gpu_factors_multiply<T>(*product, factors_shared_bytes, gemm_stages<T>{stages, 0, 0});
        return true;
    }
};

template <typename T>
__global__ void __launch_bounds__(GPU_MATRIX_THREADS, gpu_factors_engine<T>::RESIDENT)
    factors_put_kernel(GPU_PARAMETER struct gpu_call call, GPU_PARAMETER struct gpu_scales_argument scales)
{
    __shared__ struct gpu_factors_product<T> product;
    __shared__ struct gpu_epilogue<T> stages;
    struct factors_operator<T> op = {
        scales, &product, &stages
    };

    gpu_execute_over_nodes(call, op, landing_end<T>());
}

/* ---- added up ---- */

template <typename T> struct factors_sums_operator {
    const struct gpu_scales_argument &scales;
    struct gpu_factors_product<T, float> *product; /* in shared memory */

    __device__ __forceinline__ bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        if (s.kind != SLICE_COMPUTE && s.kind != SLICE_COMPUTE_PUT) {
            sums_move<T, true>(call, run, s);
            return true;
        }
        if (threadIdx.x == 0)
            *product = factors_product<T, float>(call, scales, run, s, sums_to(call, run, s), s.cols);
        __syncthreads();
        gpu_factors_multiply<T>(*product, factors_shared_bytes);
        return true;
    }
};

template <typename T>
__global__ void __launch_bounds__(GPU_MATRIX_THREADS, gpu_factors_engine<T>::RESIDENT)
    factors_sums_kernel(GPU_PARAMETER struct gpu_call call, GPU_PARAMETER struct gpu_scales_argument scales)
{
    __shared__ struct gpu_factors_product<T, float> product;
    struct factors_sums_operator<T> op = {
        scales, &product
    };

    gpu_execute_over_nodes(call, op);
}

template <typename T> bool kernel_make(const struct gpu_shape *shape, int gpu, struct gpu_kernel *out)
{
    const size_t without_asking = 48 * 1024; /* bytes that a kernel may use without setting an attribute */
    hipDeviceProp_t properties;

    if (hipGetDeviceProperties(&properties, gpu) != hipSuccess)
        return false;
    *out = {shape->exchange == EXCHANGE_REDUCE ? (const void *)factors_sums_kernel<T> : (const void *)factors_put_kernel<T>,
            GPU_MATRIX_THREADS, gpu_factors_shared_bytes<T>(properties.major, properties.minor), 0};
    return out->shared_bytes <= without_asking ||
           hipFuncSetAttribute(out->function, hipFuncAttributeMaxDynamicSharedMemorySize, (int)out->shared_bytes) == hipSuccess;
}

} // namespace

bool gpu_gemm_factors_fits(const struct gpu_shape *shape, int gpu, const struct gpu_run[], int, struct gpu_choice *out)
{
    return GPU_BY_DTYPE(shape->dtype, kernel_make, shape, gpu, &out->kernel);
}
