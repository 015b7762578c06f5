/* SPDX-License-Identifier: MIT
 *
 * put.h - the All-to-All exchange: its memory layout and flags, for the code that executes its plans.
 *
 * A rank's result is one rectangle for each destination. Fused: its tiles are computed and stored at the destination one after
 * the other, destinations in plan_destination_order(); the last one raises the flag of this rank at that destination.
 * Sequential: all tiles are computed into staging memory, which raises a flag at the rank itself; then all are put.
 *
 * Flags of every rank: [source] "all of source's tiles for me are here", [nranks] "my tiles are computed". Or, fused with few
 * tiles: one flag for each tile, source by source, so that no counter has to find the last tile of a destination.
 */
#ifndef FCC_KERNELS_PLAN_EXCHANGE_PUT_H
#define FCC_KERNELS_PLAN_EXCHANGE_PUT_H

#include <stdint.h>

#include "proto/fccclient.h"

/* The layout of staging memory: the destinations' parts in rank order, each dense. The element [row][col] for dst begins at
 * at[dst] + row * row_bytes + col * element_bytes. A fused plan without staging memory only uses element_bytes. Of a vector's plan
 * at[dst] is where the part for dst begins in the rank's input. */
struct put_layout {
    uint64_t element_bytes, row_bytes, at[]; /* at: [nranks] */
};

#endif
