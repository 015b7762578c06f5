/* SPDX-License-Identifier: MIT
 *
 * plan_delivery.h - what plans compute and deliver: every element once, at its place.
 */
#ifndef PLAN_DELIVERY_H
#define PLAN_DELIVERY_H

#include "tests/plan/plan_case.h"

/* ---- what is computed and delivered ---- */

static unsigned char count[RANKS][RANKS * ROWS][COLS];

static inline void count_tile(int rank, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols)
{
    EXPECT(rows > 0 && cols > 0 && row + rows <= RANKS * ROWS && col + cols <= COLS);
    for (uint32_t i = row; i < row + rows; i++)
        for (uint32_t j = col; j < col + cols; j++)
            count[rank][i][j]++;
}

/* Exactly the first rows x cols elements were counted once, no other. */
static inline void expect_counted(int rank, int64_t rows, int64_t cols)
{
    for (int i = 0; i < RANKS * ROWS; i++)
        for (int j = 0; j < COLS; j++)
            EXPECT(count[rank][i][j] == (i < rows && j < cols));
}

/* The sizes of what a rank computes and of what it receives, and where its part for dst lies in both. */
struct extent {
    int64_t sent_rows, sent_cols, result_rows, result_cols;
};

static inline struct extent extent_of(const struct problem *p, int rank)
{
    struct extent x = {0};

    for (int q = 0; q < p->nranks; q++) {
        if (p->op == FCC_OP_EMBEDDING_ALL_TO_ALL) {
            x.sent_rows = p->dim[DIM_M];
            x.sent_cols = p->rank_dim[DIM_N][rank];
            x.result_rows = p->rank_dim[DIM_M][rank];
            x.result_cols += p->rank_dim[DIM_N][q];
        } else {
            x.sent_rows += rows_of(p, rank, q);
            x.result_rows += rows_of(p, q, rank);
            x.sent_cols = x.result_cols = p->dim[DIM_N];
        }
    }
    return x;
}

/* A tile's place in all that the rank computes, and where it must arrive. */
static inline void expect_place(const struct problem *p, int rank, const struct slice *s, uint32_t *row)
{
    int64_t sent_before = 0, received_before = 0, tables_before = 0, samples_before = 0;

    for (int q = 0; q < p->nranks; q++) {
        sent_before += q < s->dst ? rows_of(p, rank, q) : 0;
        received_before += q < rank ? rows_of(p, q, s->dst) : 0;
        tables_before += q < rank ? p->rank_dim[DIM_N][q] : 0;
        samples_before += q < s->dst ? p->rank_dim[DIM_M][q] : 0;
    }
    if (p->op == FCC_OP_EMBEDDING_ALL_TO_ALL) {
        EXPECT(s->dst_row == s->row && s->dst_col == s->col + tables_before);
        EXPECT((int64_t)s->row + s->rows <= p->rank_dim[DIM_M][s->dst]);
        *row = s->row + (uint32_t)samples_before;
    } else {
        EXPECT(s->row >= sent_before && s->row + s->rows <= sent_before + rows_of(p, rank, s->dst));
        EXPECT(s->dst_row == s->row - sent_before + received_before && s->dst_col == s->col);
        *row = s->row;
    }
}

static inline void expect_all_to_all(const struct test_case *c)
{
    const struct problem *p = c->problem;
    bool has_compute = c->schedule.kind != FCC_SCHEDULE_COMM_ONLY, has_comm = c->schedule.kind != FCC_SCHEDULE_COMPUTE_ONLY;
    uint32_t row;

    memset(count, 0, sizeof(count));
    for (int r = 0; r < p->nranks; r++)
        for (uint32_t i = 0; i < c->plans[r]->nslices; i++)
            if (computes(&c->plans[r]->slices[i])) {
                const struct slice *s = &c->plans[r]->slices[i];
                expect_place(p, r, s, &row);
                count_tile(r, row, s->rows, s->col, s->cols);
            }
    for (int r = 0; r < p->nranks; r++)
        expect_counted(r, has_compute ? extent_of(p, r).sent_rows : 0, extent_of(p, r).sent_cols);
    memset(count, 0, sizeof(count));
    for (int r = 0; r < p->nranks; r++)
        for (uint32_t i = 0; i < c->plans[r]->nslices; i++)
            if (puts_tile(&c->plans[r]->slices[i])) {
                const struct slice *s = &c->plans[r]->slices[i];
                expect_place(p, r, s, &row);
                count_tile(s->dst, s->dst_row, s->rows, s->dst_col, s->cols);
            }
    for (int r = 0; r < p->nranks; r++)
        expect_counted(r, has_comm ? extent_of(p, r).result_rows : 0, extent_of(p, r).result_cols);
}

/* What a rank of another node sends for a column: partial sums of its own, straight to the owner if it is alone on its node, or
 * within its node, to one rank for all; or that one's sum of them; and whom results of the column come to. */
struct column {               /* counts rows */
    uint16_t partials[RANKS]; /* that are put at each rank */
    uint16_t sums[RANKS];     /* of its node, that each rank sends */
    uint16_t results[RANKS];  /* that each gets */
    unsigned messages;        /* between nodes */
};

static inline void column_count(const struct test_case *c, int r, const struct slice *s, int owner, struct column *column)
{
    bool apart = c->problem->node_of[r] != c->problem->node_of[owner];
    uint16_t length = (uint16_t)lane_length(c->problem, s);

    if (puts_tile(s)) {
        EXPECT(s->dst < c->problem->nranks);
        EXPECT(apart && node_ranks(c, r) > 1 ? c->problem->node_of[s->dst] == c->problem->node_of[r] : s->dst == owner);
        column->partials[s->dst] += length;
        column->messages += c->problem->node_of[s->dst] != c->problem->node_of[r] ? length : 0;
    }
    if (s->kind == SLICE_REDUCE_NODE) {
        EXPECT(apart && s->dst == owner);
        column->sums[r] += length;
        column->messages += length;
    }
    if (s->kind == SLICE_REDUCE)
        EXPECT(r == owner);
    for (int q = 0; q < c->problem->nranks && (s->kind == SLICE_REDUCE || s->kind == SLICE_FORWARD); q++)
        if (plan_reaches(c->plans[r], s->dst, q)) {
            EXPECT(s->kind == SLICE_REDUCE || (apart && q != r && c->problem->node_of[q] == c->problem->node_of[r]));
            column->results[q] += length;
            column->messages += c->problem->node_of[q] != c->problem->node_of[r] ? length : 0;
        }
}

/* One rank of each node that has several ranks, but the owner's, gets all their partial sums, and sends their sum; the owner gets its own node's, those
 * sums, and what ranks send that are alone. Results come once to each rank. Between nodes there is one message to and from each
 * other node. */
static inline void expect_hierarchy(const struct test_case *c, const int owner[])
{
    static struct column columns[WIDE];
    int nodes = 0, m = (int)across_of(c->problem);
    const bool scatters = op_scatters_rows(c->problem->op); /* results stay where they are made */

    memset(columns, 0, sizeof(columns));
    for (int r = 0; r < c->problem->nranks; r++) {
        nodes += is_first_of_node(c, r);
        for (uint32_t i = 0; i < c->plans[r]->nslices; i++) {
            const struct slice *s = &c->plans[r]->slices[i];
            for (uint32_t j = lane_first(c->problem, s);
                 j < lane_end(c->problem, s) && s->kind != SLICE_WAIT && s->kind != SLICE_ROWS; j++)
                column_count(c, r, s, owner[j], &columns[j]);
        }
    }
    for (int64_t j = 0; j < lanes_of(c->problem); j++) {
        int collected = 0;
        for (int r = 0; r < c->problem->nranks; r++) {
            bool apart = c->problem->node_of[r] != c->problem->node_of[owner[j]];
            EXPECT(columns[j].results[r] == (scatters && r != owner[j] ? 0 : m));
            EXPECT(columns[j].sums[r] == (apart && columns[j].partials[r] > 0 ? m : 0));
            EXPECT(!columns[j].partials[r] || !apart || columns[j].partials[r] == m * node_ranks(c, r));
            collected += columns[j].partials[r];
        }
        EXPECT(collected == m * c->problem->nranks && columns[j].messages == (scatters ? 1 : 2) * (unsigned)(m * (nodes - 1)));
    }
}

/* A slice is a whole tile, or on GPUs, of gemm, some rows of it, which follow each other in the plan: this one's begin at *next. */
static inline void expect_rows(const struct test_case *c, const struct slice *s, uint32_t *next)
{
    uint32_t m = (uint32_t)c->problem->dim[DIM_M], n = (uint32_t)c->problem->dim[DIM_N], first = 0;

    if (op_scatters_rows(c->problem->op)) { /* some columns of a tile, which follow each other */
        int owner = 0;
        while (s->row >= first + c->problem->rank_dim[DIM_M][owner])
            first += (uint32_t)c->problem->rank_dim[DIM_M][owner++];
        EXPECT(s->col == *next && s->dst_col == s->col && s->cols > 0 && s->cols <= n - s->col && s->dst_row == s->row - first);
        EXPECT(s->rows > 0 && s->dst_row + s->rows <= c->problem->rank_dim[DIM_M][owner]);
        EXPECT(s->dst_row % c->plans[0]->schedule.slice_rows == 0 && s->rows <= c->plans[0]->schedule.slice_rows);
        *next = (s->col + s->cols) % n;
        return;
    }
    bool some = c->problem->op == FCC_OP_GEMM_ALL_REDUCE && c->schedule.target == PLAN_GPU;

    EXPECT(s->row == *next && s->dst_row == s->row && s->rows > 0 && s->rows <= m - s->row && (some || s->rows == m));
    *next = (s->row + s->rows) % m;
}

/* What is made of whole rows: of all that a rank gets, once. */
static inline void expect_whole_rows(const struct test_case *c)
{
    const bool norm = c->problem->epilogue.number[NUMBER_NORM] && c->schedule.kind != FCC_SCHEDULE_COMPUTE_ONLY;

    for (int r = 0; r < c->problem->nranks; r++) {
        const struct plan *plan = c->plans[r];
        const int64_t cols = c->problem->dim[DIM_N];
        const int64_t rows = op_scatters_rows(plan->op) ? c->problem->rank_dim[DIM_M][r]
                             : reduces(plan->op)        ? c->problem->dim[DIM_M]
                             : norm                     ? extent_of(c->problem, r).result_rows
                                                        : 0;
        int64_t next = 0;
        EXPECT(plan->has_rows == norm);
        for (uint32_t i = 0; i < plan->nslices; i++) {
            const struct slice *s = &plan->slices[i];
            if (s->kind != SLICE_ROWS)
                continue;
            EXPECT(s->dst == r && s->row == next && s->dst_row == next && s->rows > 0 && s->col == 0 && s->cols == cols);
            next += s->rows;
        }
        EXPECT(next == (norm && cols ? rows : 0));
        EXPECT(!norm || plan->rows_at + (uint64_t)(rows * cols) * dtype_size(c->problem->dtype) <= plan->staging_bytes);
    }
}

static inline void expect_all_reduce(const struct test_case *c)
{
    const struct problem *p = c->problem;
    bool has_compute = c->schedule.kind != FCC_SCHEDULE_COMM_ONLY, has_comm = c->schedule.kind != FCC_SCHEDULE_COMPUTE_ONLY;
    static uint16_t computed[RANKS][WIDE], put[RANKS][WIDE], reduced[RANKS][WIDE];
    bool one_shot = is_one_shot(c);
    const bool scatters = op_scatters_rows(p->op);
    int owner[WIDE] = {0}, m = (int)across_of(p);

    memset(computed, 0, sizeof(computed));
    memset(put, 0, sizeof(put));
    memset(reduced, 0, sizeof(reduced));
    for (int r = 0; r < p->nranks; r++) {
        for (uint32_t i = 0, next = 0; i < c->plans[r]->nslices; i++) {
            const struct slice *s = &c->plans[r]->slices[i];
            if (s->kind == SLICE_WAIT || s->kind == SLICE_ROWS)
                continue;
            expect_rows(c, s, &next);
            EXPECT(s->cols > 0 && s->col + s->cols <= p->dim[DIM_N] && s->dst_col == s->col);
            EXPECT(lane_end(p, s) <= lanes_of(p));
            for (uint32_t j = lane_first(p, s), length = lane_length(p, s); j < lane_end(p, s); j++) {
                computed[r][j] += computes(s) ? length : 0;
                put[r][j] += puts_tile(s) ? length : 0;
                if (s->kind == SLICE_REDUCE) {
                    EXPECT(scatters ? s->dst == r : is_hierarchical(c) || s->dst == (one_shot ? (unsigned)r : SLICE_DST_ALL));
                    reduced[one_shot ? r : 0][j] += length;
                    owner[j] = one_shot ? (int)SLICE_DST_ALL : r;
                }
            }
        }
    }
    for (int64_t j = 0; j < lanes_of(p); j++) {
        for (int r = 0; r < p->nranks; r++) {
            EXPECT(reduced[r][j] == (has_comm && (one_shot || r == 0) ? m : 0));
            EXPECT(computed[r][j] == (has_compute ? m : 0) && put[r][j] == (has_comm ? m : 0));
        }
    }
    /* A tile is put where it is reduced, and is the same tile on all ranks. */
    for (int r = 0; r < p->nranks && has_comm; r++) {
        uint64_t words = has_words(c) ? (uint64_t)(p->dim[DIM_M] * p->dim[DIM_N] * 8) : 0;
        EXPECT(c->plans[r]->packet_bytes >= words * (one_shot ? (uint64_t)p->nranks : 1));
        EXPECT(c->plans[r]->packet_bytes == c->plans[0]->packet_bytes && (words || c->plans[r]->packet_bytes == 0));
        /* results go to the own rank alone, partial sums into slots */
        EXPECT(plan_starts_alone(c->plans[r]) == (one_shot && c->schedule.kind == FCC_SCHEDULE_FUSED));
        EXPECT(c->plans[r]->shared == (one_shot || scatters || c->plans[r]->has_rows ? 0 : 1u << FCC_GEMV_Y));
        for (uint32_t i = 0; i < c->plans[r]->nslices; i++) {
            const struct slice *s = &c->plans[r]->slices[i];
            for (uint32_t j = lane_first(p, s); j < lane_end(p, s) && puts_tile(s) && !is_hierarchical(c); j++)
                EXPECT(owner[j] == s->dst);
        }
        EXPECT(c->plans[r]->schedule.slice_cols == c->plans[0]->schedule.slice_cols);
        EXPECT(c->plans[r]->schedule.slice_rows == c->plans[0]->schedule.slice_rows);
        EXPECT(c->plans[r]->schedule.route == c->plans[0]->schedule.route);
    }
    if (is_hierarchical(c) && has_comm)
        expect_hierarchy(c, owner);
}

#endif
