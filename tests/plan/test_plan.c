/* SPDX-License-Identifier: MIT
 *
 * test_plan.c - properties of the plans of random problems, for all ranks together: what is computed and delivered, in which
 * order, which flags are raised and awaited, and that every order of execution comes to an end with complete results.
 *
 * Each run draws other cases. FCC_TEST_SEED=N repeats a run; a failure prints the seed and the case.
 */
#include "tests/bed/harness.h"
#include "tests/plan/plan_case.h"
#include "tests/plan/plan_expect.h"

enum { CASES = 4000 };

/* ---- the tests ---- */

static void test_properties(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        struct test_case c;
        enum fcc_op op = i % 40 == 0 ? FCC_OP_NOOP : all_ops[1 + i % (OPS - 1)];
        case_open(&c, op, (enum fcc_schedule_kind)(FCC_SCHEDULE_FUSED + i / (OPS - 1) % 4), i);
        expect_plans(&c);
        case_close(&c);
    }
    for (int target = PLAN_CPU; target <= PLAN_GPU; target++)
        EXPECT(chosen[target][PLAN_FLAT] > 10 && chosen[target][PLAN_HIERARCHICAL] > 10);
}

static void test_destinations(void **state)
{
    enum { MOST = 96 };

    (void)state;
    (void)snprintf(case_text, sizeof(case_text), "destinations");
    for (int n = 1; n <= MOST; n++) {
        struct problem *p = problem_of(FCC_OP_NOOP, n, FCC_F32);
        bool met[MOST][MOST] = {{false}};
        for (int r = 0; r < n; r++) {
            int order[MOST];
            plan_destination_order(p, r, order);
            EXPECT(order[n - 1] == r);
            for (int i = 0; i < n; i++) { /* on one node, no two ranks are at the same destination at any step */
                EXPECT(order[i] >= 0 && order[i] < n && !met[i][order[i]]);
                met[i][order[i]] = true;
            }
        }
        problem_free(p);
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

/* What rank 0 of two sends: to itself, and to rank 1, which sends nothing. */
static void rows_set(struct problem *p, int64_t own, int64_t other)
{
    memset(p->received, 0, 2 * sizeof(p->received[0]));
    p->wrong = 0;
    problem_counts_set(p, 0, (const int64_t[]){own, other});
    problem_counts_set(p, 1, (const int64_t[]){0, 0});
}

static void test_limits(void **state)
{
    struct problem *p = problem_of(FCC_OP_GEMM_ALL_TO_ALL, 2, FCC_F32);
    struct schedule fused = {.kind = FCC_SCHEDULE_FUSED},
                    small = {.kind = FCC_SCHEDULE_FUSED, .slice_rows = 1, .slice_cols = 1};
    struct plan *plan = NULL;
    struct error e;
    char text[64];

    (void)state;
    (void)snprintf(case_text, sizeof(case_text), "limits");
    expect_refused(p, 2, fused, "rank: 2: allowed are 0 to 1");
    expect_refused(p, 0, (struct schedule){.kind = FCC_SCHEDULE_AUTO}, "schedule: auto");
    p->dim[DIM_N] = 1024;
    rows_set(p, 0, 1025);
    expect_refused(p, 0, small, "more than 1048576");
    p->dim[DIM_N] = INT32_MAX; /* it ends with the last slice that is allowed, not with the last one that there would be */
    for (int kind = FCC_SCHEDULE_FUSED; kind <= FCC_SCHEDULE_COMPUTE_ONLY; kind++)
        expect_refused(p, 0, (struct schedule){.kind = (enum fcc_schedule_kind)kind, .slice_rows = 1, .slice_cols = 1},
                       "more than 1048576");
    p->dim[DIM_N] = 1024;
    rows_set(p, 0, (int64_t)1 << 40);
    expect_refused(p, 0, fused, "send_rows: 1099511627776");
    rows_set(p, 0, -1);
    expect_refused(p, 0, fused, "send_rows: -1: allowed are 0 to 2147483647");
    rows_set(p, 5, INT32_MAX - 4);
    expect_refused(p, 0, fused, "send_rows: 2147483643: allowed are 0 to 2147483642");
    p->op = (enum fcc_op)77;
    expect_refused(p, 0, fused, "operator: 77");
    problem_free(p);
    p = problem_of(FCC_OP_NOOP, PLAN_MAX_RANKS + 1, FCC_F32);
    (void)snprintf(text, sizeof(text), "nranks: %d: allowed are 1 to %d", PLAN_MAX_RANKS + 1, PLAN_MAX_RANKS);
    expect_refused(p, 0, fused, text);
    problem_free(p);
    p = problem_of(FCC_OP_GEMV_ALL_REDUCE, 64, FCC_F16);
    p->dim[DIM_M] = 1;
    p->dim[DIM_N] = 1000003;
    EXPECT(plan_make(p, 3, &small, &plan, &e) == 0); /* tiles grow until their flags are few enough */
    EXPECT(plan->nflags <= PLAN_MAX_FLAGS && plan->schedule.slice_cols > 1);
    plan_free(plan);
    problem_free(p);
    p = problem_of(FCC_OP_EMBEDDING_ALL_TO_ALL, 1, FCC_F32);
    p->dim[DIM_VECTOR] = 1;
    p->rank_dim[DIM_N][0] = FCC_MAX_TABLES;
    p->dim[DIM_M] = p->rank_dim[DIM_M][0] = INT32_MAX;
    EXPECT(plan_make(p, 0, &fused, &plan, &e) == 0);
    plan_free(plan);
    problem_free(p);
}

/* A gemm is shared by all workgroups of a cpu device, in slices that are not small; one workgroup has as long ones as there may be. */
static void test_workgroups(void **state)
{
    static const int64_t sizes[][2] = {{1024, 1024}, {4096, 512}, {512, 8192}, {130, 130}, {2, 100}};
    struct problem *p = problem_of(FCC_OP_GEMM_ALL_TO_ALL, 2, FCC_F32);
    struct schedule schedule = {.kind = FCC_SCHEDULE_FUSED};
    struct plan *plan = NULL;
    struct error e;

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (schedule.workgroups = 0; schedule.workgroups <= 64; schedule.workgroups = 2 * schedule.workgroups + 1) {
            (void)snprintf(case_text, sizeof(case_text), "%d x %d, %u workgroups", (int)sizes[i][0], (int)sizes[i][1],
                           schedule.workgroups);
            assert_int_equal(problem_begin(p, p->op), 0);
            p->rank_dim[DIM_K][0] = p->rank_dim[DIM_K][1] = 64;
            p->dim[DIM_N] = sizes[i][1];
            for (int r = 0; r < 2; r++)
                problem_counts_set(p, r, (const int64_t[]){sizes[i][0] / 2, sizes[i][0] / 2});
            EXPECT(plan_make(p, 1, &schedule, &plan, &e) == 0);
            const struct schedule *s = &plan->schedule;
            if (schedule.workgroups > 1)
                EXPECT(plan->nslices >= 2 * schedule.workgroups || (s->slice_rows <= 128 && s->slice_cols <= 128));
            else
                EXPECT(s->slice_cols == (sizes[i][1] > 6144 ? 4096 : sizes[i][1]));
            EXPECT(s->slice_rows >= 64 && (s->slice_cols >= 64 || s->slice_cols == p->dim[DIM_N]));
            plan_free(plan);
        }
    problem_free(p);
}

/* What a GPU multiplies at a time is about as high as wide: 10 to 24 tiles of the same columns, unless there are no more rows, and an even
 * number of them, unless these are a destination's last ones. */
static void test_bands(void **state)
{
    struct problem *p = problem_of(FCC_OP_GEMM_ALL_TO_ALL, 2, FCC_F16);
    const struct schedule schedule = {.kind = FCC_SCHEDULE_FUSED, .target = PLAN_GPU};
    struct plan *plan = NULL;
    struct error e;

    (void)state;
    p->dim[DIM_N] = 4096;
    p->rank_dim[DIM_K][0] = p->rank_dim[DIM_K][1] = 64;
    for (uint32_t high = 2; high <= 100; high++) {
        (void)snprintf(case_text, sizeof(case_text), "%u tiles high", high);
        rows_set(p, high * 128 - 5, high * 128 - 5);
        EXPECT(plan_make(p, 0, &schedule, &plan, &e) == 0 && plan->schedule.slice_rows == 128);
        for (uint32_t i = 0, n; plan->slices[i].kind == SLICE_COMPUTE_PUT; i += n) {
            const struct slice *s = &plan->slices[i];
            for (n = 1; s[n].kind == SLICE_COMPUTE_PUT && s[n].col == s->col && s[n].row == s[n - 1].row + 128; n++)
                EXPECT(s[n].dst == s->dst);
            bool last = s[n - 1].rows < 128; /* of its destination */
            EXPECT(n <= 24 && (last || (n >= 10 && n % 2 == 0)) && (n == high || high > 23));
        }
        plan_free(plan);
    }
    problem_free(p);
}

static void expect_differs(struct problem *a, const struct problem *b, int64_t *word, bool differs)
{
    ++*word;
    EXPECT(problem_equal(a, b) != differs);
    --*word;
    EXPECT(problem_equal(a, b));
}

enum { FEW = 3 };

/* Sets all counts to 0, but of one pair of ranks to `rows`. */
static void counts_set(struct problem *p, int source, int dst, int64_t rows)
{
    memset(p->received, 0, FEW * sizeof(p->received[0]));
    p->wrong = 0;
    for (int r = 0; r < FEW; r++) {
        int64_t to[FEW] = {0};
        to[dst] = r == source ? rows : 0;
        problem_counts_set(p, r, to);
    }
}

/* Problems are equal if all words are that their operator uses. Of counts, those that ranks here send or get are. */
static void test_problems(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(all_ops) / sizeof(all_ops[0]); i++) {
        const struct problem_spec *words = op_words(all_ops[i]);
        struct problem *a = problem_of(FCC_OP_GEMM_ALL_TO_ALL, FEW, FCC_F32), *b = problem_of(all_ops[i], FEW, FCC_F32);
        (void)snprintf(case_text, sizeof(case_text), "problems of %s", op_name(all_ops[i]));
        for (int r = 0; r < FEW; r++)
            problem_counts_set(a, r, (const int64_t[]){7, 8, 9}); /* of another operator */
        memset(a->dim, 0x55, sizeof(a->dim));
        memset(a->rank_dim[0], 0x55, RANK_DIMS * FEW * sizeof(a->rank_dim[0][0]));
        assert_int_equal(problem_begin(a, all_ops[i]), 0);
        if (op_counts(all_ops[i])) {
            counts_set(a, 0, 0, 0);
            counts_set(b, 0, 0, 0);
        }
        EXPECT(problem_equal(a, b));
        for (int d = 0; d < DIMS; d++) {
            EXPECT(a->dim[d] == 0);
            expect_differs(a, b, &a->dim[d], true);
        }
        for (int r = 0; r < FEW; r++)
            for (int d = 0; d < RANK_DIMS; d++) {
                EXPECT(a->rank_dim[d][r] == 0);
                expect_differs(a, b, &a->rank_dim[d][r], words->rank_dim[d].name);
            }
        for (int pair = 0; pair < FEW * FEW && op_counts(all_ops[i]); pair++) {
            counts_set(a, pair / FEW, pair % FEW, 1);
            EXPECT(!problem_equal(a, b));
            struct problem *copy = problem_copy(a);
            EXPECT(copy && problem_equal(a, copy) && copy->counts[pair % FEW].from[pair / FEW] == 1);
            problem_free(copy);
            counts_set(a, 0, 0, 0);
            EXPECT(problem_equal(a, b));
        }
        a->node_of[2] = 1;
        EXPECT(!problem_equal(a, b));
        a->node_of[2] = 0;
        a->dtype = FCC_BF16;
        EXPECT(!problem_equal(a, b));
        problem_free(a);
        problem_free(b);
    }
}

static void test_names(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(all_ops) / sizeof(all_ops[0]); i++)
        assert_int_equal(op_by_name(op_name(all_ops[i])), all_ops[i]);
    for (int d = FCC_F32; d <= FCC_F8E5M2; d++)
        assert_int_equal(dtype_by_name(dtype_name((enum fcc_dtype)d)), d);
    assert_int_equal(op_by_name("gemm"), -ENOENT);
    assert_int_equal(dtype_by_name("f128"), -ENOENT);
    assert_int_equal(dtype_by_name("unknown"), -ENOENT);
    assert_string_equal(op_name((enum fcc_op)99), "unknown");
    assert_string_equal(dtype_name((enum fcc_dtype)0), "unknown");
    assert_string_equal(schedule_name((enum fcc_schedule_kind)5), "unknown");
    assert_string_equal(slice_kind_name(SLICE_COMPUTE_PUT), "compute+put");
    assert_string_equal(slice_kind_name((enum slice_kind)0), "unknown");
    assert_int_equal(dtype_size(FCC_BF16), 2);
    assert_int_equal(dtype_size((enum fcc_dtype)11), 0);
}

/* Short parts over nodes: ranks begin with different destinations, each on another node; where several share a tile, with the tile that the next node's rank like it
 * is in. Then come the others in their order, and all rows of a tile follow each other. */
static void test_short_over_nodes(void **state)
{
    enum { NODES = 4, EACH = 2, N = NODES * EACH };
    static const struct {
        int64_t rows;
        int together;
    } cases[] = {{100, 1}, {64, 2}, {40, 2}, {32, 4}, {16, 8}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct problem *p = problem_of(FCC_OP_GEMM_ALL_TO_ALL, N, FCC_F16);
        const struct schedule asked = {.kind = FCC_SCHEDULE_FUSED, .target = PLAN_GPU};
        int64_t to[N];
        p->dim[DIM_N] = 1024;
        for (int r = 0; r < N; r++) {
            to[r] = cases[i].rows;
            p->node_of[r] = r / EACH;
            p->rank_dim[DIM_K][r] = 64;
        }
        for (int r = 0; r < N; r++)
            problem_counts_set(p, r, to);
        for (int r = 0; r < N; r++) {
            struct plan *plan = NULL;
            struct error e = {0};
            assert_int_equal(plan_make(p, r, &asked, &plan, &e), 0);
            const int first = (r + EACH) % N / cases[i].together * cases[i].together;
            for (int k = 0; k < N; k++) {
                assert_int_equal(plan->slices[k].kind, SLICE_COMPUTE_PUT);
                assert_int_equal(plan->slices[k].dst, (first + k) % N);
                assert_int_equal(plan->slices[k].row, (first + k) % N * cases[i].rows);
            }
            plan_free(plan);
        }
        problem_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_properties), cmocka_unit_test(test_destinations),
        cmocka_unit_test(test_limits),     cmocka_unit_test(test_workgroups),
        cmocka_unit_test(test_bands),      cmocka_unit_test(test_names),
        cmocka_unit_test(test_problems),   cmocka_unit_test(test_short_over_nodes),
    };
    random_state = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
