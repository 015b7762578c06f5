/* SPDX-License-Identifier: MIT
 *
 * plan_order.h - in which order slices stand, and which flags are raised and awaited.
 */
#ifndef PLAN_ORDER_H
#define PLAN_ORDER_H

#include "tests/plan/plan_case.h"

/* ---- order ---- */

static inline int destination_class(const struct problem *p, int rank, int dst)
{
    return dst == rank ? 2 : p->node_of[dst] == p->node_of[rank];
}

/* Whether a GPU multiplies the rows for several destinations in one tile. */
static inline bool goes_together(const struct test_case *c, int rank)
{
    const struct plan *plan = c->plans[rank];
    int64_t longest = 0;

    for (int p = 0; p < plan->nranks; p++)
        longest = rows_of(c->problem, rank, p) > longest ? rows_of(c->problem, rank, p) : longest;
    return plan->op == FCC_OP_GEMM_ALL_TO_ALL && plan->schedule.kind == FCC_SCHEDULE_FUSED &&
           plan->schedule.target == PLAN_GPU && longest <= plan->schedule.slice_rows;
}

/* All rows of some columns, then all of the next columns: from a row on to the last, and then from the first one on. On one node all ranks begin with the first. */
static inline void expect_order_together(const struct test_case *c, const struct plan *plan)
{
    const struct problem *p = c->problem;
    const uint32_t begin = plan->nslices ? plan->slices[0].row : 0, all = (uint32_t)p->sent[plan->rank];
    uint32_t row = begin, col = 0, cols = 0;
    bool over = false;

    for (uint32_t i = 0; i < plan->nslices && plan->slices[i].kind == SLICE_COMPUTE_PUT; i++) {
        const struct slice *s = &plan->slices[i];
        if (i > 0 && s->col != col) {
            EXPECT(s->col == col + cols && row == begin);
            row = begin;
        }
        EXPECT(s->row == row && (i == 0 || s->col != col || s->cols == cols));
        row = (row + s->rows) % all;
        col = s->col;
        cols = s->cols;
    }
    for (int r = 0; r < p->nranks; r++)
        over |= p->node_of[r] != p->node_of[0];
    EXPECT(over || begin == 0);
}

/* At any time each destination has had as many slices as any other that has any left, give or take one. */
static inline void expect_order_in_turns(const struct plan *plan)
{
    uint32_t left[FCC_MAX_RANKS] = {0}, had[FCC_MAX_RANKS] = {0}, n = 0;

    while (n < plan->nslices && plan->slices[n].kind == SLICE_COMPUTE_PUT)
        left[plan->slices[n++].dst]++;
    for (uint32_t i = 0; i < n; i++) {
        unsigned dst = plan->slices[i].dst;
        for (int p = 0; p < plan->nranks; p++)
            EXPECT(!left[p] || had[dst] <= had[p]);
        had[dst]++;
        left[dst]--;
    }
}

/* Whose node's tile it is. */
static inline int owner_node(const struct test_case *c, const struct slice *s)
{
    for (int r = 0; r < c->problem->nranks; r++)
        for (uint32_t i = 0; i < c->plans[r]->nslices; i++) {
            const struct slice *reduce = &c->plans[r]->slices[i];
            if (reduce->kind == SLICE_REDUCE && lane_first(c->problem, reduce) == lane_first(c->problem, s))
                return c->problem->node_of[r];
        }
    return -1;
}

/* The next slice from *i on that puts a tile. */
static inline const struct slice *next_put(const struct plan *plan, uint32_t *i)
{
    while (*i < plan->nslices && !puts_tile(&plan->slices[*i]))
        ++*i;
    return *i < plan->nslices ? &plan->slices[(*i)++] : NULL;
}

/* Tiles of other nodes first, in one order on all ranks of a node. */
static inline void expect_order_hierarchical(const struct test_case *c, int rank, enum slice_kind kind)
{
    const struct plan *plan = c->plans[rank];
    uint32_t at = 0, first_at = 0;
    const struct slice *s, *like;
    bool own = false;
    int first = 0;

    if (kind != (c->schedule.kind == FCC_SCHEDULE_FUSED ? SLICE_COMPUTE_PUT : SLICE_PUT))
        return;
    while (c->problem->node_of[first] != c->problem->node_of[rank])
        first++;
    while ((s = next_put(plan, &at))) {
        bool is_own = owner_node(c, s) == c->problem->node_of[rank];
        EXPECT(is_own || !own);
        own = is_own;
        like = next_put(c->plans[first], &first_at);
        EXPECT(own || (like && like->row == s->row && like->col == s->col));
    }
}

/* Within each kind: other nodes' destinations, then this node's, then this rank, each from the next rank on. */
static inline void expect_order(const struct test_case *c, int rank, enum slice_kind kind)
{
    const struct plan *plan = c->plans[rank];
    int n = c->problem->nranks, last = -1;

    if (is_hierarchical(c) && kind != SLICE_COMPUTE) {
        expect_order_hierarchical(c, rank, kind);
        return;
    }
    if (goes_together(c, rank)) {
        expect_order_together(c, plan);
        return;
    }
    if (kind == SLICE_COMPUTE_PUT && plan->op == FCC_OP_EMBEDDING_ALL_TO_ALL && plan->schedule.target == PLAN_GPU) {
        expect_order_in_turns(plan);
        return;
    }
    for (uint32_t i = 0; i < plan->nslices; i++) {
        int dst = plan->slices[i].dst;
        if (plan->slices[i].kind != kind || dst == last)
            continue;
        if (last >= 0) {
            int before = destination_class(c->problem, rank, last), now = destination_class(c->problem, rank, dst);
            EXPECT(now > before || (now == before && (dst - rank + n) % n > (last - rank + n) % n));
        }
        last = dst;
    }
}

/* Nothing that does not wait stands behind something that waits; and phases follow each other. */
static inline void expect_phases(const struct test_case *c, const struct plan *plan)
{
    static const int phase[] = {
        [SLICE_COMPUTE_PUT] = 0, [SLICE_COMPUTE] = 0, [SLICE_PUT] = 1,     [SLICE_REDUCE_NODE] = 1,
        [SLICE_REDUCE] = 2,      [SLICE_WAIT] = 4,    [SLICE_FORWARD] = 3, [SLICE_ROWS] = 5,
    };
    bool waiting = false;

    EXPECT(plan->nslices > 0);
    for (uint32_t i = 0; i < plan->nslices; i++) {
        const struct slice *s = &plan->slices[i];
        EXPECT(s->kind >= SLICE_COMPUTE_PUT && s->kind < SLICE_KINDS);
        EXPECT(is_hierarchical(c) || (s->kind != SLICE_REDUCE_NODE && s->kind != SLICE_FORWARD));
        if (s->kind == SLICE_REDUCE_NODE) {
            EXPECT(s->wait_count > 1); /* among puts, which do not wait for other ranks: expect_termination() */
            continue;
        }
        if (i > 0 && plan->slices[i - 1].kind == SLICE_REDUCE_NODE && puts_tile(s))
            continue;
        EXPECT(!waiting || s->wait_count > 0 || (s->kind == SLICE_REDUCE && carries_words(c, s)));
        EXPECT(!(s->wait_count > 0 && computes(s)));
        EXPECT(i == 0 || phase[s->kind] >= phase[plan->slices[i - 1].kind]);
        waiting = waiting || s->wait_count > 0 || s->kind == SLICE_REDUCE;
    }
}

/* ---- flags ---- */

static inline void expect_groups(const struct test_case *c, const struct plan *plan)
{
    uint32_t *slices = calloc(plan->ngroups + 1, sizeof(*slices));
    /* who waits for others only, and gets no rows of scattered sums, has none to make anything of */
    const bool makes = plan->has_rows && (!op_scatters_rows(plan->op) || c->problem->rank_dim[DIM_M][plan->rank] > 0);

    assert_non_null(slices);
    for (uint32_t i = 0; i < plan->nslices; i++) {
        uint32_t group = plan->slices[i].group;
        EXPECT(group == SLICE_NO_GROUP || group < plan->ngroups);
        EXPECT((group == SLICE_NO_GROUP) ==
               ((plan->slices[i].kind == SLICE_WAIT && (!makes || !plan->slices[i].wait_count)) ||
                plan->slices[i].kind == SLICE_ROWS ||
                (carries_words(c, &plan->slices[i]) && (puts_tile(&plan->slices[i]) || is_one_shot(c)))));
        if (group != SLICE_NO_GROUP)
            slices[group]++;
    }
    for (uint32_t g = 0; g < plan->ngroups; g++) {
        EXPECT(plan->groups[g].slices == slices[g] && slices[g] > 0);
        EXPECT(plan->groups[g].dst < plan->nranks || plan->groups[g].dst == SLICE_DST_ALL ||
               plan->groups[g].dst < SLICE_DST_SET + PLAN_SETS);
    }
    free(slices);
}

/* Every flag that is raised at a rank is raised once and awaited there, and none else is. */
static inline void expect_flags(const struct test_case *c)
{
    static unsigned raised[RANKS][FLAGS], awaited[RANKS][FLAGS];

    memset(raised, 0, sizeof(raised));
    memset(awaited, 0, sizeof(awaited));
    for (int r = 0; r < c->problem->nranks; r++) {
        const struct plan *plan = c->plans[r];
        EXPECT(plan->nflags <= FLAGS && plan->nflags == c->plans[0]->nflags);
        for (uint32_t g = 0; g < plan->ngroups; g++) {
            EXPECT(plan->groups[g].flag < plan->nflags);
            for (int q = 0; q < c->problem->nranks; q++)
                if (plan_reaches(plan, plan->groups[g].dst, q))
                    raised[q][plan->groups[g].flag]++;
        }
        for (uint32_t i = 0; i < plan->nslices; i++) {
            const struct slice *s = &plan->slices[i];
            for (uint32_t w = 0; w < s->wait_count; w++) {
                EXPECT(s->wait_first + w * s->wait_stride < plan->nflags);
                awaited[r][s->wait_first + w * s->wait_stride]++;
            }
        }
    }
    for (int r = 0; r < c->problem->nranks; r++)
        for (uint32_t f = 0; f < FLAGS; f++)
            EXPECT(raised[r][f] <= 1 && (raised[r][f] > 0) == (awaited[r][f] > 0));
}

#endif
