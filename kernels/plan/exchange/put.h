/* SPDX-License-Identifier: MIT
 *
 * put.h - an All-to-All: what put.c has for who executes its plans.
 *
 * A rank's result is one rectangle for each destination. Fused: its tiles are computed and stored at the destination one after
 * the other, destinations in plan_destination_order(); the last one raises the flag of this rank at that destination.
 * Sequential: all tiles are computed into staging memory, which raises a flag at the rank itself; then all are put.
 *
 * Flags of every rank: [source] "all of source's tiles for me are here", [nranks] "my tiles are computed". Or, fused and with few tiles:
 * one for each tile, source by source. Nobody then has to find out which of a destination's tiles was the last.
 */
#ifndef FCC_KERNELS_PLAN_EXCHANGE_PUT_H
#define FCC_KERNELS_PLAN_EXCHANGE_PUT_H

#include <stdint.h>

#include "proto/fccclient.h"

/* Where the tiles of each destination lie in the staging memory, dense, the destinations' in rank order: the element at [row][col] is
 * `element_bytes` at at[dst] + row * row_bytes + col * element_bytes. What a fused plan without staging memory keeps of this is the
 * element's size. */
struct put_layout {
    uint64_t element_bytes, row_bytes, at[FCC_MAX_RANKS];
};

#endif
