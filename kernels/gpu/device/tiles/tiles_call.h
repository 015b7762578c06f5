/* SPDX-License-Identifier: MIT
 *
 * tiles_call.h - the argument of the kernels of products whose exchange goes on tile by tile (tiles.hip), and what the plug-in's host files call of them.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_TILES_TILES_CALL_H
#define FCC_KERNELS_GPU_DEVICE_TILES_TILES_CALL_H

#include "kernels/gpu/device/exchange/rings_run.h"
#include "kernels/gpu/device/tiles/tiles_order.h"
#include "kernels/gpu/runtime.h"

/* A call. Addresses in this process; strides are in elements. */
struct tiles_call {
    struct rings_call rings;
    struct tiles_order order;
    struct tiles_words *words, *other_words; /* this rank's; the other's */
    uint64_t slots, other_slots;             /* likewise: the memory for arrivals */
    uint64_t a[2], b, c[2];                  /* of a and c: where each part's rows begin; c: 0: they are sent only */
    int64_t a_stride[2], b_stride, c_stride, n, k;
    uint32_t dtype; /* FCC_F16 or FCC_BF16 */
    uint32_t
        sums; /* 1: the first part is sent, and what comes is added to the other. 0: the other part's rows of A come by copies */
    uint32_t returns;   /* of sums: they are sent back, too, and the other rank's are moved to c[0] */
    uint32_t spread;    /* 1: stores to the other rank are spread over the time of a tile (gemm_hopper_store.h) */
    uint32_t come_rows; /* of what is gathered: rows of a piece that comes, but for the last one */
    uint32_t
        width; /* bytes that are stored at a time into c: 16: by the copy engine; 8, 4 or 2: what divides its address, rows and strides */
    uint64_t packed, packed_bytes; /* memory of this rank's own for factors whose rows the copy engine cannot take */
    uint64_t apart; /* the same of tiles_apart_bytes(): a tile for each workgroup of the kernel that takes any matrices */
    uint32_t multiprocessors;
};

enum { TILES_MOVERS = 16 /* of as many workgroups of the kernel that takes any matrices one moves sums */ };

/* Workgroups of the kernel that takes any matrices, at most. */
static inline uint32_t tiles_any_most(uint32_t multiprocessors)
{
    return multiprocessors + multiprocessors / (TILES_MOVERS - 1) + 1;
}

static inline uint64_t tiles_apart_bytes(uint32_t multiprocessors)
{
    return tiles_any_most(multiprocessors) * tiles_slot_bytes(256);
}

/* Whether the copy engine stores a part's rows of c. */
static inline __host__ __device__ bool tiles_has_map(const struct tiles_call &call, uint32_t part)
{
    return call.order.part[part].units && call.c[part] && !(call.sums && part == 0) && call.width == 16;
}

/* Enqueues the kernel in front of a call's: it begins the run, compares the ranks' headers, and sets the words back that are this rank's own. The caller's stream goes
 * on when the other rank has begun the run, too, so that its memory for arrivals is free. */
hipError_t tiles_begin(const struct tiles_call *call, hipStream_t stream, bool follows);
/* Enqueues the product's kernel: on Hopper by the copy engine, if a, b and c are such that it can take them; else the one that takes any, of the same
 * tiles in the same order, so that the other rank need not know. */
hipError_t tiles_multiply(const struct tiles_call *call, int gpu, bool hopper, hipStream_t stream, bool follows);
/* One of the kernels, which are loaded together. */
const void *tiles_kernel(void);

#endif
