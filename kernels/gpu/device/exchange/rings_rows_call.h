/* SPDX-License-Identifier: MIT
 *
 * rings_rows_call.h - what the kernels are told that add up whole rows (rings_rows.h).
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_ROWS_CALL_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_ROWS_CALL_H

#include "kernels/gpu/device/exchange/rings_run.h"
#include "kernels/gpu/whole_rows.h"

/* The kernel's argument. */
struct rings_rows_call {
    struct rings_call rings;
    struct gpu_rows rows; /* wide: 0. What is added is in added_bias and residual */
    uint64_t x;           /* [rows.m][rows.n]: this rank's term; the address in this process */
    int64_t x_stride;
    uint64_t packets_at; /* where packets begin in a rank's rings: rings_rows_at() */
    uint64_t slot;       /* bytes of those of a rank: rings_rows_slot() */
    uint32_t packets;    /* of a row */
    uint32_t aligned;    /* 1: all rows begin at multiples of 4 bytes, and have whole words of 4 bytes */
    uint32_t reduction;  /* enum fcc_reduction */
    uint32_t parts;      /* workgroups that make a row together; 1: each makes its own */
    uint32_t cluster;    /* 1: they are one, so that they can find what whole rows need */
    /* 1: how a row's elements are dealt to threads, and so in which order they are added, does not depend on how many rows there are */
    uint32_t batch_invariant, zero;
    int64_t elements; /* of all rows. Only of rows that need not be whole the last one may be shorter */
};

/* The packets of a row. */
RINGS_FUNCTION uint64_t rings_row_packets(int64_t n, uint32_t element_bytes)
{
    const uint64_t length = sizeof(((struct gpu_stamped_twelve *)0)->data) / element_bytes;

    return ((uint64_t)n + length - 1) / length;
}

#endif
