/* SPDX-License-Identifier: MIT
 *
 * gemv_hopper_shape.h - the kernels of gemv_hopper.h: sizes, second argument, shared data of their parts, copies by threads of
 * matrices that do not suit the copy engine, and the host's computations.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMV_HOPPER_SHAPE_H
#define FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMV_HOPPER_SHAPE_H

#include "kernels/gpu/device/exchange/packets.h"
#include "kernels/gpu/runtime.h"

#define GEMV_PARTS 8 /* workgroups of a cluster */
#define GEMV_COLS 64
#define GEMV_STEP 64          /* k of a stage */
#define GEMV_JOBS 3           /* jobs in hand of a cluster: with more, clusters end at more different times */
#define GEMV_TOGETHER 8       /* slices of a job, at most */
#define GEMV_STAGES 12        /* at most: with more under way the memory is slower */
#define GEMV_LISTED_MOST 1024 /* jobs of a call: a workgroup may have to do all of them */
#define GEMV_THREADS 512
#define GEMV_WARPS 4 /* of the group, the senders, the loaders */
/* The taker's thread that requests slices. The compiler must know that it is a single thread: an atomic addition by some lanes
 * of a warp becomes one for all of them, followed by a shuffle of the result, which waits for it. */
#define GEMV_ASKS (3 * GEMV_WARPS * 32)

/* x and w of each run, for the copy engine, and how a launch uses the shared memory. */
struct gemv_maps {
    struct gemv_run_maps {
        CUtensorMap x, w;
    } runs[GPU_MAX_RUNS];
    uint32_t x_by_engine[GPU_MAX_RUNS], w_by_engine[GPU_MAX_RUNS];
    uint32_t together[GPU_MAX_RUNS]; /* slices that are taken at a time */
    uint32_t all_by_engine;
    uint32_t stages;
    uint32_t x_bytes;   /* that are kept; 0: none is */
    uint32_t exchanges; /* places for sums on their way to the cluster's other workgroups: 1 or 2 */
    uint32_t kept;      /* jobs of which a workgroup keeps its own sums for its reducers */
    uint32_t listed;    /* room for so many jobs: all of a call. 0: workgroups do not reduce what they compute, beside that */
    uint32_t zero;
};

template <typename T, int ROWS_> struct gemv_shape {
    static constexpr int ROWS = ROWS_, SUMS = ROWS / 2; /* of a thread */
    static constexpr uint32_t W_BYTES = GEMV_COLS * GEMV_STEP * sizeof(T), X_BLOCK = ROWS * GEMV_STEP * sizeof(T);
    static constexpr uint32_t PITCH = ROWS + 4;                           /* floats: 8 columns lie in different banks */
    static constexpr uint32_t EXCHANGE = GEMV_PARTS * GEMV_BLOCK * PITCH; /* floats */
    static constexpr uint32_t EXCHANGE_BYTES = EXCHANGE * sizeof(float), ALIGN = 1024;
    static constexpr uint32_t SENT_BYTES = GEMV_PARTS * GEMV_BLOCK * ROWS * sizeof(float); /* of sums, to a workgroup */
    static constexpr uint32_t SHARED_BYTES = 227 * 1024 - 2048; /* a workgroup's, but for what is not dynamic */
    static constexpr uint32_t ROOM = SHARED_BYTES - ALIGN, KEPT_BYTES = GEMV_BLOCK * ROWS * sizeof(float);
    static_assert(sizeof(T) == 2 && EXCHANGE_BYTES % ALIGN == 0 && X_BLOCK % ALIGN == 0 && W_BYTES % ALIGN == 0, "");
};

/* Up to 64 columns. */
struct alignas(16) gemv_job {
    uint32_t more; /* 0: there are no more jobs */
    uint32_t leave;
    uint32_t run;
    uint32_t kind, dst; /* the slices' */
    uint32_t col, cols, zero;
};
static_assert(sizeof(struct gemv_job) == 32, "is sent in pairs of words of 8 bytes");

/* The taker's record of a job: `count` slices from `index` on are finished by this job. */
struct gemv_taken {
    uint32_t run, index, count, zero;
    uint64_t start;
    uint32_t groups[GEMV_TOGETHER]; /* the slices' */
};

/* An index in a ring, and the parity of the phase that fills the place. The phase that empties it has the other parity. */
struct gemv_ring {
    uint32_t at = 0, parity = 0;

    __device__ __forceinline__ void next(uint32_t places)
    {
        at = at + 1 == places ? 0 : at + 1;
        parity ^= at == 0;
    }
};

struct gemv_shared {
    uint64_t stage_full[GEMV_STAGES], stage_empty[GEMV_STAGES], job_full[GEMV_JOBS], job_empty[GEMV_JOBS];
    uint64_t x_full, x_empty, computed, sums_full[2], sums_empty[GEMV_WARPS][2];
    uint32_t leave;
    /* For each warp of the senders: twice the number of listed jobs whose sums it has stored, plus 1 when there are no more
     * jobs. */
    uint32_t listed[GEMV_WARPS];
    uint32_t has_first; /* the taker's: the cluster has claimed the slices dealt to it */
    struct gemv_job jobs[GEMV_JOBS];
    struct gemv_taken taken[GEMV_JOBS]; /* the taker's own */
};

/* The loaders' four warps: rows from `row` on, 64 k from `k` on, element by element, to where the copy engine would write them.
 * What lies beyond the matrix is 0. */
template <typename T>
GPU_DEVICE void gemv_block_copy(unsigned char *to, const T *from, int64_t stride, int64_t row, int64_t rows, int64_t k,
                                int64_t k_end, uint32_t count)
{
    for (uint32_t i = threadIdx.x % (GEMV_WARPS * 32); i < count * (GEMV_STEP / 8); i += GEMV_WARPS * 32) {
        uint32_t line = i / (GEMV_STEP / 8), unit = i % (GEMV_STEP / 8);
        int64_t left = row + line < rows ? k_end - k - unit * 8 : 0;
        const uint16_t *at = (const uint16_t *)(from + (row + line) * stride + k + unit * 8);
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            w[j] = (2 * j < left ? gpu_bits_load(at + 2 * j) : 0u) |
                   (2 * j + 1 < left ? (uint32_t)gpu_bits_load(at + 2 * j + 1) << 16 : 0u);
        *(uint4 *)(to + line * 128 + (unit ^ line % 8) * 16) = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

/* ---- the host's side ---- */

/* Rows of x that the kernel for `m` of them multiplies. */
static uint32_t gemv_hopper_rows(int64_t m)
{
    return m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : 64;
}

/* How a launch uses the shared memory, for `steps` of K in the longest part: x is kept where that leaves enough stages. In what
 * is then left a workgroup keeps its own sums of the first `jobs`; these are worth a second place for sums on their way, but no
 * stage. */
template <typename S> static void gemv_hopper_divide(struct gemv_maps *maps, uint32_t steps, uint32_t jobs)
{
    const uint32_t enough = 6; /* stages: what is under way on all multiprocessors hides the memory's latency */
    const uint32_t room = S::ROOM - 2 * S::EXCHANGE_BYTES - maps->listed * (uint32_t)sizeof(uint32_t);
    const uint64_t x = (uint64_t)(steps > 0 ? steps : 1) * S::X_BLOCK;
    const bool keeps = x + enough * S::W_BYTES <= room;
    const uint32_t stage = S::W_BYTES + (keeps ? 0 : S::X_BLOCK);

    maps->x_bytes = keeps ? (uint32_t)x : 0;
    maps->stages = (room - maps->x_bytes) / stage;
    maps->stages = maps->stages < GEMV_STAGES ? maps->stages : GEMV_STAGES;
    uint32_t left = room - maps->x_bytes - maps->stages * stage;
    maps->exchanges = maps->listed && left < jobs * S::KEPT_BYTES ? 1 : 2;
    left += (2 - maps->exchanges) * S::EXCHANGE_BYTES;
    maps->kept = left / S::KEPT_BYTES;
}

#endif
