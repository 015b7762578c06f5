/* SPDX-License-Identifier: MIT
 *
 * gemm_hopper_split.h - gemm's compute slices on Hopper where there are fewer tiles than multiprocessors: K is
 * split. Part of gemm.hip; gemm_hopper.h has the kernels for more tiles.
 *
 * PARTS workgroups, a cluster, multiply a tile, each a part of K. Then they exchange their sums: each workgroup gets those of
 * its share of the columns, COLS / PARTS of them, adds all parts' in order, and stores these columns at the destinations. A
 * tile is what gemm_hopper.h has as one: of one slice, or of the same columns of slices for several destinations.
 *
 *   taker    one warp of the first workgroup: takes slices and makes a job for all workgroups. When all have done with it, it
 *            signals its slices. It asks for more when its workgroup has finished its columns: there are no more tiles than
 *            clusters, and who asked ahead would take the tile of a cluster that begins a little later
 *   loader   one thread: has the copy engine bring A and B, 64 k (a stage) at a time
 *   groups   one or two warpgroups of 64 rows: multiply, send sums to the other workgroups, add what comes from them, and leave
 *            the finished columns in shared memory
 *   storer   one warp: finds out where the rows go while the others multiply, and has the copy engine store them
 *   one warp more has the first stages brought nearer when the kernel begins, before it is known who multiplies them; then, through
 *            rings, it moves what comes from other ranks (exchange/landing.h)
 *
 * The dynamic shared memory: STAGES stages as in gemm_hopper.h; then what comes from the other workgroups, [PARTS - 1][OWN /
 * 4][thread of the groups] times four sums, in whose place the finished columns then stand, rows OUT_PITCH apart.
 *
 * Barriers, all with phases that alternate:
 *   job_full      the job is there
 *   job_empty     the first workgroup's: all storers have done with the job, and all loaders have read it
 *   stage_full    the copy engine has brought the stage    stage_empty   the warps of the groups have multiplied it
 *   sums_full     the sums of this workgroup's columns are there, of all others
 *   out_full      the warps of the groups have left the finished columns
 * There is one job at a time in a cluster. Its storers are done when the groups of all workgroups are, so nothing of a job is
 * used any more when the next one is made: no place needs a barrier that says that it is empty, but for the stages.
 *
 * Gates. The kernel may begin when its own ranks' streams have come (gpu_waits.before). Before its first store, while the
 * groups multiply, each storer awaits words in this GPU's memory, which say that the other ranks' streams and GPUs have come. A
 * tile is signalled only after all its storers have passed their gates. If the operator fails meanwhile, nothing is stored, but
 * tiles are signalled. This does no harm, because the operator has failed on all ranks.
 *
 * Ends. A workgroup awaits all that others send to it: jobs (the last one says that there are no more), sums, and, in the first
 * workgroup, the arrivals at job_empty, before it makes the next job. Nothing is sent after the last job. So no workgroup ends
 * while something is on its way to its shared memory, and no workgroup reads another one's. A cluster that must leave (the
 * taker checks once a job) has no job in hand then.
 *
 * Memory order. What the copy engine brings is ordered by the barrier that it completes, and a group's reads of a stage by
 * wgmma are over (wait_group) before its warps arrive at stage_empty. Jobs and sums are sent (st.async): the barrier beside
 * them is told of their bytes, which releases them; who reads them awaits it (acquire, cluster). Its one arrival tells how
 * many bytes to expect: for a job the taker's; for sums one thread's of a group, in advance, and again when the last ones have
 * come. The groups have read all sums that have come (a barrier of their own) before one of them stores finished columns in
 * that place. These are stored by all their threads, each of which fences for the copy engine before its warp arrives at
 * out_full. The copy engine's stores are visible to the storer's lanes when they have awaited them; __syncwarp() passes that
 * on to the first lane, which releases it at job_empty (cluster); the taker's lanes acquire it there, and the fence in
 * gpu_slice_signal() is cumulative. Groups have done with the job, and with the sums that came, before their workgroup's
 * storer has; so the next job's sums come after that.
 *
 * Same bits: the parts of K depend on K and PARTS only, and their sums are added in order, of whichever workgroup's columns.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMM_HOPPER_SPLIT_H
#define FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMM_HOPPER_SPLIT_H

#include "kernels/gpu/device/compute/gemm_hopper.h"
#include "kernels/gpu/device/compute/gemm_hopper_split_shape.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <typename T, typename S> struct gemm_split_parts {
    const struct gpu_call &call;
    const struct gemm_maps &maps;
    struct gemm_split_shared<S> &shared;
    unsigned char *stages; /* then the sums that come, and the finished columns */
    uint32_t rank;         /* in the cluster */

    __device__ __forceinline__ unsigned char *last() const
    {
        return stages + S::STAGES * S::STAGE_BYTES;
    }

    /* The i-th run of a cluster; i is 0: the one with which it begins. */
    __device__ __forceinline__ uint32_t run_at(uint32_t i) const
    {
        return (blockIdx.x / S::PARTS + i) % call.nruns;
    }

    /* This workgroup's part of K, in steps. It may be empty. */
    __device__ __forceinline__ void steps_get(uint32_t run, uint32_t *first, uint32_t *end) const
    {
        uint32_t steps = (uint32_t)((call.in[run].gemm.k + GEMM_STEP - 1) / GEMM_STEP);

        *first = steps * rank / S::PARTS;
        *end = steps * (rank + 1) / S::PARTS;
    }

    /* One thread. */
    __device__ __forceinline__ void make()
    {
        for (int i = 0; i < S::STAGES; i++) {
            gpu_barrier_make(&shared.stage_full[i], 1);
            gpu_barrier_make(&shared.stage_empty[i], S::GROUP_WARPS);
        }
        gpu_barrier_make(&shared.job_full, 1);
        gpu_barrier_make(&shared.job_empty, 2 * S::PARTS);
        gpu_barrier_make(&shared.sums_full, 1);
        gpu_barrier_make(&shared.out_full, S::GROUP_WARPS);
        gpu_barriers_made();
        gpu_barrier_arrive_expecting(&shared.sums_full, S::SENT_BYTES);
    }

    /* Wait for the next job. */
    __device__ __forceinline__ struct gemm_split_job job_get(const gemm_ring<1> &jobs)
    {
        gpu_barrier_await_cluster(&shared.job_full, jobs.parity);
        return shared.job;
    }

    /* One thread, before the cluster's barrier: prefetch what this workgroup may read first: its part of the tile that its
     * cluster gets if clusters ask in order. In any order, the clusters together get these tiles. A is the same for all
     * columns. */
    __device__ __forceinline__ void early_prefetch()
    {
        uint32_t run = run_at(0), number = blockIdx.x / S::PARTS / call.nruns, high = maps.high[run], first, end;
        const struct gpu_plan *plan = gpu_plan_of(call, run);
        const gemm_maps::gemm_run_maps &m = maps.runs[run];

        if ((uint64_t)number * maps.together[run] >= plan->first[GPU_PHASE_FREE + 1])
            return;
        gpu_prefetch((const void *)plan->groups); /* read at the end, when each round trip to memory counts */
        int32_t col = (int32_t)(plan->free_col + number / high * plan->free_cols);
        steps_get(run, &first, &end);
        end = min(end, first + S::STAGES);
#pragma unroll 1
        for (int32_t k = (int32_t)first * GEMM_STEP; k < (int32_t)end * GEMM_STEP; k += GEMM_STEP) {
            for (int32_t i = 0; i < S::COLS; i += 64)
                gpu_box_prefetch(&m.b, col + i, k);
            if (number < high)
                gpu_box_prefetch(&m.a, k, (int32_t)number * S::ROWS);
        }
    }

    /* ---- taker: a warp ---- */

    __device__ __forceinline__ void job_send(const struct gemm_split_job &job)
    {
        constexpr uint32_t WORDS = sizeof(job) / sizeof(uint64_t);
        uint32_t lane = threadIdx.x % 32;
        uint64_t words[WORDS];

        if (lane < S::PARTS) {
            uint32_t there = gpu_cluster_address(&shared.job, lane), full = gpu_cluster_address(&shared.job_full, lane);
            memcpy(words, &job, sizeof(job));
            gpu_barrier_expect_at(&shared.job_full, lane, sizeof(job));
#pragma unroll
            for (uint32_t i = 0; i < WORDS; i += 2)
                gpu_cluster_send_words(there + i * sizeof(uint64_t), words[i], words[i + 1], full);
        }
        __syncwarp();
    }

    /* All workgroups have done a tile of `count` slices from `index` on. Each slice has a lane, which signals it. */
    __device__ __forceinline__ void job_end(uint32_t run, uint32_t index, uint32_t count, uint32_t group, uint64_t start,
                                            uint32_t parity)
    {
        uint32_t at = index + threadIdx.x % 32;
        struct slice s = {};

        gpu_barrier_await_cluster(&shared.job_empty, parity);
        s.group = group;
        if (at < index + count) {
            gpu_slice_signal(call, run, s);
            ((struct slice_time *)gpu_plan_of(call, run)->times)[at] = {0, start, gpu_clock(), blockIdx.x,
                                                                        (uint32_t)call.epoch};
        }
        __syncwarp();
    }

    /* `next`: the first lane has asked for it, of the first run. */
    __device__ __forceinline__ void take(struct gpu_ticket next)
    {
        gemm_ring<1> jobs;
        uint32_t leave = 0, lane = threadIdx.x % 32;

        for (uint32_t i = 0; i < call.nruns && !leave; i++) {
            uint32_t run = run_at(i), first = gpu_plan_of(call, run)->first[GPU_PHASE_FREE], together = maps.together[run];
            uint32_t all = gpu_plan_of(call, run)->first[GPU_PHASE_FREE + 1] - first;
            if (i > 0 && threadIdx.x == 0)
                next = gpu_slice_ask(call, run, GPU_PHASE_FREE, together);
            for (;; jobs.next()) {
                uint32_t number = __shfl_sync(GEMM_SPLIT_LANES, next.number, 0), index = first + number;
                leave = __shfl_sync(GEMM_SPLIT_LANES, (uint32_t)(next.failed >= gpu_epoch(call)), 0);
                if (leave || number >= all)
                    break;
                const struct slice *slices = (const struct slice *)gpu_plan_of(call, run)->slices + index;
                uint32_t count = min(together, all - number), group = slices[lane < count ? lane : 0].group;
                uint64_t start = gpu_clock();
                job_send({1, 0, run, index, count, slices->row, slices->col, slices->cols});
                gpu_barrier_await(&shared.out_full, jobs.parity);
                if (threadIdx.x == 0)
                    next = gpu_slice_ask(call, run, GPU_PHASE_FREE, together);
                job_end(run, index, count, group, start, jobs.parity);
            }
        }
        if (leave && lane == 0)
            gpu_left_early(call);
        job_send({0, leave, 0, 0, 0, 0, 0, 0});
    }

    /* ---- loader: a thread ---- */

    __device__ __forceinline__ void tile_load(const struct gemm_split_job &job, gemm_ring<S::STAGES> *ring)
    {
        const void *a = &maps.runs[job.run].a, *b = &maps.runs[job.run].b;
        const uint32_t bytes = S::STAGE_BYTES - S::A_BYTES + maps.a_bytes[job.run];
        const int32_t row = (int32_t)job.row, col = (int32_t)job.col;
        uint32_t first, end;

        steps_get(job.run, &first, &end);
#pragma unroll 1
        for (int32_t k = (int32_t)first * GEMM_STEP; k < (int32_t)end * GEMM_STEP; k += GEMM_STEP, ring->next()) {
            unsigned char *stage = stages + ring->at * S::STAGE_BYTES;
            uint64_t *full = &shared.stage_full[ring->at];
            gpu_barrier_await(&shared.stage_empty[ring->at], ring->parity ^ 1);
            gpu_barrier_arrive_expecting(full, bytes);
#pragma unroll
            for (int i = 0; i < S::COLS / 64; i++)
                gpu_box_load(stage + S::A_BYTES + i * S::B_PART, b, col + i * 64, k, full);
            gpu_box_load(stage, a, k, row, full);
        }
    }

    __device__ __forceinline__ void load()
    {
        gemm_ring<1> jobs;
        gemm_ring<S::STAGES> ring;

        for (;; jobs.next()) {
            const struct gemm_split_job job = job_get(jobs);
            if (!job.more) {
                shared.leave = job.leave;
                return;
            }
            gpu_barrier_done_at(&shared.job_empty, 0);
            tile_load(job, &ring);
        }
    }

    /* ---- groups ---- */

    /* `steps` of a tile, which may be none. `a` and `b`: this group's, as wgmma wants them, in the first stage. */
    __device__ __forceinline__ void multiply(float (&sums)[S::SUMS], uint32_t steps, uint64_t a, uint64_t b,
                                             gemm_ring<S::STAGES> *ring)
    {
        uint32_t before = 0;

#pragma unroll
        for (int i = 0; i < S::SUMS; i++)
            sums[i] = 0;
        gpu_wgmma_pin(sums);
#pragma unroll 1
        for (uint32_t n = 0; n < steps; n++) {
            uint32_t stage = ring->at * (S::STAGE_BYTES / 16);
            gpu_barrier_await(&shared.stage_full[ring->at], ring->parity);
            gpu_wgmma_begin();
#pragma unroll
            for (int k = 0; k < GEMM_STEP / 16; k++)
                gpu_wgmma_add(sums, a + stage + k * (32 / 16), b + stage + k * (2048 / 16), true, T());
            gpu_wgmma_end_group();
            gpu_wgmma_await_all_but<1>();
            if (n > 0 && threadIdx.x % 32 == 0)
                gpu_barrier_arrive(&shared.stage_empty[before]);
            before = ring->at;
            ring->next();
        }
        gpu_wgmma_await_all_but<0>();
        if (steps > 0 && threadIdx.x % 32 == 0)
            gpu_barrier_arrive(&shared.stage_empty[before]);
        gpu_wgmma_pin(sums);
    }

    /* Where this thread receives sums from the other workgroup with index `from`. */
    __device__ __forceinline__ float4 *sums_at(uint32_t from) const
    {
        return (float4 *)(last() + from * S::PART_BYTES) + (threadIdx.x - 128);
    }

    /* Send a thread's sums of another workgroup's columns to the same thread there. */
    __device__ __forceinline__ void sums_send(const float (&sums)[S::SUMS])
    {
#pragma unroll
        for (uint32_t to = 0; to < S::PARTS; to++) {
            if (to == rank)
                continue;
            uint32_t there = gpu_cluster_address(sums_at(rank - (rank > to)), to);
            uint32_t full = gpu_cluster_address(&shared.sums_full, to);
#pragma unroll
            for (uint32_t i = 0; i < S::OWN; i += 4) {
                const float *four = &sums[to * S::OWN + i];
                gpu_cluster_send_four(there + i * S::GROUP_THREADS * (uint32_t)sizeof(float), four[0], four[1], four[2],
                                      four[3], full);
            }
        }
    }

    /* Add all parts' sums of this workgroup's columns, in order. */
    __device__ __forceinline__ void sums_add(const float (&sums)[S::SUMS], float (&own)[S::OWN])
    {
#pragma unroll
        for (uint32_t i = 0; i < S::OWN; i += 4) {
#pragma unroll
            for (uint32_t from = 0; from < S::PARTS; from++) {
                const float *mine = &sums[from * S::OWN + i];
                float4 four = make_float4(mine[0], mine[1], mine[2], mine[3]);
                if (from != rank)
                    four = sums_at(from - (from > rank))[i / 4 * S::GROUP_THREADS];
                own[i] = from ? own[i] + four.x : four.x;
                own[i + 1] = from ? own[i + 1] + four.y : four.y;
                own[i + 2] = from ? own[i + 2] + four.z : four.z;
                own[i + 3] = from ? own[i + 3] + four.w : four.w;
            }
        }
    }

    /* Of a warp's 16 rows a thread has rows lane / 4 and 8 more, of them columns 8j + lane % 4 * 2 and the next: sums 4j and 4j
     * + 1 of the one row, 4j + 2 and 4j + 3 of the other. */
    __device__ __forceinline__ void finish(const float (&own)[S::OWN])
    {
        uint32_t lane = threadIdx.x % 32, row = (threadIdx.x - 128) / 32 * 16 + lane / 4;
        T *at = (T *)last() + row * S::OUT_PITCH + lane % 4 * 2;

#pragma unroll
        for (int i = 0; i < S::OWN; i += 4) {
            *(uint32_t *)(at + i * 2) = gpu_wgmma_pair(own[i], own[i + 1], T());
            *(uint32_t *)(at + i * 2 + 8 * S::OUT_PITCH) = gpu_wgmma_pair(own[i + 2], own[i + 3], T());
        }
        gpu_fence_for_async();
    }

    __device__ __forceinline__ void group()
    {
        uint32_t number = (threadIdx.x - 128) / 128, base = gpu_shared_address(stages), first, end;
        uint64_t a = gpu_wgmma_matrix(base + number * 64 * 128, 16, 1024);
        uint64_t b = gpu_wgmma_matrix(base + S::A_BYTES, S::B_PART, 1024);
        gemm_ring<1> jobs;
        gemm_ring<S::STAGES> ring;

        for (;; jobs.next()) {
            float sums[S::SUMS], own[S::OWN];
            gpu_barrier_await_cluster(&shared.job_full, jobs.parity);
            if (!shared.job.more)
                return;
            steps_get(shared.job.run, &first, &end);
            __syncwarp();
            multiply(sums, end - first, a, b, &ring);
            sums_send(sums);
            gpu_barrier_await_cluster(&shared.sums_full, jobs.parity);
            if (threadIdx.x == 128)
                gpu_barrier_arrive_expecting(&shared.sums_full, S::SENT_BYTES); /* of the next job */
            sums_add(sums, own);
            gpu_barrier_some<1, S::GROUP_THREADS>();
            finish(own);
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                gpu_barrier_arrive(&shared.out_full);
        }
    }

    /* ---- storer: a warp ---- */

    /* The destinations of this workgroup's columns of the tile's rows lane, lane + 32, ...; NULL: there is no such row. A
     * COMPUTE tile goes to staging memory, where it is dense. */
    __device__ __forceinline__ void rows_find(const struct gemm_split_job &job, T *(&to)[S::ROWS / 32])
    {
        const struct gpu_plan *plan = gpu_plan_of(call, job.run);
        const struct slice *slices = (const struct slice *)plan->slices + job.index;
        uint32_t lane = threadIdx.x % 32;

#pragma unroll
        for (int i = 0; i < S::ROWS / 32; i++)
            to[i] = NULL;
        for (uint32_t j = 0; j < job.together; j++) {
            const struct slice s = slices[j];
            bool staged = s.kind == SLICE_COMPUTE;
            int64_t pitch = staged ? call.fixed->shape.n : call.out[s.dst].stride[0];
            T *at = staged ? (T *)call.fixed->staging[plan->rank] + s.row * pitch + s.col : landing_to<T>(call, s, pitch);
#pragma unroll
            for (int i = 0; i < S::ROWS / 32; i++) {
                uint32_t row = job.row + i * 32 + lane - s.row; /* in the slice */
                if (row < s.rows)
                    to[i] = at + row * pitch + rank * S::OWN_COLS;
            }
        }
    }

    /* Waits until the places of the slices' parts are free. False: leave. */
    __device__ __forceinline__ bool parts_await(const struct gemm_split_job &job)
    {
        const struct slice *slices = (const struct slice *)gpu_plan_of(call, job.run)->slices + job.index;
        bool free = true;

        for (uint32_t j = 0; j < job.together && free; j++)
            free = landing_place_await(call, slices[j]);
        gpu_fence_proxies();
        return free;
    }

    __device__ __forceinline__ void store()
    {
        const T *out = (const T *)last() + threadIdx.x % 32 * S::OUT_PITCH;
        gemm_ring<1> jobs;
        bool is_open = false, leave = false;

        if (blockIdx.x == 0)
            gpu_say_come(call);
        for (;; jobs.next()) {
            T *to[S::ROWS / 32];
            const struct gemm_split_job job = job_get(jobs);
            if (!job.more) {
                if (threadIdx.x % 32 == 0)
                    shared.stored = 1;
                return;
            }
            if (!call.rings.place_bytes)
                rows_find(job, to);
            if (!is_open && !leave)
                leave = !(is_open = gemm_gates_await(call, maps));
            if (is_open && call.rings.place_bytes) { /* only now it is known where this rank's own rows lie */
                leave = !(is_open = parts_await(job));
                rows_find(job, to);
            }
            int32_t cols = min((int32_t)job.cols - (int32_t)(rank * S::OWN_COLS), (int32_t)S::OWN_COLS);
            gpu_barrier_await(&shared.out_full, jobs.parity);
#pragma unroll
            for (int i = 0; i < S::ROWS / 32; i++)
                if (to[i] && cols > 0 && is_open)
                    gpu_bulk_store(to[i], out + i * 32 * S::OUT_PITCH, (uint32_t)cols * (uint32_t)sizeof(T));
            gpu_bulk_end_group();
            gpu_bulk_await();
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                gpu_barrier_arrive_at(&shared.job_empty, 0);
        }
    }

    /* All threads, before the kernel before this one has ended. */
    __device__ __forceinline__ void prepare()
    {
        if (threadIdx.x == 32) {
            make();
            shared.stored = 0;
        }
        __syncwarp();
        gpu_cluster_meet(); /* barriers that were made are there for all: gpu_barriers_made() */
    }

    /* All threads. False: leave. */
    __device__ __forceinline__ bool run()
    {
        uint32_t warp = threadIdx.x / 32;
        struct gpu_ticket first = {0, 0};

        gpu_begin(call);
        if (threadIdx.x == 0 && rank == 0)
            first = gpu_slice_ask(call, run_at(0), GPU_PHASE_FREE, maps.together[run_at(0)]);
        if (warp >= 4)
            group();
        else if (warp == 0 && rank == 0)
            take(first);
        else if (threadIdx.x == 32)
            load();
        else if (warp == 2)
            store();
        else if (warp == 3)
            landing_serve<T>(call, &shared.stored);
        __syncwarp();
        __syncthreads();
        return !shared.leave;
    }
};

#endif

template <typename T, int ROWS, int COLS, int PARTS>
__global__ void __launch_bounds__(gemm_split_shape<T, ROWS, COLS, PARTS>::THREADS, 1) GEMM_CLUSTER(PARTS)
    gemm_split_kernel(GPU_PARAMETER struct gpu_call call, GPU_PARAMETER struct gemm_maps maps)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef gemm_split_shape<T, ROWS, COLS, PARTS> shape;
    __shared__ struct gemm_split_shared<shape> shared;
    unsigned char *stages = gemm_shared_bytes + (-gpu_shared_address(gemm_shared_bytes) & (shape::ALIGN - 1));
    struct gemm_split_parts<T, shape> parts = {
        call, maps, shared, stages, gpu_cluster_rank()
    };
    struct gemm_rest<T> rest;

    /* Before the kernel before this one has ended: only prefetches into the L2, which stays coherent with later stores. */
    if (threadIdx.x == 3 * 32)
        parts.early_prefetch();
    gpu_bring_nearer(call);
    parts.prepare();
    gpu_follow();
    gpu_execute_from(call, rest, GPU_PHASE_FREE + 1, parts.run(), landing_end<T>());
#endif
}

#endif
