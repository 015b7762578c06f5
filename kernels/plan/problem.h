/* SPDX-License-Identifier: MIT
 *
 * problem.h - one call, all ranks together: what is to be done. The words are the same for every operator, so that who compares, keeps or
 * hands on a problem needs to know none.
 */
#ifndef FCC_KERNELS_PLAN_PROBLEM_H
#define FCC_KERNELS_PLAN_PROBLEM_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/error.h"
#include "proto/fccclient.h"
#include "proto/operators.h"

/* What the words stand for, in `dim` and in `rank_dim`; an operator uses some of them (struct problem_spec), the others are 0.
 *
 *              dim                                   rank_dim of rank r                                 counts
 *   bag        M: samples; VECTOR: of a table's row  M: samples that it gets; N: its tables; K: its indices, an estimate of the work
 *   gemv       M, N                                  K
 *   gemm       N                                     K                                                  rows of the product of [source] for
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

/* The words that an operator uses: what errors call them, and how much each may be. A name of NULL: it does not use the word. */
struct word_spec {
    const char *name;
    int64_t most;
};
struct problem_spec {
    struct word_spec dim[DIMS], rank_dim[RANK_DIMS];
    const char *counts; /* of what is put: all that one rank sends, and all that one gets, is at most INT32_MAX */
};

/* A problem of this operator and so many ranks, whose words are all 0, but for the counts: these, and what lies beyond nranks, are left as
 * they are. */
void problem_begin(struct problem *p, enum fcc_op op, int nranks);
/* The same operator, dtype, topology and words. */
bool problem_equal(const struct problem *a, const struct problem *b);
/* 0, or -EINVAL: a word is negative or more than it may be. All ranks' M together are at most INT32_MAX. */
int problem_check(const struct problem *p, struct error *e);

/* ---- builder.c ---- */

/* Are its ranks on more than one node? */
bool plan_is_over_nodes(const struct problem *problem);
/* If there are several nodes: how many ranks the largest one has. 1: a hierarchical plan would be the flat one. */
int plan_node_ranks(const struct problem *problem);
/* The longest K of a rank, at least 1. */
int64_t problem_longest_k(const struct problem *problem);

#endif
