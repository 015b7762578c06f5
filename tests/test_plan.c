/* SPDX-License-Identifier: MIT
 *
 * test_plan.c - properties of the plans of random problems, for all ranks together: what is computed and delivered, in which
 * order, which flags are raised and awaited, and that every order of execution comes to an end with complete results.
 *
 * FCC_TEST_SEED=N repeats a run; a failure prints the seed and the case.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>

#include "gpu_call.h"
#include "op.h"
#include "random.h"

enum { CASES = 4000, RANKS = 8, ROWS = 96, COLS = 96, WIDE = 1600, FLAGS = 1200 };

/* ---- a case: one problem, all ranks' plans ---- */

struct test_case {
    struct problem problem;
    struct schedule schedule;
    struct plan *plans[RANKS];
};

static const enum fcc_op all_ops[] = {FCC_OP_NOOP, FCC_OP_EMBEDDING_ALL_TO_ALL, FCC_OP_GEMV_ALL_REDUCE, FCC_OP_GEMM_ALL_TO_ALL};

static void random_problem(struct problem *p, enum fcc_op op)
{
    static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};

    memset(p, 0, sizeof(*p));
    p->op = op;
    p->dtype = dtypes[random_below(3)];
    p->nranks = 1 + (int)random_below(RANKS);
    for (int r = 0; r < p->nranks; r++)
        p->node_of[r] = (int32_t)random_below(1 + random_below(4));
    if (op == FCC_OP_EMBEDDING_ALL_TO_ALL) {
        p->embedding.dim = 1 + random_below(300);
        for (int r = 0; r < p->nranks; r++) {
            p->embedding.tables[r] = random_size(COLS / RANKS);
            p->embedding.split[r] = random_size(ROWS / 2);
            p->embedding.batch += p->embedding.split[r];
        }
        for (int r = 0; r < p->nranks; r++)
            p->embedding.nnz[r] = random_below(1 + p->embedding.batch * p->embedding.tables[r] * 40);
    } else if (op == FCC_OP_GEMV_ALL_REDUCE) {
        p->gemv.m = 1 + random_below(FCC_GEMV_MAX_M);
        p->gemv.n = random_size(COLS);
        for (int r = 0; r < p->nranks; r++)
            p->gemv.k[r] = random_size(100000);
    } else if (op == FCC_OP_GEMM_ALL_TO_ALL) {
        p->gemm.n = random_size(COLS);
        for (int r = 0; r < p->nranks; r++) {
            p->gemm.k[r] = random_size(1000);
            for (int q = 0; q < p->nranks; q++)
                p->gemm.rows[r][q] = random_size(ROWS / RANKS);
        }
    }
}

/* More than goes to all ranks in one step; and worth a hierarchy. */
static void wide_gemv(struct problem *p)
{
    p->gemv.m = FCC_GEMV_MAX_M - random_below(16);
    p->gemv.n = WIDE - random_below(150);
    for (int r = 0; r < p->nranks; r++)
        p->gemv.k[r] = random_size(100);
    memset(p->node_of, 0, sizeof(p->node_of)); /* over nodes nothing depends on that */
}

static void case_open(struct test_case *c, enum fcc_op op, enum fcc_schedule_kind kind, int number)
{
    struct error e = {0};

    random_problem(&c->problem, op);
    c->schedule = (struct schedule){.kind = kind, .target = random_below(2) ? PLAN_GPU : PLAN_CPU};
    c->schedule.route =
        (enum plan_route)random_below(c->schedule.target == PLAN_GPU ? PLAN_HIERARCHICAL : PLAN_HIERARCHICAL + 1);
    bool wide = op == FCC_OP_GEMV_ALL_REDUCE && random_below(4) == 0;
    if (wide)
        wide_gemv(&c->problem);
    if (random_below(3))
        c->schedule.slice_rows = (uint32_t)(1 + random_below(ROWS));
    if (random_below(3))
        c->schedule.slice_cols = (uint32_t)((wide ? COLS : 1) + random_below(COLS)); /* not more than FLAGS */
    (void)snprintf(case_text, sizeof(case_text), "case %d: %s, %s, %s, %d ranks, slices %u x %u", number, op_name(op),
                   schedule_name(kind), route_name(c->schedule.route), c->problem.nranks, c->schedule.slice_rows,
                   c->schedule.slice_cols);
    for (int r = 0; r < c->problem.nranks; r++)
        if (plan_make(&c->problem, r, &c->schedule, &c->plans[r], &e))
            fail_msg("%s: rank %d: %s", case_text, r, e.text);
}

static void case_close(struct test_case *c)
{
    for (int r = 0; r < c->problem.nranks; r++)
        plan_free(c->plans[r]);
}

static bool computes(const struct slice *s)
{
    return s->kind == SLICE_COMPUTE_PUT || s->kind == SLICE_COMPUTE;
}

static bool puts_tile(const struct slice *s)
{
    return s->kind == SLICE_COMPUTE_PUT || s->kind == SLICE_PUT;
}

/* On the GPUs of one node partial sums travel as words that carry their epoch. */
static bool has_words(const struct test_case *c)
{
    return c->problem.op == FCC_OP_GEMV_ALL_REDUCE && c->schedule.target == PLAN_GPU && !plan_is_over_nodes(&c->problem);
}

/* No flags before they are reduced. */
static bool carries_words(const struct test_case *c, const struct slice *s)
{
    return has_words(c) && (puts_tile(s) || s->kind == SLICE_REDUCE);
}

/* ... and go to all ranks, each of which reduces all of them. */
static bool is_one_shot(const struct test_case *c)
{
    const struct problem *p = &c->problem;
    int64_t words = p->gemv.m * p->gemv.n * 8, k = 1;

    if (!has_words(c))
        return false;
    for (int r = 0; r < p->nranks; r++)
        k = p->gemv.k[r] > k ? p->gemv.k[r] : k;
    return words * p->nranks <= 1 << 20 ||
           (words * p->nranks <= 16 << 20 && words * (p->nranks - 1) * 16 <= p->gemv.n * k * (int64_t)dtype_size(p->dtype));
}

/* Ranks of that rank's node. */
static int node_ranks(const struct test_case *c, int rank)
{
    int n = 0;

    for (int r = 0; r < c->problem.nranks; r++)
        n += c->problem.node_of[r] == c->problem.node_of[rank];
    return n;
}

static int chosen[PLAN_HIERARCHICAL + 1]; /* by the rule */

/* The route is what was asked for, or what the rule says; flat where the other way would be the same. */
static void expect_route(const struct test_case *c)
{
    enum plan_route route = c->plans[0]->schedule.route;
    int64_t most = 0, sums = c->problem.gemv.m * c->problem.gemv.n * 4;

    for (int r = 0; r < c->problem.nranks; r++)
        most = node_ranks(c, r) > most ? node_ranks(c, r) : most;
    if (c->problem.op != FCC_OP_GEMV_ALL_REDUCE || c->schedule.target == PLAN_GPU || most == 1 || most == c->problem.nranks)
        EXPECT(route == PLAN_FLAT);
    else if (c->schedule.route != PLAN_ROUTE_RULE)
        EXPECT(route == c->schedule.route);
    else
        EXPECT(route == (sums * (most - 1) >= 32768 ? PLAN_HIERARCHICAL : PLAN_FLAT));
    chosen[route] += c->schedule.route == PLAN_ROUTE_RULE && c->schedule.target == PLAN_CPU;
}

static bool is_hierarchical(const struct test_case *c)
{
    return c->plans[0]->schedule.route == PLAN_HIERARCHICAL;
}

static bool is_first_of_node(const struct test_case *c, int rank)
{
    for (int r = 0; r < rank; r++)
        if (c->problem.node_of[r] == c->problem.node_of[rank])
            return false;
    return true;
}

/* What is to be there before an owner can add it all up. */
static unsigned terms_of(const struct test_case *c, int owner)
{
    unsigned n = is_hierarchical(c) ? (unsigned)node_ranks(c, owner) : (unsigned)c->problem.nranks;

    for (int r = 0; r < c->problem.nranks && is_hierarchical(c); r++)
        n += is_first_of_node(c, r) && c->problem.node_of[r] != c->problem.node_of[owner];
    return n;
}

/* ---- what is computed and delivered ---- */

static unsigned char count[RANKS][RANKS * ROWS][COLS];

static void count_tile(int rank, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols)
{
    EXPECT(rows > 0 && cols > 0 && row + rows <= RANKS * ROWS && col + cols <= COLS);
    for (uint32_t i = row; i < row + rows; i++)
        for (uint32_t j = col; j < col + cols; j++)
            count[rank][i][j]++;
}

/* Exactly the first rows x cols elements were counted once, no other. */
static void expect_counted(int rank, int64_t rows, int64_t cols)
{
    for (int i = 0; i < RANKS * ROWS; i++)
        for (int j = 0; j < COLS; j++)
            EXPECT(count[rank][i][j] == (i < rows && j < cols));
}

/* The sizes of what a rank computes and of what it receives, and where its part for dst lies in both. */
struct extent {
    int64_t sent_rows, sent_cols, result_rows, result_cols;
};

static struct extent extent_of(const struct problem *p, int rank)
{
    struct extent x = {0};

    for (int q = 0; q < p->nranks; q++) {
        if (p->op == FCC_OP_EMBEDDING_ALL_TO_ALL) {
            x.sent_rows = p->embedding.batch;
            x.sent_cols = p->embedding.tables[rank];
            x.result_rows = p->embedding.split[rank];
            x.result_cols += p->embedding.tables[q];
        } else {
            x.sent_rows += p->gemm.rows[rank][q];
            x.result_rows += p->gemm.rows[q][rank];
            x.sent_cols = x.result_cols = p->gemm.n;
        }
    }
    return x;
}

/* A tile's place in all that the rank computes, and where it must arrive. */
static void expect_place(const struct problem *p, int rank, const struct slice *s, uint32_t *row)
{
    int64_t sent_before = 0, received_before = 0, tables_before = 0, samples_before = 0;

    for (int q = 0; q < p->nranks; q++) {
        sent_before += q < s->dst ? p->gemm.rows[rank][q] : 0;
        received_before += q < rank ? p->gemm.rows[q][s->dst] : 0;
        tables_before += q < rank ? p->embedding.tables[q] : 0;
        samples_before += q < s->dst ? p->embedding.split[q] : 0;
    }
    if (p->op == FCC_OP_EMBEDDING_ALL_TO_ALL) {
        EXPECT(s->dst_row == s->row && s->dst_col == s->col + tables_before);
        EXPECT((int64_t)s->row + s->rows <= p->embedding.split[s->dst]);
        *row = s->row + (uint32_t)samples_before;
    } else {
        EXPECT(s->row >= sent_before && s->row + s->rows <= sent_before + p->gemm.rows[rank][s->dst]);
        EXPECT(s->dst_row == s->row - sent_before + received_before && s->dst_col == s->col);
        *row = s->row;
    }
}

static void expect_all_to_all(const struct test_case *c)
{
    const struct problem *p = &c->problem;
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
struct column {
    unsigned char partials[RANKS]; /* that are put at each rank */
    unsigned char sums[RANKS];     /* of its node, that each rank sends */
    unsigned char results[RANKS];  /* that each gets */
    unsigned messages;             /* between nodes */
};

static void column_count(const struct test_case *c, int r, const struct slice *s, int owner, struct column *column)
{
    bool apart = c->problem.node_of[r] != c->problem.node_of[owner];

    if (puts_tile(s)) {
        EXPECT(s->dst < c->problem.nranks);
        EXPECT(apart && node_ranks(c, r) > 1 ? c->problem.node_of[s->dst] == c->problem.node_of[r] : s->dst == owner);
        column->partials[s->dst]++;
        column->messages += c->problem.node_of[s->dst] != c->problem.node_of[r];
    }
    if (s->kind == SLICE_REDUCE_NODE) {
        EXPECT(apart && s->dst == owner);
        column->sums[r]++;
        column->messages++;
    }
    if (s->kind == SLICE_REDUCE)
        EXPECT(r == owner);
    for (int q = 0; q < c->problem.nranks && (s->kind == SLICE_REDUCE || s->kind == SLICE_FORWARD); q++)
        if (plan_reaches(c->plans[r], s->dst, q)) {
            EXPECT(s->kind == SLICE_REDUCE || (apart && q != r && c->problem.node_of[q] == c->problem.node_of[r]));
            column->results[q]++;
            column->messages += c->problem.node_of[q] != c->problem.node_of[r];
        }
}

/* One rank of each node that has several ranks, but the owner's, gets all their partial sums, and sends their sum; the owner gets its own node's, those
 * sums, and what ranks send that are alone. Results come once to each rank. Between nodes there is one message to and from each
 * other node. */
static void expect_hierarchy(const struct test_case *c, const int owner[])
{
    static struct column columns[WIDE];
    int nodes = 0;

    memset(columns, 0, sizeof(columns));
    for (int r = 0; r < c->problem.nranks; r++) {
        nodes += is_first_of_node(c, r);
        for (uint32_t i = 0; i < c->plans[r]->nslices; i++) {
            const struct slice *s = &c->plans[r]->slices[i];
            for (uint32_t j = s->col; j < s->col + s->cols; j++)
                column_count(c, r, s, owner[j], &columns[j]);
        }
    }
    for (int64_t j = 0; j < c->problem.gemv.n; j++) {
        int collected = 0;
        for (int r = 0; r < c->problem.nranks; r++) {
            bool apart = c->problem.node_of[r] != c->problem.node_of[owner[j]];
            EXPECT(columns[j].results[r] == 1);
            EXPECT(columns[j].sums[r] == (apart && columns[j].partials[r] > 0));
            EXPECT(!columns[j].partials[r] || !apart || columns[j].partials[r] == node_ranks(c, r));
            collected += columns[j].partials[r];
        }
        EXPECT(collected == c->problem.nranks && columns[j].messages == 2 * (unsigned)(nodes - 1));
    }
}

static void expect_all_reduce(const struct test_case *c)
{
    const struct problem *p = &c->problem;
    bool has_compute = c->schedule.kind != FCC_SCHEDULE_COMM_ONLY, has_comm = c->schedule.kind != FCC_SCHEDULE_COMPUTE_ONLY;
    static unsigned char computed[RANKS][WIDE], put[RANKS][WIDE], reduced[RANKS][WIDE];
    bool one_shot = is_one_shot(c);
    int owner[WIDE] = {0};

    memset(computed, 0, sizeof(computed));
    memset(put, 0, sizeof(put));
    memset(reduced, 0, sizeof(reduced));
    for (int r = 0; r < p->nranks; r++) {
        for (uint32_t i = 0; i < c->plans[r]->nslices; i++) {
            const struct slice *s = &c->plans[r]->slices[i];
            if (s->kind == SLICE_WAIT)
                continue;
            EXPECT(s->row == 0 && s->rows == p->gemv.m && s->cols > 0 && s->col + s->cols <= p->gemv.n && s->dst_col == s->col);
            for (uint32_t j = s->col; j < s->col + s->cols; j++) {
                computed[r][j] += computes(s);
                put[r][j] += puts_tile(s);
                if (s->kind == SLICE_REDUCE) {
                    EXPECT(is_hierarchical(c) || s->dst == (one_shot ? (unsigned)r : SLICE_DST_ALL));
                    reduced[one_shot ? r : 0][j]++;
                    owner[j] = one_shot ? (int)SLICE_DST_ALL : r;
                }
            }
        }
    }
    for (int64_t j = 0; j < p->gemv.n; j++) {
        for (int r = 0; r < p->nranks; r++) {
            EXPECT(reduced[r][j] == (has_comm && (one_shot || r == 0)));
            EXPECT(computed[r][j] == has_compute && put[r][j] == has_comm);
        }
    }
    /* A tile is put where it is reduced, and is the same tile on all ranks. */
    for (int r = 0; r < p->nranks && has_comm; r++) {
        uint64_t words = has_words(c) ? (uint64_t)(p->gemv.m * p->gemv.n * 8) : 0;
        EXPECT(c->plans[r]->slots_bytes >= words * (one_shot ? (uint64_t)p->nranks : 1));
        EXPECT(c->plans[r]->slots_bytes == c->plans[0]->slots_bytes && (words || c->plans[r]->slots_bytes == 0));
        for (uint32_t i = 0; i < c->plans[r]->nslices; i++) {
            const struct slice *s = &c->plans[r]->slices[i];
            for (uint32_t j = s->col; j < s->col + s->cols && puts_tile(s) && !is_hierarchical(c); j++)
                EXPECT(owner[j] == s->dst);
        }
        EXPECT(c->plans[r]->schedule.slice_cols == c->plans[0]->schedule.slice_cols);
        EXPECT(c->plans[r]->schedule.route == c->plans[0]->schedule.route);
    }
    if (is_hierarchical(c) && has_comm)
        expect_hierarchy(c, owner);
}

/* ---- order ---- */

static int destination_class(const struct problem *p, int rank, int dst)
{
    return dst == rank ? 2 : p->node_of[dst] == p->node_of[rank];
}

/* Whether a GPU multiplies the rows for several destinations in one tile. */
static bool goes_together(const struct test_case *c, int rank)
{
    const struct plan *plan = c->plans[rank];
    int64_t longest = 0;

    for (int p = 0; p < plan->nranks; p++)
        longest = c->problem.gemm.rows[rank][p] > longest ? c->problem.gemm.rows[rank][p] : longest;
    return plan->op == FCC_OP_GEMM_ALL_TO_ALL && plan->schedule.kind == FCC_SCHEDULE_FUSED &&
           plan->schedule.target == PLAN_GPU && longest <= plan->schedule.slice_rows;
}

/* All rows of some columns, from the first to the last, then all of the next columns. */
static void expect_order_together(const struct plan *plan)
{
    uint32_t row = 0, col = 0, cols = 0;

    for (uint32_t i = 0; i < plan->nslices && plan->slices[i].kind == SLICE_COMPUTE_PUT; i++) {
        const struct slice *s = &plan->slices[i];
        if (i > 0 && s->col != col) {
            EXPECT(s->col == col + cols);
            row = 0;
        }
        EXPECT(s->row == row && (i == 0 || s->col != col || s->cols == cols));
        row += s->rows;
        col = s->col;
        cols = s->cols;
    }
}

/* At any time each destination has had as many slices as any other that has any left, give or take one. */
static void expect_order_in_turns(const struct plan *plan)
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
static int owner_node(const struct test_case *c, const struct slice *s)
{
    for (int r = 0; r < c->problem.nranks; r++)
        for (uint32_t i = 0; i < c->plans[r]->nslices; i++) {
            const struct slice *reduce = &c->plans[r]->slices[i];
            if (reduce->kind == SLICE_REDUCE && reduce->col == s->col)
                return c->problem.node_of[r];
        }
    return -1;
}

/* The next slice from *i on that puts a tile. */
static const struct slice *next_put(const struct plan *plan, uint32_t *i)
{
    while (*i < plan->nslices && !puts_tile(&plan->slices[*i]))
        ++*i;
    return *i < plan->nslices ? &plan->slices[(*i)++] : NULL;
}

/* Tiles of other nodes first, in one order on all ranks of a node. */
static void expect_order_hierarchical(const struct test_case *c, int rank, enum slice_kind kind)
{
    const struct plan *plan = c->plans[rank];
    uint32_t at = 0, first_at = 0;
    const struct slice *s, *like;
    bool own = false;
    int first = 0;

    if (kind != (c->schedule.kind == FCC_SCHEDULE_FUSED ? SLICE_COMPUTE_PUT : SLICE_PUT))
        return;
    while (c->problem.node_of[first] != c->problem.node_of[rank])
        first++;
    while ((s = next_put(plan, &at))) {
        bool is_own = owner_node(c, s) == c->problem.node_of[rank];
        EXPECT(is_own || !own);
        own = is_own;
        like = next_put(c->plans[first], &first_at);
        EXPECT(own || (like && like->col == s->col));
    }
}

/* Within each kind: other nodes' destinations, then this node's, then this rank, each from the next rank on. */
static void expect_order(const struct test_case *c, int rank, enum slice_kind kind)
{
    const struct plan *plan = c->plans[rank];
    int n = c->problem.nranks, last = -1;

    if (is_hierarchical(c) && kind != SLICE_COMPUTE) {
        expect_order_hierarchical(c, rank, kind);
        return;
    }
    if (goes_together(c, rank)) {
        expect_order_together(plan);
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
            int before = destination_class(&c->problem, rank, last), now = destination_class(&c->problem, rank, dst);
            EXPECT(now > before || (now == before && (dst - rank + n) % n > (last - rank + n) % n));
        }
        last = dst;
    }
}

/* Nothing that does not wait stands behind something that waits; and phases follow each other. */
static void expect_phases(const struct test_case *c, const struct plan *plan)
{
    static const int phase[] = {
        [SLICE_COMPUTE_PUT] = 0, [SLICE_COMPUTE] = 0, [SLICE_PUT] = 1,     [SLICE_REDUCE_NODE] = 1,
        [SLICE_REDUCE] = 2,      [SLICE_WAIT] = 4,    [SLICE_FORWARD] = 3,
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

static void expect_groups(const struct test_case *c, const struct plan *plan)
{
    uint32_t *slices = calloc(plan->ngroups + 1, sizeof(*slices));

    assert_non_null(slices);
    for (uint32_t i = 0; i < plan->nslices; i++) {
        uint32_t group = plan->slices[i].group;
        EXPECT(group == SLICE_NO_GROUP || group < plan->ngroups);
        EXPECT((group == SLICE_NO_GROUP) ==
               (plan->slices[i].kind == SLICE_WAIT ||
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
static void expect_flags(const struct test_case *c)
{
    static unsigned raised[RANKS][FLAGS], awaited[RANKS][FLAGS];

    memset(raised, 0, sizeof(raised));
    memset(awaited, 0, sizeof(awaited));
    for (int r = 0; r < c->problem.nranks; r++) {
        const struct plan *plan = c->plans[r];
        EXPECT(plan->nflags <= FLAGS && plan->nflags == c->plans[0]->nflags);
        for (uint32_t g = 0; g < plan->ngroups; g++) {
            EXPECT(plan->groups[g].flag < plan->nflags);
            for (int q = 0; q < c->problem.nranks; q++)
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
    for (int r = 0; r < c->problem.nranks; r++)
        for (uint32_t f = 0; f < FLAGS; f++)
            EXPECT(raised[r][f] <= 1 && (raised[r][f] > 0) == (awaited[r][f] > 0));
}

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

/* puts of a tile that are there, and nodes' sums: at each rank, by column. Words go wherever they are to go at once: they count
 * at rank 0 */
static unsigned partials[RANKS][WIDE];
static bool results[RANKS][WIDE]; /* that are there */

static bool sim_ready(const struct test_case *c, const struct sim_rank *rank, const struct slice *s)
{
    for (uint32_t j = s->col; j < s->col + s->cols && s->kind == SLICE_REDUCE && carries_words(c, s); j++)
        if (partials[0][j] < (unsigned)c->problem.nranks)
            return false;
    for (uint32_t w = 0; w < s->wait_count; w++)
        if (!rank->flags[s->wait_first + w * s->wait_stride])
            return false;
    return true;
}

static bool stores_result(const struct test_case *c, const struct slice *s)
{
    return s->kind == SLICE_REDUCE || s->kind == SLICE_FORWARD || (puts_tile(s) && c->problem.op != FCC_OP_GEMV_ALL_REDUCE);
}

static void sim_count(const struct test_case *c, struct sim_rank ranks[], int source, const struct slice *s, int by)
{
    ranks[source].own_left += s->kind == SLICE_COMPUTE ? (uint32_t)by : 0;
    for (int q = 0; q < c->problem.nranks; q++)
        if (stores_result(c, s) && plan_reaches(c->plans[source], s->dst, q))
            ranks[q].arrivals_left += by;
}

/* Everything that a slice reads is there. */
static void sim_column(const struct test_case *c, int r, const struct slice *s, uint32_t j)
{
    bool words = c->schedule.target == PLAN_GPU;

    if (puts_tile(s) || s->kind == SLICE_REDUCE_NODE)
        partials[words ? 0 : s->dst][j]++;
    EXPECT(s->kind != SLICE_REDUCE || partials[words ? 0 : r][j] == terms_of(c, r));
    EXPECT(s->kind != SLICE_REDUCE_NODE || partials[r][j] == (unsigned)node_ranks(c, r));
    EXPECT(s->kind != SLICE_FORWARD || results[r][j]);
    for (int q = 0; q < c->problem.nranks && (s->kind == SLICE_REDUCE || s->kind == SLICE_FORWARD); q++)
        results[q][j] |= plan_reaches(c->plans[r], s->dst, q);
}

static void sim_finish(const struct test_case *c, struct sim_rank ranks[], int r, const struct slice *s)
{
    const struct plan *plan = c->plans[r];

    if (s->kind == SLICE_PUT)
        EXPECT(c->schedule.kind == FCC_SCHEDULE_COMM_ONLY || ranks[r].own_left == 0);
    for (uint32_t j = s->col; j < s->col + s->cols && c->problem.op == FCC_OP_GEMV_ALL_REDUCE; j++)
        sim_column(c, r, s, j);
    sim_count(c, ranks, r, s, -1);
    ranks[r].finished++;
    uint32_t *left = ranks[r].left;
    if (!left || s->group == SLICE_NO_GROUP || --left[s->group] > 0)
        return;
    for (int q = 0; q < c->problem.nranks; q++)
        if (plan_reaches(plan, plan->groups[s->group].dst, q))
            ranks[q].flags[plan->groups[s->group].flag] = true;
}

/* One step of one workgroup: it takes a slice or finishes the one it has. Returns whether it could. */
static bool sim_step(const struct test_case *c, struct sim_rank ranks[], int r, int wg)
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

static void expect_termination(const struct test_case *c)
{
    static struct sim_rank ranks[RANKS];
    int n = c->problem.nranks, workgroups = 1 + (int)random_below(WORKGROUPS), stuck = 0;

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

/* ---- the tests ---- */

static void expect_same_again(const struct test_case *c)
{
    struct error e = {0};

    for (int r = 0; r < c->problem.nranks; r++) {
        const struct plan *a = c->plans[r];
        struct plan *b = NULL;
        EXPECT(plan_make(&c->problem, r, &c->schedule, &b, &e) == 0);
        EXPECT(a->nslices == b->nslices && a->ngroups == b->ngroups && a->staging_bytes == b->staging_bytes);
        EXPECT(memcmp(a->slices, b->slices, a->nslices * sizeof(*a->slices)) == 0);
        EXPECT(a->ngroups == 0 || memcmp(a->groups, b->groups, a->ngroups * sizeof(*a->groups)) == 0);
        plan_free(b);
    }
}

/* A GPU's phases follow each other in the plan, and no slice waits in a phase for what comes in the same one or later. */
static void expect_gpu_phases(const struct test_case *c, const struct plan *plan)
{
    struct gpu_run run;
    struct error e = {0};

    if (gpu_run_make(plan, &run, &e))
        fail_msg("%s: %s", case_text, e.text);
    EXPECT(run.first[0] == 0 && run.first[GPU_PHASES] == plan->nslices && run.ngroups == plan->ngroups);
    for (uint32_t i = 0; i < plan->nslices; i++) {
        const struct slice *s = &plan->slices[i];
        unsigned phase = 0;
        while (i >= run.first[phase + 1])
            phase++;
        EXPECT(phase == GPU_PHASE_WAIT ? s->kind == SLICE_WAIT : s->kind != SLICE_WAIT);
        EXPECT(phase != GPU_PHASE_FREE || s->wait_count == 0);
        EXPECT(phase == GPU_PHASE_FREE || phase == GPU_PHASE_WAIT || s->wait_count > 0 ||
               (phase == GPU_PHASE_REDUCE && carries_words(c, s)));
        EXPECT((s->kind == SLICE_REDUCE) == (phase == GPU_PHASE_REDUCE));
    }
}

static void test_properties(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        struct test_case c;
        enum fcc_op op = i % 40 == 0 ? FCC_OP_NOOP : all_ops[1 + i % 3];
        case_open(&c, op, (enum fcc_schedule_kind)(FCC_SCHEDULE_FUSED + i / 3 % 4), i);
        expect_route(&c);
        if (op == FCC_OP_GEMV_ALL_REDUCE)
            expect_all_reduce(&c);
        else if (op != FCC_OP_NOOP)
            expect_all_to_all(&c);
        for (int r = 0; r < c.problem.nranks; r++) {
            for (int kind = SLICE_COMPUTE_PUT; kind <= SLICE_PUT; kind++)
                expect_order(&c, r, (enum slice_kind)kind);
            expect_phases(&c, c.plans[r]);
            if (!is_hierarchical(&c))
                expect_gpu_phases(&c, c.plans[r]);
            expect_groups(&c, c.plans[r]);
        }
        expect_flags(&c);
        expect_termination(&c);
        expect_same_again(&c);
        case_close(&c);
    }
    EXPECT(chosen[PLAN_FLAT] > 10 && chosen[PLAN_HIERARCHICAL] > 10);
}

static void test_destinations(void **state)
{
    (void)state;
    (void)snprintf(case_text, sizeof(case_text), "destinations");
    for (int n = 1; n <= FCC_MAX_RANKS; n++) {
        struct problem p = {.op = FCC_OP_NOOP, .nranks = n};
        bool met[FCC_MAX_RANKS][FCC_MAX_RANKS] = {{false}};
        for (int r = 0; r < n; r++) {
            int order[FCC_MAX_RANKS];
            plan_destination_order(&p, r, order);
            EXPECT(order[n - 1] == r);
            for (int i = 0; i < n; i++) { /* on one node, no two ranks are at the same destination at any step */
                EXPECT(order[i] >= 0 && order[i] < n && !met[i][order[i]]);
                met[i][order[i]] = true;
            }
        }
    }
}

static void expect_refused(const struct problem *p, int rank, struct schedule schedule, const char *text)
{
    struct plan *plan = (struct plan *)-1;
    struct error e = {0};

    EXPECT(plan_make(p, rank, &schedule, &plan, &e) == -EINVAL);
    EXPECT(plan == (struct plan *)-1); /* outputs are set only on success */
    if (!strstr(e.text, text))
        fail_msg("\"%s\" does not say \"%s\"", e.text, text);
}

static void test_limits(void **state)
{
    struct problem p = {.op = FCC_OP_GEMM_ALL_TO_ALL, .dtype = FCC_F32, .nranks = 2};
    struct schedule fused = {.kind = FCC_SCHEDULE_FUSED},
                    small = {.kind = FCC_SCHEDULE_FUSED, .slice_rows = 1, .slice_cols = 1};
    struct plan *plan = NULL;
    struct error e;

    (void)state;
    (void)snprintf(case_text, sizeof(case_text), "limits");
    expect_refused(&p, 2, fused, "rank: 2: allowed are 0 to 1");
    expect_refused(&p, 0, (struct schedule){.kind = FCC_SCHEDULE_AUTO}, "schedule: auto");
    p.gemm.n = 1024;
    p.gemm.rows[0][1] = 1025;
    expect_refused(&p, 0, small, "more than 1048576");
    p.gemm.rows[0][1] = (int64_t)1 << 40;
    expect_refused(&p, 0, fused, "send_rows: 1099511627776");
    p.op = (enum fcc_op)77;
    expect_refused(&p, 0, fused, "operator: 77");
    p = (struct problem){.op = FCC_OP_NOOP, .nranks = 65};
    expect_refused(&p, 0, fused, "nranks: 65: allowed are 1 to 64");
    p = (struct problem){.op = FCC_OP_GEMV_ALL_REDUCE, .dtype = FCC_F16, .nranks = 64};
    p.gemv.m = 1;
    p.gemv.n = 1000003;
    EXPECT(plan_make(&p, 3, &small, &plan, &e) == 0); /* tiles grow until their flags are few enough */
    EXPECT(plan->nflags <= PLAN_MAX_FLAGS && plan->schedule.slice_cols > 1);
    plan_free(plan);
    p = (struct problem){.op = FCC_OP_EMBEDDING_ALL_TO_ALL, .dtype = FCC_F32, .nranks = 1};
    p.embedding.dim = 1;
    p.embedding.tables[0] = FCC_MAX_TABLES;
    p.embedding.batch = p.embedding.split[0] = INT32_MAX;
    EXPECT(plan_make(&p, 0, &fused, &plan, &e) == 0);
    plan_free(plan);
}

static void test_names(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(all_ops) / sizeof(all_ops[0]); i++)
        assert_int_equal(op_by_name(op_name(all_ops[i])), all_ops[i]);
    for (int d = FCC_F32; d <= FCC_I64; d++)
        assert_int_equal(dtype_by_name(dtype_name((enum fcc_dtype)d)), d);
    assert_int_equal(op_by_name("gemm"), -ENOENT);
    assert_int_equal(dtype_by_name("f64"), -ENOENT);
    assert_int_equal(dtype_by_name("unknown"), -ENOENT);
    assert_string_equal(op_name((enum fcc_op)99), "unknown");
    assert_string_equal(dtype_name((enum fcc_dtype)0), "unknown");
    assert_string_equal(schedule_name((enum fcc_schedule_kind)5), "unknown");
    assert_string_equal(slice_kind_name(SLICE_COMPUTE_PUT), "compute+put");
    assert_string_equal(slice_kind_name((enum slice_kind)0), "unknown");
    assert_int_equal(dtype_size(FCC_BF16), 2);
    assert_int_equal(dtype_size((enum fcc_dtype)9), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_properties),
        cmocka_unit_test(test_destinations),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_names),
    };
    const char *seed = getenv("FCC_TEST_SEED");

    random_state = seed ? strtoull(seed, NULL, 0) : 1;
    (void)printf("FCC_TEST_SEED=%llu\n", (unsigned long long)random_state);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
