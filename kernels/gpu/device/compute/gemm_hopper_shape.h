/* SPDX-License-Identifier: MIT
 *
 * gemm_hopper_shape.h - the kernels of gemm_hopper.h: their second argument, tile sizes, division of the shared memory, and the
 * job that their parts exchange.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMM_HOPPER_SHAPE_H
#define FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMM_HOPPER_SHAPE_H

#include "kernels/gpu/abi.h"
#include "kernels/gpu/runtime.h"

/* Of each run: a and b for the copy engine, how many slices make one tile, the bytes of A in a stage, which are few where there
 * are only a few rows in all, and how many of the first tiles have the same columns. */
#define GEMM_GATES 32
struct gemm_maps {
    struct gemm_run_maps {
        CUtensorMap a, b;
    } runs[GPU_MAX_RUNS];
    uint32_t together[GPU_MAX_RUNS];
    uint32_t a_bytes[GPU_MAX_RUNS];
    uint32_t high[GPU_MAX_RUNS];
    uint32_t spread; /* 1: stores to other ranks are spread over the time of a tile */
    /* Words in the GPU's memory that must reach their values before anything is stored at other ranks. A lane polls each. */
    uint32_t ngates, gate_values[GEMM_GATES];
    uint64_t gates[GEMM_GATES];
};

/* May the storer store at other ranks? It finds out when it first has a slice for one. */
enum gemm_gate { GEMM_GATE_UNKNOWN, GEMM_GATE_OPEN, GEMM_GATE_SHUT };

#define GEMM_STEP 64 /* k of a stage */
#define GEMM_JOBS 3  /* places for them; no fewer: gemm_hopper.h */
#define GEMM_THREADS 384
#define GEMM_WARPS 8             /* of the two groups */
#define GEMM_REGISTERS 168       /* of a thread, as the kernel begins: all that there are */
#define GEMM_GROUP_REGISTERS 208 /* of one that multiplies, where it needs more; then the others have ... */
#define GEMM_OTHER_REGISTERS 88
#define GEMM_BARRIER_OTHERS 1 /* 0 is __syncthreads() */
#define GEMM_BARRIER_GROUPS 2
#define GEMM_SPREAD_ROWS 8u     /* that leave at a time */
#define GEMM_SPREAD_PERCENT 85u /* of a tile's time that all of them are spread over */
#define GEMM_SPREAD_NAP_NS 100u

/* BOXES_: of 128 rows: a finished tile stands in boxes (below). */
template <typename T, int ROWS_, int COLS_, bool PAIR_, bool BOXES_ = false> struct gemm_shape {
    static constexpr int ROWS = ROWS_, COLS = COLS_, CLUSTER = PAIR_ ? 2 : 1;
    static constexpr bool PAIR = PAIR_, BOXES = BOXES_;
    /* A group has 64 rows; where the tile has no more, half of the columns; where these are 64, half of each stage's k. */
    static constexpr bool SPLIT = ROWS == 64 && COLS == 64;
    static constexpr int GROUP_COLS = ROWS == 128 || SPLIT ? COLS : COLS / 2;
    static constexpr uint32_t OUT_WARPS = SPLIT ? GEMM_WARPS / 2 : GEMM_WARPS;
    static constexpr int SUMS = GROUP_COLS / 2;                                                 /* of a thread */
    static constexpr uint32_t A_BYTES = ROWS * GEMM_STEP * sizeof(T), B_PART = GEMM_STEP * 128; /* of 64 columns */
    static constexpr uint32_t STAGE_BYTES = A_BYTES + COLS / 64 * B_PART;
    static constexpr uint32_t OUT_PITCH = COLS + 8; /* elements: rows begin at multiples of 16 bytes and in different banks */
    /* There is no room for a fourth stage beside all of the largest tile: so it leaves in two turns, every other 8 rows in
     * each. */
    static constexpr int TURNS = ROWS == 128 && COLS == 256 ? 2 : 1, OUT_ROWS = ROWS / TURNS, HELD = TURNS == 1 ? 1 : SUMS / 4;
    /* BOXES: 64 columns of a group's 64 rows are a box. It has two halves, of rows 0 to 7 and 8 to 15 of each warp's 16; in a half the warps' 8 rows follow
     * each other, 128 bytes each, with the copy engine's 128-byte swizzle. What is stored at the other rank is whole halves then. (Rows that begin at multiples of
     * 16 bytes, but not of 128, leave for another GPU at 287 GB/s instead of 365.) A turn has one half of each box, or both. */
    static constexpr uint32_t OUT_HALVES = TURNS == 1 ? 2 : 1, HALF_BOX = 4096, BOX = 2 * HALF_BOX;
    static_assert(!BOXES || ROWS == 128, "a group has 64 rows and all columns");
    static constexpr uint32_t TILE_BYTES = OUT_ROWS * (BOXES ? (uint32_t)COLS : OUT_PITCH) * sizeof(T),
                              HALF_BYTES = SPLIT ? SUMS * 128 * sizeof(float) : 0;
    static constexpr uint32_t OUT_BYTES = TILE_BYTES + HALF_BYTES, ALIGN = 1024;
    static constexpr uint32_t MOST = 227 * 1024 - 1024; /* a workgroup's, but for what is not dynamic */
    static constexpr int ROOM = (int)((MOST - OUT_BYTES - ALIGN) / STAGE_BYTES), STAGES = ROOM < 8 ? ROOM : 8;
    static constexpr size_t SHARED_BYTES = STAGES * STAGE_BYTES + OUT_BYTES + ALIGN;
    static_assert(sizeof(T) == 2 && STAGES >= 4, "");
    static_assert(2 * GEMM_GROUP_REGISTERS + GEMM_OTHER_REGISTERS == 3 * GEMM_REGISTERS, "");

    /* BOXES: bytes from a row's first 16 bytes of a box's columns to number `chunk` of the row's: `line` is the row's number modulo 8. */
    static __device__ __forceinline__ uint32_t chunk_place(uint32_t chunk, uint32_t line)
    {
        return chunk / 8 * (2 * OUT_HALVES * HALF_BOX) + (chunk % 8 ^ line) * 16;
    }

    /* BOXES: bytes from a turn's begin to row `row` of the tile, if that leaves in the turn. */
    static __device__ __forceinline__ uint32_t row_place(uint32_t row)
    {
        return (row / 64 * OUT_HALVES + (OUT_HALVES == 2 ? row / 8 % 2 : 0)) * HALF_BOX + row / 16 % 4 * 1024 + row % 8 * 128;
    }

    /* The tile's row that leaves from a row of the memory for finished ones. */
    static __device__ __forceinline__ uint32_t row_leaving(uint32_t place, uint32_t turn)
    {
        return TURNS == 1 ? place : (place / 8 * TURNS + turn) * 8 + place % 8;
    }
};

/* One tile: of `together` slices from `index` on, as far as they lie in it. */
struct gemm_job {
    int32_t steps;     /* 0: no more jobs */
    uint32_t row, col; /* in the run's a and b */
    uint32_t run, index, together;
    uint32_t last;      /* of its slices */
    uint32_t in_common; /* with the other workgroup of the cluster: the columns */
    uint64_t start;
};
static_assert(sizeof(struct gemm_job) == 40, "is copied in words of 8 bytes");

#endif
