/* SPDX-License-Identifier: MIT
 *
 * plan_run.h - plans run by workgroups that take turns at random: every order comes to an end, with complete results.
 */
#ifndef PLAN_RUN_H
#define PLAN_RUN_H

#include "tests/plan/plan_case.h"

/* ---- execution in any order ---- */

enum { WORKGROUPS = 3 };

struct sim_rank {
    bool flags[FLAGS];
    uint32_t *left; /* of each group: slices to finish */
    uint32_t next, finished;
    int64_t held[WORKGROUPS]; /* the slice a workgroup has taken, or -1 */
    uint32_t own_left;        /* own COMPUTE slices that are not finished */
    int64_t arrivals_left;    /* slices anywhere that store into this rank's result */
};

/* Rows of puts that are there, and of nodes' sums: at each rank, by column. Words go wherever they are to go at once: they count
 * at rank 0. */
static unsigned partials[RANKS][WIDE];
static unsigned results[RANKS][WIDE]; /* rows that are there */

static inline bool sim_ready(const struct test_case *c, const struct sim_rank *rank, const struct slice *s)
{
    for (uint32_t j = s->col; j < s->col + s->cols && s->kind == SLICE_REDUCE && carries_words(c, s); j++)
        if (partials[0][j] < (unsigned)c->problem->nranks * s->rows)
            return false;
    for (uint32_t w = 0; w < s->wait_count; w++)
        if (!rank->flags[s->wait_first + w * s->wait_stride])
            return false;
    return true;
}

static inline bool stores_result(const struct test_case *c, const struct slice *s)
{
    return s->kind == SLICE_REDUCE || s->kind == SLICE_FORWARD || (puts_tile(s) && !reduces(c->problem->op));
}

static inline void sim_count(const struct test_case *c, struct sim_rank ranks[], int source, const struct slice *s, int by)
{
    ranks[source].own_left += s->kind == SLICE_COMPUTE ? (uint32_t)by : 0;
    for (int q = 0; q < c->problem->nranks; q++)
        if (stores_result(c, s) && plan_reaches(c->plans[source], s->dst, q))
            ranks[q].arrivals_left += by;
}

/* Everything that a slice reads is there. */
static inline void sim_column(const struct test_case *c, int r, const struct slice *s, uint32_t j)
{
    unsigned m = (unsigned)across_of(c->problem), length = lane_length(c->problem, s);
    bool words = has_words(c);

    if (puts_tile(s) || s->kind == SLICE_REDUCE_NODE)
        partials[words ? 0 : s->dst][j] += length;
    EXPECT(s->kind != SLICE_REDUCE || partials[words ? 0 : r][j] == m * terms_of(c, r));
    EXPECT(s->kind != SLICE_REDUCE_NODE || partials[r][j] == m * (unsigned)node_ranks(c, r));
    EXPECT(s->kind != SLICE_FORWARD || results[r][j] == m);
    for (int q = 0; q < c->problem->nranks && (s->kind == SLICE_REDUCE || s->kind == SLICE_FORWARD); q++)
        results[q][j] += plan_reaches(c->plans[r], s->dst, q) ? length : 0;
}

static inline void sim_finish(const struct test_case *c, struct sim_rank ranks[], int r, const struct slice *s)
{
    const struct plan *plan = c->plans[r];

    if (s->kind == SLICE_PUT)
        EXPECT(c->schedule.kind == FCC_SCHEDULE_COMM_ONLY || ranks[r].own_left == 0);
    for (uint32_t j = lane_first(c->problem, s);
         j < lane_end(c->problem, s) && reduces(c->problem->op) && s->kind != SLICE_ROWS; j++)
        sim_column(c, r, s, j);
    EXPECT(s->kind != SLICE_ROWS || ranks[r].arrivals_left == 0);
    sim_count(c, ranks, r, s, -1);
    ranks[r].finished++;
    uint32_t *left = ranks[r].left;
    if (!left || s->group == SLICE_NO_GROUP || --left[s->group] > 0)
        return;
    for (int q = 0; q < c->problem->nranks; q++)
        if (plan_reaches(plan, plan->groups[s->group].dst, q))
            ranks[q].flags[plan->groups[s->group].flag] = true;
}

/* One step of one workgroup: it takes a slice or finishes the one it has. Returns whether it could. */
static inline bool sim_step(const struct test_case *c, struct sim_rank ranks[], int r, int wg)
{
    const struct plan *plan = c->plans[r];
    struct sim_rank *rank = &ranks[r];

    if (rank->held[wg] < 0) {
        if (rank->next == plan->nslices)
            return false;
        rank->held[wg] = rank->next++;
        return true;
    }
    if (!sim_ready(c, rank, &plan->slices[rank->held[wg]]))
        return false;
    sim_finish(c, ranks, r, &plan->slices[rank->held[wg]]);
    rank->held[wg] = -1;
    if (rank->finished == plan->nslices)
        EXPECT(rank->arrivals_left == 0 || c->schedule.kind == FCC_SCHEDULE_COMPUTE_ONLY);
    return true;
}

static inline void expect_termination(const struct test_case *c)
{
    static struct sim_rank ranks[RANKS];
    int n = c->problem->nranks, workgroups = 1 + (int)random_below(WORKGROUPS), stuck = 0;

    memset(ranks, 0, sizeof(ranks));
    memset(partials, 0, sizeof(partials));
    memset(results, 0, sizeof(results));
    for (int r = 0; r < n; r++) {
        ranks[r].left = calloc(c->plans[r]->ngroups + 1, sizeof(uint32_t));
        assert_non_null(ranks[r].left);
        for (uint32_t g = 0; g < c->plans[r]->ngroups; g++)
            ranks[r].left[g] = c->plans[r]->groups[g].slices;
        for (int w = 0; w < WORKGROUPS; w++)
            ranks[r].held[w] = -1;
        for (uint32_t i = 0; i < c->plans[r]->nslices; i++)
            sim_count(c, ranks, r, &c->plans[r]->slices[i], 1);
    }
    /* Random steps; when many in a row were in vain, one round over all decides whether anything can go on. */
    while (stuck < 2) {
        bool moved = false;
        for (int i = 0; i < 8 * n; i++)
            moved |= sim_step(c, ranks, (int)random_below(n), (int)random_below(workgroups));
        for (int i = 0; i < n * workgroups && !moved; i++)
            moved |= sim_step(c, ranks, i / workgroups, i % workgroups);
        stuck = moved ? 0 : stuck + 1;
    }
    for (int r = 0; r < n; r++) {
        EXPECT(ranks[r].finished == c->plans[r]->nslices);
        free(ranks[r].left);
    }
}

#endif
