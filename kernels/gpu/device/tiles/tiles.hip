/* SPDX-License-Identifier: MIT
 *
 * tiles.hip - products of two ranks by one kernel, whose exchange goes on tile by tile while it computes: gemm_reduce_scatter, gemm_all_reduce and
 * all_gather_gemm (T3, arXiv 2401.16677). f16 and bf16; sums are in f32.
 *
 *   gemm_reduce_scatter   tiles of the other rank's rows come first, and are stored into its memory for arrivals, rounded; to an own tile is added, in f32, what the
 *                         other rank has sent for it, before it is rounded
 *   gemm_all_reduce       the same, and own tiles are stored at the other rank, too, which moves them to its c: so both have the same bits
 *   all_gather_gemm       tiles of own rows come first, then those of the other rank's, as copy engines bring them (plugin/pieces_tiles.hip)
 *
 * tiles_order.h says which tiles there are, in which order, and why nothing deadlocks. On Hopper they are multiplied by the copy engine and the warpgroups'
 * matrix instructions (tiles_hopper.h). Factors whose rows the copy engine cannot take are copied first, to where it can (tiles_pack()): that takes two passes over
 * them, and products with such rows take some four times as long by other means. What has no room there goes by a kernel of the same order that takes any matrices, which
 * is slower. What a rank's matrices are like is no concern of the other rank's.
 *
 * A kernel of one workgroup goes before: it begins the run (device/exchange/rings_run.h) and compares the ranks' headers. The product's workgroups wait for
 * the other rank while they are on the GPU; so the products of several communicators must come in the same order on both ranks, as flow.h says of pieces: one that fills
 * a GPU and waits leaves no room for another one that the other rank waits for. Kernels beside it that leave room for one cluster of two workgroups (NCCL's are few
 * workgroups) do it no harm: tiles are taken by whoever is there. To leave such room by itself would cost it a sixty-sixth of the GPU, and help two
 * communicators, but not three.
 */
#include "kernels/gpu/device/tiles/tiles_call.h"

#include <atomic>

#include "kernels/gpu/device/epilogue.h"
#include "kernels/gpu/device/matrix.h"
#include "kernels/gpu/device/tiles/tiles_waits.h"

extern __shared__ __align__(16) unsigned char tiles_shared_bytes[];

#if defined(__CUDACC__)
#include "kernels/gpu/device/tiles/tiles_hopper.h"
#endif

enum { BEGIN_THREADS = 64 };

static __global__ void __launch_bounds__(BEGIN_THREADS)
    tiles_begin_kernel(GPU_PARAMETER struct rings_call c, struct tiles_words *words)
{
    __shared__ struct rings_run run;

    gpu_follow();
    const bool begun = rings_begin(c, &run) && rings_meet(c, &run, false, true);
    for (uint32_t i = threadIdx.x; i <= RINGS_PIECES_MOST; i += BEGIN_THREADS)
        rings_head_of(c, c.rank)->counts[i] = rings_piece_count(run.number, i);
    for (uint32_t i = threadIdx.x; i < TILES_WORDS; i += BEGIN_THREADS)
        words->parts[i] = 0; /* a run that was given up left some */
    if (threadIdx.x == 0) {
        words->taken = words->moved = words->come_to = 0;
        words->run = begun ? run.number : 0;
    }
    rings_end(c, run, true); /* tiles_end() */
}

/* ---- any matrices, on any GPU ---- */

template <typename T> struct tiles_any {
    const struct tiles_call &call;
    struct tiles_run &run; /* these in shared memory */
    struct gpu_product<T> &product;
    struct gpu_epilogue<T> &stages; /* what is added */
    uint32_t &word;
    uint32_t &is_there;

    /* All threads: what one of them has found. */
    __device__ __forceinline__ uint32_t all_know(uint32_t *at) const
    {
        __syncthreads();
        const uint32_t found = *at;
        __syncthreads();
        return found;
    }

    __device__ __forceinline__ uint32_t next(uint32_t *counter) const
    {
        if (threadIdx.x == 0)
            word = atomicAdd(counter, 1);
        return all_know(&word);
    }

    /* The workgroup's own memory for a tile, whose rows follow each other: one that is to be sent, or has come. */
    __device__ __forceinline__ uint64_t apart() const
    {
        return call.apart + blockIdx.x * tiles_slot_bytes(call.order.cols);
    }

    /* All threads: copies a tile from the other rank, which is there, into that memory; and from it, or from rows of c, to the other rank. */
    __device__ __forceinline__ void tile_fetch(uint32_t tile, uint32_t col) const
    {
        const struct tiles_plain rows = {apart(), call.order.cols, 16, TILES_ROWS, tiles_chunks(call, col)};

        tiles_slot_copy<false, 4>(tiles_slot(call, call.slots, 0, tile), 0, rows, threadIdx.x, GPU_MATRIX_THREADS);
        __syncthreads();
    }

    __device__ __forceinline__ void tile_send(uint32_t part, uint32_t tile, uint32_t col) const
    {
        const struct tiles_plain rows = {(uint64_t)product.c, product.c_stride, part == 0 ? 16 : call.width,
                                         (uint32_t)product.rows, tiles_chunks(call, col)};

        tiles_slot_copy<true, 4>(tiles_slot(call, call.other_slots, part, tile), 0, rows, threadIdx.x, GPU_MATRIX_THREADS);
        __syncthreads();
    }

    /* One thread: waits for what a tile needs, and says what is multiplied, to where. */
    __device__ __forceinline__ void tile_begin(uint32_t part, uint32_t tile, uint32_t row, uint32_t col)
    {
        const int64_t rows = call.order.part[part].rows - row, cols = call.n - col;
        const bool sent = call.sums && part == 0;

        is_there = tiles_room_await(call, run, part, tile);
        if (is_there && call.sums && part == 1)
            is_there = tiles_come_await(call, run, tile, 0);
        if (is_there && !call.sums && part == 1)
            is_there = tiles_rows_await(call, run, (int64_t)row + TILES_ROWS);
        product = {(const T *)call.a[part] + row * call.a_stride[part],
                   (const T *)call.b + col,
                   sent ? (T *)apart() : (T *)call.c[part] + row * call.c_stride + col,
                   call.a_stride[part],
                   call.b_stride,
                   sent ? (int64_t)call.order.cols : call.c_stride,
                   call.k,
                   rows < TILES_ROWS ? rows : TILES_ROWS,
                   cols < call.order.cols ? cols : call.order.cols};
        stages = {nullptr, call.sums && part == 1 ? (const T *)apart() : nullptr, nullptr, call.order.cols, 0, 0, 0.0f};
    }

    /* All threads: a tile. False: leave. */
    __device__ __forceinline__ bool tile(uint32_t part, uint32_t tile, uint32_t row, uint32_t col)
    {
        if (threadIdx.x == 0)
            tile_begin(part, tile, row, col);
        if (!all_know(&is_there))
            return false;
        if (call.sums && part == 1)
            tile_fetch(tile, col);
        gpu_multiply<T>(product, tiles_shared_bytes, gemm_stages<T>{&stages, 0, 0});
        __syncthreads();
        if (tiles_leaves(call, part))
            tile_send(part, tile, col);
        if (threadIdx.x == 0) {
            gpu_fence_system(); /* all threads' stores: platform.h */
            if (tiles_leaves(call, part))
                tiles_come_tell(call, run, part, tile);
            if (call.sums && part == 1 && tile + call.order.slots < 2 * call.order.part[1].units)
                gpu_store_release(&call.other_words->used[tiles_slot_of(call, tile, 0)],
                                  tiles_count(&call.order, run.number, tile));
        }
        return true;
    }

    __device__ __forceinline__ void multiply_all()
    {
        uint32_t part, unit, row, col;

        for (;;) {
            const uint32_t position = next(&call.words->taken);
            if (position >= call.order.positions)
                return;
            if (!tiles_unit(&call.order, position, &part, &unit))
                continue;
            for (uint32_t i = 0; i < 2; i++)
                if (tiles_place(&call.order, part, 2 * unit + i, &row, &col) && !tile(part, 2 * unit + i, row, col))
                    return;
        }
    }

    __device__ __forceinline__ void move_all()
    {
        uint32_t row, col;

        for (;;) {
            const uint32_t tile = next(&call.words->moved);
            if (tile >= 2 * call.order.part[0].units)
                return;
            if (!tiles_place(&call.order, 0, tile, &row, &col))
                continue;
            if (threadIdx.x == 0)
                is_there = tiles_come_await(call, run, tile, 1);
            if (!all_know(&is_there))
                return;
            tiles_move<4>(call, tile, row, col, 0, TILES_ROWS, threadIdx.x, GPU_MATRIX_THREADS);
            __syncthreads();
            if (threadIdx.x == 0)
                tiles_moved_tell(call, run, tile, 1);
        }
    }
};

/* Of sums that go back, the first workgroup that comes, and every TILES_MOVERSth one, moves them: so two workgroups on each GPU are enough. */
template <typename T>
__global__ void __launch_bounds__(GPU_MATRIX_THREADS, gpu_engine<T>::RESIDENT)
    tiles_any_kernel(GPU_PARAMETER struct tiles_call call)
{
    __shared__ struct tiles_run run;
    __shared__ struct gpu_product<T> product;
    __shared__ struct gpu_epilogue<T> stages;
    __shared__ uint32_t word, is_there;
    struct tiles_any<T> parts = {
        call, run, product, stages, word, is_there
    };

    gpu_follow();
    if (threadIdx.x == 0)
        tiles_run_find(call, &run);
    __syncthreads();
    if (run.number) {
        if (call.returns && parts.next(&call.words->come_to) % TILES_MOVERS == 0)
            parts.move_all();
        else
            parts.multiply_all();
    }
    tiles_end(call, run);
}

/* ---- the host's side ---- */

const void *tiles_kernel(void)
{
    return (const void *)tiles_begin_kernel;
}

hipError_t tiles_begin(const struct tiles_call *call, hipStream_t stream, bool follows)
{
    void *arguments[] = {(void *)&call->rings, (void *)&call->words};

    return gpu_kernel_launch((const void *)tiles_begin_kernel, 1, BEGIN_THREADS, arguments, 0, stream, follows);
}

static uint32_t workgroups_of(const struct tiles_call *call, uint32_t most)
{
    const uint32_t units = call->order.part[0].units + call->order.part[1].units;

    return units < most ? units : most;
}

template <typename T>
static hipError_t any_multiply(const struct tiles_call *call, bool hopper, hipStream_t stream, bool follows)
{
    const void *kernel = (const void *)tiles_any_kernel<T>;
    const size_t shared_bytes = gpu_matrix_shared_bytes<T>(hopper ? 9 : 0, 0);
    const uint32_t movers = call->returns ? tiles_any_most(call->multiprocessors) - call->multiprocessors : 0;
    void *arguments[] = {(void *)call};
    const hipError_t status = hipFuncSetAttribute(kernel, hipFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);

    return status == hipSuccess ? gpu_kernel_launch(kernel, workgroups_of(call, call->multiprocessors) + movers,
                                                    GPU_MATRIX_THREADS, arguments, shared_bytes, stream, follows)
                                : status;
}

#if defined(__CUDACC__)
/* A factor whose rows the copy engine cannot take, and where they are copied to. Strides in elements. */
struct tiles_packed {
    uint64_t to, from;
    int64_t to_stride, from_stride, rows, cols;
    uint32_t end; /* the workgroup behind those that copy it */
};

struct tiles_packs {
    struct tiles_packed of[3];
    uint32_t n;
};

enum { PACK_THREADS = 256, PACK_ROWS = 8 /* of a workgroup */ };

template <typename T> __global__ void __launch_bounds__(PACK_THREADS) tiles_pack_kernel(GPU_PARAMETER struct tiles_packs packs)
{
    uint32_t i = 0;

    gpu_follow();
    while (i + 1 < packs.n && blockIdx.x >= packs.of[i].end)
        i++;
    const struct tiles_packed &p = packs.of[i];
    const int64_t row = (int64_t)(blockIdx.x - (i ? packs.of[i - 1].end : 0)) * PACK_ROWS, left = p.rows - row;
    gpu_rows_copy<T>((T *)p.to + row * p.to_stride, p.to_stride, (const T *)p.from + row * p.from_stride, p.from_stride,
                     left < PACK_ROWS ? left : PACK_ROWS, p.cols, threadIdx.x, PACK_THREADS);
    gpu_let_follow();
}

/* Puts a factor into the memory for such, if it must be there. False: there is no room. */
static bool pack_add(struct tiles_packs *packs, struct tiles_call *call, uint64_t *at, int64_t *stride, int64_t rows,
                     int64_t cols)
{
    const int64_t pitch = (cols + 7) / 8 * 8;
    const uint64_t bytes = ((uint64_t)(rows * pitch) * 2 + 255) / 256 * 256;

    if (rows == 0 || (*at % 16 == 0 && *stride % 8 == 0))
        return true;
    if (bytes > call->packed_bytes)
        return false;
    packs->of[packs->n] = {call->packed,
                           *at,
                           pitch,
                           *stride,
                           rows,
                           cols,
                           (packs->n ? packs->of[packs->n - 1].end : 0) + (uint32_t)((rows + PACK_ROWS - 1) / PACK_ROWS)};
    packs->n++;
    *at = call->packed;
    *stride = pitch;
    call->packed += bytes;
    call->packed_bytes -= bytes;
    return true;
}

/* Copies the factors that the copy engine cannot take, and has the call take the copies. fits: all that need it have room. */
template <typename T> static hipError_t tiles_pack(struct tiles_call *call, hipStream_t stream, bool follows, bool *fits)
{
    struct tiles_packs packs = {};
    void *arguments[] = {&packs};

    *fits = pack_add(&packs, call, &call->b, &call->b_stride, call->k, call->n);
    for (uint32_t i = 0; i < 2; i++)
        *fits = *fits && pack_add(&packs, call, &call->a[i], &call->a_stride[i], call->order.part[i].rows, call->k);
    return !*fits || !packs.n ? hipSuccess
                              : gpu_kernel_launch((const void *)tiles_pack_kernel<T>, packs.of[packs.n - 1].end, PACK_THREADS,
                                                  arguments, 0, stream, follows);
}

template <typename T> static bool maps_make(const struct tiles_call *call, struct tiles_maps *maps)
{
    const bool is_f16 = call->dtype == FCC_F16;
    bool suits = true;

    *maps = {};
    for (uint32_t i = 0; i < 2; i++)
        suits = suits &&
                (call->order.part[i].rows == 0 || driver_matrix_map(&maps->a[i], is_f16, call->a[i], call->k,
                                                                    call->order.part[i].rows, call->a_stride[i], TILES_ROWS));
    for (uint32_t i = 0; i < 2; i++)
        suits = suits && (!tiles_has_map(*call, i) || driver_matrix_map(&maps->c[i], is_f16, call->c[i], call->n,
                                                                        call->order.part[i].rows, call->c_stride, 8));
    return suits && driver_matrix_map(&maps->b, is_f16, call->b, call->n, call->k, call->b_stride, GEMM_STEP);
}

/* As many clusters as the GPU has room for, which it is asked once; any thread. */
template <typename T, int COLS>
static hipError_t hopper_multiply(const struct tiles_call *call, const struct tiles_maps *maps, int gpu, hipStream_t stream,
                                  bool follows)
{
    typedef gemm_shape<T, TILES_ROWS, COLS, true, true> shape;
    static std::atomic<uint32_t> fits[GPU_MAX_GPUS];
    const void *kernel = (const void *)tiles_hopper_kernel<T, COLS>;
    void *arguments[] = {(void *)call, (void *)maps};
    uint32_t fit = fits[gpu].load(std::memory_order_relaxed);

    if (!fit) {
        const hipError_t status =
            hipFuncSetAttribute(kernel, hipFuncAttributeMaxDynamicSharedMemorySize, (int)shape::SHARED_BYTES);
        if (status != hipSuccess)
            return status;
        fit = gpu_clusters_resident(kernel, GEMM_THREADS, shape::SHARED_BYTES, 2);
        fit = fit ? fit : 1;
        fits[gpu].store(fit, std::memory_order_relaxed);
    }
    return gpu_kernel_launch(kernel, 2 * workgroups_of(call, fit), GEMM_THREADS, arguments, shape::SHARED_BYTES, stream,
                             follows, 2);
}

template <typename T>
static hipError_t multiply(const struct tiles_call *call, int gpu, bool hopper, hipStream_t stream, bool follows)
{
    struct tiles_call packed = *call;
    struct tiles_maps maps;
    bool fits = hopper && call->k > 0;
    const hipError_t status = fits ? tiles_pack<T>(&packed, stream, follows, &fits) : hipSuccess;

    if (status != hipSuccess)
        return status;
    if (!fits)
        return any_multiply<T>(call, hopper, stream, follows);
    if (!maps_make<T>(&packed, &maps))
        return any_multiply<T>(&packed, hopper, stream, follows);
    switch (call->order.cols) {
    case 256:
        return hopper_multiply<T, 256>(&packed, &maps, gpu, stream, follows);
    case 192:
        return hopper_multiply<T, 192>(&packed, &maps, gpu, stream, follows);
    default:
        return hopper_multiply<T, 128>(&packed, &maps, gpu, stream, follows);
    }
}
#else
template <typename T> static hipError_t multiply(const struct tiles_call *call, int, bool, hipStream_t stream, bool follows)
{
    return any_multiply<T>(call, false, stream, follows);
}
#endif

hipError_t tiles_multiply(const struct tiles_call *call, int gpu, bool hopper, hipStream_t stream, bool follows)
{
    const hipError_t status = call->dtype == FCC_F16 ? multiply<gpu_f16>(call, gpu, hopper, stream, follows)
                                                     : multiply<gpu_bf16>(call, gpu, hopper, stream, follows);

#if defined(GPU_WAITS_TELL)
    const uint64_t *run = &call->words->run;
    uint32_t rank = call->rings.rank;
    void *arguments[] = {&rank, &run};
    if (status == hipSuccess)
        return gpu_kernel_launch((const void *)tell_kernel, 1, 1, arguments, 0, stream, false);
#endif
    return status;
}
