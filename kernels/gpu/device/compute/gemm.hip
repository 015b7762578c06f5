/* SPDX-License-Identifier: MIT
 *
 * gemm.hip - C_r = A_r . B_r on a GPU. Its rows are sent to the ranks, or the ranks' products are added up. Slices:
 * kernels/plan/compute/gemm.c. Added up: kernels/gpu/device/exchange/reduce_nodes.h. Sent:
 *
 *   compute+put   a workgroup computes the tile and stores it in the destination's c, on whichever GPU that is
 *   compute       the same, into the rank's own staging memory: dense [M_r][N]
 *   put           copies rows from there into the destination's c
 *
 * Gathered (kernels/plan/exchange/gather.c): put copies rows of A into the other ranks' staging memory, compute+put computes a tile of this rank's c
 * from its own a or from there, forward copies rows into the tensor `gathered`.
 *
 * Memory order: all threads store a tile by plain stores. gpu_execute() then fences and raises the flags, and waits for flags
 * before a put. Tiles of a destination's c come from one source each and do not overlap.
 *
 * A slice may have any size. It is computed in tiles of kernels/gpu/device/matrix.h's engine; whole tiles are fastest: 128
 * rows x 256 columns of f16 and bf16, 128 x 128 of f32.
 */
#include "kernels/gpu/device/epilogue.h"
#include "kernels/gpu/device/exchange/landing.h"
#include "kernels/gpu/device/exchange/reduce_nodes.h"
#include "kernels/gpu/device/execute.h"
#include "kernels/gpu/device/matrix.h"
#include "kernels/gpu/runtime.h"

extern __shared__ __align__(16) unsigned char gemm_shared_bytes[];

#if defined(__CUDACC__)
#include "kernels/gpu/device/compute/gemm_hopper.h"
#include "kernels/gpu/device/compute/gemm_hopper_split.h"
#endif

template <typename T, bool EPILOGUE = false> struct gemm_operator {
    struct gpu_product<T> *product; /* in shared memory, to save registers while it is computed */
    struct gpu_epilogue<T> *stages; /* the same; EPILOGUE only */

    __device__ __forceinline__ bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        const struct gpu_input &in = call.in[run];
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
        if (!in.gemm.b) { /* no B: copies the rows unchanged */
            gpu_rows_copy<T>(to, stride, (const T *)in.gemm.a + s.row * in.gemm.a_stride + s.col, in.gemm.a_stride, s.rows,
                             s.cols, threadIdx.x, GPU_MATRIX_THREADS);
            return true;
        }
        if (threadIdx.x == 0)
            *product = {(const T *)in.gemm.a + s.row * in.gemm.a_stride,
                        (const T *)in.gemm.b + s.col,
                        to,
                        in.gemm.a_stride,
                        in.gemm.b_stride,
                        stride,
                        in.gemm.k,
                        s.rows,
                        s.cols};
        if constexpr (EPILOGUE) {
            if (threadIdx.x == 0)
                *stages = gpu_epilogue_at<T>(call, run, s.row, s.col);
            __syncthreads();
            gpu_multiply<T>(*product, gemm_shared_bytes, gemm_stages<T>{stages, 0, 0});
        } else {
            __syncthreads();
            gpu_multiply<T>(*product, gemm_shared_bytes);
        }
        return true;
    }
};

template <typename T>
__global__ void __launch_bounds__(GPU_MATRIX_THREADS, gpu_engine<T>::RESIDENT)
    gemm_one_node_kernel(GPU_PARAMETER struct gpu_call call)
{
    __shared__ struct gpu_product<T> product;
    struct gemm_operator<T> op = {
        &product, nullptr
    };

    gpu_execute(call, op, landing_end<T>());
}

template <typename T>
__global__ void __launch_bounds__(GPU_MATRIX_THREADS, gpu_engine<T>::RESIDENT)
    gemm_over_nodes_kernel(GPU_PARAMETER struct gpu_call call)
{
    __shared__ struct gpu_product<T> product;
    struct gemm_operator<T> op = {
        &product, nullptr
    };

    gpu_execute_over_nodes(call, op, landing_end<T>());
}

/* With an epilogue; on one node, too. */
template <typename T>
__global__ void __launch_bounds__(GPU_MATRIX_THREADS, gpu_engine<T>::RESIDENT)
    gemm_epilogue_kernel(GPU_PARAMETER struct gpu_call call)
{
    __shared__ struct gpu_product<T> product;
    __shared__ struct gpu_epilogue<T> stages;
    struct gemm_operator<T, true> op = {
        &product, &stages
    };

    gpu_execute_over_nodes(call, op, landing_end<T>());
}

/* ---- A is gathered ---- */

template <typename T, bool EPILOGUE> struct gemm_gather_operator {
    struct gpu_product<T> *product; /* in shared memory */
    struct gpu_epilogue<T> *stages; /* the same; EPILOGUE only */

    /* Copies of whole rows. */
    static __device__ __forceinline__ void copy(T *to, int64_t to_stride, const T *from, int64_t from_stride,
                                                const struct slice &s)
    {
        gpu_rows_copy<T>(to, to_stride, from, from_stride, s.rows, s.cols, threadIdx.x, GPU_MATRIX_THREADS);
    }

    __device__ __forceinline__ bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        const struct gpu_input &in = call.in[run];
        const struct gpu_fixed *fixed = call.fixed;
        const uint32_t rank = gpu_plan_of(call, run)->rank;
        const int64_t k = fixed->shape.k, row = s.row;
        const bool own = s.slot == rank;
        const int64_t stride = own ? in.gemm.a_stride : k;
        const T *rows =
            own ? (const T *)in.gemm.a + (row - fixed->shape.first[rank]) * stride : (const T *)fixed->staging[rank] + row * k;

        if (s.kind == SLICE_PUT) {
            copy((T *)fixed->staging[s.dst] + row * k, k, rows, stride, s);
            return true;
        }
        if (s.kind == SLICE_FORWARD) {
            copy((T *)in.gemm.gathered + row * in.gemm.gathered_stride, in.gemm.gathered_stride, rows, stride, s);
            return true;
        }
        if (threadIdx.x == 0)
            *product = {rows,
                        (const T *)in.gemm.b + s.col,
                        (T *)call.out[rank].data + row * call.out[rank].stride[0] + s.col,
                        stride,
                        in.gemm.b_stride,
                        call.out[rank].stride[0],
                        k,
                        s.rows,
                        s.cols};
        if constexpr (EPILOGUE) {
            if (threadIdx.x == 0)
                *stages = gpu_epilogue_at<T>(call, run, s.row, s.col);
            __syncthreads();
            gpu_multiply<T>(*product, gemm_shared_bytes, gemm_stages<T>{stages, 0, 0});
        } else {
            __syncthreads();
            gpu_multiply<T>(*product, gemm_shared_bytes);
        }
        return true;
    }
};

/* On one node, too, which is a case of several. */
template <typename T, bool EPILOGUE>
__global__ void __launch_bounds__(GPU_MATRIX_THREADS, gpu_engine<T>::RESIDENT)
    gemm_gather_kernel(GPU_PARAMETER struct gpu_call call)
{
    __shared__ struct gpu_product<T> product;
    __shared__ struct gpu_epilogue<T> stages;
    struct gemm_gather_operator<T, EPILOGUE> op = {
        &product, &stages
    };

    gpu_execute_over_nodes(call, op);
}

/* ---- added up ---- */

template <typename T> struct gemm_sums_operator {
    struct gpu_product<T, float> *product; /* in shared memory */

    __device__ __forceinline__ bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        const struct gpu_input &in = call.in[run];

        if (s.kind != SLICE_COMPUTE && s.kind != SLICE_COMPUTE_PUT) {
            sums_move<T, true>(call, run, s);
            return true;
        }
        if (threadIdx.x == 0)
            *product = {(const T *)in.gemm.a + s.row * in.gemm.a_stride,
                        (const T *)in.gemm.b + s.col,
                        sums_to(call, run, s),
                        in.gemm.a_stride,
                        in.gemm.b_stride,
                        s.cols,
                        in.gemm.k,
                        s.rows,
                        s.cols};
        __syncthreads();
        gpu_multiply<T>(*product, gemm_shared_bytes);
        return true;
    }
};

/* On one node, too, which is a case of several. */
template <typename T>
__global__ void __launch_bounds__(GPU_MATRIX_THREADS, gpu_engine<T>::RESIDENT)
    gemm_sums_kernel(GPU_PARAMETER struct gpu_call call)
{
    __shared__ struct gpu_product<T, float> product;
    struct gemm_sums_operator<T> op = {
        &product
    };

    gpu_execute_over_nodes(call, op);
}

template <typename T> static bool kernel_make(const struct gpu_shape *shape, int gpu, struct gpu_kernel *out)
{
    const size_t without_asking = 48 * 1024; /* bytes that a kernel may use without setting an attribute */
    hipDeviceProp_t properties;

    if (hipGetDeviceProperties(&properties, gpu) != hipSuccess)
        return false;
    *out = {shape->exchange == EXCHANGE_REDUCE                    ? (const void *)gemm_sums_kernel<T>
            : shape->exchange == EXCHANGE_GATHER && shape->stages ? (const void *)gemm_gather_kernel<T, true>
            : shape->exchange == EXCHANGE_GATHER                  ? (const void *)gemm_gather_kernel<T, false>
            : shape->stages                                       ? (const void *)gemm_epilogue_kernel<T>
            : shape->over_nodes                                   ? (const void *)gemm_over_nodes_kernel<T>
                                                                  : (const void *)gemm_one_node_kernel<T>,
            GPU_MATRIX_THREADS, gpu_matrix_shared_bytes<T>(properties.major, properties.minor), 0};
    return out->shared_bytes <= without_asking ||
           hipFuncSetAttribute(out->function, hipFuncAttributeMaxDynamicSharedMemorySize, (int)out->shared_bytes) == hipSuccess;
}

bool gpu_gemm_fits(const struct gpu_shape *shape, int gpu, const struct gpu_run[], int, struct gpu_choice *out)
{
    return GPU_BY_DTYPE(shape->dtype, kernel_make, shape, gpu, &out->kernel);
}

#if defined(__CUDACC__)

/* ---- the kernel for Hopper: the host's side ---- */

template <typename T, int ROWS, int COLS, bool PAIR> static struct gpu_kernel gemm_hopper_kernel_get()
{
    typedef gemm_shape<T, ROWS, COLS, PAIR> shape;
    struct gpu_kernel k = {
        (const void *)gemm_hopper_kernel<T, ROWS, COLS, PAIR>, GEMM_THREADS, shape::SHARED_BYTES, 1, shape::CLUSTER, 0};

    if (hipFuncSetAttribute(k.function, hipFuncAttributeMaxDynamicSharedMemorySize, (int)k.shared_bytes) != hipSuccess)
        k.function = NULL;
    return k;
}

/* Chooses the kernel for tiles of at most `rows` rows and slices of `cols` columns. Without `pair`, larger slices are
 * split. */
template <typename T> static struct gpu_kernel gemm_hopper_choose(uint32_t rows, uint32_t cols, bool pair)
{
    if (rows <= 64 && cols <= 64)
        return gemm_hopper_kernel_get<T, 64, 64, false>();
    if (rows <= 64 && cols <= 128)
        return gemm_hopper_kernel_get<T, 64, 128, false>();
    if (rows <= 64)
        return pair ? gemm_hopper_kernel_get<T, 64, 256, true>() : gemm_hopper_kernel_get<T, 64, 256, false>();
    if (cols <= 128)
        return pair ? gemm_hopper_kernel_get<T, 128, 128, true>() : gemm_hopper_kernel_get<T, 128, 128, false>();
    return pair ? gemm_hopper_kernel_get<T, 128, 256, true>() : gemm_hopper_kernel_get<T, 128, 256, false>();
}

/* The size of the compute slices' largest tile. False: a slice cannot be stored 16 bytes at a time, or other slices are
 * among them. */
static bool slices_suit(const struct gpu_run *run, uint32_t *rows, uint32_t *cols, int64_t *end)
{
    *end = 0;
    for (uint32_t i = run->first[GPU_PHASE_FREE]; i < run->first[GPU_PHASE_FREE + 1]; i++) {
        const struct slice *s = &run->slices[i];
        if ((s->kind != SLICE_COMPUTE && s->kind != SLICE_COMPUTE_PUT) || (s->col | s->cols | s->dst_col) % 8)
            return false;
        *rows = s->rows > *rows ? s->rows : *rows;
        *cols = s->cols > *cols ? s->cols : *cols;
        *end = (int64_t)s->row + s->rows > *end ? (int64_t)s->row + s->rows : *end;
    }
    return true;
}

/* Whether every `count` consecutive compute slices have the same columns and consecutive rows, at most `most` together. */
static bool slices_go_together(const struct gpu_run *run, uint32_t count, uint32_t most)
{
    for (uint32_t i = 0, end = run->first[GPU_PHASE_FREE + 1]; i < end; i += count) {
        const struct slice *s = &run->slices[i];
        uint32_t rows = s->rows;
        for (uint32_t j = 1; j < count; j++) {
            if (i + j >= end || s[j].col != s->col || s[j].cols != s->cols || s[j].row != s->row + rows)
                return false;
            rows += s[j].rows;
        }
        if (rows > most)
            return false;
    }
    return true;
}

/* The number of compute slices whose result stays at this rank, if they are the last ones: where places in landing memory are used twice, they stand
 * between the others, so 0. */
static uint32_t slices_own(const struct gpu_run *run)
{
    uint32_t n = 0;

    for (uint32_t i = run->first[GPU_PHASE_FREE]; i < run->first[GPU_PHASE_FREE + 1]; i++) {
        if (run->slices[i].slot >= LANDING_PLACES)
            return 0;
        n += run->slices[i].kind == SLICE_COMPUTE_PUT && run->slices[i].dst == run->rank;
    }
    return n;
}

/* The largest number of slices, up to `most`, that make one tile of `rows` rows everywhere in the plan. */
static uint32_t slices_together(const struct gpu_run *run, uint32_t most, uint32_t rows)
{
    while (most > 1 && !slices_go_together(run, most, rows))
        most--;
    return most;
}

/* ---- few tiles: K is split (gemm_hopper_split.h) ---- */

/* The tiles of a plan, for tiles of a given number of rows. */
struct gemm_tiles {
    uint32_t rows;
    uint32_t count;  /* number of tiles of all runs */
    uint32_t others; /* number of slices of later phases */
    uint32_t together[GPU_MAX_RUNS], high[GPU_MAX_RUNS];
};

static struct gemm_tiles gemm_tiles_get(const struct gpu_run runs[], int nruns, uint32_t nranks, uint32_t rows)
{
    struct gemm_tiles t = {};

    t.rows = rows;
    for (int i = 0; i < nruns; i++) {
        const struct slice *s = runs[i].slices;
        uint32_t n = runs[i].first[GPU_PHASE_FREE + 1], high = 1;
        uint32_t each = slices_together(&runs[i], nranks < GEMM_SPLIT_TOGETHER ? nranks : GEMM_SPLIT_TOGETHER, rows);
        while (high * each < n && s[high * each].col == s[0].col)
            high++;
        t.together[i] = each;
        t.high[i] = high;
        t.count += (n + each - 1) / each;
        t.others += runs[i].first[GPU_PHASES] - n;
    }
    return t;
}

/* The kernel with PARTS workgroups per tile, if then all tiles have their workgroups at the same time. */
template <typename T, int ROWS, int COLS, int PARTS>
static bool gemm_split_suits(const struct gemm_tiles *tiles, uint32_t multiprocessors, struct gpu_kernel *out)
{
    typedef gemm_split_shape<T, ROWS, COLS, PARTS> shape;
    struct gpu_kernel k = {
        (const void *)gemm_split_kernel<T, ROWS, COLS, PARTS>, shape::THREADS, shape::SHARED_BYTES, 1, PARTS, 0};

    if (tiles->count * PARTS > multiprocessors ||
        hipFuncSetAttribute(k.function, hipFuncAttributeMaxDynamicSharedMemorySize, (int)k.shared_bytes) != hipSuccess)
        return false;
    uint32_t fit = gpu_clusters_resident(k.function, k.threads, k.shared_bytes, PARTS);
    uint32_t useful = (tiles->others + PARTS - 1) / PARTS > tiles->count ? (tiles->others + PARTS - 1) / PARTS : tiles->count;
    k.workgroups = (useful < fit ? useful : fit) * PARTS;
    *out = k;
    return tiles->count <= fit;
}

template <typename T>
static bool gemm_split_get(const struct gemm_tiles *tiles, uint32_t multiprocessors, struct gpu_kernel *out)
{
    if (tiles->rows == 64)
        return gemm_split_suits<T, 64, 64, 8>(tiles, multiprocessors, out) ||
               gemm_split_suits<T, 64, 64, 4>(tiles, multiprocessors, out) ||
               gemm_split_suits<T, 64, 64, 2>(tiles, multiprocessors, out);
    return gemm_split_suits<T, 128, 128, 8>(tiles, multiprocessors, out) ||
           gemm_split_suits<T, 128, 128, 4>(tiles, multiprocessors, out) ||
           gemm_split_suits<T, 128, 128, 2>(tiles, multiprocessors, out);
}

/* Chooses a split kernel for slices that are (parts of) one of few tiles: tiles of 128 rows, unless tiles of 64 rows are as
 * few and as narrow. There is none with 256 columns: half of K takes as long there as all of K in tiles of 128. */
static bool gemm_split_choose(const struct gemm_tiles *high, const struct gemm_tiles *low, enum fcc_dtype dtype, uint32_t rows,
                              uint32_t cols, uint32_t multiprocessors, struct gpu_choice *out)
{
    const struct gemm_tiles *tiles = rows <= 64 && cols <= 64 && low->count == high->count ? low : high;

    if (rows > 128 || cols > 128 || tiles->count == 0)
        return false;
    if (!(dtype == FCC_F16 ? gemm_split_get<gpu_f16>(tiles, multiprocessors, &out->kernel)
                           : gemm_split_get<gpu_bf16>(tiles, multiprocessors, &out->kernel))) {
        out->kernel = {};
        return false;
    }
    out->tile_rows = tiles->rows;
    memcpy(out->together, tiles->together, sizeof(out->together));
    memcpy(out->high, tiles->high, sizeof(out->high));
    out->can_wait = out->kernel.workgroups <= gpu_multiprocessors_beside(multiprocessors);
    return true;
}

/* Whether the storers of compute slices store all results for other ranks. */
static bool slices_leave_as_computed(const struct gpu_run runs[], int nruns)
{
    for (int i = 0; i < nruns; i++)
        for (uint32_t j = 0; j < runs[i].first[GPU_PHASES]; j++)
            if (runs[i].slices[j].kind != SLICE_COMPUTE_PUT && runs[i].slices[j].kind != SLICE_WAIT)
                return false;
    return true;
}

/* The kernel can wait for other ranks itself if it leaves some multiprocessors free. It does so if that takes no longer: if
 * the tiles need as many rounds with fewer multiprocessors, as most sizes that are powers of two do. For slices of at most
 * a tile. */
static void gemm_leave_room(const struct gemm_tiles *tiles, uint32_t multiprocessors, struct gpu_choice *out)
{
    const uint32_t cluster = out->kernel.cluster > 1 ? out->kernel.cluster : 1, units = (tiles->count + cluster - 1) / cluster;
    const uint32_t all = multiprocessors / cluster, most = gpu_multiprocessors_beside(multiprocessors) / cluster;
    const uint32_t others = (tiles->others + cluster - 1) / cluster, useful = units > others ? units : others;

    if (units == 0 || (units + all - 1) / all != (units + most - 1) / most)
        return;
    out->kernel.workgroups = (useful < most ? useful : most) * cluster;
    out->can_wait = true;
}

bool gpu_gemm_hopper_fits(const struct gpu_shape *shape, int gpu, const struct gpu_run runs[], int nruns,
                          struct gpu_choice *out)
{
    enum fcc_dtype dtype = (enum fcc_dtype)shape->dtype;
    hipDeviceProp_t properties;
    uint32_t rows = 0, cols = 0, own = 0;

    if (shape->n % 8 || hipGetDeviceProperties(&properties, gpu) != hipSuccess)
        return false;
    for (int i = 0; i < nruns; i++)
        if (!slices_suit(&runs[i], &rows, &cols, &out->rows[i]))
            return false;
    const struct gemm_tiles high = gemm_tiles_get(runs, nruns, shape->nranks, 128),
                            low = gemm_tiles_get(runs, nruns, shape->nranks, 64);
    const uint32_t multiprocessors = gpu_multiprocessors_for(shape, (uint32_t)properties.multiProcessorCount);
    if (gemm_split_choose(&high, &low, dtype, rows, cols, multiprocessors, out)) {
        out->can_wait = out->can_wait && slices_leave_as_computed(runs, nruns);
        return true;
    }
    /* Where tiles of 128 rows are fewer, they read less memory than two tiles of 64 rows. */
    const struct gemm_tiles *tiles = rows <= 64 && low.count == high.count ? &low : &high;
    bool pair = rows <= 128 && cols <= 256, whole = true;
    out->tile_rows = tiles->rows;
    for (int i = 0; i < nruns; i++) {
        out->together[i] = cols > 256 ? 1 : tiles->together[i];
        pair = pair && tiles->high[i] > 1; /* otherwise no two tiles have columns in common */
        whole = whole && out->together[i] == 1;
        own += slices_own(&runs[i]);
    }
    /* Slices are tiles then. Nearly every workgroup ends with a tile that stays at this rank, so spread stores are over by
     * then. */
    out->spread = pair && whole && own * 10 >= multiprocessors * 9;
    out->kernel = dtype == FCC_F16 ? gemm_hopper_choose<gpu_f16>(out->tile_rows, cols, pair)
                                   : gemm_hopper_choose<gpu_bf16>(out->tile_rows, cols, pair);
    if (rows <= out->tile_rows && cols <= 256 && shape->nranks > 1 && slices_leave_as_computed(runs, nruns))
        gemm_leave_room(tiles, (uint32_t)properties.multiProcessorCount,
                        out); /* of a kernel that waits through rings, the same again */
    return out->kernel.function != NULL;
}

void *gpu_gemm_hopper_params(const struct gpu_choice *choice, const struct gpu_call *call, const struct gpu_fixed *fixed)
{
    static thread_local struct gemm_maps maps;
    const struct gpu_shape *shape = &fixed->shape;
    bool suits = true;

    for (uint32_t r = 0; r < shape->nranks; r++)
        suits = suits && call->out[r].data % 16 == 0 && call->out[r].stride[0] % 8 == 0 && fixed->staging[r] % 16 == 0;
    memcpy(maps.together, choice->together, sizeof(maps.together));
    memcpy(maps.high, choice->high, sizeof(maps.high));
    maps.spread = choice->spread;
    maps.ngates = 0;
    for (uint32_t i = 0; i < call->nruns && suits; i++) {
        const struct gpu_input *in = &call->in[i];
        enum fcc_dtype dtype = (enum fcc_dtype)shape->dtype;
        if (choice->rows[i] == 0)
            continue;                                   /* which needs no maps */
        int64_t eights = (choice->rows[i] + 7) / 8 * 8; /* rows, in multiples of the swizzle's pattern */
        uint32_t rows = eights < choice->tile_rows ? (uint32_t)eights : choice->tile_rows;
        maps.a_bytes[i] = rows * GEMM_STEP * 2;
        suits = in->gemm.b && /* without B nothing is multiplied */
                driver_matrix_map(&maps.runs[i].a, dtype == FCC_F16, in->gemm.a, in->gemm.k, choice->rows[i], in->gemm.a_stride,
                                  rows) &&
                driver_matrix_map(&maps.runs[i].b, dtype == FCC_F16, in->gemm.b, shape->n, in->gemm.k, in->gemm.b_stride,
                                  GEMM_STEP);
    }
    return suits ? &maps : NULL;
}

bool gpu_gemm_hopper_gate(const struct gpu_choice *choice, void *params, const struct gpu_waits *waits)
{
    struct gemm_maps *maps = (struct gemm_maps *)params;
    uint32_t n = (uint32_t)(waits->count - waits->before);

    if (!choice->can_wait || n > GEMM_GATES)
        return false;
    maps->ngates = n;
    memcpy(maps->gates, waits->words + waits->before, n * sizeof(maps->gates[0]));
    memcpy(maps->gate_values, waits->values + waits->before, n * sizeof(maps->gate_values[0]));
    return n > 0;
}

#endif
