/* SPDX-License-Identifier: MIT
 *
 * slice.h - the unit in which an operator computes and communicates, as host and devices see it. Plain C and C++.
 */
#ifndef FCC_KERNELS_PLAN_SLICE_H
#define FCC_KERNELS_PLAN_SLICE_H

#include <assert.h>
#include <stdint.h>

enum slice_kind {
    SLICE_COMPUTE_PUT = 1, /* compute the tile and store it at dst */
    SLICE_COMPUTE = 2,     /* compute the tile into this rank's staging memory */
    SLICE_PUT = 3,         /* store the tile from this rank's staging memory at dst */
    SLICE_REDUCE = 4,      /* add the partial tiles in the operator's order, store the sum at dst */
    SLICE_WAIT = 5,        /* wait only */
    SLICE_REDUCE_NODE = 6, /* add the partial tiles of this node's ranks in rank order, store the sum at dst, on another node */
    /* copy a finished tile, which has come from another node, to dst: ranks of this node. Gather: copy rows of A, which this rank can read,
     * into its tensor `gathered` */
    SLICE_FORWARD = 7,
    SLICE_TAKE =
        8, /* a tile whose results another rank, `slot`, has reduced and sent as packets (kernels/gpu/plugin/product.hip) */
    SLICE_ROWS = 9, /* what an epilogue does with whole rows of the rank's own result (kernels/plan/epilogue.h) */
    SLICE_KINDS = 10,
};

/* Whether slices of this kind store at their destination. Others compute into, or wait in, memory of their own rank alone. */
static inline int slice_puts(unsigned kind)
{
    return kind != SLICE_COMPUTE && kind != SLICE_WAIT && kind != SLICE_ROWS;
}

#define GPU_MAX_RANKS                                                                                                          \
    64 /* ranks of one communicator on GPUs: sets of ranks are 64 bits there, and arguments of kernels are 4 KiB */

/* A destination is a rank, or all, or one of the plan's sets of ranks: SLICE_DST_SET plus its number. */
#define SLICE_DST_ALL 0xffffu
#define SLICE_DST_SET 0x8000u
#define SLICE_NO_GROUP 0xffffffffu

struct slice {
    uint8_t kind; /* enum slice_kind */
    /* Slices on GPUs of several nodes that wait, with or without computing: 1 if ranks of this node raise every flag it waits for
     * (kernels/plan/exchange/reduce_nodes.c, gather.c) */
    uint8_t is_here;
    uint16_t dst;        /* a rank, SLICE_DST_ALL, or a set */
    uint32_t group;      /* index of its signal group, or SLICE_NO_GROUP */
    uint32_t wait_first; /* before it starts, flags [wait_first + i * wait_stride] for i < wait_count */
    uint32_t wait_count; /* of this rank must have reached the epoch */
    uint32_t wait_stride;
    uint32_t row, rows; /* the tile in the source rank's result */
    uint32_t col, cols;
    uint32_t dst_row, dst_col; /* where the tile begins in dst's result */
    /* Gather: the rank whose rows of A the slice multiplies or copies. Reduce with flags (kernels/plan/exchange/reduce.h): COMPUTE_PUT, PUT,
     * REDUCE_NODE: index of the receive slot at dst. REDUCE: index of this node. Others: not used. */
    uint16_t slot;
    uint16_t terms; /* reduce with flags, REDUCE and REDUCE_NODE: index of the first local receive slot to add */
};
static_assert(sizeof(struct slice) == 48, "shared by host and devices");

struct signal_group {
    uint16_t dst; /* a rank, SLICE_DST_ALL, or a set */
    uint16_t zero;
    uint32_t flag;   /* index of the flag at dst */
    uint32_t slices; /* how many slices have to finish before it is raised */
};
static_assert(sizeof(struct signal_group) == 12, "shared by host and devices");

/* When a slice was handled, in ns of CLOCK_MONOTONIC (on a GPU: of its own clock, until it is fetched). wait_ns is 0 if it
 * did not have to wait; start_ns is 0 if it was not reached. */
struct slice_time {
    uint64_t wait_ns, start_ns, end_ns;
    uint32_t workgroup;
    uint32_t epoch; /* GPU: epoch of the call, which tells stale times of earlier calls apart; 0 after fetching */
};
static_assert(sizeof(struct slice_time) == 32, "shared by host and devices");

#endif
