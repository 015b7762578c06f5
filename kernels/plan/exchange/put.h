/* SPDX-License-Identifier: MIT
 *
 * put.h - the plan that all operators that end in an All-to-All share.
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

#include <stdbool.h>

#include "kernels/plan/plan.h"

/* What a rank sends to one destination; empty if rows or cols is 0. */
struct rectangle {
    uint32_t row, rows, col, cols;
    uint32_t dst_row, dst_col;
};

/* Where the tiles of each destination lie in the staging memory, dense, the destinations' in rank order: the element at [row][col] is
 * `element_bytes` at at[dst] + row * row_bytes + col * element_bytes. What a fused plan without staging memory keeps of this is the
 * element's size. */
struct put_layout {
    uint64_t element_bytes, row_bytes, at[FCC_MAX_RANKS];
};

/* In which order the fused schedule has its slices. */
enum all_to_all_order {
    ALL_TO_ALL_IN_PARTS, /* one destination's after the other's, the own rank's last: the links have time until the end */
    ALL_TO_ALL_IN_BANDS, /* the same, and of one destination's some rows after the others: what a GPU computes at a time is about as high as
                          * wide, and so reads least */
    ALL_TO_ALL_IN_TURNS, /* one of each destination, then the next of each: the links have work from beginning to end */
    ALL_TO_ALL_TOGETHER, /* no destination gets more rows than a slice may have: all rows of some columns, then of the next */
};

/* How many tiles each rank has for each. */
struct all_to_all_tiles {
    uint32_t count[FCC_MAX_RANKS][FCC_MAX_RANKS]; /* [source][destination] */
};

/* parts[nranks] by destination, of elements of so many bytes; from[source]: whether source has something for this rank, so that its flag will come. The
 * schedule's sizes are set. tiles: NULL, or (fused) each tile has a flag. */
void all_to_all_plan(const struct problem *problem, int rank, const struct schedule *schedule, const struct rectangle parts[],
                     uint64_t element_bytes, const bool from[], enum all_to_all_order order,
                     const struct all_to_all_tiles *tiles, struct plan_builder *b);

#endif
