/* SPDX-License-Identifier: MIT
 *
 * domain.h - between compute and exchange: a rank's result, which part of it is whose, and how it had best be cut.
 */
#ifndef FCC_KERNELS_PLAN_DOMAIN_H
#define FCC_KERNELS_PLAN_DOMAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/fccclient.h"

/* What a rank has for one destination; empty if rows or cols is 0. */
struct rectangle {
    uint32_t row, rows, col, cols;
    uint32_t dst_row, dst_col;
};

/* In which order a fused plan has its tiles. */
enum tile_order {
    ORDER_IN_PARTS, /* one destination's after the other's, the own rank's last: the links have time until the end */
    ORDER_IN_BANDS, /* the same, and of one destination's some rows after the others: what a GPU computes at a time is about as high as
                     * wide, and so reads least */
    ORDER_IN_TURNS, /* one of each destination, then the next of each: the links have work from beginning to end */
    ORDER_TOGETHER, /* no destination gets more rows than a slice may have: all rows of some columns, then of the next */
};

struct domain {
    struct rectangle part[FCC_MAX_RANKS]; /* by destination */
    bool from[FCC_MAX_RANKS];             /* [source]: it has something for this rank, so its flag will come */
    uint64_t element_bytes;               /* rows and columns are counted in elements of so many bytes */
    /* It may be computed before other ranks have come, and where it has no more bytes, memory for that is worth it */
    uint64_t early_bytes;
    enum tile_order order;
    bool flag_each; /* on GPUs of one node each tile may have a flag of its own, where they are few */
};

#endif
