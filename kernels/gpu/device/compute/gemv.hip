/* SPDX-License-Identifier: MIT
 *
 * gemv.hip - y = sum over ranks r, in rank order, of x_r . w_r^T, on GPUs. The plan, its phases and the argument why
 * the order is right are kernels/plan/exchange/reduce.c's; where sums lie, kernels/gpu/device/exchange/packets.h's (over nodes:
 * kernels/gpu/device/exchange/reduce_nodes.h's); the rest is kernels/gpu/device/execute.h's.
 *
 * A partial sum is bound by reading w once. There are four ways to do it:
 *   gemv_row.h      one row of x that fits into shared memory, in one step, on Hopper: a kernel of its own (gemv_row_host.h:
 *                   for which calls, and its arguments)
 *   gemv_stream.h   one row of x that fits into less shared memory, otherwise
 *   gemv_hopper.h   several rows of f16 or bf16 on Hopper: a kernel of its own
 *   compute_tile()  everything else. A tile's columns are dealt out to the waves of the workgroup; a wave goes along K with one
 *                   or two columns at a time, 16 bytes a lane, and reads the next ones while it multiplies those that it has.
 *                   These stay in registers while it goes through the rows of x, up to ROWS_MOST at a time; x is small and
 *                   stays in the caches. More rows than that take another pass over w. The tile comes together in shared memory
 *                   and leaves from there in whole lines.
 *
 * Same bits, every run and with every schedule: which of the ways a rank goes depends on M, the ranks' K and the dtype (and the
 * GPU) only, but for the first two where they give the bits of the last: there a lane adds its products in the order of k, by
 * one fused multiply-add each; then the lanes of the wave are added in a fixed order. Which k a lane has depends on K and the
 * dtype only: neither on where x and w lie, nor on the tile or the number of columns and rows at a time. What lies beyond K
 * counts as 0.
 */
#include "kernels/gpu/device/compute/gemv_multiply.h"
#include "kernels/gpu/device/compute/gemv_stream.h"
#include "kernels/gpu/device/exchange/packets.h"
#include "kernels/gpu/device/exchange/reduce_nodes.h"
#include "kernels/gpu/device/execute.h"
#include "kernels/gpu/runtime.h"

#if defined(__CUDACC__)
#include "kernels/gpu/device/compute/gemv_hopper.h"
#include "kernels/gpu/device/compute/gemv_row_host.h"
#endif

enum { SUMS = 4096 /* sums of a tile that are combined at a time: at least FCC_GEMV_MAX_M * WAVES */ };

/* Computes a tile of any width, in pieces that fit into shared memory. */
template <typename T, typename Put>
GEMV_APART void compute_tile(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    __shared__ float sums[SUMS];
    __shared__ operands<T> p;

    if (threadIdx.x == 0)
        p = operands_get<T>(call, run);
    __syncthreads();
    for (uint32_t first = 0, most = SUMS / p.m / GEMV_BLOCK * GEMV_BLOCK; first < s.cols; first += most) {
        uint32_t cols = s.cols - first < most ? s.cols - first : most;
        const T *w = p.w + (uint64_t)(s.col + first) * p.w_stride;
        if (p.aligned)
            multiply_piece<T, true>(sums, cols, p, w);
        else
            multiply_piece<T, false>(sums, cols, p, w);
        __syncthreads();
        struct gpu_walk at = gpu_walk_at(threadIdx.x, cols, p.m), step = gpu_walk_at(THREADS, cols, p.m);
        typename Put::place to = Put::at(call, run, s);
        for (; at.z < 1; gpu_walk_next(&at, step, cols, p.m))
            Put::put(call, run, s, to, at.y, s.col + first + at.x, sums[at.y * cols + at.x]);
        if (first + cols < s.cols)
            __syncthreads();
    }
}

template <typename T, bool EPILOGUE> struct gemv {
    __device__ __forceinline__ bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        gemv_rest<T, EPILOGUE> rest;

        if (s.kind == SLICE_REDUCE || s.kind == SLICE_PUT || s.kind == SLICE_TAKE)
            return rest.slice(call, run, s);
        compute_tile<T, gemv_put_word>(call, run, s);
        return true;
    }
};

template <typename T, bool EPILOGUE>
__global__ void __launch_bounds__(THREADS, 2) gemv_kernel(GPU_PARAMETER struct gpu_call call)
{
    __shared__ struct gpu_group group[2];
    struct gemv<T, EPILOGUE> op;
    bool go_on = true;

    gpu_bring_nearer(call);
    gpu_follow();
    stream_prefetch<T>(call);
    gpu_begin(call);
    go_on = !gpu_is_over(call);
    for (uint32_t phase = 0; phase < GPU_PHASES && go_on; phase++) {
        if (phase == GPU_PHASE_REDUCE && threadIdx.x / GPU_WAVE == WAVES - 1) /* others may wait for words by now */
            through_meet(call);
        for (uint32_t i = 0; i < call.nruns && go_on; i++) {
            uint32_t run = gpu_run_of(call, i);
            if (phase == GPU_PHASE_FREE && streams<T>(call, run))
                go_on = stream_run<T>(call, run, group);
            else
                go_on = gpu_phase_run(call, run, phase, group, op);
        }
    }
    gpu_leave(call, group);
}

/* ---- over nodes: partial sums as they are, with flags ---- */

template <typename T, bool EPILOGUE> struct gemv_over_nodes {
    __device__ __forceinline__ bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        if (s.kind == SLICE_COMPUTE || s.kind == SLICE_COMPUTE_PUT)
            compute_tile<T, sums_put_each>(call, run, s);
        else
            sums_move<T, EPILOGUE>(call, run, s);
        return true;
    }
};

template <typename T, bool EPILOGUE>
__global__ void __launch_bounds__(THREADS, 2) gemv_over_nodes_kernel(GPU_PARAMETER struct gpu_call call)
{
    struct gemv_over_nodes<T, EPILOGUE> op;

    gpu_execute_over_nodes(call, op);
}

template <typename T> static const void *function_of(const struct gpu_shape *shape)
{
    if (shape->stages)
        return shape->over_nodes ? (const void *)gemv_over_nodes_kernel<T, true> : (const void *)gemv_kernel<T, true>;
    return shape->over_nodes ? (const void *)gemv_over_nodes_kernel<T, false> : (const void *)gemv_kernel<T, false>;
}

bool gpu_gemv_fits(const struct gpu_shape *shape, int, const struct gpu_run[], int, struct gpu_choice *out)
{
    out->kernel = {GPU_BY_DTYPE(shape->dtype, function_of, shape), THREADS, 0, 0};
    return true;
}

/* ---- several rows on Hopper: the host's side ---- */

#if defined(__CUDACC__)

template <typename T, int ROWS> static struct gpu_kernel gemv_hopper_kernel_get()
{
    typedef gemv_shape<T, ROWS> shape;
    struct gpu_kernel k = {(const void *)gemv_hopper_kernel<T, ROWS>, GEMV_THREADS, shape::SHARED_BYTES, 1, GEMV_PARTS};

    if (hipFuncSetAttribute(k.function, hipFuncAttributeMaxDynamicSharedMemorySize, (int)k.shared_bytes) != hipSuccess)
        k.function = NULL;
    return k;
}

template <typename T> static struct gpu_kernel gemv_hopper_choose(int64_t m)
{
    switch (gemv_hopper_rows(m)) {
    case 8:
        return gemv_hopper_kernel_get<T, 8>();
    case 16:
        return gemv_hopper_kernel_get<T, 16>();
    case 32:
        return gemv_hopper_kernel_get<T, 32>();
    default:
        return gemv_hopper_kernel_get<T, 64>();
    }
}

/* The number of jobs that gemv_taker::jobs_make() makes of a run's slices; 0: some slices do not begin with a block of
 * columns. */
static uint32_t gemv_hopper_jobs(const struct gpu_run *run, uint32_t together)
{
    const uint32_t count = run->first[GPU_PHASE_FREE + 1];
    uint32_t jobs = 0;

    for (uint32_t i = 0, n; i < count; i += n) {
        const struct slice *s = &run->slices[i];
        uint32_t all = s->cols, end = i - i % together + together;
        for (n = 1;
             i + n < count && i + n < end && s[n].col == s->col + all && all + s[n].cols <= GEMV_COLS && s[n].dst == s->dst;
             n++)
            all += s[n].cols;
        if (s->col % GEMV_BLOCK)
            return 0;
        jobs += (all + GEMV_COLS - 1) / GEMV_COLS;
    }
    return jobs;
}

/* The number of all runs' jobs if workgroups reduce what they have computed: in one-step plans that send all packets while
 * computing. Otherwise 0. */
static uint32_t gemv_hopper_listed(const struct gpu_run runs[], int nruns, const uint32_t together[])
{
    const uint32_t *first = runs[0].first;
    uint32_t all = 0;

    if (first[GPU_PHASE_REDUCE] == first[GPU_PHASE_REDUCE + 1] || first[GPU_PHASE_WAIT] != first[GPU_PHASE_WAIT + 1] ||
        first[GPU_PHASE_PUT] != first[GPU_PHASE_PUT + 1])
        return 0;
    for (int i = 0; i < nruns; i++) {
        uint32_t jobs = gemv_hopper_jobs(&runs[i], together[i]);
        if (jobs == 0)
            return 0;
        all += jobs;
    }
    return all <= GEMV_LISTED_MOST ? all : 0;
}

static bool gemv_row_fits(const struct gpu_shape *shape, uint32_t multiprocessors, const struct gpu_run runs[], int nruns,
                          struct gpu_choice *out)
{
    const uint32_t most = gpu_multiprocessors_for(shape, multiprocessors);

    if (!row_plans_fit(shape, runs, nruns, &out->tile, &out->reduced))
        return false;
    out->kernel = GPU_BY_DTYPE(shape->dtype, gemv_row_kernel_get, shape, nruns, most);
    out->most = out->kernel.workgroups;
    return out->kernel.function != NULL;
}

bool gpu_gemv_hopper_fits(const struct gpu_shape *shape, int gpu, const struct gpu_run runs[], int nruns,
                          struct gpu_choice *out)
{
    hipDeviceProp_t properties;

    if (shape->n < 1 || hipGetDeviceProperties(&properties, gpu) != hipSuccess)
        return false;
    if (shape->m == 1)
        return gemv_row_fits(shape, (uint32_t)properties.multiProcessorCount, runs, nruns, out);
    if (shape->dtype == FCC_F32)
        return false;
    for (int i = 0; i < nruns; i++) {
        /* all slices are of one kind, and all except a chunk's last have the same size */
        const struct slice *s = runs[i].slices;
        if (runs[i].first[GPU_PHASE_FREE + 1] == 0 || (s->kind != SLICE_COMPUTE && s->kind != SLICE_COMPUTE_PUT))
            return false;
        uint32_t fit = s->cols <= GEMV_COLS ? GEMV_COLS / s->cols : 1;
        out->together[i] = fit < GEMV_TOGETHER ? fit : GEMV_TOGETHER;
    }
    out->kernel = shape->dtype == FCC_F16 ? gemv_hopper_choose<gpu_f16>(shape->m) : gemv_hopper_choose<gpu_bf16>(shape->m);
    if (out->kernel.function)
        out->most =
            gpu_clusters_resident(out->kernel.function, out->kernel.threads, out->kernel.shared_bytes, GEMV_PARTS) * GEMV_PARTS;
    out->jobs = gemv_hopper_listed(runs, nruns, out->together);
    return out->most > 0;
}

void *gpu_gemv_hopper_params(const struct gpu_choice *choice, const struct gpu_call *call, const struct gpu_fixed *fixed)
{
    static thread_local struct gemv_maps maps;
    static thread_local struct gemv_row row;
    const struct gpu_shape *shape = &fixed->shape;
    enum fcc_dtype dtype = (enum fcc_dtype)shape->dtype;
    uint32_t rows = gemv_hopper_rows(shape->m), steps = 0, each;

    if (choice->tile)
        return gemv_row_fill(&row, choice, call, fixed) ? &row : NULL;
    memcpy(maps.together, choice->together, sizeof(maps.together));
    maps.listed = choice->jobs;
    each = choice->jobs / (choice->most / GEMV_PARTS) + 1;
    maps.all_by_engine = 1;
    for (uint32_t i = 0; i < call->nruns; i++) {
        const struct gpu_input *in = &call->in[i];
        int64_t k = in->gemv.k, part = ((k + GEMV_STEP - 1) / GEMV_STEP + GEMV_PARTS - 1) / GEMV_PARTS;
        steps = (int64_t)steps < part ? (uint32_t)part : steps;
        maps.x_by_engine[i] =
            driver_matrix_map(&maps.runs[i].x, dtype == FCC_F16, in->gemv.x, k, shape->m, in->gemv.x_stride, rows);
        maps.w_by_engine[i] =
            driver_matrix_map(&maps.runs[i].w, dtype == FCC_F16, in->gemv.w, k, shape->n, in->gemv.w_stride, GEMV_COLS);
        maps.all_by_engine &= maps.x_by_engine[i] & maps.w_by_engine[i];
    }
    if (rows == 8)
        gemv_hopper_divide<gemv_shape<gpu_f16, 8>>(&maps, steps, each);
    else if (rows == 16)
        gemv_hopper_divide<gemv_shape<gpu_f16, 16>>(&maps, steps, each);
    else if (rows == 32)
        gemv_hopper_divide<gemv_shape<gpu_f16, 32>>(&maps, steps, each);
    else
        gemv_hopper_divide<gemv_shape<gpu_f16, 64>>(&maps, steps, each);
    return &maps;
}

#endif
