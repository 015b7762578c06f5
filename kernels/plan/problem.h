/* SPDX-License-Identifier: MIT
 *
 * problem.h - the sizes of one operator call, of all ranks together. Its words have the same form for every operator, so code
 * that compares, keeps or sends a problem needs to know no operator.
 */
#ifndef FCC_KERNELS_PLAN_PROBLEM_H
#define FCC_KERNELS_PLAN_PROBLEM_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/plan/spec.h"
#include "proto/base/error.h"
#include "proto/fccclient.h"
#include "proto/operators.h"

/* The meaning of the words in `dim` and `rank_dim`. Words that an operator does not use (struct problem_spec) are 0.
 *
 *              dim                                   rank_dim of rank r                                 counts
 *   bag        M: samples; VECTOR: of a table's row  M: samples that it gets; N: its tables; K: its indices, an estimate of the
 *              work
 *   gemv       M, N                                  K
 *   gemm       N                                     K                                                  rows of the product of
 *                                                                                                       one rank for another
 *   gemm that  M, N                                  M: rows of the sum that it gets; K
 *   scatters
 *   gemm that  M: of C; N: the largest of all ranks; M: rows of its A; N: columns of its C; K
 *   gathers    K; FACTOR_BYTES: of an element of A;
 *              GATHERED: 1: ranks get A, too
 *   vector     M: 1; N: elements of the whole        N: elements of the parts of the ranks before;      elements of one rank for
 *              vector; K: of a row that a program's   K: elements of its own part                        another
 *              counts are in; ROOT; REDUCTION */
enum problem_dim {
    DIM_M,
    DIM_N,
    DIM_K,
    RANK_DIMS,
    DIM_VECTOR = RANK_DIMS,
    DIM_ROOT,
    DIM_REDUCTION,
    DIM_FACTOR_BYTES,
    DIM_GATHERED,
    DIMS
};

/* One rank's part of the counts, [nranks] each. NULL: the rank is elsewhere. */
struct rank_counts {
    int64_t *to;   /* what it sends to each rank */
    int64_t *from; /* what it gets from each rank */
    int64_t *at;   /* what each rank gets from the ranks before this one */
};

/* An operator's epilogue, the same on all ranks: the elements of a row, the tensors that it has, a bit (1 << enum stage) each, and its numbers. */
struct epilogue {
    int64_t cols;
    uint32_t stages, number[EPILOGUE_NUMBERS];
};

/* Memory is O(nranks) for each rank that plans are made for here. Of the counts of ranks elsewhere there are only the sums. */
struct problem {
    enum fcc_op op;
    enum fcc_dtype dtype;
    int nranks;
    /* Topology: the node whose ranks plans are made for here. A plan of another node's rank has sizes and no slices (plan.h).
     * -1: plans are made for all ranks */
    int32_t node;
    int32_t *node_of; /* [nranks]: the node that each rank is on */
    bool any_order;   /* sums may be added in any order (FCC_SCHEDULE_ANY_ORDER); only of operators with partial sums of gemm */
    uint32_t factors; /* enum factors, of products */
    struct epilogue epilogue;     /* zeros: none (kernels/plan/epilogue.h) */
    int64_t dim[DIMS];            /* the same on all ranks */
    int64_t *rank_dim[RANK_DIMS]; /* [nranks]: of each rank */

    /* Counts: problem_counts_set(). NULL: no problem with counts was begun. */
    struct rank_counts *counts; /* [nranks] */
    int64_t *sent, *received;   /* [nranks]: sums of what each rank sends and gets */
    size_t here_bytes;          /* of `to` of all ranks here, which precede `at` and `from` in memory */
    int64_t wrong, most;        /* the first count that is not within [0, most], its maximum; 0: there is none */
};

/* A word of a problem: its name in error texts (NULL: the operator does not use the word), and its maximum. */
struct word_spec {
    const char *name;
    int64_t most;
};
struct problem_spec {
    struct word_spec dim[DIMS], rank_dim[RANK_DIMS];
    const char *counts;  /* the name of the counts */
    int64_t counts_most; /* the largest sum of what one rank sends, or receives */
};

/* A problem to be begun, with all ranks on one node, whose plans are all made here. NULL: no memory. */
struct problem *problem_new(int nranks);
/* A copy; NULL: no memory. */
struct problem *problem_copy(const struct problem *p);
void problem_free(struct problem *p);
size_t problem_bytes(const struct problem *p);
/* Begin another problem of the same ranks: sets the operator, and all words to 0. The topology stays; the first problem with
 * counts makes room for them by it. 0 or -ENOMEM. */
int problem_begin(struct problem *p, enum fcc_op op);
/* What a rank sends to each rank. To be called for all ranks in order. */
void problem_counts_set(struct problem *p, int rank, const int64_t to[]);
static inline bool problem_is_here(const struct problem *p, int rank)
{
    return p->node < 0 || p->node_of[rank] == p->node;
}
/* Do both have the same operator, dtype, order, factors, epilogue, topology and words? */
bool problem_equal(const struct problem *a, const struct problem *b);
/* 0, or -EINVAL: a word is negative or beyond its maximum, or the sum of all ranks' M is beyond INT32_MAX. */
int problem_check(const struct problem *p, struct error *e);

/* ---- builder.c ---- */

/* Are the problem's ranks on more than one node? */
bool plan_is_over_nodes(const struct problem *problem);
/* The number of ranks of the largest node, if there are several nodes. 1: the hierarchical plan would equal the flat one. */
int plan_node_ranks(const struct problem *problem);
/* The longest K of a rank, at least 1. */
int64_t problem_longest_k(const struct problem *problem);

#endif
