/* SPDX-License-Identifier: MIT
 *
 * test_scatter_plan.c - sums of products: plans in any order, in which ranks add where the sum is to be; and the bytes that plans read and write in
 * memory, against sums that are made of the sizes alone.
 *
 * Each run draws other cases. FCC_TEST_SEED=N repeats a run; a failure prints the seed and the case.
 */
#include "kernels/plan/exchange/reduce.h"
#include "tests/bed/harness.h"
#include "tests/plan/plan_case.h"
#include "tests/plan/plan_expect.h"

enum { CASES = 1500 };

static void plans_make(struct test_case *c, int number, const char *what)
{
    struct error e = {0};

    (void)snprintf(case_text, sizeof(case_text), "%s %d: %s, %s, %d ranks, m %ld n %ld, slices %u x %u", what, number,
                   op_name(c->problem->op), schedule_name(c->schedule.kind), c->problem->nranks, (long)c->problem->dim[DIM_M],
                   (long)c->problem->dim[DIM_N], c->schedule.slice_rows, c->schedule.slice_cols);
    for (int r = 0; r < c->problem->nranks; r++)
        if (plan_make(c->problem, r, &c->schedule, &c->plans[r], &e))
            fail_msg("%s: rank %d: %s", case_text, r, e.text);
}

static void plans_free(struct test_case *c)
{
    for (int r = 0; r < c->problem->nranks; r++)
        plan_free(c->plans[r]);
}

/* Every rank adds every element once, at the place of its owner; slices that share a tile's lock are the same elements, and others have other locks. */
static void expect_added(const struct test_case *c, const int owner_of_lane[])
{
    static uint16_t added[WIDE];
    const struct problem *p = c->problem;

    for (int r = 0; r < p->nranks; r++) {
        const struct plan *plan = c->plans[r];
        memset(added, 0, sizeof(added));
        for (uint32_t i = 0; i < plan->nslices; i++) {
            const struct slice *s = &plan->slices[i];
            if (!puts_tile(s))
                continue;
            EXPECT(s->kind == SLICE_COMPUTE_PUT && s->slot == 0);
            const uint32_t tile = reduce_added_tile(plan->layout, &plan->schedule, s);
            EXPECT(tile < plan->added_tiles && plan->added_tiles == c->plans[0]->added_tiles);
            for (uint32_t j = lane_first(p, s); j < lane_end(p, s); j++) {
                EXPECT(owner_of_lane[j] == s->dst);
                added[j] = (uint16_t)(added[j] + lane_length(p, s));
            }
            for (uint32_t k = 0; k < i; k++) {
                const struct slice *t = &plan->slices[k];
                EXPECT(!puts_tile(t) || t->dst != s->dst || reduce_added_tile(plan->layout, &plan->schedule, t) != tile);
            }
            for (uint32_t k = 0; k < c->plans[0]->nslices; k++) {
                const struct slice *t = &c->plans[0]->slices[k];
                bool same = t->row == s->row && t->col == s->col;
                EXPECT(!puts_tile(t) || !same ||
                       (t->rows == s->rows && t->cols == s->cols &&
                        reduce_added_tile(c->plans[0]->layout, &plan->schedule, t) == tile));
            }
        }
        for (int64_t j = 0; j < lanes_of(p); j++)
            EXPECT(added[j] == across_of(p));
    }
}

/* An owner's plan ends when all ranks' flags of its tiles have come: no other slice follows where sums are made in the result. */
static void expect_in_result(const struct test_case *c, int rank)
{
    const struct plan *plan = c->plans[rank];
    const struct reduce_layout *l = plan->layout;
    uint32_t awaited = 0;

    EXPECT(plan->staging_bytes == 0 && plan->shared == 1u << FCC_GEMM_C && plan->start_level == 0);
    EXPECT(!plan_starts_early(plan));
    for (uint32_t i = 0; i < plan->nslices; i++) {
        EXPECT(puts_tile(&plan->slices[i]) || plan->slices[i].kind == SLICE_WAIT);
        awaited += plan->slices[i].wait_count;
    }
    EXPECT(awaited == (uint32_t)((l->tiles[rank + 1] - l->tiles[rank]) * plan->nranks));
}

static void test_any_order(void **state)
{
    int in_result = 0;

    (void)state;
    for (int i = 0; i < CASES; i++) {
        struct test_case c = {.schedule = {.kind = FCC_SCHEDULE_FUSED, .workgroups = (uint32_t)random_below(4)}};
        int owner[WIDE] = {0};
        c.problem = random_problem(i % 2 ? FCC_OP_GEMM_REDUCE_SCATTER : FCC_OP_GEMM_ALL_REDUCE);
        if (random_below(3))
            c.schedule.slice_rows = (uint32_t)(1 + random_below(ROWS));
        if (random_below(3))
            c.schedule.slice_cols = (uint32_t)(1 + random_below(COLS));
        memset(c.problem->node_of, 0, (size_t)c.problem->nranks * sizeof(c.problem->node_of[0]));
        c.problem->epilogue.cols = random_below(4) == 0 ? c.problem->dim[DIM_N] : 0;
        c.problem->any_order = true;
        plans_make(&c, i, "any order");
        const struct reduce_layout *l = c.plans[0]->layout;
        for (int r = 0; r < c.problem->nranks; r++)
            for (int64_t j = l->columns[r]; j < l->columns[r + 1]; j++)
                owner[j] = r;
        if (lanes_of(c.problem) && across_of(c.problem))
            expect_added(&c, owner);
        bool direct = i % 2 && c.problem->dtype == FCC_F32 && !c.problem->epilogue.cols;
        in_result += direct;
        for (int r = 0; r < c.problem->nranks; r++) {
            EXPECT(c.plans[r]->adds_into_result == direct);
            EXPECT((c.plans[r]->added_tiles > 0) == (lanes_of(c.problem) && across_of(c.problem)));
            EXPECT(direct || c.plans[r]->staging_bytes == l->slot_bytes); /* room for one sum */
            if (direct)
                expect_in_result(&c, r);
        }
        expect_levels(&c);
        expect_flags(&c);
        expect_termination(&c);
        plans_free(&c);
        problem_free(c.problem);
    }
    EXPECT(in_result > CASES / 20);
}

/* The permission is not used over nodes, on GPUs, and in sequence: the plans are the same. */
static void test_permission(void **state)
{
    struct problem *p = problem_of(FCC_OP_GEMM_REDUCE_SCATTER, 4, FCC_F32);
    const struct schedule schedules[] = {{.kind = FCC_SCHEDULE_FUSED, .target = PLAN_GPU},
                                         {.kind = FCC_SCHEDULE_SEQUENTIAL},
                                         {.kind = FCC_SCHEDULE_FUSED, .route = PLAN_HIERARCHICAL},
                                         {.kind = FCC_SCHEDULE_FUSED, .route = PLAN_FLAT}};
    struct error e;

    (void)state;
    p->dim[DIM_N] = 90;
    scatter_rows(p, 80);
    for (size_t i = 0; i < sizeof(schedules) / sizeof(schedules[0]); i++) {
        struct plan *plans[2] = {NULL, NULL};
        p->node_of[3] = i > 1;
        for (int any = 0; any < 2; any++) {
            p->any_order = any;
            assert_int_equal(plan_make(p, 1, &schedules[i], &plans[any], &e), 0);
        }
        assert_int_equal(plans[1]->added_tiles, 0);
        assert_int_equal(plans[0]->staging_bytes, plans[1]->staging_bytes);
        assert_int_equal(plans[0]->nslices, plans[1]->nslices);
        assert_memory_equal(plans[0]->slices, plans[1]->slices, plans[0]->nslices * sizeof(plans[0]->slices[0]));
        plan_free(plans[0]);
        plan_free(plans[1]);
    }
    problem_free(p);
}

/* ---- nodes with different numbers of workgroups ---- */

/* Over nodes ranks must agree on the tiles of sums, and each makes its plan for its own node's workgroups. */
static void test_workgroups(void **state)
{
    static const enum fcc_op ops[] = {FCC_OP_GEMM_REDUCE_SCATTER, FCC_OP_GEMM_ALL_REDUCE, FCC_OP_GEMV_ALL_REDUCE};
    struct error e;

    (void)state;
    for (int i = 0; i < CASES; i++) {
        const enum fcc_op op = ops[i % 3];
        struct problem *p = problem_of(op, 2 + (int)random_below(RANKS - 1), FCC_F32);
        const int64_t m = 1 + random_below(op == FCC_OP_GEMV_ALL_REDUCE ? FCC_GEMV_MAX_M : 1500);
        struct plan *plans[2] = {NULL, NULL};
        p->dim[DIM_M] = m;
        p->dim[DIM_N] = 1 + random_below(1500);
        if (op == FCC_OP_GEMM_REDUCE_SCATTER)
            scatter_rows(p, m);
        for (int r = 0; r < p->nranks; r++) {
            p->node_of[r] = r % 2;
            p->rank_dim[DIM_K][r] = 1 + random_below(600);
        }
        const int rank = (int)random_below(p->nranks);
        for (int which = 0; which < 2; which++) {
            const struct schedule s = {.kind = FCC_SCHEDULE_FUSED, .workgroups = which ? 1 + (uint32_t)random_below(64) : 4};
            assert_int_equal(plan_make(p, rank, &s, &plans[which], &e), 0);
        }
        assert_int_equal(plans[0]->nslices, plans[1]->nslices);
        assert_memory_equal(plans[0]->slices, plans[1]->slices, plans[0]->nslices * sizeof(plans[0]->slices[0]));
        plan_free(plans[0]);
        plan_free(plans[1]);
        problem_free(p);
    }
}

/* ---- bytes ---- */

static struct traffic traffic_of_all(const struct test_case *c)
{
    struct traffic all = {0}, one;

    for (int r = 0; r < c->problem->nranks; r++) {
        EXPECT(plan_traffic(c->problem, c->plans[r], &one));
        all.factors += one.factors;
        all.read += one.read;
        all.written += one.written;
    }
    return all;
}

/* What all ranks together read and write, of the sizes alone: on one node of n ranks each element of the sum has n partial sums. Each is stored once in its
 * owner's memory, and read there; in sequence stored and read once more before that. In any order a sum that is there is read and stored n - 1 times
 * again, and what is made of it elsewhere is read once more. The result is stored at one rank, or at all. */
static struct traffic expected_of(const struct problem *p, bool sequential, bool rows)
{
    const uint64_t n = (uint64_t)p->nranks, sums = (uint64_t)(p->dim[DIM_M] * p->dim[DIM_N]), size = dtype_size(p->dtype);
    const uint64_t copies = op_scatters_rows(p->op) ? 1 : n;
    const bool any = p->any_order && !sequential,
               in_result = any && op_scatters_rows(p->op) && p->dtype == FCC_F32 && !p->epilogue.cols;
    struct traffic t = {0};

    for (uint64_t r = 0; r < n; r++)
        t.factors += (uint64_t)((p->dim[DIM_M] + p->dim[DIM_N]) * p->rank_dim[DIM_K][r]) * size;
    t.factors = sums ? t.factors : 0;
    t.written = n * sums * 4 * (sequential ? 2 : 1) + (in_result ? 0 : copies * sums * size);
    t.read = (any ? (n - 1 + !in_result) * sums * 4 : n * sums * 4) + (sequential ? n * sums * 4 : 0);
    if (rows) {
        t.read += copies * sums * size;
        t.written += copies * sums * size;
    }
    return t;
}

static void test_traffic(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        struct test_case c = {.schedule = {.kind = random_below(2) ? FCC_SCHEDULE_FUSED : FCC_SCHEDULE_SEQUENTIAL}};
        const bool norm = random_below(4) == 0;
        c.problem = random_problem(i % 3 == 0   ? FCC_OP_GEMM_ALL_REDUCE
                                   : i % 3 == 1 ? FCC_OP_GEMV_ALL_REDUCE
                                                : FCC_OP_GEMM_REDUCE_SCATTER);
        memset(c.problem->node_of, 0, (size_t)c.problem->nranks * sizeof(c.problem->node_of[0]));
        c.problem->epilogue.cols = norm ? c.problem->dim[DIM_N] : 0;
        c.problem->epilogue.number[NUMBER_NORM] = norm && c.problem->dim[DIM_N] ? FCC_RMS_NORM : FCC_NO_NORM;
        c.problem->any_order = random_below(2) && op_adds_products(c.problem->op);
        plans_make(&c, i, "traffic");
        const struct traffic found = traffic_of_all(&c),
                             want = expected_of(c.problem, c.schedule.kind == FCC_SCHEDULE_SEQUENTIAL,
                                                norm && c.problem->dim[DIM_N]);
        EXPECT(found.factors == want.factors);
        EXPECT(found.read == want.read);
        EXPECT(found.written == want.written);
        plans_free(&c);
        problem_free(c.problem);
    }
}

/* Sublayers of large models on eight ranks, K split over them (T3, ASPLOS 2024): all bytes, factors too, are at least 20 % fewer than in sequence. */
static void test_traffic_of_sublayers(void **state)
{
    static const int64_t hidden[] = {3072, 4256, 12288, 18432, 20480};

    (void)state;
    for (size_t i = 0; i < sizeof(hidden) / sizeof(hidden[0]); i++)
        for (int64_t m = 1024; m <= 8192; m *= 2)
            for (int64_t k = 1; k <= 4; k += k == 1 ? 2 : 1) {
                uint64_t bytes[2] = {0};
                for (int fused = 0; fused < 2; fused++) {
                    struct test_case c = {.schedule = {.kind = fused ? FCC_SCHEDULE_FUSED : FCC_SCHEDULE_SEQUENTIAL}};
                    c.problem = problem_of(FCC_OP_GEMM_REDUCE_SCATTER, RANKS, FCC_BF16);
                    c.problem->dim[DIM_M] = m;
                    c.problem->dim[DIM_N] = hidden[i];
                    for (int r = 0; r < RANKS; r++) {
                        c.problem->rank_dim[DIM_M][r] = m / RANKS;
                        c.problem->rank_dim[DIM_K][r] = k * hidden[i] / 8;
                    }
                    plans_make(&c, (int)i, "sublayer");
                    const struct traffic t = traffic_of_all(&c);
                    bytes[fused] = t.factors + t.read + t.written;
                    plans_free(&c);
                    problem_free(c.problem);
                }
                /* small M reads little else than the factor b */
                EXPECT(bytes[1] < bytes[0] && (m * 2 < hidden[i] * k || bytes[1] <= bytes[0] * 8 / 10));
            }
}

/* Other operators have no such count. */
static void test_others(void **state)
{
    struct problem *p = problem_of(FCC_OP_GEMM_ALL_TO_ALL, 1, FCC_F32);
    const struct schedule fused = {.kind = FCC_SCHEDULE_FUSED};
    struct plan *plan;
    struct traffic t;
    struct error e;

    (void)state;
    problem_counts_set(p, 0, (const int64_t[]){3});
    p->dim[DIM_N] = 5;
    assert_int_equal(plan_make(p, 0, &fused, &plan, &e), 0);
    assert_false(plan_traffic(p, plan, &t));
    plan_free(plan);
    problem_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_order), cmocka_unit_test(test_permission),           cmocka_unit_test(test_workgroups),
        cmocka_unit_test(test_traffic),   cmocka_unit_test(test_traffic_of_sublayers), cmocka_unit_test(test_others),
    };
    random_state = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
