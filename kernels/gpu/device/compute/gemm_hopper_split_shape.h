/* SPDX-License-Identifier: MIT
 *
 * gemm_hopper_split_shape.h - gemm_hopper_split.h's kernels: their tiles and what these take of the shared memory, the job that its parts
 * hand to each other, and what they share.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMM_HOPPER_SPLIT_SHAPE_H
#define FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMM_HOPPER_SPLIT_SHAPE_H

#include "kernels/gpu/device/compute/gemm_hopper_shape.h"

#define GEMM_SPLIT_STAGES 12   /* at most: with more under way the memory is slower */
#define GEMM_SPLIT_TOGETHER 32 /* slices of a tile, at most: each has a lane of the taker */
#define GEMM_SPLIT_LANES 0xffffffffu

template <typename T, int ROWS_, int COLS_, int PARTS_> struct gemm_split_shape {
    static constexpr int ROWS = ROWS_, COLS = COLS_, PARTS = PARTS_;
    static constexpr int GROUP_THREADS = ROWS * 2, GROUP_WARPS = GROUP_THREADS / 32, THREADS = 128 + GROUP_THREADS;
    static constexpr int SUMS = COLS / 2, OWN = SUMS / PARTS; /* of a thread: all; those that its workgroup adds */
    static constexpr uint32_t OWN_COLS = COLS / PARTS;        /* that a workgroup adds and stores */
    static constexpr uint32_t OUT_PITCH = OWN_COLS + 8;       /* elements: rows begin at multiples of 16 bytes */
    static constexpr uint32_t A_BYTES = ROWS * GEMM_STEP * sizeof(T), B_PART = GEMM_STEP * 128; /* of 64 columns */
    static constexpr uint32_t STAGE_BYTES = A_BYTES + COLS / 64 * B_PART;
    static constexpr uint32_t PART_BYTES = OWN * GROUP_THREADS * sizeof(float); /* of sums, from one workgroup to another */
    static constexpr uint32_t SENT_BYTES = (PARTS - 1) * PART_BYTES, OUT_BYTES = ROWS * OUT_PITCH * sizeof(T);
    static constexpr uint32_t LAST_BYTES = SENT_BYTES > OUT_BYTES ? SENT_BYTES : OUT_BYTES, ALIGN = 1024;
    static constexpr uint32_t MOST = 227 * 1024 - 2048; /* a workgroup's, but for what is not dynamic */
    static constexpr int ROOM = (int)((MOST - LAST_BYTES - ALIGN) / STAGE_BYTES);
    static constexpr int STAGES = ROOM < GEMM_SPLIT_STAGES ? ROOM : GEMM_SPLIT_STAGES;
    static constexpr size_t SHARED_BYTES = STAGES * STAGE_BYTES + LAST_BYTES + ALIGN;
    static_assert(sizeof(T) == 2 && OWN % 4 == 0 && STAGES >= 3, "");
};

/* One tile, of `together` slices from `index` on. */
struct alignas(16) gemm_split_job {
    uint32_t more;  /* 0: there are no more jobs */
    uint32_t leave; /* then */
    uint32_t run, index, together;
    uint32_t row, col, cols; /* in the run's a and b */
};
static_assert(sizeof(struct gemm_split_job) == 32, "is sent in pairs of words of 8 bytes");

template <typename S> struct gemm_split_shared {
    uint64_t stage_full[S::STAGES], stage_empty[S::STAGES], job_full, job_empty, sums_full, out_full;
    uint32_t leave;
    uint32_t stored; /* 1: the storer has done */
    struct gemm_split_job job;
};

#endif
