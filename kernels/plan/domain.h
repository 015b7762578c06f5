/* SPDX-License-Identifier: MIT
 *
 * domain.h - what a compute tells its exchange: which part of a rank's result goes to which rank, and how to cut it into tiles.
 */
#ifndef FCC_KERNELS_PLAN_DOMAIN_H
#define FCC_KERNELS_PLAN_DOMAIN_H

#include <stdbool.h>
#include <stdint.h>

/* The part of a rank's result for one destination; empty if rows or cols is 0. */
struct rectangle {
    uint32_t row, rows, col, cols;
    uint32_t dst_row, dst_col;
};

/* The order of the tiles in a fused plan. */
enum tile_order {
    /* All tiles of one destination, then of the next, the own rank's last: transfers overlap the remaining compute. */
    ORDER_IN_PARTS,
    /* As ORDER_IN_PARTS, with each destination's tiles in bands of rows: the tiles that a GPU computes at a time form a region
     * about as high as wide, which reads the least input. */
    ORDER_IN_BANDS,
    ORDER_IN_TURNS, /* one tile of each destination in turn: the links have work from beginning to end */
    /* For destinations of at most a slice's rows: all destinations' rows of some columns, then of the next. Over nodes each rank begins with another destination. */
    ORDER_TOGETHER,
};

struct domain {
    struct rectangle *part; /* [nranks], by destination. Of a rank elsewhere (problem_is_here()), only the size is used */
    bool *from;             /* [nranks], by source: that rank sends something to this one, so its flag will come */
    uint64_t element_bytes; /* size of the elements in which rows and columns are counted */
    /* A result of at most so many bytes is worth staging memory, so that it can be computed before the other ranks have come.
     * 0: none is */
    uint64_t early_bytes;
    enum tile_order order;
    bool flag_each; /* on GPUs of one node, each tile may have its own flag if there are few tiles */
};

#endif
