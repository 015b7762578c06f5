/* SPDX-License-Identifier: MIT
 *
 * problem.h - the sizes of one operator call, of all ranks together. Its words have the same form for every operator, so code
 * that compares, keeps or sends a problem needs to know no operator.
 */
#ifndef FCC_KERNELS_PLAN_PROBLEM_H
#define FCC_KERNELS_PLAN_PROBLEM_H

#include <stdbool.h>
#include <stdint.h>

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
 *              [source] for
 *                                                                                                       [destination] */
enum problem_dim { DIM_M, DIM_N, DIM_K, RANK_DIMS, DIM_VECTOR = RANK_DIMS, DIMS };

struct problem {
    enum fcc_op op;
    enum fcc_dtype dtype;
    int nranks;
    int32_t node_of[FCC_MAX_RANKS];             /* topology: the node that each rank is on */
    int64_t dim[DIMS];                          /* the same on all ranks */
    int64_t rank_dim[RANK_DIMS][FCC_MAX_RANKS]; /* of each rank */
    int64_t counts[FCC_MAX_RANKS][FCC_MAX_RANKS];
};

/* A word of a problem: its name in error texts (NULL: the operator does not use the word), and its maximum. */
struct word_spec {
    const char *name;
    int64_t most;
};
struct problem_spec {
    struct word_spec dim[DIMS], rank_dim[RANK_DIMS];
    const char *counts; /* the name of the counts; the sum of what one rank sends, or receives, is at most INT32_MAX */
};

/* Begin a problem: sets the operator and the number of ranks, and all words to 0. Leaves the counts, and entries beyond nranks,
 * as they are. */
void problem_begin(struct problem *p, enum fcc_op op, int nranks);
/* The same operator, dtype, topology and words. */
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
