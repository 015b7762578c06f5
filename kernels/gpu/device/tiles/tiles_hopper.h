/* SPDX-License-Identifier: MIT
 *
 * tiles_hopper.h - products whose exchange goes on tile by tile, on Hopper (sm_90a). Part of tiles.hip, which says what is sent to whom. The loop is gemm_loop.h's, and the
 * parts of a workgroup are gemm_hopper.h's, but that
 *
 *   taker    takes positions of tiles_order.h's from a counter, for both workgroups of its cluster
 *   loader   behind the stages of an own tile of a sum has the copy engine bring what the other rank has sent to it, as one or two more stages, when the tile's
 *            word says that it has come; and it loads rows that are gathered when their piece has come
 *   groups   add that to their sums, in f32, before they are rounded
 *   storer   stores a tile in the other rank's slot, when that is free, or in c; of sums that go back in both. A c whose rows the copy engine cannot take its lanes store
 *   mover    one warp, of gemm_all_reduce: moves the other rank's sums from their slots to c, a few rows at a time, so that all movers share what comes at the end,
 *            when the groups' warps move, too
 *
 * A tile that leaves stands in its slot as it stood in shared memory, in boxes (gemm_shape::BOXES), and so what has come stands in a stage. With more than 128
 * columns each group's 64 rows are a stage; both groups go through both, so a stage is emptied by all warps as any other one.
 *
 * Memory order. A tile: the copy engine's stores into the slot, which each lane of the storer awaits; __syncwarp(); one lane stores `come` (release, system; it is
 * cumulative). The receiver's loader loads `come` (acquire), fences what it has acquired for the copy engine (gpu_fence_proxies()) and has that load the slot. The
 * barrier of the stage passes it on to the groups. When a thread of theirs has awaited the barriers of all the tile's boxes, they have been read: it stores `used`
 * (release). The sender's storer loads `used` (acquire), the warp meets, each lane fences for the copy engine, and stores the next tile. The mover reads by loads:
 * come (acquire), __syncwarp(), loads; their values are stored, so they are there; __syncwarp(), used (release). Pieces that are gathered are stored by
 * copies, behind each a copy of its word: the loader takes them as tiles. What the kernel before has set (tiles_begin()) is there as that has ended.
 *
 * When a wait ends because the run was given up, the workgroup waits for nothing more, stores nothing at the other rank, and takes no more positions. Jobs that it has
 * are computed, of whatever is there: the result is not used.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_TILES_TILES_HOPPER_H
#define FCC_KERNELS_GPU_DEVICE_TILES_TILES_HOPPER_H

#include "kernels/gpu/device/rows.h"
#include "kernels/gpu/device/tiles/gemm_loop.h"
#include "kernels/gpu/device/tiles/tiles_waits.h"

/* For the copy engine: each part's A, B, and each part's rows of C that it stores, in boxes of 8 x 64. */
struct tiles_maps {
    CUtensorMap a[2], b, c[2];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* A warp: moves the other rank's sums from their slots to c, as they come, some rows at a time, until all are taken. */
GPU_DEVICE void sums_move(const struct tiles_call &call, struct tiles_run &run)
{
    constexpr uint32_t PARTS = TILES_ROWS / TILES_MOVED_ROWS;
    const uint32_t lane = threadIdx.x % 32;
    uint32_t taken = 0, row, col;
    bool is_there = call.returns;

    while (is_there) {
        if (lane == 0)
            taken = atomicAdd(&call.words->moved, 1);
        taken = __shfl_sync(0xffffffffu, taken, 0);
        const uint32_t tile = taken / PARTS, part = taken % PARTS;
        if (tile >= 2 * call.order.part[0].units)
            return;
        if (!tiles_place(&call.order, 0, tile, &row, &col) || row + part * TILES_MOVED_ROWS >= call.order.part[0].rows)
            continue;
        if (lane == 0)
            is_there = tiles_come_await(call, run, tile, 1);
        is_there = __shfl_sync(0xffffffffu, is_there, 0);
        if (!is_there)
            return;
        __syncwarp(); /* a shuffle orders no memory: the lanes' loads come behind the first one's acquire */
        tiles_move<8>(call, tile, row, col, part * TILES_MOVED_ROWS, TILES_MOVED_ROWS, lane, 32);
        __syncwarp();
        if (lane == 0)
            tiles_moved_tell(call, run, tile, tiles_moved_parts(&call.order, 0, row));
    }
}

/* Adds what has come for a tile. */
template <typename T, typename S> struct tiles_change {
    static constexpr bool CHANGES = true;
    static constexpr int STAGES = S::COLS > 128 ? 2 : 1; /* that it takes */
    const struct tiles_call &call;
    struct tiles_run &run;
    uint32_t tile;
    bool adds, is_there;

    __device__ __forceinline__ void job(const struct gemm_job &job)
    {
        adds = call.sums && job.run == 1;
        is_there = job.together != 0;
        tile = job.index;
    }

    /* The last sums that go back come when there is nothing left to multiply: all warps move them. */
    __device__ __forceinline__ void end()
    {
        sums_move(call, run);
    }

    /* A word of two elements, of which the first has the lower address. */
    static __device__ __forceinline__ void pair_add(float *sums, uint32_t word)
    {
        T pair[2];

        memcpy(pair, &word, sizeof(word));
        sums[0] += gpu_to_f32(pair[0]);
        sums[1] += gpu_to_f32(pair[1]);
    }

    /* `at`: this group's boxes in a stage. gemm_loop::finish() says which sums a thread has; its second row is in the box's other half. */
    __device__ __forceinline__ void boxes_add(float (&sums)[S::SUMS], const unsigned char *at) const
    {
        const uint32_t thread = threadIdx.x % 128, line = thread % 32 / 4;
        const unsigned char *row = at + thread / 32 * 1024 + line * 128 + thread % 4 * 4;

#pragma unroll
        for (uint32_t j = 0; j < S::SUMS / 4; j++) {
            const unsigned char *word = row + j / 8 * S::BOX + (j % 8 ^ line) * 16;
            pair_add(&sums[j * 4], *(const uint32_t *)word);
            pair_add(&sums[j * 4 + 2], *(const uint32_t *)(word + S::HALF_BOX));
        }
    }

    template <typename Loop>
    __device__ __forceinline__ void add(Loop &loop, float (&sums)[S::SUMS], gemm_ring<S::STAGES> *ring) const
    {
        const uint32_t number = threadIdx.x / 128 - 1;

        if (!adds)
            return;
#pragma unroll
        for (uint32_t i = 0; i < STAGES; i++, ring->next()) {
            const unsigned char *stage = loop.stages + ring->at * S::STAGE_BYTES;
            gpu_barrier_await(&loop.shared.stage_full[ring->at], ring->parity);
            if (STAGES == 1 || number == i)
                boxes_add(sums, stage + (STAGES == 1 ? number * (S::COLS / 64) * S::BOX : 0));
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                loop.stage_done(ring->at);
        }
        if (threadIdx.x == 128 && is_there && tile + call.order.slots < 2 * call.order.part[1].units)
            gpu_store_release(&call.other_words->used[tile % call.order.slots], tiles_count(&call.order, run.number, tile));
    }
};

template <typename T, typename S> struct tiles_parts : gemm_loop<T, S> {
    typedef gemm_loop<T, S> loop;
    using loop::make, loop::job_make, loop::job_await, loop::job_done, loop::stage_load, loop::everyone;
    using loop::parts_run;
    using loop::shared, loop::stages, loop::rank;
    const struct tiles_call &call;
    const struct tiles_maps &maps;
    struct tiles_run &run; /* in shared memory */

    /* ---- taker ---- */

    /* Jobs for a unit's tiles. If only one is there, both workgroups get it, and the second one's is stored nowhere. Tiles one below the other have B's columns in common;
     * of those side by side each workgroup loads all that it needs. */
    __device__ __forceinline__ void unit_make(const gemm_ring<GEMM_JOBS> &ring, uint32_t part, uint32_t unit, bool last)
    {
        const int32_t steps = (int32_t)((call.k + GEMM_STEP - 1) / GEMM_STEP);
        const uint64_t now = gpu_clock();
        uint32_t row, col, second_row, second_col;

        (void)tiles_place(&call.order, part, 2 * unit, &row, &col);
        const uint32_t both = tiles_place(&call.order, part, 2 * unit + 1, &second_row, &second_col);
        const uint32_t in_common = !both || second_col == col;
        job_make(ring, 0, {steps, row, col, part, 2 * unit, 1, last, in_common, now});
        job_make(ring, 1,
                 {steps, both ? second_row : row, both ? second_col : col, part, 2 * unit + both, both, last, in_common, now});
    }

    __device__ __forceinline__ void take()
    {
        gemm_ring<GEMM_JOBS> ring;
        uint32_t part, unit;

        while (!run.leave) {
            const uint32_t position = atomicAdd(&call.words->taken, 1);
            if (position >= call.order.positions)
                break;
            if (!tiles_unit(&call.order, position, &part, &unit))
                continue;
            unit_make(ring, part, unit, position + gridDim.x / 2 >= call.order.positions);
            ring.next();
        }
        for (uint32_t to = 0; to < S::CLUSTER; to++)
            job_make(ring, to, {0, 0, 0, 0, 0, 0, 0, 0, 0});
    }

    /* ---- loader ---- */

    /* What the other rank has sent for an own tile, when it is there. */
    __device__ __forceinline__ void come_load(const struct gemm_job &job, gemm_ring<S::STAGES> *ring)
    {
        constexpr uint32_t IN = tiles_change<T, S>::STAGES;
        const unsigned char *slot = (const unsigned char *)tiles_slot(call, call.slots, 0, job.index);

        (void)tiles_come_await(call, run, job.index, 0);
        gpu_fence_proxies();
        for (uint32_t i = 0; i < IN; i++, ring->next()) {
            unsigned char *to = stages + ring->at * S::STAGE_BYTES;
            uint64_t *full = &shared.stage_full[ring->at];
            gpu_barrier_await(&shared.stage_empty[ring->at], ring->parity ^ 1);
            gpu_barrier_arrive_expecting(full, S::ROWS * S::COLS * sizeof(T) / IN);
#pragma unroll
            for (uint32_t box = 0; box < S::COLS / 64 * 2 / IN; box++) /* all columns, and both groups' rows or one's */
                gpu_bulk_load(to + box * S::BOX, slot + (box % (S::COLS / 64) * 2 + (IN == 1 ? box / 2 : i)) * S::BOX, S::BOX,
                              full);
        }
    }

    __device__ __forceinline__ void load()
    {
        gemm_ring<GEMM_JOBS> jobs;
        gemm_ring<S::STAGES> ring;
        int64_t there = 0; /* rows that are known to have come: they come in their order */

        for (;; jobs.next()) {
            job_await(jobs);
            const struct gemm_job job = shared.jobs[jobs.at];
            if (job.steps == 0)
                return;
            job_done(jobs);
            if (!call.sums && job.run == 1 && (int64_t)job.row + S::ROWS > there) {
                there = (int64_t)job.row + S::ROWS;
                (void)tiles_rows_await(call, run, there);
                gpu_fence_proxies();
            }
            for (int32_t k = 0; k < job.steps * GEMM_STEP; k += GEMM_STEP, ring.next()) {
                gpu_barrier_await(&shared.stage_empty[ring.at], ring.parity ^ 1);
                stage_load(ring.at, &maps.a[job.run], &maps.b, S::A_BYTES, k, (int32_t)job.row, (int32_t)job.col,
                           job.in_common != 0);
            }
            if (call.sums && job.run == 1)
                come_load(job, &ring);
        }
    }

    /* ---- storer ---- */

    /* All lanes: there is room for the tile. False: it is stored nowhere. */
    __device__ __forceinline__ bool room_await(const struct gemm_job &job)
    {
        bool is_there = job.together != 0;

        if (is_there && threadIdx.x % 32 == 0)
            is_there = tiles_room_await(call, run, job.run, job.index);
        is_there = __shfl_sync(0xffffffffu, is_there, 0);
        __syncwarp(); /* a shuffle orders no memory */
        gpu_fence_proxies();
        return is_there;
    }

    /* All lanes: rows of a result that the copy engine cannot store, `V` at a time. */
    template <typename V> __device__ __forceinline__ void rows_write(T *to, uint32_t rows, uint32_t cols, uint32_t turn)
    {
        constexpr uint32_t EACH = sizeof(V) / sizeof(T);

#pragma unroll 4
        for (uint32_t at = 0; at < S::OUT_ROWS; at++) {
            const uint32_t row = S::row_leaving(at, turn);
            for (uint32_t i = threadIdx.x % 32 * EACH; i < cols && row < rows; i += 32 * EACH)
                *(V *)(to + row * call.c_stride + i) =
                    *(const V *)(out() + S::row_place(row) + S::chunk_place(i / 8, row % 8) + i % 8 * sizeof(T));
        }
    }

    __device__ __forceinline__ unsigned char *out() const
    {
        return stages + S::STAGES * S::STAGE_BYTES;
    }

    /* All lanes: 8 rows of a box at a time. */
    __device__ __forceinline__ void boxes_store(const struct gemm_job &job, uint32_t turn)
    {
#pragma unroll
        for (uint32_t at = 0; at < S::COLS / 64 * 2 * S::OUT_HALVES * 4; at += 32) {
            const uint32_t i = at + threadIdx.x % 32, half = i / 4 % S::OUT_HALVES, box = i / 4 / S::OUT_HALVES,
                           row = box % 2 * 64 + i % 4 * 16 + (S::TURNS == 1 ? half : turn) * 8;
            if (i < S::COLS / 64 * 2 * S::OUT_HALVES * 4)
                gpu_box_store(&maps.c[job.run], (int32_t)(job.col + box / 2 * 64), (int32_t)(job.row + row), out() + i * 1024);
        }
    }

    __device__ __forceinline__ void result_store(const struct gemm_job &job, uint32_t rows, uint32_t cols, uint32_t turn)
    {
        T *to = (T *)call.c[job.run] + job.row * call.c_stride + job.col;

        if (call.width == 16)
            boxes_store(job, turn);
        else if (call.width == 8)
            rows_write<uint64_t>(to, rows, cols, turn);
        else if (call.width == 4)
            rows_write<uint32_t>(to, rows, cols, turn);
        else
            rows_write<uint16_t>(to, rows, cols, turn);
    }

    /* All lanes: what the tile has in this turn to its slot; a lane stores what a box has of it. spread_ns: 0; or how long the tile took: the lanes come one after the
     * other then, from now_ns on, spread over most of that. */
    __device__ __forceinline__ void slot_store(unsigned char *slot, uint32_t rows, uint32_t cols, uint32_t turn,
                                               uint64_t spread_ns, uint64_t now_ns)
    {
        constexpr uint32_t BOXES = S::COLS / 64 * 2, BYTES = S::OUT_HALVES * S::HALF_BOX;
        const uint64_t each_ns = spread_ns * GEMM_SPREAD_PERCENT / 100 / (BOXES * S::TURNS);
        const uint32_t lane = threadIdx.x % 32;

        for (uint32_t box = 0; box < BOXES; box += spread_ns ? 1 : BOXES) {
            const uint32_t mine = spread_ns ? box : lane;
            if ((!spread_ns || lane == 0) && mine < BOXES && mine % 2 * 64 < rows && mine / 2 * 64 < cols)
                gpu_bulk_store(slot + mine * S::BOX + turn * S::HALF_BOX, out() + mine * BYTES, BYTES);
            now_ns += each_ns;
            while (spread_ns && (int64_t)(gpu_clock() - now_ns) < 0)
                __nanosleep(GEMM_SPREAD_NAP_NS);
            __syncwarp();
        }
    }

    /* All lanes: begin to store what the tile has in this turn. */
    __device__ __forceinline__ void tile_store(const struct gemm_job &job, uint32_t turn, uint64_t took_ns, uint64_t now_ns)
    {
        const uint32_t rows = (uint32_t)min(call.order.part[job.run].rows - job.row, (int64_t)S::ROWS),
                       cols = (uint32_t)min(call.n - job.col, (int64_t)S::COLS);
        const uint64_t spread_ns = call.spread && !job.last ? took_ns : 0;

        if (call.c[job.run] && !(call.sums && job.run == 0))
            result_store(job, rows, cols, turn);
        if (tiles_leaves(call, job.run))
            slot_store((unsigned char *)tiles_slot(call, call.other_slots, job.run, job.index), rows, cols, turn, spread_ns,
                       now_ns);
    }

    __device__ __forceinline__ void store()
    {
        const uint32_t lane = threadIdx.x % 32;
        gemm_ring<GEMM_JOBS> jobs;
        gemm_ring<1> out;
        uint64_t before_ns = 0, least_ns = UINT64_MAX;

        for (;; jobs.next()) {
            job_await(jobs);
            const struct gemm_job job = shared.jobs[jobs.at];
            if (job.steps == 0)
                return;
            const bool goes = room_await(job);
            uint64_t now_ns = 0;
            for (uint32_t turn = 0; turn < S::TURNS; turn++, out.next()) {
                gpu_barrier_await(&shared.out_full, out.parity);
                now_ns = gpu_clock();
                if (turn == 0) {
                    least_ns = min(least_ns, now_ns - (before_ns ? before_ns : job.start));
                    before_ns = now_ns;
                }
                if (goes)
                    tile_store(job, turn, least_ns, now_ns);
                gpu_bulk_end_group();
                gpu_bulk_await_read();
                __syncwarp();
                if (lane == 0)
                    gpu_barrier_arrive(&shared.out_empty);
            }
            gpu_bulk_await();
            __syncwarp();
            if (lane == 0 && goes && tiles_leaves(call, job.run))
                tiles_come_tell(call, run, job.run, job.index);
            if (lane == 0)
                job_done(jobs);
        }
    }

    /* All threads. */
    __device__ __forceinline__ void multiply_all()
    {
        parts_run(tiles_change<T, S>{call, run, 0, false, false}, [&] {
            if (threadIdx.x == 0 && rank == 0)
                take();
            else if (threadIdx.x == 32)
                load();
            else if (threadIdx.x / 32 == 2)
                store();
            else if (threadIdx.x / 32 == 3)
                sums_move(call, run);
        });
    }
};

#endif

template <typename T, int COLS>
__global__ void __launch_bounds__(GEMM_THREADS, 1) GEMM_CLUSTER(2)
    tiles_hopper_kernel(GPU_PARAMETER struct tiles_call call, GPU_PARAMETER struct tiles_maps maps)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef gemm_shape<T, TILES_ROWS, COLS, true, true> shape;
    __shared__ struct gemm_shared<shape> shared;
    __shared__ struct tiles_run run;
    unsigned char *stages = tiles_shared_bytes + (-gpu_shared_address(tiles_shared_bytes) & (shape::ALIGN - 1));
    struct tiles_parts<T, shape> parts = {
        {shared, stages, gpu_cluster_rank()}, call, maps, run
    };

    if (threadIdx.x == 32) { /* before the kernel before this one has ended */
        for (uint32_t i = 0; i < 2; i++)
            if (call.order.part[i].units) /* otherwise there is no map */
                gpu_map_prefetch(&maps.a[i]);
        gpu_map_prefetch(&maps.b);
        for (uint32_t i = 0; i < 2; i++)
            if (tiles_has_map(call, i))
                gpu_map_prefetch(&maps.c[i]);
        parts.make();
    }
#if defined(GPU_WAITS_TELL)
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        const void *const places[] = {shared.stage_full, shared.stage_empty, shared.job_full,
                                      shared.job_empty,  &shared.out_full,   &shared.out_empty};
        for (uint32_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
            tell_places[i] = gpu_shared_address(places[i]);
    }
#endif
    gpu_follow();
    if (threadIdx.x == 0)
        tiles_run_find(call, &run);
    parts.everyone();
    if (run.number)
        parts.multiply_all();
    tiles_end(call, run);
#endif
}

#endif
