/* SPDX-License-Identifier: MIT
 *
 * gather.h - an AllGather before the product: where the rows of A are that a rank multiplies, for the code that executes the plans.
 *
 * Rank s has rows [first[s], first[s + 1]) of A, its `a`. On cores, ranks of one node read each other's `a` where it lies. Rows of another
 * node's rank come once to each node, into staging memory of one rank there, their keeper, from where all ranks of the node read them; the
 * sources are dealt out to the ranks of the node in turns. Sequential: ranks copy the other rows of their node first, into the tensor
 * `gathered` or, without it, into their own staging memory. On GPUs each rank stores its rows into the staging memory of all others.
 *
 * Flags of every rank: [r] "rank r of this node has done all it does with others' rows", [nranks] "all rows are here that I multiply",
 * which are raised on one node or by the rank itself; then for each source and each chunk of its rows "the chunk has come".
 */
#ifndef FCC_KERNELS_PLAN_EXCHANGE_GATHER_H
#define FCC_KERNELS_PLAN_EXCHANGE_GATHER_H

#include "kernels/plan/epilogue.h"
#include "kernels/plan/problem.h"

/* Where a source's rows are, instead of the staging memory of a rank. */
#define GATHER_AT_SOURCE (-1)   /* in the source's `a` */
#define GATHER_IN_GATHERED (-2) /* in this rank's `gathered` */

struct gather_layout {
    /* Bytes from a row to the next one in staging memory. scales_at: of e4m3 with scales that comes from another node, where the f32
     * scales of the row's blocks begin; otherwise 0. */
    uint64_t row_bytes, scales_at;
    int64_t *first; /* [nranks + 1] */
    int32_t *place; /* [nranks]: of each source: the rank in whose staging memory its rows are read, or GATHER_ */
    uint64_t *at;   /* [nranks]: ... and the byte at which they begin there */
    uint64_t
        *sent; /* [nranks]: the byte at which this rank's rows begin in the staging memory of a rank that they are put to */
};

/* The rows of A of a rank. */
static inline int64_t gather_rows(const struct problem *problem, int rank)
{
    return problem->rank_dim[DIM_M][rank];
}

#endif
