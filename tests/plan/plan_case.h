/* SPDX-License-Identifier: MIT
 *
 * plan_case.h - a random problem with the plans of all its ranks, and what is to be expected of its kind.
 */
#ifndef PLAN_CASE_H
#define PLAN_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>

#include "daemon/worker/device/gpu/call.h"
#include "kernels/plan/program.h"
#include "tests/bed/random.h"

enum { RANKS = 8, ROWS = 96, COLS = 96, WIDE = 1600, FLAGS = 1200 };

/* ---- a case: one problem, all ranks' plans ---- */

struct test_case {
    struct problem *problem;
    struct schedule schedule;
    struct plan *plans[RANKS];
};

static const enum fcc_op all_ops[] = {FCC_OP_NOOP,
                                      FCC_OP_EMBEDDING_ALL_TO_ALL,
                                      FCC_OP_GEMV_ALL_REDUCE,
                                      FCC_OP_GEMM_ALL_TO_ALL,
                                      FCC_OP_GEMM_ALL_REDUCE,
                                      FCC_OP_GEMM_REDUCE_SCATTER};
enum { OPS = sizeof(all_ops) / sizeof(all_ops[0]) };

static inline bool reduces(enum fcc_op op)
{
    return op_spec(op)->exchange == EXCHANGE_REDUCE;
}

/* Exchanges that reduce split one dimension of the sums over the ranks: columns, or rows where these are scattered. It has lanes; a tile is
 * some of them, and has so many elements of each as the other dimension is long. */
static inline int64_t lanes_of(const struct problem *p)
{
    return p->dim[op_scatters_rows(p->op) ? DIM_M : DIM_N];
}

static inline int64_t across_of(const struct problem *p)
{
    return p->dim[op_scatters_rows(p->op) ? DIM_N : DIM_M];
}

static inline uint32_t lane_first(const struct problem *p, const struct slice *s)
{
    return op_scatters_rows(p->op) ? s->row : s->col;
}

static inline uint32_t lane_end(const struct problem *p, const struct slice *s)
{
    return op_scatters_rows(p->op) ? s->row + s->rows : s->col + s->cols;
}

/* Elements of each lane. */
static inline uint32_t lane_length(const struct problem *p, const struct slice *s)
{
    return op_scatters_rows(p->op) ? s->cols : s->rows;
}

/* A problem whose words are 0. */
static inline struct problem *problem_of(enum fcc_op op, int nranks, enum fcc_dtype dtype)
{
    struct problem *p = problem_new(nranks);

    assert_non_null(p);
    assert_int_equal(problem_begin(p, op), 0);
    p->dtype = dtype;
    return p;
}

/* What source sends to dst; 0 if the operator has no counts. */
static inline int64_t rows_of(const struct problem *p, int source, int dst)
{
    return op_counts(p->op) ? p->counts[source].to[dst] : 0;
}

/* Rows for each rank, some of them none; so many together. */
static inline void scatter_rows(struct problem *p, int64_t rows)
{
    int64_t left = rows;

    for (int r = 0; r < p->nranks; r++) {
        int64_t part = r == p->nranks - 1 ? left : random_below(4) == 0 ? 0 : random_below(1 + 2 * rows / p->nranks);
        p->rank_dim[DIM_M][r] = part < left ? part : left;
        left -= p->rank_dim[DIM_M][r];
    }
    p->dim[DIM_M] = rows;
}

static inline struct problem *random_problem(enum fcc_op op)
{
    static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};
    enum fcc_dtype dtype = dtypes[random_below(3)];
    struct problem *p = problem_of(op, 1 + (int)random_below(RANKS), dtype);

    for (int r = 0; r < p->nranks; r++)
        p->node_of[r] = (int32_t)random_below(1 + random_below(4));
    if (op == FCC_OP_EMBEDDING_ALL_TO_ALL) {
        p->dim[DIM_VECTOR] = 1 + random_below(300);
        for (int r = 0; r < p->nranks; r++) {
            p->rank_dim[DIM_N][r] = random_size(COLS / RANKS);
            p->rank_dim[DIM_M][r] = random_size(ROWS / 2);
            p->dim[DIM_M] += p->rank_dim[DIM_M][r];
        }
        for (int r = 0; r < p->nranks; r++)
            p->rank_dim[DIM_K][r] = random_below(1 + p->dim[DIM_M] * p->rank_dim[DIM_N][r] * 40);
    } else if (reduces(op)) {
        p->dim[DIM_M] = FCC_GEMV_MAX_M - random_below(random_below(2) ? 8 : FCC_GEMV_MAX_M); /* some worth a hierarchy */
        p->dim[DIM_N] = random_below(2) ? COLS : random_size(COLS);
        if (op_scatters_rows(op)) {
            p->dim[DIM_N] = random_below(8) ? p->dim[DIM_M] : random_size(8);
            scatter_rows(p, random_below(2) ? COLS : random_size(COLS));
        }
        for (int r = 0; r < p->nranks; r++)
            p->rank_dim[DIM_K][r] = random_size(100000);
    } else if (op == FCC_OP_GEMM_ALL_TO_ALL) {
        p->dim[DIM_N] = random_size(COLS);
        for (int r = 0; r < p->nranks; r++) {
            p->rank_dim[DIM_K][r] = random_size(1000);
            int64_t rows[RANKS];
            for (int q = 0; q < p->nranks; q++)
                rows[q] = random_size(ROWS / RANKS);
            problem_counts_set(p, r, rows);
        }
    }
    return p;
}

/* More than goes to all ranks in one step; and worth a hierarchy. */
static inline void wide_gemv(struct problem *p)
{
    p->dim[DIM_M] = FCC_GEMV_MAX_M - random_below(16);
    p->dim[DIM_N] = WIDE - random_below(150);
    if (op_scatters_rows(p->op)) {
        int64_t lanes = p->dim[DIM_N];
        p->dim[DIM_N] = p->dim[DIM_M];
        scatter_rows(p, lanes);
    }
    for (int r = 0; r < p->nranks; r++)
        p->rank_dim[DIM_K][r] = random_size(100);
    memset(p->node_of, 0, (size_t)p->nranks * sizeof(p->node_of[0])); /* over nodes nothing depends on that */
}

static inline void case_open(struct test_case *c, enum fcc_op op, enum fcc_schedule_kind kind, int number)
{
    struct error e = {0};

    c->problem = random_problem(op);
    c->schedule = (struct schedule){.kind = kind, .target = random_below(2) ? PLAN_GPU : PLAN_CPU};
    c->schedule.route = (enum plan_route)random_below(PLAN_HIERARCHICAL + 1);
    c->schedule.workgroups = (uint32_t)random_below(40);
    bool wide = reduces(op) && random_below(4) == 0;
    if (wide)
        wide_gemv(c->problem);
    if (random_below(3))
        c->schedule.slice_rows = (uint32_t)((wide && op_scatters_rows(op) ? COLS : 1) + random_below(ROWS));
    if (random_below(3))
        c->schedule.slice_cols = (uint32_t)((wide ? COLS : 1) + random_below(COLS)); /* not more than FLAGS */
    const bool rows = op_spec(op)->epilogue && c->schedule.target == PLAN_CPU && random_below(2);
    c->problem->epilogue.cols = rows ? c->problem->dim[DIM_N] : 0;
    c->problem->epilogue.number[NUMBER_NORM] = rows ? FCC_RMS_NORM : FCC_NO_NORM;
    (void)snprintf(case_text, sizeof(case_text), "case %d: %s%s, %s, %s, %s, %d ranks, %u workgroups, slices %u x %u", number,
                   op_name(op), rows ? " and norm" : "", schedule_name(kind), route_name(c->schedule.route),
                   c->schedule.target == PLAN_GPU ? "gpu" : "cpu", c->problem->nranks, c->schedule.workgroups,
                   c->schedule.slice_rows, c->schedule.slice_cols);
    for (int r = 0; r < c->problem->nranks; r++)
        if (plan_make(c->problem, r, &c->schedule, &c->plans[r], &e))
            fail_msg("%s: rank %d: %s", case_text, r, e.text);
}

static inline void case_close(struct test_case *c)
{
    for (int r = 0; r < c->problem->nranks; r++)
        plan_free(c->plans[r]);
    problem_free(c->problem);
}

static inline bool computes(const struct slice *s)
{
    return s->kind == SLICE_COMPUTE_PUT || s->kind == SLICE_COMPUTE;
}

static inline bool puts_tile(const struct slice *s)
{
    return s->kind == SLICE_COMPUTE_PUT || s->kind == SLICE_PUT;
}

/* On the GPUs of one node gemv's partial sums travel as words that carry their epoch. */
static inline bool has_words(const struct test_case *c)
{
    return c->problem->op == FCC_OP_GEMV_ALL_REDUCE && c->schedule.target == PLAN_GPU && !plan_is_over_nodes(c->problem);
}

/* No flags before they are reduced. */
static inline bool carries_words(const struct test_case *c, const struct slice *s)
{
    return has_words(c) && (puts_tile(s) || s->kind == SLICE_REDUCE);
}

/* ... and go to all ranks, each of which reduces all of them. */
static inline bool is_one_shot(const struct test_case *c)
{
    const struct problem *p = c->problem;
    int64_t words = p->dim[DIM_M] * p->dim[DIM_N] * 8, k = 1;

    if (!has_words(c))
        return false;
    for (int r = 0; r < p->nranks; r++)
        k = p->rank_dim[DIM_K][r] > k ? p->rank_dim[DIM_K][r] : k;
    return words * p->nranks <= 1 << 20 ||
           (words * p->nranks <= 16 << 20 && words * (p->nranks - 1) * 16 <= p->dim[DIM_N] * k * (int64_t)dtype_size(p->dtype));
}

/* Ranks of that rank's node. */
static inline int node_ranks(const struct test_case *c, int rank)
{
    int n = 0;

    for (int r = 0; r < c->problem->nranks; r++)
        n += c->problem->node_of[r] == c->problem->node_of[rank];
    return n;
}

static int chosen[PLAN_GPU + 1][PLAN_HIERARCHICAL + 1]; /* by the rule */

/* The route is what was asked for, or what the rule says; flat where the other way would be the same. */
static inline void expect_route(const struct test_case *c)
{
    enum plan_route route = c->plans[0]->schedule.route;
    int64_t most = 0, sums = c->problem->dim[DIM_M] * c->problem->dim[DIM_N] * 4;

    for (int r = 0; r < c->problem->nranks; r++)
        most = node_ranks(c, r) > most ? node_ranks(c, r) : most;
    if (!reduces(c->problem->op) || most == 1 || most == c->problem->nranks)
        EXPECT(route == PLAN_FLAT);
    else if (c->schedule.route != PLAN_ROUTE_RULE)
        EXPECT(route == c->schedule.route);
    else
        EXPECT(route == (sums * (most - 1) >= 32768 ? PLAN_HIERARCHICAL : PLAN_FLAT));
    chosen[c->schedule.target][route] += c->schedule.route == PLAN_ROUTE_RULE;
}

static inline bool is_hierarchical(const struct test_case *c)
{
    return c->plans[0]->schedule.route == PLAN_HIERARCHICAL;
}

static inline bool is_first_of_node(const struct test_case *c, int rank)
{
    for (int r = 0; r < rank; r++)
        if (c->problem->node_of[r] == c->problem->node_of[rank])
            return false;
    return true;
}

/* What is to be there before an owner can add it all up. */
static inline unsigned terms_of(const struct test_case *c, int owner)
{
    unsigned n = is_hierarchical(c) ? (unsigned)node_ranks(c, owner) : (unsigned)c->problem->nranks;

    for (int r = 0; r < c->problem->nranks && is_hierarchical(c); r++)
        n += is_first_of_node(c, r) && c->problem->node_of[r] != c->problem->node_of[owner];
    return n;
}

#endif
